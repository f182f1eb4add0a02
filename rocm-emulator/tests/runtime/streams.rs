//! Order of work within streams, between streams, and relative to the host.
use crate::gpu::*;
use rocm_emulator::api::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const NOT_READY: hipError_t = 600;

struct Kernels {
    _module: Module,
    wait: hipFunction_t,
    append: hipFunction_t,
}

impl Kernels {
    fn load() -> Self {
        let module = Module::load("runtime.hsaco");
        let (wait, append) = (module.function("wait_for_flag"), module.function("append"));
        Self { _module: module, wait, append }
    }

    /// Blocks the stream until the flag is set.
    fn block(&self, stream: hipStream_t, flag: &Flag) {
        launch_one(self.wait, stream, &mut [arg(&flag.0)]);
    }

    fn append(&self, stream: hipStream_t, place: &Buffer, digit: u32) {
        launch_one(self.append, stream, &mut [arg(&place.0), arg(&digit)]);
    }
}

#[test]
fn launches_return_before_they_run() {
    let _gpu = gpu();
    let (kernels, flag, stream) = (Kernels::load(), Flag::new(), Stream::new(hipStreamNonBlocking));
    let place = Buffer::of(&[0u32]);
    kernels.block(stream.0, &flag);
    for digit in 1..=5 {
        kernels.append(stream.0, &place, digit);
    }
    assert_eq!(stream.query(), NOT_READY);
    flag.set();
    ok(stream.synchronize());
    ok(stream.query());
    assert_eq!(place.read::<u32>(1), [12345]);
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    let _gpu = gpu();
    let (kernels, flag) = (Kernels::load(), Flag::new());
    let (blocking, later) = (Stream::new(hipStreamDefault), Stream::new(hipStreamDefault));
    let free = Stream::new(hipStreamNonBlocking);
    let (place, other) = (Buffer::of(&[0u32]), Buffer::of(&[0u32]));
    kernels.block(blocking.0, &flag);
    kernels.append(blocking.0, &place, 1);
    kernels.append(null_mut(), &place, 2);
    kernels.append(later.0, &place, 3);
    kernels.append(free.0, &other, 4);
    // The non-blocking stream runs although the others are blocked.
    ok(free.synchronize());
    assert_eq!(later.query(), NOT_READY);
    // SAFETY: the null stream.
    assert_eq!(unsafe { hipStreamQuery(null_mut()) }, NOT_READY);
    flag.set();
    ok(later.synchronize());
    assert_eq!(place.read::<u32>(1), [123]);
    assert_eq!(other.read::<u32>(1), [4]);
}

#[test]
fn pageable_sources_are_read_during_the_call() {
    let _gpu = gpu();
    let (kernels, flag, stream) = (Kernels::load(), Flag::new(), Stream::new(hipStreamNonBlocking));
    let target = Buffer::of(&[0u32; 4]);
    kernels.block(stream.0, &flag);
    let mut source = vec![1u32, 2, 3, 4];
    // SAFETY: both sides hold 16 bytes.
    ok(unsafe { hipMemcpyAsync(target.0, source.as_ptr().cast(), 16, hipMemcpyHostToDevice, stream.0) });
    source.fill(99);
    drop(source);
    assert_eq!(stream.query(), NOT_READY);
    flag.set();
    ok(stream.synchronize());
    assert_eq!(target.read::<u32>(4), [1, 2, 3, 4]);
}

#[test]
fn copies_between_pinned_and_device_memory_are_asynchronous() {
    let _gpu = gpu();
    let (kernels, flag, stream) = (Kernels::load(), Flag::new(), Stream::new(hipStreamNonBlocking));
    let (device, mut pinned) = (Buffer::of(&[5u32]), null_mut());
    // SAFETY: a valid pointer; it then points to four live bytes.
    unsafe {
        ok(hipHostMalloc(&mut pinned, 4, 0));
        pinned.cast::<u32>().write(0);
        kernels.block(stream.0, &flag);
        ok(hipMemcpyAsync(pinned, device.0, 4, hipMemcpyDeviceToHost, stream.0));
        assert_eq!(stream.query(), NOT_READY);
        flag.set();
        ok(stream.synchronize());
        assert_eq!(pinned.cast::<u32>().read(), 5);
        ok(hipHostFree(pinned));
    }
}

#[test]
fn a_copy_to_pageable_memory_waits_for_its_stream() {
    let _gpu = gpu();
    let (kernels, stream) = (Kernels::load(), Stream::new(hipStreamNonBlocking));
    let place = Buffer::of(&[0u32]);
    (1..=9).for_each(|digit| kernels.append(stream.0, &place, digit));
    let mut word = 0u32;
    // SAFETY: both sides hold four bytes.
    ok(unsafe { hipMemcpyAsync((&raw mut word).cast(), place.0, 4, hipMemcpyDeviceToHost, stream.0) });
    assert_eq!(word, 123_456_789);
}

