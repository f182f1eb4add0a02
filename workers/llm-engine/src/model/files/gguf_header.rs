//! Headers of GGUF files with tensors in MXFP4, a type that Candle's parser rejects.
use std::io::{Read, Seek, SeekFrom};

use anyhow::{Result, bail, ensure};

/// Type of MXFP4 in GGUF.
const MXFP4: u32 = 39;
/// Offset of the number of tensors.
const TENSOR_COUNT: usize = 8;
/// Types of metadata values: strings and arrays.
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// Maximum depth of nested arrays.
const MAX_DEPTH: usize = 8;

/// Maximum number of dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// A tensor in MXFP4.
pub struct Mxfp4Tensor {
    /// Name.
    pub name: String,
    /// Dimensions, rows first.
    pub shape: Vec<usize>,
    /// Offset in the tensor data.
    pub offset: u64,
}

/// Header of a GGUF file.
pub struct Header {
    /// Header without the tensors in MXFP4.
    pub bytes: Vec<u8>,
    /// Tensors in MXFP4.
    pub tensors: Vec<Mxfp4Tensor>,
    /// Length of the whole header.
    pub length: u64,
}

/// Reads a header and separates its tensors in MXFP4.
///
/// # Errors
/// Returns an error if the file is no GGUF file of version 2 or 3, or ends within the header.
pub fn without_mxfp4(file: &mut (impl Read + Seek)) -> Result<Header> {
    file.rewind()?;
    let (magic, version) = (number32(file)?, number32(file)?);
    ensure!(magic.to_le_bytes() == *b"GGUF" && [2, 3].contains(&version), "unknown version of GGUF");
    let (count, values) = (number64(file)?, number64(file)?);
    for _ in 0..values {
        text(file)?;
        let kind = number32(file)?;
        skip_value(file, kind, 0)?;
    }
    let (mut tensors, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let start = file.stream_position()? as usize;
        let (name, dims) = (text(file)?, number32(file)?);
        ensure!(dims <= MAX_DIMS, "tensor '{name}' has {dims} dimensions, more than {MAX_DIMS}");
        let shape = (0..dims).map(|_| Ok(usize::try_from(number64(file)?)?));
        let mut shape = shape.collect::<Result<Vec<_>>>()?;
        shape.reverse();
        let (kind, offset) = (number32(file)?, number64(file)?);
        if kind == MXFP4 {
            tensors.push(Mxfp4Tensor { name, shape, offset });
            removed.push(start..file.stream_position()? as usize);
        }
    }
    let length = file.stream_position()?;
    let mut bytes = vec![0; usize::try_from(length)?];
    file.rewind()?;
    file.read_exact(&mut bytes)?;
    for range in removed.into_iter().rev() {
        bytes.drain(range);
    }
    bytes[TENSOR_COUNT..][..8].copy_from_slice(&(count - tensors.len() as u64).to_le_bytes());
    Ok(Header { bytes, tensors, length })
}

fn number32(file: &mut impl Read) -> Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn number64(file: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn text(file: &mut impl Read) -> Result<String> {
    let length = number64(file)?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 == length, "the file ends within its header");
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn skip(file: &mut impl Seek, bytes: u64) -> Result<()> {
    file.seek(SeekFrom::Current(i64::try_from(bytes)?))?;
    Ok(())
}

fn skip_value(file: &mut (impl Read + Seek), kind: u32, depth: usize) -> Result<()> {
    let size = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        STRING => number64(file)?,
        ARRAY if depth < MAX_DEPTH => {
            let (kind, length) = (number32(file)?, number64(file)?);
            for _ in 0..length {
                skip_value(file, kind, depth + 1)?;
            }
            return Ok(());
        }
        _ => bail!("a metadata value has the unknown type {kind}"),
    };
    skip(file, size)
}
