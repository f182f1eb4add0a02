//! Adapters of the projections of experts: stacks of matrices, with a matrix for each expert.
use candle_core::{DType, Device, Result, Tensor};

use super::rows::{AdapterRows, Deltas};
use super::weights::{LowRank, LowRankProduct, Target};
use crate::model::config::{ExpertsConfig, Projections};
use crate::model::layers::{Linear, Matrix};

/// Divisor of the ranks of stacks, since kernels read 16 bytes at a time.
const RANK_STEP: usize = 8;

/// Projections of experts that adapters may change.
#[derive(Clone, Debug)]
pub(super) struct ExpertTargets {
    /// Number of experts.
    pub(super) count: usize,
    /// Name of their block, relative to the layer.
    block: &'static str,
    /// Names of gate, up and down of an expert.
    projections: [&'static str; 3],
    /// Numbers of inputs and outputs of each projection.
    pub(super) sizes: [[usize; 2]; 3],
}

/// Matrices A and B of each expert's gate, up and down, if the adapter changes them.
pub(super) type ExpertPairs = [Option<[Tensor; 2]>; 3];

impl ExpertTargets {
    /// Returns the targets if each expert has projections of its own in safetensors. `intermediate` is the width inside a
    /// whole expert.
    pub(super) fn of(config: &ExpertsConfig, hidden: usize, intermediate: usize) -> Option<Self> {
        let Projections::Separate(projections) = config.names.projections else { return None };
        let is_supported = !config.has_dense_branch;
        let sizes = [[hidden, intermediate], [hidden, intermediate], [intermediate, hidden]];
        let (count, block) = (config.count, config.names.experts);
        is_supported.then_some(Self { count, block, projections, sizes })
    }

    /// Returns the expert and the projection of a module, given by its name relative to the layer.
    pub(super) fn find(&self, module: &str) -> Option<(usize, usize)> {
        let rest = module.strip_prefix(self.block)?.strip_prefix('.')?;
        let (expert, projection) = rest.split_once('.')?;
        let expert = expert.parse().ok().filter(|expert| *expert < self.count)?;
        Some((expert, self.projections.iter().position(|name| *name == projection)?))
    }

    /// Returns the name of a projection of all experts, for errors.
    pub(super) fn name(&self, projection: usize) -> String {
        format!("{}.N.{}", self.block, self.projections[projection])
    }

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

/// Returns the rank of the stacks of adapters of rank `rank`.
pub(super) fn padded_rank(rank: usize) -> usize {
    rank.next_multiple_of(RANK_STEP)
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
