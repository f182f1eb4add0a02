//! GroupNorm on ROCm, compared with upstream's GroupNorm on the CPU in f64.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor, Var};
use candle_nn::{GroupNorm, Module};
use common::{assert_close, inner, rocm, rocm_alone, tensor, values, wide, FLOATS};

const EPS: f64 = 1e-5;

/// Returns the tolerance of a result that is rounded once: half a step of the dtype plus the error of f32.
fn rounded_once(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 5e-4,
        _ => 4e-3,
    }
}

fn layer(channels: usize, groups: usize, dtype: DType, device: &Device) -> Result<GroupNorm> {
    let weights = |limit| tensor(&[channels + 1], dtype, limit).to_device(device)?.narrow(0, 1, channels);
    GroupNorm::new(weights(1.5)?, weights(0.5)?, channels, groups, EPS)
}

/// Computes upstream's layer on the CPU in f64 with the same weights. The first element is subtracted first, so that a large
/// mean does not reduce the precision.
fn expected(x: &Tensor, groups: usize) -> Tensor {
    let channels = x.dims()[1];
    let [weight, bias] = [1.5, 0.5]
        .map(|limit| wide(&tensor(&[channels + 1], x.dtype(), limit).narrow(0, 1, channels).unwrap()));
    let first = values(x).first().copied().unwrap_or_default();
    let x = (wide(x) - first).unwrap();
    GroupNorm::new(weight, bias, channels, groups, EPS).unwrap().forward(&x).unwrap()
}

#[track_caller]
fn check(x: &Tensor, groups: usize, what: &str) {
    let device = rocm();
    let (channels, dtype) = (x.dims()[1], x.dtype());
    let norm = layer(channels, groups, dtype, &device).unwrap();
    let got = norm.forward(&x.to_device(&device).unwrap()).unwrap();
    assert_eq!(got.dtype(), dtype);
    let what = format!("{what} {dtype:?} {:?} in {groups} groups", x.dims());
    assert_close(&got, &expected(x, groups), rounded_once(dtype), &what);
}

/// Covers groups of which a workgroup has several, groups that are kept in registers or read twice, and groups in parts, with
/// channels that are not aligned or shorter than a vector.
#[test]
fn groups_of_all_sizes() {
    let shapes: [(&[usize], &[usize]); 13] = [
        (&[1, 1, 1], &[1]),
        (&[3, 5, 1], &[1, 5]),
        (&[2, 8, 3], &[1, 2, 4, 8]),
        (&[2, 6, 4, 5], &[1, 2, 3, 6]),
        (&[2, 6, 7, 7], &[1, 3, 6]),
        (&[1, 3, 2, 1, 9], &[1, 3]),
        (&[300, 4, 3], &[2]),
        (&[2, 64, 8, 8], &[1, 32]),
        (&[1, 9, 33, 31], &[3]),
        (&[1, 2, 20_001], &[1]),
        (&[1, 2, 35_001], &[1]),
        (&[2, 2, 256, 132], &[1]),
        (&[1, 1, 66_001], &[1]),
    ];
    for dtype in FLOATS {
        for (dims, groups) in shapes {
            for &groups in groups {
                check(&tensor(dims, dtype, 3.0), groups, "a group norm");
            }
        }
    }
}

/// Strided inputs are copied; dense inputs are used in place, aligned or not.
#[test]
fn inputs_of_all_layouts() {
    type View = fn(&Tensor) -> Result<Tensor>;
    let views: [View; 4] = [
        |x| x.transpose(1, 3),
        |x| x.narrow(0, 1, 2),
        |x| x.narrow(1, 2, 4),
        |x| x.narrow(0, 0, 1)?.broadcast_as((2, 6, 3, 4)),
    ];
    let device = rocm();
    for dtype in FLOATS {
        let x = tensor(&[3, 6, 3, 4], dtype, 3.0);
        for (number, view) in views.iter().enumerate() {
            let on_cpu = view(&x).unwrap();
            let norm = layer(on_cpu.dims()[1], 2, dtype, &device).unwrap();
            let got = norm.forward(&view(&x.to_device(&device).unwrap()).unwrap()).unwrap();
            let what = format!("view {number} {dtype:?}");
            assert_close(&got, &expected(&on_cpu, 2), rounded_once(dtype), &what);
        }
        let skipped = tensor(&[3 * 2 * 50 + 3], dtype, 3.0);
        let view = |t: &Tensor| t.narrow(0, 3, 300).unwrap().reshape((3, 2, 50)).unwrap();
        let norm = layer(2, 1, dtype, &device).unwrap();
        let got = norm.forward(&view(&skipped.to_device(&device).unwrap())).unwrap();
        assert_close(&got, &expected(&view(&skipped), 1), rounded_once(dtype), "from the third element on");
    }
}

/// A large mean does not reduce the precision of the variance: in one launch, in two, and if parts have different means.
#[test]
fn large_means_with_small_variances() {
    for dims in [[2, 4, 500], [1, 2, 20_000], [1, 2, 40_000]] {
        let at = |mean: f64, dtype| (tensor(&dims, DType::F64, 1.4) + mean).unwrap().to_dtype(dtype).unwrap();
        check(&at(1000.0, DType::F32), 2, "mean 1000");
        check(&at(1000.0, DType::F32), 1, "mean 1000");
        check(&at(50.0, DType::F16), 1, "mean 50");
        check(&at(50.0, DType::BF16), 1, "mean 50");
        check(&at(1e6, DType::F64), 1, "mean 1e6");
    }
    for low in [100, 17_000] {
        let below = Tensor::zeros((1, 1, low), DType::F32, &Device::Cpu).unwrap();
        let above = (tensor(&[1, 1, 80_000 - low], DType::F32, 1.4) + 1000.0).unwrap();
        check(&Tensor::cat(&[below, above], 2).unwrap(), 1, "two means");
    }
}

