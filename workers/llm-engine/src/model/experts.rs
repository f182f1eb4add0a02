//! Mixtures of experts: feed-forward layers in which a router chooses some of many networks for each row.
//!
//! On ROCm devices, the matrices of all experts form one stack. The whole layer is computed on the device, so that a
//! decoding step can be captured. Kernels read only the chosen matrices. On other devices, the host reads the router's
//! choice and computes the rows of each chosen expert together.
use anyhow::{Context, Result};
#[cfg(feature = "rocm")]
use candle_core::rocm::{Router, RouterFunction};
use candle_core::{D, Tensor, bail};
use candle_nn::ops::{sigmoid, softmax_last_dim};

use super::adapter::{self, ExpertRows};
use super::config::{Activation, ExpertGroups, Routing};
use super::layers::{FusedWith, GateUp, Linear, Mlp, Norm, replace_rows};
#[cfg(feature = "rocm")]
use super::stacks::ExpertStacks;

/// Matrices of a layer's experts.
pub enum ExpertMatrices {
    /// One network for each expert.
    Separate(Vec<Mlp>),
    /// Stacks on a ROCm device.
    #[cfg(feature = "rocm")]
    Stacked(ExpertStacks),
}

/// Network that computes all rows of a layer.
pub struct SharedExpert {
    /// Network.
    pub mlp: Mlp,
    /// Projection to a number whose sigmoid scales the output, if there is one.
    pub gate: Option<Linear>,
}

/// Feed-forward layer with experts.
pub struct Experts {
    /// Projection to a score for each expert, in f32.
    pub router: Linear,
    /// Norm of the router's input; `None` if it has the input of the experts.
    pub router_norm: Option<Norm>,
    /// Factors of the weights of each expert, f32 (experts).
    pub factors: Option<Tensor>,
    /// Number of experts that are chosen for a row.
    pub used: usize,
    /// Function that computes the weights of a row's chosen experts.
    pub routing: Routing,
    /// Factor of the weights.
    pub scale: f64,
    /// Groups of experts, if they limit the choice.
    pub groups: Option<ExpertGroups>,
    /// Summands of the scores by which experts are chosen, f32 (experts).
    pub correction: Option<Tensor>,
    /// Projections of states to the inputs of the experts and of their outputs to states, if they have another width.
    pub latent: Option<[Linear; 2]>,
    /// Matrices.
    pub matrices: ExpertMatrices,
    /// Network that computes all rows, if there is one.
    pub shared: Option<SharedExpert>,
}

