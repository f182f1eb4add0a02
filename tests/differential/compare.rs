//! Compares results, with derived bounds on their differences.
//!
//! The bounds are derived, not tuned: `u` is the unit roundoff of the dtype. The reference of a [`Bound`] is
//! the CPU device's result in f64 on dense operands, because the CPU rounds f16, bf16 and f8e4m3 after each
//! step of an operation. The CPU's own f64 results on strided operands are checked against it, too. Integers
//! are compared bit by bit with the CPU device on the same dtype.
use std::cmp::Ordering;

use candle_core::{DType, Device, Result, Tensor};

use crate::case::Case;
use crate::values::{ends, from_f64, roundoff};

/// Number of roundings of a case.
pub type Terms = Box<dyn Fn(&Case) -> f64 + Send + Sync>;
/// Magnitude per element of the result, computed from the operands in f64.
pub type Scale = Box<dyn Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync>;

pub enum Compare {
    /// Equal bits; all NaNs are equal.
    Bits,
    /// Equal numbers; 0 equals -0.
    Values,
    /// Difference from the reference within a bound.
    Close(Bound),
    /// Indexes of a stable sort of rows, with NaN last in ascending order and first in descending order. The
    /// CPU device's own order is inconsistent if there are NaNs.
    Sorted { ascending: bool },
    /// Property of the result, for random numbers.
    Is(fn(&Case, &[f64]) -> std::result::Result<(), String>),
}

/// Allowed difference: `2u * ulps * |reference| + floor + terms * (2v * scale + floor of v) + steps`, where
/// `v` is the unit roundoff of the sums. Both ends of the allowed interval are then rounded to the dtype.
pub struct Bound {
    ulps: f64,
    terms: Terms,
    scale: Option<Scale>,
    steps: Option<Scale>,
    sums: bool,
    underflows: bool,
    in_f32: bool,
    stepwise: bool,
}

impl Bound {
    /// Returns a bound relative to the result.
    pub fn ulps(ulps: f64) -> Self {
        Self {
            ulps,
            terms: Box::new(|_| 0.0),
            scale: None,
            steps: None,
            sums: false,
            underflows: false,
            in_f32: false,
            stepwise: false,
        }
    }

    /// Allows intermediate results to overflow or underflow where the result itself is a denormal.
    pub fn underflowing(mut self) -> Self {
        self.underflows = true;
        self
    }

    /// Declares that the operation computes in f32 for all operand dtypes.
    pub fn in_f32(mut self) -> Self {
        self.in_f32 = true;
        self
    }

    /// Declares that each step is rounded to the dtype. Otherwise narrow floats are summed in f32.
    pub fn stepwise(mut self) -> Self {
        self.stepwise = true;
        self
    }

    /// Adds `ulps` relative to `scale`, for operations that subtract numbers of that magnitude.
    pub fn plus(
        self,
        ulps: f64,
        scale: impl Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.sum_with(move |_| ulps, scale)
    }

    /// Adds `terms` roundings relative to `scale`.
    pub fn sum_with(
        mut self,
        terms: impl Fn(&Case) -> f64 + Send + Sync + 'static,
        scale: impl Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.terms = Box::new(terms);
        self.scale = Some(Box::new(scale));
        self
    }

    /// Adds an absolute difference per element, for values that are quantized more coarsely than any dtype.
    pub fn and_steps(
        mut self,
        steps: impl Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.steps = Some(Box::new(steps));
        self
    }

    /// Bounds a sum with the given number of sequential roundings. Each changes the result by up to `v` times
    /// the sum of the magnitudes, which is the operation's result on the operands' magnitudes.
    pub fn sum(mut self, roundings: impl Fn(&Case) -> f64 + Send + Sync + 'static) -> Self {
        self.terms = Box::new(roundings);
        self.sums = true;
        self
    }

    /// Returns the maximum difference for each element of the reference.
    pub fn of(
        &self,
        case: &Case,
        run: &dyn Fn(&Case, &[Tensor]) -> Result<Tensor>,
        operands: &[Tensor],
        reference: &[f64],
    ) -> Result<Vec<f64>> {
        let computed = if self.in_f32 && case.dtype == DType::F64 { DType::F32 } else { case.dtype };
        let added = if self.stepwise || computed == DType::F64 { computed } else { DType::F32 };
        let floor = |dtype| {
            let (smallest, normal, _) = ends(dtype);
            if self.underflows { normal } else { smallest }
        };
        let scale = match &self.scale {
            Some(scale) => Some(scale(case, operands)?),
            None if self.sums => {
                let magnitudes: Vec<Tensor> = operands
                    .iter()
                    .map(|t| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) })
                    .collect::<Result<_>>()?;
                Some(run(case, &magnitudes)?)
            }
            None => None,
        };
        let steps = self.steps.as_ref().map(|steps| steps(case, operands)).transpose()?;
        let [scale, steps] = [scale, steps].map(|numbers| match numbers {
            Some(numbers) => to_f64(&numbers),
            None => Ok(vec![0.0; reference.len()]),
        });
        let (scale, steps) = (scale?, steps?);
        let (step, add) = (2.0 * roundoff(computed), 2.0 * roundoff(added));
        let terms = (self.terms)(case);
        let rounded = |r: &f64, s: &f64| {
            step * self.ulps * r.abs() + floor(computed) + terms * (add * s + floor(added))
        };
        let bound = reference.iter().zip(&scale).zip(&steps).map(|((r, s), steps)| rounded(r, s) + steps);
        Ok(bound.collect())
    }
}

