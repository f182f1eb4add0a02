//! Products of many rows with quantized matrices by the library, on GPUs for which that is chosen.
use super::fixture::*;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::rocm::hip_kernels::{self, Module};
use candle_core::rocm::rocm_loader::DRIVER_VARIABLE;
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

/// One that multiplies bf16 only, and one that multiplies f16 too.
const ARCHS: [&str; 2] = ["gfx90a", "gfx942"];

/// The devices are chosen once per process, so the test runs in a separate process for each.
#[test]
fn products_of_many_rows() {
    if !on_software_gpu("the driver's own GPU follows") {
        return on_its_gpu();
    }
    for arch in ARCHS {
        if hip_kernels::code_object(Module::Quantized, arch).is_err() {
            eprintln!("not run: the kernels were built without {arch} (CANDLE_ROCM_ARCHS)");
            continue;
        }
        passes_in_its_own_process("library::on_its_gpu", (DRIVER_VARIABLE, &format!("emulator:{arch}")));
    }
}

#[test]
#[ignore = "run by products_of_many_rows"]
fn on_its_gpu() {
    let device = Device::new_rocm(0).unwrap();
    let formats =
        [GgmlDType::Q4_0, GgmlDType::Q5_1, GgmlDType::Q8_0, GgmlDType::Q2K, GgmlDType::Q4K, GgmlDType::Q6K];
    for format in formats {
        check(format, (65, 70, 512), DType::F32, &device);
        check(format, (130, 33, 256), DType::F16, &device);
        check(format, (200, 1, 768), DType::BF16, &device);
    }
    // A matrix that is dequantized in several parts.
    check(GgmlDType::Q8_0, (65, 8201, 4128), DType::F32, &device);
}

/// Checks all rows of about eight columns, including the last and those near the middle.
fn check(format: GgmlDType, (rows, n, k): (usize, usize, usize), dtype: DType, device: &Device) {
    let values: Vec<f32> = numbers(4096 * 256, 1.0).into_iter().map(|value| value as f32).collect();
    let period = Tensor::new(values, &Device::Cpu).unwrap();
    let part = QTensor::quantize(&period, format).unwrap().data().unwrap().into_owned();
    let count = n * k / format.block_size() * format.type_size();
    let bytes: Vec<u8> = part.iter().copied().cycle().take(count).collect();
    let matrix = |device: &Device| {
        let storage = QStorage::from_data(bytes.as_slice().into(), device, format).unwrap();
        QTensor::new(storage, (n, k)).unwrap()
    };
    let x = tensor(&[rows, k], dtype, 1.0);
    let blocks = matrix(device);
    let multiply = || x.to_device(device).unwrap().apply_op1_no_bwd(&blocks).unwrap();
    let got = multiply();
    assert_eq!((got.dtype(), got.dims()), (dtype, &[rows, n][..]));

    // A decoded copy has the same values. The library may add those of all columns in another order than those of a part.
    let bytes = 2 * n * k;
    let keep =
        |max_bytes| blocks.rocm_storage().unwrap().keep_decoded(blocks.shape(), dtype, max_bytes).unwrap();
    assert_eq!([keep(bytes - 1), keep(bytes), keep(bytes)], [0, bytes, 0]);
    let products = [got, multiply()];

    let middle = n.div_ceil(2);
    let columns: Vec<u32> =
        [0, 1, middle - 1, middle, middle + 1, n - 1].map(|c| c.min(n - 1) as u32).to_vec();
    let columns = Tensor::new(columns, &Device::Cpu).unwrap();
    let w = matrix(&Device::Cpu).dequantize(&Device::Cpu).unwrap().index_select(&columns, 0).unwrap();
    let products =
        products.map(|all| to_f64(&all.to_device(&Device::Cpu).unwrap().index_select(&columns, 1).unwrap()));
    let is_f16 = dtype == DType::F16 && !device.as_rocm_device().unwrap().arch().starts_with("gfx90a");
    let round = |value: f64| match is_f16 {
        true => f16::from_f64(value).to_f64(),
        false => bf16::from_f64(value).to_f64(),
    };
    let narrow = |t: &Tensor| -> Vec<f64> { to_f64(t).into_iter().map(round).collect() };
    let (x, w) = (narrow(&x), narrow(&w));
    let places = 0..products[0].len();
    for (i, got) in products.into_iter().flat_map(|all| places.clone().zip(all)) {
        let (row, column) = (&x[i / 6 * k..][..k], &w[i % 6 * k..][..k]);
        let want: f64 = row.iter().zip(column).map(|(x, w)| x * w).sum();
        let magnitudes: f64 = row.iter().zip(column).map(|(x, w)| (x * w).abs()).sum();
        // One f32 rounding per addition, and the rounding of the result.
        let bound = magnitudes * k as f64 * f64::from(f32::EPSILON) + epsilon(dtype) * want.abs();
        assert!((got - want).abs() <= bound, "{format:?} {rows} x {n} x {k}: {got} at {i}, wanted {want}");
    }
}
