//! Tests the reader of GGUF files in all three versions.
use std::io::Cursor;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{Device, Result};

use crate::assert_error;
use crate::bytes::Bytes;

/// Numbers of value types and tensor types in a file.
const U8: u32 = 0;
const U32: u32 = 4;
const I32: u32 = 5;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const F32: u32 = 0;
const Q8_0: u32 = 8;
const Q4K: u32 = 12;

/// Names and sizes in bytes of the tensors of [`small`].
const SIZES: [(&str, usize); 3] = [("f", 4 * 12), ("q", 34 * 4), ("k", 144)];

/// GGUF file of a given version.
pub struct Gguf {
    version: u32,
    pub bytes: Bytes,
}

impl Gguf {
    pub fn new(version: u32, tensors: u64, metadata: u64) -> Self {
        let mut file = Self { version, bytes: Bytes::default() };
        file.bytes.field("magic and version", b"GGUF").field("magic and version", &version.to_le_bytes());
        for count in [tensors, metadata] {
            let count = file.length(count);
            file.bytes.field("counts of tensors and metadata", &count);
        }
        file
    }

    /// Encodes a length in the format of this version.
    fn length(&self, length: u64) -> Vec<u8> {
        match self.version {
            1 => (length as u32).to_le_bytes().to_vec(),
            _ => length.to_le_bytes().to_vec(),
        }
    }

    fn string(&mut self, field: &str, text: &str) {
        let length = self.length(text.len() as u64);
        self.bytes.field(field, &length).field(field, text.as_bytes());
    }

    /// Appends the key and type of a metadata entry; returns the field name for its value, which must follow.
    pub fn key(&mut self, key: &str, number: usize, kind: u32) -> String {
        self.string(&format!("key of metadata {number}"), key);
        let value = format!("metadata `{key}`");
        self.bytes.field(&value, &kind.to_le_bytes());
        value
    }

    pub fn tensor(&mut self, name: &str, number: usize, dims: &[u64], kind: u32, offset: u64) {
        self.string(&format!("name of tensor {number}"), name);
        let field = format!("dimensions of tensor `{name}`");
        self.bytes.field(&field, &(dims.len() as u32).to_le_bytes());
        for &dim in dims {
            let dim = self.length(dim);
            self.bytes.field(&field, &dim);
        }
        self.bytes.field(&format!("type of tensor `{name}`"), &kind.to_le_bytes());
        self.bytes.field(&format!("offset of tensor `{name}`"), &offset.to_le_bytes());
    }
}

/// Returns a file with strings, numbers, nested arrays and tensors of three types.
pub fn small(version: u32) -> Gguf {
    let mut file = Gguf::new(version, 3, 5);
    let field = file.key("general.name", 0, STRING);
    file.string(&field, "small");
    let field = file.key("general.alignment", 1, U32);
    file.bytes.field(&field, &32u32.to_le_bytes());
    let field = file.key("flag", 2, BOOL);
    file.bytes.field(&field, &[1]);
    let field = file.key("words", 3, ARRAY);
    let three = file.length(3);
    file.bytes.field(&field, &STRING.to_le_bytes()).field(&field, &three);
    for word in ["a", "bc", ""] {
        file.string(&field, word);
    }
    let field = file.key("nested", 4, ARRAY);
    let (one, two) = (file.length(1), file.length(2));
    file.bytes.field(&field, &ARRAY.to_le_bytes()).field(&field, &one);
    file.bytes.field(&field, &U8.to_le_bytes()).field(&field, &two).field(&field, &[7, 8]);
    file.tensor("f", 0, &[4, 3], F32, 0);
    file.tensor("q", 1, &[64, 2], Q8_0, 64);
    file.tensor("k", 2, &[256], Q4K, 224);
    for (name, size) in SIZES {
        let data: Vec<u8> = (0..size).map(|i| i as u8).collect();
        file.bytes.align(32).field(&format!("tensor `{name}`"), &data);
    }
    file
}

