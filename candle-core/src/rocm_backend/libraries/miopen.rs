//! MIOpen's immediate mode: its handle, descriptors and solutions, each call's failure with what it says.
//!
//! The functions and their numbers are those of miopen/miopen.h. The three directions have the same five functions, whose
//! descriptors stand in the order (first operand, second operand, convolution, result).
use super::convolution_shape::{ConvShape, Direction};
use super::owned::{Failure, Owned};
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

/// Returns true if MIOpen has convolutions of these elements.
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
pub(super) type Handle = Owned<miopenHandle_t>;
type Tensor = Owned<miopenTensorDescriptor_t>;
type Windows = Owned<miopenConvolutionDescriptor_t>;

/// Makes a handle. The stream's device is the thread's current one, and the stream outlives the handle.
pub(super) fn open(stream: hipStream_t) -> Result<Handle, Failure> {
    // SAFETY: a place to write to, and a live stream.
    let create = |to| unsafe { miopen::miopenCreateWithStream(to, stream) };
    // SAFETY: the two belong together.
    unsafe { Owned::new("miopenCreateWithStream", create, miopen::miopenDestroy, checked) }
}

/// The descriptor of a dense tensor.
fn tensor(dtype: DType, dims: [usize; 4]) -> Result<Tensor, Failure> {
    let Some(data_type) = data_type(dtype) else {
        return Err(Failure(format!("MIOpen has no convolutions of {dtype:?}")));
    };
    let strides = [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1];
    let (dims, strides) = (ints(dims)?, ints(strides)?);
    // SAFETY: a place to write to.
    let create = |to| unsafe { miopen::miopenCreateTensorDescriptor(to) };
    let destroy = miopen::miopenDestroyTensorDescriptor;
    // SAFETY: the two belong together.
    let tensor = unsafe { Owned::new("miopenCreateTensorDescriptor", create, destroy, checked)? };
    // SAFETY: a live descriptor, and four numbers behind either pointer.
    let status = unsafe {
        miopen::miopenSetTensorDescriptor(tensor.raw, data_type, 4, dims.as_ptr(), strides.as_ptr())
    };
    checked("miopenSetTensorDescriptor", status)?;
    Ok(tensor)
}

/// The descriptor of a convolution.
fn windows(shape: &ConvShape) -> Result<Windows, Failure> {
    let (h, w) = (shape.h, shape.w);
    let [pads, strides, dilations] =
        [ints([h.padding, w.padding])?, ints([h.stride, w.stride])?, ints([h.dilation, w.dilation])?];
    let [groups] = ints([shape.groups])?;
    // SAFETY: a place to write to.
    let create = |to| unsafe { miopen::miopenCreateConvolutionDescriptor(to) };
    let destroy = miopen::miopenDestroyConvolutionDescriptor;
    // SAFETY: the two belong together.
    let windows = unsafe { Owned::new("miopenCreateConvolutionDescriptor", create, destroy, checked)? };
    let (pads, strides, dilations) = (pads.as_ptr(), strides.as_ptr(), dilations.as_ptr());
    // SAFETY: a live descriptor, and two numbers behind each pointer.
    let status =
        unsafe { miopen::miopenInitConvolutionNdDescriptor(windows.raw, 2, pads, strides, dilations, PLAIN) };
    checked("miopenInitConvolutionNdDescriptor", status)?;
    // SAFETY: a live descriptor.
    let status = unsafe { miopen::miopenSetConvolutionGroupCount(windows.raw, groups) };
    checked("miopenSetConvolutionGroupCount", status)?;
    Ok(windows)
}

fn ints<const N: usize>(numbers: [usize; N]) -> Result<[c_int; N], Failure> {
    let mut ints = [0; N];
    for (int, number) in ints.iter_mut().zip(numbers) {
        *int = c_int::try_from(number).map_err(|_| Failure(format!("{number} is too large for MIOpen")))?;
    }
    Ok(ints)
}

type Descriptors = (miopenTensorDescriptor_t, miopenTensorDescriptor_t, miopenTensorDescriptor_t);

