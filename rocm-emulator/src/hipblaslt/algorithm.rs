//! Ways to compute a product, as the heuristic offers them and as they travel through the caller. All give the same
//! result; they differ in the workspace that they need.
use super::types::{Result, Status, refuse};
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
    /// A [`Status`].
    pub state: u32,
    pub wavesCount: f32,
    pub reserved: [i32; 4],
}

/// The first bytes of what is ours.
const MARK: [u8; 8] = *b"software";

/// From so long sums on they are worth splitting.
const LONG: i32 = 1024;

/// A way to compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// Without a workspace.
    Whole = 1,
    /// The sums in parts, which are kept in f32 in the workspace and then added.
    SplitSums = 2,
}

impl Algorithm {
    /// Those that suit a product, the best first.
    pub fn suitable(problem: &Problem) -> impl Iterator<Item = Self> {
        (problem.k >= LONG).then_some(Self::SplitSums).into_iter().chain([Self::Whole])
    }

    /// The workspace that a product needs.
    pub fn workspace(self, problem: &Problem) -> usize {
        let parts = (problem.k / (LONG / 2)).clamp(2, 8);
        match self {
            Self::Whole => 0,
            Self::SplitSums => [problem.m, problem.n, problem.batch, parts]
                .into_iter()
                .fold(size_of::<f32>(), |bytes, count| bytes.saturating_mul(count.max(0) as usize)),
        }
    }

    /// What the heuristic says of it.
    pub fn result(self, problem: &Problem, max_workspace_bytes: usize) -> MatmulHeuristicResult {
        let mut data = [0; 16];
        data[..8].copy_from_slice(&MARK);
        data[8] = self as u8;
        MatmulHeuristicResult {
            algo: MatmulAlgo { data, max_workspace_bytes },
            workspaceSize: self.workspace(problem),
            state: Status::Success as u32,
            wavesCount: 1.0,
            reserved: [0; 4],
        }
    }

    /// What [`Self::result`] has encoded.
    pub fn decode(algo: &MatmulAlgo) -> Result<Self> {
        match (algo.data[..8] == MARK, algo.data[8]) {
            (true, 1) => Ok(Self::Whole),
            (true, 2) => Ok(Self::SplitSums),
            _ => refuse(Status::InvalidValue, "the algorithm is none that the heuristic has given"),
        }
    }
}
