//! Models that read pictures: pixels, features and logits of transformers (see `vision.py`), as safetensors and as GGUF files with
//! an mmproj file (see `mmproj.py`).
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::gguf_file::{self, Content, Value as Metadatum};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use llm_engine::model::decoder::Decoder;
use llm_engine::model::vision::{
    ImageProcessor, PictureError, Placement, ProcessedPicture, PromptAxes, VisionConfig,
};
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{BLOCK_SIZE, PictureRows, Step, StepModel};
use pictures::RgbPicture;
use serde_json::{Value, json};

use super::broken::assert_rejected;
use super::checkpoints::{checkpoint, data};
use super::steps::{Runner, close, load, load_on_cpu, tolerance};
use super::{gguf, reference};

/// Token of the checkpoints that stands for a feature.
const IMAGE: u32 = 40;

/// A text with pictures, and the logits of transformers after each of its tokens.
struct Text {
    tokens: Vec<u32>,
    places: Vec<Placement>,
    axes: PromptAxes,
    logits: Vec<Vec<f32>>,
    /// Number of its first tokens that are computed.
    done: usize,
    blocks: Vec<u32>,
}

/// A model with its expected results.
struct Checked {
    model: Decoder,
    expected: HashMap<String, Tensor>,
    free: Vec<u32>,
}

/// Returns the ranges of equal tokens that stand for features.
fn spans(tokens: &[u32]) -> Vec<std::ops::Range<usize>> {
    let mut spans: Vec<std::ops::Range<usize>> = Vec::new();
    for (place, _) in tokens.iter().enumerate().filter(|(_, token)| **token == IMAGE) {
        match spans.last_mut() {
            Some(last) if last.end == place => last.end += 1,
            _ => spans.push(place..place + 1),
        }
    }
    spans
}

impl Checked {
    fn new(name: &str, model: Decoder) -> Self {
        let expected = candle_core::safetensors::load(data(name).join("expected.st"), &Device::Cpu).unwrap();
        let free = (0..model.capacity().blocks as u32).collect();
        Self { model, expected, free }
    }

    fn picture(&self, index: usize) -> RgbPicture {
        let pixels = &self.expected[&format!("picture.{index}")];
        let (height, width, _) = pixels.dims3().unwrap();
        RgbPicture { width, height, rgb: pixels.flatten_all().unwrap().to_vec1().unwrap() }
    }

    fn processed(&self, index: usize) -> Arc<ProcessedPicture> {
        Arc::new(self.model.image_processor().unwrap().process(&self.picture(index)).unwrap())
    }

    fn text(&self, index: usize) -> Text {
        let tensor = |name: &str| &self.expected[&format!("{name}.{index}")];
        let list = |name| tensor(name).to_dtype(DType::U32).unwrap().to_vec1::<u32>().unwrap();
        let (tokens, shown) = (list("tokens"), list("shown"));
        let mut rest = spans(&tokens).into_iter();
        let place = |number: &u32| {
            let picture = self.processed(*number as usize);
            let (mut spans, mut left) = (Vec::new(), picture.tokens());
            while left > 0 {
                let span = rest.next().unwrap();
                left -= span.len();
                spans.push(span);
            }
            Placement { picture, spans }
        };
        let places: Vec<Placement> = shown.iter().map(place).collect();
        assert_eq!(rest.next(), None);
        let axes = PromptAxes::new(tokens.len(), &places);
        let logits = tensor("logits").to_vec2().unwrap();
        Text { tokens, places, axes, logits, done: 0, blocks: Vec::new() }
    }

    /// Computes a step with so many further rows of texts, and compares the logits of all of them.
    fn step(&mut self, texts: &mut [Text], shares: &[(usize, usize)], tolerance: f32) -> f32 {
        let mut step = Step::default();
        let has_axes = self.model.config().axes.is_some();
        for &(index, rows) in shares {
            let text = &mut texts[index];
            let (from, end, first) = (text.done, text.done + rows, step.tokens.len());
            while text.blocks.len() < end.div_ceil(BLOCK_SIZE) {
                text.blocks.push(self.free.pop().unwrap());
            }
            step.push(&text.tokens[..end], from, text.blocks.clone(), rows, None);
            // Each text has the slot of its number.
            step.states.extend(self.model.capacity().states.map(|_| index as u32));
            if has_axes {
                step.axes.extend((from..end).map(|place| text.axes.at(place)));
            }
            for place in &text.places {
                let mut feature = 0;
                for span in &place.spans {
                    let own = span.start.max(from)..span.end.min(end);
                    if !own.is_empty() {
                        step.pictures.push(PictureRows {
                            picture: place.picture.clone(),
                            rows: own.start - from + first..own.end - from + first,
                            first: feature + own.start - span.start,
                        });
                    }
                    feature += span.len();
                }
            }
            text.done = end;
        }
        let logits = self.model.step(&step).unwrap().to_vec2::<f32>().unwrap();
        let rows = shares.iter().flat_map(|&(index, rows)| {
            let text = &texts[index];
            (text.done - rows..text.done).map(move |row| (index, row))
        });
        let off = logits.iter().zip(rows).map(|(logits, (index, row))| {
            close(logits, &texts[index].logits[row], tolerance, &format!("text {index}, row {row}"))
        });
        off.fold(0f32, f32::max)
    }