/// Calls the function of a direction, and returns its name and status.
macro_rules! call {
    ($direction:expr, $output:ident, $input:ident, $weights:ident $arguments:tt) => {
        match $direction {
            Direction::Output => (stringify!($output), miopen::$output $arguments),
            Direction::Input => (stringify!($input), miopen::$input $arguments),
            Direction::Weights => (stringify!($weights), miopen::$weights $arguments),
        }
    };
}

/// A solution that MIOpen offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Solution {
    pub(super) id: u64,
    pub(super) workspace: usize,
}

/// The descriptors of a shape.
pub(super) struct Problem {
    x: Tensor,
    k: Tensor,
    y: Tensor,
    windows: Windows,
    direction: Direction,
}

impl Problem {
    pub(super) fn of(shape: &ConvShape) -> Result<Self, Failure> {
        Ok(Self {
            x: tensor(shape.dtype, shape.x())?,
            k: tensor(shape.dtype, shape.k())?,
            y: tensor(shape.dtype, shape.y())?,
            windows: windows(shape)?,
            direction: shape.direction,
        })
    }

    /// In the order of the functions: first and second operand, result.
    fn descriptors(&self) -> Descriptors {
        match self.direction {
            Direction::Output => (self.k.raw, self.x.raw, self.y.raw),
            Direction::Input => (self.y.raw, self.k.raw, self.x.raw),
            Direction::Weights => (self.y.raw, self.x.raw, self.k.raw),
        }
    }

    /// Solutions that MIOpen offers, best first, except for its last resorts.
    pub(super) fn solutions(&self, handle: &Handle) -> Result<Vec<Solution>, Failure> {
        let (first, second, result) = self.descriptors();
        let mut offered = 0;
        // SAFETY: live handle and descriptors, and a place to write to.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardGetSolutionCount,
                miopenConvolutionBackwardDataGetSolutionCount,
                miopenConvolutionBackwardWeightsGetSolutionCount(
                    handle.raw,
                    first,
                    second,
                    self.windows.raw,
                    result,
                    &mut offered
                )
            )
        };
        checked(name, status)?;
        let wanted = offered.min(SOLUTIONS);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let nothing = miopenConvSolution_t { time: 0.0, workspace_size: 0, solution_id: 0, algorithm: 0 };
        let (mut solutions, mut filled) = (vec![nothing; wanted], 0);
        // SAFETY: as above, with room for as many solutions as are asked for.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardGetSolution,
                miopenConvolutionBackwardDataGetSolution,
                miopenConvolutionBackwardWeightsGetSolution(
                    handle.raw,
                    first,
                    second,
                    self.windows.raw,
                    result,
                    wanted,
                    &mut filled,
                    solutions.as_mut_ptr()
                )
            )
        };
        checked(name, status)?;
        solutions.truncate(filled);
        let serious = solutions.into_iter().filter(|solution| !NAIVE.contains(&solution.solution_id));
        Ok(serious.map(|s| Solution { id: s.solution_id, workspace: s.workspace_size }).collect())
    }

    /// Has MIOpen compile, or load, what the solution needs.
    pub(super) fn compile(&self, handle: &Handle, solution: Solution) -> Result<(), Failure> {
        let (first, second, result) = self.descriptors();
        // SAFETY: live handle and descriptors.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardCompileSolution,
                miopenConvolutionBackwardDataCompileSolution,
                miopenConvolutionBackwardWeightsCompileSolution(
                    handle.raw,
                    first,
                    second,
                    self.windows.raw,
                    result,
                    solution.id
                )
            )
        };
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
        let (windows, Solution { id, workspace: bytes }) = (self.windows.raw, solution);
        let (result, workspace) = (result.0.cast(), workspace.0.cast());
        // SAFETY: live handle and descriptors; the memory is the caller's.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardImmediate,
                miopenConvolutionBackwardDataImmediate,
                miopenConvolutionBackwardWeightsImmediate(
                    handle.raw, first, a, second, b, windows, to, result, workspace, bytes, id
                )
            )
        };
        checked(name, status)
    }
}
