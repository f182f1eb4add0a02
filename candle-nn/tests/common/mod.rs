//! Shared code of the layer tests: the device under test, tensors of pseudo-random numbers, and comparisons.
#![allow(dead_code, reason = "each test binary uses its own part")]
use candle::rocm::rocm_loader::{self, DRIVER_VARIABLE};
use candle::{DType, Device, Error, Result, Tensor};

pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Returns the device under test: of the driver that the environment selects, of this machine, or the software GPU.
pub fn rocm() -> Device {
    if std::env::var_os(DRIVER_VARIABLE).is_none() && rocm_loader::driver().is_err() {
        candle::rocm::select_driver("emulator:gfx1100").unwrap();
    }
    Device::new_rocm(0).unwrap()
}

/// Like [`rocm`], with a separate stream whose launches no other test affects.
pub fn rocm_alone() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

/// Returns a tensor of numbers in about [-limit, limit] on the CPU, rounded to `dtype`.
pub fn tensor(dims: &[usize], dtype: DType, limit: f64) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|i| (i as f64 * 12.9898 + 0.5).sin() * limit).collect();
    Tensor::from_vec(values, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// Returns the error of a few roundings to a dtype, relative to the larger of the magnitude and 1.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        // Norms are summed in f32.
        DType::F64 | DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    }
}

/// Returns all elements in f64.
pub fn values(t: &Tensor) -> Vec<f64> {
    let t = t.to_device(&Device::Cpu).unwrap().flatten_all().unwrap();
    t.to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
}

/// Describes the first element that differs by more than `tolerance`, relative to the larger of the magnitude
/// and 1. NaN equals NaN, and infinities of the same sign are equal.
pub fn difference(got: &Tensor, expected: &Tensor, tolerance: f64) -> Option<String> {
    if got.dims() != expected.dims() {
        return Some(format!("shape {:?}, expected {:?}", got.dims(), expected.dims()));
    }
    let same =
        |g: f64, e: f64| g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance * (1.0 + e.abs());
    let pairs = values(got).into_iter().zip(values(expected));
    let (i, (g, e)) = pairs.enumerate().find(|(_, (g, e))| !same(*g, *e))?;
    Some(format!("element {i} is {g}, expected {e}"))
}

#[track_caller]
pub fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    if let Some(difference) = difference(got, expected, tolerance) {
        panic!("{what}: {difference}");
    }
}

pub fn wide(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F64).unwrap()
}

/// Returns an error without its backtrace and context.
pub fn inner(error: &Error) -> &Error {
    match error {
        Error::WithBacktrace { inner: error, .. } => inner(error),
        Error::Context { inner: error, .. } | Error::WithPath { inner: error, .. } => inner(error),
        error => error,
    }
}

/// Returns the name of an error's variant.
#[track_caller]
pub fn kind<T>(result: Result<T>) -> &'static str {
    let Err(error) = result else { panic!("there is no error") };
    match inner(&error) {
        Error::BroadcastIncompatibleShapes { .. } => "BroadcastIncompatibleShapes",
        Error::DeviceMismatchBinaryOp { .. } => "DeviceMismatchBinaryOp",
        Error::DTypeMismatchBinaryOp { .. } => "DTypeMismatchBinaryOp",
        Error::Msg(_) => "Msg",
        Error::ShapeMismatchBinaryOp { .. } => "ShapeMismatchBinaryOp",
        Error::UnexpectedNumberOfDims { .. } => "UnexpectedNumberOfDims",
        Error::UnsupportedDTypeForOp(..) => "UnsupportedDTypeForOp",
        other => panic!("another error: {other}"),
    }
}
