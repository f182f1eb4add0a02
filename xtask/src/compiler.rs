//! This program as cargo's wrapper of the compiler: it counts lines for coverage, or lints a crate before it is compiled.
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};

use crate::process::root;

/// Set to the name of a mode for the processes that cargo starts instead of the compiler.
const MODE: &str = "XTASK_COMPILER";
const INSTRUMENT: &str = "instrument";
const LINT: &str = "lint";
/// Crate that is not instrumented: the software GPU, whose interpreter would become several times slower.
const NOT_INSTRUMENTED: &str = "rocm_emulator";

/// Instruments the crates of the workspace that a cargo command compiles. `wrapper` is a file of [`wrapper`].
pub fn instrument(command: &mut Command, wrapper: &Path) {
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(MODE, INSTRUMENT);
}

/// Runs clippy on each crate of the workspace that a cargo command compiles; warnings are errors. `wrapper` is a file of
/// [`wrapper`].
///
/// `cargo clippy` would check the dependencies apart, because it does not use those that are compiled. Crates that are
/// already compiled are not checked.
pub fn lint(command: &mut Command, wrapper: &Path) {
    // Cargo compiles nothing again because of this wrapper, unlike for RUSTC_WORKSPACE_WRAPPER.
    command.env("RUSTC_WRAPPER", wrapper).env(MODE, LINT);
    // Clippy and the compiler would write the same files.
    command.env("CARGO_INCREMENTAL", "0");
}

/// Copies this program, because the build replaces it, and returns the path of the copy.
///
/// # Errors
/// If the file cannot be written.
pub fn wrapper() -> Result<PathBuf> {
    let path = root().join("target/compiler-wrapper");
    fs::copy(std::env::current_exe()?, &path).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Compiles as the wrapper, if this process was started as one.
pub fn compile() -> Option<ExitCode> {
    let mode = std::env::var_os(MODE)?;
    let mut arguments = std::env::args_os().skip(1);
    let compiler = arguments.next().filter(|program| Path::new(program).ends_with("rustc"))?;
    let mut arguments: Vec<OsString> = arguments.collect();
    let is_lint = mode == LINT && std::env::var_os("CARGO_PRIMARY_PACKAGE").is_some();
    if is_lint && let Some(failed) = failure(clippy(&compiler, &arguments).status()) {
        return Some(failed);
    }
    if mode == INSTRUMENT && !arguments.iter().any(|argument| argument == NOT_INSTRUMENTED) {
        arguments.extend(["-C", "instrument-coverage"].map(OsString::from));
    }
    let status = Command::new(compiler).args(arguments).status();
    Some(failure(status).unwrap_or(ExitCode::SUCCESS))
}

fn failure(status: std::io::Result<ExitStatus>) -> Option<ExitCode> {
    (!status.is_ok_and(|status| status.success())).then_some(ExitCode::FAILURE)
}

/// Returns a command that checks a crate with the compiler's arguments, and writes only metadata, to a separate folder.
fn clippy(compiler: &OsStr, arguments: &[OsString]) -> Command {
    let mut command = Command::new(Path::new(compiler).with_file_name("clippy-driver"));
    command.arg(compiler);
    let mut is_folder = false;
    for argument in arguments {
        let text = argument.to_string_lossy();
        if std::mem::replace(&mut is_folder, text == "--out-dir") {
            command.arg(Path::new(argument).join("../lints"));
        } else if text.starts_with("--emit=") {
            command.arg("--emit=metadata");
        } else if let Some(kinds) = text.strip_prefix("--json=") {
            // Cargo would take the metadata of clippy for the crate's.
            let kinds: Vec<&str> = kinds.split(',').filter(|kind| *kind != "artifacts").collect();
            command.arg(format!("--json={}", kinds.join(",")));
        } else {
            command.arg(argument);
        }
    }
    command.args(["--deny", "warnings"]);
    command
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};

    use super::clippy;

    #[test]
    fn clippy_writes_metadata_to_a_folder_of_its_own() {
        let arguments = [
            "--crate-name",
            "a",
            "--json=diagnostic-rendered-ansi,artifacts,future-incompat",
            "--emit=dep-info,metadata,link",
            "--out-dir",
            "/t/debug/deps",
            "-C",
            "opt-level=1",
        ];
        let command = clippy(OsStr::new("/bin/rustc"), &arguments.map(OsString::from));
        assert_eq!(command.get_program(), "/bin/clippy-driver");
        let expected = [
            "/bin/rustc",
            "--crate-name",
            "a",
            "--json=diagnostic-rendered-ansi,future-incompat",
            "--emit=metadata",
            "--out-dir",
            "/t/debug/deps/../lints",
            "-C",
            "opt-level=1",
            "--deny",
            "warnings",
        ];
        assert!(command.get_args().eq(expected), "{command:?}");
    }
}
