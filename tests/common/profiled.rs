//! Tests in processes of their own, whose software GPUs profile their kernels.
use std::io;
use std::process::Command;

use rocm_loader::DRIVER_VARIABLE;

/// Environment variable with the options of the software GPU.
const OPTIONS: &str = "CANDLE_ROCM_EMULATOR";

/// Runs an ignored test of this program in a separate process on software GPUs of these architectures, which profile its
/// kernels, and prints its output. Panics if it fails.
pub fn run_profiled(test: &str, archs: &[&str]) -> io::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(OPTIONS, format!("profile={}", file.path().display()))
        .env(DRIVER_VARIABLE, format!("emulator:{}", archs.join(",")))
        .output()?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    Ok(())
}
