//! HIP's event functions.
use super::*;
use crate::runtime::{Event, may_wait};
use std::sync::Arc;

/// Event flags that HIP defines: blocking synchronization, no timing, interprocess, no system fence, release to device
/// and release to system.
const KNOWN_FLAGS: u32 = 1 | 2 | 4 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

fn create(runtime: &Runtime, event: *mut hipEvent_t, flags: u32) -> Result<hipEvent_t> {
    if flags & !KNOWN_FLAGS != 0 || event.is_null() {
        bail!(InvalidValue, "invalid flags 0x{flags:x} or null event pointer {event:?}");
    }
    let device = runtime.current_device()?.ordinal;
    Ok(runtime.events.insert(Arc::new(Event::new(device, flags))))
}

c_functions! {
    /// Creates an event on the current device.
    fn hipEventCreate(event: *mut hipEvent_t) -> event |runtime| {
        create(runtime, event, hipEventDefault)?
    }

    /// Creates an event with flags on the current device.
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: u32) -> event |runtime| {
        create(runtime, event, flags)?
    }

    /// Destroys an event; enqueued recordings still complete.
    fn hipEventDestroy(event: hipEvent_t) |runtime| {
        runtime.events.remove(event).map(drop)
    }

    /// Records an event on a stream.
    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) |runtime| {
        let event = runtime.events.get(event)?;
        runtime.record(&event, &*runtime.stream(stream)?)
    }

    /// Waits until the last recording is reached. Returns immediately if the event was never recorded.
    fn hipEventSynchronize(event: hipEvent_t) |runtime| {
        let Some(recording) = runtime.events.get(event)?.enqueued()? else { return Ok(()) };
        may_wait()?;
        recording.wait();
        recording.take_fault().map_or(Ok(()), Err)
    }

    /// Returns hipErrorNotReady if the last recording has not been reached.
    fn hipEventQuery(event: hipEvent_t) |runtime| {
        let Some(recording) = runtime.events.get(event)?.enqueued()? else { return Ok(()) };
        recording.poll();
        match recording.time() {
            Some(_) => Ok(()),
            None => fail(ErrorCode::NotReady, "the stream has not reached the event yet"),
        }
    }

    /// Returns the milliseconds between two reached recordings.
    fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t) -> ms |runtime| {
        Event::elapsed(&*runtime.events.get(start)?, &*runtime.events.get(stop)?)?
    }

    /// Makes later work of the stream wait for the event's last recording.
    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: u32) |runtime| {
        if flags > 1 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        let stream = runtime.stream(stream)?;
        runtime.wait_for_event(&stream, &*runtime.events.get(event)?)
    }
}
