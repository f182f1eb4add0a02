//! The device under test, views of tensors, and comparisons.
use candle_core::rocm::hip_kernels::contract::PRODUCT_ROWS;
use candle_core::rocm::rocm_loader::{self, DRIVER_VARIABLE};
use candle_core::rocm::RocmDevice;
use candle_core::{DType, Device, Result, Tensor};
use std::process::Command;

/// Float dtypes that have every kernel.
pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// All dtypes except the packed ones.
pub const ALL: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
];

/// Returns the first ROCm device: of the driver that the environment selects, of this machine, or of two software GPUs.
pub fn rocm() -> Device {
    choose();
    Device::new_rocm(0).unwrap()
}

fn choose() {
    if std::env::var_os(DRIVER_VARIABLE).is_none() && rocm_loader::driver().is_err() {
        candle_core::rocm::select_driver("emulator:gfx1100,gfx1100").unwrap();
    }
}

/// Returns the number of devices.
pub fn devices() -> usize {
    choose();
    rocm_loader::device_archs().unwrap().len()
}

/// Returns the second device, or prints a note and returns `None` if the machine has only one.
pub fn second_rocm() -> Option<Device> {
    if devices() < 2 {
        println!("not applicable: needs two GPUs");
        return None;
    }
    Some(Device::new_rocm(1).unwrap())
}

/// Returns true if tests run on the software GPU; otherwise prints that a test is skipped.
pub fn on_software_gpu(why: &str) -> bool {
    choose();
    let software = rocm_loader::driver().is_ok_and(|driver| driver.is_software());
    if !software {
        println!("not applicable: {why}");
    }
    software
}

/// Returns true if products of `rows` rows of `dtype`, up to 16, are computed by the fork's own kernels and not by a library.
pub fn has_own_product(dtype: DType, rows: usize, device: &RocmDevice) -> bool {
    match dtype {
        DType::F64 => false,
        // cuBLAS computes more of them on the NVIDIA driver.
        DType::F32 => rows <= if device.arch().starts_with("sm_") { PRODUCT_ROWS } else { 16 },
        // The matrix units of gfx90a, which compute more than four rows, drop denormals.
        _ => rows <= if device.arch().starts_with("gfx90a") { 4 } else { 16 },
    }
}

/// Returns `count` numbers in about [-limit, limit], without a period that could hide wrong strides.
pub fn numbers(count: usize, limit: f64) -> Vec<f64> {
    (0..count).map(|i| (i as f64 * 12.9898 + 0.5).sin() * limit).collect()
}

/// Returns a tensor of [`numbers`] on the CPU, rounded to `dtype`.
pub fn tensor(dims: &[usize], dtype: DType, limit: f64) -> Tensor {
    let count = dims.iter().product();
    let mut values = numbers(count, limit);
    if matches!(dtype, DType::U8 | DType::U32) {
        values.iter_mut().for_each(|v| *v = v.abs());
    }
    if dtype.is_int() {
        values.iter_mut().for_each(|v| *v = v.trunc());
    }
    from_f64(&values, dims, dtype)
}

/// Creates a tensor of any dtype on the CPU.
pub fn from_f64(values: &[f64], dims: &[usize], dtype: DType) -> Tensor {
    let cpu = &Device::Cpu;
    match dtype {
        DType::I16 => {
            let v: Vec<i16> = values.iter().map(|v| *v as i16).collect();
            Tensor::from_vec(v, dims, cpu).unwrap()
        }
        DType::I32 => {
            let v: Vec<i32> = values.iter().map(|v| *v as i32).collect();
            Tensor::from_vec(v, dims, cpu).unwrap()
        }
        dtype => Tensor::from_slice(values, dims, cpu).unwrap().to_dtype(dtype).unwrap(),
    }
}

/// A view of a tensor of rank 3.
pub type View = fn(&Tensor) -> Result<Tensor>;

/// Dense, transposed both ways, narrowed with an offset, broadcast, and several at once.
pub const VIEWS: [(&str, View); 6] = [
    ("dense", |t| Ok(t.clone())),
    ("last dims transposed", |t| t.transpose(1, 2)),
    ("first and last transposed", |t| t.transpose(0, 2)),
    ("narrowed", |t| t.narrow(1, 1, 2)?.narrow(2, 1, 3)),
    ("broadcast", |t| t.narrow(1, 2, 1)?.broadcast_as(t.shape())),
    ("narrowed and transposed", |t| t.narrow(0, 1, 1)?.narrow(2, 2, 2)?.transpose(1, 2)),
];

/// Dims that all views support.
pub const DIMS: [usize; 3] = [2, 4, 5];

pub fn to_f64(t: &Tensor) -> Vec<f64> {
    let t = t.to_device(&Device::Cpu).unwrap().flatten_all().unwrap();
    match t.dtype() {
        DType::I16 => t.to_vec1::<i16>().unwrap().into_iter().map(f64::from).collect(),
        DType::I32 => t.to_vec1::<i32>().unwrap().into_iter().map(f64::from).collect(),
        DType::F8E4M3 => {
            t.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap().into_iter().map(f64::from).collect()
        }
        _ => t.to_dtype(DType::F64).unwrap().to_vec1().unwrap(),
    }
}

/// Returns the relative error of a few roundings to a dtype.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-14,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        DType::F8E4M3 => 0.13,
        _ => 0.0,
    }
}

/// Asserts that shapes are equal and that no element differs by more than `tolerance`, relative to the larger
/// of the expected magnitude and 1.
#[track_caller]
pub fn assert_close(got: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(got.dims(), expected.dims(), "{what}: shape");
    assert_close_values(&to_f64(got), &to_f64(expected), tolerance, what);
}

#[track_caller]
pub fn assert_close_values(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let same = g == e || (g.is_nan() && e.is_nan());
        assert!(
            same || (g - e).abs() <= tolerance * (1.0 + e.abs()),
            "{what}: element {i} is {g}, expected {e}"
        );
    }
}

/// Returns the variant of an error, without its backtrace.
pub fn kind(error: &candle_core::Error) -> std::mem::Discriminant<candle_core::Error> {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => kind(inner),
        error => std::mem::discriminant(error),
    }
}

/// Asserts that both devices return the same variant of error.
#[track_caller]
pub fn assert_same_error<T, U>(got: Result<T>, expected: Result<U>, what: &str) {
    let (Err(got), Err(expected)) = (got, expected) else { panic!("{what}: not refused on both devices") };
    assert_eq!(kind(&got), kind(&expected), "{what}: {got} instead of {expected}");
}

/// A view of a tensor of rank 4, with its name.
pub type View4 = (&'static str, fn(&Tensor) -> Result<Tensor>);

/// Dense, with channels last, narrowed in all dims, and broadcast over the batch.
pub const VIEWS4: [View4; 4] = [
    ("dense", |t| Ok(t.clone())),
    ("channels last", |t| t.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))),
    ("narrowed", |t| {
        let wide = t.pad_with_zeros(0, 1, 0)?.pad_with_zeros(1, 1, 1)?.pad_with_zeros(2, 2, 1)?;
        let wide = wide.pad_with_zeros(3, 1, 2)?;
        let d = t.dims();
        wide.narrow(0, 1, d[0])?.narrow(1, 1, d[1])?.narrow(2, 2, d[2])?.narrow(3, 1, d[3])
    }),
    ("one image for all", |t| t.narrow(0, 0, 1)?.broadcast_as(t.shape())),
];

/// Runs an ignored test of this binary in a separate process, with an environment variable that is read once per process.
pub fn passes_in_its_own_process(test: &str, (variable, value): (&str, &str)) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(variable, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
