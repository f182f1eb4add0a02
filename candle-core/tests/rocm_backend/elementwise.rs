use super::fixture::*;
use candle_core::{DType, Device, Result, Tensor};

pub type Unary = fn(&Tensor) -> Result<Tensor>;

/// Name, operation, and true if the result must equal that of the CPU device bit for bit, including signs of zeros.
pub const UNARY: [(&str, Unary, bool); 21] = [
    ("neg", |t| t.neg(), true),
    ("recip", |t| t.recip(), true),
    ("exp", |t| t.exp(), false),
    ("log", |t| t.log(), false),
    ("sin", |t| t.sin(), false),
    ("cos", |t| t.cos(), false),
    ("tanh", |t| t.tanh(), false),
    ("erf", |t| t.erf(), false),
    ("ceil", |t| t.ceil(), true),
    ("floor", |t| t.floor(), true),
    ("round", |t| t.round(), true),
    ("abs", |t| t.abs(), true),
    ("sqr", |t| t.sqr(), true),
    ("sqrt", |t| t.sqrt(), true),
    ("gelu", |t| t.gelu(), false),
    ("gelu_erf", |t| t.gelu_erf(), false),
    ("relu", |t| t.relu(), true),
    ("silu", |t| t.silu(), false),
    ("sign", |t| t.sign(), true),
    ("elu", |t| t.elu(0.7), false),
    ("powf", |t| t.powf(1.7), false),
];

/// Values at which roundings and functions are likely to differ.
const SPECIAL: [f64; 30] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    0.25,
    -0.25,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    -1.5,
    2.5,
    -2.5,
    3.5,
    -3.5,
    3.75,
    -3.75,
    5.0,
    -5.0,
    9.0,
    -9.0,
    448.0,
    -448.0,
    1e-3,
    -1e-3,
    0.015625,
    7.0,
    -7.0,
];

/// Returns a tensor of shape [`DIMS`] with special and ordinary values.
pub fn special_tensor(dtype: DType) -> Tensor {
    let mut values = SPECIAL.to_vec();
    values.extend(numbers(10, 6.0));
    from_f64(&values, &DIMS, dtype)
}

pub fn is_float(dtype: DType) -> bool {
    !dtype.is_int()
}

/// Asserts that elements are equal, including NaN and the signs of zeros.
#[track_caller]
fn assert_identical(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.dims(), expected.dims(), "{what}: shape");
    assert_eq!(got.dtype(), expected.dtype(), "{what}: dtype");
    for (i, (g, e)) in to_f64(got).into_iter().zip(to_f64(expected)).enumerate() {
        let same = (g.is_nan() && e.is_nan()) || (g == e && g.is_sign_negative() == e.is_sign_negative());
        assert!(same, "{what}: element {i} is {g}, expected {e}");
    }
}

#[test]
fn functions_of_floats_follow_every_layout() {
    let device = rocm();
    for dtype in ALL.into_iter().filter(|d| is_float(*d)) {
        let cpu = special_tensor(dtype);
        let gpu = cpu.to_device(&device).unwrap();
        for (name, op, exact) in UNARY {
            for (view_name, view) in VIEWS {
                let expected = op(&view(&cpu).unwrap()).unwrap();
                let got = op(&view(&gpu).unwrap()).unwrap();
                let what = format!("{name} {dtype:?} {view_name}");
                if exact {
                    assert_identical(&got, &expected, &what);
                } else {
                    assert_close(&got, &expected, epsilon(dtype), &what);
                }
            }
        }
    }
}

/// Functions that the CPU device supports for integers.
pub const OF_INTEGERS: [&str; 10] =
    ["abs", "ceil", "floor", "round", "relu", "sign", "gelu", "gelu_erf", "erf", "silu"];

