//! Tensors in GGML's block formats and their products, compared with the CPU device.
use super::fixture::*;
use candle_core::quantized::rocm::block_types;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::rocm::hip_kernels::contract::BlockFormat;
use candle_core::{DType, Device, Module, Tensor};
use std::borrow::Cow;

const FLOATS: [GgmlDType; 3] = [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16];

fn blocks() -> impl Iterator<Item = GgmlDType> {
    block_types().map(|(dtype, _)| dtype)
}

pub fn all() -> impl Iterator<Item = GgmlDType> {
    blocks().chain(FLOATS)
}

/// Returns pseudo-random numbers between -1 and 1, and some much larger ones.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
        if state >> 33 & 63 == 0 {
            value * 20.0
        } else {
            value
        }
    };
    (0..count).map(next).collect()
}

/// Returns the same blocks on the CPU device and on `device`.
fn both(shape: &[usize], dtype: GgmlDType, seed: u64, device: &Device) -> (QTensor, QTensor) {
    let values = numbers(shape.iter().product(), seed);
    let values = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    let cpu = QTensor::quantize(&values, dtype).unwrap();
    let storage = QStorage::from_data(Cow::Owned(cpu.data().unwrap().into_owned()), device, dtype).unwrap();
    (cpu, QTensor::new(storage, shape).unwrap())
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn block_sizes_of_the_contract_match_the_cpu_device() {
    assert_eq!(block_types().count(), BlockFormat::ALL.len());
    for (dtype, format) in block_types() {
        assert_eq!(format!("{dtype:?}").to_lowercase(), format.name());
        assert_eq!((dtype.block_size(), dtype.type_size()), (format.weights(), format.bytes()), "{dtype:?}");
    }
}

#[test]
fn blocks_keep_their_bytes_and_values() {
    let device = rocm();
    for dtype in all() {
        for shape in [vec![1, 256], vec![7, 512], vec![3, 5, 256]] {
            let (cpu, gpu) = both(&shape, dtype, 1, &device);
            assert_eq!(gpu.data().unwrap(), cpu.data().unwrap(), "{dtype:?}");
            assert_eq!(gpu.storage_size_in_bytes(), cpu.storage_size_in_bytes());
            assert!(!gpu.device_ptr().unwrap().is_null());
            let (expected, got) = (cpu.dequantize(&Device::Cpu).unwrap(), gpu.dequantize(&device).unwrap());
            assert_eq!(got.dtype(), DType::F32);
            assert_eq!(bits(&got), bits(&expected), "{dtype:?} {shape:?}");
            let narrow = gpu.dequantize_f16(&device).unwrap();
            assert_eq!(narrow.dtype(), DType::F16);
            assert_eq!(bits(&narrow), bits(&cpu.dequantize_f16(&Device::Cpu).unwrap()), "{dtype:?} f16");
        }
    }
}

/// The bytes and values are those of `quantize` and `dequantize` of PyPI's `gguf` 0.19.
#[test]
fn blocks_in_mxfp4_are_those_of_the_gguf_package() {
    #[rustfmt::skip]
    const BYTES: [u8; 34] = [
        126, 223, 99, 174, 118, 44, 231, 80, 223, 116, 158, 246, 76, 231, 97, 207, 117,
        119, 97, 231, 90, 247, 61, 246, 14, 117, 191, 116, 223, 97, 231, 91, 247, 61,
    ];
    #[rustfmt::skip]
    const VALUES: [f32; 64] = [
        -3.0, 0.75, -2.0, 2.0, -1.0, 3.0, 0.0, -3.0, 1.0, -2.0, 2.0, -1.0, 3.0, 0.25, -3.0, 1.5, -1.5, 2.0,
        -0.5, 3.0, 0.5, -2.0, 1.5, -1.5, 3.0, -0.25, -3.0, 1.0, -2.0, 2.0, -1.0, 3.0, 0.001953125,
        0.0234375, -0.00390625, 0.0234375, -0.01171875, 0.015625, -0.015625, 0.01171875, -0.0234375,
        0.0078125, -0.0234375, 0.001953125, 0.0234375, -0.005859375, 0.0234375, -0.01171875, 0.015625,
        -0.015625, 0.01171875, -0.0234375, 0.005859375, -0.0234375, 0.0, 0.0234375, -0.005859375, 0.0234375,
        -0.01171875, 0.015625, -0.015625, 0.01171875, -0.0234375, 0.005859375,
    ];
    let number = |i: i32| match i {
        0..32 => (i * 37 % 64 - 31) as f32 * 0.11,
        _ => (i * 29 % 64 - 30) as f32 * 1e-3,
    };
    let values = Tensor::from_iter((0..64).map(number), &Device::Cpu).unwrap();
    for device in [Device::Cpu, rocm()] {
        let blocks = QTensor::quantize(&values.to_device(&device).unwrap(), GgmlDType::MXFP4).unwrap();
        assert_eq!(blocks.data().unwrap()[..], BYTES);
        assert_eq!(blocks.dequantize(&Device::Cpu).unwrap().to_vec1::<f32>().unwrap(), VALUES);
    }
    // All elements with all scales: the number that the bits stand for, rounded to f32 or infinite.
    let blocks: Vec<u8> = (0..=254)
        .flat_map(|scale| [scale].into_iter().chain((0..16).map(|at| at | (15 - at) << 4)))
        .collect();
    let element =
        |bits: usize| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][bits % 8] * if bits < 8 { 1.0 } else { -1.0 };
    let expected = |at: usize| {
        let bits = if at % 32 < 16 { at % 16 } else { 15 - at % 16 };
        (element(bits) * 2f64.powi(at as i32 / 32 - 127)) as f32
    };
    for device in [Device::Cpu, rocm()] {
        let storage = QStorage::from_data(Cow::Borrowed(&blocks), &device, GgmlDType::MXFP4).unwrap();
        let got = QTensor::new(storage, 255 * 32).unwrap().dequantize(&Device::Cpu).unwrap();
        assert_eq!(got.to_vec1::<f32>().unwrap(), (0..255 * 32).map(expected).collect::<Vec<_>>());
    }
}

