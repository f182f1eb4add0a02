//! Vision encoders in mmproj files, which llama.cpp writes in addition to the GGUF file of a text model.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::{Content, Value as Metadatum};
use serde_json::{Map, Value, json};

use super::config::VisionConfig;
use super::families::{MMPROJ, MmprojKind};
use super::processor::ImageProcessor;
use crate::model::config::DecoderConfig;
use crate::model::families::scalar;
use crate::model::files::{Description, ModelFiles};

/// Keys without `clip.vision.` that a file must contain, and fields of a config.json.
const REQUIRED: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("patch_size", "patch_size"),
    ("image_size", "image_size"),
];

/// Like [`REQUIRED`], for keys that have defaults.
const OPTIONAL: &[(&str, &str)] =
    &[("spatial_merge_size", "spatial_merge_size"), ("window_size", "window_size")];

/// Number of patches in a row of a token of Gemma 3, unless the file has another.
const GEMMA_MERGE: u64 = 4;

/// An encoder of pictures in a file of its own.
pub(in crate::model) struct Mmproj {
    /// The file.
    pub(in crate::model) files: ModelFiles,
    /// Configuration of the encoder.
    pub(in crate::model) config: VisionConfig,
    /// Processor of pictures.
    pub(in crate::model) processor: Arc<ImageProcessor>,
}

/// Returns the mmproj files in the folder of a model, in the order of their names.
fn mmproj_files_in_folder(model: &Path) -> Vec<PathBuf> {
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_mmproj = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.is_file() && name.to_lowercase().contains("mmproj") && name.ends_with(".gguf")
    };
    let mut found: Vec<_> = entries.filter(is_mmproj).collect();
    found.sort();
    found
}

impl Mmproj {
    /// Opens the encoder of a text model: `file` if it is given, and otherwise the first file in the model's folder that is made
    /// for such a model, if there is one. Pictures have at most `max_tokens` tokens.
    ///
    /// # Errors
    /// Returns an error that names the file and the missing or unsupported key or tensor, or if `file` belongs to another model.
    /// Files in the folder that cannot be opened or belong to other models are logged and skipped.
    pub(in crate::model) fn find(
        model: &ModelFiles,
        file: Option<&Path>,
        decoder: &DecoderConfig,
        max_tokens: usize,
    ) -> Result<Option<Self>> {
        let Description::Metadata(text) = &model.description else { return Ok(None) };
        let fitting = |path: &Path| -> Result<_> {
            let files = ModelFiles::open(path)?;
            Ok((fitting_kind(content(&files)?, text, decoder)?, files))
        };
        let candidates = file.map_or_else(|| mmproj_files_in_folder(model.path()), |file| vec![file.into()]);
        for path in candidates {
            let found = fitting(&path).with_context(|| path.display().to_string());
            let (fitting, files) = match found {
                Ok(found) => found,
                Err(error) if file.is_some() => return Err(error),
                Err(error) => {
                    tracing::warn!("pictures are not read with a file in the model's folder: {error:#}");
                    continue;
                }
            };
            let opened = Self::open(fitting, files, decoder, max_tokens);
            return opened.with_context(|| path.display().to_string()).map(Some);
        }
        Ok(None)
    }

