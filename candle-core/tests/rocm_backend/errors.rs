//! Invalid input and faults give one clear error each, and the device stays usable.
use super::fixture::*;
use candle_core::rocm::hip_kernels::{self, Module};
use candle_core::{DType, Device, Tensor};

#[track_caller]
fn assert_works(device: &Device) {
    let t = Tensor::new(&[1f32, 2.0], device).unwrap();
    assert_eq!((&t + &t).unwrap().to_vec1::<f32>().unwrap(), [2.0, 4.0]);
}

#[track_caller]
fn assert_contains(error: candle_core::Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Opens a separate stream, which does not receive faults of other tests.
fn own_device() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

/// Returns the device's name in errors.
fn label(device: &Device) -> String {
    let rocm = device.as_rocm_device().unwrap();
    format!("rocm:{} ({})", rocm.ordinal(), rocm.arch())
}

#[test]
fn an_ordinal_out_of_range_names_the_number_of_devices() {
    let device = rocm();
    let there_are = format!("{} device(s)", devices());
    assert_contains(Device::new_rocm(99).unwrap_err(), &["rocm:99 does not exist", &there_are]);
    assert_works(&device);
}

#[test]
fn an_index_out_of_range_is_reported_when_data_comes_back() {
    let device = own_device();
    let table = Tensor::ones((5, 3), DType::F32, &device).unwrap();
    let ids = Tensor::new(&[1u32, 7, 2], &device).unwrap();
    let rows = table.index_select(&ids, 0).unwrap();
    let error = rows.to_vec2::<f32>().unwrap_err();
    assert_contains(error, &["index-select", "index 7", "size 5", "rocm:0"]);
    // The fault is reported only once; the element is 0, and its neighbors are correct.
    assert_eq!(rows.to_vec2::<f32>().unwrap(), [[1.0; 3], [0.0; 3], [1.0; 3]]);
    assert_works(&device);
}

#[test]
fn every_indexing_operation_checks_its_indices() {
    let device = own_device();
    let t = Tensor::ones((2, 3), DType::F32, &device).unwrap();
    let ids = Tensor::new(&[[0i64, -1, 9], [0, 0, 0]], &device).unwrap();
    let cases = [
        ("gather", t.gather(&ids, 1)),
        ("scatter", t.scatter(&ids, &t, 1)),
        ("scatter-add", t.scatter_add(&ids, &t, 1)),
        ("index-add", t.index_add(&ids.get(0).unwrap(), &t, 1)),
    ];
    // All were launched before the device is waited for, so the first fault is reported.
    for (name, result) in &cases {
        assert!(result.is_ok(), "{name}");
    }
    assert_contains(device.synchronize().unwrap_err(), &["gather", "out of range", "size 3"]);
    for (name, op) in [("scatter", 1), ("scatter-add", 2), ("index-add", 3)] {
        let again = match op {
            1 => t.scatter(&ids, &t, 1),
            2 => t.scatter_add(&ids, &t, 1),
            _ => t.index_add(&ids.get(0).unwrap(), &t, 1),
        };
        assert!(again.is_ok());
        assert_contains(device.synchronize().unwrap_err(), &[name, "out of range"]);
    }
    assert_works(&device);
}

#[test]
fn requests_beyond_the_total_memory() {
    let device = own_device();
    let error = Tensor::zeros((1 << 40, 4), DType::F64, &device).unwrap_err();
    let requested = (1u64 << 45).to_string();
    assert_contains(error, &["out of device memory", &requested, "bytes free", &label(&device)]);
    assert_works(&device);
    let error = Tensor::zeros((1usize << 62, 1), DType::F64, &device).unwrap_err();
    assert_contains(error, &["out of device memory"]);
    assert_works(&device);
}

#[test]
fn unsupported_dtypes_give_the_errors_of_the_cpu() {
    let device = own_device();
    let ints = Tensor::ones(4, DType::U32, &device).unwrap();
    let floats = Tensor::ones(4, DType::F32, &device).unwrap();
    assert_contains(ints.exp().unwrap_err(), &["unsupported dtype U32 for op exp"]);
    assert_contains(ints.powf(2.0).unwrap_err(), &["unsupported dtype U32 for op powf"]);
    assert_contains(ints.elu(2.0).unwrap_err(), &["unsupported dtype U32 for op elu"]);
    assert_contains((&ints + &floats).unwrap_err(), &["dtype mismatch in add, lhs: U32, rhs: F32"]);
    assert_contains(ints.lt(&floats).unwrap_err(), &["dtype mismatch in"]);
    assert_contains(ints.where_cond(&ints, &floats).unwrap_err(), &["dtype mismatch in where"]);
    assert_contains(
        floats.where_cond(&ints, &ints).unwrap_err(),
        &["unsupported dtype F32 for op where-cond"],
    );
    assert_works(&device);
}

#[test]
fn a_corrupt_code_object_is_an_error() {
    let device = own_device();
    let rocm = device.as_rocm_device().unwrap();
    let mut bytes = hip_kernels::code_object(Module::Unary, rocm.arch()).unwrap().bytes;
    for byte in bytes.iter_mut().take(64) {
        *byte = 0xa5;
    }
    assert_contains(
        rocm.custom_kernel("damaged", &bytes, "uexp_f32").err().unwrap(),
        &["hipModuleLoadData", "damaged"],
    );
    assert_works(&device);
}

/// Byte 18 of an ELF file is the machine: 190 for NVIDIA, 224 for AMD.
#[test]
fn a_code_object_for_another_vendor_is_an_error() {
    let device = own_device();
    let rocm = device.as_rocm_device().unwrap();
    let mut bytes = hip_kernels::code_object(Module::Unary, rocm.arch()).unwrap().bytes;
    let (other, text) = match rocm.driver_name() {
        "nvidia" => (224u16, "an object for an AMD GPU, and this device is an NVIDIA GPU"),
        _ => (190, "an object for an NVIDIA GPU, and this device is an AMD GPU"),
    };
    bytes[18..20].copy_from_slice(&other.to_le_bytes());
    assert_contains(rocm.custom_kernel("foreign", &bytes, "uexp_f32").err().unwrap(), &["foreign", text]);
    assert_works(&device);
}

#[test]
fn a_custom_kernel_is_launched() {
    use candle_core::rocm::{LaunchConfig, Strided};
    let device = own_device();
    let rocm = device.as_rocm_device().unwrap();
    let code_object = hip_kernels::code_object(Module::Unary, rocm.arch()).unwrap();
    let kernel = rocm.custom_kernel("mine", &code_object.bytes, "urecip_f32").unwrap();
    let input = rocm.clone_htod(&[1f32, -2.0, 4.0]).unwrap();
    let output = rocm.alloc_zeros::<f32>(3).unwrap();
    let launch = kernel.launch(LaunchConfig::for_elements("recip", 3).unwrap());
    // SAFETY: urecip(numel, num_dims, info, inp, out).
    unsafe {
        launch.arg(&3usize).strided(&Strided::CONTIGUOUS).arg(&input.ptr()).arg(&output.ptr()).run().unwrap()
    };
    assert_eq!(rocm.clone_dtoh(&output).unwrap(), [1.0, -0.5, 0.25]);
    assert_contains(
        rocm.custom_kernel("mine", &code_object.bytes, "absent").err().unwrap(),
        &["absent", "mine"],
    );
    assert_works(&device);
}

/// Number and sizes are checked against the code object's metadata before the launch.
#[test]
fn wrong_arguments_of_a_custom_kernel_are_errors() {
    use candle_core::rocm::{LaunchConfig, Strided};
    let device = own_device();
    let rocm = device.as_rocm_device().unwrap();
    let code_object = hip_kernels::code_object(Module::Unary, rocm.arch()).unwrap();
    let kernel = rocm.custom_kernel("mine", &code_object.bytes, "urecip_f32").unwrap();
    let output = rocm.alloc_zeros::<f32>(3).unwrap();
    let launch = || kernel.launch(LaunchConfig::for_elements("recip", 3).unwrap());
    // SAFETY: both launches fail before they reach the driver.
    let (too_few, too_small) = unsafe {
        (
            launch().arg(&3usize).strided(&Strided::CONTIGUOUS).arg(&output.ptr()).run().unwrap_err(),
            launch()
                .arg(&3u32)
                .strided(&Strided::CONTIGUOUS)
                .arg(&output.ptr())
                .arg(&output.ptr())
                .run()
                .unwrap_err(),
        )
    };
    assert_contains(too_few, &["urecip_f32", "4 arguments are given", "it takes 5", &label(&device)]);
    // NVIDIA's objects do not name arguments.
    let argument = if rocm.driver_name() == "nvidia" { "argument 0" } else { "argument 0 (numel)" };
    assert_contains(too_small, &["urecip_f32", argument, "has 8 bytes", "4 bytes are given"]);
    let before = rocm.kernels_launched();
    assert_works(&device);
    assert!(rocm.kernels_launched() > before);
}

/// A geometry that a built-in kernel does not support is an error before the driver is called.
#[test]
fn unsupported_geometries_are_errors() {
    use candle_core::rocm::hip_kernels::contract::{Element, Unary, UnaryOp};
    use candle_core::rocm::{LaunchConfig, Strided};
    let device = own_device();
    let rocm = device.as_rocm_device().unwrap();
    let output = rocm.alloc_zeros::<f32>(4).unwrap();
    let kernel = Unary::kernel(UnaryOp::Recip, Element::F32).unwrap();
    let info = &Strided::CONTIGUOUS.layout;
    let arguments = Unary { numel: 4, num_dims: 0, info, inp: output.ptr(), out: output.ptr() };
    let wide = LaunchConfig { grid: (1, 1, 1), block: (512, 1, 1), lds_bytes: 0 };
    // SAFETY: input and output have 4 elements, and both launches fail before they reach the driver.
    let errors = unsafe {
        [
            rocm.launch(kernel, wide, &arguments).unwrap_err(),
            rocm.launch(kernel, LaunchConfig { block: (32, 1, 1), lds_bytes: 64, ..wide }, &arguments)
                .unwrap_err(),
        ]
    };
    for error in errors {
        assert_contains(error, &["urecip_f32", "up to 256 threads", "no dynamic LDS"]);
    }
    assert_works(&device);
}

/// Copying a result of an invalid index to another device reports the fault there.
#[test]
fn an_index_fault_is_reported_by_the_device_that_receives_a_copy() {
    let (here, there) = (own_device(), own_device());
    let table = Tensor::ones((5, 3), DType::F32, &here).unwrap();
    let ids = Tensor::new(&[1u32, 7, 2], &here).unwrap();
    let rows = table.index_select(&ids, 0).unwrap();
    let copy = rows.to_device(&there).unwrap();
    assert_contains(copy.to_vec2::<f32>().unwrap_err(), &["index-select", "index 7", "size 5"]);
    // Reported once, by the device that is waited for first.
    assert_eq!(copy.to_vec2::<f32>().unwrap()[0], [1.0; 3]);
    here.synchronize().unwrap();
    // Also if the source device is dropped before the wait.
    let rows = table.index_select(&ids, 0).unwrap();
    let copy = rows.to_device(&there).unwrap();
    drop((rows, ids, table, here));
    assert_contains(copy.to_vec2::<f32>().unwrap_err(), &["index-select", "index 7"]);
    assert_works(&there);
}

/// The software GPU checks every access, and the next call that waits returns the fault.
#[test]
fn an_out_of_bounds_read_of_a_kernel_is_reported() {
    use candle_core::rocm::hip_kernels::contract::{Element, Unary, UnaryOp};
    use candle_core::rocm::{DevicePtr, LaunchConfig, Strided};
    let device = own_device();
    let rocm = device.as_rocm_device().unwrap();
    if !on_software_gpu("a GPU may read on, or kill the process") {
        return;
    }
    let output = rocm.alloc_zeros::<f32>(4).unwrap();
    let nowhere = DevicePtr(0x1000 as *mut _);
    let kernel = Unary::kernel(UnaryOp::Recip, Element::F32).unwrap();
    let info = &Strided::CONTIGUOUS.layout;
    let arguments = Unary { numel: 4, num_dims: 0, info, inp: nowhere, out: output.ptr() };
    // SAFETY: the access is invalid on purpose; the software GPU detects it.
    unsafe { rocm.launch(kernel, LaunchConfig::for_elements("recip", 4).unwrap(), &arguments).unwrap() };
    assert_contains(
        device.synchronize().unwrap_err(),
        &["hipStreamSynchronize", "urecip_f32", &label(&device)],
    );
    assert_works(&device);
}

#[test]
fn the_driver_cannot_be_changed_later() {
    let device = rocm();
    let error = candle_core::rocm::select_driver("emulator:gfx1102").unwrap_err();
    assert_contains(error, &["already"]);
    assert_works(&device);
}