#[test]
fn functions_of_integers() {
    let device = rocm();
    for dtype in ALL.into_iter().filter(|d| d.is_int()) {
        let cpu = tensor(&DIMS, dtype, 100.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (name, op, _) in UNARY {
            if !OF_INTEGERS.contains(&name) {
                let error = op(&gpu).unwrap_err().to_string();
                assert!(error.contains(&format!("unsupported dtype {dtype:?} for op {name}")), "{error}");
                continue;
            }
            for (view_name, view) in VIEWS {
                let expected = op(&view(&cpu).unwrap()).unwrap();
                let got = op(&view(&gpu).unwrap()).unwrap();
                assert_identical(&got, &expected, &format!("{name} {dtype:?} {view_name}"));
            }
        }
    }
    // The lowest value has no positive counterpart.
    let lowest = Tensor::new(&[i16::MIN, 5], &device).unwrap();
    assert_eq!(lowest.abs().unwrap().to_vec1::<i16>().unwrap(), [i16::MIN, 5]);
    let lowest = Tensor::new(&[i64::MIN, -5], &device).unwrap();
    assert_eq!(lowest.abs().unwrap().to_vec1::<i64>().unwrap(), [i64::MIN, 5]);
}

#[test]
fn affine_rounds_as_the_cpu_does() {
    let device = rocm();
    for dtype in ALL {
        let cpu = if is_float(dtype) { special_tensor(dtype) } else { tensor(&DIMS, dtype, 60.0) };
        let gpu = cpu.to_device(&device).unwrap();
        for (mul, add) in [(3.0, 2.0), (0.3, -1.1), (-1.0, 0.0), (1e9, 1e9)] {
            for (view_name, view) in VIEWS {
                let expected = view(&cpu).unwrap().affine(mul, add).unwrap();
                let got = view(&gpu).unwrap().affine(mul, add).unwrap();
                assert_identical(&got, &expected, &format!("* {mul} + {add} {dtype:?} {view_name}"));
            }
        }
    }
}

pub type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

pub const BINARY: [(&str, Binary); 6] = [
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
    for dtype in ALL {
        // Sums and products of integers overflow; no integer divisor is 0.
        let (lhs, rhs) = if is_float(dtype) {
            (special_tensor(dtype), special_tensor(dtype).transpose(0, 2).unwrap().reshape(&DIMS).unwrap())
        } else {
            let ones = tensor(&DIMS, DType::F64, 0.0).affine(0.0, 1.0).unwrap().to_dtype(dtype).unwrap();
            let odd = tensor(&DIMS, dtype, 100.0).affine(2.0, 0.0).unwrap();
            (tensor(&DIMS, dtype, 30_000.0), (odd + ones).unwrap())
        };
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
                    assert_identical(&got, &expected, &what);
                }
            }
            let what = format!("{name} {dtype:?} with a row");
            assert_identical(&op(&gpu_lhs, &gpu_row).unwrap(), &op(&lhs, &row).unwrap(), &what);
        }
    }
}

#[test]
fn extrema_of_two_keep_a_nan_on_the_left() {
    let device = rocm();
    for dtype in ALL.into_iter().filter(|d| is_float(*d)) {
        let lhs = from_f64(&[f64::NAN, 1.0, f64::NAN, -0.0, 0.0], &[5], dtype).to_device(&device).unwrap();
        let rhs = from_f64(&[1.0, f64::NAN, f64::NAN, 0.0, -0.0], &[5], dtype).to_device(&device).unwrap();
        for got in [lhs.maximum(&rhs).unwrap(), lhs.minimum(&rhs).unwrap()] {
            let got = to_f64(&got);
            let nans: Vec<bool> = got.iter().map(|v| v.is_nan()).collect();
            assert_eq!(nans, [true, false, true, false, false], "{dtype:?}");
            assert_eq!(got[1], 1.0, "{dtype:?}");
            assert_eq!([got[3].is_sign_negative(), got[4].is_sign_negative()], [true, false], "{dtype:?}");
        }
    }
}

