//! Tests convolutions in MIOpen: one solution query per shape, then one call per convolution, and the
//! fallback to our own kernels if MIOpen is absent, has no solution or fails.
mod common;

use common::count_calls;

use candle_core::rocm::{
    CONV_CACHE_VARIABLE, CONV_TUNE_VARIABLE, RocmDevice, conv_workspace, set_conv_library, set_conv_tuning,
    set_conv_workspace,
};
use candle_core::{DType, Device, Result, Tensor, Var};
use rocm_emulator::{Injection, inject, miopen_compiles};
use serial_test::serial;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// MIOpen's calls that compute: forward, gradient of the input, gradient of the weights.
const IMMEDIATE: [&str; 3] = [
    "miopenConvolutionForwardImmediate",
    "miopenConvolutionBackwardDataImmediate",
    "miopenConvolutionBackwardWeightsImmediate",
];

fn numbers(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// Opens a new device, without cached solutions; returns `None` if the driver is not the software GPU.
fn fresh_device() -> Result<Option<Device>> {
    let Some(gpu) = common::gpu() else { return Ok(None) };
    if gpu.rocm().driver_name() != "emulator" {
        println!("not applicable: this tests the software GPU's MIOpen");
        return Ok(None);
    }
    set_conv_library(Some(true));
    Ok(Some(Device::Rocm(RocmDevice::new_with_stream(0)?)))
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    assert_eq!(got.dims(), expected.dims(), "{what}");
    for (got, expected) in wide(got)?.into_iter().zip(wide(expected)?) {
        assert!((got - expected).abs() <= 2e-2 * (1.0 + expected.abs()), "{what}: {got}, not {expected}");
    }
    Ok(())
}

/// Computes a convolution with 16 channels, its two gradients, and a transposed convolution.
fn all_directions(device: &Device, dtype: DType) -> Result<[Tensor; 4]> {
    let x = Var::from_tensor(&numbers(&[2, 16, 9, 9], dtype)?.to_device(device)?)?;
    let k = Var::from_tensor(&numbers(&[16, 16, 3, 3], dtype)?.to_device(device)?)?;
    let y = x.conv2d(&k, 1, 2, 1, 1)?;
    let grads = y.sum_all()?.backward()?;
    let back = y.detach().conv_transpose2d(&k.as_detached_tensor(), 1, 1, 2, 1)?;
    let of = |var: &Var| grads.get(var).cloned().expect("a gradient");
    Ok([y.detach(), of(&x), of(&k), back])
}

fn assert_all_close(got: &[Tensor; 4], expected: &[Tensor; 4], what: &str) -> Result<()> {
    got.iter().zip(expected).try_for_each(|(got, expected)| assert_close(got, expected, what))
}

#[test]
#[serial(gpu)]
fn a_known_shape_needs_one_call() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    let expected = all_directions(&Device::Cpu, DType::F32)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let what = format!("{dtype:?}");
        let (got, made) = count_calls(|| all_directions(&device, dtype));
        assert_all_close(&got?, &expected, &what)?;
        let counts = IMMEDIATE.map(|name| made.get(name).copied().unwrap_or(0));
        // The input's gradient and the transposed convolution use the same direction.
        assert_eq!(counts, [1, 2, 1], "{dtype:?}: {made:?}");
        let compiled = miopen_compiles();
        let x = numbers(&[2, 16, 9, 9], dtype)?.to_device(&device)?;
        let k = numbers(&[16, 16, 3, 3], dtype)?.to_device(&device)?;
        let ((y, again), made) = count_calls(|| (x.conv2d(&k, 1, 2, 1, 1), x.conv2d(&k, 1, 2, 1, 1)));
        assert_eq!(made, BTreeMap::from([(IMMEDIATE[0], 2)]), "{dtype:?}");
        let y = y?;
        let (back, made) = count_calls(|| y.conv_transpose2d(&k, 1, 1, 2, 1));
        assert_eq!(made, BTreeMap::from([(IMMEDIATE[1], 1)]), "{dtype:?}");
        assert_eq!(miopen_compiles(), compiled, "{dtype:?}");
        assert_close(&again?, &expected[0], &what)?;
        assert_close(&back?, &expected[3], &what)?;
        // A strided input needs a copy and the call.
        let strided = x.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
        let (y, made) = count_calls(|| strided.conv2d(&k, 1, 2, 1, 1));
        assert_eq!(made.values().sum::<u64>(), 2, "{made:?}");
        assert_eq!(made.get(IMMEDIATE[0]), Some(&1), "{made:?}");
        assert_close(&y?, &expected[0], &what)?;
    }
    Ok(())
}

