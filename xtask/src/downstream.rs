//! `cargo xtask downstream`: builds crates outside the workspace with the README's dependency lines and runs them.
use std::fs;

use anyhow::{Context, Result};

use crate::process::{self, cargo, root};
use crate::{setup, software_gpu};

/// Crates like a user's: published dependencies, a model of candle-transformers, one patch section.
const CRATES: [Crate; 2] = [
    Crate { name: "bert", line: "candle-transformers = \"", main: include_str!("../downstream/bert.rs") },
    Crate { name: "llama", line: "candle-flash-attn = \"", main: include_str!("../downstream/llama.rs") },
];

struct Crate {
    name: &'static str,
    /// Beginning of a line that identifies the crate's TOML block in the README.
    line: &'static str,
    main: &'static str,
}

/// Returns a manifest with the README's dependency and patch lines, the fork's real path, the software GPU, and `profiles`.
fn manifest(readme: &str, line: &str, fork: &str, profiles: &str) -> Result<String> {
    let block = readme
        .split("```toml\n")
        .filter_map(|rest| rest.split("```").next())
        .find(|block| {
            block.contains("[patch.crates-io]") && block.lines().any(|found| found.starts_with(line))
        })
        .with_context(|| format!("README.md has no toml block with [patch.crates-io] and `{line}`"))?;
    let lines = block.replace("../candle-rocm", fork).replace("[\"rocm\"]", "[\"rocm-emulator\"]");
    Ok(format!(
        r#"[package]
name = "downstream"
version = "0.1.0"
edition = "2021"

{lines}
[workspace]

{profiles}"#
    ))
}

/// Returns the profiles of the workspace. With the same profiles, versions and target folder, a user's crate shares the
/// dependencies that the workspace has built. It cannot share the fork's crates, which are outside its own workspace; since
/// the programs run for seconds, these are not optimized.
fn profiles() -> Result<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let mut manifest: toml::Table = text.parse().context("cannot parse Cargo.toml")?;
    manifest.retain(|key, _| key == "profile");
    for package in ["rocm-emulator", "candle-core"] {
        let package = manifest
            .get_mut("profile")
            .and_then(|profiles| profiles.get_mut("dev")?.get_mut("package")?.get_mut(package));
        let level =
            package.and_then(|package| package.get_mut("opt-level")).context("Cargo.toml lacks a profile")?;
        *level = 0.into();
    }
    toml::to_string(&manifest).context("cannot write the profiles")
}

/// Builds and runs the crates. The programs contain code objects for `archs` (comma-separated).
///
/// # Errors
/// If a crate does not build or its program fails.
pub fn run(archs: &str) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let readme = fs::read_to_string(root().join("README.md")).context("cannot read README.md")?;
    let profiles = profiles()?;
    for tested in &CRATES {
        // Outside the workspace's folder, so that cargo finds neither its manifest nor its .cargo/config.toml.
        let folder = std::env::temp_dir().join("candle-rocm-downstream").join(tested.name);
        fs::create_dir_all(folder.join("src"))
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let manifest = manifest(&readme, tested.line, &root().to_string_lossy(), &profiles)?;
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).context("cannot copy Cargo.lock")?;
        fs::write(folder.join("src/main.rs"), tested.main)?;
        process::run(
            cargo(&["run", "--quiet", "--"])
                .arg(root().join("examples/tiny_llama/model"))
                .current_dir(&folder)
                .env("CARGO_TARGET_DIR", root().join("target"))
                .env("SKIP_BINDGEN", "1")
                .env("CANDLE_ROCM_ARCHS", archs)
                .env("CANDLE_ROCM_DRIVER", format!("emulator:{}", software_gpu::DEFAULT)),
        )?;
    }
    println!("downstream: ok");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::manifest;

    #[test]
    fn manifest_has_the_readmes_lines_with_the_forks_path() {
        let block = |name: &str| {
            format!(
                "```toml\n[dependencies]\n{name} = {{ features = [\"rocm\"] }}\n\
                 [patch.crates-io]\n{name} = {{ path = \"../candle-rocm/{name}\" }}\n```\n"
            )
        };
        let readme = format!("```toml\n[env]\n```\n{}{}", block("a"), block("b"));
        for (line, path) in [("a =", "path = \"/fork/a\""), ("b =", "path = \"/fork/b\"")] {
            let text = manifest(&readme, line, "/fork", "").unwrap();
            assert!(text.contains("features = [\"rocm-emulator\"]"), "{text}");
            assert!(text.contains(path), "{text}");
        }
        assert!(manifest(&readme, "c =", "/fork", "").is_err());
    }
}
