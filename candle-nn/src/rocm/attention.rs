//! Scaled dot product attention: [`candle::rocm::Attention`] as `sdpa` has it.
use candle::backend::{BackendDevice, BackendStorage};
use candle::{rocm, Layout, Result, RocmStorage, Shape, Storage, Tensor};

const OP: &str = "sdpa";

/// softmax(q kᵀ scale + mask) v. With a `softcap` c other than 1, c tanh(q kᵀ scale / c) takes the place of q
/// kᵀ scale.
pub struct Attention<'a> {
    pub scale: f32,
    pub softcap: f32,
    /// Summands of the scores, in the dtype of q; its shape is broadcast to (batch, heads, queries, keys).
    pub mask: Option<&'a Tensor>,
    /// The last query sees every key, each query before it one key less.
    pub causal: bool,
}

type Operand<'a> = (&'a RocmStorage, &'a Layout);

impl Attention<'_> {
    /// q is (batch, heads, queries, width), k (batch, key heads, keys, width) and v (batch, key heads, keys,
    /// value width), of any strides; `heads` is a multiple of `key heads`. The result is (batch, heads,
    /// queries, value width). For f16, bf16 and f32, computed in f32; no head may be wider than 512. A query
    /// without a single key to look at gives zeros.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are others than these.
    pub fn forward(&self, q: Operand, k: Operand, v: Operand) -> Result<(RocmStorage, Shape)> {
        let (batch, heads, queries, _) = q.1.shape().dims4()?;
        let (_, _, keys, value_width) = v.1.shape().dims4()?;
        let mask = self.mask.map(|mask| mask.broadcast_as((batch, heads, queries, keys))).transpose()?;
        let held = mask.as_ref().map(Tensor::storage_and_layout);
        let mask = match &held {
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
