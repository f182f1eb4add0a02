//! Failures of graphs on the software GPU: driver calls that fail, memory that runs out, a lost device, stale replays.
mod common;

use candle_core::rocm::{RocmDevice, RocmError, RocmGraph, copy_to_tensor};
use candle_core::{DType, Device, Error, Result, Tensor};
use common::Injected;
use rocm_emulator::Injection;
use serial_test::serial;

/// Returns a separate stream, or `None` if the driver cannot inject failures.
fn device() -> Result<Option<(RocmDevice, Device)>> {
    if !common::is_software_gpu() {
        println!("not applicable: only the software GPU can inject failures");
        return Ok(None);
    }
    let device = RocmDevice::new_with_stream(0)?;
    Ok(Some((device.clone(), Device::Rocm(device))))
}

fn failing(call: &str, nth: u64) -> Injected {
    Injected::new(Injection { failing: vec![(call.into(), nth)], ..Injection::default() })
}

fn rocm_error(error: &Error) -> Option<&RocmError> {
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } => rocm_error(inner),
        Error::Rocm(error) => error.downcast_ref(),
        _ => None,
    }
}

/// Captures `2 x + 1` and returns the graph and the result.
fn capture(device: &RocmDevice, x: &Tensor) -> Result<(RocmGraph, Tensor)> {
    x.affine(2.0, 1.0)?;
    device.capture(|| x.affine(2.0, 1.0))
}

/// Checks that a new graph computes correct results.
fn assert_works(device: &RocmDevice, x: &Tensor) -> Result<()> {
    let (graph, out) = capture(device, x)?;
    for value in [3f32, 4.0] {
        copy_to_tensor(&vec![value; x.elem_count()], x)?;
        graph.replay()?;
        assert_eq!(out.sum_all()?.to_scalar::<f32>()?, (2.0 * value + 1.0) * x.elem_count() as f32);
    }
    Ok(())
}

#[test]
#[serial]
fn every_failing_call_is_reported_and_the_next_graph_works() -> Result<()> {
    let Some((rocm, device)) = device()? else { return Ok(()) };
    let x = Tensor::ones(100, DType::F32, &device)?;
    let fails = |call: &str| -> Result<()> {
        x.affine(2.0, 1.0)?;
        let injected = failing(call, 1);
        let outcome = rocm.capture(|| x.affine(2.0, 1.0));
        drop(injected);
        let error = outcome.expect_err(call);
        let is_out_of_memory = rocm_error(&error).is_some_and(RocmError::is_out_of_memory);
        assert_eq!(is_out_of_memory, call == "hipGraphInstantiate", "{call}: {error}");
        assert!(error.to_string().contains(call), "{call}: {error}");
        assert_works(&rocm, &x)
    };
    // The stream that records is created by the first capture.
    fails("hipStreamCreateWithFlags")?;
    let (live, objects) = (rocm.memory_stats().live, rocm_loader::symbols::open_objects());
    for call in [
        "hipStreamBeginCapture",
        "hipModuleLaunchKernel",
        "hipStreamEndCapture",
        "hipGraphGetNodes",
        "hipGraphInstantiate",
    ] {
        fails(call)?;
        assert_eq!(rocm.memory_stats().live, live, "{call}");
    }
    let (graph, out) = capture(&rocm, &x)?;
    let injected = failing("hipGraphLaunch", 1);
    let error = graph.replay().expect_err("the launch fails").to_string();
    drop(injected);
    assert!(error.contains("hipGraphLaunch(1 nodes)"), "{error}");
    graph.replay()?;
    assert_eq!(out.sum_all()?.to_scalar::<f32>()?, 900.0);
    drop((graph, out));
    // The failed call that would have created a graph is counted.
    let created = rocm_loader::symbols::open_objects().zip(objects).map(|(after, before)| after - before);
    assert_eq!(created, Some(1));
    Ok(())
}

#[test]
#[serial]
fn memory_that_runs_out_during_a_capture_is_an_error() -> Result<()> {
    let Some((rocm, device)) = device()? else { return Ok(()) };
    let x = Tensor::ones(1 << 20, DType::F32, &device)?;
    x.affine(2.0, 1.0)?;
    let injected = Injected::new(Injection { largest: Some(1 << 20), ..Injection::default() });
    let error = rocm.capture(|| x.affine(2.0, 1.0)).expect_err("4 MiB");
    drop(injected);
    assert!(rocm_error(&error).is_some_and(RocmError::is_out_of_memory), "{error}");
    assert_works(&rocm, &x)
}

#[test]
#[serial]
fn a_device_that_is_lost_in_a_replay_returns_errors() -> Result<()> {
    let Some((rocm, device)) = device()? else { return Ok(()) };
    let x = Tensor::ones(100, DType::F32, &device)?;
    let (graph, out) = capture(&rocm, &x)?;
    let lost = Some(("hipGraphLaunch".into(), 2));
    let injected = Injected::new(Injection { lost, ..Injection::default() });
    graph.replay()?;
    let error = graph.replay().expect_err("the device is lost").to_string();
    assert!(error.contains("hipGraphLaunch"), "{error}");
    assert!(graph.replay().is_err() && out.to_vec1::<f32>().is_err());
    assert!(rocm.capture(|| x.affine(2.0, 1.0)).is_err());
    drop((graph, out));
    drop(injected);
    let fresh = RocmDevice::new_with_stream(0)?;
    assert_works(&fresh, &Tensor::ones(10, DType::F32, &Device::Rocm(fresh.clone()))?)
}

#[test]
#[serial]
fn stale_replays_are_found_by_a_comparison() -> Result<()> {
    let Some((rocm, device)) = device()? else { return Ok(()) };
    let x = Tensor::ones(10, DType::F32, &device)?;
    let (graph, out) = capture(&rocm, &x)?;
    let _injected = Injected::new(Injection { stale: Some(2), ..Injection::default() });
    let mut equal = Vec::new();
    for value in [5f32, 6.0, 7.0] {
        copy_to_tensor(&[value; 10], &x)?;
        graph.replay()?;
        equal.push(out.to_vec1::<f32>()? == x.affine(2.0, 1.0)?.to_vec1::<f32>()?);
    }
    assert_eq!(equal, [true, false, false]);
    Ok(())
}

#[test]
#[serial]
fn a_stuck_replay_is_an_error_at_the_deadline() -> Result<()> {
    let Some((rocm, device)) = device()? else { return Ok(()) };
    let x = Tensor::ones(100, DType::F32, &device)?;
    let (graph, out) = capture(&rocm, &x)?;
    device.synchronize()?;
    let injected = Injected::new(Injection { stalled: Some(1), ..Injection::default() });
    rocm.set_deadline(Some(std::time::Duration::from_millis(20)));
    graph.replay()?;
    let error = out.to_vec1::<f32>().expect_err("the replay does not begin").to_string();
    assert!(error.contains("a graph of 1 nodes"), "{error}");
    // Dropping waits for nothing.
    drop((graph, out, x, device, rocm));
    drop(injected);
    Ok(())
}
