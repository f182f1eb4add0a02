//! Stream capture and graphs through the C interface.
use crate::gpu::*;
use crate::injected::Injected;
use rocm_emulator::api::*;
use rocm_emulator::{Injection, parts};
use std::ffi::c_void;
use std::ptr::null_mut;

const ILLEGAL_STATE: hipError_t = 401;
const UNSUPPORTED: hipError_t = 900;
const INVALIDATED: hipError_t = 901;
const ILLEGAL_ADDRESS: hipError_t = 700;

struct Fixture {
    module: Module,
    stream: Stream,
    place: Buffer,
}

/// An executable graph that is destroyed at the end of the test.
struct Graph {
    executable: hipGraphExec_t,
    nodes: usize,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: handles may have any value.
        ok(unsafe { hipGraphExecDestroy(self.executable) });
    }
}

impl Graph {
    #[track_caller]
    fn launch(&self, stream: &Stream) {
        // SAFETY: handles may have any value.
        ok(unsafe { hipGraphLaunch(self.executable, stream.0) });
    }
}

fn begin_with(stream: &Stream, mode: hipStreamCaptureMode) -> hipError_t {
    // SAFETY: handles may have any value.
    unsafe { hipStreamBeginCapture(stream.0, mode) }
}

#[track_caller]
fn begin(stream: &Stream) {
    ok(begin_with(stream, hipStreamCaptureModeRelaxed));
}

/// Ends a capture. Returns the code and the graph.
fn end(stream: &Stream) -> (hipError_t, hipGraph_t) {
    let mut graph = null_mut();
    // SAFETY: a valid pointer for the result.
    (unsafe { hipStreamEndCapture(stream.0, &mut graph) }, graph)
}

fn status(stream: &Stream) -> hipStreamCaptureStatus {
    let mut status = 9;
    // SAFETY: a valid pointer for the result.
    ok(unsafe { hipStreamIsCapturing(stream.0, &mut status) });
    status
}

/// Ends a capture and creates an executable graph.
#[track_caller]
fn finish(stream: &Stream) -> Graph {
    let (code, graph) = end(stream);
    ok(code);
    let (mut executable, mut nodes) = (null_mut(), 0);
    // SAFETY: valid pointers for the results.
    unsafe {
        ok(hipGraphGetNodes(graph, null_mut(), &mut nodes));
        ok(hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0));
        // The executable graph does not depend on it.
        ok(hipGraphDestroy(graph));
        assert_eq!(hipGraphDestroy(graph), 1);
    }
    Graph { executable, nodes }
}

impl Fixture {
    fn new() -> Self {
        let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
        Self { module, stream, place: Buffer::of(&[0u32]) }
    }

    fn append_on(&self, stream: &Stream, digit: u32) {
        launch_one(self.module.function("append"), stream.0, &mut [arg(&self.place.0), arg(&digit)]);
    }

    fn append(&self, digit: u32) {
        self.append_on(&self.stream, digit);
    }

    #[track_caller]
    fn value(&self) -> u32 {
        ok(self.stream.synchronize());
        self.place.read::<u32>(1)[0]
    }

    /// Makes a capture that a call invalidates, and checks that the stream can be used afterwards.
    #[track_caller]
    fn refuses(&self, code: hipError_t, call: impl FnOnce() -> hipError_t) {
        begin(&self.stream);
        self.append(1);
        assert_eq!(call(), code, "{}", rocm_emulator::last_error().unwrap_or_default());
        assert_eq!(status(&self.stream), hipStreamCaptureStatusInvalidated);
        let digit = 1u32;
        let append = self.module.function("append");
        let args = &mut [arg(&self.place.0), arg(&digit)];
        assert_eq!(launch(append, [1; 3], [1; 3], 0, self.stream.0, args), INVALIDATED);
        assert_eq!(end(&self.stream), (INVALIDATED, null_mut()));
        assert_eq!((status(&self.stream), end(&self.stream).0), (hipStreamCaptureStatusNone, ILLEGAL_STATE));
        self.append(0);
        assert_eq!(self.value(), 0);
    }
}

