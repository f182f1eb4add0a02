//! `cargo xtask archive`: a source archive with all dependencies, which builds without network access.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::process::{cargo, command, root, run};
use crate::setup;

/// Manifest of the published Candle crates, which the fork's lock file does not name.
const UPSTREAM: &str = r#"[package]
name = "upstream"
version = "0.0.0"
edition = "2021"

[lib]
path = "lib.rs"

[workspace]

[dependencies]
candle-core = { version = "=VERSION", default-features = false }
candle-nn = { version = "=VERSION", default-features = false }
candle-transformers = { version = "=VERSION", default-features = false }
candle-kernels = "=VERSION"
"#;

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the archive.
    #[arg(long, default_value = "target/archive")]
    out: PathBuf,
    /// Unpack the archive and build it in release mode, without network access.
    #[arg(long)]
    check: bool,
}

/// Writes the archive of the committed files and their dependencies, and prints its SHA-256.
///
/// # Errors
/// If a tool is missing, a crate cannot be downloaded, or the unpacked archive does not build.
pub fn run_command(args: &Args) -> Result<()> {
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).context("cannot read CHANGELOG.md")?;
    let name = format!("candle-rocm-{}", version(&changelog)?);
    let out = root().join(&args.out);
    let folder = out.join(&name);
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let sources = out.join("sources.tar");
    run(command("git", &["archive", "--output"]).arg(&sources).arg("HEAD").current_dir(root()))?;
    run(command("tar", &["--extract", "--file"]).arg(&sources).arg("--directory").arg(&folder))?;
    fs::remove_file(&sources).with_context(|| format!("cannot remove {}", sources.display()))?;
    let crates = vendor(&folder, &out.join("upstream"))?;

    let archive = out.join(format!("{name}.tar.gz"));
    // Equal files give an archive with equal bytes.
    let options =
        ["--create", "--gzip", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    let mut tar = command("tar", &options);
    run(tar.arg("--file").arg(&archive).arg("--directory").arg(&out).arg(&name))?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    let bytes = fs::read(&archive).with_context(|| format!("cannot read {}", archive.display()))?;
    let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if args.check {
        check(&archive, &name)?;
    }
    let built = if args.check { " built=offline" } else { "" };
    println!(
        "archive: ok file={} bytes={} crates={crates} sha256={sum}{built}",
        archive.display(),
        bytes.len()
    );
    Ok(())
}

/// Returns the newest version in the changelog.
fn version(changelog: &str) -> Result<&str> {
    let mut headings = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    let heading = headings.find(|heading| heading.starts_with(|first: char| first.is_ascii_digit()));
    heading.and_then(|heading| heading.split(' ').next()).context("CHANGELOG.md has no section of a version")
}

/// Copies all dependencies into `folder` and adds them to its cargo configuration. Returns the number of crates.
fn vendor(folder: &Path, upstream: &Path) -> Result<usize> {
    fs::create_dir_all(upstream).with_context(|| format!("cannot create {}", upstream.display()))?;
    fs::write(upstream.join("lib.rs"), "")?;
    fs::write(upstream.join("Cargo.toml"), UPSTREAM.replace("VERSION", rocmify::upstream::VERSION))?;
    // With --quiet, cargo would not print the configuration.
    let mut vendor = cargo(&["vendor", "--versioned-dirs", "--sync"]);
    let output = vendor.arg(upstream.join("Cargo.toml")).arg("vendor").current_dir(folder).output();
    let output = output.context("cannot start cargo vendor")?;
    let [replacement, messages] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let is_complete = output.status.success() && replacement.contains("[source.");
    ensure!(is_complete, "cargo vendor: {}", messages.trim());
    let config = folder.join(".cargo/config.toml");
    let mut text =
        fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    text.push('\n');
    text.push_str(&replacement);
    fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    Ok(fs::read_dir(folder.join("vendor")).context("cargo vendor created no folder")?.count())
}

/// Builds the unpacked archive with an empty cargo home, in a network namespace without interfaces.
fn check(archive: &Path, name: &str) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let folder = std::env::temp_dir().join("candle-rocm-archive");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("cargo-home"))
        .with_context(|| format!("cannot create {}", folder.display()))?;
    run(command("tar", &["--extract", "--file"]).arg(archive).arg("--directory").arg(&folder))?;
    let build = cargo(&["build", "--release", "--quiet", "--offline", "--features", "rocm"]);
    let mut isolated = command("unshare", &["--net"]);
    isolated.arg(build.get_program()).args(build.get_args());
    isolated.env("CARGO_HOME", folder.join("cargo-home")).env("CANDLE_ROCM_ARCHS", "gfx1100");
    run(isolated.current_dir(folder.join(name)))?;
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn the_version_is_that_of_the_first_section_with_a_number() {
        let changelog =
            "# Changelog\n\n## [Unreleased]\n\n## 0.11.1-rocm.2 - 2027-01-01\n\n## 0.11.1-rocm.1\n";
        assert_eq!(version(changelog).unwrap(), "0.11.1-rocm.2");
        assert!(version("# Changelog\n\n## [Unreleased]\n").is_err());
    }
}
