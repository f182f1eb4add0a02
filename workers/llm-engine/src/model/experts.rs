//! Mixtures of experts: feed-forward layers in which a router chooses some of many networks for each row.
//!
//! On ROCm devices, the matrices of all experts form one stack, and the whole layer is computed on the device, so that a
//! decoding step can be captured. Kernels read only the chosen matrices. On other devices, the host reads the router's
//! choice and computes the rows of each chosen expert together.
use anyhow::{Context, Result, ensure};
use candle_core::{D, Tensor};
use candle_nn::ops::{sigmoid, softmax_last_dim};
use serde_json::Value;

use super::config::{Activation, Fields};
use super::layers::{FusedWith, GateUp, Linear, Mlp};
#[cfg(feature = "rocm")]
use super::stacks::ExpertStacks;

/// Names of the tensors of experts in safetensors, relative to the layer's prefix. GGUF files of all families have the
/// same names.
#[derive(Debug, PartialEq)]
pub struct ExpertNames {
    /// Block that contains the router and the experts.
    pub block: &'static str,
    /// Gate projection of an expert.
    pub gate: &'static str,
    /// Up projection of an expert.
    pub up: &'static str,
    /// Down projection of an expert.
    pub down: &'static str,
}

/// Names in the files of Qwen's models.
pub const QWEN_NAMES: ExpertNames =
    ExpertNames { block: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj" };
/// Names in the files of Mixtral.
pub const MIXTRAL_NAMES: ExpertNames =
    ExpertNames { block: "block_sparse_moe", gate: "w1", up: "w3", down: "w2" };

/// Sizes and options of mixtures of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of experts that are chosen for a row.
    pub used: usize,
    /// Width inside an expert.
    pub intermediate: usize,
    /// If true, the weights of a row's chosen experts are divided by their sum.
    pub normalized: bool,
    /// Width inside the expert that computes all rows, if there is one. A gate scales its output.
    pub shared_intermediate: Option<usize>,
    /// Layers without experts, which have one dense network.
    pub dense_layers: Vec<bool>,
    /// Names of the tensors.
    pub names: &'static ExpertNames,
}

impl ExpertsConfig {
    /// Reads the fields that all families share.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn from_fields(
        fields: &Fields,
        names: &'static ExpertNames,
        intermediate: &str,
    ) -> Result<ExpertsConfig> {
        // Mixtral's config.json has a name of its own, GGUF metadata has the common one.
        let count = match fields.size("num_local_experts")? {
            Some(_) => fields.required("num_local_experts")?,
            None => fields.required("num_experts")?,
        };
        let used = fields.required("num_experts_per_tok")?;
        ensure!(
            used <= count,
            "\"num_experts_per_tok\" is {used}, but there are only {count} experts; it must not exceed their number"
        );
        let layers = fields.required("num_hidden_layers")?;
        let step = fields.size("decoder_sparse_step")?.unwrap_or(1);
        ensure!(step > 0, "\"decoder_sparse_step\" is 0, but must be at least 1");
        let dense_only = match fields.value("mlp_only_layers") {
            Some(list) => {
                let list = list.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
                let list: Option<Vec<u64>> = list;
                list.context("\"mlp_only_layers\" is no list of whole numbers")?
            }
            None => Vec::new(),
        };
        let is_dense =
            |layer: usize| !(layer + 1).is_multiple_of(step) || dense_only.contains(&(layer as u64));
        Ok(Self {
            count,
            used,
            intermediate: fields.required(intermediate)?,
            normalized: fields.flag("norm_topk_prob"),
            shared_intermediate: None,
            dense_layers: (0..layers).map(is_dense).collect(),
            names,
        })
    }
}

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
    /// Projection to a number whose sigmoid scales the output.
    pub gate: Linear,
}

/// Feed-forward layer with experts.
pub struct Experts {
    /// Projection to a score for each expert, in f32.
    pub router: Linear,
    /// Number of experts that are chosen for a row.
    pub used: usize,
    /// If true, the weights of a row's chosen experts are divided by their sum.
    pub normalized: bool,
    /// Matrices.
    pub matrices: ExpertMatrices,
    /// Network that computes all rows, if there is one.
    pub shared: Option<SharedExpert>,
}

impl Experts {
    /// Maps (rows, width) to the weighted sum of the chosen experts' outputs, and the shared expert's.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(&self, (x, with): (&Tensor, FusedWith)) -> candle_core::Result<Tensor> {
        let x = &with.norm.map_or(Ok(x.clone()), |norm| norm.forward(x))?;
        let (experts, weights) = self.route(x)?;
        let out = match &self.matrices {
            ExpertMatrices::Separate(experts_mlps) => separately(experts_mlps, x, &experts, &weights)?,
            #[cfg(feature = "rocm")]
            ExpertMatrices::Stacked(stacks) => stacks.forward(x, &experts, &weights)?,
        };
        match &self.shared {
            Some(shared) => {
                let hidden = shared.mlp.gated((x, FusedWith::default()))?;
                let shared_out = shared.mlp.down.forward(&hidden)?;
                out + shared_out.broadcast_mul(&sigmoid(&shared.gate.forward(x)?)?)?
            }
            None => Ok(out),
        }
    }

    /// Returns the experts of each row, u32 (rows, used), and their weights, f32.
    fn route(&self, x: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let scores = self.router.forward(x)?;
        // Dividing probabilities by the sum of the chosen ones is a softmax of the chosen scores.
        let scores = if self.normalized { scores } else { softmax_last_dim(&scores)? };
        let experts = scores.arg_sort_last_dim(false)?.narrow(D::Minus1, 0, self.used)?.contiguous()?;
        let weights = scores.gather(&experts, D::Minus1)?;
        let weights = if self.normalized { softmax_last_dim(&weights)? } else { weights };
        Ok((experts, weights))
    }
}

/// Computes the rows of each chosen expert together.
fn separately(mlps: &[Mlp], x: &Tensor, experts: &Tensor, weights: &Tensor) -> candle_core::Result<Tensor> {
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
    for (mlp, (rows, factors)) in mlps.iter().zip(chosen).filter(|(_, (rows, _))| !rows.is_empty()) {
        let count = rows.len();
        let rows = Tensor::from_vec(rows, count, x.device())?;
        let factors = Tensor::from_vec(factors, (count, 1), x.device())?.to_dtype(x.dtype())?;
        let input = x.index_select(&rows, 0)?;
        let out = mlp.down.forward(&mlp.gated((&input, FusedWith::default()))?)?;
        sum = sum.index_add(&rows, &out.broadcast_mul(&factors)?, 0)?;
    }
    Ok(sum)
}

/// Creates a feed-forward network from its products, one or two for gate and up.
///
/// # Errors
/// Returns an error if there is no product for gate and up.
pub fn mlp(mut gate_up: Vec<Linear>, down: Linear, activation: Activation) -> Result<Mlp> {
    let last = gate_up.pop().context("internal error: no gate and up projections")?;
    let gate_up = match gate_up.pop() {
        Some(gate) => GateUp::Separate(gate, last),
        None => GateUp::Fused(last),
    };
    Ok(Mlp { gate_up, down, activation })
}
