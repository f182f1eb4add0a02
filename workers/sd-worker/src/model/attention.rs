//! Attention, layer normalization and activations shared by text encoder and UNet.
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Module, VarBuilder, ops};

/// Maximum size in bytes of the attention scores computed at a time.
const MAX_SCORE_BYTES: usize = 128 << 20;

/// Activation function of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Activation {
    /// x · sigmoid(1.702 x), used by CLIP.
    #[serde(rename = "quick_gelu")]
    QuickGelu,
    /// x · Φ(x), the exact GELU.
    #[serde(rename = "gelu")]
    Gelu,
    /// GELU in the tanh approximation, used by the upstream UNet.
    #[serde(rename = "gelu_new", alias = "gelu_pytorch_tanh")]
    GeluTanh,
}

impl Module for Activation {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::QuickGelu => x * ops::sigmoid(&(x * 1.702)?)?,
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
        }
    }
}

/// Layer norm that supports training, because the fused operation has no gradient.
#[derive(Debug, Clone)]
pub(super) struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    pub fn new(width: usize, eps: f64, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", candle_nn::Init::Const(1.0))?,
            bias: vb.get_with_hints(width, "bias", candle_nn::Init::Const(0.0))?,
            eps: eps as f32,
        })
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let norm =
            if self.weight.track_op() || x.track_op() { ops::layer_norm_slow } else { ops::layer_norm };
        norm(&x.contiguous()?, &self.weight, &self.bias, self.eps)
    }
}

/// Computes softmax(q kᵀ / √width) v of (batch, positions, heads, width) as (batch, positions, heads · width).
///
/// Scores are computed in f32, by the flash-attention kernel on ROCm and in chunks of queries elsewhere.
/// Training computes all scores at once. `causal` requires as many queries as keys.
pub(super) fn attention(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Result<Tensor> {
    let (batch, queries, heads, width) = q.dims4()?;
    let scale = 1.0 / (width as f64).sqrt();
    if cfg!(feature = "rocm") && q.device().is_rocm() && width % 8 == 0 && width <= 512 {
        let out = candle_flash_attn::flash_attn(q, k, v, scale as f32, causal)?;
        return out.reshape((batch, queries, heads * width));
    }
    let dtype = q.dtype();
    let rows = |x: &Tensor| x.transpose(1, 2)?.to_dtype(DType::F32)?.contiguous();
    let (q, k, v) = ((rows(q)? * scale)?, rows(k)?, rows(v)?);
    let keys = k.dim(2)?;
    let k = k.t()?;
    let mask = if causal { Some(causal_mask(queries, q.device())?) } else { None };
    let training = q.track_op() || k.track_op();
    let chunk = match training {
        true => queries,
        false => (MAX_SCORE_BYTES / (4 * batch * heads * keys)).clamp(1, queries),
    };
    let mut chunks = Vec::with_capacity(queries.div_ceil(chunk));
    for start in (0..queries).step_by(chunk) {
        let count = chunk.min(queries - start);
        let mut scores = q.narrow(2, start, count)?.contiguous()?.matmul(&k)?;
        if let Some(mask) = &mask {
            scores = scores.broadcast_add(&mask.narrow(0, start, count)?)?;
        }
        let weights =
            if training { ops::softmax(&scores, D::Minus1)? } else { ops::softmax_last_dim(&scores)? };
        chunks.push(weights.matmul(&v)?.to_dtype(dtype)?);
    }
    let out = if chunks.len() == 1 { chunks.swap_remove(0) } else { Tensor::cat(&chunks, 2)? };
    out.transpose(1, 2)?.reshape((batch, queries, heads * width))
}

fn causal_mask(positions: usize, device: &Device) -> Result<Tensor> {
    let mask: Vec<f32> = (0..positions * positions)
        .map(|i| if i % positions > i / positions { f32::NEG_INFINITY } else { 0.0 })
        .collect();
    Tensor::from_vec(mask, (positions, positions), device)
}
