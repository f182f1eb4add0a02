use super::fixture::*;
use candle_core::{DType, Device, Result, Tensor};

type Unary = fn(&Tensor) -> Result<Tensor>;

const UNARY: [(&str, Unary); 21] = [
    ("neg", |t| t.neg()),
    ("recip", |t| (t + 7.0)?.recip()),
    ("exp", |t| t.exp()),
    ("log", |t| t.abs()?.log()),
    ("sin", |t| t.sin()),
    ("cos", |t| t.cos()),
    ("tanh", |t| t.tanh()),
    ("erf", |t| t.erf()),
    ("ceil", |t| t.ceil()),
    ("floor", |t| t.floor()),
    ("round", |t| t.round()),
    ("abs", |t| t.abs()),
    ("sqr", |t| t.sqr()),
    ("sqrt", |t| t.abs()?.sqrt()),
    ("gelu", |t| t.gelu()),
    ("gelu_erf", |t| t.gelu_erf()),
    ("relu", |t| t.relu()),
    ("silu", |t| t.silu()),
    ("sign", |t| t.sign()),
    ("elu", |t| t.elu(0.7)),
    ("powf", |t| (t.abs()? + 0.5)?.powf(1.7)),
];

/// The reference is computed in f64 from the rounded input: the CPU's own half-precision results are rounded twice.
fn in_f64(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F64).unwrap()
}

