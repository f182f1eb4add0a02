//! Fused operations of image models on ROCm, compared with their formulas in f64 on the CPU.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor, Var};
use candle_nn::fused_image::{add3, geglu, multiply_add, FusedLinear, GroupNorm};
use candle_nn::{Linear, Module};
use common::{assert_close, rocm, rocm_alone, tensor, tolerance, wide, FLOATS};

const NARROW: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn norm(channels: usize, groups: usize, dtype: DType, device: &Device) -> Result<GroupNorm> {
    let weights = |limit| tensor(&[channels], dtype, limit).to_device(device);
    Ok(GroupNorm { weight: weights(1.5)?, bias: weights(0.5)?, groups, eps: 1e-5 })
}

/// Computes the norm by separate operations on the CPU in f64.
fn expected(x: &Tensor, summands: Option<&Tensor>, groups: usize, silu: bool) -> Result<Tensor> {
    let channels = x.dims()[1];
    let own = norm(channels, groups, x.dtype(), &Device::Cpu)?;
    let mut sum = wide(x);
    if let Some(summands) = summands {
        // The sum is rounded, as by a separate operation.
        let mut dims = summands.dims().to_vec();
        dims.resize(x.rank(), 1);
        sum = wide(&sum.broadcast_add(&wide(summands).reshape(dims)?)?.to_dtype(x.dtype())?);
    }
    let y = candle_nn::GroupNorm::new(wide(&own.weight), wide(&own.bias), channels, groups, own.eps)?;
    let y = y.forward(&sum)?;
    if silu {
        y.silu()
    } else {
        Ok(y)
    }
}

/// Covers groups of which a workgroup has several, groups in registers, longer ones, and groups in parts, with channels that
/// are not aligned or shorter than a vector.
#[test]
fn group_norms_with_summands_and_silu() -> Result<()> {
    let device = rocm();
    for dtype in FLOATS {
        for (dims, groups) in [
            (&[1, 1, 1][..], 1),
            (&[3, 5, 1], 5),
            (&[2, 6, 7, 7], 3),
            (&[300, 4, 3], 2),
            (&[2, 64, 8, 8], 32),
            (&[1, 9, 33, 31], 3),
            (&[1, 2, 35_001], 1),
            (&[2, 4, 256, 132], 2),
        ] {
            let x = tensor(dims, dtype, 3.0);
            let summands = tensor(&[dims[0] + 1, dims[1]], dtype, 2.0).narrow(0, 1, dims[0])?;
            let own = norm(dims[1], groups, dtype, &device)?;
            let on_gpu = (x.to_device(&device)?, summands.to_device(&device)?);
            for (with_summands, silu) in [(false, true), (true, false), (true, true)] {
                let got = own.forward_with(&on_gpu.0, with_summands.then_some(&on_gpu.1), silu)?;
                assert_eq!(got.dtype(), dtype);
                let expected = expected(&x, with_summands.then_some(&summands), groups, silu)?;
                let what = format!("{dtype:?} {dims:?} in {groups} groups, {with_summands} {silu}");
                assert_close(&got, &expected, tolerance(dtype), &what);
            }
        }
    }
    Ok(())
}

#[test]
fn a_norm_with_silu_is_one_launch() -> Result<()> {
    let device = rocm_alone();
    let own = norm(8, 4, DType::F16, &device)?;
    let x = tensor(&[2, 8, 4, 4], DType::F16, 1.0).to_device(&device)?;
    let summands = tensor(&[2, 8], DType::F16, 1.0).to_device(&device)?;
    own.forward_with(&x, Some(&summands), true)?;
    let rocm = device.as_rocm_device()?;
    let before = rocm.kernels_launched();
    own.forward_with(&x, Some(&summands), true)?;
    assert_eq!(rocm.kernels_launched() - before, 1);
    Ok(())
}

#[test]
fn gated_activations() -> Result<()> {
    let device = rocm();
    for dtype in FLOATS {
        for dims in [&[2][..], &[3, 10], &[2, 3, 34], &[4, 128], &[0, 4]] {
            let x = tensor(dims, dtype, 4.0);
            let half = dims[dims.len() - 1] / 2;
            let part = |start| wide(&x).narrow(dims.len() - 1, start, half);
            let expected = (part(0)? * part(half)?.gelu_erf()?)?;
            let got = geglu(&x.to_device(&device)?)?;
            assert_close(&got, &expected, 4.0 * tolerance(dtype), &format!("{dtype:?} {dims:?}"));
            assert_close(&geglu(&x)?, &expected, 4.0 * tolerance(dtype), "on the CPU");
        }
        for (dims, width) in [(&[1][..], 1), (&[2, 3], 3), (&[0, 5], 5)] {
            for device in [&device, &Device::Cpu] {
                let error = geglu(&tensor(dims, dtype, 1.0).to_device(device)?).unwrap_err().to_string();
                assert!(error.contains(&format!("is {width}, but must be even")), "{dims:?}: {error}");
            }
        }
    }
    Ok(())
}

