//! Convolutions in MIOpen's immediate mode. The solutions are cuDNN's algorithms, in the order of cuDNN's heuristics;
//! nothing is timed.
//!
//! They have MIOpen's precision: f32 is never computed as TF32, and narrow floats are summed in f32.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_int, c_uint, c_void};

use rocm_rs::miopen::ffi::{
    miopenConvSolution_t, miopenConvolutionDescriptor_t, miopenHandle_t, miopenStatus_t,
    miopenTensorDescriptor_t,
};

use super::cudnn::{
    Cudnn, DataType, FMA_MATH, MATH_TYPES, Math, Object, Run, Suggest, Suggestion, TENSOR_OP_MATH, Workspace,
    bad_param, to_status, with_cudnn, write_to,
};
use super::geometry::Convolution;
use super::tensor::{DOUBLE, FLOAT, Tensor};

/// Maximum number of suggestions: more than any direction's algorithms, each with and without tensor cores.
const MAX_SUGGESTIONS: usize = 24;

/// Tag in a solution's identifier, above the algorithm and the math type: "cudnn".
const SOLUTION_TAG: u64 = 0x63_7564_6e6e << 16;

/// MIOpen's families of algorithms.
const GEMM: u32 = 0;
const DIRECT: u32 = 1;
const FFT: u32 = 2;
const WINOGRAD: u32 = 3;
const IMPLICIT_GEMM: u32 = 5;

