//! Families that candle-transformers lacks: logits of transformers (see `families.py`), quantized files, and broken
//! configurations.
use candle_core::quantized::GgmlDType::{Q4_0, Q5_0, Q8_0};
use serde_json::json;

use super::broken::assert_rejected;
use super::checkpoints::{check_logits, check_quantized, checkpoint};
use super::reference;

/// Values, and one of the projections before the activation, are stored in formats of their own.
const MIXED: &[(&str, candle_core::quantized::GgmlDType)] =
    &[("attn_v.weight", Q5_0), ("ffn_up.weight", Q4_0)];

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
    starcoder2: "starcoder2", "starcoder2";
    command_r: "command-r", "command-r";
    command_r7b: "command-r7b", "cohere2";
    olmoe: "olmoe", "olmoe";
    granite_moe: "granite-moe", "granitemoe";
    granite_moe_shared: "granite-moe-shared", "granitemoe";
    phi_moe: "phimoe", "phimoe";
}

#[test]
fn broken_configurations_are_rejected() {
    for (name, field, value, words) in [
        ("granite", "residual_multiplier", json!(0), "\"residual_multiplier\" is 0, but must be above 0"),
        ("granite", "logits_scaling", json!("3"), "\"logits_scaling\" is no number"),
        ("smollm3", "no_rope_layers", json!([1, 0]), "\"no_rope_layers\" has 2 entries for 4 layers"),
        ("smollm3", "no_rope_layers", json!([1, 0, 2, 1]), "\"no_rope_layers\" has 2; use 0 or 1"),
        ("command-r", "use_qk_norm", json!(true), "\"use_qk_norm\" is true"),
        ("starcoder2", "norm_epsilon", json!("1e-5"), "\"norm_epsilon\" is no number"),
        ("olmoe", "clip_qkv", json!(8.0), "\"clip_qkv\" is set"),
        ("phimoe", "num_experts_per_tok", json!(3), "\"num_experts_per_tok\" is 3, but must be 2"),
    ] {
        let (mut config, weights) = checkpoint(name);
        config[field] = value;
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &config, &weights, 1);
        assert_rejected(folder.path(), &["config.json", words]);
    }
}
