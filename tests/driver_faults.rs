//! Fault injection: makes every driver call of a forward pass and a training step fail, one at a time. Each
//! failure must be one error that names the call, without leaks or hangs, and the next step must succeed.
mod common;

use common::{Injected, calls};

use candle_core::rocm::{RocmDevice, RocmError};
use candle_core::{DType, Device, Error, Result, Tensor, Var};
use candle_nn::{Optimizer, SGD, loss, ops};
use rocm_emulator::{Injection, release_stalled};
use serial_test::serial;
use std::time::Duration;

/// Maximum number of failing calls per function, spread evenly over all its calls.
const SAMPLES: u64 = 10;

/// Functions whose failures cannot be reported: they release resources or query optional details.
const SILENT: &[&str] = &[
    "hipFree",
    "hipHostFree",
    "hipModuleUnload",
    "hipStreamDestroy",
    "hipEventDestroy",
    "rocblas_destroy_handle",
    "hipGetLastError",
    "hipGetErrorName",
    "hipGetErrorString",
    // Only used to detect a display; on failure none is assumed.
    "hipDeviceGetPCIBusId",
];

/// Functions that are also called in destructors, where their failures cannot be reported.
const SILENT_IN_DROPS: &[&str] = &["hipSetDevice", "hipStreamSynchronize"];

/// Returns true if the driver supports injected failures, which only the software GPU does.
fn can_inject_failures(gpu: &common::Gpu) -> bool {
    let software = gpu.rocm().driver_name() == "emulator";
    if !software {
        println!("not applicable: only the software GPU can inject failures");
    }
    software
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 60.0).collect()
}

/// Trains a small convolutional network for one step; returns the loss before and after.
fn train(device: &Device) -> Result<[f32; 2]> {
    let weight = |count: usize, shape: &[usize]| Var::from_vec(numbers(count), shape, device);
    let (conv, dense) = (weight(36, &[4, 1, 3, 3])?, weight(4 * 36 * 5, &[4 * 36, 5])?);
    let x = Tensor::from_vec(numbers(3 * 64), (3, 1, 8, 8), device)?;
    let classes = Tensor::from_vec(vec![0u32, 2, 4], 3, device)?;
    let mut optimizer = SGD::new(vec![conv.clone(), dense.clone()], 0.05)?;
    let logits = |conv: &Tensor, dense: &Tensor| -> Result<Tensor> {
        let hidden = x.conv2d(conv, 0, 1, 1, 1)?.relu()?.flatten_from(1)?;
        ops::silu(&hidden)?.matmul(dense)
    };
    let before = loss::cross_entropy(&logits(&conv, &dense)?, &classes)?;
    optimizer.backward_step(&before)?;
    let after = loss::cross_entropy(&logits(&conv, &dense)?, &classes)?;
    Ok([before.to_scalar()?, after.to_scalar()?])
}

/// Trains on a new device, so that the calls include opening it, loading its kernels and closing it.
fn train_on_fresh_device() -> Result<[f32; 2]> {
    train_with_cached(64 << 20)
}

fn train_with_cached(bytes: usize) -> Result<[f32; 2]> {
    let device = RocmDevice::new_with_stream(0)?;
    device.set_memory_cache_limit(bytes)?;
    train(&Device::Rocm(device))
}

#[test]
#[serial(gpu)]
fn every_failing_call_is_reported_and_the_next_step_succeeds() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    if !can_inject_failures(&gpu) {
        return Ok(());
    }
    let expected = train(&Device::Cpu)?;
    let close =
        |losses: [f32; 2]| losses.iter().zip(expected).all(|(got, wanted)| (got - wanted).abs() < 1e-4);
    let before = calls();
    assert!(close(train_on_fresh_device()?));
    let made: Vec<(&str, u64)> = calls()
        .into_iter()
        .map(|(name, count)| (name, count - before.get(name).copied().unwrap_or(0)))
        .filter(|(_, count)| *count > 0)
        .collect();
    assert!(made.len() > 12, "{made:?}");
    let mut failures = 0;
    for (name, count) in made {
        let free = gpu.rocm().memory_info()?.0;
        let reported_before = failures;
        for sample in 0..SAMPLES.min(count) {
            let nth = 1 + if count <= SAMPLES { sample } else { sample * (count - 1) / (SAMPLES - 1) };
            let _injected =
                Injected::new(Injection { failing: vec![(name.into(), nth)], ..Injection::default() });
            // With memory reuse, a failed allocation is retried with a smaller segment.
            let cached = if name == "hipMalloc" { 0 } else { 64 << 20 };
            let outcome = train_with_cached(cached);
            let happened = rocm_emulator::calls().get(name).is_some_and(|calls| *calls >= nth);
            drop(_injected);
            match outcome {
                Err(error) => {
                    failures += 1;
                    let text = error.to_string();
                    let memory = matches!(name, "hipMalloc") && text.contains("out of device memory");
                    assert!(memory || text.contains(name), "{name}:{nth} is not named: {text}");
                }
                Ok(losses) => {
                    // If MIOpen fails, our own kernels are used.
                    let may_be_silent = SILENT.contains(&name)
                        || SILENT_IN_DROPS.contains(&name)
                        || name.starts_with("miopen");
                    assert!(may_be_silent || !happened, "{name}:{nth} failed without an error");
                    assert!(close(losses), "{name}:{nth} changed the result to {losses:?}");
                }
            }
            let again = train_on_fresh_device().unwrap_or_else(|e| panic!("after {name}:{nth}: {e}"));
            assert!(close(again), "after {name}:{nth} the losses are {again:?}");
        }
        let may_be_silent = SILENT.contains(&name) || name.starts_with("miopen");
        assert!(may_be_silent || failures > reported_before, "no failure of {name} was reported");
        let lost = free.saturating_sub(gpu.rocm().memory_info()?.0);
        assert!(lost == 0 || SILENT.contains(&name), "failures of {name} have leaked {lost} bytes");
    }
    assert!(failures > 60, "only {failures} failures were reported");
    // Skips the leak check: memory whose hipFree failed is not our leak.
    std::mem::forget(gpu);
    Ok(())
}

