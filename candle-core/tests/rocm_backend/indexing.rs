use super::fixture::*;
use candle_core::{DType, Device, Tensor};

const IDS: [DType; 3] = [DType::U8, DType::U32, DType::I64];
const DATA: [DType; 8] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I64, DType::I32];

#[test]
fn index_select_along_every_dim() {
    let device = rocm();
    for ids_dtype in IDS {
        let ids = from_f64(&[1.0, 0.0, 1.0, 1.0], &[4], ids_dtype);
        let gpu_ids = ids.to_device(&device).unwrap();
        for dtype in DATA {
            let cpu = tensor(&DIMS, dtype, 60.0);
            let gpu = cpu.to_device(&device).unwrap();
            for dim in 0..3 {
                let expected = cpu.index_select(&ids, dim).unwrap();
                let got = gpu.index_select(&gpu_ids, dim).unwrap();
                assert_close(
                    &got,
                    &expected,
                    0.0,
                    &format!("index_select {dtype:?} {ids_dtype:?} dim {dim}"),
                );
            }
        }
    }
}

#[test]
fn index_select_from_a_view_with_strided_ids() {
    let device = rocm();
    let cpu = tensor(&[6, 4], DType::F32, 9.0);
    let gpu = cpu.to_device(&device).unwrap();
    let ids = Tensor::new(&[[3u32, 0], [1, 0], [2, 0]], &device).unwrap();
    // The first column of the ids; rows 1.. of the source.
    let column = ids.narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    let got = gpu.narrow(0, 1, 5).unwrap().index_select(&column, 0).unwrap();
    let expected =
        cpu.narrow(0, 1, 5).unwrap().index_select(&Tensor::new(&[3u32, 1, 2], &Device::Cpu).unwrap(), 0);
    assert_close(&got, &expected.unwrap(), 0.0, "strided ids");
}

#[test]
fn the_largest_index_stands_for_no_element() {
    let device = rocm();
    let gpu = tensor(&[3, 2], DType::F32, 9.0).to_device(&device).unwrap();
    let got = gpu.index_select(&Tensor::new(&[u32::MAX], &device).unwrap(), 0).unwrap();
    assert_eq!(got.to_vec2::<f32>().unwrap(), [[0.0, 0.0]]);
}

#[test]
fn gather_along_every_dim() {
    let device = rocm();
    for ids_dtype in IDS {
        for dtype in DATA {
            let cpu = tensor(&DIMS, dtype, 60.0);
            let gpu = cpu.to_device(&device).unwrap();
            for (dim, size) in DIMS.into_iter().enumerate() {
                let values: Vec<f64> = (0..40).map(|i| ((i * 3) % size) as f64).collect();
                let ids = from_f64(&values, &DIMS, ids_dtype);
                let expected = cpu.gather(&ids, dim).unwrap();
                let got = gpu.gather(&ids.to_device(&device).unwrap(), dim).unwrap();
                assert_close(&got, &expected, 0.0, &format!("gather {dtype:?} {ids_dtype:?} dim {dim}"));
            }
        }
    }
}

#[test]
fn scatter_sets_and_adds() {
    let device = rocm();
    for ids_dtype in IDS {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64] {
            let (base, src) = (tensor(&DIMS, dtype, 60.0), tensor(&DIMS, dtype, 7.0));
            let (gpu_base, gpu_src) = (base.to_device(&device).unwrap(), src.to_device(&device).unwrap());
            for dim in 0..3 {
                // Every place once, so that the order of writes does not matter to `scatter`.
                let right: usize = DIMS[dim + 1..].iter().product();
                let values: Vec<f64> = (0..40).map(|i| ((i / right + 1) % DIMS[dim]) as f64).collect();
                let ids = from_f64(&values, &DIMS, ids_dtype);
                let gpu_ids = ids.to_device(&device).unwrap();
                let what = format!("{dtype:?} {ids_dtype:?} dim {dim}");
                let expected = base.scatter(&ids, &src, dim).unwrap();
                let got = gpu_base.scatter(&gpu_ids, &gpu_src, dim).unwrap();
                assert_close(&got, &expected, 0.0, &format!("scatter {what}"));
                let expected = base.scatter_add(&ids, &src, dim).unwrap();
                let got = gpu_base.scatter_add(&gpu_ids, &gpu_src, dim).unwrap();
                assert_close(&got, &expected, epsilon(dtype), &format!("scatter_add {what}"));
            }
        }
    }
}

#[test]
fn index_add_with_repeated_indices() {
    let device = rocm();
    for ids_dtype in IDS {
        for dtype in [DType::F32, DType::F64, DType::U32, DType::I64] {
            for dim in 0..3 {
                let base = tensor(&DIMS, dtype, 60.0);
                let mut dims = DIMS;
                dims[dim] = 3;
                let src = tensor(&dims, dtype, 7.0);
                let ids = from_f64(&[1.0, 0.0, 1.0], &[3], ids_dtype);
                let expected = base.index_add(&ids, &src, dim).unwrap();
                let got = base
                    .to_device(&device)
                    .unwrap()
                    .index_add(&ids.to_device(&device).unwrap(), &src.to_device(&device).unwrap(), dim)
                    .unwrap();
                let what = format!("index_add {dtype:?} {ids_dtype:?} dim {dim}");
                assert_close(&got, &expected, epsilon(dtype), &what);
            }
        }
    }
}

/// Upstream's CUDA backend applies the offset of the base twice.
#[test]
fn index_add_to_a_narrowed_base() {
    let device = rocm();
    let cpu = tensor(&[5, 3], DType::F32, 9.0);
    let src = tensor(&[2, 3], DType::F32, 4.0);
    let ids = Tensor::new(&[0u32, 2], &Device::Cpu).unwrap();
    let expected = cpu.narrow(0, 2, 3).unwrap().contiguous().unwrap().index_add(&ids, &src, 0).unwrap();
    let gpu = cpu.to_device(&device).unwrap().narrow(0, 2, 3).unwrap();
    let got = gpu.index_add(&ids.to_device(&device).unwrap(), &src.to_device(&device).unwrap(), 0).unwrap();
    assert_close(&got, &expected, 1e-6, "narrowed base");
}

#[test]
fn strided_operands_are_refused_as_on_the_cpu() {
    let device = rocm();
    let gpu = tensor(&[4, 4], DType::F32, 9.0).to_device(&device).unwrap().t().unwrap();
    let ids = Tensor::zeros((4, 4), DType::U32, &device).unwrap();
    let error = gpu.gather(&ids, 0).unwrap_err().to_string();
    assert!(error.contains("gather") && error.contains("contiguous"), "{error}");
}
