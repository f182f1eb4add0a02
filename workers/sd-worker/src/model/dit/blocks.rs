//! Blocks of diffusion transformers, with the names of diffusers.
use candle_core::{DType, Result, Tensor};
use candle_nn::fused::{CacheHeads, HeadNorms, Rotary};
use candle_nn::fused_image::multiply_add;
use candle_nn::{Module, ops};

use super::super::attention::attention;
use super::super::layer_builder::{LayerBuilder, Linear};
use super::super::version::Version;
use super::config::DitConfig;

/// Epsilon of all norms.
pub(super) const EPS: f32 = 1e-6;
/// Largest finite value of f16, to which diffusers limits tokens of the text.
const F16_MAX: f32 = 65504.0;

/// Indices of the tokens of a stream in the table of rotary angles, and of their keys and values, each u32 (batch ·
/// tokens).
#[derive(Debug)]
pub(super) struct Rows {
    pub positions: Tensor,
    pub slots: Tensor,
}

/// Keys and values of an attention (batch, tokens, heads, width), which blocks overwrite, and rotary angles of all
/// positions.
pub(super) struct KeyValues<'a> {
    pub keys: Tensor,
    pub values: Tensor,
    pub cos: &'a Tensor,
    pub sin: &'a Tensor,
}

impl KeyValues<'_> {
    fn attention(&self, queries: &Tensor) -> Result<Tensor> {
        attention(queries, &self.keys, &self.values, false)
    }
}

/// Inputs of blocks other than the tokens.
pub(super) struct Context<'a> {
    /// Activated embedding of timestep, pooled text and guidance: (batch, width).
    pub conditioning: Tensor,
    pub text: &'a Rows,
    pub image: &'a Rows,
    /// Tokens of the text, followed by those of the image.
    pub all: &'a Rows,
    pub joint: KeyValues<'a>,
    /// Rows, keys and values of the second attention, of the image alone; `None` if no block has one.
    pub second: Option<(&'a Rows, KeyValues<'a>)>,
}

/// Projections to queries, keys and values, in one product.
#[derive(Debug)]
struct Projections {
    product: Linear,
    /// Biases of queries, keys and values.
    bias: Tensor,
    norms: Option<[Tensor; 2]>,
    heads: usize,
}

impl Projections {
    /// `names` are those of the three projections and of the norms of queries and keys.
    fn new(config: &DitConfig, names: [&str; 5], vb: &LayerBuilder) -> Result<Self> {
        let width = config.width();
        let [q, k, v, norm_q, norm_k] = names.map(|name| vb.pp(name));
        let projections = [&q, &k, &v];
        let product = vb.joined(&projections, width, width)?;
        let biases = projections.iter().map(|vb| vb.get(width, "bias")).collect::<Result<Vec<_>>>()?;
        let norm = |vb: LayerBuilder| vb.get(config.head_width, "weight");
        Ok(Self {
            product,
            bias: Tensor::cat(&biases, 0)?,
            norms: if config.head_norms { Some([norm(norm_q)?, norm(norm_k)?]) } else { None },
            heads: config.heads,
        })
    }

    /// Stores keys and values of tokens (batch, tokens, width), and returns their queries (batch, tokens, heads, width).
    fn forward(&self, tokens: &Tensor, rows: &Rows, stored: &KeyValues) -> Result<Tensor> {
        let (batch, count, width) = tokens.dims3()?;
        let projected = self.product.forward(&tokens.reshape((batch * count, width))?)?;
        let part = |i: usize| projected.narrow(1, i * width, width);
        let norms = self.norms.as_ref().map(|[query, key]| HeadNorms { query, key, eps: EPS });
        let heads = CacheHeads {
            q: &part(0)?,
            k: &part(1)?,
            v: &part(2)?,
            bias: Some(&self.bias),
            norms,
            rotary: Rotary { cos: stored.cos, sin: stored.sin, interleaved: true },
            positions: &rows.positions,
            slots: &rows.slots,
            keys: &stored.keys,
            values: &stored.values,
            scales: None,
        };
        heads.forward()?.reshape((batch, count, self.heads, width / self.heads))
    }
}