#[test]
fn zeros_are_blocks_of_zero_bytes() {
    let device = rocm();
    for dtype in all() {
        let zeros = QStorage::from_data(Cow::Owned(vec![0; dtype.type_size()]), &device, dtype).unwrap();
        let zeros = QTensor::new(zeros, dtype.block_size()).unwrap();
        assert!(bits(&zeros.dequantize(&device).unwrap()).iter().all(|&bits| bits << 1 == 0), "{dtype:?}");
    }
}

#[test]
fn rows_of_an_embedding() {
    let device = rocm();
    for dtype in all() {
        let (cpu, gpu) = both(&[37, 512], dtype, 2, &device);
        for ids in [vec![0u32], vec![36, 0, 5, 5, 17], (0..37).rev().collect()] {
            let count = ids.len();
            let ids = Tensor::from_vec(ids, count, &Device::Cpu).unwrap();
            let expected = cpu.embedding(&ids).unwrap();
            let got = gpu.embedding(&ids).unwrap();
            assert_eq!(got.dims(), expected.dims());
            assert_eq!(bits(&got), bits(&expected), "{dtype:?}");
        }
    }
}

/// Returns the number of activations per scale in products of `rows` rows with this format.
fn span(device: &Device, dtype: GgmlDType, rows: usize) -> usize {
    let on_units = device.as_rocm_device().unwrap().has_matrix_units();
    if rows > 1 && dtype.block_size() == 256 && on_units {
        256
    } else {
        32
    }
}

/// Computes the product of rows x (rows, k) with the values w (n, k), and the tolerance of a product with activations
/// quantized to 8 bits per span: half a step per activation, plus the rounding of the sum.
fn products(x: &[f64], w: &[f64], k: usize, span: usize) -> Vec<(f64, f64)> {
    let mut results = Vec::new();
    for row in x.chunks_exact(k) {
        for weights in w.chunks_exact(k) {
            let (mut sum, mut bound) = (0.0, 1e-6);
            for (xs, ws) in row.chunks(span).zip(weights.chunks(span)) {
                let step = xs.iter().fold(0.0f64, |max, x| max.max(x.abs())) / 127.0;
                for (x, w) in xs.iter().zip(ws) {
                    sum += x * w;
                    bound += w.abs() * (step * 0.5001 + 4e-6 * (x.abs() + step));
                }
            }
            results.push((sum, bound));
        }
    }
    results
}

