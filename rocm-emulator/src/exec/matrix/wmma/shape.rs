//! The shapes of the products, and which lane holds which element.
use super::element::Element::{self, Bf8, Bf16, F16, Fp8, Int4, Int8};
use super::element::Sum::{self, F32, I32};
use crate::isa::Family;

/// Rows of A, columns of B.
pub(super) const SIDE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) a: Element,
    pub(super) b: Element,
    pub(super) sum: Sum,
    /// Columns of A as stored, which a sparse product has half of.
    pub(super) k: usize,
    pub(super) is_sparse: bool,
    pub(super) layout: Layout,
}

/// Mnemonics without `v_`, elements of A and B, of C and D, and columns of A as stored.
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
    /// The shape of a mnemonic in waves of `lanes`; `None` if it is unknown here.
    pub(super) fn of(name: &str, family: Family, lanes: usize) -> Option<Self> {
        let row = SHAPES.iter().find(|row| Some(row.0) == name.strip_prefix("v_"))?;
        let (name, a, b, sum, k) = *row;
        let is_sparse = name.starts_with("swmmac_");
        let layout = match (family, lanes) {
            (Family::Rdna3, _) => Layout::Copied { groups: lanes / SIDE },
            // Where 64 lanes hold a sparse matrix and its indices is not known well enough.
            (Family::Rdna4, 64) if is_sparse => return None,
            // The smallest matrix fills half of the lanes.
            (Family::Rdna4, 64) => {
                Layout::Split { groups: if a == Int4 && k == 16 { 2 } else { 4 }, rows: 4 }
            }
            (Family::Rdna4, _) => Layout::Split { groups: 2, rows: 8 },
            _ => return None,
        };
        Some(Self { a, b, sum, k, is_sparse, layout })
    }

    /// Which lane, and which of its elements, is element `k` of row `i` of A. The result's rows of every `group` of
    /// 16 lanes come of that group's copy, if there are copies.
    #[inline(always)]
    pub(super) fn a_place(&self, i: usize, k: usize) -> (usize, usize) {
        match self.layout {
            Layout::Copied { groups } => (i + SIDE * (i % groups), k),
            Layout::Split { groups, .. } => split(i, k, groups, RUN),
        }
    }

    /// The same of column `j` of B, for row `i` of the result.
    #[inline(always)]
    pub(super) fn b_place(&self, copy: usize, j: usize, k: usize) -> (usize, usize) {
        match self.layout {
            Layout::Copied { .. } => (j + SIDE * copy, k),
            Layout::Split { groups, .. } => split(j, k, groups, if self.is_sparse { 2 * RUN } else { RUN }),
        }
    }

    /// How many copies of B there are, and which one row `i` of the result comes of.
    pub(super) fn copies(&self) -> usize {
        match self.layout {
            Layout::Copied { groups } => groups,
            Layout::Split { .. } => 1,
        }
    }

    /// Which lane, and which of its elements, is element (`i`, `j`) of the result or the addend.
    #[inline(always)]
    pub(super) fn result_place(&self, i: usize, j: usize) -> (usize, usize) {
        match self.layout {
            Layout::Copied { groups } => (j + SIDE * (i % groups), i / groups),
            // Rows 0..4, 8..12, 4..8, 12..16 where lanes have four each.
            Layout::Split { rows, .. } => {
                let group = if rows == 8 { i / 8 } else { i / 8 + 2 * (i / 4 % 2) };
                (j + SIDE * group, i % rows)
            }
        }
    }

    /// How many products are added before the sum is rounded.
    pub(super) fn step(&self) -> usize {
        match self.layout {
            Layout::Copied { .. } => 2,
            Layout::Split { .. } => 4,
        }
    }
}

/// How the lanes share a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// gfx11: every group of 16 lanes has all of A and of B, and the rows of the result whose number is the group's,
    /// modulo the number of groups.
    Copied { groups: usize },
    /// gfx12: groups of 16 lanes share A's columns and B's rows, and have `rows` consecutive rows of the result each.
    Split { groups: usize, rows: usize },
}

impl Layout {
    pub(super) const fn is_copied(self) -> bool {
        matches!(self, Self::Copied { .. })
    }
}

/// Consecutive columns of A in a lane on gfx12.
const RUN: usize = 4;

#[inline(always)]
fn split(row: usize, k: usize, groups: usize, run: usize) -> (usize, usize) {
    (row + SIDE * (k / run % groups), k / (run * groups) * run + k % run)
}
