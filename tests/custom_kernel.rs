//! Tests custom kernels: the operation of the example, and errors in code objects.
mod common;
#[path = "../examples/custom_kernel/softsign.rs"]
mod softsign;

use candle_core::rocm::{Buffer, LaunchConfig, RocmDevice, RocmKernel};
use candle_core::{DType, Device, Error, Result, Tensor, Var};
use serial_test::serial;
use softsign::{Softsign, code_object};

/// Returns the GPU. If the example has no kernel for it, prints a message and returns `None`.
fn device() -> Option<Device> {
    let device = common::device();
    match code_object(device.as_rocm_device().ok()?.arch()) {
        Ok(_) => Some(device),
        Err(missing) => {
            println!("not applicable: {missing}");
            None
        }
    }
}

fn input(dtype: DType) -> Result<Tensor> {
    let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() * 20.0).collect();
    Tensor::from_vec(values, (10, 100), &Device::Cpu)?.to_dtype(dtype)
}

#[test]
#[serial]
fn the_operation_matches_the_cpu() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 4e-3)] {
        let x = input(dtype)?;
        // A whole tensor, one with an offset into its storage, and an empty one.
        for part in [x.clone(), x.narrow(0, 3, 5)?, x.narrow(0, 0, 0)?] {
            let expected = part.apply_op1(Softsign { scale: 2.5 })?;
            let got = part.to_device(&device)?.apply_op1(Softsign { scale: 2.5 })?;
            assert_eq!((got.dims(), got.dtype()), (expected.dims(), dtype));
            let difference = (got.to_device(&Device::Cpu)? - &expected)?.to_dtype(DType::F64)?.abs()?;
            let differences = difference.flatten_all()?.to_vec1::<f64>()?;
            assert!(differences.iter().all(|d| *d <= tolerance), "{dtype:?}: {differences:?}");
        }
    }
    Ok(())
}

#[test]
#[serial]
fn the_operation_has_a_gradient() -> Result<()> {
    let gradient = |device: &Device| -> Result<Vec<f32>> {
        let x = Var::from_tensor(&input(DType::F32)?.to_device(device)?)?;
        let loss = x.apply_op1(Softsign { scale: 1.5 })?.sqr()?.sum_all()?;
        let gradients = loss.backward()?;
        gradients.get(&x).ok_or_else(|| Error::msg("no gradient"))?.flatten_all()?.to_vec1()
    };
    let Some(device) = device() else { return Ok(()) };
    let (got, expected) = (gradient(&device)?, gradient(&Device::Cpu)?);
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-5, "{got} {expected}");
    }
    assert!(expected.iter().any(|gradient| gradient.abs() > 0.1));
    Ok(())
}

#[test]
#[serial]
fn inputs_that_the_cpu_rejects_are_rejected() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let op = || Softsign { scale: 1.0 };
    for device in [&Device::Cpu, &device] {
        let x = input(DType::F32)?.to_device(device)?;
        let error = x.to_dtype(DType::I64)?.apply_op1(op()).unwrap_err().to_string();
        assert!(error.contains("I64") && error.contains("softsign"), "{error}");
        let error = x.t()?.apply_op1(op()).unwrap_err().to_string();
        assert!(error.contains("contiguous") && error.contains("softsign"), "{error}");
    }
    Ok(())
}

fn error_of(kernel: Result<RocmKernel<'_>>) -> String {
    match kernel {
        Ok(kernel) => panic!("{} was found", kernel.name()),
        Err(error) => error.to_string(),
    }
}

/// Runs `kernel` of a code object on four elements of value 1, with scale 1.
fn run(device: &RocmDevice, code_object: &[u8], kernel: &str) -> Result<Vec<f32>> {
    let input = device.clone_htod(&[1f32; 4])?;
    let output: Buffer<f32> = device.alloc_zeros(4)?;
    let kernel = device.custom_kernel("mine", code_object, kernel)?;
    let launch = kernel.launch(LaunchConfig::for_elements("mine", 4)?);
    // SAFETY: the kernel's parameters are (numel, scale, in, out), and both buffers have 4 elements.
    unsafe { launch.arg(&4usize).arg(&1f32).arg(&input.ptr()).arg(&output.ptr()).run()? };
    device.clone_dtoh(&output)
}