impl Experts {
    /// Maps (rows, width) to the weighted sum of the chosen experts' outputs, and the shared expert's. A `residual` (rows,
    /// width), if there is one, is added. `adapters` change the experts of some rows. On a ROCm device, a few rows take four
    /// launches, and more for a shared expert.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(
        &self,
        (x, with): (&Tensor, FusedWith),
        residual: Option<&Tensor>,
        adapters: &[ExpertRows],
    ) -> candle_core::Result<Tensor> {
        let normed = match with.norm {
            Some(norm) if self.latent.is_some() || !self.fuses_norm(x, norm)? => Some(norm.forward(x)?),
            _ => None,
        };
        let input = match &normed {
            Some(normed) => (normed, FusedWith::default()),
            None => (x, with),
        };
        let (experts, weights) = match &self.router_norm {
            Some(norm) => self.route((x, FusedWith { norm: Some(norm), ..FusedWith::default() }))?,
            None => self.route(input)?,
        };
        let weights = match &self.factors {
            Some(factors) => {
                let of_chosen = factors.index_select(&experts.flatten_all()?, 0)?;
                (weights * of_chosen.reshape(experts.dims())?)?
            }
            None => weights,
        };
        let latent = self.latent.as_ref().map(|[to_latent, _]| to_latent.forward(input.0)).transpose()?;
        let (of_experts, added) = match &latent {
            Some(latent) => ((latent, FusedWith::default()), None),
            None => (input, residual),
        };
        let (states, FusedWith { norm, .. }) = of_experts;
        let x = || norm.map_or(Ok(states.clone()), |norm| norm.forward(states));
        let routed = [&experts, &weights];
        let out = match adapters {
            [ExpertRows { rows: None, stacks }] => self.separately(&x()?, routed, added, Some(*stacks))?,
            _ => {
                let mut out = match self.fused(of_experts, routed, added)? {
                    Some(out) => out,
                    None => self.separately(&x()?, routed, added, None)?,
                };
                let x = (!adapters.is_empty()).then(x).transpose()?;
                for ExpertRows { rows, stacks } in adapters {
                    let (Some(rows), Some(x)) = (rows, &x) else {
                        bail!("internal error: several adapters of all rows")
                    };
                    let select = |all: &Tensor| all.index_select(rows, 0);
                    let (x, added) = (select(x)?, added.map(select).transpose()?);
                    let routed = [&select(&experts)?, &select(&weights)?];
                    let changed = self.separately(&x, routed, added.as_ref(), Some(*stacks))?;
                    out = replace_rows(&out, rows, &changed)?;
                }
                out
            }
        };
        let out = match &self.latent {
            Some([_, to_states]) => {
                to_states.forward_fused(&out, FusedWith { residual, ..FusedWith::default() })?
            }
            None => out,
        };
        let Some(SharedExpert { mlp, gate }) = &self.shared else { return Ok(out) };
        let hidden = mlp.inner(input)?;
        match gate {
            Some(gate) => {
                out + mlp
                    .down
                    .forward(&hidden)?
                    .broadcast_mul(&sigmoid(&gate.forward_fused(input.0, input.1)?)?)?
            }
            None => {
                mlp.down.forward_fused(&hidden, FusedWith { residual: Some(&out), ..FusedWith::default() })
            }
        }
    }

    /// Like [`Self::fused`], by separate products for any rows, and for the stacks of an adapter.
    fn separately(
        &self,
        x: &Tensor,
        [experts, weights]: [&Tensor; 2],
        residual: Option<&Tensor>,
        adapter: Option<adapter::ExpertStacks>,
    ) -> candle_core::Result<Tensor> {
        let out = match &self.matrices {
            ExpertMatrices::Separate(mlps) => run_experts(mlps, x, [experts, weights], adapter)?,
            #[cfg(feature = "rocm")]
            ExpertMatrices::Stacked(stacks) => stacks.forward(x, [experts, weights], adapter)?,
        };
        residual.map_or(Ok(out.clone()), |residual| out + residual)
    }

    /// Returns true if all products of these rows include their norm.
    fn fuses_norm(&self, x: &Tensor, norm: &Norm) -> candle_core::Result<bool> {
        #[cfg(feature = "rocm")]
        if let ExpertMatrices::Stacked(stacks) = &self.matrices {
            return Ok(norm.is_rms() && self.router.is_fused(x)? && stacks.is_fused(x, self.used)?);
        }
        let _ = (x, norm);
        Ok(false)
    }

    /// Returns the sum of the outputs of `experts` with `weights`, and a residual, if there are kernels for these rows.
    fn fused(
        &self,
        input: (&Tensor, FusedWith),
        [experts, weights]: [&Tensor; 2],
        residual: Option<&Tensor>,
    ) -> candle_core::Result<Option<Tensor>> {
        #[cfg(feature = "rocm")]
        if let ExpertMatrices::Stacked(stacks) = &self.matrices {
            return stacks.fused(input, [experts, weights], residual);
        }
        let _ = (input, experts, weights, residual);
        Ok(None)
    }

    /// Returns the experts of each row, u32 (rows, used), and their weights, f32.
    fn route(&self, (x, with): (&Tensor, FusedWith)) -> candle_core::Result<(Tensor, Tensor)> {
        let scores = self.router.forward_fused(x, with)?;
        #[cfg(feature = "rocm")]
        if let Some(routed) = self.device_router().route(&scores)? {
            return Ok(routed);
        }
        self.route_separately(scores)
    }

    /// Returns the router as a ROCm device computes it in one launch.
    #[cfg(feature = "rocm")]
    fn device_router(&self) -> Router<'_> {
        let (function, normalized) = match self.routing {
            Routing::Softmax => (RouterFunction::Softmax, false),
            Routing::CorrectedSoftmax => (RouterFunction::Softmax, true),
            Routing::ChosenSoftmax => (RouterFunction::ChosenSoftmax, false),
            Routing::SparseMixer { tolerance } => {
                (RouterFunction::SparseMixer { tolerance: tolerance as f32 }, false)
            }
            Routing::Sigmoid { normalized } => (RouterFunction::Sigmoid, normalized),
        };
        let (used, scale) = (self.used, self.scale as f32);
        let groups = self.groups.map(|groups| (groups.count, groups.used));
        Router { used, function, normalized, scale, groups, correction: self.correction.as_ref() }
    }

    /// Like [`Self::route`], from the scores (rows, experts), by separate operations.
    fn route_separately(&self, scores: Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let scores = match self.routing {
            Routing::Softmax | Routing::CorrectedSoftmax => softmax_last_dim(&scores)?,
            Routing::Sigmoid { .. } => sigmoid(&scores)?,
            Routing::ChosenSoftmax | Routing::SparseMixer { .. } => scores,
        };
        let order = self.choice(&scores)?.arg_sort_last_dim(false)?;
        let experts = order.narrow(D::Minus1, 0, self.used)?.contiguous()?;
        let weights = match self.routing {
            Routing::SparseMixer { tolerance } => {
                let sorted = scores.gather(&order.contiguous()?, D::Minus1)?;
                let weights = (0..self.used).map(|chosen| sparse_mixer(&sorted, chosen, tolerance));
                Tensor::cat(&weights.collect::<candle_core::Result<Vec<_>>>()?, D::Minus1)?
            }
            _ => scores.gather(&experts, D::Minus1)?,
        };
        let weights = match self.routing {
            Routing::ChosenSoftmax => softmax_last_dim(&weights)?,
            Routing::Sigmoid { normalized: true } | Routing::CorrectedSoftmax => {
                weights.broadcast_div(&(weights.sum_keepdim(D::Minus1)? + 1e-20)?)?
            }
            _ => weights,
        };
        let weights = if self.scale == 1.0 { weights } else { (weights * self.scale)? };
        Ok((experts, weights))
    }

    /// Returns the scores by which experts are chosen, 0 outside of the chosen groups.
    fn choice(&self, scores: &Tensor) -> candle_core::Result<Tensor> {
        let scores = match &self.correction {
            Some(correction) => scores.broadcast_add(correction)?,
            None => scores.clone(),
        };
        let Some(ExpertGroups { count, used }) = self.groups else { return Ok(scores) };
        let (rows, experts) = scores.dims2()?;
        let groups = scores.reshape((rows, count, experts / count))?;
        // Models that correct scores compare groups by two experts.
        let of_groups =
            group_scores(&groups, if self.correction.is_some() { 2 } else { 1 })?.squeeze(D::Minus1)?;
        let order = of_groups.arg_sort_last_dim(false)?;
        let threshold = of_groups.gather(&order.narrow(D::Minus1, used - 1, 1)?.contiguous()?, D::Minus1)?;
        let is_chosen = of_groups.broadcast_ge(&threshold)?.to_dtype(scores.dtype())?.unsqueeze(D::Minus1)?;
        groups.broadcast_mul(&is_chosen)?.reshape((rows, experts))
    }
}