/// Reads the whole file: the header, then the tensors in file order.
pub fn read(bytes: &[u8], device: &Device) -> Result<Content> {
    let mut reader = Cursor::new(bytes);
    let content = Content::read(&mut reader)?;
    let mut names: Vec<_> = content.tensor_infos.keys().collect();
    names.sort_by_key(|name| (content.tensor_infos[*name].offset, *name));
    for name in names {
        content.tensor(&mut reader, name, device)?;
    }
    Ok(content)
}

#[track_caller]
fn assert_refused(bytes: &[u8], words: &[&str]) {
    assert_error(read(bytes, &Device::Cpu), words);
}

#[test]
fn valid_files_of_every_version_are_read() -> Result<()> {
    for version in 1..=3 {
        let file = small(version).bytes.all;
        let content = read(&file, &Device::Cpu)?;
        assert_eq!(content.metadata["general.name"].to_string()?, "small");
        let words: Result<Vec<_>> =
            content.metadata["words"].to_vec()?.iter().map(Value::to_string).collect();
        assert_eq!(words?, ["a", "bc", ""]);
        assert_eq!(content.metadata["nested"].to_vec()?[0].to_vec()?[1].to_u8()?, 8);
        for ((name, size), dims) in SIZES.into_iter().zip([vec![3, 4], vec![2, 64], vec![256]]) {
            let tensor = content.tensor(&mut Cursor::new(&file), name, &Device::Cpu)?;
            assert_eq!(tensor.shape().dims(), dims);
            let expected: Vec<u8> = (0..size).map(|i| i as u8).collect();
            assert_eq!(*tensor.data()?, expected[..]);
        }
    }
    Ok(())
}

#[test]
fn truncated_files_are_reported_with_the_field() {
    for version in 1..=3 {
        let Bytes { all, fields } = small(version).bytes;
        let prefix = if version == 1 { 4 } else { 8 };
        // The reader first compares the counts with the minimum size of that many entries.
        let least = 8 + 2 * prefix + 5 * (prefix + 5) + 3 * (prefix + 16);
        for field in &fields {
            for end in field.start..field.end {
                let early = field.start >= 8 + 2 * prefix && end < least;
                let name = if early { "counts of tensors and metadata" } else { &field.name };
                assert_refused(&all[..end], &[name]);
            }
        }
    }
}

