//! What is computed, as a custom op of q, k and v, and the statistics of its softmax, which its gradients need.
use std::sync::{Arc, OnceLock};

use candle::{bail, CustomOp3, Result, Tensor};

#[cfg(feature = "rocm")]
use crate::rocm::{Checked, Operands};
use crate::varlen::FlashAttnVarLen;
use crate::FlashAttn;

/// What a tensor of CUDA is answered.
const NOT_ON_CUDA: &str =
    "flash-attn: this crate computes on ROCm. For tensors of CUDA name the candle-flash-attn of \
    crates.io in Cargo.toml, not patched, beside this one under another name: \
    `candle-flash-attn-rocm = { package = \"candle-flash-attn\", git = .. }`";

/// Attention of a batch, or of sequences.
pub(crate) trait Attend {
    const NAME: &'static str;

    /// Where a forward pass leaves its statistics, if they are wanted.
    #[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device computes them"))]
    fn kept(&self) -> Option<&OnceLock<Tensor>> {
        None
    }

    /// Checks q, k and v, and has `compute` go on.
    #[cfg(feature = "rocm")]
    fn checked<T>(&self, operands: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T>;
}

macro_rules! attend {
    ($op:ty, $name:literal) => {
        impl Attend for $op {
            const NAME: &'static str = $name;

            #[cfg(feature = "rocm")]
            fn checked<T>(&self, of: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T> {
                self.check(of, compute)
            }
        }
    };
}
attend!(FlashAttn, "flash-attn");
attend!(FlashAttnVarLen, "flash-attn-varlen");

/// An op that keeps its statistics: as long as a graph holds it, or until they are given away.
pub(crate) struct Keeping<O> {
    #[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device computes it"))]
    op: O,
    statistics: Arc<OnceLock<Tensor>>,
}

impl<O: Attend> Attend for Keeping<O> {
    const NAME: &'static str = O::NAME;

    fn kept(&self) -> Option<&OnceLock<Tensor>> {
        Some(&self.statistics)
    }

    #[cfg(feature = "rocm")]
    fn checked<T>(&self, operands: Operands, compute: impl FnOnce(Checked) -> Result<T>) -> Result<T> {
        self.op.checked(operands, compute)
    }
}

/// The result. Statistics are computed only if something will ask for gradients.
pub(crate) fn apply<O>(op: O, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>
where
    O: Attend + CustomOp3 + Send + Sync + 'static,
{
    if [q, k, v].iter().any(|tensor| tensor.track_op()) {
        return Ok(with_statistics(op, q, k, v)?.0);
    }
    q.apply_op3(k, v, op)
}

/// The result, and for each query the logarithm of the sum of its exponents.
pub(crate) fn with_statistics<O>(op: O, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)>
where
    O: Attend + Send + Sync + 'static,
{
    let statistics = Arc::new(OnceLock::new());
    let out = q.apply_op3(k, v, Keeping { op, statistics: statistics.clone() })?;
    match statistics.get() {
        Some(statistics) => Ok((out, statistics.clone())),
        None => bail!("{}: no softmax statistics on {:?}", O::NAME, out.device().location()),
    }
}

/// A forward pass on a device that has no kernels.
macro_rules! refusing {
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

/// A function of upstream's API: its parameters after q, k and v, and the op that `$compute` applies to these.
macro_rules! attention {
    ($(#[$about:meta])* $name:ident($($parameter:ident: $type:ty),*) $compute:ident -> $made:ty $op:block) => {
        $(#[$about])*
        ///
        /// # Errors
        /// As the [crate] says.
        #[allow(clippy::too_many_arguments)]
        pub fn $name(q: &Tensor, k: &Tensor, v: &Tensor, $($parameter: $type),*) -> Result<$made> {
            $compute($op, q, k, v)
        }
    };
}
pub(crate) use attention;

/// A custom op whose storages of ROCm `rocm` computes; other devices have none.
macro_rules! custom_op {
    ([$($of:tt)*] $op:ty) => {
        impl<$($of)*> CustomOp3 for $op {
            fn name(&self) -> &'static str {
                Self::NAME
            }

            refusing!(cpu_fwd, candle::CpuStorage, "no cpu support for flash-attn");
            refusing!(cuda_fwd, candle::CudaStorage, "{NOT_ON_CUDA}");

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
custom_op!([O: Attend] Keeping<O>);
