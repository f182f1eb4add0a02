//! Two devices of different GPU families in one process, each with its own code objects, and copies between them.
use super::elementwise::{is_float, special_tensor, BINARY, OF_INTEGERS, UNARY};
use super::fixture::*;
use candle_core::rocm::hip_kernels::{self, Module};
use candle_core::rocm::rocm_loader::DRIVER_VARIABLE;
use candle_core::{DType, Device, DeviceLocation, Result, Tensor, Var};

const FAMILIES: [&str; 2] = ["gfx1100", "gfx90a"];

/// The devices are chosen once per process, so the test runs in a separate process.
#[test]
fn tensors_are_copied_between_devices_of_two_families() {
    if let Some(missing) = FAMILIES.iter().find(|arch| hip_kernels::code_object(Module::Fill, arch).is_err())
    {
        return eprintln!("not run: the kernels were built without {missing} (CANDLE_ROCM_ARCHS)");
    }
    let devices = format!("emulator:{}", FAMILIES.join(","));
    passes_in_its_own_process("families::on_two_families", (DRIVER_VARIABLE, &devices));
    on_software_gpu("this was between two software GPUs");
}

#[test]
#[ignore = "run by tensors_are_copied_between_devices_of_two_families"]
fn on_two_families() {
    let devices = [Device::new_rocm(0).unwrap(), Device::new_rocm(1).unwrap()];
    for (ordinal, (device, arch)) in devices.iter().zip(FAMILIES).enumerate() {
        assert_eq!(device.location(), DeviceLocation::Rocm { gpu_id: ordinal });
        let found = device.as_rocm_device().unwrap().arch();
        assert!(found.starts_with(arch), "{found}");
    }
    let [first, second] = &devices;
    elementwise_operations_agree_to_the_bit(&devices).unwrap();
    products_are_close(&devices).unwrap();
    copies_back_and_forth(first, second).unwrap();
    gradients_across_devices(first, second).unwrap();
    let (here, there) = (Tensor::ones(2, DType::F32, first), Tensor::ones(2, DType::F32, second));
    let error = (here.unwrap() + there.unwrap()).unwrap_err().to_string();
    assert!(error.contains("device mismatch"), "{error}");
}

/// Returns the bits of all elements. All NaNs become equal, since IEEE 754 does not specify their bits.
fn bits(t: &Tensor) -> Result<Vec<u64>> {
    let t = t.to_device(&Device::Cpu)?.flatten_all()?;
    let float = |is_nan: bool, bits: u64| if is_nan { u64::MAX } else { bits };
    Ok(match t.dtype() {
        DType::U8 => t.to_vec1::<u8>()?.into_iter().map(u64::from).collect(),
        DType::U32 => t.to_vec1::<u32>()?.into_iter().map(u64::from).collect(),
        DType::I16 => t.to_vec1::<i16>()?.into_iter().map(|v| v as u64).collect(),
        DType::I32 => t.to_vec1::<i32>()?.into_iter().map(|v| v as u64).collect(),
        DType::I64 => t.to_vec1::<i64>()?.into_iter().map(|v| v as u64).collect(),
        DType::F16 => {
            t.to_vec1::<half::f16>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits().into())).collect()
        }
        DType::BF16 => {
            t.to_vec1::<half::bf16>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits().into())).collect()
        }
        DType::F8E4M3 => {
            let values = t.to_vec1::<float8::F8E4M3>()?;
            values.into_iter().map(|v| float(v.to_f32().is_nan(), v.to_bits().into())).collect()
        }
        DType::F32 => {
            t.to_vec1::<f32>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits().into())).collect()
        }
        _ => t.to_vec1::<f64>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits())).collect(),
    })
}

/// Returns two inputs of a dtype on a device, with special values for floats.
fn inputs(dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
    let [x, y] = if is_float(dtype) {
        let x = special_tensor(dtype);
        let y = x.transpose(0, 2)?.reshape(&DIMS)?;
        [x, y]
    } else {
        // Odd, so that no divisor is 0.
        let odd = tensor(&DIMS, DType::F64, 100.0).abs()?.floor()?.affine(2.0, 1.0)?.to_dtype(dtype)?;
        [tensor(&DIMS, dtype, 100.0), odd]
    };
    Ok([x.to_device(device)?, y.to_device(device)?])
}

