//! Tests all readers of safetensors files.
use std::collections::BTreeMap;
use std::io::Write;

use candle_core::safetensors::{BufferedSafetensors, MmapedSafetensors, SliceSafetensors, load, load_buffer};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use crate::assert_error;

/// Returns a file with this header and `data` bytes of data.
pub fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![1; data]].concat()
}

/// Dimensions of every tensor.
type Shapes = BTreeMap<String, Vec<usize>>;

/// Reads all tensors from a buffer.
pub fn read(bytes: &[u8]) -> Result<Shapes> {
    let tensors = load_buffer(bytes, &Device::Cpu)?;
    Ok(tensors.into_iter().map(|(name, tensor)| (name, tensor.dims().to_vec())).collect())
}

const VALID: &str = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"e":{"dtype":"U8","shape":[0,3],"data_offsets":[22,22]}}"#;

/// Returns a file with metadata and three tensors, one of them empty.
pub fn valid() -> Vec<u8> {
    file(VALID, 22)
}

#[test]
fn a_valid_file_is_read() -> Result<()> {
    let shapes = read(&valid())?;
    let expected = [("a", vec![2, 2]), ("b", vec![3]), ("e", vec![0, 3])];
    assert_eq!(shapes, expected.map(|(name, dims)| (name.to_owned(), dims)).into());
    Ok(())
}

#[test]
fn truncated_files_are_reported_with_the_sizes() {
    let all = valid();
    let header = 8 + VALID.len();
    for end in 0..all.len() {
        let (words, number) = match end {
            0..8 => ("the length of the header needs 8 bytes, the file has", end),
            end if end < header => ("in a file that has", end - 8),
            end => ("data_offsets end at 22, the file has", end - header),
        };
        assert_error(read(&all[..end]), &["safetensors", &format!("{words} {number}")]);
    }
}

#[test]
fn a_header_length_out_of_range_is_rejected() {
    let mut all = valid();
    for length in [u64::MAX, i64::MAX as u64, 1 << 40, 100_000_001, 99_999_999, all.len() as u64 - 7] {
        all[..8].copy_from_slice(&length.to_le_bytes());
        assert_error(read(&all), &[&format!("a header of {length} bytes")]);
    }
}

