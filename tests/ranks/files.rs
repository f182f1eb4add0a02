//! Parts of tensors in files, which each rank reads.
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use llm_engine::model::files::ModelFiles;

use super::models;

/// Compares the parts of a tensor of `rows` rows with the parts of its bytes. `unit` is the number of elements of a block.
fn assert_parts(path: &Path, name: &str, rows: usize, width: usize, unit: usize) {
    let files = ModelFiles::open(path).unwrap();
    let whole = files.part(name, 0..rows, 0..width).unwrap();
    assert!(files.rows(name, 0..files.location(name).unwrap().shape[0]).unwrap() == whole);
    let row = whole.len() / rows;
    let bytes = |column: usize| row * column / width;
    let check = |rows: Range<usize>, columns: Range<usize>| {
        let part = files.part(name, rows.clone(), columns.clone()).unwrap();
        let of_row =
            |index: usize| &whole[index * row + bytes(columns.start)..index * row + bytes(columns.end)];
        let expected: Vec<u8> = rows.flat_map(of_row).copied().collect();
        assert!(part == expected, "{name}, columns {columns:?}");
    };
    for columns in [0..width, 0..unit, width - unit..width, unit..unit] {
        check(0..rows, columns.clone());
        check(1..rows - 1, columns.clone());
        check(rows..rows, columns);
    }
    for (rows, columns) in [(0..rows + 1, 0..width), (0..rows, 0..width + unit)] {
        let error = files.part(name, rows, columns).unwrap_err();
        assert!(format!("{error:#}").contains("has no rows"), "{error:#}");
    }
    if unit > 1 {
        assert!(files.part(name, 0..rows, 0..unit / 2).is_err(), "a part of a block");
    }
}

#[test]
fn parts_are_the_bytes_of_their_elements() {
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &models::llama_config(), &models::weights(false, models::KEY_HEADS));
    assert_parts(folder.path(), "model.layers.0.mlp.down_proj.weight", models::HIDDEN, models::INNER, 1);
    let file = models::write_mixtral_gguf(folder.path(), GgmlDType::Q8_0);
    assert_parts(&file, "blk.1.ffn_down_exps.weight", 4 * models::HIDDEN, models::INNER, 32);
}

/// Elements and scales of MXFP4 are two tensors.
#[test]
fn parts_of_mxfp4_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |dims: &[usize], factor: usize| {
        let values: Vec<u8> =
            (0..dims.iter().product()).map(|index: usize| (index * factor % 100 + 70) as u8).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    };
    let tensors = [("x_blocks", bytes(&[2, 3, 4, 16], 7)), ("x_scales", bytes(&[2, 3, 4], 3))];
    let tensors: HashMap<_, _> = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let files = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(files.location("x").unwrap().shape, [2, 3, 128]);
    let whole = files.rows("x", 0..2).unwrap();
    let row = whole.len() / 6;
    let part = files.part("x", 1..5, 32..96).unwrap();
    let expected: Vec<u8> =
        (1..5).flat_map(|index| &whole[index * row + row / 4..index * row + row / 4 * 3]).copied().collect();
    assert!(part == expected);
}
