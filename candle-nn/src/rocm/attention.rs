//! Scaled dot-product attention: implements `sdpa` with [`candle::rocm::Attention`].
use candle::backend::{BackendDevice, BackendStorage};
use candle::{rocm, Layout, Result, RocmStorage, Shape, Storage, Tensor};

const OP: &str = "sdpa";

/// Attention: softmax(q kᵀ scale + mask) v. With a `softcap` c other than 1, the scores become
/// c tanh(q kᵀ scale / c).
pub struct Attention<'a> {
    pub scale: f32,
    pub softcap: f32,
    /// Bias that is added to the scores, in the dtype of q; broadcast to (batch, heads, queries, keys).
    pub mask: Option<&'a Tensor>,
    /// If true, applies a causal mask in which the last query attends to all keys.
    pub causal: bool,
}

type Operand<'a> = (&'a RocmStorage, &'a Layout);

impl Attention<'_> {
    /// Computes attention for q (batch, heads, queries, width), k (batch, key heads, keys, width) and v (batch,
    /// key heads, keys, value width), in f16, bf16 or f32 and with any strides. `heads` must be a multiple of
    /// `key heads`, and widths at most 512. Returns (batch, heads, queries, value width), computed in f32. A
    /// query without keys gives zeros.
    ///
    /// # Errors
    /// If shapes or dtypes do not match or are not supported.
    pub fn forward(&self, q: Operand, k: Operand, v: Operand) -> Result<(RocmStorage, Shape)> {
        let (batch, heads, queries, _) = q.1.shape().dims4()?;
        let (_, _, keys, value_width) = v.1.shape().dims4()?;
        let mask = self.mask.map(|mask| mask.broadcast_as((batch, heads, queries, keys))).transpose()?;
        let guard = mask.as_ref().map(Tensor::storage_and_layout);
        let mask = match &guard {
            Some((storage, layout)) => match &**storage {
                Storage::Rocm(storage) => Some((storage, *layout)),
                other => {
                    let (lhs, rhs) = (q.0.device().location(), other.device().location());
                    return Err(candle::Error::DeviceMismatchBinaryOp { lhs, rhs, op: OP }.bt());
                }
            },
            None => None,
        };
        let attention = rocm::Attention {
            scale: self.scale,
            softcap: (self.softcap != 1.0).then_some(self.softcap),
            window: (None, self.causal.then_some(0)),
            mask,
            ..rocm::Attention::default()
        };
        let shape = Shape::from((batch, heads, queries, value_width));
        let attended = attention.forward(OP, q, k, v, &Layout::contiguous(&shape))?;
        Ok((attended.out, shape))
    }
}
