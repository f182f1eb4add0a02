//! Compares products of strided operands with sums in f64.
use hip_kernels::contract::{DevicePtr, TiledProduct};

use super::numbers::{Dtype, Numbers, noise};

/// Batch, row and column strides of the left operand, and row and column strides of the right operand, which all batches
/// share.
pub struct Strides {
    pub a: [usize; 3],
    pub b: [usize; 2],
}

/// Returns the arguments of a product of `(batches, m, k)` with `(k, n)`, into rows that are `c_row` elements apart.
pub fn arguments(
    [a, b, c]: [DevicePtr; 3],
    [batches, m, n, k]: [usize; 4],
    strides: &Strides,
    c_row: usize,
) -> TiledProduct {
    let ([a_batch, a_row, a_column], [b_row, b_column]) = (strides.a, strides.b);
    let (c_batch, [m, n, k, batches]) = (m * c_row, [m, n, k, batches].map(|size| size as u32));
    let b_batch = 0;
    #[rustfmt::skip]
    return TiledProduct {
        a, b, c, m, n, k, batches, a_row, a_column, a_batch, b_row, b_column, b_batch, c_row, c_batch,
    };
}

/// Checks the result of `launch` for operands of these sizes, with `gap` unused elements after each row of the result.
/// `bound` is the maximum error of a sum.
pub fn check<T: Dtype>(
    [batches, m, n, k]: [usize; 4],
    strides: &Strides,
    [a_len, b_len, gap]: [usize; 3],
    launch: impl FnOnce(TiledProduct),
    bound: impl Fn(f64) -> f64,
    what: &str,
) {
    let (c_row, untouched) = (n + gap, 7.0);
    let (a, b) = (Numbers::<T>::new(&noise(a_len, 7)), Numbers::<T>::new(&noise(b_len, 8)));
    let c = Numbers::<T>::new(&vec![untouched; batches * m * c_row]);
    launch(arguments([&a, &b, &c].map(Numbers::pointer), [batches, m, n, k], strides, c_row));
    let (left, right, got) = (a.read(), b.read(), c.read());
    let ([a_batch, a_row, a_column], [b_row, b_column]) = (strides.a, strides.b);
    for (place, value) in got.into_iter().enumerate() {
        let (batch, row, column) = (place / c_row / m, place / c_row % m, place % c_row);
        let terms = |i: usize| {
            left[batch * a_batch + row * a_row + i * a_column] * right[i * b_row + column * b_column]
        };
        let wanted = if column < n { (0..k).map(terms).sum() } else { untouched };
        let is_close = (value - wanted).abs() <= bound(wanted);
        assert!(is_close, "{:?} {what}, {batch} {row} {column}: {value}, wanted {wanted}", T::ELEMENT);
    }
}