    /// Compares pixels and features of pictures.
    fn check_features(&mut self, exact: f32) {
        for index in 0..3 {
            let picture = self.processed(index);
            let features = &self.expected[&format!("features.{index}")];
            assert_eq!(features.dims()[1], picture.tokens());
            let got = self.model.vision().unwrap().features(&picture).unwrap();
            assert_eq!(got.dims(), features.dims());
            let values =
                |x: &Tensor| x.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
            close(
                &values(&got),
                &values(features),
                tolerance(exact),
                &format!("features of picture {index}"),
            );
        }
    }
}

/// Compares features and logits: prompts in chunks beside others, decoding, a prefix with a picture that another text has
/// computed, and a text that is computed again.
fn check(name: &str, path: &Path, is_bidirectional: bool, load: fn(&Path) -> Decoder, exact: f32) {
    let mut checked = Checked::new(name, load(path));
    checked.check_features(exact);
    let mut texts: Vec<Text> = (0..4).map(|index| checked.text(index)).collect();
    let tolerance = tolerance(exact);
    let mut worst = 0f32;
    let mut step = |checked: &mut Checked, texts: &mut [Text], shares: &[(usize, usize)]| {
        worst = worst.max(checked.step(texts, shares, tolerance));
    };
    // A step either ends inside of the picture or computes all of it.
    let first = texts[0].places[0].spans[0].start;
    let last = texts[0].places[0].spans.last().unwrap().end;
    let cut = if is_bidirectional { 0 } else { 5 };
    step(&mut checked, &mut texts, &[(0, first + cut), (2, 20)]);
    step(&mut checked, &mut texts, &[(2, 5), (0, last - first - cut + 2)]);
    let rest = texts[0].tokens.len() - texts[0].done - 8;
    step(&mut checked, &mut texts, &[(0, rest)]);
    for _ in 0..8 {
        step(&mut checked, &mut texts, &[(0, 1), (2, 1)]);
    }
    // The blocks of the first text, which end inside of the picture or after it, are those of another.
    let shared = match is_bidirectional {
        true => last / BLOCK_SIZE,
        // Recurrent states are not those of the end of these blocks.
        false if checked.model.capacity().states.is_some() => 0,
        false => (first + 5).div_ceil(BLOCK_SIZE),
    };
    texts[1].blocks = texts[0].blocks[..shared].to_vec();
    texts[1].done = shared * BLOCK_SIZE;
    assert!(texts[1].tokens[..texts[1].done] == texts[0].tokens[..texts[1].done]);
    let [rows, other] = [1, 3].map(|index: usize| texts[index].tokens.len() - texts[index].done - 3);
    step(&mut checked, &mut texts, &[(1, rows), (3, other)]);
    step(&mut checked, &mut texts, &[(3, 1), (1, 2)]);
    // A preempted text is computed again in other blocks.
    (texts[0].done, texts[0].blocks) = (0, Vec::new());
    let rows = texts[0].tokens.len() - 2;
    step(&mut checked, &mut texts, &[(3, 1), (0, rows)]);
    step(&mut checked, &mut texts, &[(0, 1), (1, 1), (3, 1)]);
    println!("{name}: worst {worst}");
}

fn check_model(name: &str, is_bidirectional: bool) {
    check_files(name, &data(name), is_bidirectional);
}

/// Like [`check_model`], for the files that `mmproj.py` writes.
fn check_gguf(name: &str, is_bidirectional: bool) {
    check_files(name, &data(name).join("model.gguf"), is_bidirectional);
}

fn check_files(name: &str, path: &Path, is_bidirectional: bool) {
    let mut checked = Checked::new(name, load_on_cpu(path));
    for index in 0..3 {
        let pixels = &checked.expected[&format!("pixels.{index}")].to_dtype(DType::F32).unwrap();
        let expected = pixels.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        check_pixels(&checked.processed(index), &expected, name, index);
    }
    checked.check_features(1e-4);
    check(name, path, is_bidirectional, load_on_cpu, 1e-4);
    if cfg!(feature = "rocm-emulator") {
        check(name, path, is_bidirectional, load, 1e-4);
    }
}