#[track_caller]
fn assert_product(got: &Tensor, x: &Tensor, w: &Tensor, span: usize, what: &str) {
    let k = *w.dims().last().unwrap();
    // The result is also rounded to the dtype.
    let epsilon = match got.dtype() {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    };
    let products = products(&to_f64(x), &to_f64(w), k, span);
    for (i, (got, (want, bound))) in to_f64(got).into_iter().zip(products).enumerate() {
        let bound = bound + epsilon * want.abs();
        assert!((got - want).abs() <= bound, "{what}: {got} at {i}, wanted {want} within {bound}");
    }
}

#[test]
fn products_of_any_rows_and_columns() {
    let device = rocm();
    for dtype in all() {
        for (n, k) in [(1, 256), (5, 512), (33, 256), (70, 768)] {
            let (cpu, gpu) = both(&[n, k], dtype, 3, &device);
            let w = cpu.dequantize(&Device::Cpu).unwrap();
            for rows in [1, 2, 3, 4, 5, 9, 17, 33] {
                let x = Tensor::from_vec(numbers(rows * k, rows as u64), (rows, k), &Device::Cpu).unwrap();
                let got = x.to_device(&device).unwrap().apply_op1_no_bwd(&gpu).unwrap();
                assert_eq!(got.dims(), [rows, n]);
                let span = span(&device, dtype, rows);
                assert_product(&got, &x, &w, span, &format!("{dtype:?} {rows} x {k} x {n}"));
            }
        }
    }
}

#[test]
fn products_of_other_dtypes_and_dims() {
    let device = rocm();
    let (cpu, gpu) = both(&[48, 512], GgmlDType::Q4K, 4, &device);
    let w = cpu.dequantize(&Device::Cpu).unwrap();
    let matmul = QMatMul::from_qtensor(gpu).unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for dims in [vec![1, 1, 512], vec![2, 3, 512], vec![2, 2, 2, 512], vec![30, 512]] {
            let count = dims.iter().product();
            let x = Tensor::from_vec(numbers(count, 5), dims.as_slice(), &Device::Cpu).unwrap();
            let x = x.to_dtype(dtype).unwrap();
            let got = matmul.forward(&x.to_device(&device).unwrap()).unwrap();
            assert_eq!((got.dtype(), got.dims().len()), (dtype, dims.len()));
            let span = span(&device, GgmlDType::Q4K, count / 512);
            assert_product(&got, &x, &w, span, &format!("{dtype:?} {dims:?}"));
        }
        // An offset that is not aligned for vector loads.
        let x = Tensor::from_vec(numbers(3 * 512 + 1, 6), 3 * 512 + 1, &Device::Cpu).unwrap();
        let part = |x: &Tensor| x.narrow(0, 1, 3 * 512).unwrap().reshape((3, 512)).unwrap();
        let x = x.to_dtype(dtype).unwrap();
        let got = matmul.forward(&part(&x.to_device(&device).unwrap())).unwrap();
        let span = span(&device, GgmlDType::Q4K, 3);
        assert_product(&got, &part(&x).contiguous().unwrap(), &w, span, &format!("{dtype:?} from 1 on"));
    }
}

#[test]
fn products_of_many_rows() {
    let device = rocm();
    for dtype in all() {
        let (cpu, gpu) = both(&[70, 512], dtype, 9, &device);
        let w = cpu.dequantize(&Device::Cpu).unwrap();
        for (rows, of) in [(65, DType::F32), (130, DType::BF16), (200, DType::F16)] {
            let x = Tensor::from_vec(numbers(rows * 512, 10), (rows, 512), &Device::Cpu).unwrap();
            let x = x.to_dtype(of).unwrap();
            let got = x.to_device(&device).unwrap().apply_op1_no_bwd(&gpu).unwrap();
            let span = span(&device, dtype, rows);
            assert_product(&got, &x, &w, span, &format!("{of:?} {dtype:?} {rows} x 512 x 70"));
        }
    }
}

#[test]
fn copies_that_no_product_reads_are_not_kept() {
    let device = rocm();
    let rocm = device.as_rocm_device().unwrap();
    let is_read = candle_core::quantized::rocm::decodes_for_products(rocm).unwrap();
    for (dtype, shape, expected) in [
        (GgmlDType::Q4K, vec![6, 256], if is_read { 2 * 6 * 256 } else { 0 }),
        (GgmlDType::Q8_0, vec![2, 3, 32], 0),
        (GgmlDType::F16, vec![6, 256], 0),
    ] {
        let (_, gpu) = both(&shape, dtype, 3, &device);
        let kept = gpu.rocm_storage().unwrap().keep_decoded(gpu.shape(), DType::F16, usize::MAX).unwrap();
        assert_eq!(kept, expected, "{dtype:?}");
    }
}

