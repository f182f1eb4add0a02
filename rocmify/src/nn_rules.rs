//! Special rules for candle-nn.

use crate::operation_rules::LAYER_RULES;
use crate::rules::{CrateRules, Edit, OwnModule, Rule, after, before, replace};

/// Rules of candle-nn.
pub const CANDLE_NN: CrateRules = CrateRules {
    name: "candle-nn",
    cuda_only: &["moe/cutile.rs"],
    left_alone: 0,
    rules: RULES,
    mending_rules: &[LAYER_RULES],
    included_rules: &[],
    own_modules: &[OwnModule { name: "rocm", public: false, rocm_only: true }],
};

/// Fused operations, whose ROCm bodies are functions of `candle-nn/src/rocm/`.
const RULES: &[Rule] = &[
    delegate("sigmoid", "ops.rs", "Sigmoid", "crate::rocm::sigmoid(storage, layout)"),
    // Any dim, unless gradients are tracked; upstream composes five operations.
    after(
        "softmax-of-any-dim",
        "ops.rs",
        "    let dim = dim.to_index(xs.shape(), \"softmax\")?;\n",
        "    #[cfg(feature = \"rocm\")]\n    if let Some(fused) = crate::rocm::softmax(xs, dim)? {\n        return Ok(fused);\n    }\n",
    ),
    // Adds the bias in place, because the activations of a decoder take half a gigabyte.
    before(
        "conv1d-with-bias",
        "conv.rs",
        "        let x = x.conv1d_with_algo(\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(bias) = self.bias.as_ref().filter(|_| x.device().is_rocm()) {\n            let c = &self.config;\n            let steps = [c.padding, c.stride, c.dilation, c.groups];\n            if let Some(y) = candle::rocm::conv1d_with_bias(x, &self.weight, bias, steps)? {\n                return Ok(y);\n            }\n        }\n",
    ),
    before(
        "conv2d-with-bias",
        "conv.rs",
        "        let x = x.conv2d_with_algo(\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(bias) = self.bias.as_ref().filter(|_| x.device().is_rocm()) {\n            let c = &self.config;\n            let steps = [c.padding, c.stride, c.dilation, c.groups];\n            if let Some(y) = candle::rocm::conv2d_with_bias(x, &self.weight, bias, steps)? {\n                return Ok(y);\n            }\n        }\n",
    ),
    // One library call if available; upstream adds the bias in a separate launch.
    before(
        "linear-with-bias",
        "linear.rs",
        "        // When possible, we avoid using a broadcasted matmul as it is much slower\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(bias) = self.bias.as_ref().filter(|_| x.device().is_rocm()) {\n            if let Some(y) = candle::rocm::linear(x, &self.weight, bias)? {\n                return Ok(y);\n            }\n        }\n",
    ),
    after(
        "log-softmax",
        "ops.rs",
        "    let d = d.to_index(xs.shape(), \"log-softmax\")?;\n",
        "    #[cfg(feature = \"rocm\")]\n    if let Some(fused) = crate::rocm::log_softmax(xs, d)? {\n        return Ok(fused);\n    }\n",
    ),
    before(
        "swiglu",
        "ops.rs",
        "    &xs[0].silu()? * &xs[1]\n",
        "    #[cfg(feature = \"rocm\")]\n    if let Some(fused) = crate::rocm::swiglu(&xs[0], &xs[1])? {\n        return Ok(fused);\n    }\n",
    ),
    // After upstream's shape checks. Its single operations allocate five tensors of the input's size.
    before(
        "group-norm",
        "group_norm.rs",
        "        let x_dtype = x.dtype();\n        let internal_dtype = match x_dtype {\n",
        "        #[cfg(feature = \"rocm\")]\n        if let Some(fused) = crate::rocm::group_norm(x, &self.weight, &self.bias, self.num_groups, self.eps)? {\n            return Ok(fused);\n        }\n",
    ),
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
    // Upstream implements this for Metal only, so there is no CUDA method to copy.
    after("sdpa", "ops.rs", "candle::bail!(\"SDPA has no cpu impl\")\n    }\n", SDPA),
    before("sdpa-docs", "ops.rs", "/// ## On Metal:\n/// - If `seq` == 1:\n", SDPA_DOCS),
    // Mixture-of-experts products, dispatched by the input's device.
    before("moe-gemm", "moe.rs", "    fn cuda_fwd<\n        T: candle::cuda_backend::CudaDType", MOE_GEMM),
    before(
        "moe-gemm-gguf",
        "moe.rs",
        "    #[allow(clippy::too_many_arguments)]\n    fn cuda_fwd(\n        input: &Tensor,\n        weights: &QTensor,",
        MOE_GEMM_GGUF,
    ),
    replace(
        "moe-gemm-without-cuda",
        "moe.rs",
        1,
        "    _: &Tensor,\n    _: &Tensor,\n    _: &Option<Tensor>,\n    _: &Tensor,\n    _: &Tensor,\n    _: usize,\n    _: bool,\n) -> Result<Tensor> {\n",
        MOE_GEMM_WITHOUT_CUDA,
    ),
    replace(
        "moe-gemm-gguf-without-cuda",
        "moe.rs",
        1,
        "    _: &Tensor,\n    _: &QTensor,\n    _: &Option<Tensor>,\n    _: &Tensor,\n    _: &Tensor,\n    _: usize,\n    _: bool,\n    _: candle::DType,\n) -> Result<Tensor> {\n",
        MOE_GEMM_GGUF_WITHOUT_CUDA,
    ),
    delegate("rope-thd", "rotary_emb.rs", "RotaryEmbThd", "crate::rocm::rope_thd(s1, l1, s2, l2, s3, l3)"),
];