/// Compares the sorted pixels, since patches have another order than those of transformers, with repeated frames left out.
fn check_pixels(picture: &ProcessedPicture, expected: &[f32], name: &str, index: usize) {
    let mut got = picture.normalized();
    let frames = expected.len() / got.len();
    let mut expected = expected.to_vec();
    got.sort_by(f32::total_cmp);
    expected.sort_by(f32::total_cmp);
    let expected: Vec<f32> = expected.into_iter().step_by(frames).collect();
    close(&got, &expected, 1e-3, &format!("pixels of picture {index} of {name}"));
}

#[test]
fn qwen2_5_vl() {
    check_model("qwen2.5-vl", false);
}

#[test]
fn qwen2_5_vl_in_gguf() {
    check_gguf("qwen2.5-vl", false);
}

#[test]
fn qwen3_vl() {
    check_model("qwen3-vl", false);
}

/// Pictures in a model with recurrent states, which continue from any position.
#[test]
fn qwen3_5() {
    check_model("qwen3.5-vision", false);
}

#[test]
fn qwen3_vl_in_gguf() {
    check_gguf("qwen3-vl", false);
}

/// Like [`check_gguf`], for a text model that is converted here.
fn check_converted(
    name: &str,
    arch: &str,
    more: &[(&str, Metadatum)],
    tokens: &[(u32, &str)],
    is_bidirectional: bool,
) {
    let (config, weights) = checkpoint(name);
    let mut text = config["text_config"].clone();
    if let Some(width) = text["per_layer_config"]["2"].get("head_dim") {
        text["global_head_dim"] = width.clone();
    }
    let text = &text;
    let mut own = HashMap::new();
    for (name, tensor) in
        weights.into_iter().filter(|(name, _)| !name.contains("visual.") && !name.contains("vision"))
    {
        let name = name.replace("model.language_model.", "model.");
        let part = |dim: usize, index: usize, first: usize, count: usize| {
            let expert = tensor.narrow(0, index, 1).unwrap().squeeze(0).unwrap();
            expert.narrow(dim, first, count).unwrap().force_contiguous().unwrap()
        };
        let Some((layer, stack)) = name.split_once(".experts.") else {
            own.insert(name, tensor);
            continue;
        };
        let (experts, rows, _) = tensor.dims3().unwrap();
        for index in 0..experts {
            let mut insert = |kind: &str, first: usize, count: usize| {
                own.insert(format!("{layer}.experts.{index}.{kind}.weight"), part(0, index, first, count));
            };
            match stack {
                "gate_up_proj" => {
                    insert("gate_proj", 0, rows / 2);
                    insert("up_proj", rows / 2, rows / 2);
                }
                _ => insert("down_proj", 0, rows),
            }
        }
    }
    let tensors = gguf::convert(arch, text, &own);
    let mut metadata = gguf::metadata(arch, text);
    metadata.retain(|(key, _)| !more.iter().any(|(other, _)| *key == format!("{arch}.{other}")));
    metadata.extend(more.iter().map(|(key, value)| (format!("{arch}.{key}"), value.clone())));
    if let Some(sections) = text["rope_parameters"]["mrope_section"].as_array() {
        let sections = sections.iter().map(|size| Metadatum::U32(size.as_u64().unwrap() as u32));
        let sections = Metadatum::Array(sections.chain([Metadatum::U32(0)]).collect());
        metadata.push((format!("{arch}.rope.dimension_sections"), sections));
    }
    let token = |id: u64| {
        let own = tokens.iter().find(|(token, _)| u64::from(*token) == id);
        own.map_or_else(|| format!("t{id}"), |(_, text)| (*text).to_owned())
    };
    let tokens = (0..text["vocab_size"].as_u64().unwrap()).map(|id| Metadatum::String(token(id)));
    metadata.push(("tokenizer.ggml.tokens".into(), Metadatum::Array(tokens.collect())));
    let folder = tempfile::tempdir().unwrap();
    let path = gguf::write(folder.path(), &metadata, &tensors, GgmlDType::F32, &[]);
    let encoder = "mmproj-model-f16.gguf";
    std::fs::copy(data(name).join(encoder), folder.path().join(encoder)).unwrap();
    check_files(name, &path, is_bidirectional);
}

