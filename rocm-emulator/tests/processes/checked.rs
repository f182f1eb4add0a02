//! Correct and faulty programs for the optional checks. Each prints the runtime's error.
use crate::gpu::*;
use rocm_emulator::{api::*, parts, rocblas};
use std::ptr::null_mut;

const NONE: u32 = 111;

/// Runs a program by name and returns its result.
pub fn run(program: &str) -> String {
    match program {
        "kernel reads fresh memory" => of_kernel(Buffer::new(4)),
        "host reads fresh memory" => host_reads(),
        "written memory" => written(),
        "copied gaps" => copied_gaps(),
        "products" => products(),
        "freed memory in use again" => reused(),
        "far overrun" => far_overrun(),
        "a part taken twice" => part_taken_twice(),
        "a part under poison" => poisoned_part(),
        "parts in order" => parts_in_order(),
        "lost updates" => updates("lost_updates"),
        "counted updates" => updates("counted_updates"),
        "chained workgroups" => chained(),
        "endless" => endless(),
        other => panic!("no program {other:?}"),
    }
}

/// Formats a code and the runtime's error on one line.
fn outcome_text(code: hipError_t) -> String {
    let text = rocm_emulator::last_error().filter(|_| code != 0).unwrap_or_default();
    format!("{code} {}", text.replace('\n', " | "))
}

/// Returns the outcome of a kernel that reads and writes a word.
fn of_kernel(place: Buffer) -> String {
    let on_cdna = rocm_emulator::device_archs()[0].starts_with("gfx90a");
    let module = Module::load(if on_cdna { "runtime.gfx90a.hsaco" } else { "runtime.hsaco" });
    let (stream, digit) = (Stream::new(hipStreamNonBlocking), 1u32);
    launch_one(module.function("append"), stream.0, &mut [arg(&place.0), arg(&digit)]);
    outcome_text(stream.synchronize())
}

fn host_reads() -> String {
    let (place, mut word) = (Buffer::new(8), 0u64);
    // SAFETY: both sides hold eight bytes.
    unsafe {
        ok(hipMemset(place.0, 0, 5));
        outcome_text(hipMemcpy((&raw mut word).cast(), place.0, 8, hipMemcpyDeviceToHost))
    }
}

/// A method of writing a word, and the function that applies it.
type Method<'a> = (&'a str, &'a dyn Fn(&Buffer) -> hipError_t);

/// Writes a word of device memory by every method, and checks that a kernel may read it afterwards.
fn written() -> String {
    let (stream, source) = (Stream::new(hipStreamNonBlocking), Buffer::of(&[1u32, 2]));
    let module = Module::load("runtime.hsaco");
    let (index, value, word) = (0u64, 3u32, 4u32);
    let mut pinned = null_mut();
    // SAFETY: a valid pointer for the result.
    ok(unsafe { hipHostMalloc(&mut pinned, 8, 0) });
    set_device(1);
    let elsewhere = Buffer::of(&[5u32]);
    set_device(0);
    let host = (&raw const word).cast();
    // SAFETY: all buffers hold the bytes that are copied or filled.
    let methods: [Method; 11] = unsafe {
        [
            ("copy from the host", &|place| hipMemcpyHtoD(place.0, host, 4)),
            ("copy from pinned memory", &|place| {
                hipMemcpyAsync(place.0, pinned, 4, hipMemcpyHostToDevice, stream.0)
            }),
            ("copy on the device", &|place| hipMemcpyDtoDAsync(place.0, source.0, 4, stream.0)),
            ("copy of rows", &|place| {
                hipMemcpy2DAsync(place.0, 2, source.0, 4, 2, 2, hipMemcpyDeviceToDevice, stream.0)
            }),
            ("copy from another device", &|place| {
                hipMemcpyPeerAsync(place.0, 0, elsewhere.0, 1, 4, stream.0)
            }),
            // Uses the null stream, with which the other streams are not ordered.
            ("fill", &|place| hipMemset(place.0, 0, 4).max(hipDeviceSynchronize())),
            ("fill on a stream", &|place| hipMemsetAsync(place.0, 0, 4, stream.0)),
            ("bytes", &|place| hipMemsetD8Async(place.0, 0, 4, stream.0)),
            ("halves", &|place| hipMemsetD16Async(place.0, 0, 2, stream.0)),
            ("words", &|place| hipMemsetD32Async(place.0, 0, 1, stream.0)),
            ("kernel", &|place| {
                launch_one(
                    module.function("store_at"),
                    stream.0,
                    &mut [arg(&place.0), arg(&index), arg(&value)],
                );
                0
            }),
        ]
    };
    let mut found = String::new();
    for (way, write) in methods {
        let place = Buffer::new(4);
        ok(write(&place));
        // Fills without a stream do not wait.
        // SAFETY: no arguments.
        ok(unsafe { hipDeviceSynchronize() });
        found += &format!("{way} {};", of_kernel(place).trim());
    }
    // SAFETY: the runtime checks the address.
    ok(unsafe { hipHostFree(pinned) });
    found
}

/// A device copy also copies the record of unwritten bytes: the second word was never written.
fn copied_gaps() -> String {
    let (from, to) = (Buffer::new(8), Buffer::new(8));
    // SAFETY: both sides hold eight bytes.
    unsafe {
        ok(hipMemset(from.0, 1, 4));
        ok(hipMemcpyDtoD(to.0, from.0, 8));
        ok(hipDeviceSynchronize());
    }
    let second = Buffer(to.0.wrapping_byte_add(4));
    let gap = of_kernel(second);
    format!("{};{gap}", of_kernel(to))
}

