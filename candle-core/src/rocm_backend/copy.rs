//! Moving bytes: host to device and back, within a device, and from one device to another.
use super::buffer::Buffer;
use super::device::DeviceState;
use super::launch::DevicePtr;
use super::staging::{Staging, MAX_STAGED};
use crate::Result;
use rocm_rs::hip::bindings;
use std::sync::PoisonError;

/// Sets `bytes` bytes at `dst` to zero, in the stream's order.
pub(super) fn clear(state: &DeviceState, dst: DevicePtr, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    state.bind()?;
    // SAFETY: the caller owns `bytes` bytes at `dst`.
    let code = unsafe { bindings::hipMemsetAsync(dst.0, 0, bytes, state.raw_stream()) };
    state.check_code(code, || format!("hipMemsetAsync({bytes} B)"))
}

/// Copies `bytes` bytes within the device, in the stream's order.
pub(super) fn within(state: &DeviceState, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    state.bind()?;
    let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToDevice;
    // SAFETY: the caller vouches for `bytes` bytes at both ends.
    let code = unsafe { bindings::hipMemcpyAsync(dst.0, src.0, bytes, kind, state.raw_stream()) };
    state.check_code(code, || format!("hipMemcpyAsync(device to device, {bytes} B)"))
}

/// Copies `data` to `dst`. On return `data` may be reused; small uploads do not wait for the device.
pub(super) fn upload<T: Copy>(state: &DeviceState, data: &[T], dst: DevicePtr) -> Result<()> {
    let bytes = size_of_val(data);
    if bytes == 0 {
        return Ok(());
    }
    state.bind()?;
    let kind = bindings::hipMemcpyKind_hipMemcpyHostToDevice;
    let call = || format!("hipMemcpyAsync(host to device, {bytes} B)");
    if bytes <= MAX_STAGED {
        let mut staging = state.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = match &mut *staging {
            Some(ring) => ring,
            empty => empty.insert(Staging::new(state)?),
        };
        // SAFETY: `data` is `bytes` bytes long.
        let src = unsafe { ring.stage(state, data.as_ptr().cast(), bytes)? };
        // SAFETY: the staged bytes stay until the stream has been waited for, `dst` has room for them.
        let code = unsafe { bindings::hipMemcpyAsync(dst.0, src.cast(), bytes, kind, state.raw_stream()) };
        return state.check_code(code, call);
    }
    // With a deadline, only the copy itself may be waited for without one: nothing is left before it.
    state.finish_if_limited("before uploading")?;
    // SAFETY: `data` outlives the copy, which is waited for below; if that fails, the call has waited for pageable
    // memory itself.
    let code =
        unsafe { bindings::hipMemcpyAsync(dst.0, data.as_ptr().cast(), bytes, kind, state.raw_stream()) };
    state.check_code(code, call)?;
    // An asynchronous copy may still read pageable memory after the call has returned.
    state.finish("uploading")
}

/// Copies a buffer to the host and waits for it; reports whatever failed on the stream before.
pub(super) fn download<T: Copy>(state: &DeviceState, buffer: &Buffer<T>) -> Result<Vec<T>> {
    let mut host: Vec<T> = Vec::with_capacity(buffer.len());
    let bytes = buffer.size_in_bytes();
    if bytes > 0 {
        state.bind()?;
        let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToHost;
        let dst = host.as_mut_ptr().cast();
        // A copy to pageable memory waits inside of the call, which knows no deadline; and one that is given up must
        // not write to memory that is gone.
        state.finish_if_limited("before downloading")?;
        // SAFETY: `host` has room for the whole buffer and is kept until the copy has been waited for.
        let code = unsafe { bindings::hipMemcpyAsync(dst, buffer.ptr().0, bytes, kind, state.raw_stream()) };
        let copied = state.check_code(code, || format!("hipMemcpyAsync(device to host, {bytes} B)"));
        let waited = state.synchronize();
        copied.and(waited)?;
        // SAFETY: all elements were written by the copy; T is Copy and every bit pattern of it comes from a T.
        unsafe { host.set_len(buffer.len()) };
    } else {
        state.synchronize()?;
    }
    Ok(host)
}

/// Copies a buffer to new memory of another device, or of another stream on the same GPU. Waits for both.
pub(super) fn across<T: Copy>(src: &Buffer<T>, to: &std::sync::Arc<DeviceState>) -> Result<Buffer<T>> {
    let from = src.state();
    let dst = Buffer::new(to, src.len())?;
    let bytes = src.size_in_bytes();
    if bytes == 0 {
        return Ok(dst);
    }
    from.synchronize()?;
    if from.ordinal == to.ordinal {
        within(to, src.ptr(), dst.ptr(), bytes)?;
        to.synchronize()?;
        return Ok(dst);
    }
    to.bind()?;
    // SAFETY: both buffers hold `bytes` bytes on the devices named.
    let code = unsafe {
        bindings::hipMemcpyPeerAsync(
            dst.ptr().0,
            to.ordinal as i32,
            src.ptr().0,
            from.ordinal as i32,
            bytes,
            to.raw_stream(),
        )
    };
    let direct =
        to.check_code(code, || format!("hipMemcpyPeerAsync({bytes} B)")).and_then(|()| to.synchronize());
    if direct.is_err() {
        // No way from card to card: go through the host.
        upload(to, &download(from, src)?, dst.ptr())?;
        to.synchronize()?;
    }
    Ok(dst)
}