const QWEN_TOKENS: &[(u32, &str)] = &[(IMAGE, "<|image_pad|>")];
const GEMMA4_TOKENS: &[(u32, &str)] = &[(IMAGE, "<|image|>"), (44, "<|image>"), (45, "<image|>")];

#[test]
fn qwen3_vl_moe_in_gguf() {
    check_converted("qwen3-vl-moe", "qwen3vlmoe", &[], QWEN_TOKENS, false);
}

#[test]
fn gemma4_in_gguf() {
    check_converted("gemma4-vision", "gemma4", &[], GEMMA4_TOKENS, true);
    check_converted("gemma4-vision-small", "gemma4", &[], GEMMA4_TOKENS, false);
}

#[test]
fn qwen3_5_in_gguf() {
    check_converted(
        "qwen3.5-vision",
        "qwen35",
        &[("full_attention_interval", Metadatum::U32(2))],
        QWEN_TOKENS,
        false,
    );
}

#[test]
fn qwen3_vl_moe() {
    check_model("qwen3-vl-moe", false);
}

/// Published files of Qwen3-VL-MoE have the transposed stacks.
#[test]
fn transposed_stacks_of_experts_equal_others() {
    let (config, mut weights) = checkpoint("qwen3-vl-moe");
    weights.retain(|name, _| !name.contains("visual."));
    for (name, stack) in &mut weights {
        if name.contains(".experts.") {
            *stack = stack.transpose(1, 2).unwrap().force_contiguous().unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &config, &weights, 1);
    let logits = |path: &Path| Runner::new(load_on_cpu(path), &[20]).step(&[(0, 20, true)]).remove(0);
    close(&logits(folder.path()), &logits(&data("qwen3-vl-moe")), 1e-6, "transposed");
}

/// Replaces fields of JSON, given by pointers.
fn replaced(json: &Value, changes: &[(&str, Value)]) -> Value {
    let mut json = json.clone();
    for (path, value) in changes {
        let (parent, field) = path.rsplit_once('/').unwrap();
        json.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    json
}

#[test]
fn broken_encoders_are_rejected() {
    let name = "qwen3-vl";
    let (config, weights) = checkpoint(name);
    let processor = std::fs::read_to_string(data(name).join("preprocessor_config.json")).unwrap();
    let processor: Value = serde_json::from_str(&processor).unwrap();
    let write =
        |config: &Value, processor: Option<&Value>, weights: &HashMap<String, Tensor>, words: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            reference::write(folder.path(), config, weights, 1);
            if let Some(processor) = processor {
                std::fs::write(folder.path().join("preprocessor_config.json"), processor.to_string())
                    .unwrap();
            }
            assert_rejected(folder.path(), words);
        };
    let vision = |field: &str| format!("/vision_config/{field}");
    for (path, value, words) in [
        (vision("hidden_size"), json!(24), &["patch_embed.proj.weight", "[24, 3, 2, 4, 4]"][..]),
        (vision("num_heads"), json!(9), &["config.json", "\"hidden_size\" is 32", "the 9 heads"]),
        (vision("depth"), json!(4), &["there is no tensor", "visual.blocks.3."]),
        (vision("depth"), json!(1000), &["config.json", "1000 layers exceed"]),
        (vision("intermediate_size"), json!(40), &["mlp.linear_fc1.weight", "[40, 32]"]),
        (vision("patch_size"), json!(0), &["config.json", "\"patch_size\" is 0"]),
        (vision("spatial_merge_size"), json!(3), &["\"merge_size\" is 2, but config.json has 3"]),
        (vision("num_position_embeddings"), json!(25), &["pos_embed.weight", "[25, 32]"]),
        (vision("num_position_embeddings"), json!(0), &["config.json", "positions has 0 rows"]),
        (vision("num_position_embeddings"), json!(u64::MAX), &["positions has 4294967295 rows"]),
        (
            vision("hidden_size"),
            json!(u64::MAX),
            &["\"hidden_size\" is 18446744073709551615", "at most 1048576"],
        ),
        (vision("num_heads"), json!(1u64 << 62), &["\"num_attention_heads\"", "at most 1048576"]),
        (vision("intermediate_size"), json!(1u64 << 62), &["\"intermediate_size\"", "at most 1048576"]),
        (vision("deepstack_visual_indexes"), json!([9]), &["\"deepstack_visual_indexes\" has 9,"]),
        (vision("deepstack_visual_indexes"), json!([1, 0]), &["ascending order"]),
        (vision("deepstack_visual_indexes"), json!([0, 1, 2]), &["3 layers cannot be added"]),
        (vision("hidden_act"), json!("tanh"), &["\"hidden_act\"", "tanh"]),
        ("/image_token_id".into(), json!(null), &["\"image_token_id\" is missing"]),
        (
            "/text_config/rope_parameters/mrope_section".into(),
            json!([4, 4, 4]),
            &["\"mrope_section\"", "sum is 8"],
        ),
        (
            "/text_config/rope_parameters/mrope_section".into(),
            json!(null),
            &["\"mrope_section\" is missing in \"rope_scaling\""],
        ),
    ] {
        write(&replaced(&config, &[(&path, value)]), Some(&processor), &weights, words);
    }
    write(&config, None, &weights, &["no preprocessor_config.json"]);
    for (path, value, words) in [
        ("/resample", json!(0), &["preprocessor_config.json", "\"resample\" is 0"][..]),
        ("/do_resize", json!(false), &["\"do_resize\" is false"]),
        ("/image_mean", json!([0.5]), &["\"image_mean\"", "three numbers"]),
        ("/image_std", json!([0.5, 0.0, 0.5]), &["\"image_std\"", "above 0"]),
        ("/patch_size", json!(14), &["\"patch_size\" is 14, but config.json has 4"]),
        ("/size/longest_edge", json!(-1), &["\"longest_edge\" is -1"]),
    ] {
        write(&config, Some(&replaced(&processor, &[(path, value)])), &weights, words);
    }
    for tensor in
        ["blocks.1.attn.qkv.bias", "merger.norm.weight", "deepstack_merger_list.1.linear_fc2.weight"]
    {
        let mut weights = weights.clone();
        weights.remove(&format!("model.visual.{tensor}")).unwrap();
        write(&config, Some(&processor), &weights, &["there is no tensor", tensor]);
    }
}

#[test]
fn broken_grids_are_rejected() {
    for (name, path, value, words) in [
        ("smolvlm", "/scale_factor", json!(3), &["4 x 4 patches cannot be merged 3 x 3"][..]),
        ("smolvlm", "/vision_config/image_size", json!(3), &["positions has 0 rows"]),
        ("smolvlm", "/vision_config/image_size", json!(u64::MAX), &["positions has", "1 to 16384"]),
        (
            "smolvlm",
            "/vision_config/image_size",
            json!(24),
            &["\"max_image_size\" is 16", "6 x 6 patches of 4"],
        ),
        (
            "gemma3-vision",
            "/vision_config/image_size",
            json!(36),
            &["\"size\" is 24 x 24", "9 x 9 patches of 4"],
        ),
        ("gemma3-vision", "/mm_tokens_per_image", json!(16), &["\"mm_tokens_per_image\""]),
    ] {
        let (config, weights) = checkpoint(name);
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &replaced(&config, &[(path, value)]), &weights, 1);
        let processor = "preprocessor_config.json";
        std::fs::copy(data(name).join(processor), folder.path().join(processor)).unwrap();
        assert_rejected(folder.path(), words);
    }
}