#[test]
fn events_order_streams_and_measure_time() {
    let _gpu = gpu();
    let (kernels, flag) = (Kernels::load(), Flag::new());
    let (first, second) = (Stream::new(hipStreamNonBlocking), Stream::new(hipStreamNonBlocking));
    let place = Buffer::of(&[0u32]);
    let (mut start, mut stop, mut milliseconds) = (null_mut(), null_mut(), -1f32);
    // SAFETY: valid pointers; handles may be anything.
    unsafe {
        ok(hipEventCreate(&mut start));
        ok(hipEventCreateWithFlags(&mut stop, hipEventDefault));
        // An event that was never recorded is complete and has no time.
        ok(hipEventQuery(start));
        ok(hipEventSynchronize(start));
        ok(hipStreamWaitEvent(second.0, start, 0));
        assert_eq!(hipEventElapsedTime(&mut milliseconds, start, stop), 400);

        ok(hipEventRecord(start, first.0));
        kernels.block(first.0, &flag);
        kernels.append(first.0, &place, 1);
        ok(hipEventRecord(stop, first.0));
        ok(hipStreamWaitEvent(second.0, stop, 0));
        kernels.append(second.0, &place, 2);
        assert_eq!(hipEventQuery(stop), NOT_READY);
        assert_eq!(second.query(), NOT_READY);
        assert_eq!(hipEventElapsedTime(&mut milliseconds, start, stop), NOT_READY);
        flag.set();
        ok(hipEventSynchronize(stop));
        ok(hipEventQuery(stop));
        ok(hipEventElapsedTime(&mut milliseconds, start, stop));
        assert!(milliseconds > 0.0);
        ok(second.synchronize());
        ok(hipEventDestroy(start));
        ok(hipEventDestroy(stop));
        assert_eq!(hipEventQuery(stop), 400);
        assert_eq!(hipEventCreateWithFlags(&mut stop, 0x100), 1);
    }
    assert_eq!(place.read::<u32>(1), [12]);
}

#[test]
fn a_wait_refers_to_the_recording_at_the_time_of_the_call() {
    let _gpu = gpu();
    let (kernels, flag) = (Kernels::load(), Flag::new());
    let (first, second) = (Stream::new(hipStreamNonBlocking), Stream::new(hipStreamNonBlocking));
    let mut event = null_mut();
    // SAFETY: valid pointers; handles may be anything.
    unsafe {
        ok(hipEventCreate(&mut event));
        ok(hipEventRecord(event, first.0));
        ok(hipStreamWaitEvent(second.0, event, 0));
        kernels.block(first.0, &flag);
        ok(hipEventRecord(event, first.0));
        // The second recording has not been reached, but the wait was for the first.
        ok(second.synchronize());
        assert_eq!(hipEventQuery(event), NOT_READY);
        flag.set();
        ok(hipEventSynchronize(event));
        ok(hipEventDestroy(event));
    }
}

struct Called {
    status: AtomicU32,
    nested: AtomicU32,
    calls: AtomicU32,
}