/// Returns the results of every elementwise operation of a dtype with its name, dense and on a view.
fn results(dtype: DType, device: &Device) -> Result<Vec<(String, Tensor)>> {
    let mut found = Vec::new();
    for (view_name, view) in VIEWS {
        let [x, y] = inputs(dtype, device)?;
        let (x, y) = (view(&x)?, view(&y)?);
        let mut push = |name: &str, tensor| found.push((format!("{name} {dtype:?} {view_name}"), tensor));
        for (name, op, _) in UNARY.iter().filter(|(name, ..)| is_float(dtype) || OF_INTEGERS.contains(name)) {
            push(name, op(&x)?);
        }
        for (name, op) in BINARY {
            push(name, op(&x, &y)?);
        }
        push("affine", x.affine(0.3, -1.1)?);
        let less = x.lt(&y)?;
        for (name, mask) in [("eq", x.eq(&y)?), ("ne", x.ne(&y)?), ("le", x.le(&y)?), ("gt", x.gt(&y)?)] {
            push(name, mask);
        }
        push("ge", x.ge(&y)?);
        push("where_cond", less.where_cond(&x, &y)?);
        push("lt", less);
        for to in ALL {
            push(&format!("to {to:?}"), x.to_dtype(to)?);
        }
    }
    Ok(found)
}

/// The devices have waves of 32 and of 64 lanes, and different instructions.
fn elementwise_operations_agree_to_the_bit(devices: &[Device; 2]) -> Result<()> {
    for dtype in ALL {
        let [narrow, wide] = [results(dtype, &devices[0])?, results(dtype, &devices[1])?];
        assert!(narrow.len() > 25 * VIEWS.len(), "{dtype:?}: {} results", narrow.len());
        for ((what, narrow), (_, wide)) in narrow.iter().zip(&wide) {
            assert_eq!((narrow.dims(), narrow.dtype()), (wide.dims(), wide.dtype()), "{what}");
            let differs = bits(narrow)?.into_iter().zip(bits(wide)?).enumerate().find(|(_, (n, w))| n != w);
            assert_eq!(differs, None, "{what}: element and bits");
        }
    }
    Ok(())
}

fn products_are_close(devices: &[Device; 2]) -> Result<()> {
    for dtype in FLOATS {
        let (x, y) = (tensor(&[5, 33], dtype, 3.0), tensor(&[33, 7], dtype, 1.0));
        for device in devices {
            let compute =
                |device: &Device| x.to_device(device)?.matmul(&y.to_device(device)?)?.exp()?.sum_keepdim(1);
            assert_close(&compute(device)?, &compute(&Device::Cpu)?, 40.0 * epsilon(dtype), "a product");
        }
    }
    Ok(())
}

/// Only the last copy waits, so each copy must be ordered after the work that computes its source.
fn copies_back_and_forth(first: &Device, second: &Device) -> Result<()> {
    for dtype in ALL {
        let cpu = tensor(&[9, 11], dtype, 50.0);
        let travelled = cpu
            .to_device(first)?
            .t()?
            .contiguous()?
            .to_device(second)?
            .t()?
            .contiguous()?
            .to_device(first)?;
        assert_close(&travelled, &cpu, 0.0, &format!("{dtype:?}"));
    }
    let mut x = Tensor::zeros(1000, DType::F32, first)?;
    for round in 0..10 {
        let device = if round % 2 == 0 { second } else { first };
        x = x.affine(2.0, 1.0)?.to_device(device)?;
    }
    assert_eq!(x.to_vec1::<f32>()?, [1023f32; 1000]);
    Ok(())
}

fn gradients_across_devices(first: &Device, second: &Device) -> Result<()> {
    let x = Var::from_tensor(&Tensor::new(&[1f32, -2., 3.], first)?)?;
    let loss = x.sqr()?.to_device(second)?.affine(3.0, 0.0)?.sum_all()?;
    let gradients = loss.backward()?;
    let gradient = gradients.get(&x).expect("x has a gradient");
    assert!(gradient.device().same_device(first));
    assert_eq!(gradient.to_vec1::<f32>()?, [6., -12., 18.]);
    Ok(())
}
