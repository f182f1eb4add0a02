//! The special rules for candle-transformers: the models that choose their way by the device.

use crate::rules::{CrateRules, Edit, Rule};

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
    Rule {
        name: "z-image-dispatch",
        file: "models/z_image/transformer.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "        } else if device.is_metal() {\n            self.attention_metal(",
            insert: "        } else if device.is_rocm() {\n            self.attention_rocm(q, k, v, mask, scale)\n",
        },
    },
    // Where flash attention is not compiled in or does not take the mask, ROCm has the `sdpa` that Metal has.
    Rule {
        name: "z-image-sdpa",
        file: "models/z_image/transformer.rs",
        expect: 1,
        edit: Edit::After {
            anchor: "    fn attention_rocm(\n        &self,\n        q: &Tensor,\n        k: &Tensor,\n        v: &Tensor,\n        mask: Option<&Tensor>,\n        scale: f64,\n    ) -> Result<Tensor> {\n",
            insert: "        if mask.is_some() || cfg!(not(feature = \"flash-attn\")) {\n            return self.attention_metal(q, k, v, mask, scale);\n        }\n",
        },
    },
    // Keys and values that heads share are not copied for each of them.
    Rule {
        name: "quantized-llama-sdpa",
        file: "models/quantized_llama.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "if q.device().is_metal() && seq_len == 1 {",
            to: "if (q.device().is_metal() || q.device().is_rocm()) && seq_len == 1 {",
        },
    },
    // What a step was computed of is dropped before the next: a decoder's activations are half a gigabyte.
    Rule {
        name: "stable-diffusion-resnet-memory",
        file: "models/stable_diffusion/resnet.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "        let xs = self.norm1.forward(xs)?;\n        let xs = self.conv1.forward(&nn::ops::silu(&xs)?)?;\n",
            to: "        let activated = self.norm1.forward(xs).and_then(|xs| nn::ops::silu(&xs))?;\n        let xs = self.conv1.forward(&activated)?;\n        drop(activated);\n",
        },
    },
    // The scores of a decoder's places with each other are two gigabytes at 1024 x 1024. Where nothing tracks gradients,
    // which the fused attention does not give.
    Rule {
        name: "stable-diffusion-attention-fused",
        file: "models/stable_diffusion/attention.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "        let query_states = self\n            .transpose_for_scores(query_proj)?\n",
            insert: "        let head_width = self.channels / self.num_heads;\n        let tracked = [&query_proj, &key_proj, &value_proj].into_iter().any(Tensor::track_op);\n        let fused = xs.device().is_rocm()\n            && !tracked\n            && head_width <= 512\n            && matches!(in_dtype, DType::F16 | DType::BF16 | DType::F32);\n        let xs = if fused {\n            let q = self.transpose_for_scores(query_proj)?;\n            let k = self.transpose_for_scores(key_proj)?;\n            let v = self.transpose_for_scores(value_proj)?;\n            nn::ops::sdpa(&q, &k, &v, None, false, (head_width as f32).sqrt().recip(), 1.0)?\n        } else {\n",
        },
    },
    Rule {
        name: "stable-diffusion-attention-composed",
        file: "models/stable_diffusion/attention.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "        let xs = xs.to_dtype(in_dtype)?;\n",
            to: "            xs.to_dtype(in_dtype)?\n        };\n",
        },
    },
    // By the device and not by the feature, so that the CPU device computes its models in the same program; and in the
    // dtypes that `moe_gemm` takes.
    Rule {
        name: "qwen3-moe-fused",
        file: "models/qwen3_moe.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "if cfg!(feature = \"cuda\") {\n",
            to: "let fused = match vb.device() {\n                    Device::Rocm(_) => matches!(vb.dtype(), DType::F16 | DType::BF16),\n                    _ => cfg!(feature = \"cuda\"),\n                };\n                if fused {\n",
        },
    },
];

/// The one exported macro, by the module that it lies in.
const INCLUDED_RULES: &[Rule] = &[
    Rule {
        name: "reach-serde-default-fn",
        file: "models/deepseek2.rs",
        expect: 1,
        edit: Edit::Before {
            anchor: "serde_default_fn!(f64, routed_scaling_factor, 1.0);\n",
            insert: "pub(crate) use serde_default_fn;\n\n",
        },
    },
    Rule {
        name: "import-serde-default-fn",
        file: "models/qwen3_vl/config.rs",
        expect: 1,
        edit: Edit::Replace {
            from: "use crate::serde_default_fn;",
            to: "use crate::models::deepseek2::serde_default_fn;",
        },
    },
];
