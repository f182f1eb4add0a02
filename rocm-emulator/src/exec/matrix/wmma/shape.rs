//! Shapes of matrix products, and the distribution of elements over lanes.
use super::element::Element::{self, Bf8, Bf16, F16, Fp8, Int4, Int8};
use super::element::Sum::{self, F32, I32};
use crate::isa::Family;

/// Number of rows of A and of columns of B.
pub(super) const SIDE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) a: Element,
    pub(super) b: Element,
    pub(super) sum: Sum,
    /// Number of stored columns of A; half of all columns if A is sparse.
    pub(super) k: usize,
    pub(super) is_sparse: bool,
    pub(super) layout: Layout,
}

/// Mnemonics without `v_`, types of A and B, type of C and D, and stored columns of A.
#[rustfmt::skip]
const SHAPES: &[(&str, Element, Element, Sum, usize)] = &[
    ("wmma_f32_16x16x16_f16", F16, F16, F32, 16),
    ("wmma_f32_16x16x16_bf16", Bf16, Bf16, F32, 16),
    ("wmma_f16_16x16x16_f16", F16, F16, Sum::F16, 16),
    ("wmma_bf16_16x16x16_bf16", Bf16, Bf16, Sum::Bf16, 16),
    ("wmma_i32_16x16x16_iu8", Int8, Int8, I32, 16),
    ("wmma_i32_16x16x16_iu4", Int4, Int4, I32, 16),
    ("wmma_i32_16x16x32_iu4", Int4, Int4, I32, 32),
    ("wmma_f32_16x16x16_fp8_fp8", Fp8, Fp8, F32, 16),
    ("wmma_f32_16x16x16_fp8_bf8", Fp8, Bf8, F32, 16),
    ("wmma_f32_16x16x16_bf8_fp8", Bf8, Fp8, F32, 16),
    ("wmma_f32_16x16x16_bf8_bf8", Bf8, Bf8, F32, 16),
    ("swmmac_f32_16x16x32_f16", F16, F16, F32, 16),
    ("swmmac_f32_16x16x32_bf16", Bf16, Bf16, F32, 16),
    ("swmmac_f16_16x16x32_f16", F16, F16, Sum::F16, 16),
    ("swmmac_bf16_16x16x32_bf16", Bf16, Bf16, Sum::Bf16, 16),
    ("swmmac_i32_16x16x32_iu8", Int8, Int8, I32, 16),
    ("swmmac_i32_16x16x32_iu4", Int4, Int4, I32, 16),
    ("swmmac_i32_16x16x64_iu4", Int4, Int4, I32, 32),
    ("swmmac_f32_16x16x32_fp8_fp8", Fp8, Fp8, F32, 16),
    ("swmmac_f32_16x16x32_fp8_bf8", Fp8, Bf8, F32, 16),
    ("swmmac_f32_16x16x32_bf8_fp8", Bf8, Fp8, F32, 16),
    ("swmmac_f32_16x16x32_bf8_bf8", Bf8, Bf8, F32, 16),
];

impl Shape {
    /// Returns the shape of a mnemonic in waves of `lanes` lanes; `None` if it is unsupported.
    pub(super) fn of(name: &str, family: Family, lanes: usize) -> Option<Self> {
        let row = SHAPES.iter().find(|row| Some(row.0) == name.strip_prefix("v_"))?;
        let (name, a, b, sum, k) = *row;
        let is_sparse = name.starts_with("swmmac_");
        let layout = match (family, lanes) {
            (Family::Rdna3 | Family::Rdna35, _) => Layout::Copied { groups: lanes / SIDE },
            // The layout of a sparse matrix and its indices in 64 lanes is not known well enough.
            (Family::Rdna4, 64) if is_sparse => return None,
            // The smallest matrix fills only half of the lanes.
            (Family::Rdna4, 64) => {
                Layout::Split { groups: if a == Int4 && k == 16 { 2 } else { 4 }, rows: 4 }
            }
            (Family::Rdna4, _) => Layout::Split { groups: 2, rows: 8 },
            _ => return None,
        };
        Some(Self { a, b, sum, k, is_sparse, layout })
    }

    /// Returns (lane, item) of element `k` of row `i` of A. If there are copies, each group of 16 lanes
    /// computes its rows of the result from its own copy.
    #[inline(always)]
    pub(super) fn a_place(&self, i: usize, k: usize) -> (usize, usize) {
        match self.layout {
            Layout::Copied { groups } => (i + SIDE * (i % groups), k),
            Layout::Split { groups, .. } => split(i, k, groups, RUN),
        }
    }

    /// Returns (lane, item) of element `k` of column `j` in a copy of B.
    #[inline(always)]
    pub(super) fn b_place(&self, copy: usize, j: usize, k: usize) -> (usize, usize) {
        match self.layout {
            Layout::Copied { .. } => (j + SIDE * copy, k),
            Layout::Split { groups, .. } => split(j, k, groups, if self.is_sparse { 2 * RUN } else { RUN }),
        }
    }

    /// Returns the number of copies of B. Row `i` of the result uses copy `i % copies`.
    pub(super) fn copies(&self) -> usize {
        match self.layout {
            Layout::Copied { groups } => groups,
            Layout::Split { .. } => 1,
        }
    }

    /// Returns (lane, item) of element (`i`, `j`) of the result or the addend.
    #[inline(always)]
    pub(super) fn result_place(&self, i: usize, j: usize) -> (usize, usize) {
        match self.layout {
            Layout::Copied { groups } => (j + SIDE * (i % groups), i / groups),
            // With four rows per lane, the groups hold rows 0..4, 8..12, 4..8 and 12..16.
            Layout::Split { rows, .. } => {
                let group = if rows == 8 { i / 8 } else { i / 8 + 2 * (i / 4 % 2) };
                (j + SIDE * group, i % rows)
            }
        }
    }

    /// Returns the number of products that are added before the sum is rounded.
    pub(super) fn step(&self) -> usize {
        match self.layout {
            Layout::Copied { .. } => 2,
            Layout::Split { .. } => 4,
        }
    }
}

/// Distribution of matrices over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// gfx11: every group of 16 lanes holds all of A and B. Row `i` of the result is in group `i % groups`.
    Copied { groups: usize },
    /// gfx12: groups of 16 lanes share A's columns and B's rows. Each holds `rows` rows of the result.
    Split { groups: usize, rows: usize },
}

impl Layout {
    pub(super) const fn is_copied(self) -> bool {
        matches!(self, Self::Copied { .. })
    }
}

/// Number of consecutive columns of A in a lane on gfx12.
const RUN: usize = 4;

#[inline(always)]
fn split(row: usize, k: usize, groups: usize, run: usize) -> (usize, usize) {
    (row + SIDE * (k / run % groups), k / (run * groups) * run + k % run)
}
