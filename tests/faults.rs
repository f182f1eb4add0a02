//! Tests that invalid input and faults give one clear error each, and leave the device usable.
mod common;

use candle_core::backend::BackendStorage;
use candle_core::rocm::hip_kernels::{
    Module,
    contract::{Element, Unary, UnaryOp},
};
use candle_core::rocm::{LaunchConfig, Strided};
use candle_core::{DType, Device, Result, Storage, Tensor};
use serial_test::serial;

/// Checks that the device still computes.
fn assert_usable(device: &Device) -> Result<()> {
    let x = Tensor::new(&[1f32, 2., 3.], device)?;
    assert_eq!((&x + &x)?.to_vec1::<f32>()?, [2., 4., 6.]);
    Ok(())
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("this must fail").to_string()
}

#[test]
#[serial]
fn an_ordinal_out_of_range_is_reported_with_the_number_of_devices() -> Result<()> {
    let device = common::device();
    let text = message(Device::new_rocm(99));
    let there_are = format!("{} device", rocm_loader::device_archs().map_or(0, |archs| archs.len()));
    assert!(text.contains("rocm:99") && text.contains(&there_are), "{text}");
    assert_usable(&device)
}

#[test]
#[serial]
fn an_index_out_of_range_is_reported_when_data_is_read_back() -> Result<()> {
    let device = common::device();
    let table = Tensor::arange(0f32, 12., &device)?.reshape((4, 3))?;
    let rows = Tensor::new(&[0u32, 7], &device)?;
    let text = message(table.index_select(&rows, 0).and_then(|t| t.to_vec2::<f32>()));
    assert!(text.contains("index-select: index 7 is out of range for a dimension of size 4"), "{text}");
    assert_usable(&device)?;

    let places = Tensor::new(&[[0i64, -2, 1]], &device)?;
    let text = message(table.gather(&places, 0).and_then(|t| t.to_vec2::<f32>()));
    assert!(text.contains("gather") && text.contains("-2"), "{text}");
    assert_usable(&device)
}

#[test]
#[serial]
fn an_out_of_memory_error_contains_the_sizes() -> Result<()> {
    let device = common::device();
    // 2^47 bytes: more than any GPU has.
    let text = message(Tensor::zeros(1usize << 45, DType::F32, &device));
    assert!(text.contains("out of device memory") && text.contains("140737488355328"), "{text}");
    assert_usable(&device)
}

#[test]
#[serial]
fn a_damaged_code_object_is_rejected() -> anyhow::Result<()> {
    let device = common::device();
    let rocm = device.as_rocm_device()?;
    let mut object = hip_kernels::code_object(Module::Fill, rocm.arch())?.bytes;
    object[..4].copy_from_slice(b"oops");
    let text = message(rocm.custom_kernel("damaged", &object, "fill_f32").map(drop));
    assert!(text.contains("damaged") && text.contains("no AMD code object"), "{text}");
    assert_usable(&device)?;
    Ok(())
}

#[test]
#[serial]
fn a_kernel_that_reads_out_of_bounds_is_stopped_and_reported() -> Result<()> {
    let device = common::device();
    let rocm = device.as_rocm_device()?;
    if rocm.driver_name() != "emulator" {
        println!("not applicable: a real GPU may continue to read or kill the process");
        return Ok(());
    }
    let small = Tensor::zeros(4, DType::F32, &device)?;
    let far = 1usize << 20;
    {
        let (storage, layout) = small.storage_and_layout();
        let Storage::Rocm(storage) = &*storage else { panic!("not on the device") };
        // SAFETY: the buffer is never read.
        let dst = unsafe { rocm.alloc::<u32>(far)? };
        let Strided { num_dims, layout: info } = &Strided::CONTIGUOUS;
        let (inp, out) = (storage.ptr(layout, "copy")?, dst.ptr());
        let arguments = Unary { numel: far, num_dims: *num_dims, info, inp, out };
        let kernel = Unary::kernel(UnaryOp::Copy, Element::U32).expect("the copy");
        // SAFETY: the read beyond the source is intended; the software GPU, the only one here, detects it.
        unsafe { rocm.launch(kernel, LaunchConfig::for_elements("copy", far)?, &arguments)? };
        assert_eq!(storage.dtype(), DType::F32);
    }
    let text = message(device.synchronize());
    assert!(text.contains("ucopy_u32") && text.contains("0x"), "{text}");
    assert_usable(&device)
}

#[test]
fn a_missing_rocm_installation_is_reported_without_a_panic() {
    let empty_folder = tempfile::tempdir().expect("a folder");
    let path = empty_folder.path().to_string_lossy().into_owned();
    let output = common::run_embeddings_example(
        &["--model", &path, "a", "b"],
        &[("CANDLE_ROCM_DRIVER", "native"), ("ROCM_PATH", &path)],
    );
    let text = String::from_utf8_lossy(&output.stderr);
    // On a machine with ROCm, the missing model is reported instead.
    assert!(!output.status.success() && !text.contains("panicked"), "{text}");
    assert!(text.contains("libamdhip64") || text.contains("tokenizer"), "{text}");
}

#[test]
fn an_unknown_driver_is_rejected_with_the_known_ones() {
    let output =
        common::run_embeddings_example(&["--model", ".", "a", "b"], &[("CANDLE_ROCM_DRIVER", "cuda")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("native") && text.contains("emulator"), "{text}");
}

#[test]
fn an_arch_without_kernels_is_reported_with_the_build_variable() -> anyhow::Result<()> {
    // The software GPU supports this target, and tests do not build kernels for it.
    let arch = "gfx1102";
    if hip_kernels::archs().iter().any(|target| [arch, "gfx11-generic"].contains(target)) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    common::write_model(folder.path())?;
    let model = folder.path().to_string_lossy().into_owned();
    let driver = format!("emulator:{arch}");
    let output = common::run_embeddings_example(
        &["--model", &model, "the cat", "a dog"],
        &[("CANDLE_ROCM_DRIVER", &driver)],
    );
    if !common::is_software_gpu() {
        println!("not applicable: this test uses the software GPU");
    }
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !text.contains("panicked"), "{text}");
    assert!(text.contains(arch) && text.contains("CANDLE_ROCM_ARCHS") && text.contains("gfx1100"), "{text}");
    Ok(())
}
