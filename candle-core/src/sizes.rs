//! Checks of the sizes of convolutions, pooling and resizing, for every device.
//!
//! Upstream subtracts and divides these sizes without checks. If a window does not fit, that panics, or without overflow
//! checks allocates memory of a size that has wrapped around. `rocmify`'s operation rules insert calls of these functions
//! before the arithmetic.
#![deny(missing_docs, unsafe_code)]

use crate::error::bail;
use crate::{Error, Result};

/// Checks that a convolution has an output along each dimension, and that its channels can be divided into groups. `sizes`
/// are the (input, kernel) sizes of each dimension.
///
/// # Errors
/// If the kernel is empty or larger than the padded input, the stride is 0, or [`check_groups`] fails.
pub(crate) fn check_convolution(
    op: &str,
    sizes: &[(usize, usize)],
    [padding, stride, dilation]: [usize; 3],
    channels: [usize; 2],
    groups: usize,
) -> Result<()> {
    check_groups(op, &channels, groups)?;
    let output = |&(size, taps): &(usize, usize)| {
        let reach = dilation.checked_mul(taps.checked_sub(1)?)?.checked_add(1)?;
        padding.checked_mul(2)?.checked_add(size)?.checked_sub(reach)?.checked_div(stride)
    };
    if sizes.iter().any(|size| output(size).is_none()) {
        bail!(
            "{op}: (input, kernel) sizes {sizes:?} with padding {padding}, stride {stride} and dilation {dilation} have no \
             output"
        )
    }
    Ok(())
}

/// Checks the sizes of a transposed convolution, whose output may be empty, and that its channels can be divided into groups.
///
/// # Errors
/// If the input or the kernel is empty, the padding exceeds the unpadded output, the stride is 0, or [`check_groups`]
/// fails.
pub(crate) fn check_transposed(
    op: &str,
    sizes: &[(usize, usize)],
    [padding, output_padding, stride, dilation]: [usize; 4],
    channels: usize,
    groups: usize,
) -> Result<()> {
    check_groups(op, &[channels], groups)?;
    let output = |&(size, taps): &(usize, usize)| {
        let reach = dilation.checked_mul(taps.checked_sub(1)?)?.checked_add(output_padding)?;
        let full = size.checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?.checked_add(1)?;
        full.checked_sub(padding.checked_mul(2)?).filter(|_| stride > 0)
    };
    if sizes.iter().any(|size| output(size).is_none()) {
        bail!(
            "{op}: (input, kernel) sizes {sizes:?} with padding {padding}, output padding {output_padding}, stride {stride} \
             and dilation {dilation} have no output"
        )
    }
    Ok(())
}

/// Checks that channels can be divided into groups of equal size; upstream would ignore a remainder.
///
/// # Errors
/// If there are no groups, or several groups without channels, or a remainder.
fn check_groups(op: &str, channels: &[usize], groups: usize) -> Result<()> {
    let divides = |count: &usize| groups == 1 || (*count > 0 && groups > 0 && count.is_multiple_of(groups));
    if !channels.iter().all(divides) {
        bail!("{op}: {channels:?} channels cannot be divided into {groups} groups")
    }
    Ok(())
}

/// Checks that a pooling window is not empty, has a stride, and fits into planes of (batch, channel, height, width).
///
/// # Errors
/// If a size of the window or a stride is 0, or the window is larger than a plane.
pub(crate) fn check_pooling(dims: &[usize], window: (usize, usize), stride: (usize, usize)) -> Result<()> {
    let fits = dims[2] >= window.0 && dims[3] >= window.1;
    if !fits || [window.0, window.1, stride.0, stride.1].contains(&0) {
        bail!("a pooling window of {window:?} with stride {stride:?} does not fit planes of {:?}", &dims[2..])
    }
    Ok(())
}

/// Checks that planes are not empty if the result of resizing them is not.
///
/// # Errors
/// [`Error::EmptyTensor`] if they are.
pub(crate) fn check_resizing(op: &'static str, dims: &[usize], to: &[usize]) -> Result<()> {
    let (planes, from) = dims.split_at(2);
    if from.contains(&0) && planes.iter().chain(to).all(|size| *size > 0) {
        return Err(Error::EmptyTensor { op }.bt());
    }
    Ok(())
}