/// Tests kernel elements that only ever overlap padding, in each direction.
#[test]
#[serial(gpu)]
fn kernels_wider_than_their_inputs() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let all = |device: &Device, dtype: DType| -> Result<[Tensor; 4]> {
            let on = |dims: &[usize]| numbers(dims, dtype)?.to_device(device);
            let (x, k) = (Var::from_tensor(&on(&[3, 4, 1, 1])?)?, Var::from_tensor(&on(&[3, 4, 3, 3])?)?);
            let y = x.conv2d(&k, 2, 1, 2, 1)?;
            let grads = y.sum_all()?.backward()?;
            let of = |var: &Var| grads.get(var).cloned().expect("a gradient");
            Ok([
                y.detach(),
                of(&x),
                of(&k),
                on(&[2, 2, 1])?.conv_transpose1d(&on(&[2, 2, 5])?, 2, 0, 1, 1, 1)?,
            ])
        };
        let (got, made) = count_calls(|| all(&device, dtype));
        assert_all_close(&got?, &all(&Device::Cpu, DType::F32)?, &format!("{dtype:?}"))?;
        assert_eq!(
            IMMEDIATE.map(|name| made.get(name).copied().unwrap_or(0)),
            [1, 2, 1],
            "{dtype:?}: {made:?}"
        );
    }
    Ok(())
}

/// Tests that grouped convolutions use the library and f64 does not.
#[test]
#[serial(gpu)]
fn groups_and_one_dimension() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::F64] {
        let (x, k) = (numbers(&[2, 12, 9, 10], dtype)?, numbers(&[18, 4, 3, 3], dtype)?);
        let (gx, gk) = (x.to_device(&device)?, k.to_device(&device)?);
        let (got, made) = count_calls(|| gx.conv2d(&gk, 1, 1, 1, 3));
        let wide = |t: &Tensor| t.to_dtype(DType::F32);
        assert_close(&got?, &wide(&x)?.conv2d(&wide(&k)?, 1, 1, 1, 3)?, "2d")?;
        let by_library = u64::from(dtype != DType::F64);
        assert_eq!(made.get(IMMEDIATE[0]).copied().unwrap_or(0), by_library, "{dtype:?}: {made:?}");
        let (x, k) = (numbers(&[2, 6, 30], dtype)?, numbers(&[6, 2, 5], dtype)?);
        let (gx, gk) = (x.to_device(&device)?, k.to_device(&device)?);
        let got = gx.conv_transpose1d(&gk, 2, 1, 2, 1, 2)?;
        // The CPU device computes grouped conv_transpose1d wrongly for batches, so images are computed one by
        // one.
        let images = (0..2).map(|image| {
            let one = wide(&x)?.narrow(0, image, 1)?.contiguous()?;
            one.conv_transpose1d(&wide(&k)?, 2, 1, 2, 1, 2)
        });
        assert_close(&got, &Tensor::cat(&images.collect::<Result<Vec<_>>>()?, 0)?, "1d")?;
    }
    Ok(())
}

/// Makes every call of MIOpen fail once; our kernels must compute the result.
#[test]
#[serial(gpu)]
fn failures_fall_through_to_our_kernels() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    let expected = all_directions(&Device::Cpu, DType::F32)?;
    let (first, made) = count_calls(|| all_directions(&device, DType::F32));
    assert_all_close(&first?, &expected, "no failure")?;
    let of_library: Vec<_> = made.into_iter().filter(|(name, _)| name.starts_with("miopen")).collect();
    assert!(of_library.len() > 12, "{of_library:?}");
    for (name, count) in of_library {
        for nth in 1..=count.min(6) {
            inject(Injection { failing: vec![(name.into(), nth)], ..Injection::default() });
            let outcome = fresh_device()
                .and_then(|device| all_directions(&device.expect("the software GPU"), DType::F32));
            inject(Injection::default());
            assert_all_close(&outcome?, &expected, &format!("{name}:{nth}"))?;
        }
    }
    Ok(())
}

/// A solution whose workspace exceeds the limit is not used.
#[test]
#[serial(gpu)]
fn workspaces_are_bounded() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    let default_limit = conv_workspace();
    let (x, k) = (numbers(&[2, 5, 9, 10], DType::F32)?, numbers(&[7, 5, 3, 3], DType::F32)?);
    let expected = x.conv2d(&k, 1, 1, 1, 1)?;
    let (x, k) = (x.to_device(&device)?, k.to_device(&device)?);
    // Workspace of the only f32 solution: 45 columns of 4 bytes at 90 positions.
    for (bytes, by_library) in [(45 * 4 * 90 - 1, 0), (45 * 4 * 90, 1)] {
        let device = Device::Rocm(RocmDevice::new_with_stream(0)?);
        let (x, k) = (x.to_device(&device)?, k.to_device(&device)?);
        set_conv_workspace(bytes);
        let (got, made) = count_calls(|| x.conv2d(&k, 1, 1, 1, 1));
        set_conv_workspace(default_limit);
        assert_eq!(made.get(IMMEDIATE[0]).copied().unwrap_or(0), by_library, "{bytes} bytes: {made:?}");
        assert_close(&got?, &expected, "bounded")?;
    }
    Ok(())
}

