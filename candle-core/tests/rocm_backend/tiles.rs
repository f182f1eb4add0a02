//! Tile kernels for products with quantized matrices, compared with products of the dequantized operands. Sizes include
//! those for which other kernels would be chosen.
use super::fixture::{numbers, rocm};
use candle_core::quantized::rocm::block_types;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::rocm::hip_kernels::contract::{
    DevicePtr, QuantizedTiles, BLOCK, FLOAT_F32, QTILE_COLUMNS, QTILE_ROWS, QUANTIZED_PIECE,
};
use candle_core::rocm::LaunchConfig;
use candle_core::{Device, RocmDevice, Tensor};
use half::f16;

/// Rows of activations, rows of the matrix, and blocks per row: below and above the sizes of tiles and of the parts of waves
/// and workgroups, with full and partial steps.
const SIZES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (15, 17, 3),
    (17, 15, 4),
    (33, 63, 2),
    (63, 33, 1),
    (64, 65, 5),
    (65, 64, 1),
    (127, 129, 1),
    (129, 127, 2),
];

/// Random activations: in the memory of a kernel, and as numbers.
pub struct Activations {
    memory: Vec<u8>,
    values: Vec<f64>,
}

fn random_integers(seed: usize) -> impl FnMut() -> i32 {
    let mut state = seed as u64 | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as i32
    }
}

impl Activations {
    /// Returns activations in the format of quantize_rows: bytes, then a scale and the sums of both halves of each piece.
    /// Each span, as long as a block of the matrix, shares a scale.
    pub fn bytes(count: usize, span: usize) -> Self {
        let mut next = random_integers(count);
        let bytes: Vec<i8> = (0..count).map(|_| (next() % 255 - 127) as i8).collect();
        let scales: Vec<f32> = (0..count / span).map(|_| (next() % 1000) as f32 * 1e-5).collect();
        let mut memory: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
        for (i, bytes) in bytes.chunks_exact(QUANTIZED_PIECE).enumerate() {
            memory.extend(scales[i * QUANTIZED_PIECE / span].to_le_bytes());
            for half in bytes.chunks_exact(QUANTIZED_PIECE / 2) {
                memory.extend(half.iter().map(|byte| i16::from(*byte)).sum::<i16>().to_le_bytes());
            }
        }
        let value = |(i, byte): (usize, &i8)| f64::from(*byte) * f64::from(scales[i / span]);
        let values = bytes.iter().enumerate().map(value).collect();
        Self { memory, values }
    }

    /// Returns activations as f16.
    pub fn halves(count: usize) -> Self {
        let mut next = random_integers(count);
        let halves: Vec<f16> =
            (0..count).map(|_| f16::from_f32((next() % 4096 - 2048) as f32 * 1e-3)).collect();
        let memory = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        Self { memory, values: halves.into_iter().map(f64::from).collect() }
    }
}

/// Operands, result and sizes of a product of (m, k) activations with (n, k) weights.
pub struct Product {
    pub blocks: DevicePtr,
    pub x: DevicePtr,
    pub out: DevicePtr,
    pub m: u32,
    pub n: u32,
    pub k: u32,
}

/// Checks the kernel that `launch` enqueues with a random matrix and these activations. `roundings` returns the tolerated number
/// of roundings for k. A scaled byte plus a minimum is at most four times the largest of the `sharing` weights that share
/// a scale.
pub fn check(
    dtype: GgmlDType,
    (m, n, blocks): (usize, usize, usize),
    sharing: usize,
    activations: &Activations,
    roundings: impl Fn(usize) -> usize,
    launch: impl FnOnce(&RocmDevice, Product),
) {
    let device = rocm();
    let device = device.as_rocm_device().unwrap();
    let k = blocks * dtype.block_size();
    let values = numbers(n * k, 1.0).into_iter().map(|v| v as f32).collect();
    let values = Tensor::from_vec(values, (n, k), &Device::Cpu).unwrap();
    let matrix = QTensor::quantize(&values, dtype).unwrap();
    let weights = matrix.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
    let weights = weights.to_vec1::<f32>().unwrap();

    let matrix = device.clone_htod(&matrix.data().unwrap()).unwrap();
    let x = device.clone_htod(&activations.memory).unwrap();
    // SAFETY: the kernel writes every element.
    let out = unsafe { device.alloc::<f32>(m * n).unwrap() };
    let (blocks, x, to) = (matrix.ptr(), x.ptr(), out.ptr());
    launch(device, Product { blocks, x, out: to, m: m as u32, n: n as u32, k: k as u32 });
    let x = &activations.values;
    for (i, got) in device.clone_dtoh(&out).unwrap().into_iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let (want, magnitudes) = product(&x[row * k..][..k], &weights[column * k..][..k], sharing);
        let bound = magnitudes * roundings(k) as f64 * f64::from(f32::EPSILON) / 2.0;
        let what = format!("{dtype:?} {m} x {n} x {k}, row {row}, column {column}");
        assert!((f64::from(got) - want).abs() <= bound, "{what}: {got}, wanted {want} within {bound}");
    }
}

/// Returns the product of two rows, and the sum of the magnitudes.
fn product(x: &[f64], w: &[f32], sharing: usize) -> (f64, f64) {
    let (mut sum, mut magnitudes) = (0.0, 0.0);
    for (x, w) in x.chunks_exact(sharing).zip(w.chunks_exact(sharing)) {
        let largest = w.iter().fold(0.0f32, |max, w| max.max(w.abs()));
        sum += x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
        magnitudes += x.iter().map(|x| x.abs()).sum::<f64>() * 4.0 * f64::from(largest);
    }
    (sum, magnitudes)
}

/// Integer sums are exact. Each sum of 16 products is scaled and reduced by a minimum with a few roundings, and added, where
/// each addition rounds at most the sum of all magnitudes. For blocks of 256, matrix units compute sums of 128 products with
/// four roundings each, the first of a number of up to 28 bits.
#[test]
fn products_of_any_size() {
    for (dtype, format) in block_types() {
        let kernel = QuantizedTiles::kernel(format).unwrap();
        for size in SIZES {
            let activations = Activations::bytes(size.0 * size.2 * dtype.block_size(), dtype.block_size());
            check(
                dtype,
                size,
                QUANTIZED_PIECE,
                &activations,
                |k| 2 * k / 16 + 6,
                |device, of| {
                    let grid = (of.m.div_ceil(QTILE_ROWS as u32), of.n.div_ceil(QTILE_COLUMNS as u32), 1);
                    let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
                    let Product { blocks, x, out, m, n, k } = of;
                    let arguments = QuantizedTiles { blocks, x, out, m, n, k, out_dtype: FLOAT_F32 as u32 };
                    // SAFETY: the buffers have the sizes in the arguments.
                    unsafe { device.launch(kernel, config, &arguments).unwrap() };
                },
            );
        }
    }
}
