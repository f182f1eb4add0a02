//! Tests the reader of GGML files, the predecessor of GGUF, in all five versions.
use std::io::Cursor;

use candle_core::quantized::ggml_file::{Content, qtensor_from_ggml};
use candle_core::quantized::{GgmlDType, QStorage};
use candle_core::{Device, Result};

use crate::assert_error;
use crate::bytes::Bytes;

/// Magic number, version number if the file has one, and whether tensors are aligned.
const VERSIONS: [(u32, Option<u32>, bool); 5] = [
    (0x6767_6d6c, None, false),
    (0x6767_6d66, Some(1), false),
    (0x6767_6a74, Some(1), true),
    (0x6767_6a74, Some(2), true),
    (0x6767_6a74, Some(3), true),
];

/// Returns a file with two tokens and two tensors.
pub fn small(version: usize) -> Bytes {
    let (magic, number, aligned) = VERSIONS[version];
    let mut file = Bytes::default();
    file.field("magic and version", &magic.to_le_bytes());
    if let Some(number) = number {
        file.field("magic and version", &number.to_le_bytes());
    }
    for parameter in [2u32, 64, 32, 4, 1, 16, 7] {
        file.field("hyperparameters", &parameter.to_le_bytes());
    }
    for (number, word) in ["a", "bcd"].into_iter().enumerate() {
        let length = if number == 0 { "vocabulary" } else { "token 0 of the vocabulary" };
        file.field(length, &(word.len() as u32).to_le_bytes());
        let token = format!("token {number} of the vocabulary");
        file.field(&token, word.as_bytes()).field(&token, &(number as f32).to_le_bytes());
    }
    // Dimensions in file order: the last dimension of the shape comes first.
    for (number, (name, dims, kind, size)) in
        [("f", &[4u32, 2][..], 0u32, 32), ("q", &[64], 8, 68)].into_iter().enumerate()
    {
        let header = format!("header of tensor {number}");
        for part in [dims.len() as u32, name.len() as u32, kind] {
            file.field(&header, &part.to_le_bytes());
        }
        for dim in dims {
            file.field(&header, &dim.to_le_bytes());
        }
        file.field(&header, name.as_bytes());
        if aligned {
            file.align(32);
        }
        file.field(&format!("tensor `{name}`"), &vec![number as u8; size]);
    }
    file
}

pub fn read(bytes: &[u8]) -> Result<Content> {
    Content::read(&mut Cursor::new(bytes), &Device::Cpu)
}

#[track_caller]
fn assert_refused(bytes: &[u8], words: &[&str]) {
    assert_error(read(bytes).map(|content| content.hparams), words);
}

#[test]
fn valid_files_of_every_version_are_read() -> Result<()> {
    for version in 0..VERSIONS.len() {
        let content = read(&small(version).all)?;
        assert_eq!(content.vocab.token_score_pairs, [(b"a".to_vec(), 0.), (b"bcd".to_vec(), 1.)]);
        assert_eq!(content.tensors["f"].shape().dims(), [2, 4]);
        assert_eq!(*content.tensors["q"].data()?, [1; 68]);
    }
    Ok(())
}

#[test]
fn truncated_files_are_reported_with_the_field() {
    for version in 0..VERSIONS.len() {
        let Bytes { all, fields } = small(version);
        let start =
            |name: &str| fields.iter().find(|field| field.name == name).map_or(0, |field| field.start);
        let vocabulary = start("vocabulary");
        let ends = [start("header of tensor 0"), start("header of tensor 1")];
        for field in &fields {
            // A file may end before a tensor.
            for end in (field.start..field.end).filter(|end| !ends.contains(end)) {
                // Two tokens take at least 16 bytes.
                let early = field.start >= vocabulary && end < vocabulary + 16;
                assert_refused(&all[..end], &[if early { "vocabulary" } else { &field.name }, "ggml: "]);
            }
        }
        assert!(ends.iter().all(|end| read(&all[..*end]).is_ok()));
    }
}

const HUGE: &[u8] = &u32::MAX.to_le_bytes();

/// Damaged fields of a file of the last version: name, index among fields of that name, new bytes, words of
/// the error.
const DAMAGED: &[(&str, usize, &[u8], [&str; 2])] = &[
    ("magic and version", 0, b"GGUF", ["unknown magic", "magic and version"]),
    ("magic and version", 1, HUGE, ["unsupported magic/version", "magic and version"]),
    ("hyperparameters", 0, HUGE, ["vocabulary", "needs 34359738360 bytes"]),
    ("token 0 of the vocabulary", 2, HUGE, ["token 1 of the vocabulary", "needs 4294967295 bytes"]),
    ("header of tensor 0", 0, HUGE, ["header of tensor 0", "needs 17179869180 bytes"]),
    ("header of tensor 0", 1, HUGE, ["header of tensor 0", "needs 4294967295 bytes"]),
    ("header of tensor 0", 2, HUGE, ["header of tensor 0", "unknown dtype for tensor 4294967295"]),
    ("header of tensor 0", 3, HUGE, ["tensor `f`", "needs 34359738360 bytes"]),
    ("header of tensor 0", 3, &[0; 4], ["tensor `f`", "[2, 0] has no elements"]),
    (
        "header of tensor 1",
        3,
        &65u32.to_le_bytes(),
        ["tensor `q`", "65 is not divisible by the block size 32"],
    ),
    ("header of tensor 1", 4, b"f", ["tensor `f`", "is there twice"]),
];

#[test]
fn damaged_fields_are_reported() {
    let file = small(4);
    for (field, nth, bytes, words) in DAMAGED {
        assert_refused(&file.with(field, *nth, bytes), words);
    }
}

#[test]
fn overflowing_dimensions_are_rejected() {
    let mut file = small(1);
    let header = "header of tensor 2";
    for part in [3, 1, 0, u32::MAX, u32::MAX, u32::MAX] {
        file.field(header, &part.to_le_bytes());
    }
    file.field(header, b"x");
    assert_refused(&file.all, &["tensor `x`", "more than memory can be"]);
}

#[test]
fn the_size_of_given_blocks_is_checked() -> Result<()> {
    let zeros = [0u8; 4 * 144 + 1];
    let load =
        |bytes: &[u8], dims: &[usize]| qtensor_from_ggml(GgmlDType::Q4K, bytes, dims.into(), &Device::Cpu);
    assert_error(load(&zeros[..287], &[2, 256]), &["287 bytes", "[2, 256]", "takes 288"]);
    assert_error(load(&zeros, &[usize::MAX, 256]), &["more than memory can be"]);
    assert_error(load(&zeros, &[0, 256]), &["no elements"]);
    let store =
        |bytes: &[u8]| QStorage::from_data(bytes.into(), &Device::Cpu, GgmlDType::Q4K).map(|_| "storage");
    assert_error(store(&zeros[..143]), &["143 bytes are not whole blocks of 144"]);
    assert_eq!(store(&[])?, "storage");
    // Blocks need no alignment.
    for start in 0..4 {
        let bytes: Vec<u8> = (0..=255).cycle().skip(start).take(start + 144).collect();
        assert_eq!(*load(&bytes[start..], &[256])?.data()?, bytes[start..]);
    }
    Ok(())
}
