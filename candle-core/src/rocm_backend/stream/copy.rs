//! Copies from host to device and back, within a device, and between devices.
use super::staging::Ring;
use super::{Buffer, DeviceElement, Stream};
use crate::Result;
use hip_kernels::contract::DevicePtr;
use rocm_rs::hip::bindings;
use std::sync::Arc;

/// Maximum number of bytes that HIP copies to pageable memory; more go through pinned memory.
const MAX_PAGEABLE: usize = 64 << 10;

/// Enqueues setting `bytes` bytes at `dst` to zero.
///
/// # Safety
/// The caller must own `bytes` bytes at `dst`.
pub(crate) unsafe fn clear(stream: &Stream, dst: DevicePtr, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    stream.bind_and_flush()?;
    // SAFETY: guaranteed by the caller.
    let code = unsafe { bindings::hipMemsetAsync(dst.0, 0, bytes, stream.raw()) };
    stream.check_code(code, || format!("hipMemsetAsync({bytes} B)"))
}

/// Enqueues a copy of `bytes` bytes within the device.
///
/// # Safety
/// Source and destination must have `bytes` bytes and must not overlap.
unsafe fn copy_within_device(stream: &Stream, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    stream.bind_and_flush()?;
    let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToDevice;
    // SAFETY: guaranteed by the caller.
    let code = unsafe { bindings::hipMemcpyAsync(dst.0, src.0, bytes, kind, stream.raw()) };
    stream.check_code(code, || format!("hipMemcpyAsync(device to device, {bytes} B)"))
}

/// Fills a slice with the bytes of a source, from an offset on.
pub type ReadBytes<'a> = dyn Fn(usize, &mut [u8]) -> std::io::Result<()> + 'a;

/// Enqueues a copy of `data` to `dst` through the ring of pinned memory. `data` may be modified as soon as the function
/// returns. The host only waits if the ring is full.
///
/// # Safety
/// There must be space for `data` at `dst`.
pub(crate) unsafe fn upload<T: DeviceElement>(stream: &Stream, data: &[T], dst: DevicePtr) -> Result<()> {
    // SAFETY: elements have no padding.
    let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), size_of_val(data)) };
    let read = |first: usize, part: &mut [u8]| {
        part.copy_from_slice(&bytes[first..first + part.len()]);
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { upload_read(stream, Ring::Upload, bytes.len(), dst, &read) }
}

/// Enqueues a copy of `bytes` bytes of files to `dst`. `read` reads them into the ring of pinned memory for files, part by
/// part and in order; while it reads a part, earlier ones are copied. The host only waits if the ring is full.
///
/// # Errors
/// If `read` fails, a part of the bytes may have been copied.
///
/// # Safety
/// There must be space for `bytes` bytes at `dst`, for which all bit patterns are valid.
pub(crate) unsafe fn upload_files(
    stream: &Stream,
    bytes: usize,
    dst: DevicePtr,
    read: &ReadBytes,
) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    unsafe { upload_read(stream, Ring::File, bytes, dst, read) }
}

/// Like [`upload_files`], through any ring.
///
/// # Safety
/// See [`upload_files`].
unsafe fn upload_read(
    stream: &Stream,
    ring: Ring,
    bytes: usize,
    dst: DevicePtr,
    read: &ReadBytes,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let kind = bindings::hipMemcpyKind_hipMemcpyHostToDevice;
    let most = ring.chunk_bytes();
    for first in (0..bytes).step_by(most) {
        let part = most.min(bytes - first);
        // Another thread may begin a capture while a part is read.
        stream.refuse_capture(
            || format!("copying {bytes} B from the host"),
            "create the tensor before the capture, and copy new values into it with candle_core::rocm::copy_to_tensor",
        )?;
        stream.bind_and_flush()?;
        // The ring is locked for one part at a time, so that several threads take turns.
        stream.with_staging(ring, |ring| {
            let staged = ring.reserve(stream, part)?;
            read(first, staged)?;
            // SAFETY: the staged bytes stay valid until their copy is done, and `dst` has space for them.
            let code = unsafe {
                bindings::hipMemcpyAsync(
                    dst.0.byte_add(first),
                    staged.as_ptr().cast(),
                    part,
                    kind,
                    stream.raw(),
                )
            };
            stream.check_code(code, || format!("hipMemcpyAsync(host to device, {part} of {bytes} B)"))
        })?;
    }
    Ok(())
}

