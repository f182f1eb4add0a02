//! Operations on tensors with more elements than fit into one launch, compared with the CPU device. The limit is lowered,
//! so that small tensors are split like tensors above 2^31 elements.
#![cfg(feature = "rocm-emulator")]

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "rocm_backend/fixture.rs"]
mod fixture;

use candle_core::rocm::set_launch_limit;
use candle_core::{DType, Device, Result, Tensor, D};
use fixture::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serializes the tests, since the limit applies to the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Guard of the launch limit, which is reset on drop.
struct Limit<'a>(#[allow(dead_code, reason = "held, not read")] MutexGuard<'a, ()>);

impl Limit<'_> {
    fn lock() -> Self {
        Self(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, elements: usize) {
        set_launch_limit(Some(elements));
    }
}

impl Drop for Limit<'_> {
    fn drop(&mut self) {
        set_launch_limit(None);
    }
}

const LIMITS: [usize; 6] = [1, 7, 16, 50, 97, 1000];
const SIZES: [usize; 3] = [3, 6, 11];

/// An operation on two tensors of the same three dims.
type Op = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Dtypes that an operation supports, and whether it may fail if one row or image exceeds the limit.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Everything,
    Floats,
    /// All dtypes; may fail if a row or an image exceeds the limit.
    Rows,
    /// Floats; may fail if a row or an image exceeds the limit.
    FloatRows,
}
use Takes::{Everything, FloatRows, Floats, Rows};

/// Returns indices along a dim of `size`, in the shape of `x`.
fn ids_like(x: &Tensor, size: usize) -> Result<Tensor> {
    let ids: Vec<u32> = (0..x.elem_count()).map(|i| (i * 7 % size) as u32).collect();
    Tensor::from_vec(ids, x.shape(), x.device())
}

fn ids(values: &[u32], x: &Tensor) -> Result<Tensor> {
    Tensor::new(values, x.device())
}

/// Returns weights with the dtype and device of `x`.
fn weights(dims: &[usize], x: &Tensor) -> Result<Tensor> {
    tensor(dims, x.dtype(), 1.0).to_device(x.device())
}

/// Applies `write` to a copy of `x` and returns it.
fn written(x: &Tensor, write: impl Fn(&Tensor) -> Result<()>) -> Result<Tensor> {
    let copy = x.force_contiguous()?;
    write(&copy)?;
    Ok(copy)
}

