//! Broadcasts, transposed copies, selections and concatenations.
use crate::case::{Cases, FLOATS, below, dims_name, random};
use candle_core::{DType, Tensor};

const BROADCAST: &str = "broadcast";
const COPIES: &str = "copies";

pub fn cases(cases: &mut Cases) {
    let n = cases.scale.dim(4096);
    let square = [n, n];
    let name = dims_name(&square);
    for dtype in FLOATS {
        let size = n * n * dtype.size_in_bytes();
        let x = || random(dtype, square);
        let row = [x(), random(dtype, [n])];
        cases
            .operation([BROADCAST, "add_broadcast_row"], dtype, format!("{name}+{n}"), row, |[x, y]| {
                x.broadcast_add(y)
            })
            .bytes(2 * size);
        let column = [x(), random(dtype, [n, 1])];
        cases
            .operation([BROADCAST, "mul_broadcast_col"], dtype, format!("{name}*{n}x1"), column, |[x, y]| {
                x.broadcast_mul(y)
            })
            .bytes(2 * size);
        // Relative positions of attention over 197 tokens.
        let [batch, heads, rows, columns] = cases.scale.dims([16, 12, 197, 197]);
        let (dims, one) = ([batch, heads, rows, columns], [batch, 1, 1, columns]);
        let shape = format!("{}+{}", dims_name(&dims), dims_name(&one));
        let operands = [random(dtype, dims), random(dtype, one)];
        cases
            .operation([BROADCAST, "add_broadcast_odd"], dtype, shape, operands, |[x, y]| x.broadcast_add(y))
            .bytes(2 * dims.iter().product::<usize>() * dtype.size_in_bytes());
        let [planes, height, width] = cases.scale.dims([64, 513, 1023]);
        let dims = [planes, height, width];
        cases
            .operation([COPIES, "pad_with_zeros"], dtype, dims_name(&dims), [random(dtype, dims)], |[x]| {
                x.pad_with_zeros(2, 1, 1)
            })
            .bytes(planes * height * (2 * width + 2) * dtype.size_in_bytes());
        cases
            .operation([COPIES, "transpose_contiguous"], dtype, &name, [x()], |[x]| x.t()?.contiguous())
            .bytes(2 * size);
        cases
            .operation([COPIES, "add_transposed"], dtype, &name, [x(), x()], |[x, y]| x + y.t()?)
            .bytes(3 * size);
        let heads = cases.scale.dims([1, 2048, 32, 128]);
        cases
            .operation(
                [COPIES, "heads_transpose_contiguous"],
                dtype,
                dims_name(&heads),
                [random(dtype, heads)],
                |[x]| x.transpose(1, 2)?.contiguous(),
            )
            .bytes(2 * heads.iter().product::<usize>() * dtype.size_in_bytes());
        cases
            .operation([COPIES, "narrow_contiguous"], dtype, &name, [x()], move |[x]| {
                x.narrow(1, n / 4, n / 2)?.contiguous()
            })
            .bytes(size);
        cases.operation([COPIES, "copy"], dtype, &name, [x()], |[x]| x.copy()).bytes(2 * size);
        let operands = [below(2, DType::U8, square), x(), x()];
        cases
            .operation([COPIES, "where_cond"], dtype, &name, operands, |[mask, x, y]| mask.where_cond(x, y))
            .bytes(3 * size + n * n);
        cases.operation([COPIES, "gt"], dtype, &name, [x(), x()], |[x, y]| x.gt(y)).bytes(2 * size + n * n);
        for (case, dim) in [("cat_dim0", 0), ("cat_dim1", 1)] {
            cases
                .operation([COPIES, case], dtype, format!("2x{name}"), [x(), x()], move |both| {
                    Tensor::cat(both, dim)
                })
                .bytes(4 * size);
        }
    }
}