#[test]
fn comparisons_return_u8() {
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
    for dtype in ALL {
        let mut values: Vec<f64> = (0..40).map(|i| f64::from(i % 7)).collect();
        let mut others: Vec<f64> = (0..40).map(|i| f64::from(i % 5)).collect();
        if is_float(dtype) {
            values[..6].copy_from_slice(&[f64::NAN, 1.0, f64::NAN, -0.0, f64::INFINITY, f64::NEG_INFINITY]);
            others[..6].copy_from_slice(&[1.0, f64::NAN, f64::NAN, 0.0, f64::INFINITY, 3.0]);
        }
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
fn where_selects_from_both_operands() {
    let device = rocm();
    for condition in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let bits: Vec<f64> = (0..40).map(|i| f64::from((i * i) % 3)).collect();
        let cond = from_f64(&bits, &DIMS, condition);
        let gpu_cond = cond.to_device(&device).unwrap();
        for dtype in ALL {
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

/// Casts truncate toward zero and saturate at the range of the integer.
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
    type Op = fn(&Tensor) -> Result<Tensor>;
    let ops: [(&str, Op); 10] = [
        ("abs", |t| t.abs()),
        ("erf", |t| t.erf()),
        ("affine", |t| t.affine(2.0, 1.0)),
        ("add", |t| t + t),
        ("maximum", |t| t.maximum(t)),
        ("le", |t| t.le(t)),
        ("where", |t| t.to_dtype(DType::U8)?.where_cond(t, t)),
        ("cast", |t| t.to_dtype(DType::F16)),
        ("transposed copy", |t| t.t()?.contiguous()),
        ("copy", |t| t.copy()),
    ];
    for dtype in ALL {
        for dims in [&[0usize, 3][..], &[3, 0], &[2, 0, 4]] {
            let cpu = Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
            let gpu = cpu.to_device(&device).unwrap();
            for (name, op) in ops {
                assert_identical(
                    &op(&gpu).unwrap(),
                    &op(&cpu).unwrap(),
                    &format!("{name} {dtype:?} {dims:?}"),
                );
            }
        }
    }
}

#[test]
fn scalars_and_many_dims() {
    let device = rocm();
    for dtype in ALL {
        for dims in [&[][..], &[1], &[2, 1, 3, 2, 2], &[2, 2, 2, 2, 2, 2, 3]] {
            let cpu = tensor(dims, dtype, 7.0);
            let gpu = cpu.to_device(&device).unwrap();
            let what = format!("{dtype:?} {dims:?}");
            let last = dims.len().saturating_sub(1);
            // After these transpositions, only few dims can be merged.
            let view = |t: &Tensor| t.transpose(0, last).unwrap().transpose(0, last / 2).unwrap();
            let (c, g) = if dims.is_empty() { (cpu, gpu) } else { (view(&cpu), view(&gpu)) };
            assert_identical(&g.abs().unwrap(), &c.abs().unwrap(), &format!("abs {what}"));
            assert_identical(&(&g + &g).unwrap(), &(&c + &c).unwrap(), &format!("add {what}"));
            assert_identical(&g.maximum(&g).unwrap(), &c.maximum(&c).unwrap(), &format!("maximum {what}"));
            assert_identical(
                &g.affine(2.0, 1.0).unwrap(),
                &c.affine(2.0, 1.0).unwrap(),
                &format!("affine {what}"),
            );
            assert_identical(&g.le(&g).unwrap(), &c.le(&c).unwrap(), &format!("le {what}"));
            assert_identical(&g.contiguous().unwrap(), &c.contiguous().unwrap(), &format!("copy {what}"));
        }
    }
}

/// Vector loads of the kernels start at 16-byte boundaries and end at multiples of 2 to 16 elements.
#[test]
fn lengths_and_offsets_around_the_vector_paths() {
    let device = rocm();
    for dtype in ALL {
        let cpu = tensor(&[600], dtype, 5.0);
        let gpu = cpu.to_device(&device).unwrap();
        for (start, len) in [(0, 1), (0, 3), (0, 4), (0, 9), (1, 8), (4, 16), (16, 33), (3, 257), (0, 600)] {
            let (c, g) = (cpu.narrow(0, start, len).unwrap(), gpu.narrow(0, start, len).unwrap());
            let what = format!("{dtype:?} {start} {len}");
            assert_identical(&(&g + &g).unwrap(), &(&c + &c).unwrap(), &format!("add {what}"));
            assert_identical(&g.relu().unwrap(), &c.relu().unwrap(), &format!("relu {what}"));
            assert_identical(&g.copy().unwrap(), &c, &format!("copy {what}"));
            let joined = Tensor::cat(&[&g, &g], 0).unwrap();
            assert_identical(&joined, &Tensor::cat(&[&c, &c], 0).unwrap(), &format!("cat {what}"));
        }
    }
}

/// Clamps to scalars take one kernel; all dtypes, NaN and limits in the wrong order are as on the CPU device.
#[test]
fn clamps_to_scalars() {
    let device = rocm();
    for dtype in ALL {
        let cpu = special_tensor(dtype);
        let gpu = cpu.to_device(&device).unwrap();
        for (low, high) in [(-1.5, 3.0), (3.0, 1.0), (f64::NAN, 2.0), (0.0, f64::INFINITY)] {
            let expected = cpu.clamp(low, high).unwrap();
            assert_identical(&gpu.clamp(low, high).unwrap(), &expected, &format!("{dtype:?} {low} {high}"));
            let (gpu, cpu) = (gpu.t().unwrap(), cpu.t().unwrap());
            let expected = cpu.clamp(low, high).unwrap();
            assert_identical(&gpu.clamp(low, high).unwrap(), &expected, &format!("t {dtype:?} {low} {high}"));
        }
    }
    let large = Tensor::new(&[i64::MIN, (1 << 53) + 1, i64::MAX], &Device::Cpu).unwrap();
    let limits = (-(1i64 << 53) - 1, (1i64 << 53) + 3);
    let got = large.to_device(&device).unwrap().clamp(limits.0, limits.1).unwrap();
    assert_identical(&got, &large.clamp(limits.0, limits.1).unwrap(), "i64");
    let var = candle_core::Var::from_tensor(&Tensor::new(&[0.5f32, 2.0], &device).unwrap()).unwrap();
    let gradients = var.clamp(0f32, 1f32).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get(&var).unwrap().to_vec1::<f32>().unwrap(), [1.0, 0.0]);
}

/// Rows that are not whole packs: broadcast, narrowed, strided and transposed operands of odd sizes.
#[test]
fn odd_rows() {
    let device = rocm();
    for dtype in ALL {
        let x = tensor(&[3, 5, 37], dtype, 60.0);
        let others = [
            tensor(&[3, 1, 37], dtype, 7.0),
            tensor(&[1, 5, 1], dtype, 7.0),
            tensor(&[1, 1, 1], dtype, 7.0),
            tensor(&[3, 37, 5], dtype, 7.0).transpose(1, 2).unwrap(),
            tensor(&[3, 5, 41], dtype, 7.0).narrow(2, 3, 37).unwrap(),
        ];
        for (number, other) in others.iter().enumerate() {
            let [gpu_x, gpu_other] = [&x, other].map(|t| t.to_device(&device).unwrap());
            // Uploads are dense, so the view is made again.
            let gpu_other = match number {
                3 => gpu_other.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap(),
                4 => other
                    .pad_with_zeros(2, 3, 1)
                    .unwrap()
                    .to_device(&device)
                    .unwrap()
                    .narrow(2, 3, 37)
                    .unwrap(),
                _ => gpu_other,
            };
            let what = format!("{dtype:?} {number}");
            let expected = x.broadcast_maximum(other).unwrap();
            assert_identical(&gpu_x.broadcast_maximum(&gpu_other).unwrap(), &expected, &what);
            let wide = other.broadcast_as(x.shape()).unwrap().affine(1.0, 0.0).unwrap();
            let got = gpu_other.broadcast_as(x.shape()).unwrap().affine(1.0, 0.0).unwrap();
            assert_identical(&got, &wide, &what);
        }
    }
}

/// Large transposed operands are copied first.
#[test]
fn large_transposed_operands() {
    let device = rocm();
    let (x, y) = (tensor(&[520, 519], DType::F32, 60.0), tensor(&[519, 520], DType::F32, 7.0));
    let [gpu_x, gpu_y] = [&x, &y].map(|t| t.to_device(&device).unwrap());
    let got = (gpu_x.t().unwrap() + &gpu_y).unwrap();
    assert_identical(&got, &(x.t().unwrap() + &y).unwrap(), "transposed + dense");
    let got = gpu_y.t().unwrap().affine(2.0, 1.0).unwrap();
    assert_identical(&got, &y.t().unwrap().affine(2.0, 1.0).unwrap(), "affine of transposed");
}