/// Constant groups give the biases, and a NaN only affects its group.
#[test]
fn constant_groups_and_nan() {
    for dims in [[1, 4, 40], [1, 4, 40_000]] {
        check(&Tensor::full(0.1f32, &dims, &Device::Cpu).unwrap(), 2, "constants");
        let mut numbers = values(&tensor(&dims, DType::F32, 3.0));
        *numbers.last_mut().unwrap() = f64::NAN;
        let x = Tensor::from_vec(numbers, &dims, &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(values(&expected(&x, 2)).iter().filter(|v| v.is_nan()).count(), 2 * dims[2]);
        check(&x, 2, "NaN");
    }
}

#[test]
fn empty_inputs() {
    for dims in [[0, 4, 3], [2, 4, 0]] {
        check(&tensor(&dims, DType::F32, 1.0), 2, "nothing");
    }
}

/// One launch, or two for a few long groups, which only allocate the result and the statistics of the parts.
#[test]
fn launches_and_memory() {
    for (dims, launches) in [([2, 4, 640], 1), ([300, 4, 6], 1), ([1, 2, 20_000], 1), ([1, 2, 40_000], 2)] {
        let device = rocm_alone();
        let rocm = device.as_rocm_device().unwrap();
        for dtype in FLOATS {
            let norm = layer(2.max(dims[1]), 1, dtype, &device).unwrap();
            let x = tensor(&dims, dtype, 2.0).to_device(&device).unwrap();
            // A first run loads the kernel.
            norm.forward(&x).unwrap();
            let before = (rocm.kernels_launched(), rocm.memory_stats());
            let result = norm.forward(&x).unwrap();
            let after = (rocm.kernels_launched(), rocm.memory_stats());
            assert_eq!(after.0 - before.0, launches, "launches of {dims:?} {dtype:?}");
            assert_eq!(after.1.requests - before.1.requests, launches, "memory of {dims:?} {dtype:?}");
            assert!(after.1.live > before.1.live && !result.track_op());
        }
    }
}

/// Upstream's operations are used if gradients of the input or of the weights are tracked.
#[test]
fn gradients() {
    let gradients = |device: &Device| -> Result<Vec<Tensor>> {
        let var = |dims: &[usize], limit| {
            Var::from_tensor(&tensor(dims, DType::F64, limit).to_device(device).unwrap()).unwrap()
        };
        let (x, weight, bias) = (var(&[2, 6, 5], 2.0), var(&[6], 1.5), var(&[6], 0.5));
        let factors = tensor(&[2, 6, 5], DType::F64, 1.0).to_device(device)?;
        let norm = GroupNorm::new(weight.as_tensor().clone(), bias.as_tensor().clone(), 6, 3, EPS)?;
        let of_weights = norm.forward(&x.as_detached_tensor())?;
        assert!(of_weights.track_op());
        let grads = (norm.forward(&x)? * &factors)?.sum_all()?.backward()?;
        let own = (of_weights * &factors)?.sum_all()?.backward()?;
        let got = [(&grads, &x), (&grads, &weight), (&grads, &bias), (&own, &weight), (&own, &bias)];
        Ok(got.map(|(grads, var)| grads.get(var).unwrap().clone()).to_vec())
    };
    let (got, wanted) = (gradients(&rocm()).unwrap(), gradients(&Device::Cpu).unwrap());
    for (number, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        assert_close(got, wanted, 1e-12, &format!("gradient {number}"));
    }
}

/// Invalid operands give upstream's errors.
#[test]
fn invalid_operands_give_the_errors_of_the_cpu() {
    type Refused = fn(&Device) -> Result<Tensor>;
    fn t(dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        tensor(dims, dtype, 1.0).to_device(device)
    }
    let cases: [(&str, Refused); 5] = [
        ("rank 2", |d| layer(4, 2, DType::F32, d)?.forward(&t(&[3, 4], DType::F32, d)?)),
        ("other channels", |d| layer(4, 2, DType::F32, d)?.forward(&t(&[3, 6, 2], DType::F32, d)?)),
        ("groups that do not divide", |d| {
            layer(4, 3, DType::F32, d)?.forward(&t(&[3, 4, 2], DType::F32, d)?)
        }),
        ("weights of another dtype", |d| layer(4, 2, DType::F32, d)?.forward(&t(&[3, 4, 2], DType::F16, d)?)),
        ("weights of other channels", |d| {
            let weight = t(&[3], DType::F32, d)?;
            GroupNorm::new(weight.clone(), weight, 4, 2, EPS)?.forward(&t(&[3, 4, 2], DType::F32, d)?)
        }),
    ];
    let device = rocm();
    for (name, case) in cases {
        match (case(&Device::Cpu), case(&device)) {
            (Ok(cpu), Ok(rocm)) => assert_close(&rocm, &cpu, 0.0, name),
            (Err(cpu), Err(rocm)) => assert_eq!(inner(&cpu).to_string(), inner(&rocm).to_string(), "{name}"),
            (cpu, rocm) => panic!("{name}: the CPU says {cpu:?}, ROCm says {rocm:?}"),
        }
    }
}
