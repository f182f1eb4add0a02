//! Builds the fake libraries in this folder.
use std::error::Error;
use std::path::Path;
use std::process::Command;

/// Compiles `source`, a file in this folder, to the shared library `file`.
pub fn build(source: &str, file: &Path) -> Result<(), Box<dyn Error>> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=amdhip64", "-Cpanic=abort", "-o"])
        .arg(file)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(source))
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}
