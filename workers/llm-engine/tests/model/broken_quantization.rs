//! Errors for broken or unsupported quantized folders name the problem and its location.
use llm_engine::model::files::ModelFiles;
use serde_json::{Value, json};

use super::broken::assert_rejected;
use super::checkpoints::data;
use super::packing::Packing::{self, Awq, CompressedTensors, Gptq};
use super::packing::{self, FourBits, Kind, Stored, Tensors, in_blocks};
use super::quantization::{BASE, NAME, PUBLISHED, SHAPE, llama};
use super::steps::random;

/// A change of a checkpoint.
type Change = Box<dyn Fn(&mut Value, &mut Tensors)>;

#[test]
fn broken_tensors_are_named() {
    let kind = Kind { group: 64, symmetric: false, reordered: true };
    let folder = tempfile::tempdir().unwrap();
    let part = |part: &str| format!("{BASE}.{part}");
    let remove = |name: &str| -> Change {
        let name = part(name);
        Box::new(move |_, tensors| drop(tensors.remove(&name)))
    };
    let insert = |name: &str, tensor: Stored| -> Change {
        let name = part(name);
        Box::new(move |_, tensors| drop(tensors.insert(name.clone(), tensor.clone())))
    };
    let set = |key: &'static str, value: Value| -> Change {
        Box::new(move |config, _| config[key] = value.clone())
    };
    let [outputs, inputs] = SHAPE;
    let scales = |value: f32| Stored::f32(&[4, outputs], &vec![value; 4 * outputs]);
    let cases: Vec<(Packing, Change, Vec<&str>)> = vec![
        (
            Gptq(1),
            remove("scales"),
            vec!["'model.layers.0.mlp.down_proj.qweight' has no", "down_proj.scales"],
        ),
        (Gptq(1), remove("qzeros"), vec!["has no 'model.layers.0.mlp.down_proj.qzeros'"]),
        (
            Gptq(1),
            set("group_size", 128.into()),
            vec!["down_proj.scales' has shape [4, 128]", "groups of 128", "[2, 128]"],
        ),
        (Gptq(1), set("group_size", 0.into()), vec!["config.json", "\"group_size\" is 0"]),
        (
            Gptq(1),
            insert("qweight", Stored::f32(&[32, 128], &[0.0; 32 * 128])),
            vec!["qweight", "F32", "I32"],
        ),
        (
            Gptq(1),
            insert("qzeros", Stored::i32(&[4, 15], vec![0; 60])),
            vec!["qzeros' has shape [4, 15]", "[4, 16]"],
        ),
        (Gptq(1), insert("g_idx", Stored::i32(&[8], vec![0; 8])), vec!["g_idx", "[8]", "256 input features"]),
        (
            Gptq(1),
            insert("g_idx", Stored::i32(&[inputs], vec![4; inputs])),
            vec!["feature 0 belongs to group 4", "4 groups"],
        ),
        (Gptq(1), set("desc_act", false.into()), vec!["belongs to group", "set \"desc_act\" to true"]),
        (Gptq(1), set("sym", true.into()), vec!["zero point", "set \"sym\" to false"]),
        (Gptq(1), set("bits", 3.into()), vec!["config.json", "weights of 3 bits", "4 or 8 bits"]),
        (Gptq(1), set("checkpoint_format", "marlin".into()), vec!["config.json", "marlin", "gptq_v2"]),
        (Gptq(1), set("dynamic", json!({"+:.*down.*": {"bits": 8}})), vec!["\"dynamic\"", "down"]),
        (
            Gptq(1),
            set("quant_method", "bitsandbytes".into()),
            vec!["config.json", "bitsandbytes", "gptq, awq", "GGUF"],
        ),
        (Gptq(1), set("quant_method", "fp8".into()), vec!["qweight' is packed", "quantization_config"]),
        (Awq, set("version", "gemv".into()), vec!["config.json", "\"version\"", "gemv", "gemm"]),
        (
            Awq,
            insert("scales", scales(1e6)),
            vec!["model.safetensors", NAME, "1e6", "outside of the range of f16"],
        ),
        (Awq, insert("scales", scales(f32::NAN)), vec![NAME, "NaN"]),
        (
            Awq,
            insert("scales", Stored::i32(&[4, outputs], vec![1; 4 * outputs])),
            vec!["scales' is I32", "f16"],
        ),
        (CompressedTensors, remove("weight_scale"), vec!["weight_packed' has no", "weight_scale"]),
        (CompressedTensors, set("format", "marlin-24".into()), vec!["config.json", "group_0", "marlin-24"]),
        (CompressedTensors, set("transform_config", json!({"config_groups": {}})), vec!["transform_config"]),
    ];
    let kind_of = |packing| Kind { reordered: !matches!(packing, Awq), ..kind };
    let checkpoints =
        [Gptq(1), Awq, CompressedTensors].map(|packing| checkpoint_with(packing, kind_of(packing)));
    for (packing, change, words) in cases {
        let [gptq, awq, compressed_tensors] = &checkpoints;
        let (mut config, mut tensors) = match packing {
            Gptq(_) => gptq.clone(),
            Awq => awq.clone(),
            CompressedTensors => compressed_tensors.clone(),
        };
        change(&mut config["quantization_config"], &mut tensors);
        packing::write(folder.path(), &config, &tensors);
        assert_rejected(folder.path(), &words);
    }
}