unsafe extern "C" fn callback(stream: hipStream_t, status: hipError_t, data: *mut c_void) {
    // SAFETY: the test passes a `Called` that outlives the stream's work.
    let called = unsafe { &*data.cast::<Called>() };
    called.status.store(status, Ordering::SeqCst);
    // SAFETY: handles may be anything.
    called.nested.store(unsafe { hipStreamSynchronize(stream) }, Ordering::SeqCst);
    called.calls.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn callbacks_run_in_order_and_may_not_wait() {
    let _gpu = gpu();
    let (kernels, flag, stream) = (Kernels::load(), Flag::new(), Stream::new(hipStreamNonBlocking));
    let called = Called { status: AtomicU32::new(77), nested: AtomicU32::new(0), calls: AtomicU32::new(0) };
    kernels.block(stream.0, &flag);
    // SAFETY: the data lives until the stream is synchronized.
    unsafe {
        ok(hipStreamAddCallback(stream.0, Some(callback), arg(&called), 0));
        assert_eq!(hipStreamAddCallback(stream.0, None, null_mut(), 0), 1);
    }
    assert_eq!(called.calls.load(Ordering::SeqCst), 0);
    flag.set();
    ok(stream.synchronize());
    assert_eq!(called.calls.load(Ordering::SeqCst), 1);
    assert_eq!(called.status.load(Ordering::SeqCst), 0);
    assert_eq!(called.nested.load(Ordering::SeqCst), 401, "it would wait for itself");
}

unsafe extern "C" fn count(_stream: hipStream_t, _status: hipError_t, data: *mut c_void) {
    // SAFETY: the test passes a counter that outlives the stream's work.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn waiting_threads_preserve_the_order() {
    let _gpu = gpu();
    let (kernels, calls) = (Kernels::load(), AtomicU32::new(0));
    let (stream, place) = (Stream::new(hipStreamNonBlocking), Buffer::of(&[0u32]));
    for round in 1..=200 {
        // SAFETY: the address is that of a live buffer.
        ok(unsafe { hipMemsetAsync(place.0, 0, 4, stream.0) });
        // Several threads wait concurrently while commands of all kinds are enqueued.
        std::thread::scope(|scope| {
            let handle = stream.0 as usize;
            for _ in 0..3 {
                // SAFETY: the stream lives until the scope ends.
                scope.spawn(move || ok(unsafe { hipStreamSynchronize(handle as hipStream_t) }));
            }
            for digit in 1..=9 {
                kernels.append(stream.0, &place, digit);
                if digit % 4 == 0 {
                    // SAFETY: the counter outlives the stream's work.
                    ok(unsafe { hipStreamAddCallback(stream.0, Some(count), arg(&calls), 0) });
                }
            }
        });
        ok(stream.synchronize());
        assert_eq!(place.read::<u32>(1), [123_456_789]);
        assert_eq!(calls.load(Ordering::SeqCst), 2 * round);
    }
}

#[test]
fn freeing_waits_for_the_device() {
    let _gpu = gpu();
    let (kernels, flag, stream) = (Kernels::load(), Flag::new(), Stream::new(hipStreamNonBlocking));
    let place = Buffer::of(&[0u32]);
    kernels.block(stream.0, &flag);
    kernels.append(stream.0, &place, 1);
    let freed = AtomicBool::new(false);
    let address = place.0 as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the runtime checks the address.
            ok(unsafe { hipFree(address as *mut c_void) });
            freed.store(true, Ordering::SeqCst);
        });
        assert!(!freed.load(Ordering::SeqCst));
        flag.set();
    });
    // The launch ran before the memory was freed: no fault.
    ok(stream.synchronize());
    std::mem::forget(place);
}

#[test]
fn a_destroyed_stream_finishes_its_work_and_its_handle_becomes_invalid() {
    let _gpu = gpu();
    let (kernels, place) = (Kernels::load(), Buffer::of(&[0u32]));
    let stream = Stream::new(hipStreamNonBlocking);
    let handle = stream.0;
    (1..=9).for_each(|digit| kernels.append(handle, &place, digit));
    drop(stream);
    assert_eq!(place.read::<u32>(1), [123_456_789]);
    // SAFETY: handles may be anything.
    unsafe {
        assert_eq!(hipStreamSynchronize(handle), 709);
        assert_eq!(hipStreamDestroy(handle), 400);
        assert_eq!(hipStreamDestroy(null_mut()), 400);
    }
}

#[test]
fn streams_report_their_flags_priority_and_device() {
    let _gpu = gpu();
    let mut stream = null_mut();
    let (mut flags, mut priority, mut device) = (9, 9, 9);
    let (mut least, mut greatest) = (9, 9);
    // SAFETY: valid pointers; handles may be anything.
    unsafe {
        set_device(1);
        ok(hipDeviceGetStreamPriorityRange(&mut least, &mut greatest));
        assert!(greatest < least);
        ok(hipStreamCreateWithPriority(&mut stream, hipStreamNonBlocking, -100));
        set_device(0);
        ok(hipStreamGetFlags(stream, &mut flags));
        ok(hipStreamGetPriority(stream, &mut priority));
        ok(hipStreamGetDevice(stream, &mut device));
        ok(hipStreamDestroy(stream));
        assert_eq!(hipStreamCreateWithFlags(&mut stream, 7), 1);
        assert_eq!(hipStreamCreate(null_mut()), 1);
    }
    assert_eq!((flags, priority, device), (hipStreamNonBlocking, greatest, 1));
}

#[test]
fn many_threads_use_their_own_streams() {
    let _gpu = gpu();
    let module = Module::load("arguments.hsaco");
    let axpy = module.function("axpy") as usize;
    std::thread::scope(|scope| {
        for seed in 0..8u32 {
            scope.spawn(move || {
                let stream = Stream::new(hipStreamNonBlocking);
                let x: Vec<f32> = (0..1000).map(|i| (i + seed) as f32).collect();
                let (x_device, y) = (Buffer::of(&x), Buffer::of(&vec![1f32; 1000]));
                let (n, a) = (1000u32, seed as f32);
                for _ in 0..10 {
                    let args = &mut [arg(&n), arg(&a), arg(&x_device.0), arg(&y.0)];
                    ok(launch(axpy as hipFunction_t, [4, 1, 1], [256, 1, 1], 0, stream.0, args));
                }
                ok(stream.synchronize());
                let expected: Vec<f32> = x.iter().map(|x| 1.0 + 10.0 * a * x).collect();
                assert_eq!(y.read::<f32>(1000), expected);
            });
        }
    });
}