/// Damaged fields of a file of version 3: name, index among fields of that name, new bytes, words of the
/// error.
const DAMAGED: &[(&str, usize, &[u8], &[&str])] = &[
    ("magic and version", 0, b"GGML", &["unknown magic 0x4c4d4747"]),
    ("magic and version", 1, &0u32.to_le_bytes(), &["unsupported magic/version Gguf/0"]),
    ("magic and version", 1, &4u32.to_le_bytes(), &["unsupported magic/version Gguf/4"]),
    ("magic and version", 1, &3u32.to_be_bytes(), &["unsupported magic/version Gguf/50331648"]),
    ("counts of tensors and metadata", 0, &u64::MAX.to_le_bytes(), &["tensor_count"]),
    ("counts of tensors and metadata", 0, &1000u64.to_le_bytes(), &["header declares 1000 tensors"]),
    ("counts of tensors and metadata", 0, &4u64.to_le_bytes(), &["lies in tensor ``"]),
    ("counts of tensors and metadata", 1, &u64::MAX.to_le_bytes(), &["metadata_kv_count"]),
    ("counts of tensors and metadata", 1, &1000u64.to_le_bytes(), &["and 1000 metadata entries"]),
    ("counts of tensors and metadata", 1, &4u64.to_le_bytes(), &["of tensor `nested`"]),
    ("key of metadata 0", 0, &u64::MAX.to_le_bytes(), &["key of metadata 0", "string length"]),
    ("key of metadata 1", 0, &(1u64 << 29).to_le_bytes(), &["key of metadata 1", "remaining file bytes"]),
    ("metadata `general.name`", 0, &13u32.to_le_bytes(), &["metadata `general.name`", "value-type 0x00000d"]),
    ("metadata `general.name`", 1, &i64::MAX.to_le_bytes(), &["metadata `general.name`", "string length"]),
    ("metadata `flag`", 1, &[2], &["metadata `flag`", "unexpected bool value 2"]),
    ("metadata `words`", 1, &99u32.to_le_bytes(), &["metadata `words`", "value-type 0x000063"]),
    ("metadata `words`", 2, &u64::MAX.to_le_bytes(), &["metadata `words`", "array length"]),
    (
        "metadata `words`",
        2,
        &(1u64 << 29).to_le_bytes(),
        &["metadata `words`", "array of 536870912 elements"],
    ),
    ("metadata `nested`", 4, &1000u64.to_le_bytes(), &["metadata `nested`", "array of 1000 elements"]),
    ("key of metadata 4", 1, b"flag\0\0", &["metadata `flag`", "is there twice"]),
    (
        "metadata `general.alignment`",
        1,
        &0u32.to_le_bytes(),
        &["`general.alignment`", "power of two", "U32(0)"],
    ),
    ("metadata `general.alignment`", 1, &33u32.to_le_bytes(), &["`general.alignment`", "U32(33)"]),
    ("metadata `general.alignment`", 1, &u32::MAX.to_le_bytes(), &["`general.alignment`", "U32(4294967295)"]),
    ("metadata `general.alignment`", 1, &128u32.to_le_bytes(), &["tensor `q`", "offset 64", "alignment 128"]),
    ("name of tensor 0", 0, &u64::MAX.to_le_bytes(), &["name of tensor 0", "string length"]),
    ("name of tensor 1", 1, b"f", &["tensor `f`", "is there twice"]),
    ("dimensions of tensor `f`", 0, &5u32.to_le_bytes(), &["dimensions of tensor `f`", "5 dimensions"]),
    ("dimensions of tensor `f`", 0, &u32::MAX.to_le_bytes(), &["dimensions of tensor `f`", "max is 4"]),
    ("dimensions of tensor `f`", 1, &0u64.to_le_bytes(), &["tensor `f`", "[3, 0] has no elements"]),
    ("dimensions of tensor `f`", 1, &u64::MAX.to_le_bytes(), &["tensor `f`", "more than memory can be"]),
    ("dimensions of tensor `f`", 1, &(1u64 << 62).to_le_bytes(), &["tensor `f`", "more than memory can be"]),
    (
        "dimensions of tensor `f`",
        1,
        &(1u64 << 60).to_le_bytes(),
        &["tensor `q`", "offset 64 lies in tensor `f`"],
    ),
    (
        "dimensions of tensor `k`",
        1,
        &(1u64 << 40).to_le_bytes(),
        &["tensor `k`", "618475290624 bytes", "144 remaining"],
    ),
    (
        "dimensions of tensor `q`",
        1,
        &63u64.to_le_bytes(),
        &["tensor `q`", "126 is not divisible by the block size 32"],
    ),
    (
        "dimensions of tensor `q`",
        1,
        &16u64.to_le_bytes(),
        &["tensor `q`", "last dim divisible by block size [2, 16] 32"],
    ),
    ("type of tensor `q`", 0, &4u32.to_le_bytes(), &["type of tensor `q`", "unknown dtype for tensor 4"]),
    ("type of tensor `q`", 0, &16u32.to_le_bytes(), &["type of tensor `q`", "unknown dtype for tensor 16"]),
    ("type of tensor `k`", 0, &u32::MAX.to_le_bytes(), &["type of tensor `k`", "unknown dtype"]),
    (
        "offset of tensor `q`",
        0,
        &0u64.to_le_bytes(),
        &["tensor `q`", "offset 0 lies in tensor `f`, which ends at 48"],
    ),
    (
        "offset of tensor `q`",
        0,
        &192u64.to_le_bytes(),
        &["tensor `k`", "offset 224 lies in tensor `q`, which ends at 328"],
    ),
    ("offset of tensor `k`", 0, &225u64.to_le_bytes(), &["tensor `k`", "offset 225 is not a multiple"]),
    ("offset of tensor `k`", 0, &(u64::MAX - 31).to_le_bytes(), &["tensor `k`", "beyond any file"]),
    (
        "offset of tensor `k`",
        0,
        &(1u64 << 40).to_le_bytes(),
        &["tensor `k`", "needs 144 bytes", "only 0 remaining"],
    ),
];

#[test]
fn damaged_fields_are_reported() {
    let file = small(3).bytes;
    for (field, nth, bytes, words) in DAMAGED {
        assert_refused(&file.with(field, *nth, bytes), words);
    }
}

