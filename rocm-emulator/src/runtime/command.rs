//! Commands of streams, which execute them one at a time.
use super::error::{ErrorCode, HipError, Result};
use super::event::Recording;
use super::graph::Graph;
use super::launch::PreparedLaunch;
use super::stream::{Marker, Queue};
use super::{fault, injection, runtime, thread_state};
use std::ffi::c_void;
use std::sync::Arc;

/// hipStreamCallback_t, without its Option.
pub type Callback = unsafe extern "C" fn(stream: *mut c_void, status: u32, user_data: *mut c_void);

/// A pointer from the caller that is passed to the stream's thread.
pub struct UserPointer(pub *mut c_void);

// SAFETY: HIP passes such pointers to another thread by definition; the runtime never dereferences them.
unsafe impl Send for UserPointer {}

/// Work of this crate's libraries (rocBLAS, MIOpen) that a stream executes on the host, repeatedly if it is part of a
/// graph.
type HostWork = Box<dyn Fn() -> Result<()> + Send>;

/// Work that waits for other streams or processes. It is resumed until it has finished.
pub trait ResumableWork: Send + Sync {
    /// Makes progress without waiting. Returns true once the work has finished.
    fn resume(&self) -> bool;

    /// Waits until [`Self::resume`] may make progress, or until a short timeout has passed.
    fn wait(&self);

    /// Returns the outcome of finished work. If the work is part of a graph, it may then be resumed from the
    /// beginning.
    ///
    /// # Errors
    /// The failure of the work.
    fn finish(&self) -> Result<()>;
}

/// A command of a stream.
pub enum Command {
    Launch(Box<PreparedLaunch>),
    Stall(injection::Stall),
    Copy(Copy),
    Fill(Fill),
    Host(HostWork),
    Resumable(Box<dyn ResumableWork>),
    /// A launch of a graph.
    Replay {
        graph: Arc<Graph>,
        /// True for an injected fault: the results stay those of the previous launch.
        is_stale: bool,
    },
    Record(Arc<Recording>),
    WaitFor(Arc<Recording>),
    WaitForStreams(Vec<Marker>),
    Callback {
        function: Callback,
        stream: UserPointer,
        user_data: UserPointer,
    },
    /// Begins the life of a suballocation.
    BeginPart {
        address: usize,
        len: usize,
    },
    /// Frees the suballocation that begins at this address.
    EndPart {
        address: usize,
    },
}

/// The source of a copy.
pub enum Source {
    /// The address of live memory.
    Address(usize),
    /// The contents of pageable host memory at the time of the call.
    Captured(Vec<u8>),
}

/// A copy of `rows` rows of `width` bytes, which begin `*_pitch` bytes apart.
pub struct Copy {
    pub target: usize,
    pub target_pitch: usize,
    pub source: Source,
    pub source_pitch: usize,
    pub width: usize,
    pub rows: usize,
}

impl Copy {
    /// Returns true if the source was pageable host memory.
    pub fn reads_pageable_memory(&self) -> bool {
        matches!(self.source, Source::Captured(_))
    }

    /// Executes the copy.
    ///
    /// # Safety
    /// Both sides must be mapped for all rows, and the target must be writable and not referenced.
    pub unsafe fn run(&self) {
        let source = match &self.source {
            Source::Address(address) => std::ptr::with_exposed_provenance::<u8>(*address),
            Source::Captured(bytes) => bytes.as_ptr(),
        };
        let target = std::ptr::with_exposed_provenance_mut::<u8>(self.target);
        for row in 0..self.rows {
            // SAFETY: the caller guarantees both sides; `copy` allows them to overlap.
            unsafe {
                let from = source.add(row * self.source_pitch);
                std::ptr::copy(from, target.add(row * self.target_pitch), self.width);
            }
        }
    }
}

/// `count` elements set to the low `width` (1, 2 or 4) bytes of `value`.
pub struct Fill {
    pub target: usize,
    pub value: u32,
    pub width: usize,
    pub count: usize,
}

impl Fill {
    /// Executes the fill.
    ///
    /// # Safety
    /// `count * width` bytes at `target` must be mapped, writable and not referenced.
    pub unsafe fn run(&self) {
        let bytes = self.value.to_le_bytes();
        let target = std::ptr::with_exposed_provenance_mut::<u8>(self.target);
        if bytes[..self.width].iter().all(|byte| *byte == bytes[0]) {
            // SAFETY: the caller guarantees the range.
            unsafe { target.write_bytes(bytes[0], self.count * self.width) };
            return;
        }
        for element in 0..self.count {
            // SAFETY: the caller guarantees the range; the element may be unaligned, so bytes are copied.
            unsafe {
                let place = target.add(element * self.width);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, self.width);
            }
        }
    }
}

