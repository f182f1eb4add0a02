//! HIP's event functions.
use super::*;
use crate::runtime::{Event, may_wait};
use std::sync::Arc;

/// Event flags that HIP defines: blocking synchronization, no timing, interprocess, no system fence, release to device
/// and release to system.
const KNOWN_FLAGS: u32 = 1 | 2 | 4 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

/// Creates an event on the current device.
pub unsafe extern "C" fn hipEventCreate(event: *mut hipEvent_t) -> hipError_t {
    create("hipEventCreate", event, hipEventDefault)
}

/// Creates an event with flags on the current device.
pub unsafe extern "C" fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: u32) -> hipError_t {
    create("hipEventCreateWithFlags", event, flags)
}

fn create(name: &str, event: *mut hipEvent_t, flags: u32) -> hipError_t {
    call(name, |runtime| {
        if flags & !KNOWN_FLAGS != 0 || event.is_null() {
            bail!(InvalidValue, "invalid flags 0x{flags:x} or null event pointer {event:?}");
        }
        let device = runtime.current_device()?.ordinal;
        // SAFETY: the caller's pointer.
        unsafe { put(event, runtime.events.insert(Arc::new(Event::new(device, flags)))) }
    })
}

/// Destroys an event; enqueued recordings still complete.
pub unsafe extern "C" fn hipEventDestroy(event: hipEvent_t) -> hipError_t {
    call("hipEventDestroy", |runtime| match runtime.events.remove(event) {
        Some(_) => Ok(()),
        None => fail(ErrorCode::InvalidHandle, format!("{event:?} is not an event")),
    })
}

/// Records an event on a stream.
pub unsafe extern "C" fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> hipError_t {
    call("hipEventRecord", |runtime| {
        let event = runtime.event(event)?;
        runtime.record(&event, &*runtime.stream(stream)?)
    })
}

/// Waits until the last recording is reached. Returns immediately if the event was never recorded.
pub unsafe extern "C" fn hipEventSynchronize(event: hipEvent_t) -> hipError_t {
    call("hipEventSynchronize", |runtime| {
        let Some(recording) = runtime.event(event)?.enqueued()? else { return Ok(()) };
        may_wait()?;
        recording.wait();
        recording.take_fault().map_or(Ok(()), Err)
    })
}

/// Returns hipErrorNotReady if the last recording has not been reached.
pub unsafe extern "C" fn hipEventQuery(event: hipEvent_t) -> hipError_t {
    call("hipEventQuery", |runtime| {
        let Some(recording) = runtime.event(event)?.enqueued()? else { return Ok(()) };
        recording.poll();
        match recording.time() {
            Some(_) => Ok(()),
            None => fail(ErrorCode::NotReady, "the stream has not reached the event yet"),
        }
    })
}

/// Returns the milliseconds between two reached recordings.
pub unsafe extern "C" fn hipEventElapsedTime(
    ms: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    call("hipEventElapsedTime", |runtime| {
        let milliseconds = Event::elapsed(&*runtime.event(start)?, &*runtime.event(stop)?)?;
        // SAFETY: the caller's pointer.
        unsafe { put(ms, milliseconds) }
    })
}

/// Makes later work of the stream wait for the event's last recording.
pub unsafe extern "C" fn hipStreamWaitEvent(
    stream: hipStream_t,
    event: hipEvent_t,
    flags: u32,
) -> hipError_t {
    call("hipStreamWaitEvent", |runtime| {
        if flags > 1 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        let stream = runtime.stream(stream)?;
        runtime.wait_for_event(&stream, &*runtime.event(event)?)
    })
}
