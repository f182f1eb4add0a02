//! Mixture-of-experts products on ROCm, compared with separate products with each selected matrix.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{DType, Device, IndexOp, Result, Tensor, D};
use candle_nn::moe::{moe_gemm, moe_gemm_gguf};
use common::{rocm, tensor};
use std::borrow::Cow;

const EXPERTS: usize = 5;

/// Routing of the products: output row, expert and factor of each.
struct Chosen {
    /// Pairs of row and choice, sorted by expert as in the layers of candle-transformers.
    order: Tensor,
    experts: Tensor,
    by_row: Vec<u32>,
}

fn chosen(products: usize, device: &Device) -> Result<Chosen> {
    let by_row: Vec<u32> = (0..products).map(|i| (i * i * 7 + i / 3) as u32 % EXPERTS as u32).collect();
    let (experts, order) = Tensor::new(by_row.as_slice(), device)?.sort_last_dim(true)?;
    Ok(Chosen { order, experts, by_row })
}

/// Computes the rows of the product in f64.
fn expected(
    x: &Tensor,
    weights: &Tensor,
    by_row: &[u32],
    per: usize,
    factors: Option<&[f32]>,
) -> Result<Vec<f64>> {
    let (x, weights) = (x.to_dtype(DType::F64)?, weights.to_dtype(DType::F64)?);
    let mut rows = Vec::new();
    for (i, &expert) in by_row.iter().enumerate() {
        let row = x.i(i / per)?.unsqueeze(0)?.matmul(&weights.i(expert as usize)?.t()?)?;
        let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
        rows.extend(row.flatten_all()?.to_vec1::<f64>()?.into_iter().map(|value| value * factor));
    }
    Ok(rows)
}

#[track_caller]
fn assert_near(got: &Tensor, expected: &[f64], bound: f64, what: &str) {
    let got = got.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, want)) in got.into_iter().zip(expected).enumerate() {
        assert!((got - want).abs() <= bound * (1.0 + want.abs()), "{what}: {got} at {i}, wanted {want}");
    }
}

