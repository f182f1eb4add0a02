//! The C functions of convolutions in immediate mode with MIOpen 3's prototypes, five for each direction.
use super::compute::{self, Job};
use super::descriptor::{CONVOLUTIONS, TENSORS};
use super::functions::answer;
use super::handle;
use super::problem::{Direction, Problem};
use super::solution::{self, ConvSolution};
use super::status::{Outcome, Status, bad_parm, internal, reject};
use crate::c_functions::{c_functions, put};
use crate::runtime::runtime;
use std::ffi::c_void;

/// The descriptors of a call, with the tensors in the order of the function's arguments.
struct Descriptors {
    handle: *mut c_void,
    tensors: [*mut c_void; 3],
    convolution: *mut c_void,
}

impl Descriptors {
    /// Returns the convolution that the descriptors define.
    fn problem(&self, direction: Direction) -> Outcome<Problem> {
        handle::get(self.handle)?;
        let mut tensors = [None, None, None];
        for (place, descriptor) in direction.arguments().into_iter().zip(self.tensors) {
            tensors[place] = Some(TENSORS.get(descriptor)?);
        }
        let convolution = CONVOLUTIONS.get(self.convolution)?;
        match tensors {
            [Some(input), Some(weights), Some(output)] => {
                Problem::new(direction, convolution, [input, weights, output])
            }
            _ => reject(Status::InternalError, "a direction does not take three tensors"),
        }
    }
}

/// Device addresses of a call, with the tensors in the order of the function's arguments.
struct Addresses {
    tensors: [*const c_void; 3],
    workspace: *mut c_void,
    workspace_size: usize,
}

/// Checks a convolution, compiles its solution if necessary, and enqueues it on the handle's stream.
fn submit(
    function: &'static str,
    direction: Direction,
    descriptors: &Descriptors,
    at: &Addresses,
    id: u64,
) -> Outcome {
    let problem = descriptors.problem(direction)?;
    let solution = solution::find(&problem, id)?;
    let handle = handle::get(descriptors.handle)?;
    if at.tensors.iter().any(|tensor| tensor.is_null()) {
        return bad_parm("a null pointer for a tensor");
    }
    let wanted = solution.workspace_size;
    if wanted > 0 && (at.workspace.is_null() || at.workspace_size < wanted) {
        // A null workspace has no bytes, whatever size is passed.
        let given = if at.workspace.is_null() { 0 } else { at.workspace_size };
        let why = format!("solution {id} needs a workspace of {wanted} bytes, but {given} were passed");
        return reject(Status::UnknownError, why);
    }
    handle.compile(&problem, id)?;
    let mut addresses = [0; 3];
    for (place, tensor) in direction.arguments().into_iter().zip(at.tensors) {
        addresses[place] = tensor.expose_provenance();
    }
    let workspace = at.workspace.expose_provenance();
    let job = Job { function, problem, addresses, workspace, workspace_size: wanted };
    let stream = handle.stream()?;
    // SAFETY: the stream keeps live memory mapped while its work runs, and the runtime holds no references into it.
    let work = move |memory: &_, threads| unsafe { compute::run(&job, memory, threads) };
    runtime().and_then(|runtime| runtime.submit_host_work(&stream, work)).map_err(internal)
}

