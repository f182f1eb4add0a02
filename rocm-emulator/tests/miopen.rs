//! Tests of MIOpen through its C functions: handles, descriptors, solutions, stream order, and faults that are reported
//! when the host waits for the stream.
use rocm_emulator::miopen::{self, ConvSolution};
use rocm_emulator::{Injection, api, inject, last_error, miopen_compiles};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

const F16: u32 = 0;
const F32: u32 = 1;
const DOUBLE: u32 = 6;
const SUCCESS: u32 = 0;
const BAD_PARM: u32 = 3;
const UNKNOWN_ERROR: u32 = 7;

type Descriptor = *mut c_void;

/// A stream and a MIOpen handle that uses it. Only one test at a time has it, because injected faults and the number of
/// compilations belong to the process.
struct Gpu {
    stream: *mut c_void,
    handle: *mut c_void,
    _alone: MutexGuard<'static, ()>,
}

/// Makes a call that must succeed.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: pointers to results are live; handles, descriptors and addresses may be anything.
        let status = unsafe { $call };
        assert_eq!(status, SUCCESS, "{}: {:?}", stringify!($call), last_error());
    }};
}

impl Gpu {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        rocm_emulator::configure(&["gfx1100"]).unwrap();
        let (mut stream, mut handle) = (null_mut(), null_mut());
        ok!(api::hipStreamCreateWithFlags(&mut stream, 1));
        ok!(miopen::miopenCreateWithStream(&mut handle, stream));
        Self { stream, handle, _alone: alone }
    }

    fn allocate(&self, bytes: usize) -> *mut c_void {
        let mut place = null_mut();
        ok!(api::hipMalloc(&mut place, bytes));
        place
    }

    fn upload<T: Copy>(&self, values: &[T]) -> *mut c_void {
        let place = self.allocate(size_of_val(values));
        ok!(api::hipMemcpy(place, values.as_ptr().cast(), size_of_val(values), 1));
        place
    }

    fn download<T: Copy + Default>(&self, place: *const c_void, len: usize) -> Vec<T> {
        let mut values = vec![T::default(); len];
        ok!(api::hipMemcpy(values.as_mut_ptr().cast(), place, len * size_of::<T>(), 2));
        values
    }

    fn synchronize(&self) -> u32 {
        // SAFETY: handles may be anything.
        unsafe { api::hipStreamSynchronize(self.stream) }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        inject(Injection::default());
        // SAFETY: handles may be anything.
        unsafe {
            miopen::miopenDestroy(self.handle);
            api::hipStreamDestroy(self.stream);
        }
    }
}

fn tensor(kind: u32, [n, c, h, w]: [i32; 4]) -> Descriptor {
    let mut descriptor = null_mut();
    ok!(miopen::miopenCreateTensorDescriptor(&mut descriptor));
    ok!(miopen::miopenSet4dTensorDescriptor(descriptor, kind, n, c, h, w));
    descriptor
}

fn convolution(padding: i32, groups: i32) -> Descriptor {
    let mut descriptor = null_mut();
    ok!(miopen::miopenCreateConvolutionDescriptor(&mut descriptor));
    ok!(miopen::miopenInitConvolutionDescriptor(descriptor, 0, padding, padding, 1, 1, 1, 1));
    ok!(miopen::miopenSetConvolutionGroupCount(descriptor, groups));
    descriptor
}

/// The descriptors of a 2 x 2 image with one channel, weights of 2 x 2, and an output of 3 x 3. The padding is 1.
struct Small {
    x: Descriptor,
    w: Descriptor,
    y: Descriptor,
    convolution: Descriptor,
}

const IMAGE: [f32; 4] = [1.0, 2.0, 3.0, 4.0];
const WEIGHTS: [f32; 4] = [1.0, 10.0, 100.0, 1000.0];

impl Small {
    fn new(kind: u32) -> Self {
        let [x, w, y] = [[1, 1, 2, 2], [1, 1, 2, 2], [1, 1, 3, 3]].map(|dims| tensor(kind, dims));
        Self { x, w, y, convolution: convolution(1, 1) }
    }