#[derive(Debug)]
struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn new(width: usize, vb: LayerBuilder) -> Result<Self> {
        let vb = vb.pp("net");
        Ok(Self { up: vb.pp("0.proj").linear(width, 4 * width)?, down: vb.pp("2").linear(4 * width, width)? })
    }
}

impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.up.forward_gelu(x)?.apply(&self.down)
    }
}

/// Projection of the conditioning to shifts, scales and gates of a block.
#[derive(Debug)]
pub(super) struct Modulation {
    linear: Linear,
    width: usize,
}

impl Modulation {
    pub fn new(width: usize, parts: usize, vb: LayerBuilder) -> Result<Self> {
        Ok(Self { linear: vb.pp("linear").of_few_rows().linear(width, parts * width)?, width })
    }

    /// Returns the parts, each (batch, width).
    pub fn forward<const N: usize>(&self, conditioning: &Tensor) -> Result<[Tensor; N]> {
        let all = conditioning.apply(&self.linear)?;
        let parts = (0..N).map(|i| all.narrow(1, i * self.width, self.width)).collect::<Result<Vec<_>>>()?;
        parts.try_into().map_err(|_| candle_core::Error::msg("a modulation has too few parts"))
    }
}

/// Computes (1 + scale) · norm(x) + shift of tokens (batch, tokens, width), in one operation for each batch element.
pub(super) fn modulated(x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let scale = (scale + 1.0)?;
    let row = |i: usize| {
        let of = |x: &Tensor| x.narrow(0, i, 1)?.flatten_all()?.contiguous();
        ops::layer_norm(&x.narrow(0, i, 1)?.contiguous()?, &of(&scale)?, &of(shift)?, EPS)
    };
    match x.dim(0)? {
        1 => row(0),
        batch => Tensor::cat(&(0..batch).map(row).collect::<Result<Vec<_>>>()?, 0),
    }
}

/// Computes x + gate · y.
fn gated(x: &Tensor, gate: &Tensor, y: &Tensor) -> Result<Tensor> {
    multiply_add(x, y, &gate.unsqueeze(1)?)
}

/// Clamps values that overflowed in f16 to the finite range, as diffusers does.
fn limited(x: Tensor) -> Result<Tensor> {
    if x.dtype() == DType::F16 { x.clamp(-F16_MAX, F16_MAX) } else { Ok(x) }
}

/// First half of a block, for text or image.
#[derive(Debug)]
struct Entry {
    modulation: Modulation,
    projections: Projections,
}

/// Second half of a block, after the attention.
#[derive(Debug)]
struct Exit {
    out: Linear,
    feed_forward: FeedForward,
}

impl Exit {
    /// Computes the tokens after attention and feed-forward layer. `parts` are the gate of the attention, and shift, scale
    /// and gate of the feed-forward layer.
    fn forward(&self, x: &Tensor, attended: &Tensor, parts: &[Tensor; 4]) -> Result<Tensor> {
        let [gate, shift, scale, last_gate] = parts;
        let x = gated(x, gate, &attended.apply(&self.out)?)?;
        gated(&x, last_gate, &modulated(&x, shift, scale)?.apply(&self.feed_forward)?)
    }
}

/// Block with separate weights for text and image, which share an attention.
#[derive(Debug)]
pub(super) struct JointBlock {
    image: (Entry, Exit),
    text: Entry,
    /// `None` in the last block of Stable Diffusion 3, where only keys and values of the text are used.
    text_exit: Option<Exit>,
    /// Second attention of the image alone.
    second: Option<(Projections, Linear)>,
}