/// Defines the functions of a direction. `one`, `other` and `result` are the tensors in the order of the arguments.
macro_rules! direction {
    ($direction:expr, $what:literal, $count:ident, $solutions:ident, $workspace:ident, $compile:ident, $run:ident) => {
        c_functions! {
            #[doc = concat!("Writes the number of solutions for ", $what, ".")]
            fn $count(
                handle: *mut c_void,
                one: *mut c_void,
                other: *mut c_void,
                convDesc: *mut c_void,
                result: *mut c_void,
                solutionCount: *mut usize,
            ) -> solutionCount {
                let descriptors = Descriptors { handle, tensors: [one, other, result], convolution: convDesc };
                solution::available(&descriptors.problem($direction)?).len()
            }

            #[doc = concat!("Writes the solutions for ", $what, ", fastest first, up to the size of the caller's array.")]
            fn $solutions(
                handle: *mut c_void,
                one: *mut c_void,
                other: *mut c_void,
                convDesc: *mut c_void,
                result: *mut c_void,
                maxSolutionCount: usize,
                solutionCount: *mut usize,
                solutions: *mut ConvSolution,
            ) {
                let descriptors = Descriptors { handle, tensors: [one, other, result], convolution: convDesc };
                let mut found = solution::available(&descriptors.problem($direction)?);
                if solutions.is_null() {
                    return bad_parm("a null pointer for solutions");
                }
                found.truncate(maxSolutionCount);
                // SAFETY: the caller guarantees an array of `maxSolutionCount` solutions, and the count.
                unsafe {
                    put(solutionCount, found.len())?;
                    std::ptr::copy_nonoverlapping(found.as_ptr(), solutions, found.len());
                }
                Ok(())
            }

            #[doc = concat!("Writes the bytes of workspace that a solution for ", $what, " needs.")]
            fn $workspace(
                handle: *mut c_void,
                one: *mut c_void,
                other: *mut c_void,
                convDesc: *mut c_void,
                result: *mut c_void,
                solution_id: u64,
                workSpaceSize: *mut usize,
            ) -> workSpaceSize {
                let descriptors = Descriptors { handle, tensors: [one, other, result], convolution: convDesc };
                solution::find(&descriptors.problem($direction)?, solution_id)?.workspace_size
            }

            #[doc = concat!("Compiles a solution for ", $what, ", so that its first use need not.")]
            fn $compile(
                handle: *mut c_void,
                one: *mut c_void,
                other: *mut c_void,
                convDesc: *mut c_void,
                result: *mut c_void,
                solution_id: u64,
            ) {
                let descriptors = Descriptors { handle, tensors: [one, other, result], convolution: convDesc };
                let problem = descriptors.problem($direction)?;
                solution::find(&problem, solution_id)?;
                handle::get(handle)?.compile(&problem, solution_id)
            }

            #[doc = concat!("Computes ", $what, " with a solution.")]
            fn $run(
                handle: *mut c_void,
                one: *mut c_void,
                oneData: *const c_void,
                other: *mut c_void,
                otherData: *const c_void,
                convDesc: *mut c_void,
                result: *mut c_void,
                resultData: *mut c_void,
                workSpace: *mut c_void,
                workSpaceSize: usize,
                solution_id: u64,
            ) {
                let descriptors = Descriptors { handle, tensors: [one, other, result], convolution: convDesc };
                let at = Addresses {
                    tensors: [oneData, otherData, resultData.cast_const()],
                    workspace: workSpace,
                    workspace_size: workSpaceSize,
                };
                submit(stringify!($run), $direction, &descriptors, &at, solution_id)
            }
        }
    };
}

direction!(
    Direction::Forward,
    "y from w and x",
    miopenConvolutionForwardGetSolutionCount,
    miopenConvolutionForwardGetSolution,
    miopenConvolutionForwardGetSolutionWorkspaceSize,
    miopenConvolutionForwardCompileSolution,
    miopenConvolutionForwardImmediate
);
direction!(
    Direction::BackwardData,
    "dx from dy and w",
    miopenConvolutionBackwardDataGetSolutionCount,
    miopenConvolutionBackwardDataGetSolution,
    miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
    miopenConvolutionBackwardDataCompileSolution,
    miopenConvolutionBackwardDataImmediate
);
direction!(
    Direction::BackwardWeights,
    "dw from dy and x",
    miopenConvolutionBackwardWeightsGetSolutionCount,
    miopenConvolutionBackwardWeightsGetSolution,
    miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
    miopenConvolutionBackwardWeightsCompileSolution,
    miopenConvolutionBackwardWeightsImmediate
);