#[test]
fn damaged_lengths_in_version_1_are_reported() {
    let file = small(1).bytes;
    for (field, nth, words) in [
        ("counts of tensors and metadata", 0, ["counts of tensors and metadata", "tensor_count 4294967295"]),
        ("key of metadata 2", 0, ["key of metadata 2", "string length 4294967295"]),
        ("metadata `words`", 2, ["metadata `words`", "array length 4294967295"]),
        ("dimensions of tensor `k`", 1, ["tensor `k`", "4294967295 is not divisible"]),
    ] {
        assert_refused(&file.with(field, nth, &u32::MAX.to_le_bytes()), &words);
    }
}

#[test]
fn an_alignment_of_another_type_is_rejected() {
    let aligned = |kind: u32, value: &[u8]| {
        let mut file = Gguf::new(3, 0, 1);
        let field = file.key("general.alignment", 0, kind);
        file.bytes.field(&field, value);
        file.bytes.all
    };
    let cases: [(u32, &[u8], &str); 5] = [
        (U64, &64u64.to_le_bytes(), "U64(64)"),
        (I32, &(-32i32).to_le_bytes(), "I32(-32)"),
        (BOOL, &[1], "Bool(true)"),
        (STRING, &[2, 0, 0, 0, 0, 0, 0, 0, b'3', b'2'], "String"),
        (ARRAY, &[0; 12], "Array"),
    ];
    for (kind, value, found) in cases {
        assert_refused(&aligned(kind, value), &["`general.alignment`", "power of two", found]);
    }
    assert!(read(&aligned(U8, &[16]), &Device::Cpu).is_ok());
}

#[test]
fn deeply_nested_arrays_are_rejected() {
    let mut file = Gguf::new(3, 0, 1);
    let field = file.key("deep", 0, ARRAY);
    for _ in 0..100_000 {
        file.bytes.field(&field, &ARRAY.to_le_bytes()).field(&field, &1u64.to_le_bytes());
    }
    file.bytes.field(&field, &[0; 12]);
    assert_refused(&file.bytes.all, &["metadata `deep`", "nesting depth"]);
}

#[test]
fn unknown_metadata_and_any_tensor_order_are_accepted() -> Result<()> {
    // A metadata entry of a vendor, and tensors whose order differs from that of their headers.
    let mut file = Gguf::new(3, 2, 1);
    let field = file.key("a.vendor's.own", 0, U32);
    file.bytes.field(&field, &7u32.to_le_bytes());
    file.tensor("second", 0, &[8], F32, 32);
    file.tensor("first", 1, &[8], F32, 0);
    file.bytes.align(32).field("first", &[0; 32]).field("second", &[0; 32]);
    let content = read(&file.bytes.all, &Device::Cpu)?;
    assert_eq!(content.metadata["a.vendor's.own"].to_u32()?, 7);
    Ok(())
}

#[test]
fn a_scalar_tensor_is_rejected() {
    let mut file = Gguf::new(3, 1, 0);
    file.tensor("s", 0, &[], F32, 0);
    file.bytes.align(32).field("s", &[0; 4]);
    assert_refused(&file.bytes.all, &["tensor `s`", "scalar tensor cannot be quantized"]);
}

#[test]
fn rocm_reports_the_same_errors_as_the_cpu() {
    let file = small(3).bytes;
    let device = crate::common::device();
    for (field, nth, bytes, words) in DAMAGED {
        assert_error(read(&file.with(field, *nth, bytes), &device), words);
    }
    let end = file.all.len() - 1;
    assert_error(read(&file.all[..end], &device), &["tensor `k`", "143 remaining"]);
}

#[test]
fn a_header_is_checked_against_the_file_that_is_read() -> Result<()> {
    let file = small(3).bytes.all;
    let content = Content::read(&mut Cursor::new(&file))?;
    let short = Cursor::new(&file[..file.len() - 144]);
    assert_error(content.tensor(&mut short.clone(), "k", &Device::Cpu), &["tensor `k`", "0 remaining"]);
    assert_error(content.tensor(&mut short.clone(), "x", &Device::Cpu), &["cannot find tensor info for x"]);
    Ok(())
}
