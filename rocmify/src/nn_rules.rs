//! The special rules for candle-nn.

use crate::rules::{CrateRules, Edit, OwnModule, Rule};

pub const CANDLE_NN: CrateRules = CrateRules {
    name: "candle-nn",
    cuda_only: &["moe/cutile.rs"],
    left_alone: 0,
    rules: RULES,
    included_rules: &[],
    own_modules: &[OwnModule { name: "rocm", public: false }],
};

/// The fused operations: their ROCm bodies are functions of `candle-nn/src/rocm.rs`.
const RULES: &[Rule] = &[
    delegate("sigmoid", "ops.rs", "Sigmoid", "crate::rocm::sigmoid(storage, layout)"),
    delegate("softmax", "ops.rs", "SoftmaxLastDim", "crate::rocm::softmax_last_dim(storage, layout)"),
    delegate("rms-norm", "ops.rs", "RmsNorm", "crate::rocm::rms_norm(self.eps, s1, l1, s2, l2)"),
    delegate(
        "layer-norm",
        "ops.rs",
        "LayerNorm",
        "crate::rocm::layer_norm(self.eps, s1, l1, s2, l2, s3, l3)",
    ),
    delegate("rope-i", "rotary_emb.rs", "RotaryEmbI", "crate::rocm::rope_i(s1, l1, s2, l2, s3, l3)"),
    delegate("rope", "rotary_emb.rs", "RotaryEmb", "crate::rocm::rope(s1, l1, s2, l2, s3, l3)"),
    delegate("rope-thd", "rotary_emb.rs", "RotaryEmbThd", "crate::rocm::rope_thd(s1, l1, s2, l2, s3, l3)"),
];

const fn delegate(name: &'static str, file: &'static str, owner: &'static str, body: &'static str) -> Rule {
    Rule { name, file, expect: 1, edit: Edit::MethodBody { owner, method: "cuda_fwd", body } }
}
