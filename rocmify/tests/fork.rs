//! Builds the written fork.

use std::path::{Path, PathBuf};
use std::process::Command;

use rocmify::fork::write_fork;

fn written_fork(name: &str) -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let out = tmp.join(name);
    write_fork(&workspace, &out, tmp).unwrap();
    out
}

fn check(fork: &Path, features: &str) {
    // All runs share a target folder, so that only the first one builds the dependencies.
    let output = Command::new(env!("CARGO"))
        .args(["check", "--quiet", "--workspace", "--features", features, "--manifest-path"])
        .arg(fork.join("Cargo.toml"))
        .current_dir(fork)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("fork-target"))
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_written_fork_builds() {
    check(&written_fork("fork"), "");
}

#[test]
#[ignore = "compiles every kernel"]
fn the_written_fork_builds_with_rocm() {
    check(&written_fork("fork-with-rocm"), "candle-transformers/rocm,candle-transformers/flash-attn");
}
