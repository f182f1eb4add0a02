//! `cargo xtask downstream`: builds crates outside the workspace with the README's dependency lines and runs them.
use std::fs;

use anyhow::{Context, Result};

use crate::process::{self, cache, cargo, root};
use crate::setup;

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

/// Returns a manifest with the README's dependency and patch lines, the fork's real path and the software GPU.
fn manifest(readme: &str, line: &str, fork: &str) -> Result<String> {
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

[profile.dev]
debug = false

[profile.dev.package.rocm-emulator]
opt-level = 1
"#
    ))
}

pub fn run() -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let readme = fs::read_to_string(root().join("README.md")).context("cannot read README.md")?;
    for tested in &CRATES {
        // Outside the workspace's folder, so that cargo finds neither its manifest nor its .cargo/config.toml.
        let folder = std::env::temp_dir().join("candle-rocm-downstream").join(tested.name);
        fs::create_dir_all(folder.join("src"))
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let manifest = manifest(&readme, tested.line, &root().to_string_lossy())?;
        fs::write(folder.join("Cargo.toml"), manifest)?;
        fs::write(folder.join("src/main.rs"), tested.main)?;
        process::run(
            cargo(&["run", "--quiet", "--"])
                .arg(root().join("examples/tiny_llama/model"))
                .current_dir(&folder)
                // One target folder for both crates, so that they share dependencies.
                .env("CARGO_TARGET_DIR", cache().join("downstream-target"))
                .env("CANDLE_ROCM_KERNEL_CACHE", root().join("target/hip-kernels/cache"))
                .env("SKIP_BINDGEN", "1")
                .env("CANDLE_ROCM_ARCHS", "gfx1100")
                .env("CANDLE_ROCM_DRIVER", "emulator:gfx1100"),
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
            let text = manifest(&readme, line, "/fork").unwrap();
            assert!(text.contains("features = [\"rocm-emulator\"]"), "{text}");
            assert!(text.contains(path), "{text}");
        }
        assert!(manifest(&readme, "c =", "/fork").is_err());
    }
}