#[test]
fn invalid_products_give_the_errors_of_the_cpu() {
    let device = rocm();
    let (cpu, gpu) = both(&[8, 256], GgmlDType::Q8_0, 7, &device);
    let inputs: [Tensor; 5] = [
        Tensor::zeros(256, DType::F32, &Device::Cpu).unwrap(),
        Tensor::zeros((2, 255), DType::F32, &Device::Cpu).unwrap(),
        Tensor::zeros((256, 2), DType::F32, &Device::Cpu).unwrap().t().unwrap(),
        Tensor::zeros((2, 256), DType::F64, &Device::Cpu).unwrap(),
        Tensor::zeros((2, 256), DType::U32, &Device::Cpu).unwrap(),
    ];
    for x in inputs {
        let expected = x.apply_op1_no_bwd(&cpu).unwrap_err().to_string();
        let got = x.to_device(&device).unwrap().apply_op1_no_bwd(&gpu);
        // Copies to the device are contiguous, so they may succeed.
        match got {
            Ok(_) => assert!(!x.is_contiguous()),
            Err(error) => assert_eq!(error.to_string().lines().next(), expected.lines().next()),
        }
    }
}

#[test]
fn experts_by_index() {
    let device = rocm();
    let (experts, n, k) = (5, 19, 256);
    for dtype in blocks() {
        let (cpu, gpu) = both(&[experts, n, k], dtype, 8, &device);
        let w = cpu.dequantize(&Device::Cpu).unwrap();
        for (batch, topk, beside) in [(1, 2, 1), (3, 2, 2), (4, 1, 1), (9, 3, 1)] {
            let x =
                Tensor::from_vec(numbers(batch * beside * k, 9), (batch, beside, k), &Device::Cpu).unwrap();
            let ids: Vec<u32> = (0..batch * topk).map(|i| (i * 7 % experts) as u32).collect();
            let on_device = Tensor::from_vec(ids.clone(), (batch, topk), &device).unwrap();
            let got = gpu.indexed_moe_forward(&x.to_device(&device).unwrap(), &on_device).unwrap();
            assert_eq!(got.dims(), [batch, topk, n]);
            let got = got.to_device(&Device::Cpu).unwrap();
            for (i, &expert) in ids.iter().enumerate() {
                let (b, t) = (i / topk, i % topk);
                let row = x.get(b).unwrap().get(if beside == 1 { 0 } else { t }).unwrap();
                let result = got.get(b).unwrap().get(t).unwrap();
                let weights = w.get(expert as usize).unwrap();
                assert_product(&result, &row, &weights, 32, &format!("{dtype:?} row {b} expert {expert}"));
            }
        }
    }
}

#[test]
fn numbers_out_of_range_are_reported() {
    rocm();
    // A separate stream, whose faults no other test receives.
    let device = Device::new_rocm_with_stream(0).unwrap();
    for dtype in all() {
        let (_, table) = both(&[37, 256], dtype, 2, &device);
        let beyond = Tensor::new(&[3u32, 37, 1], &device).unwrap();
        let error = table.embedding(&beyond).and_then(|rows| rows.to_vec2::<f32>()).unwrap_err().to_string();
        assert!(error.contains("index 37 is out of range"), "{dtype:?}: {error}");
    }
    for dtype in blocks() {
        let (_, stack) = both(&[5, 3, 256], dtype, 8, &device);
        let x = Tensor::zeros((1, 1, 256), DType::F32, &device).unwrap();
        let ids = Tensor::new(&[[5u32]], &device).unwrap();
        let out = stack.indexed_moe_forward(&x, &ids).unwrap();
        let error = out.to_vec3::<f32>().unwrap_err().to_string();
        assert!(error.contains("experts: index 5"), "{error}");
    }
}

#[test]
fn tensors_move_between_devices_as_bytes() {
    let device = rocm();
    for dtype in all() {
        let (cpu, gpu) = both(&[4, 256], dtype, 10, &device);
        let back = QStorage::from_data(gpu.data().unwrap(), &Device::Cpu, dtype).unwrap();
        let back = QTensor::new(back, (4, 256)).unwrap();
        assert_eq!(back.data().unwrap(), cpu.data().unwrap(), "{dtype:?}");
    }
}
