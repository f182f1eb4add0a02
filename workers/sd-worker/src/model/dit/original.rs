//! Files of a transformer alone, with the original names of the weights or those of diffusers.
use std::path::Path;
use std::sync::Arc;

use super::super::version::Version;
use super::super::weights::{Component, View, Weights};
use super::super::{gguf, single_file};
use super::config::DitConfig;
use crate::{Error, Result};

/// Prefix of a name in the network, prefix of the original name, and part of the original tensor.
type Table = &'static [(&'static str, &'static str, View)];

const WHOLE: View = View::Whole;
/// Original modulations return the shift before the scale.
const SWAPPED: View = View::SwappedHalves;
const Q: View = View::Rows { from: 0, count: 1, of: 3 };
const K: View = View::Rows { from: 1, count: 1, of: 3 };
const V: View = View::Rows { from: 2, count: 1, of: 3 };
/// Prefix of the transformer in files that hold a whole model.
const PREFIXES: [&str; 2] = ["", "model.diffusion_model."];

const FLUX: Table = &[
    ("time_text_embed.timestep_embedder.linear_1.", "time_in.in_layer.", WHOLE),
    ("time_text_embed.timestep_embedder.linear_2.", "time_in.out_layer.", WHOLE),
    ("time_text_embed.text_embedder.linear_1.", "vector_in.in_layer.", WHOLE),
    ("time_text_embed.text_embedder.linear_2.", "vector_in.out_layer.", WHOLE),
    ("time_text_embed.guidance_embedder.linear_1.", "guidance_in.in_layer.", WHOLE),
    ("time_text_embed.guidance_embedder.linear_2.", "guidance_in.out_layer.", WHOLE),
    ("context_embedder.", "txt_in.", WHOLE),
    ("x_embedder.", "img_in.", WHOLE),
    ("norm_out.linear.", "final_layer.adaLN_modulation.1.", SWAPPED),
    ("proj_out.", "final_layer.linear.", WHOLE),
];
const FLUX_JOINT: Table = &[
    ("norm1.linear.", "img_mod.lin.", WHOLE),
    ("norm1_context.linear.", "txt_mod.lin.", WHOLE),
    ("attn.to_q.", "img_attn.qkv.", Q),
    ("attn.to_k.", "img_attn.qkv.", K),
    ("attn.to_v.", "img_attn.qkv.", V),
    ("attn.add_q_proj.", "txt_attn.qkv.", Q),
    ("attn.add_k_proj.", "txt_attn.qkv.", K),
    ("attn.add_v_proj.", "txt_attn.qkv.", V),
    ("attn.norm_q.weight", "img_attn.norm.query_norm.scale", WHOLE),
    ("attn.norm_k.weight", "img_attn.norm.key_norm.scale", WHOLE),
    ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale", WHOLE),
    ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale", WHOLE),
    ("attn.to_out.0.", "img_attn.proj.", WHOLE),
    ("attn.to_add_out.", "txt_attn.proj.", WHOLE),
    ("ff.net.0.proj.", "img_mlp.0.", WHOLE),
    ("ff.net.2.", "img_mlp.2.", WHOLE),
    ("ff_context.net.0.proj.", "txt_mlp.0.", WHOLE),
    ("ff_context.net.2.", "txt_mlp.2.", WHOLE),
];
/// The first product of a single block has queries, keys, values, and four times their number of rows.
const FLUX_SINGLE: Table = &[
    ("norm.linear.", "modulation.lin.", WHOLE),
    ("attn.to_q.", "linear1.", View::Rows { from: 0, count: 1, of: 7 }),
    ("attn.to_k.", "linear1.", View::Rows { from: 1, count: 1, of: 7 }),
    ("attn.to_v.", "linear1.", View::Rows { from: 2, count: 1, of: 7 }),
    ("proj_mlp.", "linear1.", View::Rows { from: 3, count: 4, of: 7 }),
    ("attn.norm_q.weight", "norm.query_norm.scale", WHOLE),
    ("attn.norm_k.weight", "norm.key_norm.scale", WHOLE),
    ("proj_out.", "linear2.", WHOLE),
];
const SD3: Table = &[
    ("pos_embed.pos_embed", "pos_embed", WHOLE),
    ("pos_embed.proj.", "x_embedder.proj.", WHOLE),
    ("time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0.", WHOLE),
    ("time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2.", WHOLE),
    ("time_text_embed.text_embedder.linear_1.", "y_embedder.mlp.0.", WHOLE),
    ("time_text_embed.text_embedder.linear_2.", "y_embedder.mlp.2.", WHOLE),
    ("context_embedder.", "context_embedder.", WHOLE),
    ("norm_out.linear.", "final_layer.adaLN_modulation.1.", SWAPPED),
    ("proj_out.", "final_layer.linear.", WHOLE),
];
const SD3_JOINT: Table = &[
    ("norm1.linear.", "x_block.adaLN_modulation.1.", WHOLE),
    ("norm1_context.linear.", "context_block.adaLN_modulation.1.", WHOLE),
    ("attn.to_q.", "x_block.attn.qkv.", Q),
    ("attn.to_k.", "x_block.attn.qkv.", K),
    ("attn.to_v.", "x_block.attn.qkv.", V),
    ("attn.add_q_proj.", "context_block.attn.qkv.", Q),
    ("attn.add_k_proj.", "context_block.attn.qkv.", K),
    ("attn.add_v_proj.", "context_block.attn.qkv.", V),
    ("attn.norm_q.", "x_block.attn.ln_q.", WHOLE),
    ("attn.norm_k.", "x_block.attn.ln_k.", WHOLE),
    ("attn.norm_added_q.", "context_block.attn.ln_q.", WHOLE),
    ("attn.norm_added_k.", "context_block.attn.ln_k.", WHOLE),
    ("attn.to_out.0.", "x_block.attn.proj.", WHOLE),
    ("attn.to_add_out.", "context_block.attn.proj.", WHOLE),
    ("attn2.to_q.", "x_block.attn2.qkv.", Q),
    ("attn2.to_k.", "x_block.attn2.qkv.", K),
    ("attn2.to_v.", "x_block.attn2.qkv.", V),
    ("attn2.norm_q.", "x_block.attn2.ln_q.", WHOLE),
    ("attn2.norm_k.", "x_block.attn2.ln_k.", WHOLE),
    ("attn2.to_out.0.", "x_block.attn2.proj.", WHOLE),
    ("ff.net.0.proj.", "x_block.mlp.fc1.", WHOLE),
    ("ff.net.2.", "x_block.mlp.fc2.", WHOLE),
    ("ff_context.net.0.proj.", "context_block.mlp.fc1.", WHOLE),
    ("ff_context.net.2.", "context_block.mlp.fc2.", WHOLE),
];