    fn open(
        (kind, tokens): (&'static MmprojKind, Tokens),
        mut files: ModelFiles,
        decoder: &DecoderConfig,
        max_tokens: usize,
    ) -> Result<Self> {
        let content = content(&files)?;
        let mut config = config(kind, content, tokens)?;
        if decoder.layer_inputs.is_none() {
            // Files do not contain this; it is so in published models of Gemma 4 whose layers have no inputs of their own.
            config["text_config"] = json!({"use_bidirectional_attention": "vision"});
        }
        let vision = VisionConfig::of_family(&kind.family, &config, decoder.hidden, decoder.norm_eps)?;
        let processor = processor(kind, content, &config)?;
        let processor = ImageProcessor::from_json(&processor, &config, &vision, max_tokens)?;
        // Older converters exchanged the names of both projections of feed-forward layers.
        let [up, down] = ["up", "down"].map(|part| format!("v.blk.0.ffn_{part}.weight"));
        let width = |name: &str| files.location(name).ok().and_then(|tensor| tensor.shape.last().copied());
        let is_exchanged = vision.hidden != vision.intermediate && width(&down) == Some(vision.hidden);
        if is_exchanged && width(&up) == Some(vision.intermediate) {
            files.exchange_names("ffn_up", "ffn_down");
        }
        Ok(Self { files, config: vision, processor: Arc::new(processor) })
    }
}

/// Fields of a config.json for tokens, and the numbers of these tokens.
type Tokens = Vec<(&'static str, usize)>;

/// Returns the metadata and the tensors of a GGUF file.
fn content(files: &ModelFiles) -> Result<&Content> {
    match &files.description {
        Description::Metadata(content) => Ok(content),
        _ => bail!("it is not a GGUF file"),
    }
}

/// Returns the kind of a file and the tokens of the text model, if the file is made for text models like this one.
fn fitting_kind(
    content: &Content,
    text: &Content,
    decoder: &DecoderConfig,
) -> Result<(&'static MmprojKind, Tokens)> {
    let key = |content: &Content, key: &str| content.metadata.get(key).and_then(scalar).unwrap_or_default();
    let arch = key(content, "general.architecture");
    ensure!(
        arch == "clip",
        "\"general.architecture\" is {arch}, but must be \"clip\" in a file of an encoder"
    );
    let names = ["clip.projector_type", "clip.vision.projector_type"].map(|name| key(content, name));
    let projector = names.iter().find(|name| !name.is_null()).unwrap_or(&Value::Null);
    let has_tensors = |kind: &&MmprojKind| {
        let merger = kind.family.projector_names.merger;
        merger.is_none_or(|name| content.tensor_infos.contains_key(&format!("{name}.weight")))
    };
    let kind = MMPROJ.iter().filter(|kind| *projector == kind.projector).find(has_tensors);
    let kind = kind.with_context(|| {
        let known: Vec<_> = MMPROJ.iter().map(|kind| kind.projector).collect();
        format!("\"clip.projector_type\" is {projector}, which is not supported; use one of {known:?}")
    })?;
    let arch = key(text, "general.architecture");
    ensure!(
        kind.architectures.iter().any(|name| arch == *name),
        "it is made for text models of the architectures {:?}, but this one is {arch}; use the file of this model",
        kind.architectures
    );
    let width = key(content, "clip.vision.projection_dim");
    ensure!(
        width == decoder.hidden,
        "\"clip.vision.projection_dim\" is {width}, but the states of the text model have {} elements; use the file of this \
         model",
        decoder.hidden
    );
    Ok((kind, tokens(kind, text)?))
}

/// Finds the tokens of a kind in the vocabulary of a text model.
fn tokens(kind: &MmprojKind, text: &Content) -> Result<Tokens> {
    let vocabulary = match text.metadata.get("tokenizer.ggml.tokens") {
        Some(Metadatum::Array(tokens)) => &tokens[..],
        _ => &[],
    };
    let number = |(field, token): &(&'static str, &str)| {
        let is_token = |other: &Metadatum| other.to_string().is_ok_and(|other| other == token);
        let number = vocabulary.iter().position(is_token);
        Ok((
            *field,
            number.with_context(|| format!("the vocabulary of the text model has no token {token:?}"))?,
        ))
    };
    kind.tokens.iter().map(number).collect()
}

/// Returns the fields of a config.json.
fn config(kind: &MmprojKind, content: &Content, tokens: Tokens) -> Result<Value> {
    let key = |name: &str| content.metadata.get(&format!("clip.vision.{name}"));
    let read = |name: &str| key(name).and_then(scalar);
    let number = |name: &str| read(name).and_then(|value| value.as_u64());
    let flag = |name: &str| content.metadata.get(name).and_then(scalar) == Some(Value::Bool(true));
    let mut vision = Map::new();
    for (name, field) in REQUIRED {
        let value = read(name).with_context(|| format!("\"clip.vision.{name}\" is missing"))?;
        vision.insert((*field).into(), value);
    }
    vision.extend(OPTIONAL.iter().filter_map(|(name, field)| Some(((*field).into(), read(name)?))));
    let activation = match (flag("clip.use_gelu"), flag("clip.use_silu")) {
        (true, false) => kind.gelu,
        (false, true) => "silu",
        // Converters do not write the activation of Gemma 4.
        (false, false) if kind.family.names.further_norms.is_some() => kind.gelu,
        _ => bail!(
            "either \"clip.use_gelu\" or \"clip.use_silu\" must be true; other activations are not supported"
        ),
    };
    vision.insert("hidden_act".into(), json!(activation));
    // The size of pictures determines it.
    vision.insert("num_position_embeddings".into(), Value::Null);
    if let Some(pattern) = number("n_wa_pattern").filter(|pattern| *pattern > 0) {
        let layers = number("block_count").unwrap_or(0).min(1 << 12);
        let full: Vec<_> = (0..layers).filter(|layer| (layer + 1).is_multiple_of(pattern)).collect();
        vision.insert("fullatt_block_indexes".into(), json!(full));
    }
    let flags = match key("is_deepstack_layers") {
        Some(Metadatum::Array(flags)) => flags.iter().map(|flag| flag.to_bool().unwrap_or(false)).collect(),
        _ => Vec::new(),
    };
    let layers: Vec<_> = (0..flags.len()).filter(|layer| flags[*layer]).collect();
    vision.insert("deepstack_visual_indexes".into(), json!(layers));
    let has = |name: &str| json!(content.tensor_infos.contains_key(name));
    vision.insert("standardize".into(), has("v.std_bias"));
    vision.insert("use_clipped_linears".into(), has("v.blk.0.attn_q.input_min"));
    let table = content.tensor_infos.get("v.position_embd.weight").map(|table| table.shape.dims());
    if let Some(&[2, side, _]) = table {
        vision.insert("position_embedding_size".into(), json!(side));
    }
    if let Some(merge) = number("projector.scale_factor") {
        vision.insert("pooling_kernel_size".into(), json!(merge));
    }
    let merge = number("spatial_merge_size").or(number("projector.scale_factor"));
    let side = number("image_size").unwrap_or(0) / number("patch_size").filter(|side| *side > 0).unwrap_or(1);
    let tokens_in_row = side / merge.unwrap_or(GEMMA_MERGE).max(1);
    let has_bias = content.tensor_infos.contains_key("mm.1.bias");
    let mut config = json!({"vision_config": vision, "spatial_merge_size": merge, "scale_factor": merge,
        "mm_tokens_per_image": tokens_in_row.saturating_mul(tokens_in_row), "multimodal_projector_bias": has_bias});
    for (field, index) in tokens {
        config[field] = json!(index);
    }
    Ok(config)
}

/// Returns the fields of a preprocessor_config.json.
fn processor(kind: &MmprojKind, content: &Content, config: &Value) -> Result<Value> {
    let key = |name: &str| content.metadata.get(&format!("clip.vision.{name}"));
    let mut all: Value = serde_json::from_str(kind.processor)?;
    for name in ["image_mean", "image_std"] {
        let Some(Metadatum::Array(values)) = key(name) else { bail!("\"clip.vision.{name}\" is missing") };
        all[name] = values.iter().filter_map(scalar).collect();
    }
    for (name, field) in [("image_min_pixels", "min_pixels"), ("image_max_pixels", "max_pixels")] {
        if let Some(pixels) = key(name).and_then(scalar) {
            all[field] = pixels;
        }
    }
    let side = &config["vision_config"]["image_size"];
    let longest = key("preproc_image_size").and_then(scalar).unwrap_or_else(|| side.clone());
    all["size"] = json!({"height": side, "width": side, "longest_edge": longest});
    all["max_image_size"] = json!({"longest_edge": side});
    Ok(all)
}