#[test]
fn dense_stacks() -> Result<()> {
    let device = rocm();
    for (dtype, bound) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
        for (rows, topk, n, k) in [(1, 2, 7, 64), (3, 2, 33, 128), (9, 3, 16, 264), (40, 1, 5, 8)] {
            let weights = (tensor(&[EXPERTS, n, k], DType::F32, 0.2) * 0.5)?.to_dtype(dtype)?;
            for with_factors in [false, true] {
                let products = rows * topk;
                let x = tensor(&[if with_factors { products } else { rows }, k], DType::F32, 1.0)
                    .to_dtype(dtype)?;
                let Chosen { order, experts, by_row } = chosen(products, &device)?;
                let numbers: Vec<f32> = (0..products).map(|i| 0.25 + i as f32 / products as f32).collect();
                let factors = match with_factors {
                    true => Some(Tensor::from_slice(&numbers, (rows, topk), &device)?),
                    false => None,
                };
                let (on_x, on_w) = (x.to_device(&device)?, weights.to_device(&device)?);
                let per = if with_factors { 1 } else { topk };
                let want = expected(&x, &weights, &by_row, per, with_factors.then_some(&numbers))?;
                for is_prefill in [false, true] {
                    let got = moe_gemm(&on_x, &on_w, &factors, &order, &experts, topk, is_prefill)?;
                    assert_eq!((got.dims(), got.dtype()), ([products, n].as_slice(), dtype));
                    assert_near(&got, &want, bound, &format!("{dtype:?} {rows} x {topk} {with_factors}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn stacks_of_blocks() -> Result<()> {
    let device = rocm();
    let (n, k) = (19, 512);
    for format in
        [GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q2K, GgmlDType::Q3K, GgmlDType::Q5K, GgmlDType::Q6K]
    {
        let values = tensor(&[EXPERTS, n, k], DType::F32, 0.2);
        let blocks = QTensor::quantize(&values, format)?;
        let storage = QStorage::from_data(Cow::Owned(blocks.data()?.into_owned()), &device, format)?;
        let stack = QTensor::new(storage, (EXPERTS, n, k))?;
        let weights = blocks.dequantize(&Device::Cpu)?;
        for (rows, topk, with_factors) in [(1, 2, false), (6, 2, true), (11, 4, false)] {
            let products = rows * topk;
            let x = tensor(&[if with_factors { products } else { rows }, k], DType::F32, 1.0);
            let Chosen { order, experts, by_row } = chosen(products, &device)?;
            let numbers: Vec<f32> = (0..products).map(|i| 0.5 + i as f32 / products as f32).collect();
            let factors = match with_factors {
                true => Some(Tensor::from_slice(&numbers, products, &device)?),
                false => None,
            };
            let got = moe_gemm_gguf(
                &x.to_device(&device)?,
                &stack,
                &factors,
                &order,
                &experts,
                topk,
                true,
                DType::F16,
            )?;
            assert_eq!(got.dims(), [products, n]);
            let per = if with_factors { 1 } else { topk };
            let want = expected(&x, &weights, &by_row, per, with_factors.then_some(&numbers))?;
            // The error is half a quantization step of an activation per weight of a row.
            let step = f64::from(x.abs()?.max_all()?.to_scalar::<f32>()?) / 127.0;
            let row: f32 = weights.abs()?.sum(D::Minus1)?.max_all()?.to_scalar()?;
            assert_near(&got, &want, 0.51 * step * f64::from(row), &format!("{format:?} {rows} x {topk}"));
        }
    }
    Ok(())
}

#[test]
fn mismatched_operands_are_errors() -> Result<()> {
    let device = rocm();
    let weights = Tensor::zeros((2, 4, 16), DType::F16, &device)?;
    let ids = Tensor::zeros(3, DType::U32, &device)?;
    let gemm = |x: &Tensor, w: &Tensor, ids: &Tensor| moe_gemm(x, w, &None, ids, ids, 1, false);
    let x = |rows, k, dtype| Tensor::zeros((rows, k), dtype, &device);
    for (x, ids, part) in [
        (x(3, 16, DType::F32)?, ids.clone(), "f16/bf16"),
        (x(3, 8, DType::F16)?, ids.clone(), "do not match"),
        (x(3, 16, DType::BF16)?, ids.clone(), "do not match"),
        (x(2, 16, DType::F16)?, ids.clone(), "elements of U32"),
        (x(3, 16, DType::F16)?, ids.to_dtype(DType::I64)?, "elements of U32"),
        (x(3, 16, DType::F16)?.to_device(&Device::Cpu)?, ids.clone(), "cuda backend"),
    ] {
        let error = gemm(&x, &weights, &ids).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let stack = QStorage::from_data(Cow::Owned(vec![0; 2 * 4 * 34]), &device, GgmlDType::Q8_0)?;
    let stack = QTensor::new(stack, (2, 4, 32))?;
    let error = moe_gemm_gguf(&x(3, 64, DType::F32)?, &stack, &None, &ids, &ids, 1, false, DType::F16);
    assert!(error.unwrap_err().to_string().contains("rows of 32"));
    // An expert index out of range, on a separate stream whose faults no other test receives.
    let own = Device::new_rocm_with_stream(0)?;
    let (weights, ids) = (Tensor::zeros((2, 4, 16), DType::F16, &own)?, Tensor::new(&[0u32, 2, 1], &own)?);
    let order = Tensor::new(&[0u32, 1, 2], &own)?;
    let x = Tensor::zeros((3, 16), DType::F16, &own)?;
    let out = moe_gemm(&x, &weights, &None, &order, &ids, 1, false)?;
    let error = out.to_vec2::<half::f16>().unwrap_err().to_string();
    assert!(error.contains("experts: index 2"), "{error}");
    Ok(())
}