    fn solutions(&self, gpu: &Gpu) -> Vec<ConvSolution> {
        let mut count = 0;
        let Self { x, w, y, convolution } = *self;
        let h = gpu.handle;
        ok!(miopen::miopenConvolutionForwardGetSolutionCount(h, w, x, convolution, y, &mut count));
        let mut found = vec![ConvSolution::default(); count];
        let room = found.as_mut_ptr();
        ok!(miopen::miopenConvolutionForwardGetSolution(h, w, x, convolution, y, count, &mut count, room));
        assert_eq!(count, found.len());
        found
    }

    fn run(
        &self,
        gpu: &Gpu,
        [x, w, y]: [*mut c_void; 3],
        workspace: *mut c_void,
        bytes: usize,
        id: u64,
    ) -> u32 {
        let (c, h) = (self.convolution, gpu.handle);
        // SAFETY: addresses and descriptors may have any value.
        unsafe {
            miopen::miopenConvolutionForwardImmediate(
                h, self.w, w, self.x, x, c, self.y, y, workspace, bytes, id,
            )
        }
    }
}

#[test]
fn three_directions_run_in_stream_order() {
    let gpu = Gpu::new();
    let Small { x, w, y, convolution } = Small::new(F32);
    let (image, weights) = (gpu.upload(&IMAGE), gpu.upload(&WEIGHTS));
    let output = gpu.upload(&[f32::NAN; 9]);
    let (image_gradient, weight_gradient) = (gpu.upload(&[f32::NAN; 4]), gpu.upload(&[f32::NAN; 4]));
    let h = gpu.handle;
    ok!(miopen::miopenConvolutionForwardImmediate(
        h,
        w,
        weights,
        x,
        image,
        convolution,
        y,
        output,
        null_mut(),
        0,
        85
    ));
    // The gradients use the output without waiting for it.
    ok!(miopen::miopenConvolutionBackwardDataImmediate(
        h,
        y,
        output,
        w,
        weights,
        convolution,
        x,
        image_gradient,
        null_mut(),
        0,
        86
    ));
    ok!(miopen::miopenConvolutionBackwardWeightsImmediate(
        h,
        y,
        output,
        x,
        image,
        convolution,
        w,
        weight_gradient,
        null_mut(),
        0,
        87
    ));
    assert_eq!(gpu.synchronize(), SUCCESS);
    // Computed by hand. The first output covers only the image's first element, with the weight 1000.
    let forward = [1000.0, 2100.0, 200.0, 3010.0, 4321.0, 402.0, 30.0, 43.0, 4.0];
    assert_eq!(gpu.download::<f32>(output, 9), forward);
    let gradient = |row: usize, column: usize, weights: &[f32]| -> f32 {
        [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(r, c)| weights[r * 2 + c] * forward[(row + 1 - r) * 3 + column + 1 - c])
            .iter()
            .sum()
    };
    let expected = [
        gradient(0, 0, &WEIGHTS),
        gradient(0, 1, &WEIGHTS),
        gradient(1, 0, &WEIGHTS),
        gradient(1, 1, &WEIGHTS),
    ];
    assert_eq!(gpu.download::<f32>(image_gradient, 4), expected);
    let expected: Vec<f32> = [(1, 1), (1, 0), (0, 1), (0, 0)]
        .map(|(r, c)| [0, 1, 3, 4].iter().zip(IMAGE).map(|(at, value)| forward[r * 3 + c + at] * value).sum())
        .to_vec();
    assert_eq!(gpu.download::<f32>(weight_gradient, 4), expected);
}

