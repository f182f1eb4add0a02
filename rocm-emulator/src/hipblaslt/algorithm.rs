//! Algorithms for a product, which the heuristic returns and the caller passes back. All compute the same result; they
//! differ in the workspace that they need.
use super::types::{Result, Status, reject};
use crate::rocblas::problem::Problem;

/// `hipblasLtMatmulAlgo_t`.
#[allow(missing_docs, reason = "hipBLASLt's names")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatmulAlgo {
    pub data: [u8; 16],
    pub max_workspace_bytes: usize,
}

/// `hipblasLtMatmulHeuristicResult_t`.
#[allow(missing_docs, reason = "hipBLASLt's names")]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatmulHeuristicResult {
    pub algo: MatmulAlgo,
    pub workspaceSize: usize,
    /// The value of a [`Status`].
    pub state: u32,
    pub wavesCount: f32,
    pub reserved: [i32; 4],
}

/// First bytes of an algorithm of this library.
const MAGIC: [u8; 8] = *b"software";

/// Minimum length of sums that are worth splitting.
const MIN_SPLIT_LENGTH: i32 = 1024;

/// An algorithm for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// Computes each sum at once, without a workspace.
    Whole = 1,
    /// Computes partial sums in f32 in the workspace and adds them (split-K).
    SplitSums = 2,
}

impl Algorithm {
    /// Returns the algorithms for a product, best first.
    pub fn suitable(problem: &Problem) -> impl Iterator<Item = Self> {
        (problem.k >= MIN_SPLIT_LENGTH).then_some(Self::SplitSums).into_iter().chain([Self::Whole])
    }

    /// Returns the workspace that a product needs, in bytes.
    pub fn workspace(self, problem: &Problem) -> usize {
        let parts = (problem.k / (MIN_SPLIT_LENGTH / 2)).clamp(2, 8);
        match self {
            Self::Whole => 0,
            Self::SplitSums => [problem.m, problem.n, problem.batch, parts]
                .into_iter()
                .fold(size_of::<f32>(), |bytes, count| bytes.saturating_mul(count.max(0) as usize)),
        }
    }

    /// Returns the heuristic's result for the algorithm.
    pub fn result(self, problem: &Problem, max_workspace_bytes: usize) -> MatmulHeuristicResult {
        let mut data = [0; 16];
        data[..8].copy_from_slice(&MAGIC);
        data[8] = self as u8;
        MatmulHeuristicResult {
            algo: MatmulAlgo { data, max_workspace_bytes },
            workspaceSize: self.workspace(problem),
            state: Status::Success as u32,
            wavesCount: 1.0,
            reserved: [0; 4],
        }
    }

    /// Decodes the algorithm that [`Self::result`] encoded.
    pub fn decode(algo: &MatmulAlgo) -> Result<Self> {
        match (algo.data[..8] == MAGIC, algo.data[8]) {
            (true, 1) => Ok(Self::Whole),
            (true, 2) => Ok(Self::SplitSums),
            _ => reject(Status::InvalidValue, "the algorithm was not returned by the heuristic"),
        }
    }
}