/// Returns the number of sequential roundings if threads each add some of `count` numbers, followed by a
/// pairwise sum. In f64, the roundings of the reference, which adds sequentially, are included.
pub fn sequential_roundings(dtype: DType, count: usize) -> f64 {
    let added = count.max(1) as f64;
    2.0 + added.log2().ceil() + if dtype == DType::F64 { added } else { added / 64.0 }
}

/// Returns the elements of a tensor in f64.
pub fn to_f64(t: &Tensor) -> Result<Vec<f64>> {
    // Upstream's to_vec1 panics on an empty view with an offset.
    if t.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let flat = t.to_device(&Device::Cpu)?.flatten_all()?;
    match flat.dtype() {
        DType::I16 => Ok(flat.to_vec1::<i16>()?.into_iter().map(f64::from).collect()),
        DType::I32 => Ok(flat.to_vec1::<i32>()?.into_iter().map(f64::from).collect()),
        DType::F64 => flat.to_vec1(),
        _ => flat.to_dtype(DType::F64)?.to_vec1(),
    }
}

/// Returns the elements of a tensor as bits, with one pattern for all NaNs.
fn bits(t: &Tensor) -> Result<Vec<u64>> {
    if t.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let flat = t.to_device(&Device::Cpu)?.flatten_all()?;
    const NAN: u64 = u64::MAX - 1;
    macro_rules! ints {
        ($type:ty) => {
            flat.to_vec1::<$type>()?.into_iter().map(|v| v as u64).collect()
        };
    }
    macro_rules! floats {
        ($type:ty) => {
            flat.to_vec1::<$type>()?
                .into_iter()
                .map(|v| if v.is_nan() { NAN } else { v.to_bits().into() })
                .collect()
        };
    }
    Ok(match flat.dtype() {
        DType::U8 => ints!(u8),
        DType::U32 => ints!(u32),
        DType::I16 => ints!(i16),
        DType::I32 => ints!(i32),
        DType::I64 => ints!(i64),
        DType::F16 => floats!(half::f16),
        DType::BF16 => floats!(half::bf16),
        DType::F32 => floats!(f32),
        DType::F8E4M3 => floats!(float8::F8E4M3),
        _ => floats!(f64),
    })
}

/// Compares bit by bit with the CPU's result; if `zeros_equal`, 0 equals -0.
pub fn equal(got: &Tensor, expected: &Tensor, zeros_equal: bool) -> std::result::Result<(), String> {
    check_shape_and_dtype(got, expected.dims(), expected.dtype())?;
    let text = |e: candle_core::Error| e.to_string();
    let (g, e) = (bits(got).map_err(text)?, bits(expected).map_err(text)?);
    let (gf, ef) = (to_f64(got).map_err(text)?, to_f64(expected).map_err(text)?);
    for i in 0..g.len() {
        if g[i] != e[i] && !(zeros_equal && gf[i] == 0.0 && ef[i] == 0.0) {
            return Err(format!(
                "element {i} is {:?} ({:#x}), the CPU's is {:?} ({:#x})",
                gf[i], g[i], ef[i], e[i]
            ));
        }
    }
    Ok(())
}

/// Compares integers with exact results that are wrapped to the dtype.
pub fn equal_wrapped(got: &Tensor, exact: &Tensor) -> std::result::Result<(), String> {
    check_shape_and_dtype(got, exact.dims(), got.dtype())?;
    let text = |e: candle_core::Error| e.to_string();
    let (got_bits, exact) = (bits(got).map_err(text)?, to_f64(exact).map_err(text)?);
    for (i, (g, e)) in got_bits.into_iter().zip(exact).enumerate() {
        let e = e as i64;
        let expected = match got.dtype() {
            DType::U8 => e as u8 as u64,
            DType::U32 => e as u32 as u64,
            DType::I16 => e as i16 as u64,
            DType::I32 => e as i32 as u64,
            _ => e as u64,
        };
        if g != expected {
            return Err(format!("element {i} is {g:#x}, expected {expected:#x}"));
        }
    }
    Ok(())
}