#[test]
fn solutions_report_their_workspace_and_are_compiled_once() {
    let gpu = Gpu::new();
    let small = Small::new(F32);
    let found = small.solutions(&gpu);
    let ids: Vec<u64> = found.iter().map(|solution| solution.solution_id).collect();
    assert_eq!(ids, [91, 85]);
    let (gemm, before) = (found[0], miopen_compiles());
    let Small { x, w, y, convolution } = small;
    let h = gpu.handle;
    let mut bytes = 0;
    ok!(miopen::miopenConvolutionForwardGetSolutionWorkspaceSize(h, w, x, convolution, y, 91, &mut bytes));
    assert_eq!((gemm.workspace_size, bytes, gemm.algorithm), (9 * 4 * 4, 9 * 4 * 4, 0));
    assert_eq!(miopen_compiles(), before, "a query compiles nothing");

    let at = [gpu.upload(&IMAGE), gpu.upload(&WEIGHTS), gpu.upload(&[0f32; 9])];
    let workspace = gpu.upload(&vec![0u8; bytes + 1]);
    ok!(miopen::miopenConvolutionForwardCompileSolution(h, w, x, convolution, y, 91));
    ok!(miopen::miopenConvolutionForwardCompileSolution(h, w, x, convolution, y, 91));
    assert_eq!(small.run(&gpu, at, workspace, bytes + 1, 91), SUCCESS);
    assert_eq!(miopen_compiles(), before + 1);
    assert_eq!(gpu.synchronize(), SUCCESS);
    assert_eq!(gpu.download::<f32>(at[2], 1), [1000.0]);
    let used = gpu.download::<u8>(workspace, bytes + 1);
    assert!(used[..bytes].iter().all(|byte| *byte != 0) && used[bytes] == 0, "{used:?}");

    // Otherwise the first use compiles, as does every new shape, direction or handle.
    assert_eq!(small.run(&gpu, at, null_mut(), 0, 85), SUCCESS);
    assert_eq!(small.run(&gpu, at, null_mut(), 0, 85), SUCCESS);
    assert_eq!(miopen_compiles(), before + 2);
    let mut other = null_mut();
    ok!(miopen::miopenCreate(&mut other));
    ok!(miopen::miopenConvolutionForwardCompileSolution(other, w, x, convolution, y, 91));
    ok!(miopen::miopenConvolutionBackwardDataCompileSolution(other, y, w, convolution, x, 97));
    assert_eq!(miopen_compiles(), before + 4);
    ok!(miopen::miopenDestroy(other));
    assert_eq!(gpu.synchronize(), SUCCESS);
}

#[test]
fn solutions_are_limited_to_the_callers_array() {
    let gpu = Gpu::new();
    let Small { x, w, y, convolution } = Small::new(F16);
    let (mut count, mut one) = (9, ConvSolution::default());
    let h = gpu.handle;
    ok!(miopen::miopenConvolutionBackwardWeightsGetSolution(
        h,
        y,
        x,
        convolution,
        w,
        1,
        &mut count,
        &mut one
    ));
    assert_eq!((count, one.solution_id, one.workspace_size), (1, 102, 9 * 4 * 2));
    assert!(one.time > 0.0);
    assert_eq!(Small::new(DOUBLE).solutions(&gpu), []);
}

#[test]
fn invalid_arguments_are_reported_by_the_call() {
    let gpu = Gpu::new();
    let small = Small::new(F32);
    let Small { x, w, y, convolution } = small;
    let at = [gpu.upload(&IMAGE), gpu.upload(&WEIGHTS), gpu.upload(&[0f32; 9])];
    let workspace = gpu.allocate(1024);
    let assert_error_contains = |part: &str| {
        let text = last_error().unwrap_or_default();
        assert!(text.contains(part), "{part}: {text}");
    };
    let before = miopen_compiles();
    for id in [0, 84, 86, 137, 11] {
        assert_eq!(small.run(&gpu, at, workspace, 1024, id), BAD_PARM);
    }
    assert_error_contains(
        "miopenStatusBadParm (3): miopenConvolutionForwardImmediate: 11 is not a solution of this convolution",
    );
    for (workspace, bytes) in [(workspace, 143), (null_mut(), 1024), (null_mut(), 0)] {
        assert_eq!(small.run(&gpu, at, workspace, bytes, 91), UNKNOWN_ERROR);
    }
    assert_error_contains("needs a workspace of 144 bytes, but 0 were passed");
    for missing in 0..3 {
        let mut at = at;
        at[missing] = null_mut();
        assert_eq!(small.run(&gpu, at, workspace, 1024, 91), BAD_PARM);
    }
    assert_eq!(miopen_compiles(), before);
    let count = |handle, w, x, convolution, y| {
        let mut count = 0;
        // SAFETY: the count is live; handles and descriptors may have any value.
        unsafe { miopen::miopenConvolutionForwardGetSolutionCount(handle, w, x, convolution, y, &mut count) }
    };
    let h = gpu.handle;
    assert_eq!(count(h, w, x, convolution, y), SUCCESS);
    assert_eq!(count(h, w, y, convolution, x), BAD_PARM, "exchanged tensors");
    assert_eq!(count(h, convolution, x, convolution, y), BAD_PARM, "a convolution is not a tensor");
    assert_eq!(count(h, w, x, w, y), BAD_PARM, "a tensor is not a convolution");
    assert_eq!(count(gpu.stream, w, x, convolution, y), BAD_PARM, "a stream is not a handle");
    assert_eq!(count(h, w, x, null_mut(), y), BAD_PARM);
    let mut blank = null_mut();
    ok!(miopen::miopenCreateTensorDescriptor(&mut blank));
    assert_eq!(count(h, w, blank, convolution, y), BAD_PARM, "the descriptor is not set");
    ok!(miopen::miopenDestroyTensorDescriptor(x));
    assert_eq!(count(h, w, x, convolution, y), BAD_PARM, "the tensor was destroyed");
    assert_error_contains("is not a tensor descriptor");
    assert_eq!(gpu.synchronize(), SUCCESS);
}

