//! Models with recurrent states in most layers: logits of transformers (see `hybrids.py`), recurrent states, and broken files.
use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::{LoadOptions, ModelSizes, load_decoder};
use llm_engine::step::StepModel;
use serde_json::{Value, json};

use super::broken::assert_rejected;
use super::checkpoints::{check_file, check_logits, check_quantized, checkpoint, data};
#[cfg(feature = "rocm-emulator")]
use super::launches::load_on_a_stream_with;
use super::packing::{self, FourBits, Kind, Packing, Quantize, Stored, Tensors};
use super::steps::{
    LENGTHS, Runner, close, device, load, load_on_cpu, reference_on_cpu, run_on_cpu, tolerance,
};
use super::{gguf, reference};

/// Formats of linear attention: the convolution in f32, as in published files, and projections in others than f16. Models as
/// small as these are sensitive to activations of 8 bits, so not all projections are quantized.
const LINEAR: &[(&str, GgmlDType)] = &[
    ("ssm_conv1d.weight", GgmlDType::F32),
    ("attn_gate.weight", GgmlDType::Q5_0),
    ("ssm_beta.weight", GgmlDType::Q8_0),
    ("ssm_out.weight", GgmlDType::Q8_0),
];

/// Formats of Mamba 2: what converters keep in f32, and projections in others than f16.
const MAMBA: &[(&str, GgmlDType)] = &[
    ("ssm_conv1d.weight", GgmlDType::F32),
    ("ssm_a", GgmlDType::F32),
    ("ssm_d", GgmlDType::F32),
    ("ssm_norm.weight", GgmlDType::F32),
    ("ssm_in.weight", GgmlDType::Q8_0),
    ("ffn_up.weight", GgmlDType::Q5_0),
];

/// Like [`MAMBA`], for Mamba 1.
const MAMBA1: &[(&str, GgmlDType)] = &[
    ("ssm_conv1d.weight", GgmlDType::F32),
    ("ssm_a", GgmlDType::F32),
    ("ssm_dt.weight", GgmlDType::F32),
    ("ssm_in.weight", GgmlDType::Q8_0),
    ("ffn_up.weight", GgmlDType::Q5_0),
];

/// Formats of experts without gates.
const NEMOTRON_EXPERTS: &[(&str, GgmlDType)] = &[
    ("ssm_conv1d.weight", GgmlDType::F32),
    ("ssm_a", GgmlDType::F32),
    ("ssm_d", GgmlDType::F32),
    ("ssm_norm.weight", GgmlDType::F32),
    ("ffn_up_exps.weight", GgmlDType::Q8_0),
    ("ffn_down_exps.weight", GgmlDType::Q5_0),
];

#[test]
fn qwen3_next() {
    check_logits("qwen3-next", None);
}

#[test]
fn qwen3_5() {
    check_logits("qwen3.5", Some("qwen35"));
    check_quantized("qwen3.5", "qwen35", GgmlDType::F16, LINEAR);
}

#[test]
fn qwen3_5_moe() {
    check_logits("qwen3.5-moe", Some("qwen35moe"));
    check_quantized("qwen3.5-moe", "qwen35moe", GgmlDType::F16, &LINEAR[..2]);
}

#[test]
fn granite4() {
    check_logits("granite4", Some("granitehybrid"));
    check_quantized("granite4", "granitehybrid", GgmlDType::F16, MAMBA);
}

/// Several groups of heads, limits of steps, biases of projections, none of the convolution, and rotated attention.
#[test]
fn granite4_moe() {
    check_logits("granite4-moe", None);
    check_gguf_without_limits("granite4-moe", "granitehybrid");
}

#[test]
fn nemotron_h() {
    check_logits("nemotron-h", Some("nemotron_h"));
}

/// Experts without gates, and a network as the last layer.
#[test]
fn nemotron_h_moe() {
    check_logits("nemotron-h-moe", Some("nemotron_h_moe"));
    check_quantized("nemotron-h-moe", "nemotron_h_moe", GgmlDType::F16, NEMOTRON_EXPERTS);
}

