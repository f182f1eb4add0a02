//! Stream capture: work that is enqueued on a capturing stream is recorded as the nodes of a graph.
//!
//! A stream joins a capture when it waits for an event that the capture recorded. The rules are HIP's: a call that a
//! capture does not permit invalidates it, and its stream must still end it.
use super::Runtime;
use super::command::Command;
use super::error::{ErrorCode, Result, bail};
use super::event::{Event, Last};
use super::graph::{Graph, Node};
use super::memory::Memory;
use super::stream::{Ordering, Queue, Stream};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::ThreadId;

/// hipStreamCaptureMode: which threads may not allocate or free memory, or wait, during a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// No thread.
    Relaxed,
    /// The thread that captures.
    ThreadLocal,
    /// All threads.
    Global,
}

impl CaptureMode {
    /// Converts a hipStreamCaptureMode.
    ///
    /// # Errors
    /// `InvalidValue`.
    pub fn from_number(mode: u32) -> Result<Self> {
        Ok(match mode {
            0 => Self::Global,
            1 => Self::ThreadLocal,
            2 => Self::Relaxed,
            _ => bail!(InvalidValue, "{mode} is not a hipStreamCaptureMode"),
        })
    }
}

/// A capture of one or more streams.
pub struct Capture {
    device: usize,
    mode: CaptureMode,
    thread: ThreadId,
    /// Queue of the stream on which the capture began.
    origin: Arc<Queue>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    has_ended: bool,
    is_invalid: bool,
    nodes: Vec<Node>,
    /// The queue of each capturing stream, with the nodes that its next node follows.
    positions: Vec<(Arc<Queue>, Vec<usize>)>,
    /// Address of each part that begins in the capture and has not ended.
    parts: Vec<usize>,
}

impl State {
    fn position(&mut self, queue: &Arc<Queue>) -> &mut Vec<usize> {
        let known = self.positions.iter().position(|(known, _)| Arc::ptr_eq(known, queue));
        let at = known.unwrap_or_else(|| {
            self.positions.push((Arc::clone(queue), Vec::new()));
            self.positions.len() - 1
        });
        &mut self.positions[at].1
    }

    fn check_valid(&self) -> Result<()> {
        if self.is_invalid {
            bail!(StreamCaptureInvalidated, "an earlier call has invalidated the capture");
        }
        Ok(())
    }

    /// Returns true if all work is ordered before the end of the origin.
    fn is_joined(&mut self, origin: &Arc<Queue>) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        let mut pending = self.position(origin).clone();
        while let Some(index) = pending.pop() {
            if !std::mem::replace(&mut reached[index], true) {
                pending.extend(&self.nodes[index].after);
            }
        }
        self.nodes.iter().zip(reached).all(|(node, reached)| reached || !node.is_work())
    }
}

impl Capture {
    /// Returns true if the capture records nothing any more.
    pub fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// Returns true if a call has invalidated the capture.
    pub fn is_invalid(&self) -> bool {
        self.state.lock().is_invalid
    }

    /// Makes the capture fail when it ends.
    pub fn invalidate(&self) {
        self.state.lock().is_invalid = true;
    }

    /// Records a command of a capturing stream.
    ///
    /// # Errors
    /// `StreamCaptureInvalidated`, or `StreamCaptureUnsupported` for a command that cannot be captured.
    pub fn record(&self, stream: &Stream, command: Command) -> Result<()> {
        let mut state = self.state.lock();
        match &command {
            // Notices about memory are no calls of HIP, so that they never fail.
            Command::BeginPart { address, .. } => state.parts.push(*address),
            Command::EndPart { address } => state.parts.retain(|begun| begun != address),
            _ => state.check_valid()?,
        }
        let refused = match &command {
            Command::Copy(copy) if copy.reads_pageable_memory() => Some("a copy from pageable memory"),
            Command::Callback { .. } => Some("a callback"),
            _ => None,
        };
        if let Some(what) = refused {
            state.is_invalid = true;
            bail!(StreamCaptureUnsupported, "{what} cannot be captured");
        }
        let index = state.nodes.len();
        let after = std::mem::replace(state.position(stream.queue()), vec![index]);
        state.nodes.push(Node { command, after });
        Ok(())
    }

    /// Returns the nodes after which a capturing stream is.
    ///
    /// # Errors
    /// `StreamCaptureInvalidated`.
    pub fn position(&self, stream: &Stream) -> Result<Vec<usize>> {
        let mut state = self.state.lock();
        state.check_valid()?;
        Ok(state.position(stream.queue()).clone())
    }