/// Returns the sum of the `count` highest scores of each group.
fn group_scores(groups: &Tensor, count: usize) -> candle_core::Result<Tensor> {
    match count {
        1 => groups.max_keepdim(D::Minus1),
        _ => {
            let order = groups.arg_sort_last_dim(false)?.narrow(D::Minus1, 0, count)?.contiguous()?;
            groups.gather(&order, D::Minus1)?.sum_keepdim(D::Minus1)
        }
    }
}

/// Returns the weight of expert number `chosen` of `sorted`, descending scores (rows, experts). It is the expert's share
/// of a softmax over its score and the lower ones that are near it.
fn sparse_mixer(sorted: &Tensor, chosen: usize, tolerance: f64) -> candle_core::Result<Tensor> {
    let rest = sorted.narrow(D::Minus1, chosen, sorted.dim(D::Minus1)? - chosen)?;
    let score = rest.narrow(D::Minus1, 0, 1)?;
    let below = score.broadcast_sub(&rest)?;
    let magnitude = rest.abs()?.broadcast_maximum(&score)?;
    let is_near = below.le(&(magnitude * tolerance)?)?.to_dtype(sorted.dtype())?;
    (below.neg()?.exp()? * is_near)?.sum_keepdim(D::Minus1)?.recip()
}