/// Returns the processor of a checkpoint with changed options.
fn processor_with(name: &str, changes: &[(&str, Value)], max_tokens: usize) -> ImageProcessor {
    let (config, _) = checkpoint(name);
    let path = data(name).join("preprocessor_config.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let json = replaced(&json, changes).to_string();
    std::fs::write(folder.path().join("preprocessor_config.json"), json).unwrap();
    let vision = VisionConfig::from_json(&config, 32, 1e-5).unwrap().unwrap();
    ImageProcessor::from_folder(folder.path(), &config, &vision, max_tokens).unwrap()
}

/// A picture of 19 pixels has 4 patches of 4 pixels in a row, as in a convolution without padding.
#[test]
fn pixels_beside_whole_patches_are_not_read() {
    let side = 19;
    let pixel = |index: usize| (index * 7 % 251) as u8;
    let picture = RgbPicture { width: side, height: side, rgb: (0..3 * side * side).map(pixel).collect() };
    let changes = [("/max_image_size/longest_edge", json!(side)), ("/do_image_splitting", json!(false))];
    let processor = processor_with("smolvlm", &changes, 4096);
    let processed = processor.process(&picture).unwrap();
    assert_eq!((processed.tokens(), processor.max_tokens()), (4, 4));
    assert_eq!(processed.normalized().len(), 3 * 16 * 16);
    let changes = [("/size/height", json!(27)), ("/size/width", json!(26))];
    let processor = processor_with("gemma3-vision", &changes, 4096);
    // Resizing to its own size does not change a picture.
    let (width, height) = (26, 27);
    let rgb: Vec<u8> = (0..3 * width * height).map(pixel).collect();
    let processed = processor.process(&RgbPicture { width, height, rgb: rgb.clone() }).unwrap();
    let row = |y: usize| rgb[3 * width * y..][..3 * 24].iter().map(|value| f32::from(*value) / 127.5 - 1.0);
    let (mut expected, mut got): (Vec<f32>, _) = ((0..24).flat_map(row).collect(), processed.normalized());
    expected.sort_by(f32::total_cmp);
    got.sort_by(f32::total_cmp);
    close(&got, &expected, 1e-5, "pixels of whole patches");
}

#[test]
fn limits_of_tokens_are_kept() {
    for name in ["qwen2.5-vl", "qwen3-vl", "smolvlm", "pixtral", "mistral3"] {
        // One square of SmolVLM has 4 tokens.
        let least = if name == "smolvlm" { 4 } else { 1 };
        for limit in [1, 2, 3, 5, 8, 15, 64, 4096] {
            let processor = processor_with(name, &[], limit);
            let most = processor.max_tokens();
            assert!(most <= limit.max(least), "{name}: {most} of {limit}");
            for (width, height) in
                [(1, 1), (1, 150), (150, 1), (16, 16), (40, 37), (9, 90), (200, 2), (70, 75)]
            {
                let picture = RgbPicture { width, height, rgb: vec![9; 3 * width * height] };
                let tokens = processor.process(&picture).unwrap().tokens();
                assert!((1..=most).contains(&tokens), "{name}: {width} x {height}: {tokens} of {limit}");
                assert_eq!(processor.tokens_of_size((width, height)), Ok(tokens), "{name}");
            }
        }
    }
}

/// Modules for drafting tokens have tensors of the same names.
#[test]
fn tensors_of_other_modules_are_not_read() {
    let (config, mut weights) = checkpoint("qwen2.5-vl");
    let other = Tensor::zeros((3, 5), DType::F32, &Device::Cpu).unwrap();
    for (endings, prefixes) in [
        (["lm_head.weight", "embed_tokens.weight"], ["mtp.", "model.layers.61.", "a_", "model.x_"]),
        (["patch_embed.proj.weight", "merger.ln_q.weight"], ["vitual.", "visuals.", "a_", "visual.x_"]),
    ] {
        for name in endings.iter().flat_map(|ending| prefixes.map(|prefix| format!("{prefix}{ending}"))) {
            weights.insert(name, other.clone());
        }
    }
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &config, &weights, 1);
    let processor = "preprocessor_config.json";
    std::fs::copy(data("qwen2.5-vl").join(processor), folder.path().join(processor)).unwrap();
    assert!(load_on_cpu(folder.path()).vision().is_some());
}

