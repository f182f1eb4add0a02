//! CLIP text encoders in single files: in the file of a model, or in separate files.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::attention::Activation;
use super::super::parts::{FileOptions, TextPart};
use super::super::t5::{self, T5Part};
use super::super::tokenizer::ClipTokenizer;
use super::super::weights::{Component, View, Weights};
use super::kind;
use super::names::{self, is_ignored, whole};
use super::open::open;
use super::shapes::Shapes;
use crate::{Error, Result};

/// Padding token of OpenCLIP's text encoders, whose id is 0.
const OPEN_CLIP_PAD: &str = "!";
/// Name of the projection of the pooled embedding (projection_dim, width).
const PROJECTION: &str = "text_projection.weight";
/// Name of the transposed projection in files of stable-diffusion.cpp.
const TRANSPOSED: &str = "text_model.text_projection";

/// A CLIP text encoder of a network.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct ClipSlot {
    name: &'static str,
    /// Flag that names a separate file of the encoder.
    flag: &'static str,
    /// Starts of its names in files that hold other networks, too.
    prefixes: &'static [&'static str],
    /// True for OpenCLIP's encoders.
    is_open_clip: bool,
    /// True if the network uses the projected pooled embedding.
    projection: bool,
    /// Number of last layers that the network does not use.
    unused_layers: usize,
}

/// First text encoder of all networks except Stable Diffusion 2.
pub(in super::super) const CLIP_L: ClipSlot = ClipSlot {
    name: "CLIP-L",
    flag: "--clip-l",
    prefixes: &[
        "cond_stage_model.transformer.",
        "conditioner.embedders.0.transformer.",
        "text_encoders.clip_l.transformer.",
        "text_encoders.clip_l.",
    ],
    is_open_clip: false,
    projection: false,
    unused_layers: 0,
};
/// Second text encoder of XL and Stable Diffusion 3.
pub(in super::super) const CLIP_G: ClipSlot = ClipSlot {
    name: "CLIP-G",
    flag: "--clip-g",
    prefixes: &[
        "conditioner.embedders.1.model.",
        "cond_stage_model.1.transformer.",
        "text_encoders.clip_g.transformer.",
        "text_encoders.clip_g.",
    ],
    is_open_clip: true,
    projection: true,
    unused_layers: 0,
};
/// Text encoder of XL's refiner.
pub(in super::super) const REFINER_CLIP_G: ClipSlot =
    ClipSlot { prefixes: &["conditioner.embedders.0.model."], ..CLIP_G };
/// Text encoder of Stable Diffusion 2, which uses the output of the layer before the last one.
pub(super) const CLIP_H: ClipSlot = ClipSlot {
    name: "OpenCLIP's text encoder",
    flag: "--clip-g",
    prefixes: &["cond_stage_model.model.", "cond_stage_model.transformer."],
    is_open_clip: true,
    projection: false,
    unused_layers: 1,
};

