//! Families that candle-transformers lacks: logits of transformers (see `families.py`), quantized files, and broken
//! configurations.
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::quantized::GgmlDType::{self, Q4_0, Q5_0, Q8_0};
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::gguf_file::Value as Metadatum;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::families::all_families;
use llm_engine::model::files::ModelFiles;
use serde_json::json;

use super::broken::assert_rejected;
use super::checkpoints::{check_blocks, check_file, check_logits, check_quantized, checkpoint, data};
use super::{gguf, reference};

/// Values, and one of the projections before the activation, are stored in formats of their own.
const MIXED: &[(&str, GgmlDType)] = &[("attn_v.weight", Q5_0), ("ffn_up.weight", Q4_0)];

/// Tests a checkpoint as safetensors and as GGUF, with float and quantized weights.
macro_rules! families {
    ($($test:ident: $name:literal, $arch:literal;)*) => {$(
        #[test]
        fn $test() {
            check_logits($name, Some($arch));
            check_quantized($name, $arch, Q8_0, MIXED);
        }
    )*};
}

families! {
    granite: "granite", "granite";
    olmo2: "olmo2", "olmo2";
    olmo3: "olmo3", "olmo2";
    smollm3: "smollm3", "smollm3";
    glm4: "glm4", "glm4";
    seed_oss: "seed-oss", "seed_oss";
    exaone4: "exaone4", "exaone4";
    exaone4_without_windows: "exaone4-no-window", "exaone4";
    ernie4_5: "ernie4.5", "ernie4_5";
    arcee: "arcee", "arcee";
    nemotron: "nemotron", "nemotron";
    falcon: "falcon", "falcon";
    falcon_with_two_norms: "falcon-two-norms", "falcon";
    falcon_with_one_norm: "falcon-one-norm", "falcon";
    starcoder2: "starcoder2", "starcoder2";
    command_r: "command-r", "command-r";
    command_r7b: "command-r7b", "cohere2";
    olmoe: "olmoe", "olmoe";
    granite_moe: "granite-moe", "granitemoe";
    granite_moe_shared: "granite-moe-shared", "granitemoe";
    phi_moe: "phimoe", "phimoe";
    deepseek_v2: "deepseek-v2", "deepseek2";
    deepseek_v2_lite: "deepseek-v2-lite", "deepseek2";
    glm4_moe: "glm4-moe", "glm4moe";
    deepseek_v3: "deepseek-v3", "deepseek2";
    ernie4_5_moe: "ernie4.5-moe", "ernie4_5-moe";
}

/// Older GGUF files have one matrix for keys and values, and the widths of plain heads.
#[test]
fn deepseek_v2_in_older_files() {
    let (config, weights) = checkpoint("deepseek-v2-lite");
    let mut tensors = gguf::convert("deepseek2", &config, &weights);
    for layer in 0..3 {
        tensors.remove(&format!("blk.{layer}.attn_k_b.weight"));
        tensors.remove(&format!("blk.{layer}.attn_v_b.weight"));
        let both = weights[&format!("model.layers.{layer}.self_attn.kv_b_proj.weight")].clone();
        tensors.insert(format!("blk.{layer}.attn_kv_b.weight"), both);
    }
    let mut metadata = gguf::metadata("deepseek2", &config);
    metadata.retain(|(key, _)| !key.contains("key_length") && !key.contains("value_length"));
    for (key, value) in [("attention.key_length", 48), ("attention.value_length", 32)] {
        metadata.push((format!("deepseek2.{key}"), Metadatum::U32(value)));
    }
    let folder = tempfile::tempdir().unwrap();
    check_file("deepseek-v2-lite", &gguf::write(folder.path(), &metadata, &tensors, GgmlDType::F32, &[]));
}

#[test]
fn layers_that_predict_further_tokens_are_not_loaded() {
    let (config, weights) = checkpoint("glm4-moe");
    let tensors = gguf::convert("glm4moe", &config, &weights);
    let mut metadata = gguf::metadata("glm4moe", &config);
    metadata.retain(|(key, _)| key != "glm4moe.block_count");
    for (key, value) in [("block_count", 3), ("nextn_predict_layers", 1)] {
        metadata.push((format!("glm4moe.{key}"), Metadatum::U32(value)));
    }
    let folder = tempfile::tempdir().unwrap();
    check_file("glm4-moe", &gguf::write(folder.path(), &metadata, &tensors, GgmlDType::F32, &[]));
}

/// llama.cpp does not convert such models.
#[test]
fn falcon_with_one_block_after_the_other() {
    check_logits("falcon-sequential", None);
}

#[test]
fn gpt_oss() {
    check_logits("gpt-oss", None);
}

