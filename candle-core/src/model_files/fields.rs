//! A reader that tracks the remaining size of its file and the name of the field that is being read.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::{Error, Result};

/// Reads a file from the current position of `inner` to its end.
pub(crate) struct FieldReader<'a, R> {
    inner: &'a mut R,
    position: u64,
    len: u64,
    field: String,
}

/// Runs `read` on a [`FieldReader`] and adds the format, the current field and the byte offset to its errors.
pub(crate) fn read_fields<R: Read + Seek, T>(
    format: &str,
    inner: &mut R,
    read: impl FnOnce(&mut FieldReader<'_, R>) -> Result<T>,
) -> Result<T> {
    let mut reader = FieldReader::new(inner)?;
    read(&mut reader).map_err(|error| {
        unless_device_error(error, |error| {
            error.context(format!("{format}: {} (byte {})", reader.field, reader.position))
        })
    })
}

impl<'a, R: Read + Seek> FieldReader<'a, R> {
    /// Creates a reader that starts at the current position of `inner`.
    pub(crate) fn new(inner: &'a mut R) -> Result<Self> {
        let position = inner.stream_position()?;
        let len = inner.seek(SeekFrom::End(0))?;
        inner.seek(SeekFrom::Start(position))?;
        Ok(Self { inner, position, len, field: "magic and version".to_owned() })
    }
}

impl<R> FieldReader<'_, R> {
    /// Sets the name of the field that is read next, for errors.
    pub(crate) fn field(&mut self, field: impl Into<String>) {
        self.field = field.into();
    }

    /// Returns an error unless at least `count * bytes` bytes remain in the file.
    pub(crate) fn check_remaining(&self, count: usize, bytes: usize) -> Result<()> {
        Ok(self.check((count as u64).saturating_mul(bytes as u64))?)
    }

    /// Returns an error if `name` is already in `seen`.
    pub(crate) fn check_not_seen<V>(&self, seen: &HashMap<String, V>, name: &str) -> Result<()> {
        match seen.contains_key(name) {
            true => Err(Error::msg(format!("`{name}` is there twice"))),
            false => Ok(()),
        }
    }

    fn check(&self, needed: u64) -> io::Result<()> {
        let remaining = self.len.saturating_sub(self.position);
        if needed <= remaining {
            return Ok(());
        }
        let text = format!("needs {needed} bytes, the file has only {remaining} more");
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

    /// Returns the tracked position without a system call, since upstream queries it before each string.
    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

/// Adds the tensor's name to an error.
pub(crate) fn in_tensor(name: &str, error: Error) -> Error {
    unless_device_error(error, |error| error.context(format!("tensor `{name}`")))
}

/// Adds the file's path to an error.
pub(crate) fn in_file(path: &Path, error: Error) -> Error {
    unless_device_error(error, |error| error.with_path(path))
}

/// Applies `add_context` unless the error comes from a device. Callers match the variant of a device's error to
/// distinguish exhausted device memory from an invalid file.
fn unless_device_error(error: Error, add_context: impl FnOnce(Error) -> Error) -> Error {
    let mut inner = &error;
    while let Error::WithBacktrace { inner: cause, .. } = inner {
        inner = cause;
    }
    match inner {
        Error::Rocm(_) | Error::Cuda(_) | Error::Metal(_) => error,
        _ => add_context(error),
    }
}