impl ClipSlot {
    /// Returns the prefix of the encoder in a file, if it has one.
    pub fn prefix(&self, weights: &Weights) -> Option<&'static str> {
        let tables =
            ["text_model.embeddings.token_embedding", "embeddings.token_embedding", "token_embedding"];
        let has = |prefix: &str| {
            tables.iter().any(|table| weights.shape(&format!("{prefix}{table}.weight")).is_some())
        };
        self.prefixes.iter().copied().chain([""]).find(|prefix| has(prefix))
    }

    /// Returns the file given for this encoder.
    fn file<'a>(&self, options: &'a FileOptions) -> Option<&'a Path> {
        match self.flag {
            "--clip-l" => options.clip_l.as_deref(),
            _ => options.clip_g.as_deref(),
        }
    }

    /// Reads the header of the file given for this encoder, if there is one.
    ///
    /// # Errors
    /// The file holds no such encoder, or has no tokenizer.
    pub fn given(&self, options: &FileOptions, tokenizer: &Path) -> Result<Option<TextPart>> {
        let Some(path) = self.file(options) else { return Ok(None) };
        let weights = open(path)?;
        let Some(prefix) = self.prefix(&weights) else {
            let (found, path, flag) = (kind::found(&weights), path.display(), self.flag);
            return Err(Error::model(format!("{path} holds {found}; {flag} requires {}", self.name)));
        };
        self.part(&weights, prefix, tokenizer).map(Some)
    }

    /// Derives the configuration of the encoder whose names begin with `prefix`.
    fn part(&self, weights: &Arc<Weights>, prefix: &'static str, tokenizer: &Path) -> Result<TextPart> {
        let is_original = weights.shape(&format!("{prefix}token_embedding.weight")).is_some();
        let (mut config, component, layer) = match is_original {
            true => {
                let config = Shapes { weights, prefix }.open_clip(self.projection)?;
                let rename = |name: &str| names::open_clip(name).unwrap_or_else(|| whole(None, name));
                (config, Component::renamed(weights.clone(), prefix, rename), "transformer.resblocks.")
            }
            false => {
                let flat = weights.shape(&format!("{prefix}embeddings.token_embedding.weight")).is_some();
                let inner = format!("{prefix}{}", if flat { "" } else { "text_model." });
                // stable-diffusion.cpp keeps the orientation of the original.
                let is_transposed = weights.shape(&format!("{prefix}{TRANSPOSED}")).is_some();
                let projection = if is_transposed { TRANSPOSED } else { PROJECTION };
                let projection = self.projection.then(|| format!("{prefix}{projection}"));
                let mut config = Shapes { weights, prefix: &inner }.clip(projection.as_deref())?;
                let rename = move |name: &str| match name {
                    PROJECTION if is_transposed => (TRANSPOSED.to_owned(), View::Transposed),
                    name => whole(None, name),
                };
                let component = Component::renamed(weights.clone(), prefix, rename);
                if let (true, Some(shape)) = (self.projection, component.shape(PROJECTION)) {
                    config.projection_dim = shape[0];
                }
                (config, component, if flat { "encoder.layers." } else { "text_model.encoder.layers." })
            }
        };
        config.hidden_act = if self.is_open_clip { Activation::Gelu } else { Activation::QuickGelu };
        let all = config.num_hidden_layers;
        config.num_hidden_layers = all.saturating_sub(self.unused_layers);
        let unused: Vec<String> = (config.num_hidden_layers..all).map(|i| format!("{layer}{i}.")).collect();
        let projection = self.projection;
        component.ignore(|name| {
            let is_projection = projection && name.contains("text_projection");
            unused.iter().any(|start| name.starts_with(start)) || is_ignored(name) && !is_projection
        });
        let pad = self.is_open_clip.then_some(OPEN_CLIP_PAD);
        let tokenizer = ClipTokenizer::with_padding(tokenizer, config.max_position_embeddings, pad)?;
        Ok(TextPart { config, tokenizer, weights: component, projection })
    }
}

/// Text encoders of a model in a single file.
pub(in super::super) struct TextFiles<'a> {
    /// The file of the model.
    pub weights: &'a Arc<Weights>,
    /// Description of the network, for messages.
    pub network: &'a str,
    pub options: &'a FileOptions,
}

