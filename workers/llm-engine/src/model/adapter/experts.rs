//! Adapters of the projections of experts: stacks of matrices, with a matrix for each expert.
use candle_core::{DType, Device, Result, Tensor};

use super::expert_targets::{ExpertTargets, padded_rank};
use super::rows::{AdapterRows, Deltas};
use super::targets::Target;
use super::weights::{LowRank, LowRankProduct};
use crate::model::layers::{Linear, Matrix};

/// Matrices A and B of each expert's gate, up and down, if the adapter changes them.
pub(super) type ExpertPairs = [Option<[Tensor; 2]>; 3];

impl ExpertTargets {
    /// Returns the stacks of gate and up, and of down. `experts` are the matrices of each expert.
    pub(super) fn stacks(
        &self,
        experts: &[ExpertPairs],
        (rank, scale, dtype): (usize, f64, DType),
    ) -> Result<[LowRank; 2]> {
        let stack = |projections: &[usize]| -> Result<LowRank> {
            let (mut downs, mut ups) = (Vec::new(), Vec::new());
            for expert in experts {
                let [down, up] = self.joined(expert, projections, rank, scale)?;
                downs.push(down.to_dtype(dtype)?);
                ups.push(up.to_dtype(dtype)?);
            }
            Ok(LowRank { down: Tensor::stack(&downs, 0)?, up: Tensor::stack(&ups, 0)? })
        };
        Ok([stack(&[0, 1])?, stack(&[2])?])
    }

    /// Joins the matrices of an expert's projections, which have a common input. Those of others are zero.
    fn joined(
        &self,
        expert: &ExpertPairs,
        projections: &[usize],
        rank: usize,
        scale: f64,
    ) -> Result<[Tensor; 2]> {
        let (padded, all) = (padded_rank(rank), padded_rank(rank) * projections.len());
        let (mut downs, mut ups) = (Vec::new(), Vec::new());
        for (place, &projection) in projections.iter().enumerate() {
            let [inputs, outputs] = self.sizes[projection];
            let zeros = |dims: (usize, usize)| Tensor::zeros(dims, DType::F32, &Device::Cpu);
            let [down, up] = match &expert[projection] {
                Some([down, up]) => [down.clone(), (up * scale)?],
                None => [zeros((rank, inputs))?, zeros((outputs, rank))?],
            };
            downs.push(down.pad_with_zeros(0, 0, padded - rank)?);
            let before = place * padded;
            ups.push(up.pad_with_zeros(1, before, all - before - rank)?);
        }
        Ok([Tensor::cat(&downs, 0)?, Tensor::cat(&ups, 0)?])
    }
}

/// Rows of a step whose experts an adapter changes.
pub struct ExpertRows<'a> {
    /// Indices, u32; `None` for all rows of the step.
    pub rows: Option<&'a Tensor>,
    /// Stacks.
    pub stacks: ExpertStacks<'a>,
}

/// Stacks of an adapter's matrices of gate and up, and of down.
#[derive(Clone, Copy)]
pub struct ExpertStacks<'a>([&'a LowRankProduct; 2]);

impl<'a> ExpertStacks<'a> {
    /// Returns the stacks of matrices A and B: of gate and up, and of down.
    pub fn matrices(self) -> [[&'a Matrix; 2]; 2] {
        self.0.map(|product| [&product.down, &product.up].map(Linear::matrix))
    }

    /// Returns what the adapter adds to gate and up of an expert, and to its down projection, for rows of a layer's input
    /// and of the activation's result. The stacks are floats.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn of_expert(self, expert: usize) -> Result<[LowRankProduct; 2]> {
        let [gate_up, down] = self.0;
        Ok([gate_up.of_expert(expert)?, down.of_expert(expert)?])
    }
}

impl LowRankProduct {
    fn of_expert(&self, expert: usize) -> Result<Self> {
        let of = |stack: &Linear| match stack.matrix() {
            Matrix::Float(stack) => Ok(Linear::float(stack.get(expert)?, None, stack.dtype())),
            Matrix::Quantized(_) => {
                Err(candle_core::Error::Msg("internal error: a quantized adapter".to_owned()))
            }
        };
        Ok(Self { down: of(&self.down)?, up: of(&self.up)? })
    }

    /// Returns what is added to the output of the projections of `x`.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn deltas(&self, x: &Tensor) -> Result<Deltas<'_>> {
        Deltas::of_all(self, x)
    }
}

impl AdapterRows {
    /// Returns the rows of a layer whose experts adapters change.
    pub fn experts(&self, layer: usize) -> Vec<ExpertRows<'_>> {
        let rows = self.products(layer, [Target::ExpertGateUp, Target::ExpertDown]);
        rows.map(|(rows, products)| ExpertRows { rows, stacks: ExpertStacks(products) }).collect()
    }
}