    /// Makes a stream wait for recorded nodes. The stream joins the capture if it is not capturing.
    fn wait(self: &Arc<Self>, stream: &Stream, nodes: Vec<usize>) -> Result<()> {
        if self.has_ended() {
            bail!(CapturedEvent, "the event was recorded in a capture that has ended");
        }
        match stream.capture() {
            Some(own) if !Arc::ptr_eq(&own, self) => {
                own.invalidate();
                self.invalidate();
                bail!(StreamCaptureMerge, "the stream and the event belong to different captures");
            }
            Some(_) => {}
            None if stream.ordering == Ordering::Null => {
                self.invalidate();
                bail!(StreamCaptureImplicit, "the null stream cannot join a capture");
            }
            None => stream.set_capture(Arc::clone(self)),
        }
        let mut state = self.state.lock();
        state.check_valid()?;
        let position = state.position(stream.queue());
        position.extend(nodes);
        position.sort_unstable();
        position.dedup();
        Ok(())
    }

    /// Ends the capture on a stream.
    fn end(&self, stream: &Stream, memory: &Memory) -> Result<Graph> {
        if !Arc::ptr_eq(&self.origin, stream.queue()) {
            self.invalidate();
            bail!(StreamCaptureUnmatched, "the capture began on another stream");
        }
        if self.mode != CaptureMode::Relaxed && self.thread != std::thread::current().id() {
            bail!(
                StreamCaptureWrongThread,
                "another thread has begun the capture, in the mode {:?}",
                self.mode
            );
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.has_ended = true;
        let parts = std::mem::take(&mut state.parts);
        parts.iter().for_each(|address| memory.note_captured_part(*address));
        state.check_valid()?;
        if !state.is_joined(&self.origin) {
            bail!(
                StreamCaptureUnjoined,
                "a stream that has joined the capture has work that its origin does not wait for"
            );
        }
        Ok(Graph::new(self.device, std::mem::take(&mut state.nodes), parts))
    }
}

impl Runtime {
    /// Begins to capture the work of a stream.
    ///
    /// # Errors
    /// `StreamCaptureUnsupported` for the null stream, `IllegalState` if the stream is capturing.
    pub fn begin_capture(&self, stream: &Stream, mode: CaptureMode) -> Result<()> {
        if stream.ordering == Ordering::Null {
            bail!(StreamCaptureUnsupported, "the null stream cannot be captured");
        }
        if stream.capture().is_some() {
            bail!(IllegalState, "the stream is already capturing");
        }
        let capture = Arc::new(Capture {
            device: stream.device,
            mode,
            thread: std::thread::current().id(),
            origin: Arc::clone(stream.queue()),
            state: Mutex::default(),
        });
        let mut captures = self.captures.lock();
        captures.retain(|known| known.upgrade().is_some_and(|known| !known.has_ended()));
        captures.push(Arc::downgrade(&capture));
        stream.set_capture(capture);
        Ok(())
    }

    /// Ends the capture of a stream, even if it fails.
    ///
    /// # Errors
    /// `IllegalState` if the stream is not capturing, `StreamCaptureUnmatched` or `StreamCaptureWrongThread` without
    /// ending it, `StreamCaptureInvalidated`, or `StreamCaptureUnjoined`.
    pub fn end_capture(&self, stream: &Stream) -> Result<Graph> {
        match stream.capture() {
            Some(capture) => capture.end(stream, &self.memory),
            None => bail!(IllegalState, "the stream is not capturing"),
        }
    }

    /// Invalidates the captures that do not permit the calling thread to make a call that may wait for the device.
    ///
    /// # Errors
    /// `StreamCaptureUnsupported` if there are any.
    pub fn refuse_in_captures(&self, call: &str) -> Result<()> {
        let captures: Vec<Arc<Capture>> =
            self.captures.lock().iter().filter_map(|capture| capture.upgrade()).collect();
        let forbids = |capture: &Arc<Capture>| {
            let applies = match capture.mode {
                CaptureMode::Relaxed => false,
                CaptureMode::ThreadLocal => capture.thread == std::thread::current().id(),
                CaptureMode::Global => true,
            };
            applies && !capture.has_ended()
        };
        match captures
            .iter()
            .filter(|capture| forbids(capture))
            .inspect(|capture| capture.invalidate())
            .count()
        {
            0 => Ok(()),
            _ => super::fail(
                ErrorCode::StreamCaptureUnsupported,
                format!(
                    "{call} is not permitted during a capture in this mode; use hipStreamCaptureModeRelaxed"
                ),
            ),
        }
    }

    /// Makes later work of a stream wait for an event's last recording.
    ///
    /// # Errors
    /// `StreamCaptureIsolation` if the stream is capturing and the event is not part of the capture, or HIP's errors
    /// for a stream that cannot join the event's capture.
    pub fn wait_for_event(&self, stream: &Stream, event: &Event) -> Result<()> {
        match (event.last(), stream.capture()) {
            (Last::Captured(capture, nodes), _) => capture.wait(stream, nodes),
            (Last::Never, _) => Ok(()),
            (Last::Enqueued(_), Some(capture)) => {
                capture.invalidate();
                bail!(StreamCaptureIsolation, "a capturing stream cannot wait for work that is not captured")
            }
            (Last::Enqueued(recording), None) => {
                self.device(stream.device)?.submit(stream, Command::WaitFor(recording))
            }
        }
    }
}
