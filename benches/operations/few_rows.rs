//! Products of one and few rows with weights that no cache holds, as in decoding: the floor is reading the weights once.
use crate::case::{Case, Cases, Work, dims_name};
use crate::quantized::{block_bytes, matrix};
use candle_core::quantized::{GgmlDType, QMatMul};
use candle_core::rocm::{FusedProduct, GateActivation};
use candle_core::{DType, Device, Module, Result, Tensor};
use std::hint::black_box;

const GROUP: &str = "few_rows";
/// Numbers of inputs and outputs.
const SHAPES: [[usize; 2]; 7] =
    [[2048, 2048], [2048, 8192], [8192, 2048], [4096, 4096], [4096, 14336], [14336, 4096], [2048, 128256]];
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Bytes of all matrices that are multiplied in turn, several times as many as the largest cache of a GPU.
const COLD_BYTES: usize = 1 << 30;

/// Weights of a case.
#[derive(Clone, Copy)]
enum Format {
    Floats(DType),
    Blocks(GgmlDType),
}

const FORMATS: [(Format, &str); 6] = [
    (Format::Floats(DType::F16), "f16"),
    (Format::Floats(DType::BF16), "bf16"),
    (Format::Blocks(GgmlDType::Q4K), "q4k"),
    (Format::Blocks(GgmlDType::Q6K), "q6k"),
    (Format::Blocks(GgmlDType::Q8_0), "q8_0"),
    (Format::Blocks(GgmlDType::Q4_0), "q4_0"),
];

impl Format {
    fn bytes(self, elements: usize) -> usize {
        match self {
            Self::Floats(dtype) => elements * dtype.size_in_bytes(),
            Self::Blocks(kind) => block_bytes(kind, elements),
        }
    }

    /// Dtype of the activations.
    fn dtype(self) -> DType {
        match self {
            Self::Floats(dtype) => dtype,
            Self::Blocks(_) => DType::F32,
        }
    }

    fn weights(self, n: usize, k: usize, device: &Device) -> Result<QMatMul> {
        match self {
            Self::Floats(dtype) => {
                Ok(QMatMul::Tensor(Tensor::randn(0f32, 0.02, (n, k), device)?.to_dtype(dtype)?))
            }
            Self::Blocks(kind) => QMatMul::from_qtensor(matrix(kind, n, k, device)?),
        }
    }
}

pub fn cases(cases: &mut Cases) {
    for (format, name) in FORMATS {
        for full in SHAPES {
            for rows in ROWS {
                let [k, n] = cases.scale.dims(full);
                let sizes = [rows, k.next_multiple_of(256), n];
                let case = cases.work([GROUP, "product_cold"], name, dims_name(&sizes), move |device| {
                    in_turn(format, sizes, device, |weights, x| weights.forward(x))
                });
                amounts(case, format, sizes);
            }
            let [k, n] = cases.scale.dims(full);
            let sizes = [1, k.next_multiple_of(256), n];
            let case = cases.work([GROUP, "fused_norm_gate_cold"], name, dims_name(&sizes), move |device| {
                let norm = Tensor::ones(sizes[1], format.dtype(), device)?;
                in_turn(format, sizes, device, move |weights, x| {
                    FusedProduct::new(x, weights).rms_norm(&norm, 1e-5).gated(GateActivation::Silu).forward()
                })
            });
            amounts(case, format, sizes);
        }
    }
}

fn amounts(case: &mut Case, format: Format, [_, k, n]: [usize; 3]) {
    case.bytes(format.bytes(n * k));
}

/// Returns the product of the same rows with one matrix after the other.
fn in_turn(
    format: Format,
    [rows, k, n]: [usize; 3],
    device: &Device,
    product: impl Fn(&QMatMul, &Tensor) -> Result<Tensor> + 'static,
) -> Result<Work> {
    let count = (COLD_BYTES / format.bytes(n * k).max(1)).clamp(2, 128);
    let count = if n * k < 1 << 20 { 2 } else { count };
    let x = Tensor::randn(0f32, 1., (rows, k), device)?.to_dtype(format.dtype())?;
    let weights = (0..count).map(|_| format.weights(n, k, device)).collect::<Result<Vec<_>>>()?;
    let mut turn = 0;
    Ok(Box::new(move || {
        turn += 1;
        product(&weights[turn % count], &x).map(|result| drop(black_box(result)))
    }))
}
