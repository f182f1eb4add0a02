//! Convolutions by MIOpen: asked once for each shape, one call from then on, and our own kernels where it has nothing,
//! is not there, or fails.
mod common;

use common::called;

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

/// The three directions' calls that compute.
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

/// A device of its own, whose shapes nobody has met; `None` where the driver is not the software GPU.
fn fresh() -> Result<Option<Device>> {
    let Some(gpu) = common::gpu() else { return Ok(None) };
    if gpu.rocm().driver_name() != "emulator" {
        println!("not applicable: the software GPU's MIOpen is what is asked");
        return Ok(None);
    }
    set_conv_library(Some(true));
    Ok(Some(Device::Rocm(RocmDevice::new_with_stream(0)?)))
}

fn close(got: &Tensor, expected: &Tensor, what: &str) -> Result<()> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    assert_eq!(got.dims(), expected.dims(), "{what}");
    for (got, expected) in wide(got)?.into_iter().zip(wide(expected)?) {
        assert!((got - expected).abs() <= 2e-2 * (1.0 + expected.abs()), "{what}: {got}, not {expected}");
    }
    Ok(())
}

/// A convolution of 16 channels, its gradients, and a transposed one.
fn all_ways(device: &Device, dtype: DType) -> Result<[Tensor; 4]> {
    let x = Var::from_tensor(&numbers(&[2, 16, 9, 9], dtype)?.to_device(device)?)?;
    let k = Var::from_tensor(&numbers(&[16, 16, 3, 3], dtype)?.to_device(device)?)?;
    let y = x.conv2d(&k, 1, 2, 1, 1)?;
    let grads = y.sum_all()?.backward()?;
    let back = y.detach().conv_transpose2d(&k.as_detached_tensor(), 1, 1, 2, 1)?;
    let of = |var: &Var| grads.get(var).cloned().expect("a gradient");
    Ok([y.detach(), of(&x), of(&k), back])
}

fn same(got: &[Tensor; 4], expected: &[Tensor; 4], what: &str) -> Result<()> {
    got.iter().zip(expected).try_for_each(|(got, expected)| close(got, expected, what))
}

#[test]
#[serial(gpu)]
fn the_second_call_of_a_shape_is_one_call() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    let expected = all_ways(&Device::Cpu, DType::F32)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let what = format!("{dtype:?}");
        let (got, made) = called(|| all_ways(&device, dtype));
        same(&got?, &expected, &what)?;
        let counts = IMMEDIATE.map(|name| made.get(name).copied().unwrap_or(0));
        // The input's gradient and the transposed convolution are of the same direction.
        assert_eq!(counts, [1, 2, 1], "{dtype:?}: {made:?}");
        let compiled = miopen_compiles();
        let x = numbers(&[2, 16, 9, 9], dtype)?.to_device(&device)?;
        let k = numbers(&[16, 16, 3, 3], dtype)?.to_device(&device)?;
        let ((y, again), made) = called(|| (x.conv2d(&k, 1, 2, 1, 1), x.conv2d(&k, 1, 2, 1, 1)));
        assert_eq!(made, BTreeMap::from([(IMMEDIATE[0], 2)]), "{dtype:?}");
        let y = y?;
        let (back, made) = called(|| y.conv_transpose2d(&k, 1, 1, 2, 1));
        assert_eq!(made, BTreeMap::from([(IMMEDIATE[1], 1)]), "{dtype:?}");
        assert_eq!(miopen_compiles(), compiled, "{dtype:?}");
        close(&again?, &expected[0], &what)?;
        close(&back?, &expected[3], &what)?;
        // One that is not dense: a copy, and the call.
        let turned = x.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
        let (y, made) = called(|| turned.conv2d(&k, 1, 2, 1, 1));
        assert_eq!(made.values().sum::<u64>(), 2, "{made:?}");
        assert_eq!(made.get(IMMEDIATE[0]), Some(&1), "{made:?}");
        close(&y?, &expected[0], &what)?;
    }
    Ok(())
}

