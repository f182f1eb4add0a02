//! Tests linear layers with a bias in hipBLASLt: one heuristic query per shape, and the fallback to rocBLAS
//! and our own kernels if hipBLASLt is absent, has no solution or fails.
mod common;

use common::count_calls;

use candle_core::rocm::RocmDevice;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Linear, Module};
use rocm_emulator::{Injection, inject};
use serial_test::serial;
use std::process::Command;

const PRODUCT: &str = "hipblasLtMatmul";
const HEURISTIC: &str = "hipblasLtMatmulAlgoGetHeuristic";

/// Opens a new device, without cached heuristics; returns `None` if the driver is not the software GPU.
fn fresh_device() -> Result<Option<Device>> {
    let Some(gpu) = common::gpu() else { return Ok(None) };
    if gpu.rocm().driver_name() != "emulator" {
        println!("not applicable: this tests the software GPU's hipBLASLt");
        return Ok(None);
    }
    Ok(Some(Device::Rocm(RocmDevice::new_with_stream(0)?)))
}

/// Returns integers, whose products are exact in every dtype.
fn numbers(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i * 37 % 7) as f32 - 3.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// Computes (2, 12, 32) times the transpose of (24, 32) plus a bias on the device; returns the result and the
/// expected one.
fn layer(device: &Device, dtype: DType) -> Result<[Vec<f32>; 2]> {
    let (x, w, b) = (numbers(&[2, 12, 32], dtype)?, numbers(&[24, 32], dtype)?, numbers(&[24], dtype)?);
    let row = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let (xs, ws, bs) = (row(&x)?, row(&w)?, row(&b)?);
    let expected = (0..24 * 24).map(|i| {
        let (x, w) = (&xs[i / 24 * 32..][..32], &ws[i % 24 * 32..][..32]);
        bs[i % 24] + x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>()
    });
    let linear = Linear::new(w.to_device(device)?, Some(b.to_device(device)?));
    let got = linear.forward(&x.to_device(device)?)?;
    Ok([row(&got.to_device(&Device::Cpu)?)?, expected.collect()])
}

#[track_caller]
fn assert_close([got, expected]: [Vec<f32>; 2], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.into_iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-2 * (1.0 + expected.abs()), "{what}: {got}, not {expected}");
    }
}

#[test]
#[serial(gpu)]
fn a_known_shape_needs_one_call() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (first, made) = count_calls(|| layer(&device, dtype));
        assert_close(first?, &format!("{dtype:?}"));
        assert_eq!((made.get(HEURISTIC), made.get(PRODUCT)), (Some(&1), Some(&1)), "{made:?}");
        let (second, made) = count_calls(|| layer(&device, dtype));
        assert_close(second?, &format!("{dtype:?}, again"));
        assert_eq!((made.get(HEURISTIC), made.get(PRODUCT)), (None, Some(&1)), "{made:?}");
        assert!(!made.contains_key("hipModuleLaunchKernel"), "{made:?}");
    }
    let (wide, made) = count_calls(|| layer(&device, DType::F64));
    assert_close(wide?, "f64");
    assert!(!made.contains_key(PRODUCT), "{made:?}");
    Ok(())
}

/// Makes every call of hipBLASLt fail once; the fallback must compute the result and the device must stay
/// usable.
#[test]
#[serial(gpu)]
fn failures_use_the_fallback() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    let (first, made) = count_calls(|| layer(&device, DType::F16));
    assert_close(first?, "no failure");
    let of_library: Vec<_> = made.into_iter().filter(|(name, _)| name.starts_with("hipblasLt")).collect();
    assert!(of_library.len() > 6, "{of_library:?}");
    for (name, count) in of_library {
        for nth in 1..=count {
            let what = format!("{name}:{nth}");
            let device = fresh_device()?.expect("the software GPU");
            inject(Injection { failing: vec![(name.into(), nth)], ..Injection::default() });
            let outcome = layer(&device, DType::F16);
            inject(Injection::default());
            assert_close(outcome?, &what);
            assert_close(layer(&device, DType::F16)?, &format!("after {what}"));
            assert_close(layer(&device, DType::F32)?, &format!("another shape after {what}"));
        }
    }
    Ok(())
}

/// The fallback computes if hipBLASLt is not installed, has no solution for any shape, or is disabled.
#[test]
#[serial(gpu)]
fn the_fallback_computes_without_the_library() -> Result<()> {
    if fresh_device()?.is_none() {
        return Ok(());
    }
    let cases = [
        ("CANDLE_ROCM_EMULATOR", "hipblaslt=absent"),
        ("CANDLE_ROCM_EMULATOR", "hipblaslt=none"),
        ("CANDLE_ROCM_HIPBLASLT", "0"),
    ];
    for (variable, value) in cases {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "computes_without_the_library", "--nocapture"]);
        let output = command.env(variable, value).output().expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{value}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[test]
#[ignore = "run by another test in child processes"]
fn computes_without_the_library() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        let (got, made) = count_calls(|| layer(&device, dtype));
        assert_close(got?, "without");
        assert!(!made.contains_key(PRODUCT), "{made:?}");
        // The library is not queried a second time.
        let (got, made) = count_calls(|| layer(&device, dtype));
        assert_close(got?, "without, again");
        assert!(made.keys().all(|name| !name.starts_with("hipblasLt")), "{made:?}");
    }
    Ok(())
}
