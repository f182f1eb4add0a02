//! Attention of a batch of sequences with equal lengths.
use candle::{Result, Tensor};

use crate::op::{apply, attention, with_statistics};

/// Custom op that computes softmax(q kᵀ · scale) v with optional ALiBi, window and softcap.
///
/// ```no_run
/// # use candle::{Device, DType, Tensor};
/// # let q = Tensor::zeros((1, 64, 8, 64), DType::F16, &Device::new_rocm(0)?)?;
/// # let (k, v) = (q.clone(), q.clone());
/// let op = candle_flash_attn::FlashAttn {
///     softmax_scale: 0.125,
///     alibi_slopes: None,
///     window_size_left: Some(16),
///     window_size_right: Some(0),
///     softcap: None,
/// };
/// let out = q.apply_op3(&k, &v, op)?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct FlashAttn {
    /// Factor of the scores, often 1 / √width.
    pub softmax_scale: f32,
    /// ALiBi slopes, f32 (heads): subtracted from a score for each position between query and key.
    pub alibi_slopes: Option<Tensor>,
    /// Number of keys that a query sees before its own position; all if `None` or more than there are keys.
    pub window_size_left: Option<usize>,
    /// Number of keys that a query sees after its own position; `Some(0)` with `None` on the left is a causal mask.
    pub window_size_right: Option<usize>,
    /// With c above 0, the score is replaced by c tanh(score / c).
    pub softcap: Option<f32>,
}

impl FlashAttn {
    pub(crate) fn scaled(softmax_scale: f32) -> Self {
        Self { softmax_scale, ..Self::default() }
    }

    pub(crate) fn causal(self, causal: bool) -> Self {
        self.windowed(None, causal.then_some(0))
    }

    pub(crate) fn windowed(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { window_size_left: left, window_size_right: right, ..self }
    }

    pub(crate) fn alibi(self, slopes: Option<&Tensor>) -> Self {
        Self { alibi_slopes: slopes.cloned(), ..self }
    }

    pub(crate) fn capped(self, softcap: Option<f32>) -> Self {
        Self { softcap, ..self }
    }
}

attention! {
    /// Computes softmax(q kᵀ · `softmax_scale`) v. If `causal`, a query does not see keys after its position.
    ///
    /// * `q` - (batch, queries, heads, width), f16, bf16 or f32
    /// * `k` - (batch, keys, key heads, width)
    /// * `v` - (batch, keys, key heads, value width)
    ///
    /// The result is (batch, queries, heads, value width).
    flash_attn(softmax_scale: f32, causal: bool) apply -> Tensor {
        FlashAttn::scaled(softmax_scale).causal(causal)
    }
}

attention! {
    /// Like [`flash_attn`], with a window of `window_size_left` keys before a query's position and `window_size_right` after it.
    flash_attn_windowed(softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>) apply -> Tensor {
        FlashAttn::scaled(softmax_scale).windowed(window_size_left, window_size_right)
    }
}

attention! {
    /// Like [`flash_attn`], with ALiBi: `alibi_slopes`, f32 (heads), times the distance is subtracted from the score.
    flash_attn_alibi(alibi_slopes: &Tensor, softmax_scale: f32, causal: bool) apply -> Tensor {
        FlashAttn::scaled(softmax_scale).alibi(Some(alibi_slopes)).causal(causal)
    }
}

attention! {
    /// Like [`flash_attn_windowed`], with the slopes of [`flash_attn_alibi`].
    flash_attn_alibi_windowed(
        alibi_slopes: &Tensor, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>
    ) apply -> Tensor {
        FlashAttn::scaled(softmax_scale).alibi(Some(alibi_slopes))
            .windowed(window_size_left, window_size_right)
    }
}

attention! {
    /// Like [`flash_attn_alibi_windowed`], with optional slopes and softcap · tanh(score / softcap) unless `softcap` <= 0.
    flash_attn_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, softcap: f32
    ) apply -> Tensor {
        FlashAttn::scaled(softmax_scale).alibi(alibi_slopes)
            .windowed(window_size_left, window_size_right).capped(Some(softcap))
    }
}

attention! {
    /// Like [`flash_attn_alibi_windowed_softcap`], with an optional softcap. Also returns the softmax statistics, f32 (batch,
    /// heads, queries): the logarithm of the sum of exp(score) over the visible keys, negative infinity without any. They
    /// allow combining the results of parts of the keys. The result has gradients, the statistics have none.
    flash_attn_with_statistics(
        alibi_slopes: Option<&Tensor>, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, softcap: Option<f32>
    ) with_statistics -> (Tensor, Tensor) {
        FlashAttn::scaled(softmax_scale).alibi(alibi_slopes)
            .windowed(window_size_left, window_size_right).capped(softcap)
    }
}
