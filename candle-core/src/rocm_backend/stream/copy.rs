//! Moving bytes: host to device and back, within a device, and from one device to another.
use super::staging::MAX_STAGED;
use super::{Buffer, DeviceElement, Stream};
use crate::Result;
use hip_kernels::contract::DevicePtr;
use rocm_rs::hip::bindings;
use std::sync::Arc;

/// Sets `bytes` bytes at `dst` to zero, in the stream's order.
///
/// # Safety
/// The caller owns `bytes` bytes at `dst`.
pub(crate) unsafe fn clear(stream: &Stream, dst: DevicePtr, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    stream.bind()?;
    // SAFETY: by the caller's word.
    let code = unsafe { bindings::hipMemsetAsync(dst.0, 0, bytes, stream.raw()) };
    stream.check_code(code, || format!("hipMemsetAsync({bytes} B)"))
}

/// Copies `bytes` bytes within the device, in the stream's order.
///
/// # Safety
/// There are `bytes` bytes at both ends, and the ranges do not overlap.
unsafe fn within(stream: &Stream, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    stream.bind()?;
    let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToDevice;
    // SAFETY: by the caller's word.
    let code = unsafe { bindings::hipMemcpyAsync(dst.0, src.0, bytes, kind, stream.raw()) };
    stream.check_code(code, || format!("hipMemcpyAsync(device to device, {bytes} B)"))
}

/// Copies `data` to `dst` through the ring of pinned memory. On return `data` may be reused; the host waits only where the
/// ring is full.
///
/// # Safety
/// There is room for `data` at `dst`.
pub(crate) unsafe fn upload<T: DeviceElement>(stream: &Stream, data: &[T], dst: DevicePtr) -> Result<()> {
    let bytes = size_of_val(data);
    if bytes == 0 {
        return Ok(());
    }
    stream.bind()?;
    let kind = bindings::hipMemcpyKind_hipMemcpyHostToDevice;
    stream.with_staging(|ring| {
        for first in (0..bytes).step_by(MAX_STAGED) {
            let part = MAX_STAGED.min(bytes - first);
            // SAFETY: `data` is `bytes` bytes long.
            let src = unsafe { ring.stage(stream, data.as_ptr().cast::<u8>().add(first), part)? };
            // SAFETY: the staged bytes stay until their copy is done, `dst` has room for them.
            let code = unsafe {
                bindings::hipMemcpyAsync(dst.0.byte_add(first), src.cast(), part, kind, stream.raw())
            };
            stream.check_code(code, || format!("hipMemcpyAsync(host to device, {part} of {bytes} B)"))?;
        }
        Ok(())
    })
}

/// Copies a buffer to the host and waits for it.
///
/// # Errors
/// If the copy fails, or what was on the stream before it.
pub(crate) fn download<T: DeviceElement>(stream: &Stream, buffer: &Buffer<T>) -> Result<Vec<T>> {
    let mut host: Vec<T> = Vec::with_capacity(buffer.len());
    let bytes = buffer.size_in_bytes();
    stream.bind()?;
    if bytes == 0 {
        stream.finish("downloading nothing")?;
        return Ok(host);
    }
    let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToHost;
    let dst = host.as_mut_ptr().cast();
    // A copy to pageable memory waits inside of the call, which knows no deadline; and one that is given up must
    // not write to memory that is gone.
    stream.finish_if_limited("before downloading")?;
    // SAFETY: `host` has room for the whole buffer and is kept until the copy has been waited for.
    let code = unsafe { bindings::hipMemcpyAsync(dst, buffer.ptr().0, bytes, kind, stream.raw()) };
    let copied = stream.check_code(code, || format!("hipMemcpyAsync(device to host, {bytes} B)"));
    let waited = stream.finish("downloading");
    copied.and(waited)?;
    // SAFETY: all elements were written by the copy, and every bit pattern is a value.
    unsafe { host.set_len(buffer.len()) };
    Ok(host)
}

/// Copies a buffer to new memory of another GPU, or of another stream on the same GPU. The target stream goes on
/// after the copy; the host waits only where the data must come through it.
///
/// # Errors
/// If the other side has not the memory, or a call fails. That two GPUs cannot reach each other is no error.
pub(crate) fn across<T: DeviceElement>(src: &Buffer<T>, to: &Arc<Stream>) -> Result<Buffer<T>> {
    let from = src.stream();
    let dst = Buffer::on(to, src.len())?;
    let bytes = src.size_in_bytes();
    if bytes == 0 {
        return Ok(dst);
    }
    to.follow(from)?;
    src.used_by(to);
    if from.ordinal() == to.ordinal() {
        // SAFETY: both buffers hold `bytes` bytes, and one of them is new.
        unsafe { within(to, src.ptr(), dst.ptr(), bytes)? };
        return Ok(dst);
    }
    to.bind()?;
    // SAFETY: both buffers hold `bytes` bytes on the GPUs named.
    let code = unsafe {
        bindings::hipMemcpyPeerAsync(
            dst.ptr().0,
            to.ordinal() as i32,
            src.ptr().0,
            from.ordinal() as i32,
            bytes,
            to.raw(),
        )
    };
    if is_without_peer_access(code) {
        // HIP keeps the last error for whoever asks next.
        let _ = rocm_rs::hip::get_last_error();
        let host = download(from, src)?;
        // SAFETY: the new buffer has as many elements.
        unsafe { upload(to, &host, dst.ptr())? };
        return Ok(dst);
    }
    to.check_code(code, || format!("hipMemcpyPeerAsync({bytes} B from {})", from.label()))?;
    Ok(dst)
}

/// Codes that say no more than that one GPU cannot reach the other's memory.
fn is_without_peer_access(code: bindings::hipError_t) -> bool {
    matches!(
        code,
        bindings::hipError_t_hipErrorPeerAccessUnsupported
            | bindings::hipError_t_hipErrorPeerAccessNotEnabled
    )
}