/// Copies a buffer to the host and waits for the copy.
///
/// # Errors
/// If the copy fails, or if work enqueued earlier has failed.
pub(crate) fn download<T: DeviceElement>(stream: &Stream, buffer: &Buffer<T>) -> Result<Vec<T>> {
    let mut host: Vec<T> = Vec::with_capacity(buffer.len());
    let bytes = buffer.size_in_bytes();
    stream.refuse_capture(
        || format!("copying {bytes} B to the host"),
        "copy results after the capture and a replay",
    )?;
    stream.bind_and_flush()?;
    if bytes == 0 {
        stream.finish("downloading an empty buffer")?;
        return Ok(host);
    }
    let dst = host.as_mut_ptr().cast::<u8>();
    if bytes > MAX_PAGEABLE {
        // SAFETY: `host` has space for the whole buffer.
        stream.with_staging(Ring::Download, |ring| unsafe {
            ring.download(stream, buffer.ptr(), dst, bytes)
        })?;
    } else {
        let kind = bindings::hipMemcpyKind_hipMemcpyDeviceToHost;
        // A copy to pageable memory waits inside the call, which has no deadline. An abandoned copy must not write to
        // freed memory.
        stream.finish_if_bounded("before downloading")?;
        // SAFETY: `host` has space for the whole buffer and lives until the copy is done.
        let code = unsafe { bindings::hipMemcpyAsync(dst.cast(), buffer.ptr().0, bytes, kind, stream.raw()) };
        let copied = stream.check_code(code, || format!("hipMemcpyAsync(device to host, {bytes} B)"));
        let waited = stream.finish("downloading");
        copied.and(waited)?;
    }
    // SAFETY: the copy wrote all elements, and every bit pattern is valid.
    unsafe { host.set_len(buffer.len()) };
    Ok(host)
}

/// Copies a buffer to new memory of another GPU, or of another stream on the same GPU. The copy is ordered on both
/// streams. If the GPUs have no peer access, the data is copied through the host, which waits.
///
/// # Errors
/// If memory runs out or a call fails.
pub(crate) fn copy_to_stream<T: DeviceElement>(src: &Buffer<T>, to: &Arc<Stream>) -> Result<Buffer<T>> {
    let from = src.stream();
    if from.ordinal() != to.ordinal() {
        for stream in [from, to] {
            let operation = || format!("copying from {} to {}", from.label(), to.label());
            stream.refuse_capture(operation, "copy between GPUs before or after the capture")?;
        }
    }
    let dst = Buffer::on(to, src.len())?;
    let bytes = src.size_in_bytes();
    if bytes == 0 {
        return Ok(dst);
    }
    to.wait_for_stream(from)?;
    src.record_stream(to);
    if from.ordinal() == to.ordinal() {
        // SAFETY: both buffers have `bytes` bytes and do not overlap.
        unsafe { copy_within_device(to, src.ptr(), dst.ptr(), bytes)? };
        return Ok(dst);
    }
    to.bind()?;
    // SAFETY: both buffers have `bytes` bytes on their GPUs.
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
        // HIP keeps the last error; clear it so that an unrelated call does not return it.
        let _ = rocm_rs::hip::get_last_error();
        let host = download(from, src)?;
        // SAFETY: the new buffer has the same size.
        unsafe { upload(to, &host, dst.ptr())? };
        return Ok(dst);
    }
    to.check_code(code, || format!("hipMemcpyPeerAsync({bytes} B from {})", from.label()))?;
    Ok(dst)
}

/// Returns true if the code only means that the GPUs have no peer access.
fn is_without_peer_access(code: bindings::hipError_t) -> bool {
    matches!(
        code,
        bindings::hipError_t_hipErrorPeerAccessUnsupported
            | bindings::hipError_t_hipErrorPeerAccessNotEnabled
    )
}
