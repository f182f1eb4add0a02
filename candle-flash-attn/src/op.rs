//! Custom ops of q, k and v, and the softmax statistics that their gradients need.
use std::sync::{Arc, OnceLock};

use candle::{bail, CustomOp3, Result, Tensor};

#[cfg(feature = "rocm")]
use crate::rocm::{Checked, Operands};
use crate::varlen::FlashAttnVarLen;
use crate::FlashAttn;

/// Error for CUDA tensors.
const NOT_ON_CUDA: &str =
    "flash-attn: this crate supports ROCm only. For CUDA tensors, depend on the unpatched \
    candle-flash-attn of crates.io, and on this crate under another name: \
    `candle-flash-attn-rocm = { package = \"candle-flash-attn\", git = .. }`";

/// Attention of a batch, or of variable-length sequences.
pub(crate) trait AttentionOp {
    const NAME: &'static str;

    /// Returns the cell for the statistics of a forward pass, if they are to be kept.
    #[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device computes them"))]
    fn statistics(&self) -> Option<&OnceLock<Tensor>> {
        None
    }

    /// Checks q, k and v, and calls `compute` with the result.
    #[cfg(feature = "rocm")]
    fn checked<T>(&self, operands: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T>;
}

macro_rules! attention_op {
    ($op:ty, $name:literal) => {
        impl AttentionOp for $op {
            const NAME: &'static str = $name;

            #[cfg(feature = "rocm")]
            fn checked<T>(&self, of: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T> {
                self.check(of, compute)
            }
        }
    };
}
attention_op!(FlashAttn, "flash-attn");
attention_op!(FlashAttnVarLen, "flash-attn-varlen");

/// An op that keeps its statistics for the backward pass or the caller.
pub(crate) struct WithStatistics<O> {
    #[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device computes it"))]
    op: O,
    statistics: Arc<OnceLock<Tensor>>,
}

impl<O: AttentionOp> AttentionOp for WithStatistics<O> {
    const NAME: &'static str = O::NAME;

    fn statistics(&self) -> Option<&OnceLock<Tensor>> {
        Some(&self.statistics)
    }

    #[cfg(feature = "rocm")]
    fn checked<T>(&self, operands: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T> {
        self.op.checked(operands, compute)
    }
}

/// Applies an op. Statistics are computed only if an operand tracks gradients.
pub(crate) fn apply<O>(op: O, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>
where
    O: AttentionOp + CustomOp3 + Send + Sync + 'static,
{
    if [q, k, v].iter().any(|tensor| tensor.track_op()) {
        return Ok(with_statistics(op, q, k, v)?.0);
    }
    q.apply_op3(k, v, op)
}

/// Applies an op and returns its result and statistics.
pub(crate) fn with_statistics<O>(op: O, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)>
where
    O: AttentionOp + Send + Sync + 'static,
{
    let statistics = Arc::new(OnceLock::new());
    let out = q.apply_op3(k, v, WithStatistics { op, statistics: statistics.clone() })?;
    match statistics.get() {
        Some(statistics) => Ok((out, statistics.clone())),
        None => bail!("{}: softmax statistics are not supported on {:?}", O::NAME, out.device().location()),
    }
}

/// Defines the forward pass of an unsupported device, which returns an error.
macro_rules! unsupported {
    ($name:ident, $storage:ty, $text:literal) => {
        fn $name(
            &self,
            _: &$storage,
            _: &candle::Layout,
            _: &$storage,
            _: &candle::Layout,
            _: &$storage,
            _: &candle::Layout,
        ) -> Result<($storage, candle::Shape)> {
            bail!($text)
        }
    };
}

/// Defines a function of upstream's API: its parameters after q, k and v, and the op that `$compute` applies to them.
macro_rules! attention {
    ($(#[$about:meta])* $name:ident($($parameter:ident: $type:ty),*) $compute:ident -> $result:ty $op:block) => {
        $(#[$about])*
        ///
        /// # Errors
        /// See the [crate] documentation.
        #[allow(clippy::too_many_arguments)]
        pub fn $name(q: &Tensor, k: &Tensor, v: &Tensor, $($parameter: $type),*) -> Result<$result> {
            $compute($op, q, k, v)
        }
    };
}
pub(crate) use attention;

/// Implements `CustomOp3` for ROCm storages; other devices return an error.
macro_rules! custom_op {
    ([$($of:tt)*] $op:ty) => {
        impl<$($of)*> CustomOp3 for $op {
            fn name(&self) -> &'static str {
                Self::NAME
            }

            unsupported!(cpu_fwd, candle::CpuStorage, "no cpu support for flash-attn");
            unsupported!(cuda_fwd, candle::CudaStorage, "{NOT_ON_CUDA}");

            #[cfg(feature = "rocm")]
            fn rocm_fwd(
                &self,
                q: &candle::RocmStorage,
                q_layout: &candle::Layout,
                k: &candle::RocmStorage,
                k_layout: &candle::Layout,
                v: &candle::RocmStorage,
                v_layout: &candle::Layout,
            ) -> Result<(candle::RocmStorage, candle::Shape)> {
                crate::rocm::forward(self, [(q, q_layout), (k, k_layout), (v, v_layout)])
            }

            #[cfg(feature = "rocm")]
            fn bwd(
                &self,
                q: &Tensor,
                k: &Tensor,
                v: &Tensor,
                result: &Tensor,
                grad: &Tensor,
            ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
                let [q, k, v] = crate::rocm::backward(self, [q, k, v], result, grad)?;
                Ok((q, k, v))
            }
        }
    };
}
custom_op!([] FlashAttn);
custom_op!([] FlashAttnVarLen);
custom_op!([O: AttentionOp] WithStatistics<O>);