/// Computes products of 2 x 2 matrices with different unwritten parts and values of beta.
fn products() -> String {
    let (stream, mut handle) = (Stream::new(hipStreamNonBlocking), null_mut());
    // SAFETY: a valid pointer for the result; handles may be anything.
    unsafe {
        assert_eq!(rocblas::rocblas_create_handle(&mut handle), 0);
        assert_eq!(rocblas::rocblas_set_stream(handle, stream.0), 0);
    }
    let matrix = |is_written: bool| if is_written { Buffer::of(&[1f32; 4]) } else { Buffer::new(16) };
    let mut found = Vec::new();
    for (a_written, c_written, beta) in
        [(true, false, 0f32), (true, true, 1.0), (false, true, 0.0), (true, false, 1.0)]
    {
        let (a, b, c) = (matrix(a_written), matrix(true), matrix(c_written));
        let (one, [a, b, c_ptr]) = (1f32, [&a, &b, &c].map(|buffer| buffer.0.cast::<f32>()));
        // SAFETY: all addresses are allocations of four floats.
        let status =
            unsafe { rocblas::rocblas_sgemm(handle, NONE, NONE, 2, 2, 2, &one, a, 2, b, 2, &beta, c_ptr, 2) };
        assert_eq!(status, 0);
        let product = outcome_text(stream.synchronize());
        // The product's result may be read.
        found.push(if product.starts_with('0') { format!("{:?}", c.read::<f32>(4)) } else { product });
    }
    // SAFETY: handles may be anything.
    unsafe { rocblas::rocblas_destroy_handle(handle) };
    found.join(" // ")
}

/// A kernel stores to memory that was freed and perhaps allocated again.
fn reused() -> String {
    let first = Buffer::new(4096);
    let address = first.0;
    drop(first);
    let others: Vec<Buffer> = (0..64).map(|_| Buffer::of(&[7u32; 1024])).collect();
    let is_reused = others.iter().any(|other| other.0 == address);
    let outcome = of_kernel(Buffer(address));
    std::mem::forget(others);
    format!("{} {outcome}", if is_reused { "reused" } else { "apart" })
}

/// Suballocates the first 64 bytes of a segment, fills them if `fill` is true, and waits.
fn take(segment: &Buffer, fill: bool) -> Buffer {
    assert!(parts::allocated(null_mut(), segment.0.addr(), 64));
    // SAFETY: the runtime checks the address.
    unsafe {
        if fill {
            ok(hipMemset(segment.0, 0, 64));
        }
        ok(hipDeviceSynchronize());
    }
    Buffer(segment.0)
}

fn give(part: Buffer) {
    assert!(parts::freed(null_mut(), part.0.addr()));
    std::mem::forget(part);
}

/// Reads a part with a kernel after it was filled, and again after the same bytes were reallocated.
fn part_taken_twice() -> String {
    let segment = Buffer::of(&[1u32; 64]);
    let (kernel_reads, mut found) = (|part: &Buffer| of_kernel(Buffer(part.0)), Vec::new());
    for fill in [true, false] {
        let part = take(&segment, fill);
        // The buffer's drop frees its address, which has no effect inside an allocation.
        found.push(kernel_reads(&Buffer(part.0.wrapping_byte_add(8))));
        give(part);
    }
    found.join(" // ")
}

fn poisoned_part() -> String {
    let segment = Buffer::of(&[1u32; 64]);
    give(take(&segment, true));
    let part = take(&segment, false);
    let found = format!("{:x?}", part.read::<u32>(2));
    give(part);
    found
}

/// Repeatedly suballocates the same bytes, each time written and used by a kernel.
fn parts_in_order() -> String {
    let (module, segment) = (Module::load("runtime.hsaco"), Buffer::new(256));
    let (stream, digit, place) = (Stream::new(hipStreamNonBlocking), 1u32, segment.0.addr());
    for _ in 0..100 {
        assert!(parts::allocated(stream.0, place, 64));
        // SAFETY: the runtime checks the address.
        ok(unsafe { hipMemsetAsync(segment.0, 0, 64, stream.0) });
        launch_one(module.function("append"), stream.0, &mut [arg(&segment.0), arg(&digit)]);
        assert!(parts::freed(stream.0, place));
    }
    outcome_text(stream.synchronize())
}

/// A kernel stores 12 KiB after a buffer that has many neighbors.
fn far_overrun() -> String {
    let buffers: Vec<Buffer> = (0..64).map(|_| Buffer::of(&[7u32; 64])).collect();
    let behind = |buffer: &Buffer| of_kernel(Buffer(buffer.0.wrapping_byte_add(256 + (12 << 10))));
    let found: Vec<String> = buffers.iter().map(|buffer| behind(buffer)[..1].to_owned()).collect();
    std::mem::forget(buffers);
    found.concat()
}

fn updates(kernel: &str) -> String {
    let (module, place) = (Module::load("order.hsaco"), Buffer::of(&[0u32]));
    let stream = Stream::new(hipStreamNonBlocking);
    ok(launch(module.function(kernel), [8, 1, 1], [1; 3], 0, stream.0, &mut [arg(&place.0)]));
    let outcome = outcome_text(stream.synchronize());
    if outcome.starts_with('0') { place.read::<u32>(1)[0].to_string() } else { outcome }
}

fn chained() -> String {
    let (module, total) = (Module::load("order.hsaco"), Buffer::of(&[0u32]));
    let (out, function) = (Buffer::of(&[0u32; 8]), module.function("chained_workgroups"));
    ok(launch(function, [8, 1, 1], [1; 3], 0, null_mut(), &mut [arg(&total.0), arg(&out.0)]));
    format!("{:?}", total.read::<u32>(1))
}

fn endless() -> String {
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
    // The flag is never set.
    let flag = Buffer::of(&[0u32]);
    launch_one(module.function("wait_for_flag"), stream.0, &mut [arg(&flag.0)]);
    outcome_text(stream.synchronize())
}