#[test]
fn descriptors_keep_their_contents() {
    let gpu = Gpu::new();
    let h = gpu.handle;
    // SAFETY: results go to live variables, arrays are long enough, and other arguments may have any value.
    unsafe {
        let descriptor = tensor(F32, [1; 4]);
        let set = |rank, dims: *const i32, strides| {
            miopen::miopenSetTensorDescriptor(descriptor, F32, rank, dims, strides)
        };
        let dims = [2, 4, 5, 7, 1, 1];
        assert_eq!(set(4, null(), null()), BAD_PARM);
        assert_eq!(set(1, dims.as_ptr(), null()), BAD_PARM);
        assert_eq!(set(6, dims.as_ptr(), null()), BAD_PARM);
        assert_eq!(set(-1, dims.as_ptr(), null()), BAD_PARM);
        assert_eq!(set(4, dims.as_ptr(), [140, 1, 28, 4].as_ptr()), SUCCESS);
        let conv = convolution(0, 1);
        let init = |dims, stride: [i32; 2], mode| {
            let (padding, dilation) = ([1, 0], [2, 1]);
            let (padding, dilation) = (padding.as_ptr(), dilation.as_ptr());
            miopen::miopenInitConvolutionNdDescriptor(conv, dims, padding, stride.as_ptr(), dilation, mode)
        };
        assert_eq!(init(3, [2, 3], 0), 6, "not_implemented");
        assert_eq!(init(2, [2, 3], 1), 8, "unsupported_op");
        assert_eq!(init(2, [0, 3], 0), BAD_PARM);
        assert_eq!(init(2, [2, 3], 0), SUCCESS);
        assert_eq!(miopen::miopenSetConvolutionGroupCount(conv, 0), BAD_PARM);
        assert_eq!(miopen::miopenSetConvolutionGroupCount(conv, 2), SUCCESS);
        let weights = tensor(F32, [6, 2, 3, 2]);
        let (mut rank, mut output) = (0, [0; 4]);
        let fit = |weights, rank: *mut i32, output| {
            miopen::miopenGetConvolutionNdForwardOutputDim(conv, descriptor, weights, rank, output)
        };
        assert_eq!(fit(weights, &mut rank, output.as_mut_ptr()), SUCCESS);
        // Rows: (5 + 2 - 5) / 2 + 1, columns: (7 - 2) / 3 + 1.
        assert_eq!((rank, output), (4, [2, 6, 2, 2]));
        assert_eq!(fit(descriptor, &mut rank, output.as_mut_ptr()), BAD_PARM);
        assert_eq!(fit(weights, &mut rank, null_mut()), BAD_PARM);
        // With the channels innermost, only the general solution supports the problem.
        let (mut count, mut one) = (0, ConvSolution::default());
        let y = tensor(F32, [2, 6, 2, 2]);
        let (room, at) = (&mut one, &mut count);
        let status =
            miopen::miopenConvolutionForwardGetSolution(h, weights, descriptor, conv, y, 1, at, room);
        assert_eq!(status, SUCCESS);
        assert_eq!((count, one.solution_id), (1, 85));
        assert_eq!(miopen::miopenDestroyConvolutionDescriptor(conv), SUCCESS);
        assert_eq!(miopen::miopenDestroyConvolutionDescriptor(conv), BAD_PARM);
        assert_eq!(fit(weights, &mut rank, output.as_mut_ptr()), BAD_PARM);
    }
}