impl TextFiles<'_> {
    fn missing<T>(&self, name: &str, flag: &str) -> Result<T> {
        let (path, network) = (self.weights.path().display(), self.network);
        Err(Error::model(format!(
            "{path} holds {network} without a text encoder; set {flag} to a file of {name}"
        )))
    }

    /// Reads the headers of CLIP encoders, each from the file given for it or from the file of the model.
    ///
    /// # Errors
    /// An encoder is missing, damaged, or has no tokenizer.
    pub fn clip(&self, slots: &[ClipSlot]) -> Result<Vec<TextPart>> {
        let part = |(i, slot): (usize, &ClipSlot)| {
            let own = slot.prefix(self.weights);
            if own.is_none() && slot.file(self.options).is_none() {
                return self.missing(slot.name, slot.flag);
            }
            // CLIP-G is the second encoder even where it is the only one.
            let tokenizer = self.tokenizer(i.max(usize::from(slot.projection)))?;
            match (slot.given(self.options, &tokenizer)?, own) {
                (Some(part), _) => Ok(part),
                (None, Some(prefix)) => slot.part(self.weights, prefix, &tokenizer),
                (None, None) => self.missing(slot.name, slot.flag),
            }
        };
        slots.iter().enumerate().map(part).collect()
    }

    /// Reads the header of a T5 encoder for texts of `length` tokens. Returns `None` if there is none and `is_required` is
    /// false.
    ///
    /// # Errors
    /// The encoder is missing, damaged, or has no tokenizer.
    pub fn t5(&self, length: usize, is_required: bool) -> Result<Option<T5Part>> {
        let (weights, root) = (self.weights, self.root());
        if let Some(part) = given_t5(self.options, length, &[root])? {
            return Ok(Some(part));
        }
        match t5::file::prefix(weights) {
            Some(_) => t5::file::part(weights, length, || t5_folder(&[root], weights.path())).map(Some),
            None if is_required => self.missing("a T5 text encoder", "--t5xxl"),
            None => Ok(None),
        }
    }

    /// Returns the path that holds the tokenizers.
    fn root(&self) -> &Path {
        let folder = self.weights.path().parent().unwrap_or(Path::new(""));
        self.options.tokenizer.as_deref().unwrap_or(folder)
    }

    /// Returns the path of the tokenizer of a CLIP encoder.
    fn tokenizer(&self, encoder: usize) -> Result<PathBuf> {
        let root = self.root();
        if root.is_file() {
            return Ok(root.to_owned());
        }
        let own =
            ["tokenizer", "tokenizer_2"].into_iter().take(encoder + 1).rev().map(|name| root.join(name));
        let holds = |folder: &Path| {
            folder.join("tokenizer.json").is_file()
                || folder.join("vocab.json").is_file() && folder.join("merges.txt").is_file()
        };
        own.chain([root.to_owned()]).find(|folder| holds(folder)).ok_or_else(|| {
            Error::model(format!(
                "{} has no tokenizer: {} holds neither tokenizer.json nor vocab.json and merges.txt; put CLIP's \
                 tokenizer.json there, or give its path with --tokenizer",
                self.weights.path().display(),
                root.display()
            ))
        })
    }
}

/// Reads the header of the file given for a T5 encoder, if there is one. `roots` are folders that may hold its tokenizer.
///
/// # Errors
/// The file holds no such encoder, or there is no tokenizer.
pub(in super::super) fn given_t5(
    options: &FileOptions,
    length: usize,
    roots: &[&Path],
) -> Result<Option<T5Part>> {
    let Some(path) = &options.t5xxl else { return Ok(None) };
    let weights = open(path)?;
    if t5::file::prefix(&weights).is_none() {
        let (found, path) = (kind::found(&weights), path.display());
        return Err(Error::model(format!("{path} holds {found}; --t5xxl requires a T5 text encoder")));
    }
    t5::file::part(&weights, length, || t5_folder(roots, path)).map(Some)
}

/// Returns the folder of the tokenizer of a T5 encoder whose file does not contain it.
fn t5_folder(roots: &[&Path], file: &Path) -> Result<PathBuf> {
    let names = ["tokenizer_3", "tokenizer_2"];
    let inner = roots.iter().flat_map(|root| names.map(|name| root.join(name)));
    let own = file.parent().unwrap_or(Path::new("")).to_owned();
    // CLIP's tokenizer may lie in the same places.
    let is_t5 = |folder: &PathBuf| {
        let path = folder.join("tokenizer.json");
        std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"</s>\""))
    };
    inner.chain([own.clone()]).find(is_t5).ok_or_else(|| {
        let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
        Error::model(format!(
            "{} has no tokenizer: put T5's tokenizer.json into the folder tokenizer_2 in {}, or into {}; GGUF files of \
             llama.cpp contain it",
            file.display(),
            roots.join(" or "),
            own.display()
        ))
    })
}
