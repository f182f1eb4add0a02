//! Converts upstream's parameters to the sizes of a convolution, and checks them against the limits of the kernels.
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::rocm_backend::libraries::{Axis, ConvShape, Direction};
use crate::rocm_backend::RocmError;
use crate::{DType, Result};

impl Axis {
    /// Returns the axis of a convolution. `crate::sizes` has checked that the output is not empty.
    pub(super) fn plain(
        op: &'static str,
        (size, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
    ) -> Result<Self> {
        let axis = Self { size, taps, padding, stride, dilation, out: 0 };
        axis.counted(op, padding.saturating_mul(2))?;
        let axis = Self { out: (size + 2 * padding - dilation * (taps - 1) - 1) / stride + 1, ..axis };
        axis.check_divisible(op)?;
        Ok(axis)
    }

    /// Returns the axis of the convolution that a transposed convolution of an input of size `from` reverses.
    pub(super) fn transposed(
        op: &'static str,
        (from, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
        output_padding: usize,
    ) -> Result<Self> {
        let size = (from - 1) * stride + dilation * (taps - 1) + output_padding + 1 - 2 * padding;
        let axis = Self { size, taps, padding, stride, dilation, out: from };
        axis.counted(op, padding.saturating_mul(2))?;
        axis.check_divisible(op)?;
        Ok(axis)
    }

    /// Checks the largest number that kernels divide to map an input index to output positions: see `period`.
    fn check_divisible(self, op: &'static str) -> Result<()> {
        let lifted = self.period().0.saturating_mul(self.dilation);
        self.counted(op, self.size.saturating_add(self.padding).saturating_add(lifted))
    }

    /// For a transposed convolution, returns the distance between two taps that contribute to the same output, and the
    /// distance between their inputs: stride / gcd and dilation / gcd.
    pub(super) fn period(self) -> (usize, usize) {
        let (mut common, mut rest) = (self.stride, self.dilation);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        (self.stride / common.max(1), self.dilation / common.max(1))
    }

    /// Checks that the sizes and `extra` fit into the 32-bit arithmetic of the kernels.
    fn counted(self, op: &'static str, extra: usize) -> Result<()> {
        let Self { size, taps, padding, stride, dilation, out } = self;
        let spans = [size, out, padding, stride, dilation, taps.saturating_mul(dilation), extra];
        let limit = i32::MAX as usize / 2;
        match spans.into_iter().max() {
            Some(elements) if elements > limit => {
                Err(RocmError::TooManyElements { op, elements, limit }.into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn steps_by_one(self) -> bool {
        self.stride == 1 && self.dilation == 1
    }

    /// Returns true if each output depends only on the input at the same position.
    pub(super) fn is_pointwise(self) -> bool {
        self.taps == 1 && self.padding == 0 && self.stride == 1
    }
}

pub(super) fn shape1d(op: &'static str, dtype: DType, p: &ParamsConv1D, groups: usize) -> Result<ConvShape> {
    let w = Axis::plain(op, (p.l_in, p.k_size), (p.padding, p.stride, p.dilation))?;
    Ok(plain(dtype, (p.b_size, groups, p.c_in, p.c_out), (Axis::UNIT, w)))
}

pub(super) fn shape2d(op: &'static str, dtype: DType, p: &ParamsConv2D, groups: usize) -> Result<ConvShape> {
    let steps = (p.padding, p.stride, p.dilation);
    let axes = (Axis::plain(op, (p.i_h, p.k_h), steps)?, Axis::plain(op, (p.i_w, p.k_w), steps)?);
    Ok(plain(dtype, (p.b_size, groups, p.c_in, p.c_out), axes))
}

fn plain(
    dtype: DType,
    (batch, groups, c_in, c_out): (usize, usize, usize, usize),
    (h, w): (Axis, Axis),
) -> ConvShape {
    ConvShape { direction: Direction::Output, dtype, batch, groups, c_in, c_out, h, w }
}

/// Returns the shape of a transposed convolution. Its input channels are the output channels of the forward convolution.
/// Upstream's parameters are the channels of one group.
pub(super) fn transposed_shape1d(
    op: &'static str,
    dtype: DType,
    p: &ParamsConvTranspose1D,
    groups: usize,
) -> Result<ConvShape> {
    let w = Axis::transposed(op, (p.l_in, p.k_size), (p.padding, p.stride, p.dilation), p.output_padding)?;
    let shape = plain(dtype, (p.b_size, groups, p.c_out, p.c_in), (Axis::UNIT, w));
    Ok(shape.with_direction(Direction::Input))
}

pub(super) fn transposed_shape2d(
    op: &'static str,
    dtype: DType,
    p: &ParamsConvTranspose2D,
) -> Result<ConvShape> {
    let steps = (p.padding, p.stride, p.dilation);
    let h = Axis::transposed(op, (p.i_h, p.k_h), steps, p.output_padding)?;
    let w = Axis::transposed(op, (p.i_w, p.k_w), steps, p.output_padding)?;
    Ok(plain(dtype, (p.b_size, 1, p.c_out, p.c_in), (h, w)).with_direction(Direction::Input))
}
