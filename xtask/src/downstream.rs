//! `cargo xtask downstream`: does a crate outside the workspace get ROCm with the README's lines?
use std::fs;

use anyhow::{Context, Result};

use crate::process::{self, cache, cargo, root};
use crate::setup;

/// A crate like a user's: published dependencies, a model of candle-transformers, one patch section.
const MAIN: &str = r#"
use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config, HiddenAct, PositionEmbeddingType};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        vocab_size: 64,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 48,
        hidden_act: HiddenAct::Gelu,
        max_position_embeddings: 16,
        position_embedding_type: PositionEmbeddingType::Absolute,
        ..Config::default()
    };
    let vars = VarMap::new();
    BertModel::load(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu), &config)?;
    let weights = std::env::temp_dir().join(format!("downstream-{}.safetensors", std::process::id()));
    vars.save(&weights)?;
    let forward = |device: &Device| -> Result<Tensor, Box<dyn std::error::Error>> {
        let vb = VarBuilder::from_buffered_safetensors(std::fs::read(&weights)?, DType::F32, device)?;
        let ids = Tensor::new(&[[3u32, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]], device)?;
        let hidden = BertModel::load(vb, &config)?.forward(&ids, &ids.zeros_like()?, None)?;
        Ok(hidden.i((.., 0))?.to_device(&Device::Cpu)?)
    };
    let rocm = Device::new_rocm(0)?;
    let difference = (forward(&rocm)? - forward(&Device::Cpu)?)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    std::fs::remove_file(&weights)?;
    println!("{:?}: max_abs_diff {difference:e}", rocm.location());
    if difference < 1e-4 { Ok(()) } else { Err("the devices disagree".into()) }
}
"#;

/// The manifest: the README's own dependency and patch lines, with the fork's real place and the software GPU.
fn manifest(readme: &str, fork: &str) -> Result<String> {
    let block = readme
        .split("```toml\n")
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains("[patch.crates-io]"))
        .context("README.md has no toml block with [patch.crates-io]")?;
    let lines = block.replace("../candle-rocm", fork).replace("[\"rocm\"]", "[\"rocm-emulator\"]");
    Ok(format!(
        r#"[package]
name = "downstream"
version = "0.1.0"
edition = "2021"

{lines}
[workspace]

[profile.dev]
opt-level = 1
debug = false
"#
    ))
}

pub fn run() -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    // Outside the workspace's folder, so that neither its manifest nor its .cargo/config.toml is found.
    let place = std::env::temp_dir().join("candle-rocm-downstream");
    fs::create_dir_all(place.join("src")).with_context(|| format!("cannot create {}", place.display()))?;
    let readme = fs::read_to_string(root().join("README.md")).context("cannot read README.md")?;
    fs::write(place.join("Cargo.toml"), manifest(&readme, &root().to_string_lossy())?)?;
    fs::write(place.join("src/main.rs"), MAIN)?;
    process::run(
        cargo(&["run", "--quiet"])
            .current_dir(&place)
            .env("CARGO_TARGET_DIR", cache().join("downstream-target"))
            .env("CANDLE_ROCM_KERNEL_CACHE", root().join("target/hip-kernels/cache"))
            .env("SKIP_BINDGEN", "1")
            .env("CANDLE_ROCM_ARCHS", "gfx1100")
            .env("CANDLE_ROCM_DRIVER", "emulator:gfx1100"),
    )?;
    println!("downstream: ok");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::manifest;

    #[test]
    fn manifest_takes_the_readmes_lines_and_puts_the_place_in() {
        let readme = "```toml\n[env]\n```\n```toml\n[dependencies]\na = { features = [\"rocm\"] }\n\
                      [patch.crates-io]\na = { path = \"../candle-rocm/a\" }\n```\n";
        let text = manifest(readme, "/fork").unwrap();
        assert!(text.contains("features = [\"rocm-emulator\"]"), "{text}");
        assert!(text.contains("path = \"/fork/a\""), "{text}");
        assert!(manifest("no block", "/fork").is_err());
    }
}
