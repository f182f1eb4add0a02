//! Checks that every model of candle-transformers has a row in a table, or a reason in docs/contributing/testing.md why it
//! has none.
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use rocmify::upstream::{VERSION, locate};

use crate::{
    audio, diffusion, encoders, flash, multimodal, quantized, quantized_inputs, recurrent, transformers,
    vision,
};

const DOCS: &str = include_str!("../../docs/contributing/testing.md");
/// Header of the table of reasons.
const REASONS: &str = "| File | Why it has no row |\n";

/// Returns the names of upstream's model files and folders.
fn files() -> Result<BTreeSet<String>> {
    let crates = locate(&["candle-transformers"], VERSION, Path::new(env!("CARGO_TARGET_TMPDIR")))?;
    let entries = crates[0].join("src/models").read_dir()?;
    let name = |entry: std::fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_string());
    Ok(entries.filter_map(|entry| name(entry.ok()?)).collect())
}

/// Returns the first words of the names of all rows.
fn rows() -> BTreeSet<String> {
    let families = [transformers::families(), flash::families(), recurrent::families()];
    let singles =
        [encoders::models(), vision::models(), audio::models(), multimodal::models(), diffusion::models()];
    let quantized = [quantized::families(), quantized_inputs::families()];
    let names = families.iter().flatten().map(|family| family.name);
    let names = names.chain(singles.iter().flatten().map(|model| model.name));
    let names = names.chain(quantized.iter().flatten().map(|family| family.name));
    names.filter_map(|name| Some(name.split([' ', ',']).next()?.to_string())).collect()
}

/// Returns the files in the table of reasons.
fn excluded() -> BTreeSet<String> {
    let table = DOCS.split_once(REASONS).expect("the table of reasons").1;
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| Some(row.split('`').nth(1)?.to_string())).collect()
}

#[test]
fn every_model_has_a_row_or_a_reason() {
    let files = match files() {
        Ok(files) => files,
        Err(error) => return println!("not applicable: needs upstream's sources: {error}"),
    };
    let (rows, excluded) = (rows(), excluded());
    assert!(files.len() > 100, "{files:?}");
    let missing: Vec<_> =
        files.iter().filter(|file| !rows.contains(*file) && !excluded.contains(*file)).collect();
    assert!(
        missing.is_empty(),
        "neither a row in tests/parity nor a reason in docs/contributing/testing.md: {missing:?}"
    );
    let stale: Vec<_> =
        excluded.iter().filter(|file| rows.contains(*file) || !files.contains(*file)).collect();
    assert!(stale.is_empty(), "reasons for models that have a row or do not exist upstream: {stale:?}");
}
