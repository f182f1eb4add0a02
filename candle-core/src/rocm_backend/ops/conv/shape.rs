//! The sizes of convolutions, from upstream's parameters; each count that kernels make is held against its limit.
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::rocm_backend::libraries::{Axis, ConvShape, Direction};
use crate::rocm_backend::RocmError;
use crate::{DType, Result};

impl Axis {
    /// Returns an axis with the size of the output. `crate::sizes` has checked that there is one.
    pub(super) fn plain(
        op: &'static str,
        (size, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
    ) -> Result<Self> {
        let axis = Self { size, taps, padding, stride, dilation, out: 0 };
        axis.counted(op, padding.saturating_mul(2))?;
        let axis = Self { out: (size + 2 * padding - dilation * (taps - 1) - 1) / stride + 1, ..axis };
        axis.countable(op)?;
        Ok(axis)
    }

    /// Returns the axis of the convolution whose input is the result of a transposed one of `from` places, likewise.
    pub(super) fn transposed(
        op: &'static str,
        (from, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
        output_padding: usize,
    ) -> Result<Self> {
        let size = (from - 1) * stride + dilation * (taps - 1) + output_padding + 1 - 2 * padding;
        let axis = Self { size, taps, padding, stride, dilation, out: from };
        axis.counted(op, padding.saturating_mul(2))?;
        axis.countable(op)?;
        Ok(axis)
    }

    /// Checks the largest number that kernels divide on the way from the input back to places: see `period`.
    fn countable(self, op: &'static str) -> Result<()> {
        let lifted = self.period().0.saturating_mul(self.dilation);
        self.counted(op, self.size.saturating_add(self.padding).saturating_add(lifted))
    }

    /// From a tap of a transposed convolution that reaches a place to the next one, and how far back the input of that is:
    /// both make the same distance.
    pub(super) fn period(self) -> (usize, usize) {
        let (mut common, mut rest) = (self.stride, self.dilation);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        (self.stride / common.max(1), self.dilation / common.max(1))
    }

    /// Checks what the kernels count in 32 bits: sizes along the dimension, and `extra`.
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

    /// Returns true if output places are the input's.
    pub(super) fn is_pointwise(self) -> bool {
        self.taps == 1 && self.padding == 0 && self.stride == 1
    }
}

pub(super) fn shape1d(op: &'static str, dtype: DType, p: &ParamsConv1D, groups: usize) -> Result<ConvShape> {
    let w = Axis::plain(op, (p.l_in, p.k_size), (p.padding, p.stride, p.dilation))?;
    Ok(plain(dtype, (p.b_size, groups, p.c_in, p.c_out), (Axis::FLAT, w)))
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

/// The channels of the input of a transposed convolution are those of the output of the plain one. Upstream's parameters
/// hold the input channels of a group, and the output channels of a group.
pub(super) fn transposed_shape1d(
    op: &'static str,
    dtype: DType,
    p: &ParamsConvTranspose1D,
    groups: usize,
) -> Result<ConvShape> {
    let w = Axis::transposed(op, (p.l_in, p.k_size), (p.padding, p.stride, p.dilation), p.output_padding)?;
    let shape = plain(dtype, (p.b_size, groups, p.c_out, p.c_in), (Axis::FLAT, w));
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
