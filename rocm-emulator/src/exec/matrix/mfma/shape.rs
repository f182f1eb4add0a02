//! Shapes of matrix products, and the distribution of elements over lanes.
use super::element::Element::{self, Bf8, Bf16, F16, F32, F64, Fp8, I8, Xf32};
use crate::isa::Family;

/// Lanes of a wave that can multiply matrices.
pub(super) const LANES: usize = 64;

/// A product of `side` x `k` by `k` x `side` matrices, in as many blocks as fill the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) side: usize,
    pub(super) k: usize,
    /// Number of consecutive k that a lane holds of B, and of A unless A is sparse.
    pub(super) per_lane: usize,
    pub(super) a: Element,
    pub(super) b: Element,
    /// Set if only two of every four consecutive elements of A's rows are stored.
    pub(super) sparse: bool,
}

/// Mnemonics without `v_mfma_` (gfx908's and gfx90a's; gfx942's and gfx950's), side, k, k per lane, types of A and B.
#[rustfmt::skip]
const SHAPES: &[(&str, &str, usize, usize, usize, Element, Element)] = &[
    ("f32_32x32x1f32", "f32_32x32x1_2b_f32", 32, 1, 1, F32, F32),
    ("f32_16x16x1f32", "f32_16x16x1_4b_f32", 16, 1, 1, F32, F32),
    ("f32_4x4x1f32", "f32_4x4x1_16b_f32", 4, 1, 1, F32, F32),
    ("f32_32x32x2f32", "f32_32x32x2_f32", 32, 2, 1, F32, F32),
    ("f32_16x16x4f32", "f32_16x16x4_f32", 16, 4, 1, F32, F32),
    ("f32_32x32x4f16", "f32_32x32x4_2b_f16", 32, 4, 4, F16, F16),
    ("f32_16x16x4f16", "f32_16x16x4_4b_f16", 16, 4, 4, F16, F16),
    ("f32_4x4x4f16", "f32_4x4x4_16b_f16", 4, 4, 4, F16, F16),
    ("f32_32x32x8f16", "f32_32x32x8_f16", 32, 8, 4, F16, F16),
    ("f32_16x16x16f16", "f32_16x16x16_f16", 16, 16, 4, F16, F16),
    ("f32_32x32x2bf16", "", 32, 2, 2, Bf16, Bf16),
    ("f32_16x16x2bf16", "", 16, 2, 2, Bf16, Bf16),
    ("f32_4x4x2bf16", "", 4, 2, 2, Bf16, Bf16),
    ("f32_32x32x4bf16", "", 32, 4, 2, Bf16, Bf16),
    ("f32_16x16x8bf16", "", 16, 8, 2, Bf16, Bf16),
    ("f32_32x32x4bf16_1k", "f32_32x32x4_2b_bf16", 32, 4, 4, Bf16, Bf16),
    ("f32_16x16x4bf16_1k", "f32_16x16x4_4b_bf16", 16, 4, 4, Bf16, Bf16),
    ("f32_4x4x4bf16_1k", "f32_4x4x4_16b_bf16", 4, 4, 4, Bf16, Bf16),
    ("f32_32x32x8bf16_1k", "f32_32x32x8_bf16", 32, 8, 4, Bf16, Bf16),
    ("f32_16x16x16bf16_1k", "f32_16x16x16_bf16", 16, 16, 4, Bf16, Bf16),
    ("i32_32x32x4i8", "i32_32x32x4_2b_i8", 32, 4, 4, I8, I8),
    ("i32_16x16x4i8", "i32_16x16x4_4b_i8", 16, 4, 4, I8, I8),
    ("i32_4x4x4i8", "i32_4x4x4_16b_i8", 4, 4, 4, I8, I8),
    ("i32_32x32x8i8", "", 32, 8, 4, I8, I8),
    ("i32_16x16x16i8", "", 16, 16, 4, I8, I8),
    ("", "i32_32x32x16_i8", 32, 16, 8, I8, I8),
    ("", "i32_16x16x32_i8", 16, 32, 8, I8, I8),
    ("f64_16x16x4f64", "f64_16x16x4_f64", 16, 4, 1, F64, F64),
    ("f64_4x4x4f64", "f64_4x4x4_4b_f64", 4, 4, 1, F64, F64),
    ("", "f32_32x32x16_f16", 32, 16, 8, F16, F16),
    ("", "f32_16x16x32_f16", 16, 32, 8, F16, F16),
    ("", "f32_32x32x16_bf16", 32, 16, 8, Bf16, Bf16),
    ("", "f32_16x16x32_bf16", 16, 32, 8, Bf16, Bf16),
    ("", "i32_32x32x32_i8", 32, 32, 16, I8, I8),
    ("", "i32_16x16x64_i8", 16, 64, 16, I8, I8),
    ("", "f32_32x32x4_xf32", 32, 4, 2, Xf32, Xf32),
    ("", "f32_16x16x8_xf32", 16, 8, 2, Xf32, Xf32),
    ("", "f32_16x16x32_bf8_bf8", 16, 32, 8, Bf8, Bf8),
    ("", "f32_16x16x32_bf8_fp8", 16, 32, 8, Bf8, Fp8),
    ("", "f32_16x16x32_fp8_bf8", 16, 32, 8, Fp8, Bf8),
    ("", "f32_16x16x32_fp8_fp8", 16, 32, 8, Fp8, Fp8),
    ("", "f32_32x32x16_bf8_bf8", 32, 16, 8, Bf8, Bf8),
    ("", "f32_32x32x16_bf8_fp8", 32, 16, 8, Bf8, Fp8),
    ("", "f32_32x32x16_fp8_bf8", 32, 16, 8, Fp8, Bf8),
    ("", "f32_32x32x16_fp8_fp8", 32, 16, 8, Fp8, Fp8),
];

