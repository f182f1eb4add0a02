//! Reductions, softmax, norms and rotary embeddings.
use crate::case::{Cases, FLOATS, dims_name, random};
use candle_core::{D, DType, Result, Tensor};
use candle_nn::{ops, rotary_emb};

const REDUCTIONS: &str = "reductions";
const ROWS: &str = "softmax and norms";

type Unary = fn(&Tensor) -> Result<Tensor>;
const SQUARE: [usize; 2] = [4096, 4096];
/// Shape of the logits of a vocabulary.
const LOGITS: [usize; 2] = [1, 32000];
/// Shape with 64M elements.
const TALL: [usize; 2] = [16384, 4096];
/// Shapes that are reduced along their middle dim, with even and odd rows.
const MIDDLE: [[usize; 3]; 2] = [[64, 197, 768], [33, 301, 1517]];
const REDUCED: [(&str, Unary, [usize; 2]); 7] = [
    ("sum_last", |x| x.sum(D::Minus1), SQUARE),
    ("sum_last", |x| x.sum(D::Minus1), TALL),
    ("sum_dim0", |x| x.sum(0), SQUARE),
    ("sum_all", Tensor::sum_all, SQUARE),
    ("max_last", |x| x.max(D::Minus1), SQUARE),
    ("argmax_last", |x| x.argmax(D::Minus1), SQUARE),
    ("argmax_last", |x| x.argmax(D::Minus1), LOGITS),
];
const SOFTMAX: [(&str, Unary, [usize; 2]); 5] = [
    ("softmax_last", ops::softmax_last_dim, LOGITS),
    ("softmax_last", ops::softmax_last_dim, SQUARE),
    ("softmax_last", ops::softmax_last_dim, TALL),
    ("softmax_last", ops::softmax_last_dim, [32768, 128]),
    ("log_softmax", |x| ops::log_softmax(x, D::Minus1), SQUARE),
];
type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
const ROPES: [(&str, Rope); 2] = [("rope", rotary_emb::rope), ("rope_i", rotary_emb::rope_i)];
const EPSILON: f32 = 1e-5;

pub fn cases(cases: &mut Cases) {
    for dtype in FLOATS {
        // Number of passes over the matrix: one to read it, and one to write a result of the same size.
        let tables = [(REDUCTIONS, REDUCED.as_slice(), 1), (ROWS, SOFTMAX.as_slice(), 2)];
        for (group, table, passes) in tables {
            for &(name, function, dims) in table {
                let dims = cases.scale.dims(dims);
                cases
                    .operation([group, name], dtype, dims_name(&dims), [random(dtype, dims)], move |[x]| {
                        function(x)
                    })
                    .bytes(passes * bytes(dtype, &dims));
            }
        }
        for full in MIDDLE {
            let dims = cases.scale.dims(full);
            let middle: [(&str, Unary); 2] = [("sum_dim1", |x| x.sum(1)), ("max_dim1", |x| x.max(1))];
            for (name, function) in middle {
                let operands = [random(dtype, dims)];
                cases
                    .operation([REDUCTIONS, name], dtype, dims_name(&dims), operands, move |[x]| function(x))
                    .bytes(bytes(dtype, &dims));
            }
        }
        for dims in [SQUARE, TALL, [1, SQUARE[1]]] {
            let dims = cases.scale.dims(dims);
            let operands = [random(dtype, dims), random(dtype, [dims[1]])];
            cases
                .operation([ROWS, "rms_norm"], dtype, dims_name(&dims), operands, |[x, weight]| {
                    ops::rms_norm(x, weight, EPSILON)
                })
                .bytes(2 * bytes(dtype, &dims));
        }
        for dims in [SQUARE, TALL] {
            let dims = cases.scale.dims(dims);
            let operands = [random(dtype, dims), random(dtype, [dims[1]]), random(dtype, [dims[1]])];
            cases
                .operation([ROWS, "layer_norm"], dtype, dims_name(&dims), operands, |[x, weight, bias]| {
                    ops::layer_norm(x, weight, bias, EPSILON)
                })
                .bytes(2 * bytes(dtype, &dims));
        }
        let dims = cases.scale.dims([1, 32, 2048, 128]);
        let [_, heads, length, width] = dims;
        for (name, function) in ROPES {
            let angles = || random(dtype, [length, width / 2]);
            cases
                .operation(
                    [ROWS, name],
                    dtype,
                    dims_name(&dims),
                    [random(dtype, dims), angles(), angles()],
                    move |[x, cos, sin]| function(x, cos, sin),
                )
                .bytes(bytes(dtype, &[2 * heads + 1, length, width]));
        }
    }
}

fn bytes(dtype: DType, dims: &[usize]) -> usize {
    dims.iter().product::<usize>() * dtype.size_in_bytes()
}