#[test]
#[serial(gpu)]
fn a_lost_device_returns_errors_without_hanging() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    if !can_inject_failures(&gpu) {
        return Ok(());
    }
    let device = RocmDevice::new_with_stream(0)?;
    let lost = Some(("hipModuleLaunchKernel".into(), 3));
    let _injected = Injected::new(Injection { lost, ..Injection::default() });
    let error = train(&Device::Rocm(device.clone())).expect_err("the device is lost").to_string();
    assert!(error.contains("hipModuleLaunchKernel"), "{error}");
    assert!(train(&Device::Rocm(device.clone())).is_err() && device.memory_info().is_err());
    drop(device);
    drop(_injected);
    assert!(train_on_fresh_device().is_ok());
    // Skips the leak check: memory could not be freed while the device was lost.
    std::mem::forget(gpu);
    Ok(())
}

#[test]
#[serial(gpu)]
fn large_allocations_that_fail_are_out_of_memory_errors() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    if !can_inject_failures(&gpu) {
        return Ok(());
    }
    let device = gpu.device();
    let _asked = Injected::new(Injection { largest: Some(1 << 20), ..Injection::default() });
    let error = Tensor::zeros(1 << 20, DType::F32, &device).expect_err("4 MiB").to_string();
    assert!(error.contains("out of device memory") && error.contains("4194304"), "{error}");
    // Small blocks, which usually share a larger segment, get a segment of their own size.
    let small = Tensor::ones(1000, DType::F32, &device)?;
    assert_eq!(small.sum_all()?.to_scalar::<f32>()?, 1000.0);
    Ok(())
}

/// Returns the ROCm error without context and backtrace.
fn rocm_error(error: &Error) -> Option<&RocmError> {
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } => rocm_error(inner),
        Error::Rocm(error) => error.downcast_ref(),
        _ => None,
    }
}

#[test]
#[serial(gpu)]
fn a_stuck_stream_is_an_error_at_the_deadline() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    if !can_inject_failures(&gpu) {
        return Ok(());
    }
    let rocm = RocmDevice::new_with_stream(0)?;
    let device = Device::Rocm(rocm.clone());
    let x = Tensor::ones(1000, DType::F32, &device)?;
    assert_eq!(x.sum_all()?.to_scalar::<f32>()?, 1000.0);
    // The short deadline applies to the stalled work only, so the test does not depend on speed.
    let _injected = Injected::new(Injection { stalled: Some(1), ..Injection::default() });
    rocm.set_deadline(Some(Duration::from_millis(50)));
    let y = x.affine(2.0, 1.0)?.exp()?;
    let error = y.to_vec1::<f32>().expect_err("the stream is stuck");
    let Some(RocmError::DeadlineExceeded { seconds, .. }) = rocm_error(&error) else { panic!("{error}") };
    assert!(*seconds >= 0.05, "{error}");
    let (text, after) = (error.to_string(), format!("{seconds:.3} s"));
    for part in ["affine_f32", "uexp_f32", "CANDLE_ROCM_DEADLINE", &after] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    // Dropping does not wait either; the memory is not freed until the stream finishes, if ever.
    drop(y);
    release_stalled();
    drop(_injected);
    rocm.set_deadline(Some(Duration::from_secs(600)));
    device.synchronize()?;
    assert_eq!(x.sum_all()?.to_scalar::<f32>()?, 1000.0);
    std::mem::forget(gpu);
    Ok(())
}

#[test]
#[serial(gpu)]
fn a_stuck_device_can_be_dropped() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    if !can_inject_failures(&gpu) {
        return Ok(());
    }
    let rocm = RocmDevice::new_with_stream(0)?;
    let x = Tensor::ones(1000, DType::F32, &Device::Rocm(rocm.clone()))?;
    x.device().synchronize()?;
    let _injected = Injected::new(Injection { stalled: Some(1), ..Injection::default() });
    rocm.set_deadline(Some(Duration::from_millis(20)));
    let y = x.affine(2.0, 1.0)?;
    drop((x, y, rocm));
    drop(_injected);
    assert!(train_on_fresh_device().is_ok());
    std::mem::forget(gpu);
    Ok(())
}
