//! The command `rocmify`.

use std::process::{Command, Output};

use rocmify::CRATES;

fn run(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rocmify")).args(arguments).output().unwrap();
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, printed)
}

#[test]
fn the_check_reports_every_crate() {
    let (output, printed) = run(&["--check"]);
    assert!(output.status.success(), "{printed}");
    for rules in CRATES {
        let line = format!("{}: ", rules.name);
        assert!(printed.contains(&line) && printed.contains("tests for the ROCm device in"), "{printed}");
    }
}

#[test]
fn the_fork_is_written_below_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let (output, printed) = run(&["--out", &out]);
    assert!(output.status.success() && printed.contains(&format!("below {out}")), "{printed}");
    for rules in CRATES {
        assert!(folder.path().join(rules.name).join("Cargo.toml").is_file(), "{}", rules.name);
    }
}

#[test]
fn a_workspace_that_does_not_exist_is_an_error() {
    let (output, printed) = run(&["--check", "--workspace", "/does/not/exist"]);
    assert!(!output.status.success() && printed.starts_with("rocmify: "), "{printed}");
}