/// Invalid entries of the tensor `x` in a file with 16 bytes of data, and words of the error.
const DAMAGED: &[(&str, &[&str])] = &[
    (r#""shape":[4],"data_offsets":[0,16]"#, &["tensor `x`", "missing field `dtype`"]),
    (r#""dtype":"F32","data_offsets":[0,16]"#, &["tensor `x`", "missing field `shape`"]),
    (r#""dtype":"F32","shape":[4]"#, &["tensor `x`", "missing field `data_offsets`"]),
    (r#""dtype":"F99","shape":[4],"data_offsets":[0,16]"#, &["tensor `x`", "unknown variant `F99`"]),
    (r#""dtype":7,"shape":[4],"data_offsets":[0,16]"#, &["tensor `x`"]),
    (r#""dtype":"F32","shape":[-4],"data_offsets":[0,16]"#, &["tensor `x`", "-4"]),
    (r#""dtype":"F32","shape":[4.5],"data_offsets":[0,16]"#, &["tensor `x`", "4.5"]),
    (r#""dtype":"F32","shape":[1e30],"data_offsets":[0,16]"#, &["tensor `x`", "floating point"]),
    (r#""dtype":"F32","shape":"4","data_offsets":[0,16]"#, &["tensor `x`", "expected a sequence"]),
    (r#""dtype":"F32","shape":[4],"data_offsets":[0]"#, &["tensor `x`", "invalid length 1"]),
    (r#""dtype":"F32","shape":[4],"data_offsets":[0,16,32]"#, &["tensor `x`"]),
    (r#""dtype":"F32","shape":[4],"data_offsets":[16,0]"#, &["tensor `x`", "data_offsets [16, 0]"]),
    (
        r#""dtype":"F32","shape":[3],"data_offsets":[4,16]"#,
        &["tensor `x`", "data_offsets [4, 16]", "ends at 0"],
    ),
    (r#""dtype":"F32","shape":[3],"data_offsets":[0,12]"#, &["data_offsets end at 12, the file has 16"]),
    (r#""dtype":"F32","shape":[8],"data_offsets":[0,32]"#, &["data_offsets end at 32, the file has 16"]),
    (
        r#""dtype":"F32","shape":[5],"data_offsets":[0,16]"#,
        &["tensor `x`", "shape [5] of F32 takes 20 bytes", "give 16"],
    ),
    (
        r#""dtype":"F4","shape":[31],"data_offsets":[0,16]"#,
        &["tensor `x`", "shape [31] of F4 takes 15.5 bytes"],
    ),
    (r#""dtype":"F32","shape":[0],"data_offsets":[0,16]"#, &["tensor `x`", "takes 0 bytes"]),
    (
        r#""dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]"#,
        &["tensor `x`", "data_offsets [0, 18446744073709551615]"],
    ),
    (
        r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]"#,
        &["tensor `x`", "shape [4294967296, 4294967296]", "more bytes than can be counted"],
    ),
    (
        r#""dtype":"F32","shape":[2305843009213693952],"data_offsets":[0,16]"#,
        &["tensor `x`", "more bytes than can be counted"],
    ),
    (
        r#""dtype":"BOOL","shape":[16],"data_offsets":[0,16]"#,
        &["tensor `x`", "unsupported safetensor dtype BOOL"],
    ),
    (
        r#""dtype":"U64","shape":[2],"data_offsets":[0,16]"#,
        &["tensor `x`", "unsupported safetensor dtype U64"],
    ),
];

#[test]
fn invalid_entries_are_reported_with_the_tensor() {
    for (entry, words) in DAMAGED {
        assert_error(read(&file(&format!(r#"{{"x":{{{entry}}}}}"#), 16)), words);
    }
}

#[test]
fn overlapping_tensors_and_gaps_are_rejected() {
    let two = |second: &str| {
        let first = r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#;
        file(&format!(r#"{{"a":{{{first}}},"b":{{"dtype":"U8","shape":[8],"data_offsets":{second}}}}}"#), 16)
    };
    assert!(read(&two("[8,16]")).is_ok());
    for second in ["[0, 8]", "[4, 12]", "[9, 17]"] {
        assert_error(read(&two(second)), &["tensor `b`", &format!("data_offsets {second}"), "ends at 8"]);
    }
}

#[test]
fn an_invalid_header_is_rejected() {
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    for header in ["", "{", "[]", "7", r#"{"x":{}"#, r#"{"x":}"#, &deep] {
        assert_error(read(&file(header, 0)), &["header"]);
    }
    assert_error(read(&file(r#"{"x":7}"#, 0)), &["tensor `x`"]);
    let mut broken = valid();
    broken[12] = 0xff;
    assert_error(read(&broken), &["invalid UTF-8 in header"]);
}

#[test]
fn overflowing_strides_are_rejected() {
    let entry = r#"{"x":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}"#;
    assert_error(read(&file(entry, 0)), &["tensor `x`", "strides of shape [0, 4294967296, 4294967296]"]);
}

#[test]
fn all_readers_report_path_and_tensor() -> Result<()> {
    let bad = file(r#"{"x":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}"#, 16);
    let fault = "tensor `x`: shape [5]";
    assert_error(SliceSafetensors::new(&bad).map(|_| "read"), &[fault]);
    assert_error(BufferedSafetensors::new(bad.clone()).map(|_| "read"), &[fault]);
    let mut on_disk = tempfile::Builder::new().prefix("damaged").tempfile()?;
    on_disk.write_all(&bad)?;
    let path = on_disk.path();
    assert_error(load(path, &Device::Cpu), &["damaged", fault]);
    assert_error(load(path.with_extension("gone"), &Device::Cpu), &["damaged", "gone"]);
    // SAFETY: no other process writes to the temporary file.
    assert_error(unsafe { MmapedSafetensors::new(path) }.map(|_| "read"), &["damaged", fault]);
    // SAFETY: no other process writes to the temporary file.
    assert_error(unsafe { MmapedSafetensors::multi(&[path]) }.map(|_| "read"), &["damaged", fault]);
    for device in [Device::Cpu, crate::common::device()] {
        // SAFETY: no other process writes to the temporary file.
        let builder = unsafe { VarBuilder::from_mmaped_safetensors(&[path], DType::F32, &device) };
        assert_error(builder.map(|_| "read"), &["damaged", fault]);
        assert_error(load(path, &device), &["damaged", fault]);
    }
    let bools = file(r#"{"x":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}"#, 1);
    let words = &["tensor `x`", "unsupported safetensor dtype BOOL"];
    assert_error(SliceSafetensors::new(&bools)?.load("x", &Device::Cpu), words);
    assert_error(BufferedSafetensors::new(bools)?.load("x", &Device::Cpu), words);
    Ok(())
}

#[test]
fn unaligned_data_is_read_correctly() -> Result<()> {
    // The header's length determines the alignment of the data.
    for spaces in 0..4 {
        let header =
            format!(r#"{{"x":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}{}}}"#, " ".repeat(spaces));
        let tensor = &load_buffer(&file(&header, 8), &Device::Cpu)?["x"];
        let expected = Tensor::full(f32::from_le_bytes([1; 4]), 2, &Device::Cpu)?;
        assert_eq!(tensor.to_vec1::<f32>()?, expected.to_vec1::<f32>()?);
    }
    Ok(())
}