impl Command {
    /// Returns true if the command can run without waiting for another stream.
    pub fn is_ready(&self) -> bool {
        match self {
            Self::WaitFor(recording) => recording.time().is_some(),
            Self::WaitForStreams(markers) => markers.iter().all(Marker::is_reached),
            Self::Resumable(work) => work.resume(),
            _ => true,
        }
    }

    /// Returns true if any thread may run the command: it neither waits for other streams nor calls a function of the
    /// host program.
    pub fn runs_anywhere(&self) -> bool {
        matches!(
            self,
            Self::Launch(_)
                | Self::Copy(_)
                | Self::Fill(_)
                | Self::Host(_)
                | Self::Replay { .. }
                | Self::Record(_)
        ) || self.can_wait()
    }

    /// Returns true if the command may be deferred until another is enqueued or the host waits or queries.
    pub fn can_wait(&self) -> bool {
        matches!(self, Self::BeginPart { .. } | Self::EndPart { .. })
    }

    /// Executes the command on the calling thread. A failure is also recorded as the process's last fault.
    pub fn run(&self, queue: &Queue) -> Result<()> {
        let outcome = fault::catch_panic(|| self.run_inner(queue))
            .unwrap_or_else(|panic| Err(HipError::new(ErrorCode::LaunchFailure, panic)));
        if let Err(error) = &outcome {
            fault::note(error);
        }
        outcome
    }

    fn run_inner(&self, queue: &Queue) -> Result<()> {
        match self {
            Self::Launch(launch) => launch.run(queue)?,
            Self::Stall(stall) => stall.wait(),
            Self::Copy(copy) => {
                let memory = &runtime()?.memory;
                let _running = memory.running();
                memory.check_copy(copy)?;
                // SAFETY: the ranges were live when the copy was enqueued or its graph began to run, and hipFree waits
                // for the device before it frees one. As in HIP, the caller keeps host memory alive.
                unsafe { copy.run() };
            }
            Self::Fill(fill) => {
                let memory = &runtime()?.memory;
                let _running = memory.running();
                memory.check_fill(fill)?;
                // SAFETY: as above.
                unsafe { fill.run() };
            }
            Self::Host(work) => {
                let _running = runtime()?.memory.running();
                work()?;
            }
            Self::Resumable(work) => {
                while !work.resume() {
                    work.wait();
                }
                work.finish()?;
            }
            Self::Replay { graph, is_stale } => graph.run(queue, *is_stale)?,
            Self::Record(recording) => recording.reach(),
            Self::WaitFor(recording) => recording.wait(),
            Self::WaitForStreams(markers) => markers.iter().for_each(Marker::wait),
            Self::BeginPart { address, len } => runtime()?.memory.begin_part(*address, *len, false)?,
            Self::EndPart { address } => runtime()?.memory.end_part(*address)?,
            Self::Callback { function, stream, user_data } => {
                let status = queue.peek_fault().map_or(0, |fault| fault.code as u32);
                let _inside = thread_state::enter_callback();
                // SAFETY: the caller of hipStreamAddCallback guarantees the function and its data.
                unsafe { function(stream.0, status, user_data.0) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_on_a_stream_fails_the_command() {
        let error = Command::Host(Box::new(|| panic!("on purpose"))).run(&Queue::default()).unwrap_err();
        assert_eq!(error.code, ErrorCode::LaunchFailure);
        assert!(error.detail.contains("the software GPU failed: on purpose"), "{error}");
    }

    #[test]
    fn fills_repeat_their_low_bytes() {
        let mut bytes = [9u8; 13];
        let target = bytes.as_mut_ptr().expose_provenance();
        let fill = |width, count, value| {
            // SAFETY: the ranges below are inside `bytes`, which is only read afterwards.
            unsafe { Fill { target: target + 1, value, width, count }.run() }
        };
        fill(4, 2, 0x0403_0201);
        fill(2, 1, 0xffff_0605);
        fill(1, 1, 0x77);
        assert_eq!(bytes, [9, 0x77, 6, 3, 4, 1, 2, 3, 4, 9, 9, 9, 9]);
    }

    #[test]
    fn copies_respect_pitches() {
        let source: Vec<u8> = (0..12).collect();
        let mut target = [99u8; 10];
        let copy = Copy {
            target: target.as_mut_ptr().expose_provenance(),
            target_pitch: 5,
            source: Source::Captured(source),
            source_pitch: 4,
            width: 3,
            rows: 2,
        };
        // SAFETY: both sides hold two rows at their pitches.
        unsafe { copy.run() };
        assert_eq!(target, [0, 1, 2, 99, 99, 4, 5, 6, 99, 99]);
    }
}