/// Files without an encoder are those of text models.
#[test]
fn encoders_may_be_absent() {
    let (config, mut weights) = checkpoint("qwen2.5-vl");
    weights.retain(|name, _| !name.starts_with("visual."));
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &config, &weights, 1);
    let reason = load(folder.path()).image_processor().unwrap_err();
    assert!(reason.contains("no vision encoder"), "{reason}");
}

#[test]
fn pictures_with_extreme_sides_are_refused() {
    let checked = Checked::new("qwen2.5-vl", load_on_cpu(&data("qwen2.5-vl")));
    let processor = checked.model.image_processor().unwrap();
    let process = |width: usize, height: usize| {
        processor.process(&RgbPicture { width, height, rgb: vec![9; 3 * width * height] })
    };
    for (width, height) in [(1, 201), (201, 1), (1, 8000), (0, 0)] {
        assert_eq!(process(width, height).unwrap_err(), PictureError::Aspect { width, height });
    }
    for (width, height) in [(1, 1), (1, 200), (200, 1), (3, 2), (500, 500)] {
        let tokens = process(width, height).unwrap().tokens();
        assert!((1..=processor.max_tokens()).contains(&tokens), "{width} x {height}: {tokens}");
    }
}

#[test]
fn gemma3() {
    check_model("gemma3-vision", true);
}

#[test]
fn gemma3_in_gguf() {
    check_gguf("gemma3-vision", true);
}

