//! Matrix products and linear layers.
use crate::case::{Cases, FLOATS, dims_name, random};
use candle_core::Module;
use candle_nn::Linear;

const MATMUL: &str = "matmul";

const SQUARES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];
/// Numbers of rows, inputs and outputs.
const LINEAR: [[usize; 3]; 9] = [
    [1, 4096, 4096],
    [1, 4096, 11008],
    [1, 11008, 4096],
    [2, 4096, 4096],
    [3, 4096, 4096],
    [8, 4096, 4096],
    [16, 4096, 4096],
    [512, 4096, 4096],
    [512, 4096, 11008],
];
/// Maximum number of rows for which reading the weights dominates the time.
const FEW_ROWS: usize = 16;

pub fn cases(cases: &mut Cases) {
    for dtype in FLOATS {
        let size = dtype.size_in_bytes();
        for n in SQUARES.map(|n| cases.scale.dim(n)) {
            let operands = [random(dtype, [n, n]), random(dtype, [n, n])];
            cases
                .operation([MATMUL, "matmul"], dtype, format!("{n}x{n}x{n}"), operands, |[x, y]| x.matmul(y))
                .flops(2 * n * n * n);
        }
        for full in LINEAR {
            let [m, k, n] = cases.scale.dims(full);
            let operands = [random(dtype, [m, k]), random(dtype, [n, k])];
            let case =
                cases.operation([MATMUL, "linear"], dtype, dims_name(&[m, k, n]), operands, |[x, weight]| {
                    Linear::new(weight.clone(), None).forward(x)
                });
            if full[0] <= FEW_ROWS {
                case.bytes(k * n * size)
            } else {
                case.flops(2 * m * k * n)
            };
        }
        let [heads, length, width] = cases.scale.dims([32, 2048, 128]);
        let all = || random(dtype, [heads, length, width]);
        let flops = 2 * heads * length * length * width;
        let shape = dims_name(&[heads, length, width, length]);
        cases
            .operation([MATMUL, "bmm_qkt"], dtype, shape, [all(), all()], |[q, k]| q.matmul(&k.t()?))
            .flops(flops);
        let operands = [random(dtype, [heads, length, length]), all()];
        let shape = dims_name(&[heads, length, length, width]);
        cases.operation([MATMUL, "bmm_pv"], dtype, shape, operands, |[p, v]| p.matmul(v)).flops(flops);
        let operands = [random(dtype, [heads, 1, width]), all()];
        let shape = dims_name(&[heads, 1, width, length]);
        cases
            .operation([MATMUL, "bmm_qkt_decode"], dtype, shape, operands, |[q, k]| q.matmul(&k.t()?))
            .bytes(heads * length * width * size);
    }
}
