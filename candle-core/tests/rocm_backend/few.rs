//! Kernels for products of a few rows with quantized matrices, compared with products of the dequantized operands.
use super::tiles::{check, Product};
use candle_core::quantized::rocm::block_types;
use candle_core::rocm::hip_kernels::contract::{QuantizedFew, BLOCK, QFEW_SIDE};
use candle_core::rocm::LaunchConfig;

/// Number of weights of a block, and of activations that share a scale.
const SPAN: usize = 256;

/// Rows of activations, rows of the matrix and blocks per row. They are below and above half a tile and a workgroup's part,
/// and have fewer and more blocks per row than a workgroup has waves.
const SIZES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (2, 17, 5),
    (7, 15, 4),
    (8, 33, 2),
    (9, 31, 1),
    (16, 16, 3),
    (17, 13, 1),
    (31, 5, 17),
    (33, 47, 9),
];

/// The integer sums of a span are exact. Scaling, subtracting and adding them takes a few roundings.
#[test]
fn products_of_any_size() {
    for (dtype, format) in block_types().filter(|(dtype, _)| dtype.block_size() == SPAN) {
        let kernel = QuantizedFew::kernel(format).unwrap();
        for size in SIZES {
            check(
                dtype,
                size,
                SPAN,
                |k| k / SPAN + 6,
                |device, of| {
                    let grid = (of.n.div_ceil(QFEW_SIDE as u32), of.m.div_ceil(QFEW_SIDE as u32), 1);
                    let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
                    let Product { blocks, x, out, m, n, k } = of;
                    // SAFETY: the buffers have the sizes in the arguments.
                    unsafe {
                        device.launch(kernel, config, &QuantizedFew { blocks, x, out, m, n, k }).unwrap()
                    };
                },
            );
        }
    }
}