#[test]
#[serial]
fn a_code_object_for_another_gpu_is_rejected() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let rocm = device.as_rocm_device()?;
    let other = if rocm.arch().starts_with("gfx90a") { "gfx1100" } else { "gfx90a" };
    let text = error_of(rocm.custom_kernel("foreign", code_object(other)?, "softsign_f32"));
    for part in ["hipModuleLoadData(foreign", rocm.arch(), "another GPU"] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert!(code_object("gfx600").unwrap_err().to_string().contains("not compiled for gfx600"));
    // The device is still usable.
    assert_eq!(run(rocm, code_object(rocm.arch())?, "softsign_f32")?, [0.5; 4]);
    Ok(())
}

#[test]
#[serial]
fn missing_kernels_and_invalid_code_objects_are_reported() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let rocm = device.as_rocm_device()?;
    let object = code_object(rocm.arch())?;
    let text = error_of(rocm.custom_kernel("mine", object, "softsign_f64"));
    assert!(text.contains("softsign_f64") && text.contains("mine") && text.contains(rocm.arch()), "{text}");
    for (bytes, what) in
        [(&object[..object.len() / 2], "cut off"), (b"ptx", "no AMD code object"), (&[], "no AMD")]
    {
        let text = error_of(rocm.custom_kernel("mine", bytes, "softsign_f32"));
        assert!(text.contains(what) && text.contains("mine"), "{text}");
    }
    assert_eq!(run(rocm, object, "softsign_f32")?, [0.5; 4]);
    Ok(())
}

/// Modules are identified by their bytes: a rebuilt code object, or one of another library, may have the same
/// name.
#[test]
#[serial]
fn other_bytes_under_the_same_name_are_another_module() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let rocm = device.as_rocm_device()?;
    let first = code_object(rocm.arch())?.to_vec();
    let renamed = |from: &[u8], to: &[u8], object: &[u8]| -> Vec<u8> {
        let mut object = object.to_vec();
        for at in 0..object.len() - from.len() {
            if object[at..].starts_with(from) {
                object[at..at + from.len()].copy_from_slice(to);
            }
        }
        object
    };
    let mut bytes = first.clone();
    assert_eq!(run(rocm, &bytes, "softsign_f32")?, [0.5; 4]);
    // Changed in place, so that address and length are the same.
    bytes.copy_from_slice(&renamed(b"softsign_f16", b"softsign_g16", &first));
    assert_eq!(run(rocm, &bytes, "softsign_f32")?, [0.5; 4]);
    let text = error_of(rocm.custom_kernel("mine", &bytes, "softsign_f16"));
    assert!(text.contains("softsign_f16"), "{text}");
    // The first module is still available.
    assert_eq!(rocm.custom_kernel("mine", &first, "softsign_f16")?.name(), "softsign_f16");
    Ok(())
}

/// Returns a bundle of several targets' code objects in the format of `hipcc --genco`: a header, an entry per
/// target (offset, size, length of the name, name) with an empty first entry for the host, then the aligned
/// objects.
fn bundle(targets: &[&str]) -> Result<Vec<u8>> {
    let mut entries = vec![("host-x86_64-unknown-linux--".to_string(), &[][..])];
    for target in targets {
        entries.push((format!("hipv4-amdgcn-amd-amdhsa--{target}"), code_object(target)?));
    }
    let header = 32 + entries.iter().map(|(name, _)| 24 + name.len()).sum::<usize>();
    let mut bytes = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    bytes.extend((entries.len() as u64).to_le_bytes());
    let mut offset = header.next_multiple_of(4096);
    for (name, object) in &entries {
        for word in [offset, object.len(), name.len()] {
            bytes.extend((word as u64).to_le_bytes());
        }
        bytes.extend(name.as_bytes());
        offset += object.len().next_multiple_of(4096);
    }
    for (_, object) in &entries {
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        bytes.extend_from_slice(object);
    }
    Ok(bytes)
}

#[test]
#[serial]
fn a_bundle_of_several_targets_is_loaded() -> Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let rocm = device.as_rocm_device()?;
    let arch = rocm.arch().split(':').next().unwrap_or_default();
    let other = if arch == "gfx90a" { "gfx908" } else { "gfx90a" };
    let bytes = bundle(&[other, arch])?;
    assert_eq!(run(rocm, &bytes, "softsign_f32")?, [0.5; 4]);
    let text = error_of(rocm.custom_kernel("half", &bytes[..bytes.len() - 100], "softsign_f32"));
    assert!(text.contains("cut off"), "{text}");
    let text = error_of(rocm.custom_kernel("foreign", &bundle(&[other])?, "softsign_f32"));
    assert!(text.contains("hipModuleLoadData(foreign"), "{text}");
    Ok(())
}