/// Computes the rows of each chosen expert together.
fn run_experts(
    mlps: &[Mlp],
    x: &Tensor,
    [experts, weights]: [&Tensor; 2],
    adapter: Option<adapter::ExpertStacks>,
) -> candle_core::Result<Tensor> {
    let (experts, weights) = (experts.to_vec2::<u32>()?, weights.to_vec2::<f32>()?);
    let mut chosen = vec![(Vec::new(), Vec::new()); mlps.len()];
    for (row, (experts, weights)) in experts.iter().zip(&weights).enumerate() {
        for (expert, weight) in experts.iter().zip(weights) {
            let (rows, factors) = &mut chosen[*expert as usize];
            rows.push(row as u32);
            factors.push(*weight);
        }
    }
    let mut sum = x.zeros_like()?;
    let chosen = mlps.iter().zip(chosen).enumerate().filter(|(_, (_, (rows, _)))| !rows.is_empty());
    for (expert, (mlp, (rows, factors))) in chosen {
        let count = rows.len();
        let rows = Tensor::from_vec(rows, count, x.device())?;
        let factors = Tensor::from_vec(factors, (count, 1), x.device())?.to_dtype(x.dtype())?;
        let input = x.index_select(&rows, 0)?;
        let input = (&input, FusedWith::default());
        let out = match adapter.map(|stacks| stacks.of_expert(expert)).transpose()? {
            Some([gate_up, down]) => {
                let inner = adapter::inner(mlp, input, &gate_up.deltas(input.0)?)?;
                down.deltas(&inner)?.add(mlp.down.forward(&inner)?)?
            }
            None => mlp.down.forward(&mlp.inner(input)?)?,
        };
        sum = sum.index_add(&rows, &out.broadcast_mul(&factors)?, 0)?;
    }
    Ok(sum)
}

/// Creates a feed-forward network from its products: one or two for gate and up, or that of up if it has no gate.
///
/// # Errors
/// Returns an error if there is no product for gate and up.
pub fn mlp(
    mut gate_up: Vec<Linear>,
    down: Linear,
    (activation, is_gated): (Activation, bool),
) -> Result<Mlp> {
    let last = gate_up.pop().context("internal error: no gate and up projections")?;
    let gate_up = match gate_up.pop() {
        Some(gate) => GateUp::Separate(gate, last),
        None if is_gated => GateUp::Fused(last),
        None => GateUp::UpOnly(last),
    };
    Ok(Mlp { gate_up, down, activation })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_sparse_mixer_weighs_an_expert_against_those_near_it() {
        let sorted = Tensor::new(&[[2.0f32, 1.99, 1.9, -1.0]], &Device::Cpu).unwrap();
        let weight = |chosen, tolerance| {
            sparse_mixer(&sorted, chosen, tolerance).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        for (chosen, tolerance, expected) in [
            (0, 0.02, 1.0 / (1.0 + (-0.01f32).exp())),
            (0, 0.06, 1.0 / (1.0 + (-0.01f32).exp() + (-0.1f32).exp())),
            (1, 0.02, 1.0),
            (1, 0.06, 1.0 / (1.0 + (-0.09f32).exp())),
        ] {
            let weight = weight(chosen, tolerance)[0];
            assert!((weight - expected).abs() < 1e-6, "{chosen} {tolerance}: {weight}, expected {expected}");
        }
    }
}