/// gfx942's mnemonics without `v_smfmac_`, side, k, k per lane, types of A and B.
#[rustfmt::skip]
const SPARSE_SHAPES: &[(&str, usize, usize, usize, Element, Element)] = &[
    ("f32_16x16x32_f16", 16, 32, 8, F16, F16),
    ("f32_32x32x16_f16", 32, 16, 8, F16, F16),
    ("f32_16x16x32_bf16", 16, 32, 8, Bf16, Bf16),
    ("f32_32x32x16_bf16", 32, 16, 8, Bf16, Bf16),
    ("i32_16x16x64_i8", 16, 64, 16, I8, I8),
    ("i32_32x32x32_i8", 32, 32, 16, I8, I8),
    ("f32_16x16x64_bf8_bf8", 16, 64, 16, Bf8, Bf8),
    ("f32_16x16x64_bf8_fp8", 16, 64, 16, Bf8, Fp8),
    ("f32_16x16x64_fp8_bf8", 16, 64, 16, Fp8, Bf8),
    ("f32_16x16x64_fp8_fp8", 16, 64, 16, Fp8, Fp8),
    ("f32_32x32x32_bf8_bf8", 32, 32, 16, Bf8, Bf8),
    ("f32_32x32x32_bf8_fp8", 32, 32, 16, Bf8, Fp8),
    ("f32_32x32x32_fp8_bf8", 32, 32, 16, Fp8, Bf8),
    ("f32_32x32x32_fp8_fp8", 32, 32, 16, Fp8, Fp8),
];

impl Shape {
    /// Returns the shape of a mnemonic of a family, if it is known.
    pub(super) fn of(name: &str, family: Family) -> Option<Self> {
        if let Some(name) = name.strip_prefix("v_smfmac_") {
            let (_, side, k, per_lane, a, b) = *SPARSE_SHAPES.iter().find(|row| row.0 == name)?;
            return Some(Self { side, k, per_lane, a: a.on(family), b: b.on(family), sparse: true });
        }
        let name = name.strip_prefix("v_mfma_").filter(|name| !name.is_empty())?;
        let row = SHAPES.iter().find(|row| row.0 == name || row.1 == name)?;
        let (_, _, side, k, per_lane, a, b) = *row;
        Some(Self { side, k, per_lane, a: a.on(family), b: b.on(family), sparse: false })
    }

    /// Returns the number of stored elements per row of A.
    pub(super) fn a_k(&self) -> usize {
        if self.sparse { self.k / 2 } else { self.k }
    }

    /// Returns the number of consecutive stored elements of A that a lane holds.
    pub(super) fn a_per_lane(&self) -> usize {
        if self.sparse { self.per_lane / 2 } else { self.per_lane }
    }

    pub(super) fn a_registers(&self) -> usize {
        self.a_per_lane() * self.a.width() / 32
    }

    pub(super) fn b_registers(&self) -> usize {
        self.per_lane * self.b.width() / 32
    }

    pub(super) fn blocks(&self) -> usize {
        LANES * self.per_lane / (self.side * self.k)
    }

    pub(super) fn result_registers(&self) -> usize {
        let elements = self.side * self.side * self.blocks() / LANES;
        if self.a == F64 { 2 * elements } else { elements }
    }

    /// Returns (item, lane) of element `k` of row `row` of A, or of column `row` of B. Lanes hold `per_lane`
    /// consecutive elements.
    #[inline(always)]
    pub(super) fn input_place(&self, block: usize, row: usize, k: usize, per_lane: usize) -> (usize, usize) {
        let (group, item) = (k / per_lane, k % per_lane);
        (item, row + self.side * (block + self.blocks() * group))
    }

    /// Returns (item, lane) of element (`i`, `j`) of the result or the addend.
    #[inline(always)]
    pub(super) fn result_place(&self, block: usize, i: usize, j: usize) -> (usize, usize) {
        if self.a == F64 {
            return (i / 4, 16 * (i % 4) + self.side * block + j);
        }
        // Four consecutive rows are in consecutive registers, and the next four are in the next lanes.
        let (four, item) = (i / 4, i % 4);
        match self.side {
            4 => (item, self.side * block + j),
            side => {
                let rows_of_lanes = LANES / side;
                let per_block = side / rows_of_lanes;
                (item + 4 * (four / rows_of_lanes) + per_block * block, side * (four % rows_of_lanes) + j)
            }
        }
    }
}
