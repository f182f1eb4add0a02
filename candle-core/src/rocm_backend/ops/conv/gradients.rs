//! Convolutions of all groups as one operation of the autograd graph. The gradient of each direction is another
//! direction, so that higher-order gradients work.
use super::convolve::compute;
use super::operand::flat;
use super::shape::{shape1d, shape2d, transposed_shape1d, transposed_shape2d};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::error::bail;
use crate::op::BackpropOp;
use crate::rocm_backend::libraries::{ConvShape, Direction};
use crate::rocm_backend::ops::elementwise;
use crate::rocm_backend::storage::RocmStorage;
use crate::sizes::check_convolution;
use crate::{CpuStorage, CustomOp2, Layout, Result, Shape, Storage, Tensor};

/// Computes all groups of a convolution in one operation on a ROCm device. Returns `None` on other devices, and for a
/// single group without gradients.
pub(crate) fn grouped_conv1d(
    x: &Tensor,
    kernel: &Tensor,
    p: &ParamsConv1D,
    groups: usize,
) -> Result<Option<Tensor>> {
    whole(x, kernel, groups, || {
        Ok(Convolve { op: "conv1d", flat: true, shape: shape1d("conv1d", x.dtype(), p, groups)? })
    })
}

/// Like [`grouped_conv1d`], in two dimensions.
pub(crate) fn grouped_conv2d(
    x: &Tensor,
    kernel: &Tensor,
    p: &ParamsConv2D,
    groups: usize,
) -> Result<Option<Tensor>> {
    whole(x, kernel, groups, || {
        Ok(Convolve { op: "conv2d", flat: false, shape: shape2d("conv2d", x.dtype(), p, groups)? })
    })
}

/// Like [`grouped_conv1d`], for a transposed convolution.
pub(crate) fn grouped_conv_transpose1d(
    x: &Tensor,
    kernel: &Tensor,
    p: &ParamsConvTranspose1D,
    groups: usize,
) -> Result<Option<Tensor>> {
    const OP: &str = "conv_transpose1d";
    whole(x, kernel, groups, || {
        Ok(Convolve { op: OP, flat: true, shape: transposed_shape1d(OP, x.dtype(), p, groups)? })
    })
}

/// Like [`grouped_conv1d`], for a transposed convolution in two dimensions, for which upstream has no groups.
pub(crate) fn grouped_conv_transpose2d(
    x: &Tensor,
    kernel: &Tensor,
    p: &ParamsConvTranspose2D,
) -> Result<Option<Tensor>> {
    const OP: &str = "conv_transpose2d";
    whole(x, kernel, 1, || Ok(Convolve { op: OP, flat: false, shape: transposed_shape2d(OP, x.dtype(), p)? }))
}

/// Computes `conv1d` with (padding, stride, dilation, groups) and adds a bias (c_out) to the result in place. Returns `None`
/// if the caller must use upstream's operations: on other devices, if gradients are tracked, and for invalid sizes or
/// dtypes, for which upstream returns the error.
///
/// # Errors
/// If there is not enough memory for the result, or a launch fails.
pub fn conv1d_with_bias(
    x: &Tensor,
    kernel: &Tensor,
    bias: &Tensor,
    [padding, stride, dilation, groups]: [usize; 4],
) -> Result<Option<Tensor>> {
    let (&[b_size, c_in, l_in], &[c_out, c_in_k, k_size]) = (x.dims(), kernel.dims()) else {
        return Ok(None);
    };
    let (steps, channels) = ([padding, stride, dilation], [c_in, c_out]);
    let fits = check_convolution("conv1d", &[(l_in, k_size)], steps, channels, groups).is_ok();
    if !fits || c_in != c_in_k * groups {
        return Ok(None);
    }
    let (c_in, c_out) = (c_in_k, c_out / groups);
    let p =
        ParamsConv1D { b_size, l_in, c_out, c_in, k_size, padding, stride, dilation, cudnn_fwd_algo: None };
    with_bias(x, kernel, bias, || {
        Ok(Convolve { op: "conv1d", flat: true, shape: shape1d("conv1d", x.dtype(), &p, groups)? })
    })
}

/// Like [`conv1d_with_bias`], in two dimensions.
///
/// # Errors
/// See [`conv1d_with_bias`].
pub fn conv2d_with_bias(
    x: &Tensor,
    kernel: &Tensor,
    bias: &Tensor,
    [padding, stride, dilation, groups]: [usize; 4],
) -> Result<Option<Tensor>> {
    let (&[b_size, c_in, i_h, i_w], &[c_out, c_in_k, k_h, k_w]) = (x.dims(), kernel.dims()) else {
        return Ok(None);
    };
    let (steps, channels) = ([padding, stride, dilation], [c_in, c_out]);
    let fits = check_convolution("conv2d", &[(i_h, k_h), (i_w, k_w)], steps, channels, groups).is_ok();
    if !fits || c_in != c_in_k * groups {
        return Ok(None);
    }
    let (c_in, c_out) = (c_in_k, c_out / groups);
    let cudnn_fwd_algo = None;
    let p =
        ParamsConv2D { b_size, i_h, i_w, k_h, k_w, c_out, c_in, padding, stride, dilation, cudnn_fwd_algo };
    with_bias(x, kernel, bias, || {
        Ok(Convolve { op: "conv2d", flat: false, shape: shape2d("conv2d", x.dtype(), &p, groups)? })
    })
}

