use super::fixture::*;
use candle_core::backend::BackendStorage;
use candle_core::quantized::rocm::read_quantized;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::rocm::read_tensor;
use candle_core::{CpuStorage, DType, Device, DeviceLocation, Storage, Tensor};

#[test]
fn tensors_are_copied_to_the_device_and_back() {
    let device = rocm();
    for dtype in ALL {
        for count in [0, 1, 1000] {
            let cpu = tensor(&[count], dtype, 100.0);
            let gpu = cpu.to_device(&device).unwrap();
            assert_eq!((gpu.dtype(), gpu.device().location()), (dtype, DeviceLocation::Rocm { gpu_id: 0 }));
            assert_close(&gpu, &cpu, 0.0, &format!("{dtype:?} {count}"));
        }
    }
}

/// Uploads a tensor larger than a chunk of the upload ring, and many small ones that wrap around it.
#[test]
fn uploads_of_every_size_arrive_in_order() {
    let device = rocm();
    let large: Vec<u32> = (0..1 << 20).collect();
    let gpu = Tensor::from_slice(&large, large.len(), &device).unwrap();
    assert_eq!(gpu.to_vec1::<u32>().unwrap(), large);
    let small: Vec<Tensor> = (0..40u32)
        .map(|i| Tensor::from_vec((0..30_000).map(|j| i * 30_000 + j).collect(), 30_000, &device).unwrap())
        .collect();
    for (i, t) in small.iter().enumerate() {
        let first = i as u32 * 30_000;
        assert_eq!(t.to_vec1::<u32>().unwrap(), (first..first + 30_000).collect::<Vec<_>>());
    }
}

/// Sizes end before, at and after the border of a chunk of the ring for files, and wrap around it.
#[test]
fn tensors_are_read_in_parts_and_in_order() {
    const CHUNK: usize = 16 << 20;
    let device = rocm();
    let Device::Rocm(gpu) = &device else { panic!("{device:?}") };
    let all: Vec<u8> = (0..4 * CHUNK + 7).map(|index| (index * 31 + index / 251) as u8).collect();
    for bytes in [0, 1, 3, CHUNK - 1, CHUNK, CHUNK + 3, 4 * CHUNK + 7, 5] {
        let next = std::cell::Cell::new(0);
        let read = |first: usize, part: &mut [u8]| {
            assert_eq!(next.replace(first + part.len()), first);
            part.copy_from_slice(&all[first..first + part.len()]);
            Ok(())
        };
        let seen = read_tensor(gpu, DType::U8, &bytes.into(), &read).unwrap();
        assert_eq!(next.get(), bytes);
        assert!(seen.to_vec1::<u8>().unwrap() == all[..bytes], "{bytes}");
    }
    let floats = [1.5f32, -2.0, f32::MIN_POSITIVE, 0.0, 3e38, -0.0];
    let raw: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
    let read = |first: usize, part: &mut [u8]| {
        part.copy_from_slice(&raw[first..first + part.len()]);
        Ok(())
    };
    let seen = read_tensor(gpu, DType::F32, &(2, 3).into(), &read).unwrap();
    assert_eq!(seen.to_vec2::<f32>().unwrap(), [floats[..3].to_vec(), floats[3..].to_vec()]);
}

#[test]
fn quantized_tensors_are_read_as_they_are_in_files() {
    let device = rocm();
    let Device::Rocm(gpu) = &device else { panic!("{device:?}") };
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q6K, GgmlDType::F16, GgmlDType::F32] {
        let cpu = QTensor::quantize(&tensor(&[3, 256], DType::F32, 2.0), dtype).unwrap();
        let raw = cpu.data().unwrap();
        let read = |first: usize, part: &mut [u8]| {
            part.copy_from_slice(&raw[first..first + part.len()]);
            Ok(())
        };
        let seen = read_quantized(gpu, dtype, &(3, 256).into(), &read).unwrap();
        assert_close(&seen.dequantize(&device).unwrap(), &cpu.dequantize(&Device::Cpu).unwrap(), 0.0, "read");
    }
    let error = read_quantized(gpu, GgmlDType::Q4_0, &(3, 33).into(), &|_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("33"), "{error}");
}

/// The error of the source is returned, and the device remains usable.
#[test]
fn a_source_that_fails_while_it_is_read() {
    let device = rocm();
    let Device::Rocm(gpu) = &device else { panic!("{device:?}") };
    let read = |first: usize, _: &mut [u8]| match first {
        0 => Ok(()),
        _ => Err(std::io::Error::other("the disk was removed")),
    };
    let error = read_tensor(gpu, DType::U8, &(33 << 20).into(), &read).unwrap_err();
    assert!(matches!(error, candle_core::Error::Io(_)), "{error}");
    let sum = Tensor::ones(1000, DType::F32, &device).unwrap().sum_all().unwrap();
    assert_eq!(sum.to_scalar::<f32>().unwrap(), 1000.0);
}

