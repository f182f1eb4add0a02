use super::fixture::*;
use candle_core::{DType, Device, Tensor};
use std::cmp::Ordering;

/// Compares numbers with NaN larger than all others and both zeros equal.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Returns the indices that sort each row stably.
fn order(t: &Tensor, asc: bool) -> Vec<u32> {
    let columns = *t.dims().last().unwrap();
    let values = to_f64(t);
    let rows = values.chunks_exact(columns).flat_map(|row| {
        let mut order: Vec<u32> = (0..columns as u32).collect();
        order.sort_by(|&i, &j| {
            let ordering = compare(row[i as usize], row[j as usize]);
            if asc {
                ordering
            } else {
                ordering.reverse()
            }
        });
        order
    });
    rows.collect()
}

#[track_caller]
fn assert_sorts(cpu: &Tensor, device: &Device, what: &str) {
    let gpu = cpu.to_device(device).unwrap();
    for asc in [true, false] {
        let expected = order(cpu, asc);
        let got = gpu.arg_sort_last_dim(asc).unwrap();
        assert_eq!((got.dims(), got.dtype()), (cpu.dims(), DType::U32), "{what}");
        let got: Vec<u32> = got.flatten_all().unwrap().to_vec1().unwrap();
        assert!(got == expected, "{what} asc {asc}: first difference at {:?}", {
            got.iter().zip(&expected).position(|(g, e)| g != e)
        });
    }
}

#[test]
fn rows_of_every_dtype_and_length() {
    let device = rocm();
    for dtype in ALL {
        for columns in [1, 2, 3, 31, 64, 100, 128, 129, 1000, 1024, 1025, 2048, 2049, 4096, 4097, 7000] {
            // Many equal values, to test stability.
            let mut values: Vec<f64> = (0..3 * columns).map(|i| ((i * 7919) % 10007 % 60) as f64).collect();
            if !matches!(dtype, DType::U8 | DType::U32) {
                values.iter_mut().step_by(3).for_each(|v| *v = -*v);
            }
            if !dtype.is_int() {
                values.iter_mut().skip(2).step_by(41).for_each(|v| *v = f64::NAN);
                values.iter_mut().skip(5).step_by(53).for_each(|v| *v = f64::INFINITY);
                values.iter_mut().skip(7).step_by(59).for_each(|v| *v = f64::NEG_INFINITY);
            }
            let cpu = from_f64(&values, &[3, columns], dtype);
            assert_sorts(&cpu, &device, &format!("{dtype:?} rows of {columns}"));
        }
    }
}

#[test]
fn long_rows_use_the_radix_sort() {
    let device = rocm();
    for (dtype, columns) in [
        (DType::F32, 100_000),
        (DType::F64, 16_385),
        (DType::U8, 70_001),
        (DType::BF16, 16_384),
        (DType::I32, 600_000),
    ] {
        let cpu = tensor(&[2, columns], dtype, 200.0);
        assert_sorts(&cpu, &device, &format!("{dtype:?} rows of {columns}"));
    }
}

#[test]
fn values_that_differ_only_in_the_last_bit() {
    let device = rocm();
    let longs = [i64::MIN, i64::MAX, -1, 0, 1, (1 << 53) + 1, 1 << 53, i64::MIN + 1, i64::MAX - 1];
    let gpu = Tensor::new(&longs, &device).unwrap();
    let (sorted, _) = gpu.sort_last_dim(true).unwrap();
    let mut expected = longs;
    expected.sort_unstable();
    assert_eq!(sorted.to_vec1::<i64>().unwrap(), expected);
    let (sorted, _) = gpu.sort_last_dim(false).unwrap();
    expected.reverse();
    assert_eq!(sorted.to_vec1::<i64>().unwrap(), expected);
}

#[test]
fn sorted_values_match_their_indices() {
    let device = rocm();
    for columns in [7, 1500] {
        let values: Vec<f32> = (0..3 * columns).map(|i| ((i * 7919) % 10007) as f32).collect();
        let cpu = Tensor::from_vec(values, (3, columns), &Device::Cpu).unwrap();
        let gpu = cpu.to_device(&device).unwrap();
        for asc in [true, false] {
            let (expected, _) = cpu.sort_last_dim(asc).unwrap();
            let (sorted, _) = gpu.sort_last_dim(asc).unwrap();
            assert_close(&sorted, &expected, 0.0, &format!("sort {columns} asc {asc}"));
        }
    }
}

#[test]
fn offsets_and_unsupported_tensors() {
    let device = rocm();
    let cpu = tensor(&[4, 50], DType::F32, 9.0);
    let gpu = cpu.to_device(&device).unwrap();
    let got = gpu.narrow(0, 1, 2).unwrap().arg_sort_last_dim(true).unwrap();
    let expected = order(&cpu.narrow(0, 1, 2).unwrap().contiguous().unwrap(), true);
    assert_eq!(got.flatten_all().unwrap().to_vec1::<u32>().unwrap(), expected);
    let error = gpu.t().unwrap().arg_sort_last_dim(true).unwrap_err().to_string();
    assert!(error.contains("arg_sort_last_dim only supports contiguous tensors"), "{error}");
    let empty = Tensor::zeros((0, 3), DType::F32, &device).unwrap();
    assert_eq!(empty.arg_sort_last_dim(true).unwrap().dims(), [0, 3]);
}