#[test]
fn broken_encoders_of_gemma4_are_rejected() {
    let reject = |name: &str, changes: &[(&str, Value)], without: &str, words: &[&str]| {
        let (config, mut weights) = checkpoint(name);
        weights.retain(|name, _| without.is_empty() || !name.ends_with(without));
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &replaced(&config, changes), &weights, 1);
        let file = "preprocessor_config.json";
        std::fs::copy(data(name).join(file), folder.path().join(file)).unwrap();
        assert_rejected(folder.path(), words);
    };
    let (plain, limited) = ("gemma4-vision", "gemma4-vision-small");
    reject(plain, &[("/vision_config/head_dim", json!(8))], "", &["\"head_dim\" is 8, but only 16"]);
    reject(plain, &[("/vision_config/pooling_kernel_size", json!(3))], "", &["\"pooling_kernel_size\" is 2"]);
    let side = ("/vision_config/position_embedding_size", json!(31));
    reject(plain, &[side], "", &["position_embedding_table", "[2, 32, 32]", "[2, 31, 32]"]);
    reject(plain, &[], "vision_tower.std_bias", &["vision_tower.std_bias"]);
    reject(limited, &[], "1.mlp.up_proj.input_max", &["layers.1.mlp.up_proj.input_max"]);
    for padding in [json!(-1), json!("0"), json!([0])] {
        let words = ["\"pad_token_id\" is not a whole number", &padding.to_string()];
        reject(limited, &[("/text_config/pad_token_id", padding.clone())], "", &words);
    }
    // The table of the inputs of layers has 48 rows, whatever size the configuration declares.
    let padding = |token: usize, declared: usize| {
        [("/text_config/pad_token_id", json!(token)), ("/text_config/vocab_size", json!(declared))]
    };
    for declared in [48, 49] {
        let words = ["\"pad_token_id\" is 48, but must be below the 48 rows"];
        reject(limited, &padding(48, declared), "", &words);
    }
    let (config, weights) = checkpoint(limited);
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &replaced(&config, &padding(47, 40)), &weights, 1);
    let file = "preprocessor_config.json";
    std::fs::copy(data(limited).join(file), folder.path().join(file)).unwrap();
    load_on_cpu(folder.path());
}

/// Tokens of a picture see each other in layers with a window.
#[test]
fn gemma4() {
    check_model("gemma4-vision", true);
}

/// Projections of the encoder have limits, and layers of the decoder inputs of their own.
#[test]
fn gemma4_with_limits_and_inputs_of_layers() {
    check_model("gemma4-vision-small", false);
}

#[test]
fn smolvlm() {
    check_model("smolvlm", false);
}

#[test]
fn smolvlm_in_gguf() {
    check_gguf("smolvlm", false);
}

#[test]
fn pixtral() {
    check_model("pixtral", false);
}

#[test]
fn pixtral_in_gguf() {
    check_gguf("pixtral", false);
}

#[test]
fn mistral3() {
    check_model("mistral3", false);
}

#[test]
fn mistral3_in_gguf() {
    check_gguf("mistral3", false);
}

/// Changes the metadata and the tensors of a GGUF file.
type Change<'c> = &'c dyn Fn(&mut HashMap<String, Metadatum>, &mut HashMap<String, QTensor>);

/// Writes the files of a model to a folder, with a changed mmproj file.
fn write_mmproj(folder: &Path, name: &str, change: Change) -> PathBuf {
    let model = folder.join("model.gguf");
    std::fs::copy(data(name).join("model.gguf"), &model).unwrap();
    let mut file = File::open(data(name).join(MMPROJ)).unwrap();
    let content = Content::read(&mut file).unwrap();
    let read = |name: &String| (name.clone(), content.tensor(&mut file, name, &Device::Cpu).unwrap());
    let mut tensors: HashMap<_, _> = content.tensor_infos.keys().map(read).collect();
    let mut metadata = content.metadata;
    change(&mut metadata, &mut tensors);
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    gguf_file::write(&mut File::create(folder.join(MMPROJ)).unwrap(), &metadata, &tensors).unwrap();
    model
}

const MMPROJ: &str = "mmproj-model-f16.gguf";

fn load_with_mmproj(model: &Path, mmproj: Option<PathBuf>) -> anyhow::Result<Decoder> {
    let options = LoadOptions { mmproj, cache_bytes: Some(1 << 20), ..LoadOptions::default() };
    load_decoder(model, &Device::Cpu, options, &mut |_| ())
}