/// Compares with the indexes of a sort of `x` along its last dim.
pub fn sorted(got: &Tensor, x: &Tensor, ascending: bool) -> std::result::Result<(), String> {
    check_shape_and_dtype(got, x.dims(), DType::U32)?;
    let text = |e: candle_core::Error| e.to_string();
    let (got, x, last) =
        (to_f64(got).map_err(text)?, to_f64(x).map_err(text)?, *x.dims().last().unwrap_or(&1));
    for (row, (got, x)) in got.chunks(last.max(1)).zip(x.chunks(last.max(1))).enumerate() {
        let mut expected: Vec<usize> = (0..x.len()).collect();
        expected.sort_by(|&i, &j| {
            let order =
                x[i].is_nan().cmp(&x[j].is_nan()).then(x[i].partial_cmp(&x[j]).unwrap_or(Ordering::Equal));
            if ascending { order } else { order.reverse() }
        });
        if let Some(i) = (0..x.len()).find(|&i| got[i] != expected[i] as f64) {
            return Err(format!("element {i} of row {row} is {}, expected {}", got[i], expected[i]));
        }
    }
    Ok(())
}

/// Compares with a reference in f64 and a maximum difference for each element. An element that equals the CPU
/// device's result in the dtype, `own`, is accepted, too: it may saturate between two steps where f64 does
/// not.
pub fn close(
    got: &Tensor,
    dims: &[usize],
    dtype: DType,
    reference: &[f64],
    bound: &[f64],
    own: Option<&Tensor>,
) -> std::result::Result<(), String> {
    check_shape_and_dtype(got, dims, dtype)?;
    let text = |e: candle_core::Error| e.to_string();
    let got = to_f64(got).map_err(text)?;
    let own = own.map(to_f64).transpose().map_err(text)?;
    let as_own =
        |i: usize| own.as_ref().is_some_and(|own| own[i] == got[i] || (own[i].is_nan() && got[i].is_nan()));
    let rounded = |values: Vec<f64>| {
        let count = values.len();
        from_f64(&values, &[count], dtype).and_then(|t| to_f64(&t)).map_err(text)
    };
    let low = rounded(reference.iter().zip(bound).map(|(r, b)| r - b).collect())?;
    let high = rounded(reference.iter().zip(bound).map(|(r, b)| r + b).collect())?;
    for (i, (&g, &r)) in got.iter().zip(reference).enumerate() {
        let overflows = low[i].is_nan() || high[i].is_nan() || low[i].is_infinite() || high[i].is_infinite();
        let fine = if r.is_nan() {
            g.is_nan()
        } else if r.is_infinite() {
            // f8e4m3 has no infinity.
            g == r || (dtype == DType::F8E4M3 && (g.is_nan() || g.abs() == 448.0))
        } else if overflows {
            // Some of the allowed results overflow the dtype to infinity; in f8e4m3 to NaN or the largest
            // number.
            let far = g.is_finite() && (g - r).abs() > bound[i] && g.abs() < ends(dtype).2;
            let wrong_nan = g.is_nan() && dtype != DType::F8E4M3;
            let wrong_sign = g.abs() >= ends(dtype).2 && g.signum() != r.signum();
            !(far || wrong_nan || wrong_sign)
        } else {
            low[i] <= g && g <= high[i]
        };
        if !fine && !as_own(i) {
            return Err(format!("element {i} is {g:?}, expected {r:?} within {:.3e}", bound[i]));
        }
    }
    Ok(())
}

fn check_shape_and_dtype(got: &Tensor, dims: &[usize], dtype: DType) -> std::result::Result<(), String> {
    if got.dims() != dims {
        return Err(format!("shape {:?}, the CPU's is {dims:?}", got.dims()));
    }
    if got.dtype() != dtype {
        return Err(format!("dtype {:?}, the CPU's is {dtype:?}", got.dtype()));
    }
    Ok(())
}

/// Checks that numbers lie in `[lo, up]` and have the mean of a uniform distribution.
pub fn uniform(case: &Case, values: &[f64]) -> std::result::Result<(), String> {
    let (lo, up) = (case.number("lo"), case.number("up"));
    if let Some(wrong) = values.iter().find(|v| !(lo..=up).contains(*v)) {
        return Err(format!("{wrong:?} is not in [{lo}, {up}]"));
    }
    check_mean(values, (lo + up) / 2.0, (up - lo) / 12f64.sqrt())
}

/// Checks that numbers are finite and have the mean of a normal distribution with parameters `lo` and `up`.
pub fn normal(case: &Case, values: &[f64]) -> std::result::Result<(), String> {
    if let Some(wrong) = values.iter().find(|v| !v.is_finite()) {
        return Err(format!("{wrong:?} is not finite"));
    }
    check_mean(values, case.number("lo"), case.number("up"))
}

/// Checks that the mean is within 6 standard errors, plus rounding, and that the numbers are not all equal.
fn check_mean(values: &[f64], mean: f64, deviation: f64) -> std::result::Result<(), String> {
    if values.len() < 64 {
        return Ok(());
    }
    let count = values.len() as f64;
    let got = values.iter().sum::<f64>() / count;
    let allowed = 6.0 * deviation / count.sqrt() + 0.07 * (mean.abs() + deviation);
    if (got - mean).abs() > allowed {
        return Err(format!("the mean is {got}, expected {mean} within {allowed}"));
    }
    if values.iter().all(|v| *v == values[0]) {
        return Err(format!("all {} numbers are equal to {}", values.len(), values[0]));
    }
    Ok(())
}