#[test]
fn captured_work_runs_when_the_graph_is_launched() {
    let _gpu = gpu();
    let f = Fixture::new();
    let before = rocm_emulator::launch_count();
    assert_eq!(status(&f.stream), hipStreamCaptureStatusNone);
    begin(&f.stream);
    assert_eq!(status(&f.stream), hipStreamCaptureStatusActive);
    (1..=3).for_each(|digit| f.append(digit));
    let graph = finish(&f.stream);
    assert_eq!((graph.nodes, f.value()), (3, 0));
    assert_eq!(rocm_emulator::launch_count(), before);
    graph.launch(&f.stream);
    f.append(9);
    graph.launch(&f.stream);
    assert_eq!(f.value(), 1_239_123);
    // On another stream.
    let other = Stream::new(hipStreamNonBlocking);
    ok(f.stream.synchronize());
    graph.launch(&other);
    ok(other.synchronize());
    assert_eq!(f.value(), (1_239_123u64 * 1000 + 123) as u32);
    assert_eq!(rocm_emulator::launch_count() - before, 10);
}

#[test]
fn copies_and_fills_are_nodes_and_read_current_contents() {
    let _gpu = gpu();
    let f = Fixture::new();
    let (from, to) = (Buffer::of(&[7u32, 8]), Buffer::of(&[0u32; 3]));
    begin(&f.stream);
    // SAFETY: all ranges are inside the buffers.
    unsafe {
        ok(hipMemcpyAsync(to.0, from.0, 8, hipMemcpyDeviceToDevice, f.stream.0));
        ok(hipMemsetD32Async(to.0.wrapping_byte_add(8), 5, 1, f.stream.0));
    }
    let graph = finish(&f.stream);
    assert_eq!((graph.nodes, to.read::<u32>(3)), (2, vec![0, 0, 0]));
    graph.launch(&f.stream);
    ok(f.stream.synchronize());
    assert_eq!(to.read::<u32>(3), [7, 8, 5]);
    // SAFETY: both sides hold eight bytes.
    ok(unsafe { hipMemcpy(from.0, [1u32, 2].as_ptr().cast(), 8, hipMemcpyHostToDevice) });
    graph.launch(&f.stream);
    ok(f.stream.synchronize());
    assert_eq!(to.read::<u32>(3), [1, 2, 5]);
}

/// Events without timing that are destroyed at the end of the test.
struct Events(Vec<hipEvent_t>);

impl Events {
    fn record(&mut self, stream: &Stream) -> hipEvent_t {
        let mut event = null_mut();
        // SAFETY: a valid pointer for the result.
        unsafe {
            ok(hipEventCreateWithFlags(&mut event, hipEventDisableTiming));
            ok(hipEventRecord(event, stream.0));
        }
        self.0.push(event);
        event
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: handles may have any value.
        self.0.iter().for_each(|event| ok(unsafe { hipEventDestroy(*event) }));
    }
}

fn wait(stream: &Stream, event: hipEvent_t) -> hipError_t {
    // SAFETY: handles may have any value.
    unsafe { hipStreamWaitEvent(stream.0, event, 0) }
}

#[test]
fn streams_that_events_order_join_a_capture() {
    let _gpu = gpu();
    let (f, child, mut events) = (Fixture::new(), Stream::new(hipStreamNonBlocking), Events(Vec::new()));
    begin(&f.stream);
    f.append(1);
    ok(wait(&child, events.record(&f.stream)));
    assert_eq!(status(&child), hipStreamCaptureStatusActive);
    f.append_on(&child, 2);
    ok(wait(&f.stream, events.record(&child)));
    f.append(3);
    let graph = finish(&f.stream);
    assert_eq!((status(&child), graph.nodes), (hipStreamCaptureStatusNone, 3));
    graph.launch(&f.stream);
    assert_eq!(f.value(), 123);
    // The child is not part of the graph any more.
    f.append_on(&child, 4);
    ok(child.synchronize());
    assert_eq!(f.value(), 1234);
}

