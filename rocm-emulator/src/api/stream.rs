//! HIP's stream functions.
use super::*;
use crate::runtime::{Command, UserPointer};
use std::ffi::c_void;

/// Range of stream priorities. The software GPU ignores them.
const LEAST_PRIORITY: i32 = 1;
const GREATEST_PRIORITY: i32 = -1;

fn create(runtime: &Runtime, stream: *mut hipStream_t, flags: u32, priority: i32) -> Result<hipStream_t> {
    if flags > hipStreamNonBlocking || stream.is_null() {
        bail!(InvalidValue, "invalid flags 0x{flags:x} or null stream pointer {stream:?}");
    }
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    Ok(runtime.streams.insert(runtime.current_device()?.create_stream(flags, priority)))
}

c_functions! {
    /// Creates a blocking stream on the current device.
    fn hipStreamCreate(stream: *mut hipStream_t) -> stream |runtime| {
        create(runtime, stream, hipStreamDefault, 0)?
    }

    /// Creates a stream on the current device: hipStreamDefault or hipStreamNonBlocking.
    fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: u32) -> stream |runtime| {
        create(runtime, stream, flags, 0)?
    }

    /// Creates a stream with a priority, which is clamped to the supported range.
    fn hipStreamCreateWithPriority(
        stream: *mut hipStream_t,
        flags: u32,
        priority: i32,
    ) -> stream |runtime| {
        create(runtime, stream, flags, priority)?
    }

    /// Destroys a stream after its work has finished.
    fn hipStreamDestroy(stream: hipStream_t) |runtime| {
        let Ok(found) = runtime.streams.get(stream) else {
            bail!(InvalidHandle, "{stream:?} is not a stream that can be destroyed");
        };
        found.refuse_in_capture("destroying the stream")?;
        runtime::may_wait()?;
        found.queue().wait();
        runtime.streams.remove(stream).map(drop)
    }

    /// Waits for a stream. Returns a pending kernel fault once.
    fn hipStreamSynchronize(stream: hipStream_t) |runtime| {
        let stream = runtime.stream(stream)?;
        runtime.device(stream.device)?.synchronize_stream(&stream)
    }

    /// Returns hipErrorNotReady if the stream's work has not finished.
    fn hipStreamQuery(stream: hipStream_t) |runtime| {
        let stream = runtime.stream(stream)?;
        runtime.device(stream.device)?.query_stream(&stream)
    }

    /// Enqueues a call of a host function, which runs on the stream's thread after the stream's earlier work.
    fn hipStreamAddCallback(
        stream: hipStream_t,
        callback: hipStreamCallback_t,
        userData: *mut c_void,
        flags: u32,
    ) |runtime| {
        let Some(function) = callback else {
            bail!(InvalidValue, "the callback is null");
        };
        if flags != 0 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        let found = runtime.stream(stream)?;
        let (stream, user_data) = (UserPointer(stream), UserPointer(userData));
        runtime.device(found.device)?.submit(&found, Command::Callback { function, stream, user_data })
    }

    /// Returns the flags with which a stream was created.
    fn hipStreamGetFlags(stream: hipStream_t, flags: *mut u32) -> flags |runtime| {
        runtime.stream(stream)?.flags
    }

    /// Returns a stream's priority.
    fn hipStreamGetPriority(stream: hipStream_t, priority: *mut i32) -> priority |runtime| {
        runtime.stream(stream)?.priority
    }

    /// Returns the device on which a stream was created.
    fn hipStreamGetDevice(stream: hipStream_t, device: *mut hipDevice_t) -> device |runtime| {
        runtime.stream(stream)?.device as i32
    }

    /// Returns the range of stream priorities.
    fn hipDeviceGetStreamPriorityRange(leastPriority: *mut i32, greatestPriority: *mut i32) |_| {
        // SAFETY: the caller's pointers; HIP allows each to be null.
        unsafe {
            put_if_wanted(leastPriority, LEAST_PRIORITY);
            put_if_wanted(greatestPriority, GREATEST_PRIORITY);
        }
        Ok(())
    }
}
