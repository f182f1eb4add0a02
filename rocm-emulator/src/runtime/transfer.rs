//! Copies and fills: checks of their memory ranges, and the rules for whether the host waits.
use super::command::{Command, Copy, Fill, Source};
use super::error::{ErrorCode, Result, bail, fail};
use super::memory::{Found, Kind};
use super::stream::Stream;
use super::{Runtime, injection, thread_state};
use std::sync::Arc;

/// Maximum size of a pageable source that an asynchronous copy captures; for larger ones the call waits.
const CAPTURED_BYTES: usize = 16 << 20;

/// hipMemcpyKind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToHost,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// The direction follows from the addresses.
    Default,
}

impl Direction {
    /// Converts a hipMemcpyKind.
    ///
    /// # Errors
    /// `InvalidMemcpyDirection`.
    pub fn from_kind(kind: u32) -> Result<Self> {
        Ok(match kind {
            0 => Self::HostToHost,
            1 => Self::HostToDevice,
            2 => Self::DeviceToHost,
            3 | 1024 => Self::DeviceToDevice,
            4 => Self::Default,
            _ => bail!(InvalidMemcpyDirection, "{kind} is not a hipMemcpyKind"),
        })
    }
}

/// A copy of `rows` rows of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub target: usize,
    pub target_pitch: usize,
    pub source: usize,
    pub source_pitch: usize,
    pub width: usize,
    pub rows: usize,
    pub direction: Direction,
}

impl Transfer {
    /// Creates a copy of one row of `bytes` bytes.
    pub fn linear(target: usize, source: usize, bytes: usize, direction: Direction) -> Self {
        Self { target, target_pitch: bytes, source, source_pitch: bytes, width: bytes, rows: 1, direction }
    }
}