#[test]
fn a_stream_that_is_not_joined_invalidates_the_capture() {
    let _gpu = gpu();
    let (f, child, mut events) = (Fixture::new(), Stream::new(hipStreamNonBlocking), Events(Vec::new()));
    begin(&f.stream);
    ok(wait(&child, events.record(&f.stream)));
    f.append_on(&child, 2);
    assert_eq!(end(&child).0, 903);
    assert_eq!(end(&f.stream), (INVALIDATED, null_mut()));
    begin(&f.stream);
    ok(wait(&child, events.record(&f.stream)));
    f.append_on(&child, 2);
    assert_eq!(end(&f.stream), (904, null_mut()));
    assert_eq!((status(&f.stream), status(&child)), (0, 0));
    f.append(7);
    assert_eq!(f.value(), 7);
}

#[test]
fn calls_that_cannot_be_captured_invalidate_the_capture() {
    let _gpu = gpu();
    let (f, other, mut events) = (Fixture::new(), Stream::new(hipStreamNonBlocking), Events(Vec::new()));
    let earlier = events.record(&other);
    let stream = f.stream.0;
    let mut word = 0u32;
    let word: *mut c_void = (&raw mut word).cast();
    f.refuses(UNSUPPORTED, || f.stream.synchronize());
    f.refuses(UNSUPPORTED, || f.stream.query());
    // SAFETY: handles may have any value, and both sides of the copies hold four bytes.
    unsafe {
        f.refuses(UNSUPPORTED, || hipMemcpyAsync(f.place.0, word, 4, hipMemcpyHostToDevice, stream));
        f.refuses(UNSUPPORTED, || hipMemcpyAsync(word, f.place.0, 4, hipMemcpyDeviceToHost, stream));
        unsafe extern "C" fn callback(_: hipStream_t, _: hipError_t, _: *mut c_void) {}
        f.refuses(UNSUPPORTED, || hipStreamAddCallback(stream, Some(callback), null_mut(), 0));
        f.refuses(UNSUPPORTED, || hipStreamDestroy(stream));
        f.refuses(907, || hipEventSynchronize(events.record(&f.stream)));
        f.refuses(907, || hipEventQuery(events.record(&f.stream)));
    }
    f.refuses(905, || wait(&f.stream, earlier));
    f.refuses(902, || {
        begin(&other);
        let code = wait(&f.stream, events.record(&other));
        assert_eq!(end(&other).0, INVALIDATED);
        code
    });
}

#[test]
fn captures_begin_and_end_on_one_stream() {
    let _gpu = gpu();
    let f = Fixture::new();
    // SAFETY: handles may have any value.
    unsafe {
        assert_eq!(hipStreamBeginCapture(null_mut(), hipStreamCaptureModeRelaxed), UNSUPPORTED);
        assert_eq!(hipGraphLaunch(null_mut(), f.stream.0), 1);
        assert_eq!(hipGraphExecDestroy(null_mut()), 1);
    }
    assert_eq!((begin_with(&f.stream, 3), end(&f.stream).0), (1, ILLEGAL_STATE));
    begin(&f.stream);
    assert_eq!(begin_with(&f.stream, hipStreamCaptureModeRelaxed), ILLEGAL_STATE);
    // SAFETY: no arguments.
    assert_eq!(unsafe { hipDeviceSynchronize() }, UNSUPPORTED);
    f.append(1);
    let graph = finish(&f.stream);
    begin(&f.stream);
    // SAFETY: handles may have any value.
    assert_eq!(unsafe { hipGraphLaunch(graph.executable, f.stream.0) }, UNSUPPORTED);
    assert_eq!(end(&f.stream).0, INVALIDATED);
    graph.launch(&f.stream);
    assert_eq!(f.value(), 1);
}