/// A direction of the convolution. Operands are in MIOpen's order, the result last; cuDNN swaps the first two.
struct Direction {
    /// Positions of the forward convolution's input, weights and output among the operands.
    x: usize,
    weights: usize,
    y: usize,
    /// MIOpen's family of each of cuDNN's algorithms.
    families: &'static [u32],
    suggest: (&'static str, fn(&Cudnn) -> Suggest),
    workspace: (&'static str, fn(&Cudnn) -> Workspace),
    run: (&'static str, fn(&Cudnn) -> Run),
}

static FORWARD: Direction = Direction {
    weights: 0,
    x: 1,
    y: 2,
    families: &[IMPLICIT_GEMM, IMPLICIT_GEMM, GEMM, DIRECT, FFT, FFT, WINOGRAD, WINOGRAD],
    suggest: ("cudnnGetConvolutionForwardAlgorithm_v7", |cudnn| cudnn.suggest_forward),
    workspace: ("cudnnGetConvolutionForwardWorkspaceSize", |cudnn| cudnn.workspace_forward),
    run: ("cudnnConvolutionForward", |cudnn| cudnn.run_forward),
};

static BACKWARD_DATA: Direction = Direction {
    y: 0,
    weights: 1,
    x: 2,
    families: &[IMPLICIT_GEMM, IMPLICIT_GEMM, FFT, FFT, WINOGRAD, WINOGRAD],
    suggest: ("cudnnGetConvolutionBackwardDataAlgorithm_v7", |cudnn| cudnn.suggest_data),
    workspace: ("cudnnGetConvolutionBackwardDataWorkspaceSize", |cudnn| cudnn.workspace_data),
    run: ("cudnnConvolutionBackwardData", |cudnn| cudnn.run_data),
};

static BACKWARD_WEIGHTS: Direction = Direction {
    y: 0,
    x: 1,
    weights: 2,
    families: &[IMPLICIT_GEMM, IMPLICIT_GEMM, FFT, IMPLICIT_GEMM, WINOGRAD, WINOGRAD, FFT],
    suggest: ("cudnnGetConvolutionBackwardFilterAlgorithm_v7", |cudnn| cudnn.suggest_weights),
    workspace: ("cudnnGetConvolutionBackwardFilterWorkspaceSize", |cudnn| cudnn.workspace_weights),
    run: ("cudnnConvolutionBackwardFilter", |cudnn| cudnn.run_weights),
};

/// Returns the math type with which cuDNN's heuristics are queried.
fn default_math(data_type: DataType) -> Math {
    match data_type {
        FLOAT => FMA_MATH,
        DOUBLE => 0,
        _ => TENSOR_OP_MATH,
    }
}

/// Returns the math type with which a suggested algorithm is run; `None` if it is less precise than the data type.
fn exact_math(data_type: DataType, suggested: Math) -> Option<Math> {
    match data_type {
        FLOAT => matches!(suggested, 0 | FMA_MATH).then_some(FMA_MATH),
        DOUBLE => Some(0),
        _ => (suggested < MATH_TYPES).then_some(suggested),
    }
}

/// Returns the identifier of a solution.
fn id_of(algorithm: c_uint, math: Math) -> u64 {
    SOLUTION_TAG | u64::from(algorithm) << 4 | u64::from(math)
}

/// A validated convolution of given tensors, with cuDNN's descriptors.
struct Problem<'a> {
    direction: &'static Direction,
    handle: miopenHandle_t,
    data_type: DataType,
    /// Descriptors in cuDNN's order.
    operands: [Object; 3],
    convolution: &'a Convolution,
}

impl Problem<'_> {
    /// # Safety
    /// The descriptors are null or valid, and are neither destroyed nor set while this value lives.
    unsafe fn of(
        direction: &'static Direction,
        handle: miopenHandle_t,
        operands: [miopenTensorDescriptor_t; 3],
        convolution: miopenConvolutionDescriptor_t,
    ) -> Result<Self, miopenStatus_t> {
        if handle.is_null() {
            return Err(bad_param("the handle is null"));
        }
        // SAFETY: the caller's descriptors.
        let (tensors, convolution) = unsafe {
            let [first, second, result] = operands;
            let tensors = [Tensor::at(first)?, Tensor::at(second)?, Tensor::at(result)?];
            (tensors, Convolution::at(convolution)?)
        };
        let shapes = [tensors[0].shape()?, tensors[1].shape()?, tensors[2].shape()?];
        let data_type = shapes[0].data_type;
        if shapes.iter().any(|shape| shape.data_type != data_type) {
            return Err(bad_param("the tensors of a convolution have different types"));
        }
        let y = shapes[direction.y].sizes();
        let expected = convolution.result(shapes[direction.x], shapes[direction.weights])?;
        let expected = &expected[..shapes[direction.x].sizes().len()];
        if y != expected {
            return Err(bad_param(format!(
                "the convolution's output is {expected:?}, but its descriptor has {y:?}"
            )));
        }
        let object = |at: usize| match at == direction.weights {
            true => tensors[at].as_filter(),
            false => tensors[at].as_tensor(),
        };
        let operands = [object(1)?, object(0)?, object(2)?];
        Ok(Problem { direction, handle, data_type, operands, convolution })
    }

    /// Returns the sufficiently precise suggestions of cuDNN's heuristics, best first.
    fn suggestions(&self) -> Result<Vec<Suggestion>, miopenStatus_t> {
        let (call, function) = self.direction.suggest;
        let convolution = self.convolution.object(self.data_type, default_math(self.data_type))?;
        let [first, second, result] = self.operands;
        let (mut found, mut count) = ([Suggestion::default(); MAX_SUGGESTIONS], 0);
        // SAFETY: the borrowed descriptors keep cuDNN's alive; the array holds as many results as requested.
        with_cudnn(call, |cudnn| unsafe {
            let (most, to) = (MAX_SUGGESTIONS as c_int, found.as_mut_ptr());
            function(cudnn)(self.handle, first, second, convolution, result, most, &mut count, to)
        })?;
        let count = usize::try_from(count).unwrap_or(0).min(MAX_SUGGESTIONS);
        let usable = found[..count].iter().filter(|suggestion| {
            suggestion.status == 0 && (suggestion.algorithm as usize) < self.direction.families.len()
        });
        Ok(usable
            .filter_map(|found| Some(Suggestion { math: exact_math(self.data_type, found.math)?, ..*found }))
            .collect())
    }

    /// Returns the algorithm and the convolution's descriptor of a solution.
    fn solution(&self, id: u64) -> Result<(c_uint, Object), miopenStatus_t> {
        let (algorithm, math) = ((id >> 4) as u8, (id & 15) as Math);
        let is_ours = id == id_of(algorithm.into(), math)
            && usize::from(algorithm) < self.direction.families.len()
            && exact_math(self.data_type, math) == Some(math);
        if !is_ours {
            return Err(bad_param(format!("{id:#x} is not a solution of this convolution")));
        }
        Ok((algorithm.into(), self.convolution.object(self.data_type, math)?))
    }

    fn workspace(&self, id: u64) -> Result<usize, miopenStatus_t> {
        let (algorithm, convolution) = self.solution(id)?;
        let (call, function) = self.direction.workspace;
        let [first, second, result] = self.operands;
        let mut size = 0;
        // SAFETY: the borrowed descriptors keep cuDNN's alive; the size is written to a live variable.
        with_cudnn(call, |cudnn| unsafe {
            function(cudnn)(self.handle, first, second, convolution, result, algorithm, &mut size)
        })?;
        Ok(size)
    }

    /// # Safety
    /// The addresses, in MIOpen's order, belong to tensors that match the descriptors, and to a workspace of `size` bytes.
    #[rustfmt::skip]
    unsafe fn run(
        &self,
        [first, second]: [*const c_void; 2],
        result: *mut c_void,
        (workspace, size): (*mut c_void, usize),
        id: u64,
    ) -> Result<(), miopenStatus_t> {
        if first.is_null() || second.is_null() || result.is_null() {
            return Err(bad_param("a tensor's address is null"));
        }
        let (algorithm, convolution) = self.solution(id)?;
        let (call, function) = self.direction.run;
        let (narrow, wide) = ([1f32, 0.0], [1f64, 0.0]);
        let [alpha, beta]: [*const c_void; 2] = match self.data_type == DOUBLE {
            true => [(&raw const wide[0]).cast(), (&raw const wide[1]).cast()],
            false => [(&raw const narrow[0]).cast(), (&raw const narrow[1]).cast()],
        };
        let [a, b, c] = self.operands;
        // SAFETY: the caller's tensors, live descriptors, and factors of the right type.
        with_cudnn(call, |cudnn| unsafe {
            function(cudnn)(
                self.handle, alpha, a, second, b, first, convolution, algorithm, workspace, size, beta, c, result,
            )
        })
    }
}

/// Writes solutions to the caller's array.
///
/// # Safety
/// `count` is null or valid, and `to` is null or valid for `most` solutions.
unsafe fn write_solutions(
    problem: &Problem,
    most: usize,
    count: *mut usize,
    to: *mut miopenConvSolution_t,
) -> Result<(), miopenStatus_t> {
    if to.is_null() && most > 0 {
        return Err(bad_param("the list of solutions is null"));
    }
    let found = problem.suggestions()?;
    let written = found.len().min(most);
    for (rank, suggestion) in found[..written].iter().enumerate() {
        let solution = miopenConvSolution_t {
            // cuDNN ranks algorithms without a time estimate: the rank replaces the milliseconds.
            time: (rank + 1) as f32,
            workspace_size: suggestion.memory,
            solution_id: id_of(suggestion.algorithm, suggestion.math),
            algorithm: problem.direction.families[suggestion.algorithm as usize],
        };
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { to.add(rank).write(solution) };
    }
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { write_to(count, written) }
}

/// Defines functions of a direction from the parameters that follow the descriptors and an expression on the problem.
macro_rules! problem_functions {
    ($direction:ident $($name:ident($($parameter:ident: $type:ty),*) |$problem:ident| $body:expr;)*) => { $(
        pub(crate) unsafe extern "C" fn $name(
            handle: miopenHandle_t, first: miopenTensorDescriptor_t, second: miopenTensorDescriptor_t,
            convolution: miopenConvolutionDescriptor_t, result: miopenTensorDescriptor_t, $($parameter: $type),*
        ) -> miopenStatus_t {
            // SAFETY: the caller's descriptors and pointers.
            to_status(unsafe {
                Problem::of(&$direction, handle, [first, second, result], convolution).and_then(|$problem| $body)
            })
        }
    )* };
}

/// Defines MIOpen's functions of a direction. Compiling a solution only creates its descriptors: cuDNN has its kernels.
macro_rules! direction {
    ($direction:ident: $count:ident $solutions:ident $workspace:ident $compile:ident $immediate:ident) => {
        problem_functions! { $direction
            $count(count: *mut usize) |problem| write_to(count, problem.suggestions()?.len());
            $solutions(most: usize, count: *mut usize, solutions: *mut miopenConvSolution_t)
                |problem| write_solutions(&problem, most, count, solutions);
            $workspace(solution: u64, size: *mut usize) |problem| write_to(size, problem.workspace(solution)?);
            $compile(solution: u64) |problem| problem.solution(solution).map(|_| ());
        }

        #[rustfmt::skip]
        pub(crate) unsafe extern "C" fn $immediate(
            handle: miopenHandle_t, first: miopenTensorDescriptor_t, first_data: *const c_void,
            second: miopenTensorDescriptor_t, second_data: *const c_void, convolution: miopenConvolutionDescriptor_t,
            result: miopenTensorDescriptor_t, result_data: *mut c_void, workspace: *mut c_void, size: usize,
            solution: u64,
        ) -> miopenStatus_t {
            // SAFETY: the caller's descriptors and addresses.
            to_status(unsafe {
                Problem::of(&$direction, handle, [first, second, result], convolution).and_then(|problem| {
                    problem.run([first_data, second_data], result_data, (workspace, size), solution)
                })
            })
        }
    };
}

direction!(FORWARD: miopenConvolutionForwardGetSolutionCount miopenConvolutionForwardGetSolution
    miopenConvolutionForwardGetSolutionWorkspaceSize miopenConvolutionForwardCompileSolution
    miopenConvolutionForwardImmediate);
direction!(BACKWARD_DATA: miopenConvolutionBackwardDataGetSolutionCount miopenConvolutionBackwardDataGetSolution
    miopenConvolutionBackwardDataGetSolutionWorkspaceSize miopenConvolutionBackwardDataCompileSolution
    miopenConvolutionBackwardDataImmediate);
direction!(BACKWARD_WEIGHTS: miopenConvolutionBackwardWeightsGetSolutionCount
    miopenConvolutionBackwardWeightsGetSolution miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize
    miopenConvolutionBackwardWeightsCompileSolution miopenConvolutionBackwardWeightsImmediate);
