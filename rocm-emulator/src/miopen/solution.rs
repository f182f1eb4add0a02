//! The list of solutions, the problems that they support, and their estimated times.
use super::descriptor::DataType;
use super::problem::{Direction, INPUT, OUTPUT, Problem, WEIGHTS};
use super::status::{Outcome, bad_parm};
use crate::runtime::{Miopen, runtime};

/// `miopenConvSolution_t`.
#[allow(missing_docs, reason = "MIOpen's names")]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct ConvSolution {
    /// Estimated time in milliseconds.
    pub time: f32,
    pub workspace_size: usize,
    pub solution_id: u64,
    /// `miopenConvAlgorithm_t`.
    pub algorithm: u32,
}

/// Method of a solution, which determines its conditions, workspace and estimated time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Matrix products of 16-bit tensors without a workspace.
    ImplicitGemm,
    /// Copies of all windows of an image in the workspace (im2col), then a matrix product.
    Gemm,
    /// Specialized for groups.
    Grouped,
    /// One thread for each result; supports every problem.
    Naive,
}

impl Method {
    /// `miopenConvAlgorithm_t`.
    fn algorithm(self) -> u32 {
        match self {
            Self::Gemm => 0,
            Self::Grouped | Self::Naive => 1,
            Self::ImplicitGemm => 5,
        }
    }

    /// Returns the number of multiplications per millisecond for the estimate.
    fn rate(self) -> f64 {
        match self {
            Self::ImplicitGemm => 2e10,
            Self::Gemm => 5e9,
            Self::Grouped => 1e9,
            Self::Naive => 1e7,
        }
    }

    fn suits(self, problem: &Problem) -> bool {
        let packed = problem.layouts.iter().all(|layout| layout.is_packed());
        let groups = problem.convolution.groups;
        let [filters, channels, ..] = problem.layouts[WEIGHTS].dims;
        let narrow = matches!(problem.kind, DataType::F16 | DataType::Bf16);
        match self {
            Self::ImplicitGemm => packed && groups == 1 && narrow && channels % 8 == 0 && filters % 8 == 0,
            Self::Gemm => packed && groups == 1,
            Self::Grouped => packed && groups > 1,
            Self::Naive => true,
        }
    }

    /// Returns the workspace size in bytes.
    fn workspace(self, problem: &Problem) -> usize {
        if self != Self::Gemm {
            return 0;
        }
        let windows = problem.layouts[OUTPUT].dims[2..].iter();
        let window = problem.layouts[WEIGHTS].dims[2..].iter();
        let elements = problem.layouts[INPUT].dims[1];
        let elements = windows.chain(window).fold(elements, |elements, dim| elements.saturating_mul(*dim));
        elements.saturating_mul(if problem.kind == DataType::F32 { 4 } else { 2 })
    }
}

use Direction::{BackwardData, BackwardWeights, Forward};
use Method::{Gemm, Grouped, ImplicitGemm, Naive};

/// MIOpen's solution identifiers: ConvHipImplicitGemmGroup*Xdlops, GemmFwdRest, GemmBwdRest, GemmWrwUniversal, ConvOclDirectFwd,
/// ConvOclBwdWrW2NonTunable, ConvDirectNaiveConv*.
const SOLUTIONS: [(u64, Direction, Method); 12] = [
    (137, Forward, ImplicitGemm),
    (155, BackwardData, ImplicitGemm),
    (156, BackwardWeights, ImplicitGemm),
    (91, Forward, Gemm),
    (97, BackwardData, Gemm),
    (102, BackwardWeights, Gemm),
    (11, Forward, Grouped),
    (11, BackwardData, Grouped),
    (23, BackwardWeights, Grouped),
    (85, Forward, Naive),
    (86, BackwardData, Naive),
    (87, BackwardWeights, Naive),
];

/// Returns the solutions for a problem, fastest first.
pub fn available(problem: &Problem) -> Vec<ConvSolution> {
    let none = runtime().is_ok_and(|runtime| runtime.options.miopen == Miopen::WithoutSolutions);
    if none || matches!(problem.kind, DataType::Other(_)) {
        return Vec::new();
    }
    let suited = SOLUTIONS
        .iter()
        .filter(|(_, direction, method)| *direction == problem.direction && method.suits(problem));
    let mut found: Vec<_> = suited
        .map(|(id, _, method)| ConvSolution {
            time: (problem.work() / method.rate()) as f32,
            workspace_size: method.workspace(problem),
            solution_id: *id,
            algorithm: method.algorithm(),
        })
        .collect();
    found.sort_by(|one, other| one.time.total_cmp(&other.time));
    found
}

/// Returns one of the [`available`] solutions by its identifier.
///
/// # Errors
/// `BadParm`.
pub fn find(problem: &Problem, id: u64) -> Outcome<ConvSolution> {
    match available(problem).into_iter().find(|solution| solution.solution_id == id) {
        Some(solution) => Ok(solution),
        None => bad_parm(format!("{id} is not a solution of this convolution")),
    }
}