#[test]
fn the_mode_decides_which_threads_may_allocate() {
    let _gpu = gpu();
    let f = Fixture::new();
    let allocate = || {
        let mut ptr = null_mut();
        // SAFETY: a valid pointer for the result.
        match unsafe { hipMalloc(&mut ptr, 64) } {
            // SAFETY: the runtime checks the address.
            0 => unsafe { hipFree(ptr) },
            code => code,
        }
    };
    let elsewhere = || std::thread::spawn(allocate).join().unwrap();
    for (mode, here, there) in [
        (hipStreamCaptureModeRelaxed, 0, 0),
        (hipStreamCaptureModeThreadLocal, UNSUPPORTED, 0),
        (hipStreamCaptureModeGlobal, UNSUPPORTED, UNSUPPORTED),
    ] {
        for (code, is_here) in [(there, false), (here, true)] {
            ok(begin_with(&f.stream, mode));
            assert_eq!(if is_here { allocate() } else { elsewhere() }, code, "mode {mode}");
            let (ended, graph) = end(&f.stream);
            assert_eq!(ended, if code == 0 { 0 } else { INVALIDATED }, "mode {mode}");
            if !graph.is_null() {
                // SAFETY: handles may have any value.
                ok(unsafe { hipGraphDestroy(graph) });
            }
        }
    }
    ok(begin_with(&f.stream, hipStreamCaptureModeThreadLocal));
    let stream = f.stream.0.addr();
    let ended = std::thread::spawn(move || {
        let mut graph = null_mut();
        // SAFETY: a valid pointer for the result.
        unsafe { hipStreamEndCapture(std::ptr::without_provenance_mut(stream), &mut graph) }
    });
    assert_eq!(ended.join().unwrap(), 908);
    // This ends it.
    let (code, graph) = end(&f.stream);
    ok(code);
    // SAFETY: handles may have any value.
    ok(unsafe { hipGraphDestroy(graph) });
}

#[test]
fn a_blocking_stream_that_captures_keeps_the_null_stream_unused() {
    let _gpu = gpu();
    let (f, blocking) = (Fixture::new(), Stream::new(hipStreamDefault));
    begin(&blocking);
    f.append_on(&blocking, 1);
    let digit = 2u32;
    let args = &mut [arg(&f.place.0), arg(&digit)];
    assert_eq!(launch(f.module.function("append"), [1; 3], [1; 3], 0, null_mut(), args), 906);
    assert_eq!(end(&blocking).0, INVALIDATED);
    begin(&f.stream);
    f.append(1);
    // Non-blocking streams do not concern the null stream, whose work therefore needs its own memory.
    let place = Buffer::of(&[0u32]);
    launch_one(f.module.function("append"), null_mut(), &mut [arg(&place.0), arg(&digit)]);
    finish(&f.stream).launch(&f.stream);
    // SAFETY: no arguments.
    ok(unsafe { hipDeviceSynchronize() });
    assert_eq!((f.value(), place.read::<u32>(1)[0]), (1, 2));
}