#[test]
fn contiguous_copies_follow_every_layout() {
    let device = rocm();
    for dtype in ALL {
        let cpu = tensor(&DIMS, dtype, 60.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (view_name, view) in VIEWS {
            let got = view(&gpu).unwrap().contiguous().unwrap();
            assert!(got.is_contiguous());
            assert_close(&got, &view(&cpu).unwrap(), 0.0, &format!("{dtype:?} {view_name}"));
        }
    }
}

/// Dims are long enough for tiles and vectors; addresses and lengths are aligned and not aligned.
#[test]
fn long_dims_are_transposed_narrowed_and_broadcast() {
    let device = rocm();
    type View = fn(&Tensor) -> candle_core::Result<Tensor>;
    let views: [(&str, View); 9] = [
        ("transposed", |t| t.transpose(1, 2)),
        ("first to last", |t| t.permute((1, 2, 0))),
        ("last to first", |t| t.permute((2, 0, 1))),
        ("outer", |t| t.transpose(0, 1)),
        ("narrowed", |t| t.narrow(2, 16, 32)),
        ("narrowed and not aligned", |t| t.narrow(2, 1, 40)),
        ("narrowed and transposed", |t| t.narrow(2, 3, 47)?.transpose(1, 2)),
        ("repeated", |t| t.narrow(1, 5, 1)?.broadcast_as((19, 36, 64))),
        ("repeated in itself", |t| t.narrow(2, 5, 1)?.broadcast_as((19, 36, 64))),
    ];
    for dtype in ALL {
        for dims in [[19, 36, 64], [17, 70, 130]] {
            let cpu = tensor(&dims, dtype, 60.0);
            let gpu = cpu.to_device(&device).unwrap();
            for (name, view) in views.iter().take(if dims[0] == 19 { 9 } else { 7 }) {
                let (seen, wanted) = (view(&gpu).unwrap(), view(&cpu).unwrap());
                let what = format!("{dtype:?} {dims:?} {name}");
                assert_close(&seen.contiguous().unwrap(), &wanted, 0.0, &what);
                assert_close(&seen.eq(&seen).unwrap(), &wanted.eq(&wanted).unwrap(), 0.0, &what);
            }
        }
    }
}

#[test]
fn concatenating_along_every_dim() {
    let device = rocm();
    for dtype in ALL {
        let (a, b) = (tensor(&DIMS, dtype, 60.0), tensor(&DIMS, dtype, 30.0));
        let (gpu_a, gpu_b) = (a.to_device(&device).unwrap(), b.to_device(&device).unwrap());
        for dim in 0..3 {
            let expected = Tensor::cat(&[&a, &b, &a], dim).unwrap();
            let got = Tensor::cat(&[&gpu_a, &gpu_b, &gpu_a], dim).unwrap();
            assert_close(&got, &expected, 0.0, &format!("cat {dtype:?} dim {dim}"));
        }
    }
}

/// Concatenates more tensors than fit into a launch, with equal and unequal rows, aligned or not, and with views.
#[test]
fn many_tensors_are_concatenated() {
    let device = rocm();
    let whole = tensor(&[6, 7, 80], DType::F16, 60.0);
    type Part = fn(&Tensor, usize) -> candle_core::Result<Tensor>;
    let parts: [(&str, usize, Part); 5] = [
        ("repeated", 1, |t, _| Ok(t.clone())),
        ("rows of packs", 1, |t, i| t.narrow(1, i % 3, 1 + i % 5)),
        ("of all widths", 2, |t, i| t.narrow(2, 0, i + 1)?.contiguous()),
        ("not aligned", 2, |t, i| t.narrow(2, i, 24)),
        ("outermost", 0, |t, i| t.narrow(0, i % 6, 1)?.narrow(2, 0, 8 * (1 + i / 6))?.narrow(2, 0, 8)),
    ];
    for dtype in ALL {
        let cpu = whole.to_dtype(dtype).unwrap();
        let gpu = cpu.to_device(&device).unwrap();
        for (name, dim, part) in parts {
            let of = |t: &Tensor| {
                let tensors: Vec<_> = (0..19).map(|i| part(t, i).unwrap()).collect();
                Tensor::cat(&tensors, dim).unwrap()
            };
            assert_close(&of(&gpu), &of(&cpu), 0.0, &format!("{dtype:?} {name}"));
        }
        for (offset, width) in [(0, 64), (16, 32), (3, 40), (79, 1)] {
            let slice = |t: &Tensor| {
                let (t, part) = (t.copy().unwrap(), t.narrow(2, 8, width).unwrap().contiguous().unwrap());
                t.slice_set(&part, 2, offset).unwrap();
                t
            };
            assert_close(&slice(&gpu), &slice(&cpu), 0.0, &format!("{dtype:?} {offset} {width}"));
        }
    }
}

#[test]
fn slices_are_written_in_place() {
    let device = rocm();
    let (cpu, src) = (tensor(&[4, 6], DType::F32, 9.0), tensor(&[4, 2], DType::F32, 5.0));
    let (gpu, gpu_src) = (cpu.to_device(&device).unwrap(), src.to_device(&device).unwrap());
    cpu.slice_set(&src, 1, 3).unwrap();
    gpu.slice_set(&gpu_src, 1, 3).unwrap();
    assert_close(&gpu, &cpu, 0.0, "slice_set");
}

#[test]
fn zeros_ones_and_full() {
    let device = rocm();
    for dtype in ALL {
        let zeros = Tensor::zeros((3, 5), dtype, &device).unwrap();
        assert_close_values(&to_f64(&zeros), &[0.0; 15], 0.0, &format!("zeros {dtype:?}"));
        let ones = Tensor::ones((3, 5), dtype, &device).unwrap();
        assert_close_values(&to_f64(&ones), &[1.0; 15], 0.0, &format!("ones {dtype:?}"));
    }
    let full = Tensor::full(-2.5f32, (2, 3), &device).unwrap();
    assert_eq!(full.to_vec2::<f32>().unwrap(), [[-2.5; 3]; 2]);
}

#[test]
fn filling_follows_the_layout() {
    let device = rocm();
    for dtype in ALL {
        let (cpu, gpu) =
            (tensor(&[4, 6], dtype, 60.0), tensor(&[4, 6], dtype, 60.0).to_device(&device).unwrap());
        for t in [&cpu, &gpu] {
            t.narrow(1, 2, 3).unwrap().t().unwrap().one_set().unwrap();
        }
        assert_close(&gpu, &cpu, 0.0, &format!("one_set {dtype:?}"));
    }
}

#[test]
fn tensors_are_copied_between_devices() {
    let Some(second) = second_rocm() else { return };
    let first = rocm();
    for dtype in ALL {
        let cpu = tensor(&[3, 7], dtype, 60.0);
        let here = cpu.to_device(&first).unwrap();
        let there = here.to_device(&second).unwrap();
        assert_eq!(there.device().location(), DeviceLocation::Rocm { gpu_id: 1 });
        assert_close(&there, &cpu, 0.0, &format!("{dtype:?}"));
        drop(here);
        assert_close(&there.to_device(&first).unwrap(), &cpu, 0.0, &format!("{dtype:?} and back"));
    }
    let (here, there) = (Tensor::ones(2, DType::F32, &first), Tensor::ones(2, DType::F32, &second));
    let error = (here.unwrap() + there.unwrap()).unwrap_err().to_string();
    assert!(error.contains("device mismatch"), "{error}");
}

#[test]
fn packed_dtypes_are_stored_as_bytes() {
    let device = rocm();
    let rocm = device.as_rocm_device().unwrap();
    let bytes = [1u8, 2, 250, 255];
    for dtype in [DType::F6E2M3, DType::F6E3M2, DType::F4, DType::F8E8M0] {
        let storage = rocm.storage_from_raw_bytes(&bytes, dtype).unwrap();
        assert_eq!(storage.dtype(), dtype);
        let back = match storage.to_cpu_storage().unwrap() {
            candle_core::CpuStorage::F6E2M3(v)
            | candle_core::CpuStorage::F6E3M2(v)
            | candle_core::CpuStorage::F4(v)
            | candle_core::CpuStorage::F8E8M0(v) => v,
            other => panic!("{other:?}"),
        };
        assert_eq!(back, bytes);
    }
    assert!(rocm.storage_from_raw_bytes(&bytes, DType::F32).is_err());
}

/// Creates a tensor of a packed dtype with one byte per element.
fn packed_tensor(dtype: DType, device: &Device) -> Tensor {
    let bytes: Vec<u8> = (0..6).map(|i| i * 40 + 3).collect();
    let storage = match device {
        Device::Rocm(rocm) => Storage::Rocm(rocm.storage_from_raw_bytes(&bytes, dtype).unwrap()),
        _ => Storage::Cpu(match dtype {
            DType::F6E2M3 => CpuStorage::F6E2M3(bytes),
            DType::F6E3M2 => CpuStorage::F6E3M2(bytes),
            DType::F4 => CpuStorage::F4(bytes),
            _ => CpuStorage::F8E8M0(bytes),
        }),
    };
    Tensor::from_storage(storage, (2, 3), candle_core::op::BackpropOp::none(), false)
}

fn packed_bytes(t: &Tensor) -> Vec<u8> {
    let t = t.to_device(&Device::Cpu).unwrap();
    let (storage, _) = t.storage_and_layout();
    match &*storage {
        Storage::Cpu(
            CpuStorage::F6E2M3(v) | CpuStorage::F6E3M2(v) | CpuStorage::F4(v) | CpuStorage::F8E8M0(v),
        ) => v.clone(),
        _ => panic!("not a packed dtype"),
    }
}

/// Returns the message without the backtrace that RUST_BACKTRACE adds.
fn first_line(error: candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}

#[test]
fn packed_dtypes_are_copied_but_not_computed_with() {
    let device = rocm();
    for dtype in [DType::F6E2M3, DType::F6E3M2, DType::F4, DType::F8E8M0] {
        let (cpu, gpu) = (packed_tensor(dtype, &Device::Cpu), packed_tensor(dtype, &device));
        assert_eq!(packed_bytes(&gpu.copy().unwrap()), packed_bytes(&cpu), "{dtype:?}");
        type Op = fn(&Tensor) -> candle_core::Result<Tensor>;
        let refused: [(&str, Op); 14] = [
            ("exp", |t| t.exp()),
            ("abs", |t| t.abs()),
            ("powf", |t| t.powf(2.0)),
            ("elu", |t| t.elu(1.0)),
            ("affine", |t| t.affine(2.0, 1.0)),
            ("add", |t| t + t),
            ("eq", |t| t.eq(t)),
            ("where", |t| Tensor::zeros(t.dims(), DType::U8, t.device())?.where_cond(t, t)),
            ("where of", |t| t.where_cond(t, t)),
            ("sum", |t| t.sum(1)),
            ("argmax", |t| t.argmax(1)),
            ("argsort", |t| t.arg_sort_last_dim(true)),
            ("cast", |t| t.to_dtype(DType::F32)),
            ("contiguous", |t| t.t()?.contiguous()),
        ];
        for (name, op) in refused {
            let (expected, got) = (op(&cpu).unwrap_err(), op(&gpu).unwrap_err());
            // The CPU device's errors sometimes name an internal function instead of the operation.
            let kind = |text: String| text.split(" for op ").next().unwrap_or_default().to_string();
            let kind = |text: String| kind(text).split(" in ").next().unwrap_or_default().to_string();
            assert_eq!(kind(first_line(got)), kind(first_line(expected)), "{name} {dtype:?}");
        }
        for (name, op) in
            [("zeros", Tensor::zeros((2, 3), dtype, &device)), ("ones", Tensor::ones(3, dtype, &device))]
        {
            let error = op.unwrap_err().to_string();
            assert!(error.contains(&format!("unsupported dtype {dtype:?}")), "{name}: {error}");
        }
    }
}

#[test]
fn one_launch_per_operation() {
    let last = devices() - 1;
    let own = Device::Rocm(candle_core::RocmDevice::new_with_stream(last).unwrap());
    let counted = own.as_rocm_device().unwrap();
    let t = tensor(&DIMS, DType::F32, 3.0).to_device(&own).unwrap();
    let view = t.transpose(0, 2).unwrap();
    let (ints, bytes) = (t.to_dtype(DType::I32).unwrap(), t.to_dtype(DType::U8).unwrap());
    let mut before = counted.kernels_launched();
    let mut one_more = |what: &str| {
        let now = counted.kernels_launched();
        assert_eq!(now, before + 1, "{what}");
        before = now;
    };
    view.exp().unwrap();
    one_more("unary");
    ints.gelu().unwrap();
    one_more("unary of integers that is 0");
    ints.ceil().unwrap();
    one_more("unary of integers that is a copy");
    (&view + &view).unwrap();
    one_more("binary");
    view.affine(2.0, 1.0).unwrap();
    one_more("affine");
    view.sum(1).unwrap();
    one_more("sum");
    view.contiguous().unwrap();
    one_more("copy");
    t.copy().unwrap();
    one_more("copy of a whole storage");
    t.force_contiguous().unwrap();
    one_more("dense copy");
    t.one_set().unwrap();
    one_more("fill");
    view.max(0).unwrap();
    one_more("max");
    view.le(&view).unwrap();
    one_more("cmp");
    bytes.where_cond(&t, &t).unwrap();
    one_more("where");
    view.to_dtype(DType::F16).unwrap();
    one_more("cast");
}

#[test]
fn typed_access_for_custom_operations() {
    let device = rocm();
    let t = Tensor::new(&[1f32, 2.0, 3.0], &device).unwrap();
    let (storage, _) = t.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else { panic!("not on a ROCm device") };
    let buffer = storage.as_rocm_slice::<f32>().unwrap();
    assert_eq!(buffer.len(), 3);
    assert_eq!(storage.device().clone_dtoh(buffer).unwrap(), [1.0, 2.0, 3.0]);
    assert!(storage.as_rocm_slice::<u8>().is_err());
}
