//! Projections of experts that adapters may change.
use crate::model::config::{ExpertsConfig, Projections};

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
}

/// Returns the rank of the stacks of adapters of rank `rank`.
pub(super) fn padded_rank(rank: usize) -> usize {
    rank.next_multiple_of(RANK_STEP)
}
