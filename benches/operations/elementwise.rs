//! Elementwise functions on dense tensors.
use crate::case::{Cases, FLOATS, M, count_name, dims_name, random};
use candle_core::{DType, Result, Tensor};

/// Sizes of additions besides 1M and 64M, for the plot of bandwidth by size.
const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 256 << 10, 4 * M, 16 * M];

/// Shape with an odd number of elements.
const ODD: [usize; 2] = [12289, 3001];

type Unary = fn(&Tensor) -> Result<Tensor>;
const UNARY: [(&str, Unary); 6] = [
    ("exp", Tensor::exp),
    ("gelu_erf", Tensor::gelu_erf),
    ("gelu_tanh", Tensor::gelu),
    ("silu", Tensor::silu),
    ("tanh", Tensor::tanh),
    ("affine", |x| x.affine(1.5, 0.5)),
];
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
const BINARY: [(&str, Binary); 2] = [("add", |x, y| x + y), ("mul", |x, y| x * y)];
const CASTS: [(&str, DType, DType); 4] = [
    ("to_dtype_f16", DType::F32, DType::F16),
    ("to_dtype_bf16", DType::F32, DType::BF16),
    ("to_dtype_f32", DType::F16, DType::F32),
    ("to_dtype_f32", DType::BF16, DType::F32),
];

const GROUP: &str = "elementwise";

pub fn cases(cases: &mut Cases) {
    for dtype in FLOATS {
        for size in [M, 64 * M] {
            BINARY.iter().for_each(|&(name, function)| binary(cases, name, function, dtype, size));
            for (name, function) in UNARY {
                let n = cases.scale.dim(size);
                cases
                    .operation([GROUP, name], dtype, count_name(n), [random(dtype, [n])], move |[x]| {
                        function(x)
                    })
                    .bytes(2 * n * dtype.size_in_bytes());
            }
        }
    }
    for dtype in FLOATS {
        let dims = cases.scale.dims(ODD);
        cases
            .operation([GROUP, "clamp"], dtype, dims_name(&dims), [random(dtype, dims)], |[x]| {
                x.clamp(-0.5f32, 0.5f32)
            })
            .bytes(2 * dims.iter().product::<usize>() * dtype.size_in_bytes());
    }
    for dtype in [DType::F32, DType::F16] {
        SIZES.iter().for_each(|size| binary(cases, BINARY[0].0, BINARY[0].1, dtype, *size));
    }
    for (name, from, to) in CASTS {
        let n = cases.scale.dim(64 * M);
        cases
            .operation([GROUP, name], from, count_name(n), [random(from, [n])], move |[x]| x.to_dtype(to))
            .bytes(n * (from.size_in_bytes() + to.size_in_bytes()));
    }
}

fn binary(cases: &mut Cases, name: &'static str, function: Binary, dtype: DType, size: usize) {
    let n = cases.scale.dim(size);
    let operands = [random(dtype, [n]), random(dtype, [n])];
    cases
        .operation([GROUP, name], dtype, count_name(n), operands, move |[x, y]| function(x, y))
        .bytes(3 * n * dtype.size_in_bytes());
}
