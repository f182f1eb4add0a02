//! A code object loaded into memory.
use super::{CodeObject, CodeObjectError, RelocationKind};
use crate::runtime::HostBuffer;

/// A loaded segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedSegment {
    /// Host address.
    pub address: usize,
    /// Size in bytes.
    pub size: usize,
    /// True if kernels may write it.
    pub writable: bool,
}

/// A loaded and relocated code object. Its segments are in one host buffer, at the distances of the file.
#[derive(Debug)]
pub struct Image {
    buffer: HostBuffer,
    /// The segments, sorted by address.
    pub segments: Vec<LoadedSegment>,
}

impl Image {
    /// Loads and relocates a code object.
    ///
    /// # Errors
    /// `OutOfMemory` if the host lacks memory for the segments, `Corrupt` if a relocation is outside them.
    pub fn load(object: &CodeObject) -> Result<Self, CodeObjectError> {
        let bytes = usize::try_from(object.end).map_err(|_| CodeObjectError::OutOfMemory(usize::MAX))?;
        let mut buffer =
            HostBuffer::new(bytes, object.alignment as usize).ok_or(CodeObjectError::OutOfMemory(bytes))?;
        let misplaced = || CodeObjectError::Corrupt("a segment or relocation is outside the image".into());
        for segment in &object.segments {
            if !buffer.write(segment.address as usize, &segment.data) {
                return Err(misplaced());
            }
        }
        let base = buffer.base() as u64;
        for relocation in &object.relocations {
            let target = base.wrapping_add(relocation.symbol).wrapping_add(relocation.addend as u64);
            let place = base.wrapping_add(relocation.address);
            let (value, width) = match relocation.kind {
                RelocationKind::Relative64 | RelocationKind::Absolute64 => (target, 8),
                RelocationKind::Relative64ToPlace => (target.wrapping_sub(place), 8),
                RelocationKind::Relative32ToPlace => (target.wrapping_sub(place), 4),
                RelocationKind::Absolute32 | RelocationKind::Absolute32Low => (target, 4),
                RelocationKind::Absolute32High => (target >> 32, 4),
            };
            if !buffer.write(relocation.address as usize, &value.to_le_bytes()[..width]) {
                return Err(misplaced());
            }
        }
        let segments = object
            .segments
            .iter()
            .map(|segment| LoadedSegment {
                address: buffer.base() + segment.address as usize,
                size: segment.size as usize,
                writable: segment.writable,
            })
            .collect();
        Ok(Self { buffer, segments })
    }

    /// Converts an address of the file to its loaded address.
    pub fn address(&self, before: u64) -> usize {
        self.buffer.base() + before as usize
    }
}
