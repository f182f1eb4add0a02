//! Wrapper for MIOpen's immediate mode: handle, descriptors, solutions, and the failures of calls.
//!
//! Functions and constants are those of miopen/miopen.h. Each of the three directions has the same set of functions, which
//! take the descriptors in the order (first operand, second operand, convolution, result).
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

/// MIOpen's naive fallbacks with one thread per result: `ConvDirectNaiveConvFwd`, `Bwd` and `Wrw`.
const NAIVE: std::ops::RangeInclusive<u64> = 85..=87;
/// Maximum number of solutions that are considered, best first.
const MAX_SOLUTIONS: usize = 16;
/// The mode `miopenConvolution`: not transposed.
const CONVOLUTION_MODE: u32 = 0;
const SUCCESS: u32 = 0;

fn checked(call: &'static str, status: u32) -> Result<(), Failure> {
    if status == SUCCESS {
        return Ok(());
    }
    // SAFETY: the function accepts any number, and returns a static string.
    let text = unsafe { CStr::from_ptr(miopen::miopenGetErrorString(status)) };
    Err(Failure(format!("{call}: {} ({status}){}", text.to_string_lossy(), notes(None))))
}

/// Returns the `miopenDataType_t` of a dtype that MIOpen's convolutions support.
fn data_type(dtype: DType) -> Option<miopenDataType_t> {
    match dtype {
        DType::F16 => Some(0),
        DType::F32 => Some(1),
        DType::BF16 => Some(5),
        _ => None,
    }
}

/// Returns true if MIOpen has convolutions for this dtype.
pub(crate) fn is_supported(dtype: DType) -> bool {
    data_type(dtype).is_some()
}

pub(super) fn version() -> Result<String, Failure> {
    let [mut major, mut minor, mut patch] = [0; 3];
    // SAFETY: the pointers are valid for writes.
    let status = unsafe { miopen::miopenGetVersion(&mut major, &mut minor, &mut patch) };
    checked("miopenGetVersion", status)?;
    Ok(format!("{major}.{minor}.{patch}"))
}

/// A MIOpen handle, bound to one stream.
pub(super) type Handle = Owned<miopenHandle_t>;
type Tensor = Owned<miopenTensorDescriptor_t>;
type ConvolutionDescriptor = Owned<miopenConvolutionDescriptor_t>;

/// Creates a handle. The stream's device must be the thread's current device, and the stream must outlive the handle.
pub(super) fn open(stream: hipStream_t) -> Result<Handle, Failure> {
    // SAFETY: the pointer is valid for writes, and the stream is valid.
    let create = |to| unsafe { miopen::miopenCreateWithStream(to, stream) };
    // SAFETY: the destroy function matches the create function.
    unsafe { Owned::new("miopenCreateWithStream", create, miopen::miopenDestroy, checked) }
}

/// Makes a handle enqueue on another stream of the same device.
pub(super) fn set_stream(handle: &Handle, stream: hipStream_t) -> Result<(), Failure> {
    // SAFETY: the handle and the stream are valid.
    checked("miopenSetStream", unsafe { miopen::miopenSetStream(handle.raw, stream) })
}

/// Creates the descriptor of a dense tensor.
fn tensor(dtype: DType, dims: [usize; 4]) -> Result<Tensor, Failure> {
    let Some(data_type) = data_type(dtype) else {
        return Err(Failure(format!("MIOpen has no convolutions of {dtype:?}")));
    };
    let strides = [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1];
    let (dims, strides) = (ints(dims)?, ints(strides)?);
    // SAFETY: the pointer is valid for writes.
    let create = |to| unsafe { miopen::miopenCreateTensorDescriptor(to) };
    let destroy = miopen::miopenDestroyTensorDescriptor;
    // SAFETY: the destroy function matches the create function.
    let tensor = unsafe { Owned::new("miopenCreateTensorDescriptor", create, destroy, checked)? };
    // SAFETY: the descriptor is valid, and both pointers cover four numbers.
    let status = unsafe {
        miopen::miopenSetTensorDescriptor(tensor.raw, data_type, 4, dims.as_ptr(), strides.as_ptr())
    };
    checked("miopenSetTensorDescriptor", status)?;
    Ok(tensor)
}

/// Creates the descriptor of a convolution.
fn convolution_descriptor(shape: &ConvShape) -> Result<ConvolutionDescriptor, Failure> {
    let (h, w) = (shape.h, shape.w);
    let [pads, strides, dilations] =
        [ints([h.padding, w.padding])?, ints([h.stride, w.stride])?, ints([h.dilation, w.dilation])?];
    let [groups] = ints([shape.groups])?;
    // SAFETY: the pointer is valid for writes.
    let create = |to| unsafe { miopen::miopenCreateConvolutionDescriptor(to) };
    let destroy = miopen::miopenDestroyConvolutionDescriptor;
    // SAFETY: the destroy function matches the create function.
    let descriptor = unsafe { Owned::new("miopenCreateConvolutionDescriptor", create, destroy, checked)? };
    let (pads, strides, dilations) = (pads.as_ptr(), strides.as_ptr(), dilations.as_ptr());
    let (raw, mode) = (descriptor.raw, CONVOLUTION_MODE);
    // SAFETY: the descriptor is valid, and each pointer covers two numbers.
    let status = unsafe { miopen::miopenInitConvolutionNdDescriptor(raw, 2, pads, strides, dilations, mode) };
    checked("miopenInitConvolutionNdDescriptor", status)?;
    // SAFETY: the descriptor is valid.
    let status = unsafe { miopen::miopenSetConvolutionGroupCount(raw, groups) };
    checked("miopenSetConvolutionGroupCount", status)?;
    Ok(descriptor)
}

