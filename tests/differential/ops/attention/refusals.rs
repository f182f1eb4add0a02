//! What no function takes, by the documentation of candle-flash-attn.
use candle_core::{DType, Error, Result, Tensor, bail};

use super::Arguments;

const MOST_WIDTH: usize = 512;

pub fn check(a: Arguments) -> Result<()> {
    let (q, k, v) = (a.q(), a.k(), a.v());
    let (varlen, paged) = (a.tensor("starts").is_some(), a.tensor("table").is_some());
    if !matches!(q.dtype(), DType::F16 | DType::BF16 | DType::F32) {
        bail!("not for {:?}", q.dtype())
    }
    let rank = if varlen { 3 } else { 4 };
    let key_rank = if paged { 4 } else { rank };
    if [q.rank(), k.rank(), v.rank()] != [rank, key_rank, key_rank] {
        bail!("ranks are {rank} and {key_rank}")
    }
    if [q, k, v].iter().any(|t| t.stride().last() != Some(&1)) {
        bail!("rows are dense")
    }
    let (width, value_width) = (q.dims()[rank - 1], v.dims()[key_rank - 1]);
    let (heads, key_heads) = (q.dims()[rank - 2], k.dims()[key_rank - 2]);
    let alike = k.dims()[..key_rank - 1] == v.dims()[..key_rank - 1] && k.dims()[key_rank - 1] == width;
    if !alike || (!varlen && k.dims()[0] != q.dims()[0]) {
        bail!("shapes differ")
    }
    if [width, value_width].iter().any(|width| *width > MOST_WIDTH || width % 8 != 0) {
        bail!("heads are of other widths")
    }
    if !heads.is_multiple_of(key_heads) {
        bail!("heads do not share keys")
    }
    if a.slopes().is_some_and(|slopes| slopes.dtype() != DType::F32 || slopes.dims() != [heads]) {
        bail!("each head has a slope")
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
        bail!("starts are dense")
    }
    if starts.dims1()? < 2 || starts.dims1()? != key_starts.dims1()? {
        bail!("as many starts of queries as of keys")
    }
    Ok(())
}

fn pages(a: Arguments) -> Result<()> {
    let (count, rows) = (a.starts().dims1()? - 1, a.k().dims()[1]);
    if a.page() != rows || rows == 0 || rows % 16 != 0 {
        bail!("pages of a multiple of 16 rows")
    }
    let of_pages = |t: &Tensor, dtypes: &[DType], dims: &[usize]| {
        let dense = t.stride().last() == Some(&1);
        dense && dtypes.contains(&t.dtype()) && t.dims()[0] == count && t.dims()[2..] == *dims
    };
    if !of_pages(a.table(), &[DType::U32, DType::I32], &[]) {
        bail!("a row of the table for each sequence")
    }
    if a.ranges().is_some_and(|ranges| !of_pages(ranges, &[DType::I32], &[2])) {
        bail!("pairs of positions for each sequence")
    }
    Ok(())
}
