//! Checks arguments as documented by candle-flash-attn; the expected errors for invalid cases.
use candle_core::{DType, Error, Result, Tensor, bail};

use super::Arguments;

const MAX_WIDTH: usize = 512;

pub fn check(a: Arguments) -> Result<()> {
    let (q, k, v) = (a.q(), a.k(), a.v());
    let (varlen, paged) = (a.tensor("starts").is_some(), a.tensor("table").is_some());
    if !matches!(q.dtype(), DType::F16 | DType::BF16 | DType::F32) {
        bail!("unsupported dtype {:?}", q.dtype())
    }
    let rank = if varlen { 3 } else { 4 };
    let key_rank = if paged { 4 } else { rank };
    if [q.rank(), k.rank(), v.rank()] != [rank, key_rank, key_rank] {
        bail!("ranks must be {rank} and {key_rank}")
    }
    if [q, k, v].iter().any(|t| t.stride().last() != Some(&1)) {
        bail!("rows must be dense")
    }
    let (width, value_width) = (q.dims()[rank - 1], v.dims()[key_rank - 1]);
    let (heads, key_heads) = (q.dims()[rank - 2], k.dims()[key_rank - 2]);
    let alike = k.dims()[..key_rank - 1] == v.dims()[..key_rank - 1] && k.dims()[key_rank - 1] == width;
    if !alike || (!varlen && k.dims()[0] != q.dims()[0]) {
        bail!("shapes differ")
    }
    if [width, value_width].iter().any(|width| *width > MAX_WIDTH || width % 8 != 0) {
        bail!("unsupported head width")
    }
    if !heads.is_multiple_of(key_heads) {
        bail!("number of heads is not a multiple of key heads")
    }
    if a.slopes().is_some_and(|slopes| slopes.dtype() != DType::F32 || slopes.dims() != [heads]) {
        bail!("slopes must be f32, one per head")
    }
    if varlen {
        sequences(a)?;
    }
    if paged {
        pages(a)?;
    }
    match [k, v].iter().find(|t| t.dtype() != q.dtype()) {
        Some(t) => Err(Error::DTypeMismatchBinaryOp { lhs: q.dtype(), rhs: t.dtype(), op: "attention" }),
        None => Ok(()),
    }
}

fn sequences(a: Arguments) -> Result<()> {
    let (starts, key_starts) = (a.starts(), a.key_starts());
    if !starts.is_contiguous() || !key_starts.is_contiguous() {
        bail!("starts must be dense")
    }
    if starts.dims1()? < 2 || starts.dims1()? != key_starts.dims1()? {
        bail!("numbers of query starts and key starts differ")
    }
    Ok(())
}

fn pages(a: Arguments) -> Result<()> {
    let (count, rows) = (a.starts().dims1()? - 1, a.k().dims()[1]);
    if a.page() != rows || rows == 0 || rows % 16 != 0 {
        bail!("page size must be a multiple of 16 rows")
    }
    let is_valid_table = |t: &Tensor, dtypes: &[DType], dims: &[usize]| {
        let dense = t.stride().last() == Some(&1);
        dense && dtypes.contains(&t.dtype()) && t.dims()[0] == count && t.dims()[2..] == *dims
    };
    if !is_valid_table(a.table(), &[DType::U32, DType::I32], &[]) {
        bail!("the table must have one row per sequence")
    }
    if a.ranges().is_some_and(|ranges| !is_valid_table(ranges, &[DType::I32], &[2])) {
        bail!("ranges must be pairs of positions per sequence")
    }
    Ok(())
}
