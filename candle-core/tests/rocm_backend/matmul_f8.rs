//! Products of f8e4m3 on tiles. Their sums are exact in f32 here, so that the only rounding is that of the result.
use super::fixture::*;
use super::matmul::{product, OPERAND_LAYOUTS};
use candle_core::rocm::matmul_f8;
use candle_core::{DType, Device, Tensor};

const F8: DType = DType::F8E4M3;

/// Rounds sums to f8e4m3.
fn rounded(sums: &[f64]) -> Vec<f64> {
    to_f64(&from_f64(sums, &[sums.len()], F8))
}

#[test]
fn products_of_all_layouts_are_rounded_once() {
    let device = rocm();
    for (b, m, n, k) in
        [(1, 3, 4, 5), (3, 4, 5, 6), (2, 1, 5, 33), (2, 4, 1, 3), (1, 70, 67, 130), (1, 16, 5, 64)]
    {
        for (left_name, left) in OPERAND_LAYOUTS {
            for (right_name, right) in OPERAND_LAYOUTS {
                let (lhs, rhs) =
                    (left(&[b, m, k], F8, &device).unwrap(), right(&[b, k, n], F8, &device).unwrap());
                let got = matmul_f8(&lhs, &rhs).unwrap();
                assert_eq!((got.dims(), got.dtype()), (&[b, m, n][..], F8));
                let what = format!("({b}, {m}, {n}, {k}) {left_name} by {right_name}");
                assert_eq!(to_f64(&got), rounded(&product(&lhs, &rhs)), "{what}");
            }
        }
    }
}

#[test]
fn large_tiles_and_broadcast_batches() {
    let device = rocm();
    let of = |dims: &[usize]| tensor(dims, F8, 0.5).to_device(&device).unwrap();
    let (lhs, rhs) = (of(&[130, 4, 40]), of(&[1, 4, 40, 9]));
    let lhs = lhs.transpose(0, 1).unwrap().unsqueeze(0).unwrap();
    let got = matmul_f8(&lhs, &rhs).unwrap();
    assert_eq!(got.dims(), [1, 4, 130, 9]);
    let sums = product(&lhs.squeeze(0).unwrap(), &rhs.squeeze(0).unwrap());
    assert_eq!(to_f64(&got), rounded(&sums));
    // Enough tiles of 128 for every multiprocessor.
    let many = of(&[1, 65, 8]).broadcast_as((600, 65, 8)).unwrap();
    let right = of(&[1, 8, 66]).broadcast_as((600, 8, 66)).unwrap();
    let got = matmul_f8(&many, &right).unwrap();
    let one = rounded(&product(&many.narrow(0, 0, 1).unwrap(), &right.narrow(0, 0, 1).unwrap()));
    assert!(to_f64(&got).chunks(65 * 66).all(|product| product == one));
}

#[test]
fn sums_beyond_the_largest_number_and_empty_sums() {
    let device = rocm();
    let of = |value: f64, dims: &[usize]| {
        from_f64(&vec![value; dims.iter().product()], dims, F8).to_device(&device).unwrap()
    };
    let got = matmul_f8(&of(32.0, &[1, 2, 20]), &of(-8.0, &[1, 20, 3])).unwrap();
    assert_eq!(to_f64(&got), [-448.0; 6]);
    let got = matmul_f8(&of(1.0, &[2, 0]), &of(1.0, &[0, 3])).unwrap();
    assert_eq!((got.dims(), to_f64(&got)), (&[2, 3][..], vec![0.0; 6]));
    assert_eq!(matmul_f8(&of(1.0, &[0, 4]), &of(1.0, &[4, 3])).unwrap().dims(), [0, 3]);
}

#[test]
fn unsupported_operands_are_errors() {
    let device = rocm();
    let of = |dims: &[usize], dtype, device: &Device| tensor(dims, dtype, 1.0).to_device(device).unwrap();
    let f8 = of(&[2, 2], F8, &device);
    let refused = |lhs: &Tensor, rhs: &Tensor, why: &str| {
        let error = matmul_f8(lhs, rhs).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(&f8, &of(&[2, 2], DType::F16, &device), "unsupported dtype F16 for op matmul_f8");
    refused(&f8, &of(&[3, 2], F8, &device), "shape mismatch in matmul");
    refused(&f8, &of(&[1, 2, 2], F8, &device), "shape mismatch in matmul");
    refused(&f8, &of(&[2], F8, &device), "at least 2 dimensions");
    let on_cpu = of(&[2, 2], F8, &Device::Cpu);
    refused(&f8, &on_cpu, "device mismatch in matmul_f8");
    refused(&on_cpu, &on_cpu, "on a ROCm device");
    // Candle's `matmul` returns the same error on both devices.
    assert_same_error(f8.matmul(&f8), on_cpu.matmul(&on_cpu), "f8e4m3");
}
