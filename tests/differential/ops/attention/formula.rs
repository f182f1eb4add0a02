//! Reference for attention, softmax(q kᵀ scale + bias) v, with tensors on the CPU device in f64 or f32, and
//! the allowed difference of a result from it.
use candle_core::{D, DType, Device, Error, Result, Tensor};

use super::Arguments;
use crate::values::roundoff;

/// Operands of one sequence, of shape (heads, queries or keys, width).
struct Sequence<'a> {
    arguments: Arguments<'a>,
    number: usize,
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

/// Softmax weights of a sequence, of shape (heads, queries, keys), and the log-sum-exp of each row.
struct Softmax {
    weights: Tensor,
    statistics: Tensor,
}

/// Returns the result of attention, with the log-sum-exp as a last column if `statistics`.
pub fn result(arguments: Arguments, statistics: bool) -> Result<Tensor> {
    for_each_sequence(arguments, statistics, computed_in(arguments), |sequence| {
        let softmax = sequence.softmax()?;
        let out = softmax.weights.matmul(&sequence.v)?;
        if statistics { Tensor::cat(&[out, softmax.statistics], D::Minus1) } else { Ok(out) }
    })
}

/// Returns the maximum difference of each element from the formula in f64. For f16 and bf16 it is 1.5 times
/// the error of the formula computed in f32 and rounded once, plus the rounding of the weights to the dtype
/// before they are multiplied with the values. For f32 and statistics, it is the rounding error of the sums.
pub fn allowed(arguments: Arguments, statistics: bool) -> Result<Tensor> {
    let dtype = arguments.case.dtype;
    let rounding = for_each_sequence(arguments, statistics, DType::F64, |sequence| {
        let (softmax, roundings) = (sequence.softmax()?, sequence.roundings()?);
        let magnitudes = softmax.weights.matmul(&sequence.v.abs()?)?;
        let out = match dtype {
            DType::F32 => magnitudes.broadcast_mul(&roundings)?,
            _ => (magnitudes * roundoff(dtype))?,
        };
        if statistics { Tensor::cat(&[out, roundings], D::Minus1) } else { Ok(out) }
    })?;
    if dtype == DType::F32 || rounding.elem_count() == 0 {
        return Ok(rounding);
    }
    let narrow: Vec<Tensor> = arguments.tensors.iter().map(in_f32).collect::<Result<_>>()?;
    let plain = result(Arguments { tensors: &narrow, ..arguments }, false)?;
    let error = (plain.to_dtype(dtype)?.to_dtype(DType::F64)? - result(arguments, false)?)?;
    let allowed = (rounding + 1.5 * error.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?)?;
    if dtype != DType::F16 {
        return Ok(allowed);
    }
    let normal: Vec<Tensor> = arguments.tensors.iter().map(flush_denormals).collect::<Result<_>>()?;
    let flushed = result(Arguments { tensors: &normal, ..arguments }, statistics)?;
    // Statistics of rows without visible keys are infinite; their difference counts as 0.
    let error = (flushed - result(arguments, statistics)?)?.abs()?;
    allowed + error.lt(f64::INFINITY)?.where_cond(&error, &error.zeros_like()?)?
}

/// Flushes f16 denormals to zero, as gfx90a's matrix units do.
fn flush_denormals(t: &Tensor) -> Result<Tensor> {
    if t.dtype() == DType::F64 {
        t.abs()?.ge(2f64.powi(-14))?.where_cond(t, &t.zeros_like()?)
    } else {
        Ok(t.clone())
    }
}

/// Converts floats to f32 and returns integers unchanged.
fn in_f32(t: &Tensor) -> Result<Tensor> {
    if t.dtype().is_float() { t.to_dtype(DType::F32) } else { Ok(t.clone()) }
}

