//! Kernels for products of a few rows with quantized matrices, compared with products of the dequantized operands.
use super::tiles::{check, Activations, Product};
use candle_core::quantized::rocm::block_types;
use candle_core::rocm::hip_kernels::contract::{
    QuantizedFew, QuantizedFewHalves, BLOCK, FLOAT_F32, QFEW_SIDE, QFEW_STEP,
};
use candle_core::rocm::LaunchConfig;

/// Rows of activations, rows of the matrix and blocks of 256 weights per row. They are below and above half a tile and a
/// workgroup's part, and have fewer and more blocks per row than a workgroup has waves. Rows of blocks of 32 are up to
/// a step shorter, so that neither the waves' parts nor the last steps are whole.
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

fn config(n: u32, m: u32) -> LaunchConfig {
    let grid = (n.div_ceil(QFEW_SIDE as u32), m.div_ceil(QFEW_SIDE as u32), 1);
    LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 }
}

/// The integer sums of a block, whose activations share a scale, are exact. Scaling, subtracting and adding them takes a
/// few roundings.
#[test]
fn products_of_any_size() {
    for (dtype, format) in block_types() {
        let kernel = QuantizedFew::kernel(format).unwrap();
        let span = dtype.block_size();
        for (m, n, blocks) in SIZES {
            let blocks = if span == 256 { blocks } else { blocks * 256 / span - QFEW_STEP + m % QFEW_STEP };
            let activations = Activations::bytes(m * blocks * span, span);
            check(
                dtype,
                (m, n, blocks),
                span,
                &activations,
                |k| k / span + 6,
                |device, of| {
                    let Product { blocks, x, out, m, n, k } = of;
                    let arguments = QuantizedFew { blocks, x, out, m, n, k, out_dtype: FLOAT_F32 as u32 };
                    // SAFETY: the buffers have the sizes in the arguments.
                    unsafe { device.launch(kernel, config(n, m), &arguments).unwrap() };
                },
            );
        }
    }
}

/// The products of a block are added as floats, then scaled and reduced by a minimum.
#[test]
fn products_of_halves() {
    for (dtype, format) in block_types() {
        let Some(kernel) = QuantizedFewHalves::kernel(format) else { continue };
        let span = dtype.block_size();
        for (m, n, blocks) in SIZES {
            let blocks = blocks * 256 / span - QFEW_STEP + m % QFEW_STEP;
            let activations = Activations::halves(m * blocks * span);
            check(
                dtype,
                (m, n, blocks),
                span,
                &activations,
                |k| 2 * span + k / span + 6,
                |device, of| {
                    let Product { blocks, x, out, m, n, k } = of;
                    let arguments =
                        QuantizedFewHalves { blocks, x, out, m, n, k, out_dtype: FLOAT_F32 as u32 };
                    // SAFETY: the buffers have the sizes in the arguments.
                    unsafe { device.launch(kernel, config(n, m), &arguments).unwrap() };
                },
            );
        }
    }
}