impl JointBlock {
    /// Loads the block of this index.
    pub fn new(config: &DitConfig, index: usize, vb: &LayerBuilder) -> Result<Self> {
        let width = config.width();
        let attn = vb.pp("attn");
        let names = ["to_q", "to_k", "to_v", "norm_q", "norm_k"];
        let added = ["add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k"];
        let entry = |norm: &str, parts: usize, names| {
            Ok::<_, candle_core::Error>(Entry {
                modulation: Modulation::new(width, parts, vb.pp(norm))?,
                projections: Projections::new(config, names, &attn)?,
            })
        };
        let exit = |out: &str, feed_forward: &str| {
            Ok::<_, candle_core::Error>(Exit {
                out: attn.pp(out).linear(width, width)?,
                feed_forward: FeedForward::new(width, vb.pp(feed_forward))?,
            })
        };
        let is_last = config.version != Version::Flux && index + 1 == config.layers;
        let is_dual = config.dual_layers.contains(&index);
        let own = vb.pp("attn2");
        let second =
            || Result::Ok((Projections::new(config, names, &own)?, own.pp("to_out.0").linear(width, width)?));
        Ok(Self {
            image: (entry("norm1", if is_dual { 9 } else { 6 }, names)?, exit("to_out.0", "ff")?),
            text: entry("norm1_context", if is_last { 2 } else { 6 }, added)?,
            text_exit: if is_last { None } else { Some(exit("to_add_out", "ff_context")?) },
            second: is_dual.then(second).transpose()?,
        })
    }

    /// Computes the tokens of text and image, each (batch, tokens, width).
    pub fn forward(&self, text: &Tensor, image: &Tensor, context: &Context) -> Result<(Tensor, Tensor)> {
        let Context { conditioning, joint, .. } = context;
        let (shift, scale, text_parts) = match &self.text_exit {
            Some(_) => {
                let [shift, scale, parts @ ..] = self.text.modulation.forward::<6>(conditioning)?;
                (shift, scale, Some(parts))
            }
            None => {
                let [scale, shift] = self.text.modulation.forward::<2>(conditioning)?;
                (shift, scale, None)
            }
        };
        let normed = modulated(text, &shift, &scale)?;
        let text_queries = self.text.projections.forward(&normed, context.text, joint)?;
        let (entry, exit) = &self.image;
        let (shift, scale, parts, extra) = match &self.second {
            Some(_) => {
                let [shift, scale, a, b, c, d, extra @ ..] = entry.modulation.forward::<9>(conditioning)?;
                (shift, scale, [a, b, c, d], Some(extra))
            }
            None => {
                let [shift, scale, parts @ ..] = entry.modulation.forward::<6>(conditioning)?;
                (shift, scale, parts, None)
            }
        };
        let normed = modulated(image, &shift, &scale)?;
        let queries = entry.projections.forward(&normed, context.image, joint)?;
        let attended = joint.attention(&queries)?;
        // The second attention reads the tokens before this block.
        let mut base = image.clone();
        if let (Some((projections, out)), Some([shift, scale, gate]), Some((rows, stored))) =
            (&self.second, &extra, &context.second)
        {
            let queries = projections.forward(&modulated(image, shift, scale)?, rows, stored)?;
            base = gated(image, gate, &stored.attention(&queries)?.apply(out)?)?;
        }
        let text = match (&self.text_exit, &text_parts) {
            (Some(exit), Some(parts)) => {
                limited(exit.forward(text, &joint.attention(&text_queries)?, parts)?)?
            }
            _ => text.clone(),
        };
        Ok((text, exit.forward(&base, &attended, &parts)?))
    }
}

/// Block with shared weights for text and image (Flux).
#[derive(Debug)]
pub(super) struct SingleBlock {
    modulation: Modulation,
    projections: Projections,
    up: Linear,
    out: Linear,
}

impl SingleBlock {
    /// Loads a block.
    pub fn new(config: &DitConfig, vb: &LayerBuilder) -> Result<Self> {
        let width = config.width();
        let names = ["to_q", "to_k", "to_v", "norm_q", "norm_k"];
        Ok(Self {
            modulation: Modulation::new(width, 3, vb.pp("norm"))?,
            projections: Projections::new(config, names, &vb.pp("attn"))?,
            up: vb.pp("proj_mlp").linear(width, 4 * width)?,
            out: vb.pp("proj_out").linear(5 * width, width)?,
        })
    }

    /// Computes the tokens of text and image (batch, tokens, width).
    pub fn forward(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        let [shift, scale, gate] = self.modulation.forward(&context.conditioning)?;
        let normed = modulated(x, &shift, &scale)?;
        let queries = self.projections.forward(&normed, context.all, &context.joint)?;
        let inner = self.up.forward_gelu(&normed)?;
        let both = self.out.forward_parts([&context.joint.attention(&queries)?, &inner])?;
        limited(gated(x, &gate, &both)?)
    }
}