fn computed_in(arguments: Arguments) -> DType {
    if arguments.q().dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Computes each sequence with `make`, which returns (heads, queries, columns), and concatenates the results
/// in the layout of the functions. Sequences without keys give zeros, and negative infinity in the column of
/// statistics.
fn for_each_sequence(
    arguments: Arguments,
    statistics: bool,
    dtype: DType,
    make: impl Fn(&Sequence) -> Result<Tensor>,
) -> Result<Tensor> {
    let q = arguments.q();
    let (heads, columns) = (q.dim(D::Minus2)?, arguments.v().dim(D::Minus1)?);
    let mut parts = Vec::new();
    for sequence in sequences(arguments, dtype)? {
        let queries = sequence.q.dim(1)?;
        let part = if queries > 0 && sequence.k.dim(1)? > 0 {
            make(&sequence)?
        } else {
            let out = Tensor::zeros((heads, queries, columns), dtype, &Device::Cpu)?;
            let nothing =
                Tensor::full(f64::NEG_INFINITY, (heads, queries, 1), &Device::Cpu)?.to_dtype(dtype)?;
            if statistics { Tensor::cat(&[out, nothing], D::Minus1)? } else { out }
        };
        parts.push(part.transpose(0, 1)?.contiguous()?);
    }
    let shape = [&q.dims()[..q.rank() - 1], &[columns + usize::from(statistics)]].concat();
    Tensor::cat(&parts, 0)?.reshape(shape)
}

/// Returns the CPU device's error for an index out of range.
fn check_index(index: usize, size: usize) -> Result<()> {
    if index < size { Ok(()) } else { Err(Error::InvalidIndex { op: "attention", index, size }) }
}

fn sequences(arguments: Arguments, dtype: DType) -> Result<Vec<Sequence>> {
    let dense = |t: &Tensor| t.force_contiguous()?.to_dtype(dtype);
    let (q, k, v) = (dense(arguments.q())?, dense(arguments.k())?, dense(arguments.v())?);
    let (heads, key_heads) = (q.dim(D::Minus2)?, k.dim(D::Minus2)?);
    // Index of the key head for each query head.
    let shared: Vec<u32> = (0..heads).map(|head| (head / (heads / key_heads)) as u32).collect();
    let shared = Tensor::new(shared, &Device::Cpu)?;
    let of = |number: usize, q: Tensor, k: Tensor, v: Tensor| {
        let of_heads = |t: Tensor| t.index_select(&shared, 1)?.transpose(0, 1)?.contiguous();
        let q = q.transpose(0, 1)?.contiguous()?;
        Ok(Sequence { arguments, number, q, k: of_heads(k)?, v: of_heads(v)? })
    };
    let Some(starts) = arguments.tensor("starts") else {
        return (0..q.dim(0)?).map(|i| of(i, q.get(i)?, k.get(i)?, v.get(i)?)).collect();
    };
    let (starts, key_starts) = (starts.to_vec1::<u32>()?, arguments.key_starts().to_vec1::<u32>()?);
    let mut all = Vec::new();
    for (number, (queries, keys)) in starts.windows(2).zip(key_starts.windows(2)).enumerate() {
        let [(first, end), (first_key, end_key)] =
            [queries, keys].map(|ends| (ends[0] as usize, ends[1] as usize));
        check_index(end, q.dim(0)? + 1)?;
        check_index(first, end + 1)?;
        check_index(end - first, arguments.most_queries() + 1)?;
        check_index(first_key, end_key + 1)?;
        let (queries, keys) = (end - first, end_key - first_key);
        let (k, v) = match arguments.tensor("table") {
            Some(table) => {
                let pages = Pages { table: table.get(number)?, page: k.dim(1)?, count: k.dim(0)? };
                let chosen = pages.page_numbers(arguments, queries, keys)?;
                let rows = |t: &Tensor| t.index_select(&chosen, 0)?.flatten(0, 1)?.narrow(0, 0, keys);
                (rows(&k)?, rows(&v)?)
            }
            None => {
                check_index(end_key, k.dim(0)? + 1)?;
                (k.narrow(0, first_key, keys)?, v.narrow(0, first_key, keys)?)
            }
        };
        all.push(of(number, q.narrow(0, first, queries)?, k, v)?);
    }
    Ok(all)
}

/// Page table of one sequence.
struct Pages {
    table: Tensor,
    /// Rows per page.
    page: usize,
    /// Number of pages that exist.
    count: usize,
}

impl Pages {
    /// Returns the pages of all keys. Only pages that are visible to a query have to exist.
    fn page_numbers(&self, arguments: Arguments, queries: usize, keys: usize) -> Result<Tensor> {
        let numbers: Vec<i64> = self.table.to_dtype(DType::I64)?.to_vec1()?;
        check_index(keys, numbers.len() * self.page + 1)?;
        let end = |size: Option<usize>| {
            size.filter(|size| *size <= arguments.most_keys()).unwrap_or(keys + queries)
        };
        let first = keys.saturating_sub(queries + end(arguments.left()));
        let last = keys + end(arguments.right());
        let mut chosen = Vec::new();
        for (i, number) in numbers.into_iter().take(keys.div_ceil(self.page)).enumerate() {
            let seen = queries > 0 && i * self.page < last && (i + 1) * self.page > first;
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            if seen || arguments.ranges().is_some() {
                check_index(number, self.count)?;
            }
            chosen.push(number.min(self.count - 1) as u32);
        }
        Tensor::from_vec(chosen, keys.div_ceil(self.page), &Device::Cpu)
    }
}

impl Sequence<'_> {
    fn lengths(&self) -> Result<(usize, usize, usize)> {
        Ok((self.q.dim(0)?, self.q.dim(1)?, self.k.dim(1)?))
    }

    /// Returns the window size on one side of a position; sizes beyond the number of keys mean no limit.
    fn window_side(&self, size: Option<usize>) -> Result<i64> {
        let keys = if self.arguments.tensor("starts").is_some() {
            self.arguments.most_keys()
        } else {
            self.k.dim(1)?
        };
        Ok(size.filter(|size| *size <= keys).map_or(i64::MAX / 2, |size| size as i64))
    }

    /// Returns the amount subtracted from each score: distance times ALiBi slope, or infinity for masked
    /// keys.
    fn score_penalty(&self) -> Result<Tensor> {
        let (heads, queries, keys) = self.lengths()?;
        let (left, right) =
            (self.window_side(self.arguments.left())?, self.window_side(self.arguments.right())?);
        let slopes = match self.arguments.slopes() {
            Some(slopes) => slopes.to_vec1::<f32>()?,
            None => vec![0.0; heads],
        };
        let ranges = match self.arguments.ranges() {
            Some(ranges) => ranges.get(self.number)?.to_vec2::<i32>()?,
            None => Vec::new(),
        };
        let mut penalty = Vec::with_capacity(heads * queries * keys);
        for slope in slopes {
            for position in (keys as i64 - queries as i64..).take(queries) {
                for key in 0..keys as i64 {
                    let together = |range: &Vec<i32>| {
                        let (from, to) = (i64::from(range[0]), i64::from(range[1]));
                        (from..to).contains(&position) && (from..to).contains(&key)
                    };
                    let in_window = position - key <= left && key - position <= right;
                    let distance = f64::from(slope) * (position - key).abs() as f64;
                    penalty.push(if in_window || ranges.iter().any(together) {
                        distance
                    } else {
                        f64::INFINITY
                    });
                }
            }
        }
        Tensor::from_vec(penalty, (heads, queries, keys), &Device::Cpu)?.to_dtype(self.q.dtype())
    }

    fn scale(&self) -> f64 {
        f64::from(self.arguments.scale())
    }

    fn softcap(&self) -> Option<f64> {
        self.arguments.cap().filter(|cap| *cap > 0.0).map(f64::from)
    }

    fn softmax(&self) -> Result<Softmax> {
        let scores = (self.q.matmul(&self.k.t()?)? * self.scale())?;
        let scores = match self.softcap() {
            Some(cap) => ((scores / cap)?.tanh()? * cap)?,
            None => scores,
        };
        let scores = (scores - self.score_penalty()?)?;
        // For a row without visible keys, the maximum is negative infinity, which cannot be subtracted.
        let top = scores.max_keepdim(D::Minus1)?.maximum(-1e30)?;
        let exponents = scores.broadcast_sub(&top)?.exp()?;
        let sums = exponents.sum_keepdim(D::Minus1)?;
        let weights = exponents.broadcast_div(&sums.maximum(1e-30)?)?;
        Ok(Softmax { weights, statistics: (sums.log()? + top)? })
    }

    /// Returns the maximum relative rounding error of a row's sum of exponentials in f32. It consists of the
    /// errors of the scores (twice, because the maximum is subtracted; matrix units may truncate) and of the
    /// sum over keys.
    fn roundings(&self) -> Result<Tensor> {
        let (_, _, keys) = self.lengths()?;
        let width = self.q.dim(2)? as f64;
        let sizes = (self.q.abs()?.matmul(&self.k.abs()?.t()?)? * self.scale().abs())?;
        // Masked keys have an infinite penalty, which does not contribute.
        let penalty = self.score_penalty()?.abs()?;
        let distances = penalty.lt(f64::INFINITY)?.where_cond(&penalty, &penalty.zeros_like()?)?;
        let largest = ((sizes + distances)?.max_keepdim(D::Minus1)? + self.softcap().unwrap_or(0.0))?;
        let unit = 2.0 * roundoff(DType::F32);
        (largest * (2.0 * (width + 16.0) * unit))? + (keys as f64 + 16.0) * unit
    }
}
