//! Special rules for candle-transformers: models that dispatch on the device.

use crate::rules::{CrateRules, Rule, after, before, replace};

/// Rules of candle-transformers.
pub const CANDLE_TRANSFORMERS: CrateRules = CrateRules {
    name: "candle-transformers",
    cuda_only: &[],
    // The two identifiers of z_image's dispatch, for which `z-image-dispatch` adds ROCm.
    left_alone: 2,
    rules: RULES,
    mending_rules: &[],
    included_rules: INCLUDED_RULES,
    own_modules: &[],
};

const RULES: &[Rule] = &[
    before(
        "z-image-dispatch",
        "models/z_image/transformer.rs",
        "        } else if device.is_metal() {\n            self.attention_metal(",
        "        } else if device.is_rocm() {\n            self.attention_rocm(q, k, v, mask, scale)\n",
    ),
    // If flash attention is not compiled in or does not support the mask, ROCm uses `sdpa` like Metal.
    after(
        "z-image-sdpa",
        "models/z_image/transformer.rs",
        "    fn attention_rocm(\n        &self,\n        q: &Tensor,\n        k: &Tensor,\n        v: &Tensor,\n        mask: Option<&Tensor>,\n        scale: f64,\n    ) -> Result<Tensor> {\n",
        "        if mask.is_some() || cfg!(not(feature = \"flash-attn\")) {\n            return self.attention_metal(q, k, v, mask, scale);\n        }\n",
    ),
    // Avoids a copy of shared keys and values for each head.
    replace(
        "quantized-llama-sdpa",
        "models/quantized_llama.rs",
        1,
        "if q.device().is_metal() && seq_len == 1 {",
        "if (q.device().is_metal() || q.device().is_rocm()) && seq_len == 1 {",
    ),
    // Drops each step's input before the next step, because a decoder's activations take half a gigabyte.
    replace(
        "stable-diffusion-resnet-memory",
        "models/stable_diffusion/resnet.rs",
        1,
        "        let xs = self.norm1.forward(xs)?;\n        let xs = self.conv1.forward(&nn::ops::silu(&xs)?)?;\n",
        "        let activated = self.norm1.forward(xs).and_then(|xs| nn::ops::silu(&xs))?;\n        let xs = self.conv1.forward(&activated)?;\n        drop(activated);\n",
    ),
    // At 1024 x 1024, a decoder's attention scores would take two gigabytes. The fused attention has no gradients, so it is
    // used only if none are tracked.
    before(
        "stable-diffusion-attention-fused",
        "models/stable_diffusion/attention.rs",
        "        let query_states = self\n            .transpose_for_scores(query_proj)?\n",
        "        let head_width = self.channels / self.num_heads;\n        let tracked = [&query_proj, &key_proj, &value_proj].into_iter().any(Tensor::track_op);\n        let fused = xs.device().is_rocm()\n            && !tracked\n            && head_width <= 512\n            && matches!(in_dtype, DType::F16 | DType::BF16 | DType::F32);\n        let xs = if fused {\n            let q = self.transpose_for_scores(query_proj)?;\n            let k = self.transpose_for_scores(key_proj)?;\n            let v = self.transpose_for_scores(value_proj)?;\n            nn::ops::sdpa(&q, &k, &v, None, false, (head_width as f32).sqrt().recip(), 1.0)?\n        } else {\n",
    ),
    replace(
        "stable-diffusion-attention-composed",
        "models/stable_diffusion/attention.rs",
        1,
        "        let xs = xs.to_dtype(in_dtype)?;\n",
        "            xs.to_dtype(in_dtype)?\n        };\n",
    ),
    // Decides by the device instead of the feature, so that the CPU device works in the same program, and by the dtypes that
    // `moe_gemm` supports.
    replace(
        "qwen3-moe-fused",
        "models/qwen3_moe.rs",
        1,
        "if cfg!(feature = \"cuda\") {\n",
        "let fused = match vb.device() {\n                    Device::Rocm(_) => matches!(vb.dtype(), DType::F16 | DType::BF16),\n                    _ => cfg!(feature = \"cuda\"),\n                };\n                if fused {\n",
    ),
];

/// Gives the only exported macro a path through its module.
const INCLUDED_RULES: &[Rule] = &[
    before(
        "reach-serde-default-fn",
        "models/deepseek2.rs",
        "serde_default_fn!(f64, routed_scaling_factor, 1.0);\n",
        "pub(crate) use serde_default_fn;\n\n",
    ),
    replace(
        "import-serde-default-fn",
        "models/qwen3_vl/config.rs",
        1,
        "use crate::serde_default_fn;",
        "use crate::models::deepseek2::serde_default_fn;",
    ),
];
