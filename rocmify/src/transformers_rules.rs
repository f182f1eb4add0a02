//! The special rules for candle-transformers: the models that choose their way by the device.

use crate::rules::{CrateRules, Rule, after, before, replace};

/// All that is special in candle-transformers.
pub const CANDLE_TRANSFORMERS: CrateRules = CrateRules {
    name: "candle-transformers",
    cuda_only: &[],
    // The two words of z_image's dispatch that `z-image-dispatch` repeats for ROCm.
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
    // Where flash attention is not compiled in or does not take the mask, ROCm has the `sdpa` that Metal has.
    after(
        "z-image-sdpa",
        "models/z_image/transformer.rs",
        "    fn attention_rocm(\n        &self,\n        q: &Tensor,\n        k: &Tensor,\n        v: &Tensor,\n        mask: Option<&Tensor>,\n        scale: f64,\n    ) -> Result<Tensor> {\n",
        "        if mask.is_some() || cfg!(not(feature = \"flash-attn\")) {\n            return self.attention_metal(q, k, v, mask, scale);\n        }\n",
    ),
    // Keys and values that heads share are not copied for each of them.
    replace(
        "quantized-llama-sdpa",
        "models/quantized_llama.rs",
        1,
        "if q.device().is_metal() && seq_len == 1 {",
        "if (q.device().is_metal() || q.device().is_rocm()) && seq_len == 1 {",
    ),
    // What a step was computed of is dropped before the next: a decoder's activations are half a gigabyte.
    replace(
        "stable-diffusion-resnet-memory",
        "models/stable_diffusion/resnet.rs",
        1,
        "        let xs = self.norm1.forward(xs)?;\n        let xs = self.conv1.forward(&nn::ops::silu(&xs)?)?;\n",
        "        let activated = self.norm1.forward(xs).and_then(|xs| nn::ops::silu(&xs))?;\n        let xs = self.conv1.forward(&activated)?;\n        drop(activated);\n",
    ),
    // The scores of a decoder's places with each other are two gigabytes at 1024 x 1024. Where nothing tracks gradients,
    // which the fused attention does not give.
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
    // By the device and not by the feature, so that the CPU device computes its models in the same program; and in the
    // dtypes that `moe_gemm` takes.
    replace(
        "qwen3-moe-fused",
        "models/qwen3_moe.rs",
        1,
        "if cfg!(feature = \"cuda\") {\n",
        "let fused = match vb.device() {\n                    Device::Rocm(_) => matches!(vb.dtype(), DType::F16 | DType::BF16),\n                    _ => cfg!(feature = \"cuda\"),\n                };\n                if fused {\n",
    ),
];

/// The one exported macro, by the module that it lies in.
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