#[test]
fn jamba() {
    check_logits("jamba", Some("jamba"));
    check_quantized("jamba", "jamba", GgmlDType::F16, MAMBA1);
}

/// Experts in half of the layers, biases of projections, and none of the convolution.
#[test]
fn jamba_moe() {
    check_logits("jamba-moe", Some("jamba"));
}

#[test]
fn bamba() {
    check_logits("bamba", Some("granitehybrid"));
}

/// Attention and Mamba 2 in all layers, without a norm after the latter.
#[test]
fn falcon_h1() {
    check_logits("falcon-h1", Some("falcon-h1"));
    check_quantized("falcon-h1", "falcon-h1", GgmlDType::F16, MAMBA);
}

/// Norms of groups of heads after the gates and before them, and limits of steps.
#[test]
fn falcon_h1_with_norms() {
    check_logits("falcon-h1-norm", Some("falcon-h1"));
    check_logits("falcon-h1-norm-first", None);
}

/// Experts of another width than the states.
#[test]
fn nemotron_h_with_latent_experts() {
    check_logits("nemotron-h-latent", Some("nemotron_h_moe"));
}

/// Compares a GGUF file, whose metadata has no limits of steps, with safetensors that have none.
fn check_gguf_without_limits(name: &str, arch: &str) {
    let (mut config, weights) = checkpoint(name);
    config["time_step_limit"] = Value::Null;
    let [folder, gguf_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    reference::write(folder.path(), &config, &weights, 1);
    let (metadata, tensors) = (gguf::metadata(arch, &config), gguf::convert(arch, &config, &weights));
    let path = gguf::write(gguf_folder.path(), &metadata, &tensors, GgmlDType::F32, &[]);
    let runner = Runner::new(load_on_cpu(&path), &LENGTHS);
    run_on_cpu(runner, &mut reference_on_cpu(folder.path()));
}

/// Writes a checkpoint with the names and the configuration of published models, whose files also contain a vision model, and
/// which have the experts of a layer in one tensor.
fn write_multimodal(folder: &Path, name: &str, architecture: &str) {
    let (mut config, weights) = checkpoint(name);
    let tied = config.as_object_mut().unwrap().remove("tie_word_embeddings").unwrap();
    let config = json!({"architectures": [architecture], "text_config": config, "tie_word_embeddings": tied});
    let mut renamed = HashMap::new();
    for (name, tensor) in &weights {
        let name = name.replace("model.", "model.language_model.");
        if !name.contains(".experts.") {
            renamed.insert(name, tensor.clone());
        } else if let Some(experts) = name.strip_suffix("0.gate_proj.weight") {
            let of = |part: &str| {
                let experts = experts.replace("model.language_model.", "model.");
                let one = |index: usize| weights[&format!("{experts}{index}.{part}_proj.weight")].clone();
                Tensor::stack(&(0..6).map(one).collect::<Vec<_>>(), 0).unwrap()
            };
            let both = Tensor::cat(&[of("gate"), of("up")], 1).unwrap();
            renamed.insert(format!("{experts}gate_up_proj"), both);
            renamed.insert(format!("{experts}down_proj"), of("down"));
        }
    }
    renamed.insert("model.visual.blocks.0.norm1.weight".into(), weights["model.norm.weight"].clone());
    reference::write(folder, &config, &renamed, 1);
}

#[test]
fn published_files_have_other_names() {
    for (name, architecture) in [
        ("qwen3.5", "Qwen3_5ForConditionalGeneration"),
        ("qwen3.5-moe", "Qwen3_5MoeForConditionalGeneration"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write_multimodal(folder.path(), name, architecture);
        check_file(name, folder.path());
    }
}

/// Published files of Granite 4 and Nemotron-H name the kinds of layers differently, and have infinities that JSON lacks.
#[test]
fn published_configurations_have_other_fields() {
    let write = |name: &str, change: &dyn Fn(&mut Value)| {
        let folder = tempfile::tempdir().unwrap();
        let (mut config, weights) = checkpoint(name);
        change(&mut config);
        reference::write(folder.path(), &config, &weights, 1);
        let path = folder.path().join("config.json");
        let text = std::fs::read_to_string(&path).unwrap().replace("\"infinity\"", "Infinity");
        assert!(text.contains("Infinity"));
        std::fs::write(&path, text).unwrap();
        check_file(name, folder.path());
    };
    write("granite4", &|config| {
        config["layer_types"] = json!(["mamba", "attention", "mamba", "mamba"]);
        (config["mamba_d_head"], config["time_step_limit"]) = ("auto".into(), json!([0.0, "infinity"]));
    });
    write("bamba", &|config| {
        (config["mamba_d_head"], config["time_step_limit"]) = ("auto".into(), json!([0.0, "infinity"]));
        config.as_object_mut().unwrap().remove("rope_parameters").unwrap();
    });
    write("falcon-h1", &|config| {
        (config["mamba_d_head"], config["time_step_limit"]) = ("auto".into(), json!([0.0, "infinity"]));
    });
    let folder = tempfile::tempdir().unwrap();
    let (mut config, weights) = checkpoint("jamba");
    config["mamba_dt_rank"] = "auto".into();
    reference::write(folder.path(), &config, &weights, 1);
    check_file("jamba", folder.path());
    write("nemotron-h", &|config| {
        let fields = config.as_object_mut().unwrap();
        fields.remove("layers_block_type").unwrap();
        fields.insert("hybrid_override_pattern".into(), "M-M*-M".into());
        fields.insert("time_step_limit".into(), json!([0.0, "infinity"]));
    });
}

/// Factors of Falcon-H1 are applied to floats of 8 bits, whose scales are applied, too, but not to packed weights.
#[test]
fn factors_of_quantized_weights() {
    let (mut config, weights) = checkpoint("falcon-h1");
    let kind = Kind { group: 32, symmetric: true, reordered: false };
    let of_down = |quantize: &Quantize| {
        packing::checkpoints(&weights, &|seed, base, shape| {
            if base.ends_with("down_proj") {
                return quantize(seed, base, shape);
            }
            let name = format!("{base}.weight");
            let values: Vec<f32> = weights[&name].flatten_all().unwrap().to_vec1().unwrap();
            (Tensors::from([(name, Stored::f32(&shape, &values))]), values)
        })
    };
    let [folder, float_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [packed, floats] = of_down(&packing::in_blocks);
    packing::write(float_folder.path(), &config, &floats);
    config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    packing::write(folder.path(), &config, &packed);
    let reference = &mut reference_on_cpu(float_folder.path());
    run_on_cpu(Runner::new(load_on_cpu(folder.path()), &LENGTHS), reference);
    let [packed, _] = of_down(&|seed, base, shape| {
        let weights = FourBits::random(seed, shape, kind);
        (weights.gptq(base, 1), weights.weights().0)
    });
    config["quantization_config"] = Packing::Gptq(1).config(kind);
    packing::write(folder.path(), &config, &packed);
    let words = ["layers.0.feed_forward.down_proj", "its factor 0.9 is only supported for floats"];
    assert_rejected(folder.path(), &words);
}

/// Several sequences continue from one state, by different tokens, while others replace the states of the slots that they had.
#[test]
fn states_are_copied_between_slots() {
    let mut runner = Runner::new(load(&data("qwen3.5")), &[24, 24, 24, 24]);
    let mut alone = Runner::new(load_on_cpu(&data("qwen3.5")), &[24]);
    let mut expected = |tokens: &[u32]| {
        let blocks = alone.sequences[0].blocks.clone();
        alone.sequences[0].tokens = tokens.to_vec();
        (alone.sequences[0].done, alone.sequences[0].blocks) = (0, blocks);
        alone.step(&[(0, tokens.len(), true)]).remove(0)
    };
    let first = runner.sequences[0].tokens[..16].to_vec();
    runner.step(&[(0, 16, false), (3, 20, false)]);
    // A copy whose source is written by another copy of the same call.
    runner.model.copy_states(&[(0, 1), (3, 0), (0, 2)]).unwrap();
    for index in [1, 2] {
        let shared = runner.sequences[0].blocks[0];
        runner.sequences[index].tokens[..16].copy_from_slice(&first);
        runner.sequences[index].blocks.push(shared);
        runner.sequences[index].done = 16;
    }
    for _ in 0..3 {
        let logits = runner.step(&[(2, 2, true), (1, 1, true)]);
        for (logits, index) in logits.iter().zip([2, 1]) {
            let sequence = &runner.sequences[index];
            let expected = expected(&sequence.tokens[..sequence.done]);
            close(logits, &expected, tolerance(1e-4), &format!("sequence {index} of {}", sequence.done));
        }
    }
    let slots = runner.model.capacity().states.unwrap() as u32;
    let error = runner.model.copy_states(&[(0, slots)]).unwrap_err().to_string();
    assert!(error.contains("out of range"), "{error}");
}

/// Replays change the states like steps without graphs.
#[cfg(feature = "rocm-emulator")]
#[test]
fn decoding_steps_are_replayed() {
    for name in ["qwen3.5", "jamba", "falcon-h1"] {
        let logits = |no_graphs: bool| {
            let options = LoadOptions { dtype: Some(device().1), no_graphs, ..LoadOptions::default() };
            // Two threads cannot capture the same stream.
            let (model, _) = load_on_a_stream_with(&data(name), options);
            let mut runner = Runner::new(model, &[30, 30, 30]);
            let mut logits = runner.step(&[(0, 5, true), (1, 9, true), (2, 1, true)]);
            for _ in 0..8 {
                logits.extend(runner.step(&[(0, 1, true), (1, 1, true), (2, 1, true)]));
            }
            assert_eq!(runner.model.graphs().count() > 0, !no_graphs, "{name}");
            logits
        };
        for (replayed, expected) in logits(false).iter().zip(&logits(true)) {
            close(replayed, expected, tolerance(1e-5), &format!("{name} with graphs"));
        }
    }
}

#[test]
fn embeddings_use_no_states() {
    let mut runner = Runner::new(load(&data("qwen3-next")), &[20, 7]);
    let prompts: Vec<_> = runner.sequences.iter().map(|sequence| sequence.tokens.clone()).collect();
    let embed = |runner: &mut Runner, prompts: &[Vec<u32>]| {
        let embeddings = runner.model.embed(prompts).unwrap();
        embeddings.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap()
    };
    let together = embed(&mut runner, &prompts);
    runner.step(&[(0, 20, false), (1, 7, false)]);
    for (prompt, expected) in prompts.iter().zip(&together) {
        let alone = embed(&mut runner, std::slice::from_ref(prompt));
        close(&alone[0], expected, tolerance(1e-5), "alone");
    }
}

/// Folders of models that only compute embeddings have no cache.
#[test]
fn embedding_models_have_recurrent_layers() {
    for name in ["qwen3-next", "jamba", "falcon-h1"] {
        let folder = tempfile::tempdir().unwrap();
        let (config, weights) = checkpoint(name);
        reference::write(folder.path(), &config, &weights, 1);
        let module = |kind: &str, path: &str| json!({"type": format!("models.{kind}"), "path": path});
        let modules = json!([module("Transformer", ""), module("Pooling", "1_Pooling")]).to_string();
        std::fs::write(folder.path().join("modules.json"), modules).unwrap();
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        let pooling = json!({"pooling_mode_mean_tokens": true}).to_string();
        std::fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
        let prompts = [vec![1, 2, 3, 4, 5], vec![6, 7]];
        let [vectors, expected] = [folder.path(), &data(name)].map(|path| {
            let vectors = load(path).embed(&prompts).unwrap().to_dtype(DType::F32).unwrap();
            vectors.to_vec2::<f32>().unwrap()
        });
        for (vector, expected) in vectors.iter().zip(&expected) {
            close(vector, expected, tolerance(1e-5), name);
        }
    }
}

#[test]
fn caches_without_space_for_states_are_rejected() {
    let load = |bytes| {
        let options = LoadOptions { cache_bytes: Some(bytes), ..LoadOptions::default() };
        load_decoder(&data("qwen3.5"), &device().0, options, &mut |_| ())
    };
    let error = format!("{:#}", load(20_000).err().unwrap());
    assert!(error.contains("a cache of 20000 bytes is too small: recurrent states"), "{error}");
    let capacity = load(100_000).unwrap().capacity();
    assert!(capacity.states.is_some_and(|slots| slots > 0) && capacity.blocks > 0, "{capacity:?}");
    // States take at most half, and there are at most one and a half for each sequence.
    assert_eq!(load(1 << 24).unwrap().capacity().states, Some(96));
}

/// Drafts have states of their own, at most those of a step. A draft model's cache takes its part of what the states leave.
#[test]
fn states_of_drafts_take_memory() {
    const BYTES: usize = 1 << 24;
    const STATE: usize = 3 * (4 * 16 * 16 + 3 * 128) * 4;
    const BLOCK: usize = 2 * 16 * 32 * 4;
    for (sequences, draft_tokens, slots) in [(4, 0, 6), (4, 1, 10), (4, 7, 34), (64, 15, 128)] {
        let blocks = |own: usize| (BYTES - slots * STATE) / own;
        for (cache_block, expected) in [(0, blocks(BLOCK)), (3 * BLOCK, blocks(4 * BLOCK))] {
            let draft_model_sizes = (cache_block > 0).then_some(ModelSizes { weights: 0, cache_block });
            let options = LoadOptions {
                dtype: Some(DType::F32),
                cache_bytes: Some(BYTES),
                max_sequences: Some(sequences),
                max_contexts: Some(usize::MAX),
                draft_tokens,
                draft_model_sizes,
                ..LoadOptions::default()
            };
            let model = load_decoder(&data("qwen3.5"), &Device::Cpu, options, &mut |_| ()).unwrap();
            let capacity = model.capacity();
            assert_eq!(
                (capacity.states, capacity.blocks),
                (Some(slots), expected),
                "{sequences} {draft_tokens}"
            );
        }
    }
}

#[test]
fn broken_hybrids_are_rejected() {
    let (config, weights) = checkpoint("qwen3-next");
    let file = "model.safetensors";
    let write = |config: &Value, weights: &HashMap<String, Tensor>, words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), config, weights, 1);
        assert_rejected(folder.path(), words);
    };
    let kinds = |last: &str| json!(["full_attention", "linear_attention", "linear_attention", last]);
    for (field, value, words) in [
        ("linear_num_value_heads", json!(3), &["config.json", "3 heads of values cannot share 2 heads"][..]),
        ("linear_num_value_heads", json!(8), &[file, "linear_attn.in_proj_qkvz.weight", "[192, 32]"]),
        ("linear_num_key_heads", json!(0), &["config.json", "\"linear_num_key_heads\" is 0"]),
        ("linear_key_head_dim", json!(8), &[file, "linear_attn.in_proj_qkvz.weight", "[192, 32]"]),
        ("linear_value_head_dim", json!(1u64 << 60), &["config.json", "too large"]),
        ("linear_conv_kernel_dim", json!(1), &["config.json", "\"linear_conv_kernel_dim\" is 1"]),
        ("linear_conv_kernel_dim", json!(3), &[file, "conv1d.weight", "[128, 1, 4]", "[128, 1, 3]"]),
        ("layer_types", kinds("mamba"), &["config.json", "\"mamba\""]),
        ("layer_types", kinds("full_attention"), &["there is no tensor", "layers.3.self_attn.q_proj.weight"]),
        ("attention_bias", json!(true), &["config.json", "\"attention_bias\" is true"]),
        ("num_attention_heads", json!(4), &[file, "self_attn.q_proj.weight", "[128, 32]", "[256, 32]"]),
    ] {
        let mut config = config.clone();
        config[field] = value;
        write(&config, &weights, words);
    }
    let (config, weights) = checkpoint("qwen3.5");
    let tensors = gguf::convert("qwen35", &config, &weights);
    for (name, words) in [
        ("blk.0.ssm_a", "there is no tensor"),
        ("blk.1.ssm_dt.bias", "there is no tensor"),
        ("blk.2.attn_gate.weight", "there is no tensor"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = tensors.clone();
        tensors.remove(name);
        let metadata = gguf::metadata("qwen35", &config);
        let path = gguf::write(folder.path(), &metadata, &tensors, GgmlDType::F32, &[]);
        assert_rejected(&path, &["model.gguf", words, name]);
    }
    let (config, weights) = checkpoint("qwen3-next");
    for name in ["A_log", "dt_bias", "conv1d.weight", "norm.weight", "out_proj.weight", "in_proj_ba.weight"] {
        let mut weights = weights.clone();
        let name = format!("model.layers.2.linear_attn.{name}");
        weights.remove(&name);
        write(&config, &weights, &["there is no tensor", &name]);
    }
}

#[test]
fn broken_models_with_mamba_are_rejected() {
    let file = "model.safetensors";
    let write = |config: &Value, weights: &HashMap<String, Tensor>, words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), config, weights, 1);
        assert_rejected(folder.path(), words);
    };
    let input = "mamba.in_proj.weight";
    for (name, field, value, words) in [
        ("granite4-moe", "mamba_n_heads", json!(3), &["config.json", "3 heads of values cannot share 2"][..]),
        ("granite4", "mamba_n_heads", json!(8), &[file, input, "[164, 32]", "[296, 32]"]),
        ("granite4", "mamba_d_state", json!(8), &[file, input, "[148, 32]"]),
        ("granite4", "mamba_d_conv", json!(3), &[file, "mamba.conv1d.weight", "[96, 1, 3]"]),
        ("granite4", "mamba_proj_bias", json!(true), &["there is no tensor", "mamba.in_proj.bias"]),
        (
            "granite4",
            "time_step_limit",
            json!([2.0, 1.0]),
            &["config.json", "\"time_step_limit\" is [2.0,1.0]"],
        ),
        ("granite4", "time_step_limit", json!(1.0), &["config.json", "\"time_step_limit\" is 1.0"]),
        ("granite4", "shared_intermediate_size", json!(32), &[file, "shared_mlp.input_linear.weight"]),
        ("nemotron-h", "mlp_hidden_act", json!("silu"), &["config.json", "\"mlp_hidden_act\" is", "relu2"]),
        (
            "nemotron-h",
            "layers_block_type",
            json!(["mamba", "moe"]),
            &["there is no tensor", "mixer.gate.weight"],
        ),
        ("nemotron-h", "layers_block_type", json!(["mamba", "rnn"]), &["config.json", "\"rnn\""]),
        (
            "nemotron-h",
            "layers_block_type",
            json!(["attention"]),
            &["there is no tensor", "mixer.q_proj.weight"],
        ),
        ("jamba", "mamba_d_state", json!(8), &[file, "mamba.c_layernorm.weight", "[16]", "[8]"]),
        ("jamba", "mamba_expand", json!(3), &[file, "mamba.in_proj.weight", "[128, 32]", "[192, 32]"]),
        ("jamba", "mamba_expand", json!(1u64 << 62), &["config.json", "\"mamba_expand\" is too large"]),
        ("jamba", "mamba_dt_rank", json!(u64::MAX), &["config.json", "\"mamba_dt_rank\" is 1844", "65536"]),
        ("jamba", "mamba_dt_rank", json!(4), &[file, "mamba.dt_layernorm.weight", "[2]", "[4]"]),
        ("jamba", "mamba_d_conv", json!(3), &[file, "mamba.conv1d.weight", "[64, 1, 4]", "[64, 1, 3]"]),
        (
            "jamba",
            "hidden_act",
            json!("gelu_new"),
            &["config.json", "\"hidden_act\" is \"gelu_new\"", "silu"],
        ),
        ("jamba", "attn_layer_offset", json!(3), &["config.json", "\"attn_layer_offset\" is 3", "below"]),
        ("jamba", "attn_layer_offset", json!("x"), &["config.json", "\"attn_layer_offset\" is not a whole"]),
        ("jamba", "attn_layer_period", json!(2), &["there is no tensor", "layers.3.self_attn.q_proj.weight"]),
        ("jamba-moe", "num_experts", json!(5), &[file, "feed_forward.router.weight", "[4, 32]", "[5, 32]"]),
        (
            "jamba-moe",
            "expert_layer_period",
            json!(4),
            &["there is no tensor", "layers.3.feed_forward.gate_proj.weight"],
        ),
        ("bamba", "attn_layer_indices", json!([1, 2]), &["there is no tensor", "layers.2.self_attn.q_proj"]),
        ("bamba", "hidden_act", json!("relu2"), &["config.json", "\"hidden_act\" is \"relu2\""]),
        ("bamba", "mamba_n_heads", json!(8), &[file, input, "[164, 32]", "[296, 32]"]),
        (
            "qwen3.5",
            "use_bidirectional_attention",
            json!(true),
            &["config.json", "\"use_bidirectional_attention\""],
        ),
        ("falcon-h1", "mlp_multipliers", json!([1.0]), &["config.json", "\"mlp_multipliers\" is [1.0]", "2"]),
        ("falcon-h1", "ssm_multipliers", json!(2.0), &["config.json", "\"ssm_multipliers\" is 2.0", "5"]),
        ("falcon-h1", "mamba_rms_norm", json!(true), &["there is no tensor", "layers.0.mamba.norm.weight"]),
        ("falcon-h1", "attention_bias", json!(true), &["config.json", "\"attention_bias\" is true"]),
        ("falcon-h1", "mamba_d_state", json!(8), &[file, input, "[164, 32]", "[148, 32]"]),
        ("falcon-h1", "time_step_limit", json!([2.0, 1.0]), &["config.json", "\"time_step_limit\" is"]),
        (
            "nemotron-h-moe",
            "moe_latent_size",
            json!(16),
            &["backbone.layers.1.mixer.experts.0.up_proj", "[32, 16]"],
        ),
        (
            "nemotron-h-moe",
            "moe_latent_size",
            json!(32),
            &["there is no tensor", "mixer.fc1_latent_proj.weight"],
        ),
        ("nemotron-h-moe", "moe_latent_size", json!(0), &["config.json", "\"moe_latent_size\" is 0"]),
        ("nemotron-h-moe", "n_routed_experts", json!(5), &[file, "mixer.gate.weight", "[4, 32]", "[5, 32]"]),
    ] {
        println!("{name}: {field} {value}");
        let (mut config, weights) = checkpoint(name);
        config[field] = value;
        write(&config, &weights, words);
    }
    let (mut config, weights) = checkpoint("nemotron-h");
    config.as_object_mut().unwrap().remove("layers_block_type");
    config["hybrid_override_pattern"] = "M-X".into();
    write(&config, &weights, &["config.json", "\"hybrid_override_pattern\" has 'X'"]);
    let (config, weights) = checkpoint("granite4");
    for name in ["A_log", "D", "dt_bias", "conv1d.weight", "conv1d.bias", "norm.weight", "out_proj.weight"] {
        let mut weights = weights.clone();
        let name = format!("model.layers.2.mamba.{name}");
        weights.remove(&name);
        write(&config, &weights, &["there is no tensor", &name]);
    }
    let tensors = gguf::convert("granitehybrid", &config, &weights);
    for name in
        ["blk.0.ssm_a", "blk.2.ssm_d", "blk.3.ssm_dt.bias", "blk.0.ssm_norm.weight", "blk.0.ffn_up.weight"]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = tensors.clone();
        tensors.remove(name);
        let metadata = gguf::metadata("granitehybrid", &config);
        let path = gguf::write(folder.path(), &metadata, &tensors, GgmlDType::F32, &[]);
        assert_rejected(&path, &["model.gguf", "there is no tensor", name]);
    }
}