#[test]
fn sums_and_products_of_three() -> Result<()> {
    let device = rocm();
    for dtype in NARROW {
        for (dims, b_dims, c_dims) in [
            (&[3][..], &[3][..], &[1][..]),
            (&[2, 3, 5], &[2, 1, 5], &[3, 1]),
            (&[2, 6, 4, 8], &[2, 6, 4, 8], &[1, 6, 1, 1]),
            (&[2, 7, 24], &[2, 7, 24], &[2, 1, 24]),
            (&[0, 4], &[4], &[4]),
        ] {
            let [a, b, c] = [(dims, 3.0), (b_dims, 2.0), (c_dims, 1.5)].map(|(d, x)| tensor(d, dtype, x));
            let on = [&a, &b, &c].map(|x| x.to_device(&device).unwrap());
            let [a, b, c] = [&a, &b, &c].map(wide);
            let sum = a.broadcast_add(&b)?.broadcast_add(&c)?;
            let product = a.broadcast_add(&b.broadcast_mul(&c)?)?;
            let what = format!("{dtype:?} {dims:?}");
            assert_close(&add3(&on[0], &on[1], &on[2])?, &sum, tolerance(dtype), &what);
            assert_close(&multiply_add(&on[0], &on[1], &on[2])?, &product, tolerance(dtype), &what);
        }
        let x = tensor(&[2, 3], dtype, 1.0).to_device(&device)?;
        assert!(add3(&x, &tensor(&[4], dtype, 1.0).to_device(&device)?, &x).is_err());
    }
    Ok(())
}

fn linear_in_f64(
    x: &Tensor,
    w: &Tensor,
    b: Option<&Tensor>,
    gelu: bool,
    r: Option<&Tensor>,
) -> Result<Tensor> {
    let y = Linear::new(wide(w), b.map(wide)).forward(&wide(x).contiguous()?)?;
    let y = if gelu { y.gelu()? } else { y };
    r.map_or(Ok(y.clone()), |r| wide(r) + y)
}

/// Covers bias, activation and residual, columns of a wider weight, and transposed inputs of several images.
#[test]
fn linear_layers_with_epilogues() -> Result<()> {
    let device = rocm();
    for dtype in NARROW {
        for rows in [1, 3, 33, 64] {
            let (k, n) = (24, 40);
            let x = tensor(&[2, rows, k], dtype, 1.0);
            let columns_first = tensor(&[2, k, rows], dtype, 1.0);
            let wider = tensor(&[n, k + 8], dtype, 0.5);
            let (bias, residual) = (tensor(&[n], dtype, 1.0), tensor(&[2, rows, n], dtype, 2.0));
            let on = |x: &Tensor| x.to_device(&device);
            let (wider_on, bias_on, residual_on) = (on(&wider)?, on(&bias)?, on(&residual)?);
            for (is_transposed, with_bias, gelu, with_residual) in [
                (false, true, false, true),
                (false, false, false, true),
                (false, true, true, false),
                (false, false, true, false),
                (true, true, false, false),
                (true, true, false, true),
                (false, true, true, true),
            ] {
                let (x, x_on) = match is_transposed {
                    true => (columns_first.transpose(1, 2)?, on(&columns_first)?.transpose(1, 2)?),
                    false => (x.clone(), on(&x)?),
                };
                let weight = wider.narrow(1, 8, k)?;
                let expected = linear_in_f64(
                    &x,
                    &weight.contiguous()?,
                    with_bias.then_some(&bias),
                    gelu,
                    with_residual.then_some(&residual),
                )?;
                let layer = FusedLinear {
                    x: &x_on,
                    weight: &wider_on.narrow(1, 8, k)?,
                    bias: with_bias.then_some(&bias_on),
                    gelu,
                    residual: with_residual.then_some(&residual_on),
                };
                let what =
                    format!("{dtype:?} {rows} rows, {is_transposed} {with_bias} {gelu} {with_residual}");
                assert_close(&layer.forward()?, &expected, 4.0 * tolerance(dtype), &what);
            }
        }
    }
    Ok(())
}

/// With gradients, separate operations are used, which have them.
#[test]
fn gradients_flow_through_separate_operations() -> Result<()> {
    for device in [Device::Cpu, rocm()] {
        let x = Var::from_tensor(&tensor(&[1, 4, 3, 2], DType::F32, 1.0).to_device(&device)?)?;
        let normed = norm(4, 2, DType::F32, &device)?.forward_with(&x, None, true)?;
        let gradients = add3(&normed, &normed, &x)?.sum_all()?.backward()?;
        assert!(gradients.get(&x).is_some());
    }
    Ok(())
}