#[test]
fn memory_that_was_freed_after_the_capture_is_reported() {
    let _gpu = gpu();
    let f = Fixture::new();
    let (source, freed) = (Buffer::of(&[1u32]), Buffer::of(&[2u32]));
    let digit = 3u32;
    begin(&f.stream);
    // SAFETY: both sides hold four bytes.
    unsafe {
        ok(hipMemcpyAsync(freed.0, source.0, 4, hipMemcpyDeviceToDevice, f.stream.0));
        ok(hipMemsetD32Async(freed.0, 5, 1, f.stream.0));
    }
    let copies = finish(&f.stream);
    begin(&f.stream);
    launch_one(f.module.function("append"), f.stream.0, &mut [arg(&freed.0), arg(&digit)]);
    f.append(4);
    let kernels = finish(&f.stream);
    copies.launch(&f.stream);
    kernels.launch(&f.stream);
    assert_eq!(f.value(), 4);
    drop(freed);
    for (graph, text) in
        [(&copies, "use after free: a copy to of 4 bytes"), (&kernels, "use after free: load")]
    {
        graph.launch(&f.stream);
        assert_eq!(f.stream.synchronize(), ILLEGAL_ADDRESS);
        let fault = rocm_emulator::last_fault().unwrap();
        let found = fault.contains(text) || fault.contains("out of bounds") || fault.contains("a fill");
        assert!(found, "{fault}");
    }
    // The rest of the graph ran nevertheless.
    assert_eq!(f.value(), 44);
}

#[test]
fn parts_begin_and_end_in_every_launch() {
    let _gpu = gpu();
    let f = Fixture::new();
    let segment = Buffer::new(4096);
    let at = |offset: usize| segment.0.wrapping_byte_add(offset);
    let store = |offset: usize| {
        let (place, index, value) = (at(offset), 0u64, 7u32);
        launch_one(f.module.function("store_at"), f.stream.0, &mut [arg(&place), arg(&index), arg(&value)]);
    };
    begin(&f.stream);
    assert!(parts::allocated(f.stream.0, at(0).addr(), 1024));
    store(1000);
    assert!(parts::freed(f.stream.0, at(0).addr()));
    // The bytes are divided differently now; one of the parts is the result.
    assert!(
        parts::allocated(f.stream.0, at(512).addr(), 256) && parts::allocated(f.stream.0, at(0).addr(), 256)
    );
    store(512);
    store(0);
    assert!(parts::freed(f.stream.0, at(0).addr()));
    let graph = finish(&f.stream);
    assert_eq!(graph.nodes, 3);
    for _ in 0..3 {
        graph.launch(&f.stream);
        ok(f.stream.synchronize());
        store(512);
        ok(f.stream.synchronize());
        store(0);
        assert_eq!(f.stream.synchronize(), ILLEGAL_ADDRESS, "the part has ended");
    }
    // Graphs may use the same memory in turn. Each ends what the other has left.
    assert!(parts::freed(f.stream.0, at(512).addr()));
    begin(&f.stream);
    assert!(parts::allocated(f.stream.0, at(600).addr(), 256));
    store(600);
    let other = finish(&f.stream);
    for _ in 0..2 {
        graph.launch(&f.stream);
        store(512);
        other.launch(&f.stream);
        store(600);
        ok(f.stream.synchronize());
        store(512);
        assert_eq!(f.stream.synchronize(), ILLEGAL_ADDRESS, "the other graph has overwritten it");
    }
    assert!(parts::freed(f.stream.0, at(600).addr()));
    // Parts of an invalid capture never begin, but can be freed.
    begin(&f.stream);
    assert!(parts::allocated(f.stream.0, at(2048).addr(), 256));
    assert_eq!(f.stream.synchronize(), UNSUPPORTED);
    assert!(parts::allocated(f.stream.0, at(3072).addr(), 256) && parts::freed(f.stream.0, at(3072).addr()));
    assert_eq!(end(&f.stream).0, INVALIDATED);
    store(2048);
    assert_eq!(f.stream.synchronize(), ILLEGAL_ADDRESS);
    assert!(parts::freed(f.stream.0, at(2048).addr()));
    ok(f.stream.synchronize());
}

#[test]
fn injected_launches_leave_stale_results() {
    let _gpu = gpu();
    let f = Fixture::new();
    begin(&f.stream);
    f.append(1);
    let graph = finish(&f.stream);
    let _asked = Injected::new(Injection { stale: Some(3), ..Injection::default() });
    (0..5).for_each(|_| graph.launch(&f.stream));
    assert_eq!(f.value(), 11);
}