#[test]
fn handles_keep_their_stream() {
    let gpu = Gpu::new();
    // SAFETY: results go to live variables; handles may be anything.
    unsafe {
        let mut stream = null_mut();
        assert_eq!(miopen::miopenGetStream(gpu.handle, &mut stream), SUCCESS);
        assert_eq!(stream, gpu.stream);
        assert_eq!(miopen::miopenSetStream(gpu.handle, gpu.handle), BAD_PARM, "a handle is not a stream");
        assert_eq!(miopen::miopenSetStream(gpu.handle, null_mut()), SUCCESS);
        assert_eq!(miopen::miopenGetStream(gpu.handle, &mut stream), SUCCESS);
        assert!(stream.is_null());
        let mut other = null_mut();
        assert_eq!(miopen::miopenCreateWithStream(&mut other, gpu.handle), BAD_PARM);
        assert_eq!(miopen::miopenCreate(null_mut()), BAD_PARM);
        assert_eq!(miopen::miopenCreate(&mut other), SUCCESS);
        assert_eq!(miopen::miopenDestroy(other), SUCCESS);
        for stale in [null_mut(), gpu.stream, other] {
            assert_eq!(miopen::miopenGetStream(stale, &mut stream), BAD_PARM);
            assert_eq!(miopen::miopenDestroy(stale), BAD_PARM);
        }
        let [mut major, mut minor, mut patch] = [0; 3];
        assert_eq!(miopen::miopenGetVersion(&mut major, &mut minor, &mut patch), SUCCESS);
        assert_eq!([major, minor, patch], [3, 4, 0]);
        assert_eq!(CStr::from_ptr(miopen::miopenGetErrorString(3)), c"miopenStatusBadParm");
    }
}

#[test]
fn freed_memory_is_a_fault_and_the_device_keeps_working() {
    let gpu = Gpu::new();
    let small = Small::new(F32);
    let at = [gpu.upload(&IMAGE), gpu.upload(&WEIGHTS), gpu.upload(&[0f32; 9])];
    let gone = gpu.allocate(1024);
    ok!(api::hipFree(gone));
    for (image, workspace, part) in
        [(gone, null_mut(), "tensor x"), (at[0], gone, "the workspace, 144 bytes")]
    {
        let id = if workspace.is_null() { 85 } else { 91 };
        assert_eq!(small.run(&gpu, [image, at[1], at[2]], workspace, 1024, id), SUCCESS);
        assert_eq!(gpu.synchronize(), 700);
        let text = last_error().unwrap_or_default();
        assert!(text.contains("miopenConvolutionForwardImmediate") && text.contains(part), "{text}");
        assert_eq!(gpu.synchronize(), SUCCESS, "the fault is reported once");
    }
    assert_eq!(gpu.download::<f32>(at[2], 9), [0.0; 9]);
    assert_eq!(small.run(&gpu, at, null_mut(), 0, 85), SUCCESS);
    assert_eq!(gpu.synchronize(), SUCCESS);
    assert_eq!(gpu.download::<f32>(at[2], 2), [1000.0, 2100.0]);
}

#[test]
fn an_injected_call_fails() {
    let gpu = Gpu::new();
    let small = Small::new(F32);
    let at = [gpu.upload(&IMAGE), gpu.upload(&WEIGHTS), gpu.upload(&[0f32; 9])];
    let failing = vec![("miopenConvolutionForwardImmediate".to_owned(), 2)];
    inject(Injection { failing, ..Injection::default() });
    let run = || small.run(&gpu, at, null_mut(), 0, 85);
    assert_eq!([run(), run(), run()], [SUCCESS, UNKNOWN_ERROR, SUCCESS]);
    inject(Injection::default());
    assert_eq!(gpu.synchronize(), SUCCESS);
}
