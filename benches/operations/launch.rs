//! Tiny operations dominated by launch overhead, the driver's launch call itself, and transfers.
use crate::case::{Cases, M, Operand, Work, count_name, random};
use candle_core::rocm::hip_kernels::{self, contract};
use candle_core::rocm::rocm_rs::hip::bindings;
use candle_core::rocm::{LaunchConfig, RocmDevice};
use candle_core::{DType, Device, Error, Result, Tensor};
use std::ffi::CString;
use std::hint::black_box;

pub const LAUNCH: &str = "launch";
const COPIES: &str = "copies";
/// Cases whose difference in host time is our own overhead of a launch.
pub const TINY_ADD: &str = "launch_tiny_add";
pub const DRIVER_LAUNCH: &str = "driver_launch";

const TINY: usize = 16;

pub fn cases(cases: &mut Cases) {
    let f32s = |dims: &[usize]| random(DType::F32, dims);
    type One = fn(&Tensor) -> Result<Tensor>;
    type Two = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let one: [(&str, &str, Operand, One); 2] = [
        ("launch_tiny_strided_copy", "4x4", f32s(&[4, 4]), |x| x.t()?.contiguous()),
        ("launch_tiny_sum", "16x16", f32s(&[16, 16]), |x| x.sum(1)),
    ];
    let two: [(&str, &str, [Operand; 2], Two); 3] = [
        (TINY_ADD, "16", [f32s(&[TINY]), f32s(&[TINY])], |x, y| x + y),
        ("launch_tiny_broadcast_add", "4x4+4", [f32s(&[4, 4]), f32s(&[4])], |x, y| x.broadcast_add(y)),
        ("launch_tiny_matmul", "16x16x16", [f32s(&[16, 16]), f32s(&[16, 16])], |x, y| x.matmul(y)),
    ];
    for (name, shape, x, function) in one {
        cases.operation([LAUNCH, name], DType::F32, shape, [x], move |[x]| function(x));
    }
    for (name, shape, operands, function) in two {
        cases.operation([LAUNCH, name], DType::F32, shape, operands, move |[x, y]| function(x, y));
    }
    cases.work([LAUNCH, DRIVER_LAUNCH], "f32", "16", |device| match device {
        Device::Rocm(device) => driver_launch(device),
        _ => Err(Error::msg("driver_launch needs a ROCm device")),
    });
    if let Some(case) = cases.list.last_mut() {
        case.only_rocm = true;
    }
    cases.work([LAUNCH, "launch_tiny_zeros"], "f32", "16", |device| zeros(TINY, device));
    cases.work([LAUNCH, "scalar_to_device"], "f32", "1", |device| {
        let device = device.clone();
        Ok(Box::new(move || Tensor::new(1f32, &device).map(|scalar| drop(black_box(scalar)))))
    });
    cases.work([LAUNCH, "scalar_to_host"], "f32", "1", |device| {
        let scalar = Tensor::new(1f32, device)?;
        Ok(Box::new(move || scalar.to_scalar::<f32>().map(|value| _ = black_box(value))))
    });
    for n in [M, 64 * M].map(|n| cases.scale.dim(n)) {
        cases
            .operation(
                [LAUNCH, "add_sync_each"],
                DType::F32,
                count_name(n),
                [f32s(&[n]), f32s(&[n])],
                |[x, y]| {
                    let sum = (x + y)?;
                    sum.device().synchronize()?;
                    Ok(sum)
                },
            )
            .bytes(12 * n);
    }
    transfers(cases);
}

/// Adds copies, fills, uploads and downloads; the latter two use pageable host memory.
fn transfers(cases: &mut Cases) {
    let n = cases.scale.dim(64 * M);
    let shape = bytes_name(4 * n);
    cases
        .operation([COPIES, "device_copy"], DType::F32, &shape, [random(DType::F32, [n])], |[x]| x.copy())
        .bytes(8 * n);
    cases.work([COPIES, "zeros"], "f32", &shape, move |device| zeros(n, device)).bytes(4 * n).elements = n;
    let case = cases.work([COPIES, "host_to_device"], "f32", &shape, move |device| {
        let (values, device) = (vec![1f32; n], device.clone());
        Ok(Box::new(move || Tensor::from_slice(&values, n, &device).map(|copy| drop(black_box(copy)))))
    });
    case.bytes(4 * n).elements = n;
    let case = cases.work([COPIES, "device_to_host"], "f32", &shape, move |device| {
        let tensor = Tensor::ones(n, DType::F32, device)?;
        Ok(Box::new(move || tensor.to_vec1::<f32>().map(|values| drop(black_box(values)))))
    });
    case.bytes(4 * n).elements = n;
}

fn zeros(n: usize, device: &Device) -> Result<Work> {
    let device = device.clone();
    Ok(Box::new(move || Tensor::zeros(n, DType::F32, &device).map(|zeros| drop(black_box(zeros)))))
}

fn bytes_name(bytes: usize) -> String {
    if bytes.is_multiple_of(M) { format!("{}MiB", bytes / M) } else { format!("{bytes}B") }
}

/// Launches the kernel of a tiny addition directly with the driver's call: the lower limit for all operations.
fn driver_launch(device: &RocmDevice) -> Result<Work> {
    let kernel = contract::Binary::kernel(contract::BinaryOp::Arithmetic, contract::Element::F32)
        .ok_or_else(|| Error::msg("no kernel for f32 addition"))?
        .id();
    let object = hip_kernels::code_object(kernel.module(), device.arch()).map_err(Error::wrap)?;
    let name = CString::new(kernel.name()).map_err(Error::wrap)?;
    let config = LaunchConfig::for_elements("launch", 1)?;
    let [lhs, rhs] = [device.alloc_zeros::<f32>(TINY)?, device.alloc_zeros::<f32>(TINY)?];
    let sum = device.alloc_zeros::<f32>(TINY)?;
    device.bind_to_thread()?;
    let checked = |call: &str, code: bindings::hipError_t| match code {
        bindings::hipError_t_hipSuccess => Ok(()),
        code => Err(Error::msg(format!("{call} failed with {code}"))),
    };
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the code object is complete and outlives the call; both handles are written before they are
    // read. The module stays loaded until the process ends.
    unsafe {
        checked("hipModuleLoadData", bindings::hipModuleLoadData(&mut module, object.bytes.as_ptr().cast()))?;
        checked(
            "hipModuleGetFunction",
            bindings::hipModuleGetFunction(&mut function, module, name.as_ptr()),
        )?;
    }
    let device = device.clone();
    Ok(Box::new(move || {
        let info = contract::KernelLayout([0; contract::LAYOUT_WORDS]);
        let arguments = contract::Binary {
            numel: TINY,
            num_dims: 0,
            info: &info,
            function: contract::ADD,
            lhs: lhs.ptr(),
            rhs: rhs.ptr(),
            out: sum.ptr(),
        };
        let addresses = contract::KernelFamily::arguments(&arguments);
        // SAFETY: the arguments match the kernel's parameters, and the buffers have `TINY` elements.
        let code = unsafe {
            bindings::hipModuleLaunchKernel(
                function,
                config.grid.0,
                config.grid.1,
                config.grid.2,
                config.block.0,
                config.block.1,
                config.block.2,
                config.lds_bytes,
                device.stream().as_raw(),
                addresses.as_ref().as_ptr().cast_mut().cast(),
                std::ptr::null_mut(),
            )
        };
        checked("hipModuleLaunchKernel", code)
    }))
}
