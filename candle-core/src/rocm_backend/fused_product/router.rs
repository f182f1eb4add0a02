//! The choice of experts by a router.
use super::invalid;
use super::row::dense;
use crate::op::BackpropOp;
use crate::rocm_backend::ops::route::{route, RouteSettings};
use crate::{DType, Result, Storage, Tensor};
use hip_kernels::contract::{
    DevicePtr, ROUTE_CHOSEN_SOFTMAX, ROUTE_EXPERTS, ROUTE_SIGMOID, ROUTE_SOFTMAX, ROUTE_SPARSE_MIXER,
    ROUTE_USED,
};

const OP: &str = "router";

/// Function that computes the weights of a row's experts, which are those with the highest scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterFunction {
    /// Softmax of the scores of all experts.
    Softmax,
    /// Softmax of the scores of the chosen experts.
    ChosenSoftmax,
    /// Sigmoid of the score.
    Sigmoid,
    /// SparseMixer: experts are chosen one by one. The weight of each is its softmax among the remaining experts
    /// whose scores differ from the highest by at most `tolerance` times the larger magnitude of the two.
    SparseMixer {
        /// Maximum difference from the highest score, relative to the larger magnitude of the two.
        tolerance: f32,
    },
}

/// Router of a mixture of experts: chooses the experts of each row and computes their weights, in one launch on a ROCm device.
/// Among experts with equal scores, the first is chosen. NaN is never chosen before a number.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// Number of experts of a row.
    pub used: usize,
    /// Function of the weights.
    pub function: RouterFunction,
    /// If true, weights are divided by their sum plus 1e-20.
    pub normalized: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Number of groups of adjacent experts, and number of groups that are chosen for a row. Groups are ranked by
    /// their best score, or with a correction by the sum of their best two. Scores of other groups count as 0.
    pub groups: Option<(usize, usize)>,
    /// Corrections that are added to the scores when experts are chosen, f32 (experts). They do not change the
    /// weights.
    pub correction: Option<&'a Tensor>,
}

impl Router<'_> {
    /// Returns the experts of each row of `scores` (rows, experts), u32 (rows, used), and their weights, f32 (rows, used).
    /// Returns `None` if there is no kernel: on other devices, if the scores are not dense and f32, for more than 512 experts,
    /// and for more than 32 chosen ones or groups.
    ///
    /// # Errors
    /// If sizes do not match, or the device fails.
    pub fn route(&self, scores: &Tensor) -> Result<Option<(Tensor, Tensor)>> {
        let (rows, stack) = scores.dims2()?;
        if self.used > stack {
            return Err(invalid(format!(
                "{OP}: {} experts are to be chosen for a row, but there are only {stack}",
                self.used
            )));
        }
        if let Some(correction) = self.correction.filter(|correction| correction.dims() != [stack]) {
            return Err(invalid(format!(
                "{OP}: the correction has shape {:?}, expected [{stack}]",
                correction.shape()
            )));
        }
        let groups = self.groups.unwrap_or((1, 1));
        let least = if self.correction.is_some() { 2 } else { 1 };
        let fits = groups.0 > 0 && stack.is_multiple_of(groups.0) && (1..=groups.0).contains(&groups.1);
        if !fits || groups.0 > 1 && stack / groups.0 < least {
            return Err(invalid(format!("{OP}: {stack} experts cannot be divided into {groups:?} groups")));
        }
        if stack > ROUTE_EXPERTS || self.used.max(groups.0) > ROUTE_USED {
            return Ok(None);
        }
        let guard = scores.storage();
        let Storage::Rocm(storage) = &*guard else { return Ok(None) };
        let correction = dense(storage, self.correction, DType::F32)?;
        let Some(at) = dense(storage, Some(scores), DType::F32)? else { return Ok(None) };
        if correction.is_some() != self.correction.is_some() {
            return Ok(None);
        }
        let (function, tolerance) = match self.function {
            RouterFunction::Softmax => (ROUTE_SOFTMAX, 0.0),
            RouterFunction::ChosenSoftmax => (ROUTE_CHOSEN_SOFTMAX, 0.0),
            RouterFunction::Sigmoid => (ROUTE_SIGMOID, 0.0),
            RouterFunction::SparseMixer { tolerance } => (ROUTE_SPARSE_MIXER, tolerance),
        };
        let Self { used, normalized, scale, .. } = *self;
        let settings = RouteSettings { rows, stack, used, groups, function, tolerance, normalized, scale };
        let correction = correction.unwrap_or(DevicePtr::NULL);
        // SAFETY: the shapes were checked, and each address against its buffer.
        let made = unsafe { route(storage, (at, correction), &settings)? };
        let [experts, weights] = made.map(|storage| {
            crate::tensor::from_storage(Storage::Rocm(storage), (rows, used), BackpropOp::none(), false)
        });
        Ok(Some((experts, weights)))
    }
}
