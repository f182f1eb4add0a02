//! Tests of the error messages on the NVIDIA driver, with nvidia-driver's mock libcuda and libcublas. The tests build the
//! mocks and need rustc. Kernels do not run on them. A driver is chosen once per process, so each case runs in a separate
//! process.
#![cfg(all(unix, feature = "rocm-nvidia"))]

use candle_core::rocm::rocm_loader::DRIVER_VARIABLE;
use candle_core::rocm::Report;
use candle_core::{DType, Device, Tensor};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Note that the driver adds to every result.
const NOTE: &str = "NVIDIA, for development: no AMD figure";
/// An architecture for which there are no kernels.
const ARCH: (&str, &str) = ("FAKE_ARCH", "71");

/// Builds the mock libraries and returns their folder.
fn build(name: &str, with_cublas: bool) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvidia").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nvidia-driver/tests/fake");
    let libraries = [("cuda.rs", "libcuda.so.1"), ("cublas.rs", "libcublas.so.13")];
    for (source, library) in libraries.iter().take(1 + usize::from(with_cublas)) {
        let status = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=fake", "-Cpanic=abort", "-o"])
            .args([&folder.join(library), &sources.join(source)])
            .status()
            .unwrap();
        assert!(status.success(), "rustc: {status}");
    }
    folder
}

/// Runs a case in a separate process, which must succeed.
fn run(case: &str, with_cublas: bool, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"] {
        command.env_remove(name);
    }
    let output = command
        .args(["--ignored", "--exact", case, "--nocapture"])
        .env("LD_LIBRARY_PATH", build(case, with_cublas))
        .env(DRIVER_VARIABLE, "nvidia")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn assert_contains(text: impl ToString, parts: &[&str]) {
    let text = text.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn kernels_for_the_card_are_missing() {
    run("missing_kernels", true, &[ARCH]);
}

#[test]
#[ignore = "run by kernels_for_the_card_are_missing"]
fn missing_kernels() {
    let device = Device::new_rocm(0).unwrap();
    let rocm = device.as_rocm_device().unwrap();
    assert_eq!((rocm.driver_name(), rocm.arch()), ("nvidia", "sm_71"));
    rocm.check_rocblas().unwrap();
    // Copies need no kernels.
    let x = Tensor::new(&[1f32, 2.0, 3.0], &device).unwrap();
    assert_eq!(x.to_device(&Device::Cpu).unwrap().to_vec1::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_contains(x.exp().unwrap_err(), &["no kernels for sm_71", "CANDLE_ROCM_ARCHS=", ",sm_71"]);
    let report = Report::gather();
    assert_eq!((report.emulated, report.note), (false, Some(NOTE)));
    assert_contains(&report, &["CUDA driver 13.0 (libcuda.so.1)", NOTE, "versions   cuBLAS 13.1.7"]);
    assert_contains(
        &report,
        &["Fake H100, sm_71, discrete", "none in this binary", "libcuda.so.1 /", "libcublas.so /"],
    );
    assert_contains(report.advice, &["holds no kernels for sm_71", "CANDLE_ROCM_ARCHS=sm_71"]);
}

#[test]
fn a_lost_context_gives_the_same_error_for_all_calls() {
    run("lost_context", true, &[("FAKE_FAULT", "1")]);
}

#[test]
#[ignore = "run by a_lost_context_gives_the_same_error_for_all_calls"]
fn lost_context() {
    let device = Device::new_rocm(0).unwrap();
    let before = Tensor::new(&[1f32, 2.0], &device).unwrap();
    // Fills fail on the mock, which the next call reports.
    let zeros = Tensor::zeros(1000, DType::F32, &device).unwrap();
    let words = &["CUDA_ERROR_ILLEGAL_ADDRESS (700)", "rocm:0 (sm_90)", "restart the process"];
    assert_contains(zeros.to_vec1::<f32>().unwrap_err(), words);
    for _ in 0..2 {
        assert_contains(before.to_vec1::<f32>().unwrap_err(), words);
        assert_contains(Tensor::new(&[1f32], &device).unwrap_err(), words);
        assert_contains(device.synchronize().unwrap_err(), words);
    }
    let elsewhere = std::thread::spawn(move || drop((before, zeros, device)));
    assert!(elsewhere.join().is_ok(), "releasing does not panic");
}

#[test]
fn requesting_too_much_memory_is_an_error() {
    run("out_of_memory", true, &[]);
}

#[test]
#[ignore = "run by requesting_too_much_memory_is_an_error"]
fn out_of_memory() {
    let device = Device::new_rocm(0).unwrap();
    let error = Tensor::zeros((9 << 30,), DType::U8, &device).unwrap_err();
    assert_contains(error, &["bytes requested", "rocm:0 (sm_90)"]);
    let x = Tensor::new(&[1u8, 2], &device).unwrap();
    assert_eq!(x.to_vec1::<u8>().unwrap(), [1, 2]);
}

#[test]
fn products_need_cublas() {
    run("no_cublas", false, &[]);
}

#[test]
#[ignore = "run by products_need_cublas"]
fn no_cublas() {
    let device = Device::new_rocm(0).unwrap();
    // Nothing to test if cuBLAS is installed on this machine.
    let Err(missing) = device.as_rocm_device().unwrap().check_rocblas() else { return };
    assert_contains(missing, &["libcublas.so of CUDA", "CUDA_HOME", "LD_LIBRARY_PATH"]);
    let x = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &device).unwrap();
    assert_contains(
        x.matmul(&x).unwrap_err(),
        &["rocblas_create_handle", "libcublas.so of CUDA", "CUDA_HOME"],
    );
    assert_eq!(x.to_vec2::<f32>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);
    assert_contains(Report::gather(), &["versions   cuBLAS missing", "library    libcublas.so missing"]);
}

#[test]
fn products_are_passed_to_cublas_unchanged() {
    run("products", true, &[]);
}

/// Returns and clears the log of the mock cuBLAS.
fn take_cublas_log() -> String {
    let mut text = vec![0u8; 4096];
    // SAFETY: the library is already open, and its function has this signature.
    let len = unsafe {
        let library = libc::dlopen(c"libcublas.so.13".as_ptr(), libc::RTLD_NOW);
        let take = libc::dlsym(library, c"fake_take_log".as_ptr());
        assert!(!take.is_null());
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u8, usize) -> usize>(take)(
            text.as_mut_ptr(),
            text.len(),
        )
    };
    String::from_utf8_lossy(&text[..len]).into_owned()
}

#[test]
#[ignore = "run by products_are_passed_to_cublas_unchanged"]
fn products() {
    let device = Device::new_rocm(0).unwrap();
    let ones =
        |dims: &[usize], dtype| Tensor::ones(dims, dtype, &Device::Cpu).unwrap().to_device(&device).unwrap();
    // cuBLAS' codes for the types of operands and sums.
    for (dtype, data, sum) in
        [(DType::F32, 0, 68), (DType::F64, 1, 70), (DType::F16, 2, 68), (DType::BF16, 14, 68)]
    {
        let (x, w) = (ones(&[5, 2, 3], dtype), ones(&[5, 4, 3], dtype));
        x.matmul(&w.t().unwrap()).unwrap();
        // cuBLAS is column-major and computes w x', with the rows of w transposed.
        let text = take_cublas_log();
        assert_contains(
            &text,
            &["strided 10 4 2 3 a ", &format!(":{data}:3+12 b "), &format!(":{data}:3+6 c ")],
        );
        assert_contains(&text, &[&format!(":{data}:4+8 x 5 in {sum} by -1 | pointers 0 math 16")]);
    }
}
