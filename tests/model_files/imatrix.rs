//! Tests the reader of importance matrices.
use std::io::Write;

use candle_core::Result;
use candle_core::quantized::imatrix_file::load_imatrix;

use crate::assert_error;
use crate::bytes::Bytes;

/// Returns a file with two entries of two values.
pub fn small() -> Bytes {
    let mut file = Bytes::default();
    file.field("number of entries", &2i32.to_le_bytes());
    for entry in 1..=2 {
        file.field(&format!("name length for entry {entry}"), &1i32.to_le_bytes());
        file.field(&format!("name of entry {entry}"), &[b'a' + entry]);
        file.field(&format!("ncall for entry {entry}"), &2i32.to_le_bytes());
        file.field(&format!("nval for entry {entry}"), &2i32.to_le_bytes());
        let values = format!("values of `{}`", (b'a' + entry) as char);
        file.field(&values, &4f32.to_le_bytes()).field(&values, &6f32.to_le_bytes());
    }
    file
}

/// Writes the bytes to a temporary file and reads it.
pub fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<f32>)>> {
    let mut file = tempfile::Builder::new().prefix("importance").tempfile()?;
    file.write_all(bytes)?;
    let mut entries: Vec<_> = load_imatrix(file.path())?.into_iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(entries)
}

#[test]
fn a_valid_file_is_read() -> Result<()> {
    assert_eq!(read(&small().all)?, [("b".into(), vec![2., 3.]), ("c".into(), vec![2., 3.])]);
    Ok(())
}

#[test]
fn truncated_files_are_reported_with_path_and_field() {
    let Bytes { all, fields } = small();
    for field in &fields {
        for end in field.start..field.end {
            assert_error(read(&all[..end]), &["importance", &field.name]);
        }
    }
}

#[test]
fn damaged_lengths_are_reported() {
    let file = small();
    for (field, value, words) in [
        ("number of entries", 0, ["importance", "No data"]),
        ("number of entries", -1, ["importance", "name length for entry 3"]),
        ("name length for entry 2", -1, ["importance", "name of entry 2"]),
        ("name length for entry 1", i32::MAX, ["name of entry 1", "needs 2147483647 bytes"]),
        ("nval for entry 1", -1, ["importance", "values of `b`"]),
        ("nval for entry 2", i32::MAX, ["values of `c`", "needs 8589934588 bytes"]),
        ("nval for entry 2", 0, ["importance", "Invalid nval for entry 2"]),
    ] {
        assert_error(read(&file.with(field, 0, &i32::to_le_bytes(value))), &words);
    }
}
