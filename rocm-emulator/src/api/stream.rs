//! Streams.
use super::*;
use crate::runtime::{Command, UserPointer};
use std::ffi::c_void;

/// Priorities that streams may have: least and greatest. The software GPU ignores them.
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

/// Creates a stream with a priority, which is clamped to the range there is.
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
            bail!(InvalidValue, "flags 0x{flags:x}, stream {stream:?}");
        }
        let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
        let created = runtime.current_device()?.create_stream(flags, priority);
        // SAFETY: the caller's pointer.
        unsafe { put(stream, runtime.streams.insert(created)) }
    })
}

/// Ends a stream after its work.
pub unsafe extern "C" fn hipStreamDestroy(stream: hipStream_t) -> hipError_t {
    call("hipStreamDestroy", |runtime| {
        let Some(found) = runtime.streams.get(stream) else {
            bail!(InvalidHandle, "{stream:?} is no stream that can be destroyed");
        };
        runtime::may_wait()?;
        found.queue().wait();
        runtime.streams.remove(stream);
        Ok(())
    })
}

/// Waits for a stream; a kernel fault since the last wait is the result, once.
pub unsafe extern "C" fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t {
    call("hipStreamSynchronize", |runtime| {
        let stream = runtime.stream(stream)?;
        runtime.device(stream.device)?.synchronize_stream(&stream)
    })
}

/// Whether a stream's work has finished: hipErrorNotReady if not.
pub unsafe extern "C" fn hipStreamQuery(stream: hipStream_t) -> hipError_t {
    call("hipStreamQuery", |runtime| {
        let stream = runtime.stream(stream)?;
        runtime.device(stream.device)?.query_stream(&stream)
    })
}

/// Calls a function on the stream's thread when its earlier work has finished.
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

/// The flags that a stream was created with.
pub unsafe extern "C" fn hipStreamGetFlags(stream: hipStream_t, flags: *mut u32) -> hipError_t {
    // SAFETY: the caller's pointer.
    call("hipStreamGetFlags", |runtime| unsafe { put(flags, runtime.stream(stream)?.flags) })
}

/// A stream's priority.
pub unsafe extern "C" fn hipStreamGetPriority(stream: hipStream_t, priority: *mut i32) -> hipError_t {
    // SAFETY: the caller's pointer.
    call("hipStreamGetPriority", |runtime| unsafe { put(priority, runtime.stream(stream)?.priority) })
}

/// The device that a stream was created on.
pub unsafe extern "C" fn hipStreamGetDevice(stream: hipStream_t, device: *mut hipDevice_t) -> hipError_t {
    call("hipStreamGetDevice", |runtime| {
        // SAFETY: the caller's pointer.
        unsafe { put(device, runtime.stream(stream)?.device as i32) }
    })
}

/// The priorities that there are.
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
