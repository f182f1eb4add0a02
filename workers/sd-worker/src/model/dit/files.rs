//! Flux and Stable Diffusion 3 from single files: the transformer, and text encoders and VAE in the same file or others.
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::parts::{FileOptions, NetworkPart, Parts};
use super::super::single_file::{self, CLIP_G, CLIP_L, ClipSlot, TextFiles};
use super::super::vae::VaeConfig;
use super::super::weights::Weights;
use super::config::{DitConfig, PATCH};
use super::original::{Layout, check_architecture};
use super::{folder, text};
use crate::schedulers::{Flow, Method, Prediction, SchedulerConfig};
use crate::{Error, Result};

/// Factor and shift of the latents of Flux, and of Stable Diffusion 3, which files do not contain.
const LATENTS: [(f64, f64); 2] = [(0.3611, 0.1159), (1.5305, 0.0609)];
/// Constant shift of the noise levels of Stable Diffusion 3, and of Flux schnell. That of Flux dev depends on the size.
const SHIFTS: [f64; 2] = [3.0, 1.0];
/// Height and width of the latents that Stable Diffusion 3 was trained on.
const SIDE: usize = 128;
/// Width of an attention head of Stable Diffusion 3, which files without norms of heads do not show.
const HEAD_WIDTH: usize = 64;

/// Reads the header of a file with a transformer. Returns `None` for other files.
///
/// # Errors
/// The transformer is not supported, or a text encoder, a tokenizer or the VAE is missing.
pub(in super::super) fn parts(weights: &Arc<Weights>, options: &FileOptions) -> Result<Option<Parts>> {
    let Some(layout) = Layout::of(weights) else { return Ok(None) };
    let bad = |what: String| Error::model(format!("{}: {what}", weights.path().display()));
    let config = config(weights, layout)?;
    let network = config.version.network();
    check_architecture(weights, layout.is_flux, network)?;
    for (flag, is_given) in
        [("--embedding-dir", options.embeddings.is_some()), ("--prediction", options.prediction.is_some())]
    {
        if is_given {
            return Err(bad(format!("{flag} is not supported by {network}; omit it")));
        }
    }
    let slots: &[ClipSlot] = if layout.is_flux { &[CLIP_L] } else { &[CLIP_L, CLIP_G] };
    let files = TextFiles { weights, network, options };
    let texts = files.clip(slots)?;
    let t5 = files.t5(text::length(config.version), layout.is_flux)?;
    folder::check_widths(&config, &texts, t5.as_ref()).map_err(bad)?;
    let (scaling_factor, shift_factor) = LATENTS[usize::from(!layout.is_flux)];
    let (vae_config, vae) = single_file::own_vae(weights, options, scaling_factor)?;
    let vae_config = VaeConfig { shift_factor, ..vae_config };
    let flow = Flow {
        shift: SHIFTS[usize::from(layout.is_flux)],
        use_dynamic_shifting: config.guidance,
        spans_fractions: layout.is_flux,
        token_side: PATCH * vae_config.factor(),
        ..Flow::default()
    };
    let scheduler = SchedulerConfig {
        prediction: Prediction::Flow,
        method: Method::Euler,
        flow: Some(flow),
        ..SchedulerConfig::default()
    };
    let transformer = layout.component(weights, config.layers);
    Ok(Some(Parts {
        texts,
        t5,
        network: NetworkPart::Dit(config, transformer),
        vae: (vae_config, vae),
        scheduler,
        zeros_for_empty: false,
        preview: None,
        safety_checker: None,
    }))
}

/// Derives the configuration from the shapes of tensors.
fn config(weights: &Arc<Weights>, layout: Layout) -> Result<DitConfig> {
    let bad = |what: String| Error::model(format!("{}: {what}", weights.path().display()));
    let component = layout.component(weights, usize::MAX);
    let shape = |name: &str| match component.shape(name) {
        Some(shape) if !shape.is_empty() && !shape.contains(&0) => Ok(shape),
        Some(shape) => Err(bad(format!("{name} has shape {shape:?}, which is not supported"))),
        None => Err(bad(format!("there is no tensor for {name}"))),
    };
    let columns = |name: &str| match shape(name)?[..] {
        [_, columns, ..] => Ok(columns),
        ref other => Err(bad(format!("{name} has shape {other:?}, but a matrix is required"))),
    };
    let count = |start: &str| {
        (0usize..).take_while(|i| component.has(&format!("{start}.{i}.attn.to_q.weight"))).count()
    };
    let first_norm = "transformer_blocks.0.attn.norm_q.weight";
    let head = if component.has(first_norm) { shape(first_norm)?[0] } else { HEAD_WIDTH };
    let layers = count("transformer_blocks");
    let mut json = json!({
        "num_layers": layers,
        "attention_head_dim": head,
        "joint_attention_dim": columns("context_embedder.weight")?,
        "pooled_projection_dim": columns("time_text_embed.text_embedder.linear_1.weight")?,
    });
    let mut set = |key: &str, value: Value| json[key] = value;
    if layout.is_flux {
        let width = shape("x_embedder.weight")?[0];
        set("_class_name", "FluxTransformer2DModel".into());
        set("in_channels", columns("x_embedder.weight")?.into());
        set("num_single_layers", count("single_transformer_blocks").into());
        set("num_attention_heads", (width / head).into());
        set("guidance_embeds", component.has("time_text_embed.guidance_embedder.linear_1.weight").into());
        // Published models have heads of width 128 and axes of 16, 56 and 56.
        set("axes_dims_rope", json!([head / 8, head * 7 / 16, head * 7 / 16]));
    } else {
        let width = shape("pos_embed.proj.weight")?[0];
        let positions: usize = shape("pos_embed.pos_embed")?.iter().product::<usize>() / width;
        let side = positions.isqrt();
        let has_second = |i: &usize| component.has(&format!("transformer_blocks.{i}.attn2.to_q.weight"));
        set("_class_name", "SD3Transformer2DModel".into());
        set("in_channels", columns("pos_embed.proj.weight")?.into());
        set("out_channels", (shape("proj_out.weight")?[0] / (PATCH * PATCH)).into());
        set("num_attention_heads", (width / head).into());
        set("caption_projection_dim", width.into());
        set("pos_embed_max_size", side.into());
        set("sample_size", SIDE.min(PATCH * side).into());
        set("dual_attention_layers", (0..layers).filter(has_second).collect::<Vec<usize>>().into());
        set("qk_norm", if component.has(first_norm) { "rms_norm".into() } else { Value::Null });
    }
    let config = DitConfig::parse(json);
    config.map_err(|what| bad(format!("the transformer is not supported: {what}")))
}