/// All operations. Indices of extrema are u32, so that reductions to them may fail above the limit.
const OPS: [(&str, Takes, Op); 55] = [
    ("exp", Floats, |x, _| x.exp()),
    ("neg", Floats, |x, _| x.neg()),
    ("gelu", Floats, |x, _| x.gelu()),
    ("relu", Everything, |x, _| x.relu()),
    ("floor", Everything, |x, _| x.floor()),
    ("erf, which is 0 for integers", Everything, |x, _| x.erf()),
    ("powf", Floats, |x, _| x.powf(2.0)),
    ("elu", Floats, |x, _| x.elu(0.5)),
    ("affine", Everything, |x, _| x.affine(2.0, 3.0)),
    ("add", Everything, |x, y| x + y),
    ("mul", Everything, |x, y| x * y),
    ("div", Floats, |x, y| x / (y.abs()? + 1.0)?),
    ("minimum", Everything, |x, y| x.minimum(y)),
    ("eq", Everything, |x, y| x.eq(y)),
    ("lt", Everything, |x, y| x.lt(y)),
    ("where", Everything, |x, y| x.ge(y)?.where_cond(x, y)),
    ("to f32", Everything, |x, _| x.to_dtype(DType::F32)),
    ("to f16", Everything, |x, _| x.to_dtype(DType::F16)),
    ("to u8", Everything, |x, _| x.abs()?.to_dtype(DType::U8)),
    ("to i64", Everything, |x, _| x.to_dtype(DType::I64)),
    ("contiguous", Everything, |x, _| x.force_contiguous()),
    ("copy", Everything, |x, _| x.copy()),
    ("cat 0", Everything, |x, y| Tensor::cat(&[x, y, x], 0)),
    ("cat 1", Everything, |x, y| Tensor::cat(&[x, y, x], 1)),
    ("cat 2", Everything, |x, y| Tensor::cat(&[x, y, x], 2)),
    ("slice_set", Everything, |x, y| {
        let part = y.narrow(1, 0, 1)?.contiguous()?;
        written(x, |t| t.slice_set(&part, 1, 1))
    }),
    ("one_set", Everything, |x, _| written(x, |t| t.one_set())),
    ("zero_set of a view", Everything, |x, _| written(x, |t| t.narrow(2, 1, 2)?.transpose(0, 2)?.zero_set())),
    ("sum 0", Everything, |x, _| x.sum(0)),
    ("sum 1", Everything, |x, _| x.sum_keepdim(1)),
    ("sum 2", Everything, |x, _| x.sum(2)),
    ("sum 0 2", Rows, |x, _| x.sum((0, 2))),
    ("sum all", Rows, |x, _| x.sum_all()),
    ("sum of one dim", Everything, |x, _| x.flatten_all()?.sum(0)),
    ("min", Rows, |x, _| x.min(1)),
    ("max", Rows, |x, _| x.max_keepdim(0)),
    ("max all", Rows, |x, _| x.max_all()),
    ("argmin", Rows, |x, _| x.argmin(2)),
    ("argmax", Rows, |x, _| x.argmax(1)),
    ("argmax of one dim", Rows, |x, _| x.flatten_all()?.argmax(0)),
    ("index_select 0", Rows, |x, _| x.contiguous()?.index_select(&ids(&[0, 0], x)?, 0)),
    ("index_select 1", Rows, |x, _| x.contiguous()?.index_select(&ids(&[1, 0, 1, 1, 0], x)?, 1)),
    ("index_select 2", Everything, |x, _| {
        let every_second = ids(&[2, 9, 0, 9, 1, 9, 2, 9], x)?.reshape((4, 2))?.narrow(1, 0, 1)?.squeeze(1)?;
        x.contiguous()?.index_select(&every_second, 2)
    }),
    ("gather", Rows, |x, _| x.contiguous()?.gather(&ids_like(x, 2)?, 1)),
    ("scatter", Rows, |x, y| x.contiguous()?.scatter(&ids_like(x, 3)?, &y.contiguous()?, 2)),
    ("scatter_add", Rows, |x, y| x.contiguous()?.scatter_add(&ids_like(x, 2)?, &y.contiguous()?, 1)),
    ("index_add", Rows, |x, y| {
        let source = y.contiguous()?.narrow(1, 0, 2)?.contiguous()?;
        x.contiguous()?.index_add(&ids(&[1, 0], x)?, &source, 1)
    }),
    ("conv2d, unfolded", FloatRows, |x, _| x.unsqueeze(1)?.conv2d(&weights(&[5, 1, 3, 3], x)?, 1, 1, 1, 1)),
    ("conv2d, direct", FloatRows, |x, _| x.unsqueeze(1)?.conv2d(&weights(&[2, 1, 3, 3], x)?, 1, 2, 1, 1)),
    ("conv_transpose2d", FloatRows, |x, _| {
        x.unsqueeze(1)?.conv_transpose2d(&weights(&[1, 2, 2, 2], x)?, 0, 0, 2, 1)
    }),
    ("avg_pool2d", FloatRows, |x, _| x.unsqueeze(1)?.avg_pool2d(2)),
    ("max_pool2d", Rows, |x, _| x.unsqueeze(1)?.max_pool2d(2)),
    ("upsample_nearest2d", Rows, |x, _| x.unsqueeze(1)?.upsample_nearest2d(5, 7)),
    ("upsample_bilinear2d", FloatRows, |x, _| x.unsqueeze(1)?.upsample_bilinear2d(5, 7, false)),
    ("argsort", Rows, |x, _| x.contiguous()?.arg_sort_last_dim(false)),
];

impl Takes {
    fn supports(self, dtype: DType) -> bool {
        !dtype.is_int() || matches!(self, Everything | Rows)
    }

    fn may_fail(self) -> bool {
        matches!(self, Rows | FloatRows)
    }
}

/// Returns the tolerance of an operation. Indices and copied elements are compared exactly.
fn tolerance_of(name: &str, dtype: DType) -> f64 {
    let moves =
        ["to ", "contiguous", "copy", "cat", "slice_set", "set", "arg", "index_select", "gather", "scatter"];
    match moves.iter().any(|start| name.starts_with(start)) && name != "scatter_add" {
        true => 0.0,
        false => 4.0 * epsilon(dtype),
    }
}

