//! HIP's stream functions.
use super::*;
use crate::runtime::{Command, UserPointer};
use std::ffi::c_void;

/// Range of stream priorities. The software GPU ignores them.
const LEAST_PRIORITY: i32 = 1;
const GREATEST_PRIORITY: i32 = -1;

/// Creates a blocking stream on the current device.
pub unsafe extern "C" fn hipStreamCreate(stream: *mut hipStream_t) -> hipError_t {
    create("hipStreamCreate", stream, hipStreamDefault, 0)
}

/// Creates a stream on the current device: hipStreamDefault or hipStreamNonBlocking.
pub unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: u32) -> hipError_t {
    create("hipStreamCreateWithFlags", stream, flags, 0)
}

/// Creates a stream with a priority, which is clamped to the supported range.
pub unsafe extern "C" fn hipStreamCreateWithPriority(
    stream: *mut hipStream_t,
    flags: u32,
    priority: i32,
) -> hipError_t {
    create("hipStreamCreateWithPriority", stream, flags, priority)
}

fn create(name: &str, stream: *mut hipStream_t, flags: u32, priority: i32) -> hipError_t {
    call(name, |runtime| {
        if flags > hipStreamNonBlocking || stream.is_null() {
            bail!(InvalidValue, "invalid flags 0x{flags:x} or null stream pointer {stream:?}");
        }
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        let created = runtime.current_device()?.create_stream(flags, priority);
        // SAFETY: the caller's pointer.
        unsafe { put(stream, runtime.streams.insert(created)) }
    })
}

/// Destroys a stream after its work has finished.
pub unsafe extern "C" fn hipStreamDestroy(stream: hipStream_t) -> hipError_t {
    call("hipStreamDestroy", |runtime| {
        let Some(found) = runtime.streams.get(stream) else {
            bail!(InvalidHandle, "{stream:?} is not a stream that can be destroyed");
        };
        found.refuse_in_capture("destroying the stream")?;
        runtime::may_wait()?;
        found.queue().wait();
        runtime.streams.remove(stream);
        Ok(())
    })
}

/// Waits for a stream. Returns a pending kernel fault once.
pub unsafe extern "C" fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t {
    call("hipStreamSynchronize", |runtime| {
        let stream = runtime.stream(stream)?;
        runtime.device(stream.device)?.synchronize_stream(&stream)
    })
}

/// Returns hipErrorNotReady if the stream's work has not finished.
pub unsafe extern "C" fn hipStreamQuery(stream: hipStream_t) -> hipError_t {
    call("hipStreamQuery", |runtime| {
        let stream = runtime.stream(stream)?;
        runtime.device(stream.device)?.query_stream(&stream)
    })
}

/// Enqueues a call of a host function, which runs on the stream's thread after the stream's earlier work.
pub unsafe extern "C" fn hipStreamAddCallback(
    stream: hipStream_t,
    callback: hipStreamCallback_t,
    userData: *mut c_void,
    flags: u32,
) -> hipError_t {
    call("hipStreamAddCallback", |runtime| {
        let Some(function) = callback else {
            bail!(InvalidValue, "the callback is null");
        };
        if flags != 0 {
            bail!(InvalidValue, "flags 0x{flags:x}");
        }
        let found = runtime.stream(stream)?;
        let (stream, user_data) = (UserPointer(stream), UserPointer(userData));
        runtime.device(found.device)?.submit(&found, Command::Callback { function, stream, user_data })
    })
}

/// Returns the flags with which a stream was created.
pub unsafe extern "C" fn hipStreamGetFlags(stream: hipStream_t, flags: *mut u32) -> hipError_t {
    // SAFETY: the caller's pointer.
    call("hipStreamGetFlags", |runtime| unsafe { put(flags, runtime.stream(stream)?.flags) })
}

/// Returns a stream's priority.
pub unsafe extern "C" fn hipStreamGetPriority(stream: hipStream_t, priority: *mut i32) -> hipError_t {
    // SAFETY: the caller's pointer.
    call("hipStreamGetPriority", |runtime| unsafe { put(priority, runtime.stream(stream)?.priority) })
}

/// Returns the device on which a stream was created.
pub unsafe extern "C" fn hipStreamGetDevice(stream: hipStream_t, device: *mut hipDevice_t) -> hipError_t {
    call("hipStreamGetDevice", |runtime| {
        // SAFETY: the caller's pointer.
        unsafe { put(device, runtime.stream(stream)?.device as i32) }
    })
}

/// Returns the range of stream priorities.
pub unsafe extern "C" fn hipDeviceGetStreamPriorityRange(
    leastPriority: *mut i32,
    greatestPriority: *mut i32,
) -> hipError_t {
    call("hipDeviceGetStreamPriorityRange", |_| {
        // SAFETY: the caller's pointers; HIP allows each to be null.
        unsafe {
            put_if_wanted(leastPriority, LEAST_PRIORITY);
            put_if_wanted(greatestPriority, GREATEST_PRIORITY);
        }
        Ok(())
    })
}