/// Returns the configuration and the tensors of a checkpoint.
fn checkpoint_with(packing: Packing, kind: Kind) -> (Value, Tensors) {
    let (case, weights) = llama();
    let [tensors, _] = packing::checkpoints(&weights, &|seed, base, shape| {
        let weights = FourBits::random(seed, shape, kind);
        (packing.tensors(&weights, base, kind), weights.weights().0)
    });
    let mut config = case.config;
    config["quantization_config"] = packing.config(kind);
    (config, tensors)
}

#[test]
fn broken_weights_of_8_bits_are_named() {
    let (case, weights) = llama();
    let [tensors, _] = packing::checkpoints(&weights, &in_blocks);
    let scale = format!("{BASE}.weight_scale_inv");
    let folder = tempfile::tempdir().unwrap();
    let rejects = |quantization: Value, tensors: &Tensors, words: &[&str]| {
        let mut config = case.config.clone();
        config["quantization_config"] = quantization;
        packing::write(folder.path(), &config, tensors);
        assert_rejected(folder.path(), words);
    };
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let mut without = tensors.clone();
    without.remove(&scale);
    rejects(fp8.clone(), &without, &["model.safetensors", NAME, "has no", "weight_scale"]);
    let mut other = tensors.clone();
    other.insert(scale.clone(), Stored::f32(&[2, 2], &[1.0; 4]));
    rejects(fp8.clone(), &other, &[&scale, "[2, 2]", "[128, 256]", "128 x 128"]);
    rejects(json!({"quant_method": "fp8"}), &tensors, &["weight_scale_inv", "\"weight_block_size\""]);
    rejects(json!({"quant_method": "fp8", "weight_block_size": [0, 1]}), &tensors, &["config.json", "[0,1]"]);
    rejects(json!({"quant_method": "fp8", "fmt": "e5m2"}), &tensors, &["config.json", "e5m2", "e4m3"]);
    let mxfp4 = json!({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}});
    rejects(mxfp4, &tensors, &["config.json", "quark", "fp4", "fp8_e4m3"]);
    // Norms have no scales.
    let mut norm = tensors.clone();
    let bytes = Stored { dtype: "F8_E4M3", shape: vec![128], bytes: vec![0; 128] };
    norm.insert("model.norm.weight".into(), bytes);
    rejects(fp8, &norm, &["model.norm.weight", "F8E4M3"]);
}

/// Files with some other bytes load or return an error.
#[test]
fn mutated_files_do_not_panic() {
    let mut next = random(7);
    let mut below = |limit: usize| ((next() + 1.0) / 2.0 * limit as f32) as usize % limit;
    let (mut loaded, mut rejected) = (0, 0);
    for (name, _) in PUBLISHED {
        let source = data(&format!("quantized-{name}"));
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
        let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for _ in 0..200 {
            let mut mutant = bytes.clone();
            for _ in 0..1 + below(3) {
                // Digits of shapes and offsets, or any byte.
                let place = below(header + 64);
                mutant[place] = match mutant[place].is_ascii_digit() {
                    true => b'0' + below(10) as u8,
                    false if below(8) == 0 => below(256) as u8,
                    false => mutant[place],
                };
            }
            std::fs::write(folder.path().join("model.safetensors"), mutant).unwrap();
            let read = ModelFiles::open(folder.path()).and_then(|files| {
                let info = files.location("x.weight")?;
                let [rows, columns] = info.shape[..] else { return files.rows("x.weight", 0..1) };
                files.part("x.weight", 0..rows, 0..columns)?;
                if info.ordered().is_some() {
                    files.ordered_rows("x.weight", 0..rows)?;
                }
                files.part("x.weight", 0..rows / 2, 0..columns / 64 * 32)
            });
            match read {
                Ok(_) => loaded += 1,
                Err(_) => rejected += 1,
            }
        }
    }
    println!("{loaded} loaded, {rejected} rejected");
    assert!(loaded > 0 && rejected > 0);
}

#[test]
fn truncated_files_are_named() {
    let kind = Kind { group: 64, symmetric: true, reordered: true };
    let (config, tensors) = checkpoint_with(Gptq(1), kind);
    let folder = tempfile::tempdir().unwrap();
    packing::write(folder.path(), &config, &tensors);
    let file = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2] {
        std::fs::write(&file, &bytes[..length]).unwrap();
        assert_rejected(folder.path(), &["model.safetensors: tensor '", "the file has", "download it again"]);
    }
}
