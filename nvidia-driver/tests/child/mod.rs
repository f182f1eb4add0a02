//! Runs tests of the NVIDIA driver with fake libraries that are built here. A driver is selected once per process, so each
//! test runs itself in a child process.
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::fake;

pub type Outcome = Result<(), Box<dyn Error>>;

pub const CUDA: &str = "libcuda.so.1";
pub const CUBLAS: &str = "libcublas.so.13";
pub const CUDNN: &str = "libcudnn.so.9";

/// Variable that is set in child processes.
const CHILD: &str = "NVIDIA_TEST_CHILD";

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Returns a folder with the named fake libraries, which the parent process builds once.
pub fn libraries(names: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    if is_child() {
        return Ok(PathBuf::new());
    }
    static BUILDING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut built = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    let folder = root.join(names.join("+"));
    std::fs::create_dir_all(&folder)?;
    for name in names {
        let file = folder.join(name);
        if !built.contains(&file) {
            let stem = name.split('.').next().unwrap_or(name);
            fake::build(&format!("{}.rs", stem.trim_start_matches("lib").to_lowercase()), &file)?;
            built.push(file);
        }
    }
    Ok(folder)
}

/// Returns true in the child process. In the parent, runs `test` in a child process and requires it to pass.
pub fn in_child(
    test: &str,
    folder: Option<&Path>,
    variables: &[(&str, &str)],
) -> Result<bool, Box<dyn Error>> {
    if is_child() {
        return Ok(true);
    }
    let mut command = Command::new(std::env::current_exe()?);
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let output = command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "")
        .env("CANDLE_ROCM_DRIVER", "nvidia")
        .envs(variables.iter().copied())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(false)
}

/// Returns the lines that a fake library has logged since the last call.
pub fn log(library: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the library is already open; its function has this prototype and respects the length.
    let len = unsafe {
        let library = libloading::Library::new(library)?;
        let take: libloading::Symbol<unsafe extern "C" fn(*mut u8, usize) -> usize> =
            library.get(b"fake_take_log")?;
        take(text.as_mut_ptr(), text.len())
    };
    Ok(std::str::from_utf8(&text[..len])?.lines().map(str::to_owned).collect())
}

#[track_caller]
pub fn assert_contains(text: Option<String>, parts: &[&str]) {
    let text = text.unwrap_or_default();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}