/// Kernel elements that lie on padding only, in each of the library's directions.
#[test]
#[serial(gpu)]
fn kernels_wider_than_their_inputs() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
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
        let (got, made) = called(|| all(&device, dtype));
        same(&got?, &all(&Device::Cpu, DType::F32)?, &format!("{dtype:?}"))?;
        assert_eq!(
            IMMEDIATE.map(|name| made.get(name).copied().unwrap_or(0)),
            [1, 2, 1],
            "{dtype:?}: {made:?}"
        );
    }
    Ok(())
}

/// Groups are the library's too; f64 it does not have.
#[test]
#[serial(gpu)]
fn groups_and_one_dimension() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::F64] {
        let (x, k) = (numbers(&[2, 12, 9, 10], dtype)?, numbers(&[18, 4, 3, 3], dtype)?);
        let (gx, gk) = (x.to_device(&device)?, k.to_device(&device)?);
        let (got, made) = called(|| gx.conv2d(&gk, 1, 1, 1, 3));
        let wide = |t: &Tensor| t.to_dtype(DType::F32);
        close(&got?, &wide(&x)?.conv2d(&wide(&k)?, 1, 1, 1, 3)?, "2d")?;
        let by_library = u64::from(dtype != DType::F64);
        assert_eq!(made.get(IMMEDIATE[0]).copied().unwrap_or(0), by_library, "{dtype:?}: {made:?}");
        let (x, k) = (numbers(&[2, 6, 30], dtype)?, numbers(&[6, 2, 5], dtype)?);
        let (gx, gk) = (x.to_device(&device)?, k.to_device(&device)?);
        let got = gx.conv_transpose1d(&gk, 2, 1, 2, 1, 2)?;
        // The CPU device mixes up the images of a batch.
        let images = (0..2).map(|image| {
            let one = wide(&x)?.narrow(0, image, 1)?.contiguous()?;
            one.conv_transpose1d(&wide(&k)?, 2, 1, 2, 1, 2)
        });
        close(&got, &Tensor::cat(&images.collect::<Result<Vec<_>>>()?, 0)?, "1d")?;
    }
    Ok(())
}

/// Every call of MIOpen fails once, at every place: our kernels compute, and the next shape is asked for again.
#[test]
#[serial(gpu)]
fn failures_fall_through_to_our_kernels() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    let expected = all_ways(&Device::Cpu, DType::F32)?;
    let (first, made) = called(|| all_ways(&device, DType::F32));
    same(&first?, &expected, "no failure")?;
    let of_library: Vec<_> = made.into_iter().filter(|(name, _)| name.starts_with("miopen")).collect();
    assert!(of_library.len() > 12, "{of_library:?}");
    for (name, count) in of_library {
        for nth in 1..=count.min(6) {
            inject(Injection { failing: vec![(name.into(), nth)], ..Injection::default() });
            let outcome = fresh().and_then(|device| all_ways(&device.expect("as before"), DType::F32));
            inject(Injection::default());
            same(&outcome?, &expected, &format!("{name}:{nth}"))?;
        }
    }
    Ok(())
}

/// A solution that wants more than there may be is passed over; one that has no room is no error either.
#[test]
#[serial(gpu)]
fn workspaces_are_bounded() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    let whole = conv_workspace();
    let (x, k) = (numbers(&[2, 5, 9, 10], DType::F32)?, numbers(&[7, 5, 3, 3], DType::F32)?);
    let expected = x.conv2d(&k, 1, 1, 1, 1)?;
    let (x, k) = (x.to_device(&device)?, k.to_device(&device)?);
    // 45 columns of 4 bytes at 90 places: what the only solution of f32 takes.
    for (bytes, by_library) in [(45 * 4 * 90 - 1, 0), (45 * 4 * 90, 1)] {
        let device = Device::Rocm(RocmDevice::new_with_stream(0)?);
        let (x, k) = (x.to_device(&device)?, k.to_device(&device)?);
        set_conv_workspace(bytes);
        let (got, made) = called(|| x.conv2d(&k, 1, 1, 1, 1));
        set_conv_workspace(whole);
        assert_eq!(made.get(IMMEDIATE[0]).copied().unwrap_or(0), by_library, "{bytes} bytes: {made:?}");
        close(&got?, &expected, "bounded")?;
    }
    Ok(())
}