#[test]
fn unary_operations_follow_every_layout() {
    let device = rocm();
    for dtype in FLOATS {
        let cpu = tensor(&DIMS, dtype, 3.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (name, op) in UNARY {
            for (view_name, view) in VIEWS {
                let expected = op(&in_f64(&view(&cpu).unwrap())).unwrap();
                let got = op(&view(&gpu).unwrap()).unwrap();
                assert_eq!(got.dtype(), dtype);
                // Intermediate values are rounded to the dtype as well; powers and exponentials amplify that.
                let tolerance = epsilon(dtype) * 8.0;
                assert_close(&got, &expected, tolerance, &format!("{name} {dtype:?} {view_name}"));
            }
        }
    }
}

#[test]
fn affine_works_on_numbers_of_all_kinds() {
    let device = rocm();
    for dtype in ALL.into_iter().filter(|d| *d != DType::F8E4M3) {
        let cpu = tensor(&DIMS, dtype, 20.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (view_name, view) in VIEWS {
            let expected = view(&cpu).unwrap().affine(3.0, 2.0).unwrap();
            let got = view(&gpu).unwrap().affine(3.0, 2.0).unwrap();
            assert_close(&got, &expected, 4.0 * epsilon(dtype), &format!("affine {dtype:?} {view_name}"));
        }
    }
}

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const BINARY: [(&str, Binary); 6] = [
    ("add", |a, b| a.broadcast_add(b)),
    ("sub", |a, b| a.broadcast_sub(b)),
    ("mul", |a, b| a.broadcast_mul(b)),
    ("div", |a, b| a.broadcast_div(b)),
    ("maximum", |a, b| a.broadcast_maximum(b)),
    ("minimum", |a, b| a.broadcast_minimum(b)),
];

#[test]
fn binary_operations_follow_every_layout() {
    let device = rocm();
    for dtype in [DType::U8, DType::U32, DType::I64, DType::F32, DType::F64, DType::F16, DType::BF16] {
        // Larger on the left so that unsigned differences stay positive, and no divisor is 0.
        let lhs = (tensor(&DIMS, DType::F64, 9.0).abs().unwrap() + 20.0).unwrap().to_dtype(dtype).unwrap();
        let rhs = (tensor(&DIMS, DType::F64, 8.0).abs().unwrap() + 1.0).unwrap().to_dtype(dtype).unwrap();
        let row = rhs.narrow(0, 0, 1).unwrap().narrow(1, 0, 1).unwrap().contiguous().unwrap();
        let (gpu_lhs, gpu_rhs) = (lhs.to_device(&device).unwrap(), rhs.to_device(&device).unwrap());
        let gpu_row = row.to_device(&device).unwrap();
        for (name, op) in BINARY {
            for (left_name, left) in VIEWS {
                for (right_name, right) in VIEWS {
                    let (l, r) = (left(&lhs).unwrap(), right(&rhs).unwrap());
                    if l.dims() != r.dims() {
                        continue;
                    }
                    let expected = op(&l, &r).unwrap();
                    let got = op(&left(&gpu_lhs).unwrap(), &right(&gpu_rhs).unwrap()).unwrap();
                    let what = format!("{name} {dtype:?} {left_name} with {right_name}");
                    assert_close(&got, &expected, epsilon(dtype), &what);
                }
            }
            let got = op(&gpu_lhs, &gpu_row).unwrap();
            assert_close(
                &got,
                &op(&lhs, &row).unwrap(),
                epsilon(dtype),
                &format!("{name} {dtype:?} with a row"),
            );
        }
    }
}

#[test]
fn comparisons_give_bytes() {
    let device = rocm();
    type Compare = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let compare: [(&str, Compare); 6] = [
        ("eq", |a, b| a.eq(b)),
        ("ne", |a, b| a.ne(b)),
        ("lt", |a, b| a.lt(b)),
        ("le", |a, b| a.le(b)),
        ("gt", |a, b| a.gt(b)),
        ("ge", |a, b| a.ge(b)),
    ];
    for dtype in [DType::U8, DType::U32, DType::I64, DType::F32, DType::F64, DType::F16, DType::BF16] {
        let values: Vec<f64> = (0..40).map(|i| f64::from(i % 7)).collect();
        let others: Vec<f64> = (0..40).map(|i| f64::from(i % 5)).collect();
        let (lhs, rhs) = (from_f64(&values, &DIMS, dtype), from_f64(&others, &DIMS, dtype));
        let (gpu_lhs, gpu_rhs) = (lhs.to_device(&device).unwrap(), rhs.to_device(&device).unwrap());
        for (name, op) in compare {
            for (view_name, view) in VIEWS {
                let expected = op(&view(&lhs).unwrap(), &view(&rhs).unwrap()).unwrap();
                let got = op(&view(&gpu_lhs).unwrap(), &view(&gpu_rhs).unwrap()).unwrap();
                assert_eq!(got.dtype(), DType::U8);
                assert_close(&got, &expected, 0.0, &format!("{name} {dtype:?} {view_name}"));
            }
        }
    }
}

#[test]
fn where_takes_from_either_side() {
    let device = rocm();
    for condition in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let bits: Vec<f64> = (0..40).map(|i| f64::from((i * i) % 3)).collect();
        let cond = from_f64(&bits, &DIMS, condition);
        let gpu_cond = cond.to_device(&device).unwrap();
        for dtype in ALL.into_iter().filter(|d| *d != DType::F8E4M3) {
            let (on_true, on_false) = (tensor(&DIMS, dtype, 50.0), tensor(&DIMS, dtype, 9.0));
            let (gpu_true, gpu_false) =
                (on_true.to_device(&device).unwrap(), on_false.to_device(&device).unwrap());
            for (view_name, view) in VIEWS {
                let v = |t: &Tensor| view(t).unwrap();
                let expected = v(&cond).where_cond(&v(&on_true), &v(&on_false)).unwrap();
                let got = v(&gpu_cond).where_cond(&v(&gpu_true), &v(&gpu_false)).unwrap();
                assert_close(&got, &expected, 0.0, &format!("where {condition:?} {dtype:?} {view_name}"));
            }
        }
    }
}

#[test]
fn casts_between_all_dtypes() {
    let device = rocm();
    // Small integers: exact in every dtype.
    let values: Vec<f64> = (0..40).map(|i| f64::from(i * 2 / 5)).collect();
    for from in ALL {
        let cpu = from_f64(&values, &DIMS, from);
        let gpu = cpu.to_device(&device).unwrap();
        for to in ALL {
            for (view_name, view) in VIEWS {
                let got = view(&gpu).unwrap().to_dtype(to).unwrap();
                assert_eq!(got.dtype(), to);
                let expected = to_f64(&view(&cpu).unwrap());
                let what = format!("{from:?} to {to:?} {view_name}");
                assert_close_values(&to_f64(&got), &expected, 0.0, &what);
            }
        }
    }
}

/// Towards zero, and to the nearest value that the integer can hold.
#[test]
fn casts_from_floats_to_integers() {
    let device = rocm();
    let values = [-1e10f32, -300.5, -1.9, -0.5, 0.5, 1.9, 300.5, 70_000.5, 1e10, f32::INFINITY, f32::NAN];
    let gpu = Tensor::new(&values, &device).unwrap();
    let got = gpu.to_dtype(DType::U8).unwrap().to_vec1::<u8>().unwrap();
    assert_eq!(got, values.map(|v| v as u8));
    let got = gpu.to_dtype(DType::U32).unwrap().to_vec1::<u32>().unwrap();
    assert_eq!(got, values.map(|v| v as u32));
    let got = gpu.to_dtype(DType::I64).unwrap().to_vec1::<i64>().unwrap();
    assert_eq!(got, values.map(|v| v as i64));
    let got = gpu.to_dtype(DType::I16).unwrap().to_vec1::<i16>().unwrap();
    assert_eq!(got, values.map(|v| v as i16));
}

#[test]
fn casts_to_narrow_floats_round_as_the_cpu_does() {
    let device = rocm();
    for from in [DType::F32, DType::F64] {
        let cpu = tensor(&[257], from, 300.0);
        let gpu = cpu.to_device(&device).unwrap();
        for to in [DType::F16, DType::BF16, DType::F32] {
            let expected = cpu.to_dtype(to).unwrap();
            assert_close(&gpu.to_dtype(to).unwrap(), &expected, 0.0, &format!("{from:?} to {to:?}"));
        }
    }
}

#[test]
fn empty_tensors_stay_empty() {
    let device = rocm();
    let empty = Tensor::zeros((0, 3), DType::F32, &device).unwrap();
    assert_eq!(empty.exp().unwrap().dims(), [0, 3]);
    assert_eq!((&empty + &empty).unwrap().dims(), [0, 3]);
    assert_eq!(empty.affine(2.0, 1.0).unwrap().to_device(&Device::Cpu).unwrap().dims(), [0, 3]);
}

/// The vector paths of the kernels start at 16-byte boundaries and end at multiples of 4 or 8 elements.
#[test]
fn lengths_and_offsets_around_the_vector_paths() {
    let device = rocm();
    for dtype in [DType::F32, DType::BF16] {
        let cpu = tensor(&[600], dtype, 5.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (start, len) in [(0, 3), (0, 4), (0, 9), (1, 8), (4, 16), (3, 257), (0, 600)] {
            let (c, g) = (cpu.narrow(0, start, len).unwrap(), gpu.narrow(0, start, len).unwrap());
            let expected = (in_f64(&c) + in_f64(&c)).unwrap();
            assert_close(
                &(&g + &g).unwrap(),
                &expected,
                epsilon(dtype),
                &format!("add {dtype:?} {start} {len}"),
            );
            let expected = in_f64(&c).silu().unwrap();
            assert_close(
                &g.silu().unwrap(),
                &expected,
                4.0 * epsilon(dtype),
                &format!("silu {dtype:?} {start} {len}"),
            );
        }
    }
}