macro_rules! moe {
    ($function:literal) => {
        concat!(
            "    #[cfg(feature = \"rocm\")]\n    if input.device().is_rocm() {\n        return crate::rocm::",
            $function,
            "(input, weights, topk_weights, sorted_token_ids, experts_ids, topk);\n    }\n"
        )
    };
}
macro_rules! without_cuda {
    ($function:literal, $weights:literal, $dtype:literal) => {
        concat!(
            "    input: &Tensor,\n    weights: &",
            $weights,
            ",\n    topk_weights: &Option<Tensor>,\n    sorted_token_ids: &Tensor,\n    experts_ids: &Tensor,\n    topk: usize,\n    _: bool,\n",
            $dtype,
            ") -> Result<Tensor> {\n",
            moe!($function),
            "    let _ = (input, weights, topk_weights, sorted_token_ids, experts_ids, topk);\n"
        )
    };
}
const MOE_GEMM: &str = moe!("moe_gemm");
const MOE_GEMM_GGUF: &str = moe!("moe_gemm_gguf");
const MOE_GEMM_WITHOUT_CUDA: &str = without_cuda!("moe_gemm", "Tensor", "");
const MOE_GEMM_GGUF_WITHOUT_CUDA: &str = without_cuda!("moe_gemm_gguf", "QTensor", "    _: candle::DType,\n");

const fn delegate(name: &'static str, file: &'static str, owner: &'static str, body: &'static str) -> Rule {
    Rule { name, file, expect: 1, edit: Edit::MethodBody { owner, method: "cuda_fwd", body } }
}

const SDPA: &str = r#"
    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        q: &candle::RocmStorage,
        q_l: &Layout,
        k: &candle::RocmStorage,
        k_l: &Layout,
        v: &candle::RocmStorage,
        v_l: &Layout,
    ) -> Result<(candle::RocmStorage, Shape)> {
        let attention = crate::rocm::Attention {
            scale: self.scale,
            softcap: self.softcapping,
            mask: self.mask.as_ref(),
            causal: self.do_causal,
        };
        attention.forward((q, q_l), (k, k_l), (v, v_l))
    }
"#;

const SDPA_DOCS: &str = "\
/// ## On ROCm:
/// - f16, bf16 and f32, accumulated in f32; one launch for any `seq` and `kv_seq`
/// - Arbitrary strides; any `hidden` and `v_hidden` up to 512
/// - The mask has the dtype of `q` and is broadcast to its full shape
/// - Masking, causal masking and softcapping can be combined
/// - Causal: the last query sees every key, and each earlier query one key less
/// - The result of a query without visible keys is zero
///
";
