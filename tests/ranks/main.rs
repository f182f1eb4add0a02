//! The engine in ranks on four devices of the software GPU, compared with the engine on one of them. If another driver is
//! selected by its variable, its devices are used.
mod adapters;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod files;
mod graphs;
mod logits;
mod models;
#[path = "../../workers/llm-engine/tests/model/packing.rs"]
#[allow(dead_code, reason = "shared with the tests of the decoder")]
mod packing;
mod processes;
mod refused;
#[path = "../../workers/llm-engine/tests/model/steps.rs"]
#[allow(dead_code, reason = "shared with the tests of the decoder")]
mod steps;
mod texts;

use std::path::Path;
use std::sync::LazyLock;

use candle_core::{DType, Device};
use llm_engine::model::LoadOptions;
use llm_engine::model::ranks::Ranks;

/// Number of devices of the software GPU.
const DEVICES: usize = 4;

/// Number of devices of the selected driver.
static SELECTED: LazyLock<usize> = LazyLock::new(|| common::select_devices(DEVICES));

/// Returns those numbers of ranks for which there are devices.
fn with_devices(ranks: &[usize]) -> impl Iterator<Item = usize> {
    ranks.iter().copied().filter(|ranks| *ranks <= *SELECTED)
}

/// Returns the first `count` devices.
fn devices(count: usize) -> Vec<Device> {
    LazyLock::force(&SELECTED);
    (0..count).map(|ordinal| Device::new_rocm(ordinal).unwrap()).collect()
}

/// Returns options with a small cache. Without a data type, that of the files is used.
fn options(dtype: Option<DType>) -> LoadOptions {
    LoadOptions { dtype, cache_bytes: Some(1 << 20), context: Some(256), ..LoadOptions::default() }
}

fn load(path: &Path, ranks: usize, options: LoadOptions) -> anyhow::Result<Ranks> {
    Ok(Ranks::load(path, &devices(ranks), options, &mut |_| ())?.0)
}