impl Runtime {
    /// Copies on a stream. The call waits if `wait` is true, if the target is pageable host memory, or if a pageable
    /// source is too large to be captured.
    ///
    /// # Errors
    /// `InvalidValue` for null pointers, ranges that exceed an allocation, or a direction that contradicts the addresses.
    /// If the call waits, also the stream's failure that has not been reported yet.
    ///
    /// # Safety
    /// Addresses of pageable host memory must be valid for the copy.
    pub unsafe fn copy(&self, stream: &Arc<Stream>, transfer: Transfer, wait: bool) -> Result<()> {
        let Transfer { target, target_pitch, source, source_pitch, width, rows, direction } = transfer;
        if width == 0 || rows == 0 {
            return Ok(());
        }
        if width > target_pitch || width > source_pitch {
            bail!(
                InvalidPitchValue,
                "rows of {width} bytes exceed the pitches of {target_pitch} and {source_pitch} bytes"
            );
        }
        let extent = |pitch: usize| (rows - 1).checked_mul(pitch).and_then(|bytes| bytes.checked_add(width));
        let (Some(target_bytes), Some(source_bytes)) = (extent(target_pitch), extent(source_pitch)) else {
            bail!(InvalidValue, "{rows} rows of {width} bytes overflow the address space");
        };
        let to = self.operand("the target", target, target_bytes)?;
        let from = self.operand("the source", source, source_bytes)?;
        check_direction(direction, to, from)?;
        for (found, bytes) in [(to, target_bytes), (from, source_bytes)] {
            if found.is_none_or(|found| found.kind == Kind::Registered) {
                injection::check_pageable_copy(bytes)?;
            }
        }
        if matches!(to.map(|found| found.kind), Some(Kind::Code { writable: false, .. })) {
            bail!(InvalidValue, "the target 0x{target:x} is read-only code memory");
        }
        let captured = from.is_none() && source_bytes <= CAPTURED_BYTES;
        let copy = |source| Copy { target, target_pitch, source, source_pitch, width, rows };
        let device = self.device(stream.device)?;
        if wait || to.is_none() || (from.is_none() && !captured) {
            thread_state::may_wait()?;
            device.wait_for_dependencies(stream);
            device.synchronize_stream(stream)?;
            let _running = self.memory.running();
            let copy = copy(Source::Address(source));
            self.memory.check_copy(&copy)?;
            // SAFETY: known ranges were checked; the caller guarantees pageable ones.
            unsafe { copy.run() };
            return Ok(());
        }
        let source = if captured {
            let mut bytes = vec![0u8; source_bytes];
            // SAFETY: the caller guarantees the pageable source.
            unsafe {
                let from = std::ptr::with_exposed_provenance::<u8>(source);
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), source_bytes);
            }
            Source::Captured(bytes)
        } else {
            Source::Address(source)
        };
        device.submit(stream, Command::Copy(copy(source)))
    }

    /// Copies between two devices, which need no peer access.
    ///
    /// # Errors
    /// `InvalidDevice`, `InvalidValue` for memory that is not on the named device, and the errors of [`Self::copy`].
    ///
    /// # Safety
    /// The conditions of [`Self::copy`].
    pub unsafe fn copy_peer(
        &self,
        stream: &Arc<Stream>,
        target: (usize, usize),
        source: (usize, usize),
        bytes: usize,
        wait: bool,
    ) -> Result<()> {
        for (address, device) in [target, source] {
            self.device(device)?;
            let owner = self.memory.find(address).and_then(|found| found.kind.device());
            if bytes > 0 && owner != Some(device) {
                bail!(InvalidValue, "0x{address:x} is not memory of device {device}");
            }
        }
        let transfer = Transfer::linear(target.0, source.0, bytes, Direction::DeviceToDevice);
        // SAFETY: no pageable memory is involved (checked above).
        unsafe { self.copy(stream, transfer, wait) }
    }

    /// Sets `count` elements of `width` bytes on a stream. Waits only if the target is pinned host memory.
    ///
    /// # Errors
    /// `InvalidValue` if the range is not inside one live allocation.
    pub fn fill(
        &self,
        stream: &Arc<Stream>,
        target: usize,
        value: u32,
        width: usize,
        count: usize,
        wait: bool,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let Some(bytes) = count.checked_mul(width) else {
            bail!(InvalidValue, "{count} elements of {width} bytes overflow the address space");
        };
        let found = match self.operand("the target", target, bytes)? {
            Some(Found { kind: Kind::Code { writable: false, .. }, .. }) => {
                bail!(InvalidValue, "0x{target:x} is read-only code memory");
            }
            Some(found) => found,
            None => {
                bail!(InvalidValue, "0x{target:x} is not device memory");
            }
        };
        let device = self.device(stream.device)?;
        device.submit(stream, Command::Fill(Fill { target, value, width, count }))?;
        if wait && found.kind.device().is_none() { device.synchronize_stream(stream) } else { Ok(()) }
    }

    /// Returns the allocation that contains an operand; `None` for pageable host memory.
    fn operand(&self, what: &str, address: usize, bytes: usize) -> Result<Option<Found>> {
        if address == 0 {
            bail!(InvalidValue, "{what} is null");
        }
        let Some(found) = self.memory.find(address) else { return Ok(None) };
        let after = address - found.base;
        if bytes > found.len - after {
            bail!(
                InvalidValue,
                "{what}: {bytes} bytes at 0x{address:x} exceed the allocation of {} bytes, {after} bytes after its start",
                found.len
            );
        }
        Ok(Some(found))
    }
}

fn check_direction(direction: Direction, to: Option<Found>, from: Option<Found>) -> Result<()> {
    let on_device = |found: Option<Found>| found.is_some_and(|found| found.kind.device().is_some());
    let wrong = |text: &str| fail(ErrorCode::InvalidValue, format!("{direction:?}, but {text}"));
    match direction {
        Direction::HostToDevice if to.is_none() => wrong("the target is not known to HIP"),
        Direction::HostToDevice if on_device(from) => wrong("the source is device memory"),
        Direction::DeviceToHost if from.is_none() => wrong("the source is not known to HIP"),
        Direction::DeviceToHost if on_device(to) => wrong("the target is device memory"),
        Direction::DeviceToDevice if to.is_none() => wrong("the target is not known to HIP"),
        Direction::DeviceToDevice if from.is_none() => wrong("the source is not known to HIP"),
        Direction::HostToHost if on_device(to) => wrong("the target is device memory"),
        Direction::HostToHost if on_device(from) => wrong("the source is device memory"),
        _ => Ok(()),
    }
}