#[test]
fn broken_mmproj_files_are_rejected() {
    let string = |text: &str| Metadatum::String(text.into());
    let cases: [(&str, Change, &[&str]); 9] = [
        (
            "gemma3-vision",
            &|_, tensors| drop(tensors.remove("v.post_ln.bias")),
            &["no tensor 'v.post_ln.bias'"],
        ),
        (
            "qwen2.5-vl",
            &|_, tensors| drop(tensors.remove("v.patch_embd.weight.1")),
            &["v.patch_embd.weight.1"],
        ),
        (
            "qwen3-vl",
            &|_, tensors| drop(tensors.remove("v.deepstack.1.fc2.weight")),
            &["v.deepstack.1.fc2.weight"],
        ),
        ("smolvlm", &|_, tensors| drop(tensors.remove("mm.model.fc.weight")), &["mm.model.fc.weight"]),
        (
            "mistral3",
            &|_, tensors| {
                let other = Tensor::zeros((32, 64), DType::F32, &Device::Cpu).unwrap();
                let other = QTensor::quantize(&other, GgmlDType::F16).unwrap();
                tensors.insert("v.blk.1.attn_q.weight".into(), other);
            },
            &["v.blk.1.attn_q.weight", "[32, 64]", "[32, 32]"],
        ),
        (
            "pixtral",
            &|metadata, _| drop(metadata.remove("clip.vision.block_count")),
            &["\"clip.vision.block_count\" is missing"],
        ),
        (
            "pixtral",
            &|metadata, _| drop(metadata.remove("clip.use_silu")),
            &["\"clip.use_silu\" must be true"],
        ),
        (
            "pixtral",
            &|metadata, _| drop(metadata.insert("clip.vision.image_mean".into(), Metadatum::Array(vec![]))),
            &["\"image_mean\"", "three numbers"],
        ),
        (
            "qwen2.5-vl",
            &|metadata, _| drop(metadata.insert("clip.vision.n_wa_pattern".into(), string("x"))),
            &["\"fullatt_block_indexes\" has"],
        ),
    ];
    for (name, change, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        assert_rejected(&write_mmproj(folder.path(), name, change), &[&[MMPROJ], words].concat());
    }
    let folder = tempfile::tempdir().unwrap();
    let model = write_mmproj(folder.path(), "gemma3-vision", &|_, _| ());
    let bytes = std::fs::read(folder.path().join(MMPROJ)).unwrap();
    for (length, words) in [(100, "cannot be read as GGUF"), (bytes.len() - 3000, "ends at byte")] {
        let path = folder.path().join(MMPROJ);
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = format!("{:#}", load_with_mmproj(&model, Some(path)).err().unwrap());
        assert!(error.contains(MMPROJ) && error.contains(words), "{error}");
        // A file that nobody named may be an unfinished download.
        let reason = load_with_mmproj(&model, None).unwrap().image_processor().unwrap_err();
        assert!(reason.contains("no mmproj file"), "{reason}");
    }
}

#[test]
fn mmproj_files_of_other_models_are_rejected_or_ignored() {
    let load = load_with_mmproj;
    let folder = tempfile::tempdir().unwrap();
    let string = |text: &str| Metadatum::String(text.into());
    let change: Change = &|metadata, _| drop(metadata.insert("clip.projector_type".into(), string("ldp")));
    let model = write_mmproj(folder.path(), "gemma3-vision", change);
    let unknown = folder.path().join(MMPROJ);
    let of = |name: &str| data(name).join(MMPROJ);
    for (mmproj, words) in [
        (of("qwen3-vl"), &[MMPROJ, "qwen3vl", "\"gemma3\""][..]),
        (unknown, &[MMPROJ, "\"ldp\", which is not supported", "idefics3"]),
        (data("gemma3-vision").join("model.gguf"), &["model.gguf", "\"gemma3\", but must be \"clip\""]),
        (data("gemma3-vision"), &["gemma3-vision", "not a GGUF file"]),
        (data("none.gguf"), &["none.gguf", "does not exist"]),
    ] {
        let error = format!("{:#}", load(&model, Some(mmproj)).err().unwrap());
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let reason = load(&model, None).unwrap().image_processor().unwrap_err();
    assert!(reason.contains("no mmproj file"), "{reason}");
    assert!(load(&model, Some(of("gemma3-vision"))).unwrap().vision().is_some());
    let error = load(&data("gemma3-vision"), Some(of("gemma3-vision"))).err().unwrap();
    assert!(format!("{error:#}").contains("a folder of safetensors"), "{error:#}");
}

/// Older converters exchanged the names of both projections.
#[test]
fn exchanged_names_of_mmproj_files_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let change: Change = &|_, tensors| {
        let exchanged = |name: String| match name.contains("ffn_up") {
            true => name.replace("ffn_up", "ffn_down"),
            false => name.replace("ffn_down", "ffn_up"),
        };
        *tensors = tensors.drain().map(|(name, tensor)| (exchanged(name), tensor)).collect();
    };
    let model = write_mmproj(folder.path(), "gemma3-vision", change);
    Checked::new("gemma3-vision", load_on_cpu(&model)).check_features(1e-4);
}