/// Names of the transformer in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// False for Stable Diffusion 3.
    pub is_flux: bool,
    prefix: &'static str,
    /// False for the names of diffusers.
    is_original: bool,
}

impl Layout {
    /// Recognises the transformer in a file, if it has one.
    pub fn of(weights: &Weights) -> Option<Self> {
        let has = |prefix: &str, name: &str| weights.shape(&format!("{prefix}{name}")).is_some();
        for (is_flux, first) in
            [(true, "double_blocks.0.img_attn.qkv.weight"), (false, "joint_blocks.0.x_block.attn.qkv.weight")]
        {
            if let Some(prefix) = PREFIXES.into_iter().find(|prefix| has(prefix, first)) {
                return Some(Self { is_flux, prefix, is_original: true });
            }
        }
        let is_flux = has("", "single_transformer_blocks.0.attn.to_q.weight");
        let is_own = has("", "transformer_blocks.0.attn.add_q_proj.weight");
        is_own.then_some(Self { is_flux, prefix: "", is_original: false })
    }

    /// Returns the component of a network with this number of joint blocks.
    pub fn component(self, weights: &Arc<Weights>, layers: usize) -> Component {
        let Self { is_flux, prefix, is_original } = self;
        let rename = move |name: &str| {
            let found = if is_original { original(is_flux, layers, name) } else { None };
            found.unwrap_or_else(|| (name.to_owned(), WHOLE))
        };
        Component::renamed(weights.clone(), prefix, rename).without_list()
    }
}

/// Opens a file that replaces the transformer of a folder.
///
/// # Errors
/// The file cannot be read, or holds another network.
pub(super) fn component(path: &Path, config: &DitConfig) -> Result<Component> {
    let is_flux = config.version == Version::Flux;
    let weights = single_file::open(path)?;
    check_architecture(&weights, is_flux, config.version.network())?;
    match Layout::of(&weights).filter(|layout| layout.is_flux == is_flux) {
        Some(layout) => Ok(layout.component(&weights, config.layers)),
        None => {
            let (found, network) = (single_file::found(&weights), config.version.network());
            let path = path.display();
            Err(Error::model(format!("{path} holds {found}; the transformer of {network} is required")))
        }
    }
}

/// Checks the architecture in the metadata of a GGUF file, if it has one.
///
/// # Errors
/// It is not that of `network`.
pub(super) fn check_architecture(weights: &Weights, is_flux: bool, network: &str) -> Result<()> {
    let expected = if is_flux { "flux" } else { "sd3" };
    match weights.metadata(gguf::ARCHITECTURE) {
        Some(found) if weights.is_gguf() && found != expected => {
            let (path, key) = (weights.path().display(), gguf::ARCHITECTURE);
            Err(Error::model(format!("{path}: {key} is {found}, but that of {network} is {expected}")))
        }
        _ => Ok(()),
    }
}

/// Returns the name and the part of the original tensor for a weight of a network with this number of joint blocks.
pub(in super::super) fn original(is_flux: bool, layers: usize, name: &str) -> Option<(String, View)> {
    let find = |table: Table, name: &str| {
        let found = |(own, original, view): &(&str, &str, View)| {
            Some((format!("{original}{}", name.strip_prefix(*own)?), *view))
        };
        table.iter().find_map(found)
    };
    let blocks: [(&str, &str, Table); 2] = match is_flux {
        true => [
            ("transformer_blocks.", "double_blocks", FLUX_JOINT),
            ("single_transformer_blocks.", "single_blocks", FLUX_SINGLE),
        ],
        false => [("transformer_blocks.", "joint_blocks", SD3_JOINT); 2],
    };
    for (start, original, table) in blocks {
        let Some((number, rest)) = name.strip_prefix(start).and_then(|rest| rest.split_once('.')) else {
            continue;
        };
        let (rest, view) = find(table, rest)?;
        // The modulation of the text in the last block of Stable Diffusion 3 has a shift and a scale only.
        let is_last = !is_flux && number.parse() == Ok(layers - 1) && rest.starts_with("context_block.adaLN");
        return Some((format!("{original}.{number}.{rest}"), if is_last { SWAPPED } else { view }));
    }
    find(if is_flux { FLUX } else { SD3 }, name)
}