/// Asserts that the error names the limit.
#[track_caller]
fn assert_names_the_limit(error: &candle_core::Error, limit: usize, what: &str) {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    assert!(text.contains("elements") && text.contains(&limit.to_string()), "{what}: {text}");
}

#[test]
fn every_operation_is_correct_if_split() {
    let (limit, device) = (Limit::lock(), rocm());
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let (x, y) = (tensor(&SIZES, dtype, 2.0), tensor(&SIZES, dtype, 1.2));
        let y = y.transpose(0, 2).unwrap().reshape(&SIZES).unwrap();
        let (gpu_x, gpu_y) = (x.to_device(&device).unwrap(), y.to_device(&device).unwrap());
        for (name, _, op) in OPS.iter().filter(|(_, takes, _)| takes.supports(dtype)) {
            for (view_name, view) in VIEWS {
                let expected = op(&view(&x).unwrap(), &view(&y).unwrap());
                let expected = expected.unwrap_or_else(|e| panic!("{name} {dtype:?} {view_name}: {e}"));
                for elements in LIMITS {
                    let what = format!("{name} {dtype:?} {view_name}, {elements} elements a launch");
                    limit.set(elements);
                    let got = op(&view(&gpu_x).unwrap(), &view(&gpu_y).unwrap());
                    // The comparison must not be split.
                    set_launch_limit(None);
                    match got {
                        Ok(got) => assert_close(&got, &expected, tolerance_of(name, dtype), &what),
                        Err(error) => {
                            let may_fail = OPS.iter().any(|(n, takes, _)| n == name && takes.may_fail());
                            assert!(may_fail && elements < 1000, "{what}: {error}");
                            assert_names_the_limit(&error, elements, &what);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tensors_are_split_into_as_few_launches_as_possible() {
    let limit = Limit::lock();
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let counted = device.as_rocm_device().unwrap();
    let x = tensor(&[3, 8, 10], DType::F32, 2.0).to_device(&device).unwrap();
    let launches = |elements: usize, op: Op| {
        limit.set(elements);
        let before = counted.kernels_launched();
        op(&x, &x).unwrap();
        counted.kernels_launched() - before
    };
    for (elements, expected) in [
        (1000, 1),
        (240, 1),
        (239, 2),
        (160, 2),
        (159, 3),
        (80, 3),
        (79, 6),
        (40, 6),
        (39, 9),
        (10, 24),
        (7, 48),
        (1, 240),
    ] {
        assert_eq!(launches(elements, |x, _| x.exp()), expected, "exp, {elements}");
        assert_eq!(launches(elements, |x, y| x + y), expected, "add, {elements}");
        assert_eq!(launches(elements, |x, _| x.affine(2.0, 1.0)), expected, "affine, {elements}");
    }
}

#[test]
fn sums_of_more_elements_than_fit_into_one_launch() {
    let (limit, device) = (Limit::lock(), rocm());
    type Sum = fn(&Tensor) -> Result<Tensor>;
    let sums: [(&str, Sum); 4] = [
        ("rows", |x| x.sum(1)),
        ("columns", |x| x.t()?.sum(0)),
        ("of one dim", |x| x.flatten_all()?.sum(0)),
        ("all", |x| x.sum_all()),
    ];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::U32] {
        let x = tensor(&[2, 700], dtype, 3.0);
        let expected = sums.map(|(_, sum)| sum(&x).unwrap());
        let gpu = x.to_device(&device).unwrap();
        for elements in [3, 64, 333, 699] {
            limit.set(elements);
            for ((name, sum), expected) in sums.iter().zip(&expected) {
                let what = format!("{name} {dtype:?}, {elements} elements a launch");
                limit.set(elements);
                let got = sum(&gpu).unwrap();
                set_launch_limit(None);
                device.synchronize().unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_close(&got, expected, 30.0 * epsilon(dtype), &what);
            }
        }
    }
}

/// Indices are u32, as on the CPU device.
#[test]
fn indices_among_more_elements_than_fit_into_one_launch_are_errors() {
    let (limit, device) = (Limit::lock(), rocm());
    let x = tensor(&[2, 700], DType::F32, 3.0).to_device(&device).unwrap();
    limit.set(699);
    for (name, result) in
        [("argmax", x.argmax(1)), ("argmin", x.argmin(1)), ("argsort", x.arg_sort_last_dim(true))]
    {
        assert_names_the_limit(&result.unwrap_err(), 699, name);
    }
    limit.set(700);
    assert!(x.argmax(1).is_ok() && x.arg_sort_last_dim(true).is_ok());
}

#[test]
fn long_rows_are_sorted_in_several_launches() {
    let (limit, device) = (Limit::lock(), rocm());
    let x = tensor(&[3, 2100], DType::F32, 100.0);
    let expected = x.arg_sort_last_dim(true).unwrap();
    let gpu = x.to_device(&device).unwrap();
    for elements in [2100, 4200, 5000] {
        limit.set(elements);
        let got = gpu.arg_sort_last_dim(true).unwrap();
        set_launch_limit(None);
        assert_close(&got, &expected, 0.0, &format!("{elements} elements a launch"));
    }
}

#[test]
fn random_numbers_do_not_depend_on_the_limit() {
    let limit = Limit::lock();
    rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let draw = |dtype: DType| {
        device.set_seed(7).unwrap();
        let uniform = Tensor::rand(0f32, 1.0, 1003, &device).unwrap();
        let normal = Tensor::zeros(1003, dtype, &device).unwrap().randn_like(0.0, 1.0).unwrap();
        [uniform, normal]
    };
    for dtype in FLOATS {
        set_launch_limit(None);
        let expected = draw(dtype);
        for elements in [7, 16, 50, 1000] {
            limit.set(elements);
            let got = draw(dtype);
            set_launch_limit(None);
            for (got, expected) in got.iter().zip(&expected) {
                assert_close(got, expected, 0.0, &format!("{dtype:?}, {elements} elements a launch"));
            }
        }
    }
}

/// Uses a tensor of more than 2^31 elements. Needs about 7 GiB of memory, and minutes on the software GPU.
///
/// `CANDLE_ROCM_EMULATOR=memory=24G cargo test --release -p candle-core --features rocm-emulator --test cut_launches
/// -- --ignored above_2_31`
#[test]
#[ignore = "takes 7 GiB and minutes"]
fn above_2_31() {
    const BORDER: usize = 1 << 31;
    const COUNT: usize = BORDER + 5;
    let _one = Limit::lock();
    let device = rocm();
    let x = Tensor::ones(COUNT, DType::U8, &device).unwrap();
    let ends = x.narrow(0, BORDER - 3, 8).unwrap();
    let at_border = Tensor::new(&[10u8, 20, 30, 40, 50, 60, 70, 80], &device).unwrap();
    x.slice_set(&at_border, 0, BORDER - 3).unwrap();
    assert_eq!(ends.to_vec1::<u8>().unwrap(), [10, 20, 30, 40, 50, 60, 70, 80]);
    let doubled = (&x + &x).unwrap();
    let around = |t: &Tensor, at: usize| t.narrow(0, at, 8).unwrap().to_vec1::<u8>().unwrap();
    assert_eq!(around(&doubled, BORDER - 3), [20, 40, 60, 80, 100, 120, 140, 160]);
    assert_eq!(around(&doubled, 0), [2; 8]);
    // The sum modulo 256: all elements are 2 except eight whose sum is 720.
    let expected = ((COUNT - 8) * 2 + 720) as u8;
    assert_eq!(doubled.sum_all().unwrap().to_scalar::<u8>().unwrap(), expected);
    drop(doubled);
    // A view that begins beyond the range of signed 32-bit offsets.
    let last = x.narrow(0, BORDER, 5).unwrap().affine(1.0, 1.0).unwrap();
    assert_eq!(last.to_vec1::<u8>().unwrap(), [41, 51, 61, 71, 81]);
    let copy = x.narrow(0, 1, COUNT - 1).unwrap().force_contiguous().unwrap();
    assert_eq!(around(&copy, BORDER - 4), [10, 20, 30, 40, 50, 60, 70, 80]);
    let larger = x.gt(&x.ones_like().unwrap()).unwrap();
    drop(copy);
    assert_eq!(larger.sum_all().unwrap().to_scalar::<u8>().unwrap(), 8);
    assert_eq!(around(&larger, BORDER - 3), [1; 8]);
    let error = x.argmax(D::Minus1).unwrap_err();
    assert_names_the_limit(&error, BORDER, "argmax");
}
