//! A reader that knows how much of its file is left and which field it reads.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::{Error, Result};

/// Reads a file from where `inner` stands to its end.
pub(crate) struct FieldReader<'a, R> {
    inner: &'a mut R,
    position: u64,
    len: u64,
    field: String,
}

/// Reads a file of this format by fields; an error says which one was read, and where.
pub(crate) fn read_fields<R: Read + Seek, T>(
    format: &str,
    inner: &mut R,
    read: impl FnOnce(&mut FieldReader<'_, R>) -> Result<T>,
) -> Result<T> {
    let mut reader = FieldReader::new(inner)?;
    read(&mut reader).map_err(|error| {
        unless_of_device(error, |error| {
            error.context(format!("{format}: {} (byte {})", reader.field, reader.position))
        })
    })
}

impl<'a, R: Read + Seek> FieldReader<'a, R> {
    /// From where `inner` stands.
    pub(crate) fn new(inner: &'a mut R) -> Result<Self> {
        let position = inner.stream_position()?;
        let len = inner.seek(SeekFrom::End(0))?;
        inner.seek(SeekFrom::Start(position))?;
        Ok(Self { inner, position, len, field: "magic and version".to_owned() })
    }
}

impl<R> FieldReader<'_, R> {
    /// Names what is read from here on.
    pub(crate) fn field(&mut self, field: impl Into<String>) {
        self.field = field.into();
    }

    /// Fails unless the file has `count` times `bytes` more.
    pub(crate) fn holds(&self, count: usize, bytes: usize) -> Result<()> {
        Ok(self.check((count as u64).saturating_mul(bytes as u64))?)
    }

    /// Fails if `name` was read before.
    pub(crate) fn first<V>(&self, seen: &HashMap<String, V>, name: &str) -> Result<()> {
        match seen.contains_key(name) {
            true => Err(Error::msg(format!("`{name}` is there twice"))),
            false => Ok(()),
        }
    }

    fn check(&self, needed: u64) -> io::Result<()> {
        let left = self.len.saturating_sub(self.position);
        if needed <= left {
            return Ok(());
        }
        let text = format!("needs {needed} bytes, the file has only {left} more");
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
    }
}

impl<R: Read> Read for FieldReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.position += read as u64;
        Ok(read)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.check(buffer.len() as u64)?;
        self.inner.read_exact(buffer)?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}

impl<R: Seek> Seek for FieldReader<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = self.inner.seek(to)?;
        Ok(self.position)
    }

    /// Asks nobody: upstream wants to know it before each string.
    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

/// The error of a tensor, with its name.
pub(crate) fn in_tensor(name: &str, error: Error) -> Error {
    unless_of_device(error, |error| error.context(format!("tensor `{name}`")))
}

/// The error of a file, with its path.
pub(crate) fn in_file(path: &Path, error: Error) -> Error {
    unless_of_device(error, |error| error.with_path(path))
}

/// What a device reports stays the variant that it is: callers tell a full device from a bad file by it.
fn unless_of_device(error: Error, name: impl FnOnce(Error) -> Error) -> Error {
    let mut inner = &error;
    while let Error::WithBacktrace { inner: cause, .. } = inner {
        inner = cause;
    }
    match inner {
        Error::Rocm(_) | Error::Cuda(_) | Error::Metal(_) => error,
        _ => name(error),
    }
}
