//! Compares the instructions and bytes of attention prefill, counted by the software GPU, with computed
//! minimums.
#![cfg(feature = "rocm-emulator")]
mod common;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_flash_attn::flash_attn;
use hip_kernels::Module;
use serde_json::Value;

const HEADS: u64 = 2;
const ROWS: u64 = 512;
const WIDTHS: [u64; 2] = [64, 128];
/// Queries per workgroup of `attention_rows`.
const QUERY_TILE: u64 = 128;

/// Matrix instructions for f16 on a GPU, and how `attention.cu` divides the work among waves.
struct Arch {
    name: &'static str,
    /// Multiplications per instruction.
    multiplications: u64,
    /// Queries per wave, and keys per step for head width 128. For width 64 a step has 32 keys.
    queries: u64,
    keys: u64,
    /// True without matrix units: waves reload queries in each step, and exchange weights through LDS.
    lanes: bool,
}

const MATRIX: Arch = Arch { name: "", multiplications: 16 * 16 * 16, queries: 32, keys: 64, lanes: false };
const ARCHS: [Arch; 4] = [
    Arch { name: "gfx90a", ..MATRIX },
    Arch { name: "gfx942", ..MATRIX },
    Arch { name: "gfx1100", queries: 16, ..MATRIX },
    Arch { name: "gfx1030", multiplications: 2 * 32, queries: 16, keys: 32, lanes: true },
];

impl Arch {
    /// Returns the number of query-key pairs in all steps that have at least one visible key.
    fn pairs(&self, width: u64, causal: bool) -> u64 {
        let keys = if width < 128 { 32 } else { self.keys };
        let waves = (0..ROWS).step_by(self.queries as usize);
        let visible = |first: u64| if causal { first + self.queries } else { ROWS };
        HEADS * self.queries * waves.map(|first| visible(first).next_multiple_of(keys)).sum::<u64>()
    }

    /// Returns the minimum number of instructions for both matrix products: queries with keys, weights with
    /// values.
    fn products(&self, width: u64, causal: bool) -> u64 {
        2 * self.pairs(width, causal) * width / self.multiplications
    }
}

/// Runs a prefill with the given head width and number of keys; returns the profile of its kernel.
fn prefill(device: &Device, width: u64, keys: u64, causal: bool) -> Result<Value> {
    let rows = |rows: u64, from: f64| {
        let dims = (1, rows as usize, HEADS as usize, width as usize);
        let count = (rows * HEADS * width) as usize;
        let values: Vec<f64> = (0..count).map(|i| (from + i as f64 * 12.9898).sin()).collect();
        Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(DType::F16)?.to_device(device)
    };
    let (q, k, v) = (rows(ROWS, 0.0)?, rows(keys, 0.3)?, rows(keys, 0.7)?);
    device.synchronize()?;
    rocm_emulator::take_profile();
    flash_attn(&q, &k, &v, 0.1, causal)?;
    device.synchronize()?;
    let profile = rocm_emulator::take_profile().context("profiling is not enabled")?;
    let profile: Value = serde_json::from_str(&profile)?;
    let kernels = profile["kernels"].as_array().context("the profile has no kernels")?;
    assert_eq!(
        (kernels.len(), kernels[0]["name"].as_str()),
        (1, Some(&*format!("attention_rows_{width}_f16")))
    );
    Ok(kernels[0].clone())
}

fn number(kernel: &Value, group: &str, name: &str) -> u64 {
    kernel[group][name].as_u64().unwrap_or_else(|| panic!("no {group}.{name} in {kernel}"))
}

#[test]
#[ignore = "run by the test below in a separate process with profiling enabled"]
fn prefills() -> Result<()> {
    let mut exceeded = Vec::new();
    let built = ARCHS.iter().filter(|arch| hip_kernels::code_object(Module::Attention, arch.name).is_ok());
    for (ordinal, arch) in built.enumerate() {
        let device = Device::new_rocm(ordinal)?;
        for (width, causal) in WIDTHS.into_iter().flat_map(|width| [(width, false), (width, true)]) {
            // With 0 keys, only the other data is loaded.
            let other_bytes = number(&prefill(&device, width, 0, false)?, "bytes", "loaded");
            let kernel = prefill(&device, width, ROWS, causal)?;
            let (products, needed) = (number(&kernel, "rates", "products"), arch.products(width, causal));
            let stored = number(&kernel, "bytes", "lds_stored");
            // Keys and values are stored to LDS once after each load.
            let read = match arch.lanes {
                true => stored - arch.pairs(width, causal) * 2,
                false => number(&kernel, "bytes", "loaded") - other_bytes,
            };
            let minimum_bytes = 2 * HEADS * ROWS * width * 2;
            let (accesses, conflicts) =
                (number(&kernel, "lds", "accesses"), number(&kernel, "lds", "bank_conflicts"));
            let case = format!("{} {width} {}", arch.name, if causal { "causal" } else { "not causal" });
            println!(
                "{case}: {products} products, {needed} needed; keys and values loaded {:.2} times; {conflicts} conflicts in \
                 {accesses} LDS accesses ({:.1}%), {} steps",
                read as f64 / minimum_bytes as f64,
                100.0 * conflicts as f64 / accesses as f64,
                number(&kernel, "lds", "steps"),
            );
            let bounds = [
                ("products", needed <= products && 10 * products <= 11 * needed),
                (
                    "keys and values",
                    minimum_bytes <= 2 * read && read <= (ROWS / QUERY_TILE + 1) * minimum_bytes,
                ),
                ("conflicts", 20 * conflicts < accesses),
            ];
            exceeded
                .extend(bounds.iter().filter(|(_, holds)| !holds).map(|(what, _)| format!("{case}: {what}")));
        }
    }
    assert!(exceeded.is_empty(), "limits exceeded: {exceeded:#?}");
    Ok(())
}

#[test]
fn prefill_products_and_loads_are_close_to_the_minimum() -> Result<()> {
    let (built, missing): (Vec<&str>, Vec<&str>) = ARCHS
        .iter()
        .map(|arch| arch.name)
        .partition(|arch| hip_kernels::code_object(Module::Attention, arch).is_ok());
    if !missing.is_empty() {
        println!("the kernels were built without {missing:?} (CANDLE_ROCM_ARCHS)");
    }
    Ok(common::run_profiled("prefills", &built)?)
}