fn ints<const N: usize>(numbers: [usize; N]) -> Result<[c_int; N], Failure> {
    let mut ints = [0; N];
    for (int, number) in ints.iter_mut().zip(numbers) {
        *int = c_int::try_from(number).map_err(|_| Failure(format!("{number} is too large for MIOpen")))?;
    }
    Ok(ints)
}

type Descriptors = (miopenTensorDescriptor_t, miopenTensorDescriptor_t, miopenTensorDescriptor_t);

/// Calls the function for a direction, and returns its name and status.
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

pub(super) struct Problem {
    x: Tensor,
    k: Tensor,
    y: Tensor,
    conv: ConvolutionDescriptor,
    direction: Direction,
}

impl Problem {
    pub(super) fn of(shape: &ConvShape) -> Result<Self, Failure> {
        Ok(Self {
            x: tensor(shape.dtype, shape.x())?,
            k: tensor(shape.dtype, shape.k())?,
            y: tensor(shape.dtype, shape.y())?,
            conv: convolution_descriptor(shape)?,
            direction: shape.direction,
        })
    }

    /// Returns the descriptors in the order of MIOpen's functions: first operand, second operand, result.
    fn descriptors(&self) -> Descriptors {
        match self.direction {
            Direction::Output => (self.k.raw, self.x.raw, self.y.raw),
            Direction::Input => (self.y.raw, self.k.raw, self.x.raw),
            Direction::Weights => (self.y.raw, self.x.raw, self.k.raw),
        }
    }

    /// Returns MIOpen's solutions, best first, without the naive fallbacks.
    pub(super) fn solutions(&self, handle: &Handle) -> Result<Vec<Solution>, Failure> {
        let (first, second, result) = self.descriptors();
        let mut offered = 0;
        // SAFETY: handle and descriptors are valid, and the pointer is valid for writes.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardGetSolutionCount,
                miopenConvolutionBackwardDataGetSolutionCount,
                miopenConvolutionBackwardWeightsGetSolutionCount(
                    handle.raw,
                    first,
                    second,
                    self.conv.raw,
                    result,
                    &mut offered
                )
            )
        };
        checked(name, status)?;
        let wanted = offered.min(MAX_SOLUTIONS);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let empty = miopenConvSolution_t { time: 0.0, workspace_size: 0, solution_id: 0, algorithm: 0 };
        let (mut solutions, mut filled) = (vec![empty; wanted], 0);
        // SAFETY: as above, with space for the requested number of solutions.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardGetSolution,
                miopenConvolutionBackwardDataGetSolution,
                miopenConvolutionBackwardWeightsGetSolution(
                    handle.raw,
                    first,
                    second,
                    self.conv.raw,
                    result,
                    wanted,
                    &mut filled,
                    solutions.as_mut_ptr()
                )
            )
        };
        checked(name, status)?;
        solutions.truncate(filled);
        let solutions = solutions.into_iter().filter(|solution| !NAIVE.contains(&solution.solution_id));
        Ok(solutions.map(|s| Solution { id: s.solution_id, workspace: s.workspace_size }).collect())
    }

    /// Makes MIOpen compile or load the kernels of a solution.
    pub(super) fn compile(&self, handle: &Handle, solution: Solution) -> Result<(), Failure> {
        let (first, second, result) = self.descriptors();
        // SAFETY: handle and descriptors are valid.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardCompileSolution,
                miopenConvolutionBackwardDataCompileSolution,
                miopenConvolutionBackwardWeightsCompileSolution(
                    handle.raw,
                    first,
                    second,
                    self.conv.raw,
                    result,
                    solution.id
                )
            )
        };
        checked(name, status)
    }

    /// Enqueues the convolution. `operands` are in the order given by the variants of [`Direction`].
    ///
    /// # Safety
    /// All pointers must be valid on the handle's device for the sizes of the shape and for the solution's workspace.
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
        let (conv, Solution { id, workspace: bytes }) = (self.conv.raw, solution);
        let (result, workspace) = (result.0.cast(), workspace.0.cast());
        // SAFETY: handle and descriptors are valid, and the caller guarantees the memory.
        let (name, status) = unsafe {
            call!(
                self.direction,
                miopenConvolutionForwardImmediate,
                miopenConvolutionBackwardDataImmediate,
                miopenConvolutionBackwardWeightsImmediate(
                    handle.raw, first, a, second, b, conv, to, result, workspace, bytes, id
                )
            )
        };
        checked(name, status)
    }
}
