//! The kernels of products of a few rows with blocks, against the products of the values that the blocks and the bytes of
//! the activations stand for.
use super::fixture::{numbers, rocm};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::rocm::hip_kernels::contract::{
    BlockFormat, QuantizedFew, BLOCK, QFEW_SIDE, QUANTIZED_PIECE,
};
use candle_core::rocm::LaunchConfig;
use candle_core::{Device, Tensor};

const FORMATS: [(GgmlDType, BlockFormat); 6] = [
    (GgmlDType::Q2K, BlockFormat::Q2k),
    (GgmlDType::Q3K, BlockFormat::Q3k),
    (GgmlDType::Q4K, BlockFormat::Q4k),
    (GgmlDType::Q5K, BlockFormat::Q5k),
    (GgmlDType::Q6K, BlockFormat::Q6k),
    (GgmlDType::Q8K, BlockFormat::Q8k),
];
/// Weights of a block, and activations that share a scale.
const SPAN: usize = 256;

/// Rows on both sides of halves of tiles and of workgroups' parts, rows of blocks likewise, and fewer and more blocks of a
/// row than waves of a workgroup.
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

/// Activations as quantize_rows writes them in spans: the scale stands with each piece of a span, beside sums of both halves.
fn in_memory(bytes: &[i8], scales: &[f32]) -> Vec<u8> {
    let mut memory: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    for (i, bytes) in bytes.chunks_exact(QUANTIZED_PIECE).enumerate() {
        memory.extend(scales[i * QUANTIZED_PIECE / SPAN].to_le_bytes());
        for half in bytes.chunks_exact(QUANTIZED_PIECE / 2) {
            memory.extend(half.iter().map(|byte| i16::from(*byte)).sum::<i16>().to_le_bytes());
        }
    }
    memory
}

/// The product of two rows, and how far f32 may be from it.
///
/// The sums of a span are exact. They are scaled, one taken from the other, and added by a few roundings; a scaled byte and
/// a minimum are together at most four times as large as the largest weight of those that share them.
fn product(bytes: &[i8], scales: &[f32], weights: &[f32]) -> (f64, f64) {
    let (mut sum, mut magnitudes) = (0.0, 0.0);
    for ((bytes, scale), weights) in bytes.chunks_exact(SPAN).zip(scales).zip(weights.chunks_exact(SPAN)) {
        let largest = weights.iter().fold(0.0f32, |max, w| max.max(w.abs()));
        let x = || bytes.iter().map(|byte| f64::from(*byte) * f64::from(*scale));
        sum += x().zip(weights).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
        magnitudes += x().map(f64::abs).sum::<f64>() * 4.0 * f64::from(largest);
    }
    let roundings = scales.len() + 6;
    (sum, magnitudes * roundings as f64 * f64::from(f32::EPSILON) / 2.0)
}

#[test]
fn products_of_any_size() {
    let device = rocm();
    let device = device.as_rocm_device().unwrap();
    for (dtype, format) in FORMATS {
        for (m, n, blocks) in SIZES {
            let k = blocks * SPAN;
            let values = numbers(n * k, 1.0).into_iter().map(|v| v as f32).collect();
            let values = Tensor::from_vec(values, (n, k), &Device::Cpu).unwrap();
            let matrix = QTensor::quantize(&values, dtype).unwrap();
            let weights = matrix.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
            let weights = weights.to_vec1::<f32>().unwrap();
            let bytes: Vec<i8> = numbers(m * k, 127.0).into_iter().map(|v| v as i8).collect();
            let scales: Vec<f32> = numbers(m * blocks, 0.01).into_iter().map(|v| v as f32).collect();

            let matrix = device.clone_htod(&matrix.data().unwrap()).unwrap();
            let x = device.clone_htod(&in_memory(&bytes, &scales)).unwrap();
            // SAFETY: the kernel writes all of it.
            let out = unsafe { device.alloc::<f32>(m * n).unwrap() };
            let (blocks_at, x, out_at) = (matrix.ptr(), x.ptr(), out.ptr());
            let arguments =
                QuantizedFew { blocks: blocks_at, x, out: out_at, m: m as u32, n: n as u32, k: k as u32 };
            let grid = (n.div_ceil(QFEW_SIDE) as u32, m.div_ceil(QFEW_SIDE) as u32, 1);
            let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
            let kernel = QuantizedFew::kernel(format).unwrap();
            // SAFETY: the buffers have the sizes that the kernel is given.
            unsafe { device.launch(kernel, config, &arguments).unwrap() };
            for (i, got) in device.clone_dtoh(&out).unwrap().into_iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let (want, bound) = product(
                    &bytes[row * k..][..k],
                    &scales[row * blocks..][..blocks],
                    &weights[column * k..][..k],
                );
                let what = format!("{dtype:?} {m} x {n} x {k}, row {row}, column {column}");
                assert!(
                    (f64::from(got) - want).abs() <= bound,
                    "{what}: {got}, wanted {want} within {bound}"
                );
            }
        }
    }
}