/// Scratch folder; dropping it removes the folder and disables tuning.
struct TuningFolder(PathBuf);

impl Drop for TuningFolder {
    fn drop(&mut self) {
        set_conv_tuning(false);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn scratch(name: &str) -> TuningFolder {
    TuningFolder(std::env::temp_dir().join(format!("candle-conv-{}-{name}", std::process::id())))
}

/// Runs an ignored test of this program in a child process with the environment variables `variables`.
fn run_in_child(test: &str, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    let output = command.envs(variables.iter().copied()).output().expect("a process");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    text
}

/// Tuned choices are stored in a file, even if the file is damaged or shared by several processes.
#[test]
#[serial(gpu)]
fn tuned_choices_are_stored() -> Result<()> {
    if fresh_device()?.is_none() {
        return Ok(());
    }
    let scratch = scratch("kept");
    let file = scratch.0.join("choices.tsv");
    let tune = Path::new("1");
    let tuned = [(CONV_CACHE_VARIABLE, file.as_path()), (CONV_TUNE_VARIABLE, tune)];
    run_in_child("computes_with_tuning", &tuned);
    let text = std::fs::read_to_string(&file).expect("the file of choices");
    let lines = |text: &str| text.lines().filter(|line| !line.is_empty()).count();
    assert_eq!(lines(&text), 4, "{text}");
    // The second run reads the choices and adds none.
    run_in_child("computes_with_tuning", &tuned);
    assert_eq!(lines(&std::fs::read_to_string(&file).expect("the file")), 4);
    // Two concurrent processes use one damaged file.
    std::fs::write(&file, &text.as_bytes()[..text.len() / 2]).expect("a file");
    std::thread::scope(|scope| {
        let jobs = [(); 2].map(|()| scope.spawn(|| run_in_child("computes_with_tuning", &tuned)));
        jobs.into_iter().for_each(|job| drop(job.join().expect("a child")));
    });
    run_in_child("computes_with_tuning", &tuned);
    // Paths that cannot be written: below a file, a folder, and a disabled cache.
    let folder = scratch.0.clone();
    for place in [file.join("below").as_path(), folder.as_path(), Path::new("0")] {
        run_in_child("computes_with_tuning", &[(CONV_CACHE_VARIABLE, place), (CONV_TUNE_VARIABLE, tune)]);
    }
    Ok(())
}

#[test]
#[ignore = "run by another test in child processes"]
fn computes_with_tuning() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    assert_all_close(
        &all_directions(&device, DType::F32)?,
        &all_directions(&Device::Cpu, DType::F32)?,
        "tuned",
    )?;
    assert_all_close(
        &all_directions(&device, DType::F32)?,
        &all_directions(&Device::Cpu, DType::F32)?,
        "tuned, again",
    )
}

/// Our kernels compute if MIOpen is not installed, has no solution for any shape, or cannot compile.
#[test]
#[serial(gpu)]
fn our_kernels_compute_without_the_library() -> Result<()> {
    if fresh_device()?.is_none() {
        return Ok(());
    }
    for what in ["miopen=absent", "miopen=none", "miopen=broken"] {
        run_in_child("computes_without_the_library", &[("CANDLE_ROCM_EMULATOR", Path::new(what))]);
    }
    Ok(())
}

#[test]
#[ignore = "run by another test in child processes"]
fn computes_without_the_library() -> Result<()> {
    let Some(device) = fresh_device()? else { return Ok(()) };
    let expected = all_directions(&Device::Cpu, DType::F32)?;
    let broken = std::env::var("CANDLE_ROCM_EMULATOR").is_ok_and(|options| options == "miopen=broken");
    let mut compiled = 0;
    for dtype in [DType::F32, DType::F16] {
        let (got, made) = count_calls(|| all_directions(&device, dtype));
        assert_all_close(&got?, &expected, "without")?;
        let compiles = made.iter().filter(|(name, _)| name.ends_with("CompileSolution"));
        compiled += compiles.map(|(_, count)| count).sum::<u64>();
        assert!(IMMEDIATE.iter().all(|name| !made.contains_key(name)), "{made:?}");
        // The library is not queried a second time.
        let (got, made) = count_calls(|| all_directions(&device, dtype));
        assert_all_close(&got?, &expected, "without")?;
        assert!(made.keys().all(|name| !name.starts_with("miopen")), "{made:?}");
    }
    // A second failure shows that MIOpen cannot compile, and is reported once.
    assert_eq!(compiled, if broken { 2 } else { 0 });
    let problems = device.as_rocm_device()?.problems();
    assert_eq!(problems.len(), usize::from(broken), "{problems:?}");
    assert!(problems.iter().all(|text| text.contains("CANDLE_ROCM_MIOPEN=0")), "{problems:?}");
    Ok(())
}
