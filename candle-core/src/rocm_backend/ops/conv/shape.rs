//! The sizes of convolutions, from upstream's parameters; each count that kernels make is held against its limit.
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::rocm_backend::libraries::{Axis, ConvShape, Direction};
use crate::rocm_backend::RocmError;
use crate::{DType, Result};

impl Axis {
    /// An axis with the size of the output, if the window fits at least once.
    pub(super) fn plain(
        op: &'static str,
        (size, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
    ) -> Result<Self> {
        let axis = Self { size, taps, padding, stride, dilation, out: 0 };
        let places = || {
            let span = taps.checked_sub(1)?.checked_mul(dilation)?;
            let padded = size.checked_add(padding.checked_mul(2)?)?;
            padded.checked_sub(span)?.checked_sub(1)?.checked_div(stride)?.checked_add(1)
        };
        axis.counted(op, padding.saturating_mul(2))?;
        let out = places().ok_or_else(|| axis.misfit(op, size))?;
        let axis = Self { out, ..axis };
        axis.countable(op)?;
        Ok(axis)
    }

    /// The axis of the convolution whose input is what a transposed one of `from` places gives.
    pub(super) fn transposed(
        op: &'static str,
        (from, taps): (usize, usize),
        (padding, stride, dilation): (usize, usize, usize),
        output_padding: usize,
    ) -> Result<Self> {
        let axis = Self { size: 0, taps, padding, stride, dilation, out: from };
        let places = || {
            let span = taps.checked_sub(1)?.checked_mul(dilation)?;
            let walked = from.checked_sub(1)?.checked_mul(stride)?;
            let full = walked.checked_add(span)?.checked_add(output_padding)?.checked_add(1)?;
            full.checked_sub(padding.checked_mul(2)?)
        };
        // The kernels divide by the stride.
        let size = places().filter(|_| stride > 0).ok_or_else(|| axis.misfit(op, from))?;
        let axis = Self { size, ..axis };
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

    fn misfit(self, op: &'static str, size: usize) -> crate::Error {
        let Self { taps, padding, stride, dilation, .. } = self;
        RocmError::Unsupported(format!(
            "{op}: a kernel of {taps} with padding {padding}, stride {stride} and dilation {dilation} gives no output \
             for {size} elements"
        ))
        .into()
    }

    pub(super) fn steps_by_one(self) -> bool {
        self.stride == 1 && self.dilation == 1
    }

    /// Whether output places are the input's.
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
    Ok(shape.towards(Direction::Input))
}

pub(super) fn transposed_shape2d(
    op: &'static str,
    dtype: DType,
    p: &ParamsConvTranspose2D,
) -> Result<ConvShape> {
    let steps = (p.padding, p.stride, p.dilation);
    let h = Axis::transposed(op, (p.i_h, p.k_h), steps, p.output_padding)?;
    let w = Axis::transposed(op, (p.i_w, p.k_w), steps, p.output_padding)?;
    Ok(plain(dtype, (p.b_size, 1, p.c_out, p.c_in), (h, w)).towards(Direction::Input))
}