/// Experts in MXFP4 are the same numbers as the floats, and computed from blocks.
#[test]
fn gpt_oss_in_mxfp4() {
    let (_, floats) = checkpoint("gpt-oss");
    let folder = data("gpt-oss-mxfp4");
    let values = |files: &mut ModelFiles, name: &str| {
        let shape = files.location(name).unwrap().shape.clone();
        let bytes = files.rows(name, 0..shape[0]).unwrap();
        let blocks = qtensor_from_ggml(GgmlDType::MXFP4, &bytes, shape, &Device::Cpu).unwrap();
        blocks.dequantize(&Device::Cpu).unwrap()
    };
    let rows = |tensor: &Tensor| tensor.flatten_to(1).unwrap().to_vec2::<f32>().unwrap();
    let every_second = |tensor: &Tensor, first: usize| {
        let tensor = tensor.reshape((6, 32, 2, 32)).unwrap();
        tensor.narrow(2, first, 1).unwrap().squeeze(2).unwrap()
    };
    let mut safetensors = ModelFiles::open(&folder).unwrap();
    let mut gguf = ModelFiles::open(&folder.join("model.gguf")).unwrap();
    for layer in 0..2 {
        let name = |part| format!("model.layers.{layer}.mlp.experts.{part}");
        let expected = |part| floats[&name(part)].t().unwrap().contiguous().unwrap();
        for part in ["gate_up_proj", "down_proj"] {
            assert_eq!(rows(&values(&mut safetensors, &name(part))), rows(&expected(part)), "{part}");
        }
        let gate_up = expected("gate_up_proj");
        for (part, expected) in [
            ("gate", every_second(&gate_up, 0)),
            ("up", every_second(&gate_up, 1)),
            ("down", expected("down_proj")),
        ] {
            let name = format!("blk.{layer}.ffn_{part}_exps.weight");
            assert_eq!(rows(&values(&mut gguf, &name)), rows(&expected), "{name}");
        }
    }
    for path in [folder.clone(), folder.join("model.gguf")] {
        check_blocks("gpt-oss", &path);
    }
}

#[test]
fn all_families_are_in_the_table_of_tests() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/parity.md");
    let page = fs::read_to_string(page).unwrap();
    for family in all_families() {
        assert!(page.contains(&format!("\n| {} | `", family.name)), "no row of {}", family.name);
    }
}

#[test]
fn broken_tensors_in_mxfp4_are_rejected() {
    let (config, weights) = checkpoint("gpt-oss-mxfp4");
    let (scales, blocks) =
        ("model.layers.1.mlp.experts.down_proj_scales", "model.layers.1.mlp.experts.down_proj_blocks");
    let bytes = |tensor: &Tensor| tensor.to_dtype(DType::U8).unwrap();
    let mut weights: HashMap<String, Tensor> = weights
        .into_iter()
        .map(|(name, tensor)| {
            let is_mxfp4 = name.ends_with("_scales") || name.ends_with("_blocks");
            let tensor = if is_mxfp4 { bytes(&tensor) } else { tensor };
            (name, tensor)
        })
        .collect();
    let rejects = |weights: &HashMap<String, Tensor>, words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &config, weights, 1);
        assert_rejected(folder.path(), words);
    };
    let whole = weights[scales].clone();
    weights.insert(scales.into(), whole.narrow(0, 0, 5).unwrap().force_contiguous().unwrap());
    rejects(&weights, &[blocks, "[6, 32, 1, 16]", scales, "[5, 32, 1]"]);
    weights.remove(scales);
    rejects(&weights, &[blocks, "has no", scales]);
    let bytes = fs::read(data("gpt-oss-mxfp4").join("model.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for length in [100, 2000, bytes.len() - 40] {
        fs::write(folder.path().join("a.gguf"), &bytes[..length]).unwrap();
        assert_rejected(&folder.path().join("a.gguf"), &["a.gguf"]);
    }
}

#[test]
fn broken_configurations_are_rejected() {
    for (name, field, value, words) in [
        ("granite", "residual_multiplier", json!(0), "\"residual_multiplier\" is 0, but must be above 0"),
        ("granite", "logits_scaling", json!("3"), "\"logits_scaling\" is not a number"),
        ("smollm3", "no_rope_layers", json!([1, 0]), "\"no_rope_layers\" has 2 entries for 4 layers"),
        ("smollm3", "no_rope_layers", json!([1, 0, 2, 1]), "\"no_rope_layers\" has 2; use 0 or 1"),
        ("command-r", "use_qk_norm", json!(true), "\"use_qk_norm\" is true"),
        ("starcoder2", "norm_epsilon", json!("1e-5"), "\"norm_epsilon\" is not a number"),
        ("ernie4.5", "use_bias", json!(true), "\"use_bias\" is true"),
        ("ernie4.5-moe", "use_bias", json!(true), "\"use_bias\" is true"),
        ("ernie4.5-moe", "moe_layer_interval", json!(0), "\"moe_layer_interval\" is 0"),
        ("falcon", "alibi", json!(true), "\"alibi\" is true"),
        ("falcon", "activation", json!("relu"), "\"activation\" is \"relu\"; use gelu"),
        ("falcon-two-norms", "num_kv_heads", json!(3), "4 heads cannot share 3 heads of keys and values"),
        ("falcon-two-norms", "num_ln_in_parallel_attn", json!(3), "must be 1 or 2"),
        ("falcon-two-norms", "parallel_attn", json!(false), "\"parallel_attn\" is false"),
        ("arcee", "hidden_act", json!("xielu"), "\"xielu\" is not known; use silu"),
        ("olmoe", "clip_qkv", json!(8.0), "\"clip_qkv\" is set"),
        ("deepseek-v2", "topk_group", json!(3), "6 experts cannot form 2 groups of which 3 are chosen"),
        ("deepseek-v2", "attention_bias", json!(true), "\"attention_bias\" is true"),
        ("deepseek-v2", "v_head_dim", json!(64), "do not match values of 64 elements"),
        ("phimoe", "num_experts_per_tok", json!(3), "\"num_experts_per_tok\" is 3, but must be 2"),
    ] {
        let (mut config, weights) = checkpoint(name);
        config[field] = value;
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &config, &weights, 1);
        assert_rejected(folder.path(), &["config.json", words]);
    }
}
