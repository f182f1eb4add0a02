//! MIOpen's immediate mode: its handle, descriptors and solutions, each call's failure with what it says.
//!
//! The functions and their numbers are those of miopen/miopen.h. The three directions have the same five functions, whose
//! descriptors stand in the order (first operand, second operand, convolution, result).
use super::convolution_shape::{ConvShape, Direction};
use crate::rocm_backend::error::notes;
use crate::DType;
use hip_kernels::contract::DevicePtr;
use rocm_loader::miopen;
use rocm_rs::hip::bindings::hipStream_t;
use rocm_rs::miopen::ffi::{
    miopenConvSolution_t, miopenConvolutionDescriptor_t, miopenDataType_t, miopenHandle_t,
    miopenTensorDescriptor_t,
};
use std::ffi::{c_int, c_void, CStr};

/// MIOpen's last resorts, which take a thread for each element of the result: `ConvDirectNaiveConvFwd`, `Bwd`, `Wrw`.
const NAIVE: std::ops::RangeInclusive<u64> = 85..=87;
/// So many solutions are looked at, best first.
const SOLUTIONS: usize = 16;
/// miopenConvolution: not transposed, no other mode.
const PLAIN: u32 = 0;
const SUCCESS: u32 = 0;

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(super) fn of(error: &crate::Error) -> Self {
        Self(error.to_string())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn checked(call: &'static str, status: u32) -> Result<(), Failure> {
    if status == SUCCESS {
        return Ok(());
    }
    // SAFETY: the function takes any number, and returns a text that lives for ever.
    let text = unsafe { CStr::from_ptr(miopen::miopenGetErrorString(status)) };
    Err(Failure(format!("{call}: {} ({status}){}", text.to_string_lossy(), notes(None))))
}

/// `miopenDataType_t` of what MIOpen's convolutions take.
fn data_type(dtype: DType) -> Option<miopenDataType_t> {
    match dtype {
        DType::F16 => Some(0),
        DType::F32 => Some(1),
        DType::BF16 => Some(5),
        _ => None,
    }
}

/// Whether MIOpen has convolutions of these elements.
pub(crate) fn takes(dtype: DType) -> bool {
    data_type(dtype).is_some()
}

/// MIOpen's version, as the library says.
pub(super) fn version() -> Result<String, Failure> {
    let [mut major, mut minor, mut patch] = [0; 3];
    // SAFETY: three places to write to.
    let status = unsafe { miopen::miopenGetVersion(&mut major, &mut minor, &mut patch) };
    checked("miopenGetVersion", status)?;
    Ok(format!("{major}.{minor}.{patch}"))
}

/// A handle of MIOpen, bound to one stream.
pub(super) struct Handle(miopenHandle_t);

// SAFETY: a handle may be used from any thread, one at a time; it lives under the device's mutex.
unsafe impl Send for Handle {}

impl Handle {
    /// The stream's device is the thread's current one, and the stream outlives the handle.
    pub(super) fn on(stream: hipStream_t) -> Result<Self, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place to write to, and a live stream.
        let status = unsafe { miopen::miopenCreateWithStream(&mut handle, stream) };
        checked("miopenCreateWithStream", status)?;
        Ok(Self(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by miopenCreateWithStream. A failure has nobody left to go to.
        let _ = unsafe { miopen::miopenDestroy(self.0) };
    }
}

struct Tensor(miopenTensorDescriptor_t);

impl Tensor {
    fn dense(dtype: DType, dims: [usize; 4]) -> Result<Self, Failure> {
        let Some(data_type) = data_type(dtype) else {
            return Err(Failure(format!("MIOpen has no convolutions of {dtype:?}")));
        };
        let strides = [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1];
        let (dims, strides) = (ints(dims)?, ints(strides)?);
        let mut made = std::ptr::null_mut();
        // SAFETY: a place to write to.
        checked("miopenCreateTensorDescriptor", unsafe { miopen::miopenCreateTensorDescriptor(&mut made) })?;
        let tensor = Self(made);
        // SAFETY: a live descriptor, and four numbers behind either pointer.
        let status = unsafe {
            miopen::miopenSetTensorDescriptor(tensor.0, data_type, 4, dims.as_ptr(), strides.as_ptr())
        };
        checked("miopenSetTensorDescriptor", status)?;
        Ok(tensor)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made by miopenCreateTensorDescriptor. A failure has nobody left to go to.
        let _ = unsafe { miopen::miopenDestroyTensorDescriptor(self.0) };
    }
}

struct Windows(miopenConvolutionDescriptor_t);

impl Windows {
    fn of(shape: &ConvShape) -> Result<Self, Failure> {
        let (h, w) = (shape.h, shape.w);
        let [pads, strides, dilations] =
            [ints([h.padding, w.padding])?, ints([h.stride, w.stride])?, ints([h.dilation, w.dilation])?];
        let [groups] = ints([shape.groups])?;
        let mut made = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let status = unsafe { miopen::miopenCreateConvolutionDescriptor(&mut made) };
        checked("miopenCreateConvolutionDescriptor", status)?;
        let windows = Self(made);
        // SAFETY: a live descriptor, and two numbers behind each pointer.
        let status = unsafe {
            miopen::miopenInitConvolutionNdDescriptor(
                windows.0,
                2,
                pads.as_ptr(),
                strides.as_ptr(),
                dilations.as_ptr(),
                PLAIN,
            )
        };
        checked("miopenInitConvolutionNdDescriptor", status)?;
        // SAFETY: a live descriptor.
        let status = unsafe { miopen::miopenSetConvolutionGroupCount(windows.0, groups) };
        checked("miopenSetConvolutionGroupCount", status)?;
        Ok(windows)
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        // SAFETY: made by miopenCreateConvolutionDescriptor. A failure has nobody left to go to.
        let _ = unsafe { miopen::miopenDestroyConvolutionDescriptor(self.0) };
    }
}

fn ints<const N: usize>(numbers: [usize; N]) -> Result<[c_int; N], Failure> {
    let mut ints = [0; N];
    for (int, number) in ints.iter_mut().zip(numbers) {
        *int = c_int::try_from(number).map_err(|_| Failure(format!("{number} is too large for MIOpen")))?;
    }
    Ok(ints)
}

type Sized3 = (miopenTensorDescriptor_t, miopenTensorDescriptor_t, miopenTensorDescriptor_t);
type Count = unsafe extern "C" fn(
    miopenHandle_t,
    miopenTensorDescriptor_t,
    miopenTensorDescriptor_t,
    miopenConvolutionDescriptor_t,
    miopenTensorDescriptor_t,
    *mut usize,
) -> u32;
type Get = unsafe extern "C" fn(
    miopenHandle_t,
    miopenTensorDescriptor_t,
    miopenTensorDescriptor_t,
    miopenConvolutionDescriptor_t,
    miopenTensorDescriptor_t,
    usize,
    *mut usize,
    *mut miopenConvSolution_t,
) -> u32;
type Compile = unsafe extern "C" fn(
    miopenHandle_t,
    miopenTensorDescriptor_t,
    miopenTensorDescriptor_t,
    miopenConvolutionDescriptor_t,
    miopenTensorDescriptor_t,
    u64,
) -> u32;
type Immediate = unsafe extern "C" fn(
    miopenHandle_t,
    miopenTensorDescriptor_t,
    *const c_void,
    miopenTensorDescriptor_t,
    *const c_void,
    miopenConvolutionDescriptor_t,
    miopenTensorDescriptor_t,
    *mut c_void,
    *mut c_void,
    usize,
    u64,
) -> u32;

/// The functions of a direction, each with its name.
struct Functions {
    count: (&'static str, Count),
    get: (&'static str, Get),
    compile: (&'static str, Compile),
    immediate: (&'static str, Immediate),
}

macro_rules! functions {
    ($count:ident, $get:ident, $compile:ident, $immediate:ident) => {
        Functions {
            count: (stringify!($count), miopen::$count),
            get: (stringify!($get), miopen::$get),
            compile: (stringify!($compile), miopen::$compile),
            immediate: (stringify!($immediate), miopen::$immediate),
        }
    };
}

static OUTPUT: Functions = functions!(
    miopenConvolutionForwardGetSolutionCount,
    miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardCompileSolution,
    miopenConvolutionForwardImmediate
);
static INPUT: Functions = functions!(
    miopenConvolutionBackwardDataGetSolutionCount,
    miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate
);
static WEIGHTS: Functions = functions!(
    miopenConvolutionBackwardWeightsGetSolutionCount,
    miopenConvolutionBackwardWeightsGetSolution,
    miopenConvolutionBackwardWeightsCompileSolution,
    miopenConvolutionBackwardWeightsImmediate
);

/// A solution that MIOpen offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Solution {
    pub(super) id: u64,
    pub(super) workspace: usize,
}

/// The descriptors of a shape.
pub(super) struct Problem {
    functions: &'static Functions,
    x: Tensor,
    k: Tensor,
    y: Tensor,
    windows: Windows,
    direction: Direction,
}

// SAFETY: descriptors may be used from any thread, one at a time; they are used under the device's mutex.
unsafe impl Send for Problem {}
// SAFETY: as above.
unsafe impl Sync for Problem {}

impl Problem {
    pub(super) fn of(shape: &ConvShape) -> Result<Self, Failure> {
        Ok(Self {
            functions: match shape.direction {
                Direction::Output => &OUTPUT,
                Direction::Input => &INPUT,
                Direction::Weights => &WEIGHTS,
            },
            x: Tensor::dense(shape.dtype, shape.x())?,
            k: Tensor::dense(shape.dtype, shape.k())?,
            y: Tensor::dense(shape.dtype, shape.y())?,
            windows: Windows::of(shape)?,
            direction: shape.direction,
        })
    }

    /// In the order of the functions: first and second operand, result.
    fn descriptors(&self) -> Sized3 {
        match self.direction {
            Direction::Output => (self.k.0, self.x.0, self.y.0),
            Direction::Input => (self.y.0, self.k.0, self.x.0),
            Direction::Weights => (self.y.0, self.x.0, self.k.0),
        }
    }

    /// What MIOpen offers, best first, but for its last resorts.
    pub(super) fn solutions(&self, handle: &Handle) -> Result<Vec<Solution>, Failure> {
        let (first, second, result) = self.descriptors();
        let (name, count) = self.functions.count;
        let mut offered = 0;
        // SAFETY: live handle and descriptors, and a place to write to.
        let status = unsafe { count(handle.0, first, second, self.windows.0, result, &mut offered) };
        checked(name, status)?;
        let wanted = offered.min(SOLUTIONS);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let nothing = miopenConvSolution_t { time: 0.0, workspace_size: 0, solution_id: 0, algorithm: 0 };
        let (mut solutions, mut filled) = (vec![nothing; wanted], 0);
        let (name, get) = self.functions.get;
        // SAFETY: as above, with room for as many solutions as are asked for.
        let status = unsafe {
            get(handle.0, first, second, self.windows.0, result, wanted, &mut filled, solutions.as_mut_ptr())
        };
        checked(name, status)?;
        solutions.truncate(filled);
        let serious = solutions.into_iter().filter(|solution| !NAIVE.contains(&solution.solution_id));
        Ok(serious.map(|s| Solution { id: s.solution_id, workspace: s.workspace_size }).collect())
    }

    /// Has MIOpen compile, or load, what the solution needs.
    pub(super) fn compile(&self, handle: &Handle, solution: Solution) -> Result<(), Failure> {
        let (first, second, result) = self.descriptors();
        let (name, compile) = self.functions.compile;
        // SAFETY: live handle and descriptors.
        let status = unsafe { compile(handle.0, first, second, self.windows.0, result, solution.id) };
        checked(name, status)
    }

    /// Enqueues the convolution; `operands` in the order of [`Direction`]'s words.
    ///
    /// # Safety
    /// All memory is live on the handle's device, of the sizes of the shape and of the solution's workspace.
    pub(super) unsafe fn run(
        &self,
        handle: &Handle,
        solution: Solution,
        operands: [DevicePtr; 2],
        result: DevicePtr,
        workspace: DevicePtr,
    ) -> Result<(), Failure> {
        let (first, second, to) = self.descriptors();
        let [a, b] = operands.map(|operand| operand.0.cast_const().cast::<c_void>());
        let (a, b) = match self.direction {
            Direction::Input => (a, b),
            Direction::Output | Direction::Weights => (b, a),
        };
        let (name, immediate) = self.functions.immediate;
        // SAFETY: live handle and descriptors; the memory is the caller's.
        let status = unsafe {
            immediate(
                handle.0,
                first,
                a,
                second,
                b,
                self.windows.0,
                to,
                result.0.cast(),
                workspace.0.cast(),
                solution.workspace,
                solution.id,
            )
        };
        checked(name, status)
    }
}