fn with_bias(
    x: &Tensor,
    kernel: &Tensor,
    bias: &Tensor,
    op: impl FnOnce() -> Result<Convolve>,
) -> Result<Option<Tensor>> {
    let device = x.device();
    let on_one_device = device.is_rocm() && [kernel, bias].iter().all(|t| device.same_device(t.device()));
    let same_dtype = x.dtype() == kernel.dtype() && x.dtype() == bias.dtype();
    let tracked = x.track_op() || kernel.track_op() || bias.track_op();
    if !on_one_device || !same_dtype || tracked || bias.dims() != &kernel.dims()[..1] {
        return Ok(None);
    }
    let op = op()?;
    let (xs, ks, bs) = (x.storage(), kernel.storage(), bias.storage());
    let (Storage::Rocm(xs), Storage::Rocm(ks), Storage::Rocm(bs)) = (&*xs, &*ks, &*bs) else {
        return Ok(None);
    };
    let (mut dst, shape) = op.rocm_fwd(xs, x.layout(), ks, kernel.layout())?;
    if shape.elem_count() > 0 {
        let mut strides = vec![0; shape.rank()];
        strides[1] = bias.stride()[0];
        let layout = Layout::new(shape.clone(), strides, bias.layout().start_offset());
        elementwise::add_to(&mut dst, shape.dims(), bs, &layout)?;
    }
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), shape, BackpropOp::none(), false)))
}

/// Applies the convolution that `op` returns, in the graph if gradients are tracked.
fn whole(
    x: &Tensor,
    kernel: &Tensor,
    groups: usize,
    op: impl FnOnce() -> Result<Convolve>,
) -> Result<Option<Tensor>> {
    let tracked = x.track_op() || kernel.track_op();
    let is_rocm = x.device().is_rocm() && x.device().same_device(kernel.device());
    if !is_rocm || (groups < 2 && !tracked) {
        return Ok(None);
    }
    let op = op()?;
    if tracked && x.dtype().is_float() {
        return x.apply_op2(kernel, op).map(Some);
    }
    // Like `apply_op2`, without storing the operation for a graph.
    let (src, weights) = (x.storage(), kernel.storage());
    let (Storage::Rocm(src), Storage::Rocm(weights)) = (&*src, &*weights) else { return Ok(None) };
    let (dst, dims) = op.rocm_fwd(src, x.layout(), weights, kernel.layout())?;
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), dims, BackpropOp::none(), false)))
}

/// A convolution of two operands, in the order given by the variants of [`Direction`].
struct Convolve {
    op: &'static str,
    /// True for one-dimensional convolutions: (batch, channel, length).
    flat: bool,
    shape: ConvShape,
}

impl Convolve {
    fn with_direction(&self, direction: Direction) -> Self {
        Self { op: self.op, flat: self.flat, shape: self.shape.with_direction(direction) }
    }

    fn result_dims(&self) -> Shape {
        let [a, b, h, w] = self.shape.result();
        match self.flat {
            true => (a, b, w).into(),
            false => (a, b, h, w).into(),
        }
    }
}

impl CustomOp2 for Convolve {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("{}: the operation for all groups is only supported on ROCm devices", self.op)
    }

    fn rocm_fwd(
        &self,
        a: &RocmStorage,
        a_layout: &Layout,
        b: &RocmStorage,
        b_layout: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        let result = match self.flat {
            true => compute(self.op, &self.shape, [(a, &flat(a_layout)), (b, &flat(b_layout))])?,
            false => compute(self.op, &self.shape, [(a, a_layout), (b, b_layout)])?,
        };
        Ok((result, self.result_dims()))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        use Direction::{Input, Output, Weights};
        let gradient_of =
            |a: &Tensor, b: &Tensor, direction| a.apply_op2(b, self.with_direction(direction)).map(Some);
        match self.shape.direction {
            // a is x, b the weights; `gradient` is that of y.
            Output => Ok((gradient_of(gradient, b, Input)?, gradient_of(a, gradient, Weights)?)),
            // a is y, b the weights; `gradient` is that of x.
            Input => Ok((gradient_of(gradient, b, Output)?, gradient_of(gradient, a, Weights)?)),
            // a is x, b is y; `gradient` is that of the weights.
            Weights => Ok((gradient_of(b, gradient, Input)?, gradient_of(a, gradient, Output)?)),
        }
    }
}
