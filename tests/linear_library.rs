//! Linear layers with a bias by hipBLASLt: asked once for each shape, and rocBLAS and our kernels where it has nothing, is
//! not there, or fails.
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

/// A device of its own, whose shapes nobody has met; `None` where the driver is not the software GPU.
fn fresh() -> Result<Option<Device>> {
    let Some(gpu) = common::gpu() else { return Ok(None) };
    if gpu.rocm().driver_name() != "emulator" {
        println!("not applicable: the software GPU's hipBLASLt is what is asked");
        return Ok(None);
    }
    Ok(Some(Device::Rocm(RocmDevice::new_with_stream(0)?)))
}

/// Whole numbers, whose products are exact in every dtype.
fn numbers(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i * 37 % 7) as f32 - 3.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// (2, 12, 32) times (24, 32) plus a bias: by a formula of its own, and by the device.
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
fn right([got, expected]: [Vec<f32>; 2], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.into_iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-2 * (1.0 + expected.abs()), "{what}: {got}, not {expected}");
    }
}

#[test]
#[serial(gpu)]
fn the_second_call_of_a_shape_is_one_product() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let (first, made) = count_calls(|| layer(&device, dtype));
        right(first?, &format!("{dtype:?}"));
        assert_eq!((made.get(HEURISTIC), made.get(PRODUCT)), (Some(&1), Some(&1)), "{made:?}");
        let (second, made) = count_calls(|| layer(&device, dtype));
        right(second?, &format!("{dtype:?}, again"));
        assert_eq!((made.get(HEURISTIC), made.get(PRODUCT)), (None, Some(&1)), "{made:?}");
        assert!(!made.contains_key("hipModuleLaunchKernel"), "{made:?}");
    }
    let (wide, made) = count_calls(|| layer(&device, DType::F64));
    right(wide?, "f64");
    assert!(!made.contains_key(PRODUCT), "{made:?}");
    Ok(())
}

/// Every call of hipBLASLt fails once, at every place: others compute, and the device goes on.
#[test]
#[serial(gpu)]
fn failures_fall_through() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    let (first, made) = count_calls(|| layer(&device, DType::F16));
    right(first?, "no failure");
    let of_library: Vec<_> = made.into_iter().filter(|(name, _)| name.starts_with("hipblasLt")).collect();
    assert!(of_library.len() > 6, "{of_library:?}");
    for (name, count) in of_library {
        for nth in 1..=count {
            let what = format!("{name}:{nth}");
            let device = fresh()?.expect("as before");
            inject(Injection { failing: vec![(name.into(), nth)], ..Injection::default() });
            let outcome = layer(&device, DType::F16);
            inject(Injection::default());
            right(outcome?, &what);
            right(layer(&device, DType::F16)?, &format!("behind {what}"));
            right(layer(&device, DType::F32)?, &format!("another shape behind {what}"));
        }
    }
    Ok(())
}

/// Where hipBLASLt is not installed, has nothing for any shape, or is not wanted.
#[test]
#[serial(gpu)]
fn without_the_library_others_compute() -> Result<()> {
    if fresh()?.is_none() {
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
#[ignore = "another test runs it in processes of its own"]
fn computes_without_the_library() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16] {
        let (got, made) = count_calls(|| layer(&device, dtype));
        right(got?, "without");
        assert!(!made.contains_key(PRODUCT), "{made:?}");
        // Nor is it asked again.
        let (got, made) = count_calls(|| layer(&device, dtype));
        right(got?, "without, again");
        assert!(made.keys().all(|name| !name.starts_with("hipblasLt")), "{made:?}");
    }
    Ok(())
}