/// Ends what the test asked for.
struct Untuned(PathBuf);

impl Drop for Untuned {
    fn drop(&mut self) {
        set_conv_tuning(false);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn scratch(name: &str) -> Untuned {
    Untuned(std::env::temp_dir().join(format!("candle-conv-{}-{name}", std::process::id())))
}

/// This test once more in a process of its own, where the settings of the environment are `variables`.
fn child(test: &str, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    let output = command.envs(variables.iter().copied()).output().expect("a process");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    text
}

/// Choices outlive the process that measured them, also where the file is damaged, or shared by processes.
#[test]
#[serial(gpu)]
fn tuned_choices_are_kept() -> Result<()> {
    if fresh()?.is_none() {
        return Ok(());
    }
    let scratch = scratch("kept");
    let file = scratch.0.join("choices.tsv");
    let tune = Path::new("1");
    let tuned = [(CONV_CACHE_VARIABLE, file.as_path()), (CONV_TUNE_VARIABLE, tune)];
    child("measures_and_says_what", &tuned);
    let text = std::fs::read_to_string(&file).expect("a file of choices");
    let lines = |text: &str| text.lines().filter(|line| !line.is_empty()).count();
    assert_eq!(lines(&text), 4, "{text}");
    // Nothing is measured again.
    child("measures_and_says_what", &tuned);
    assert_eq!(lines(&std::fs::read_to_string(&file).expect("the file")), 4);
    // Two at a time into one damaged file.
    std::fs::write(&file, &text.as_bytes()[..text.len() / 2]).expect("a file");
    std::thread::scope(|scope| {
        let jobs = [(); 2].map(|()| scope.spawn(|| child("measures_and_says_what", &tuned)));
        jobs.into_iter().for_each(|job| drop(job.join().expect("a child")));
    });
    child("measures_and_says_what", &tuned);
    // No folder can be made where a file is, and a folder is no file.
    let folder = scratch.0.clone();
    for place in [file.join("below").as_path(), folder.as_path(), Path::new("0")] {
        child("measures_and_says_what", &[(CONV_CACHE_VARIABLE, place), (CONV_TUNE_VARIABLE, tune)]);
    }
    Ok(())
}

#[test]
#[ignore = "other tests run it in processes of its own"]
fn measures_and_says_what() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    same(&all_ways(&device, DType::F32)?, &all_ways(&Device::Cpu, DType::F32)?, "tuned")?;
    same(&all_ways(&device, DType::F32)?, &all_ways(&Device::Cpu, DType::F32)?, "tuned, again")
}

/// Where MIOpen is not installed, or has nothing for any shape.
#[test]
#[serial(gpu)]
fn without_the_library_our_kernels_compute() -> Result<()> {
    if fresh()?.is_none() {
        return Ok(());
    }
    for what in ["miopen=absent", "miopen=none"] {
        child("computes_without_the_library", &[("CANDLE_ROCM_EMULATOR", Path::new(what))]);
    }
    Ok(())
}

#[test]
#[ignore = "another test runs it in processes of its own"]
fn computes_without_the_library() -> Result<()> {
    let Some(device) = fresh()? else { return Ok(()) };
    let expected = all_ways(&Device::Cpu, DType::F32)?;
    for dtype in [DType::F32, DType::F16] {
        let (got, made) = called(|| all_ways(&device, dtype));
        same(&got?, &expected, "without")?;
        assert!(IMMEDIATE.iter().all(|name| !made.contains_key(name)), "{made:?}");
        // Nor is it asked again.
        let (got, made) = called(|| all_ways(&device, dtype));
        same(&got?, &expected, "without")?;
        assert!(made.keys().all(|name| !name.starts_with("miopen")), "{made:?}");
    }
    Ok(())
}
