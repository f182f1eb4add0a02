//! Sizes and options of mixtures of experts.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::fields::Fields;

/// Names of the tensors of experts in safetensors, relative to the layer's prefix. GGUF files of all families have the
/// same names.
#[derive(Debug, PartialEq)]
pub struct ExpertNames {
    /// Router.
    pub router: &'static str,
    /// Summands of the scores by which experts are chosen, in families that correct scores.
    pub correction: &'static str,
    /// Block that contains the projections of the experts.
    pub experts: &'static str,
    /// Block that contains the projections of the shared expert.
    pub shared: &'static str,
    /// Projection to the number whose sigmoid scales the output of the shared expert, if there is one.
    pub shared_gate: Option<&'static str>,
    /// Projections of an expert, or of all experts.
    pub projections: Projections,
}

/// Names of the projections of experts in safetensors.
#[derive(Debug, PartialEq)]
pub enum Projections {
    /// Gate, up and down of each expert.
    Separate([&'static str; 3]),
    /// Stack of gate and up of all experts, whose rows are joined, and stack of down.
    Stacked([&'static str; 2]),
    /// Up and down of each expert, which have no gates.
    Ungated([&'static str; 2]),
    /// Like [`Self::Stacked`], but rows of gate and up alternate, and matrices of floats are transposed. Biases have names
    /// that end with `_bias`.
    Interleaved([&'static str; 2]),
}

/// Names in the files of Qwen's models.
pub const QWEN_NAMES: ExpertNames = ExpertNames {
    router: "mlp.gate",
    correction: "mlp.gate.e_score_correction_bias",
    experts: "mlp.experts",
    shared: "mlp.shared_expert",
    shared_gate: Some("mlp.shared_expert_gate"),
    projections: Projections::Separate(["gate_proj", "up_proj", "down_proj"]),
};
/// Names in the files of Mixtral.
pub const MIXTRAL_NAMES: ExpertNames = ExpertNames {
    router: "block_sparse_moe.gate",
    experts: "block_sparse_moe.experts",
    projections: Projections::Separate(["w1", "w3", "w2"]),
    ..QWEN_NAMES
};
/// Names in the files of Granite.
pub const GRANITE_NAMES: ExpertNames = ExpertNames {
    router: "block_sparse_moe.router.layer",
    experts: "block_sparse_moe",
    shared: "shared_mlp",
    shared_gate: None,
    projections: Projections::Stacked(["input_linear", "output_linear"]),
    ..QWEN_NAMES
};

/// Names in the files of DeepSeek.
pub const DEEPSEEK_NAMES: ExpertNames =
    ExpertNames { shared: "mlp.shared_experts", shared_gate: None, ..QWEN_NAMES };
/// Names in the files of ERNIE.
pub const ERNIE_NAMES: ExpertNames =
    ExpertNames { correction: "mlp.moe_statics.e_score_correction_bias", ..DEEPSEEK_NAMES };
/// Names in the files of gpt-oss.
pub const GPT_OSS_NAMES: ExpertNames = ExpertNames {
    router: "mlp.router",
    projections: Projections::Interleaved(["gate_up_proj", "down_proj"]),
    ..QWEN_NAMES
};

/// Names in the files of Gemma.
pub const GEMMA_NAMES: ExpertNames =
    ExpertNames { router: "router.proj", experts: "experts", shared_gate: None, ..QWEN_NAMES };

/// Names in the files of Jamba.
pub const JAMBA_NAMES: ExpertNames =
    ExpertNames { router: "feed_forward.router", experts: "feed_forward.experts", ..QWEN_NAMES };

/// Names in the files of Nemotron-H.
pub const NEMOTRON_NAMES: ExpertNames = ExpertNames {
    router: "mixer.gate",
    correction: "mixer.gate.e_score_correction_bias",
    experts: "mixer.experts",
    shared: "mixer.shared_experts",
    shared_gate: None,
    projections: Projections::Ungated(["up_proj", "down_proj"]),
};

impl ExpertNames {
    /// Returns true if the activation of a gate is multiplied by another projection.
    pub fn are_gated(&self) -> bool {
        !matches!(self.projections, Projections::Ungated(_))
    }
}

/// Function that computes the weights of a row's experts, which are those with the highest scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Softmax of the scores of all experts.
    Softmax,
    /// Softmax of the scores of all experts, divided by the sum of the chosen ones. A correction is added before experts are
    /// chosen.
    CorrectedSoftmax,
    /// Softmax of the scores of the chosen experts.
    ChosenSoftmax,
    /// Softmax of the scores that are at most this share below the chosen one, for each of two experts in turn, without those
    /// chosen before.
    SparseMixer {
        /// Share of the larger of both magnitudes.
        tolerance: f64,
    },
    /// Sigmoid of the scores. A correction is added before experts are chosen.
    Sigmoid {
        /// If true, the weights are divided by their sum.
        normalized: bool,
    },
}

/// Groups of neighboring experts, only some of which a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that are chosen for a row.
    pub used: usize,
}

/// Sizes and options of mixtures of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// Number of experts of a layer.
    pub count: usize,
    /// Number of experts that are chosen for a row.
    pub used: usize,
    /// Width inside an expert.
    pub intermediate: usize,
    /// Width of the inputs and outputs of the experts, to and from which states are projected, if it is not theirs.
    pub latent: Option<usize>,
    /// Function that computes the weights of a row's chosen experts.
    pub routing: Routing,
    /// Factor of the weights.
    pub scale: f64,
    /// Groups of experts, if they limit the choice.
    pub groups: Option<ExpertGroups>,
    /// If true, the router and the projections of experts have biases.
    pub biases: bool,
    /// Width inside the expert that computes all rows, if there is one.
    pub shared_intermediate: Option<usize>,
    /// If true, layers have both a dense network and experts, with separate norms. The router also has a norm, and the
    /// weight of each expert a factor.
    pub has_dense_branch: bool,
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
        // Some families have other names in config.json; GGUF metadata has the common ones.
        let named = |names: &[&'static str], common| {
            names.iter().copied().find(|key| fields.value(key).is_some()).unwrap_or(common)
        };
        let count_key = named(&["num_local_experts", "n_routed_experts", "moe_num_experts"], "num_experts");
        let count = fields.required(count_key)?;
        let used = fields.required(named(&["moe_k", "top_k_experts"], "num_experts_per_tok"))?;
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
                list.context("\"mlp_only_layers\" is not a list of whole numbers")?
            }
            None => Vec::new(),
        };
        let leading = fields.size("first_k_dense_replace")?.unwrap_or(0);
        let is_dense = |layer: usize| {
            layer < leading || !(layer + 1).is_multiple_of(step) || dense_only.contains(&(layer as u64))
        };
        Ok(Self {
            count,
            used,
            intermediate: fields.required(intermediate)?,
            latent: None,
            routing: match fields.flag("norm_topk_prob") {
                // Dividing probabilities by the sum of the chosen ones is a softmax of the chosen scores.
                true => Routing::ChosenSoftmax,
                false => Routing::Softmax,
            },
            scale: 1.0,
            groups: None,
            biases: false,
            shared_intermediate: None,
            has_dense_branch: false,
            dense_layers: (0..layers).map(is_dense).collect(),
            names,
        })
    }
}
