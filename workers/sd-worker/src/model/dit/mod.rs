//! Diffusion transformers: Flux, and Stable Diffusion 3 and 3.5, which have the same joint blocks.
//!
//! The modules of candle-transformers are not used, because its Flux computes rotary angles in half precision and stores
//! all attention scores, and its MMDiT computes in f16 only and lacks the norms of the text in the last block of version
//! 3.5.
//!
//! | file | subject |
//! |---|---|
//! | `config` | contents of config.json |
//! | `blocks` | transformer blocks |
//! | `block_cache` | reuse of blocks from step to step |
//! | `files` | single files, with or without text encoders and VAE |
//! | `folder` | folders in the layout of diffusers |
//! | `original` | files of a transformer alone, with other names |
//! | `text` | embeddings of prompts |
mod block_cache;
mod blocks;
mod config;
pub(super) mod files;
pub(super) mod folder;
pub(super) mod original;
pub(super) mod text;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::{Module, VarBuilder};

use super::layer_builder::{LayerBuilder, Linear};
use super::version::Version;
pub use block_cache::BlockCache;
use blocks::{Context, JointBlock, KeyValues, Modulation, Rows, SingleBlock, modulated};
pub use config::DitConfig;
use config::PATCH;

/// Width of the sinusoids of timestep and guidance.
const SINUSOIDS: usize = 256;
/// Largest period of the sinusoids, and base of the periods of rotary angles.
const MAX_PERIOD: f64 = 10000.0;
/// Factor of the guidance scale before its sinusoids.
const GUIDANCE_FACTOR: f64 = 1000.0;

/// Two linear layers with a SiLU between them.
#[derive(Debug)]
struct Embedder([Linear; 2]);

impl Embedder {
    fn new(inputs: usize, width: usize, vb: LayerBuilder) -> Result<Self> {
        let vb = vb.of_few_rows();
        Ok(Self([vb.pp("linear_1").linear(inputs, width)?, vb.pp("linear_2").linear(width, width)?]))
    }
}

impl Module for Embedder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply(&self.0[0])?.silu()?.apply(&self.0[1])
    }
}

/// Sizes of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    batch: usize,
    text: usize,
    /// Numbers of tokens per column and per row of the image.
    height: usize,
    width: usize,
}

impl Sizes {
    fn image(self) -> usize {
        self.height * self.width
    }
}

/// Constants of a batch, which all steps share.
#[derive(Debug)]
struct Layout {
    sizes: Sizes,
    text: Rows,
    image: Rows,
    all: Rows,
    /// Rows of the image's tokens for the second attention, which covers the image alone.
    alone: Rows,
    cos: Tensor,
    sin: Tensor,
    /// Embedding of the positions of the image, if the network has a table of positions.
    positions: Option<Tensor>,
}

/// Denoising transformer, which predicts the velocity of flow matching.
#[derive(Debug)]
pub struct Dit {
    config: DitConfig,
    image_in: Linear,
    positions: Option<Tensor>,
    text_in: Linear,
    time: Embedder,
    guidance: Option<Embedder>,
    pooled: Embedder,
    joint: Vec<JointBlock>,
    single: Vec<SingleBlock>,
    last: Modulation,
    image_out: Linear,
    device: Device,
    dtype: DType,
    layout: Mutex<Option<Arc<Layout>>>,
}

impl Dit {
    /// Loads weights with the names of FluxTransformer2DModel or SD3Transformer2DModel in diffusers.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: VarBuilder, config: &DitConfig) -> Result<Self> {
        Self::load(&LayerBuilder::new(vb, None), config)
    }

    /// Like [`Self::new`], with quantized matrices.
    pub(super) fn load(vb: &LayerBuilder, config: &DitConfig) -> Result<Self> {
        let c = config;
        let width = c.width();
        let inputs = c.channels * PATCH * PATCH;
        let has_positions = c.version != Version::Flux;
        let image_in = match has_positions {
            // A convolution whose stride is its size is a linear layer for each patch.
            true => {
                let vb = vb.pp("pos_embed.proj");
                let weight = vb.get((width, c.channels, PATCH, PATCH), "weight")?.reshape((width, inputs))?;
                Linear::new(weight, Some(vb.get(width, "bias")?))
            }
            false => vb.pp("x_embedder").linear(inputs, width)?,
        };
        let side = c.position_side;
        let positions =
            || vb.get((1, side * side, width), "pos_embed.pos_embed")?.reshape((side, side, width));
        let embed = vb.pp("time_text_embed");
        let guidance = || Embedder::new(SINUSOIDS, width, embed.pp("guidance_embedder"));
        let (joint, single) = (vb.pp("transformer_blocks"), vb.pp("single_transformer_blocks"));
        Ok(Self {
            image_in,
            positions: has_positions.then(positions).transpose()?,
            text_in: vb.pp("context_embedder").linear(c.text_width, width)?,
            time: Embedder::new(SINUSOIDS, width, embed.pp("timestep_embedder"))?,
            guidance: c.guidance.then(guidance).transpose()?,
            pooled: Embedder::new(c.pooled_width, width, embed.pp("text_embedder"))?,
            joint: (0..c.layers).map(|i| JointBlock::new(c, i, &joint.pp(i))).collect::<Result<_>>()?,
            single: (0..c.single_layers)
                .map(|i| SingleBlock::new(c, &single.pp(i)))
                .collect::<Result<_>>()?,
            last: Modulation::new(width, 2, vb.pp("norm_out"))?,
            image_out: vb.pp("proj_out").linear(width, inputs)?,
            config: c.clone(),
            device: vb.device().clone(),
            dtype: vb.dtype(),
            layout: Mutex::default(),
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &DitConfig {
        &self.config
    }

    /// Returns the maximum side of latents in cells, if the network has a table of positions.
    pub fn max_side(&self) -> Option<usize> {
        self.positions.as_ref().map(|_| self.config.position_side * PATCH)
    }

    /// Returns an estimate of the number of bytes that the activations of one batch element need for latents of this width and
    /// height, and for this number of text tokens.
    pub(super) fn activation_bytes(&self, width: usize, height: usize, text: usize) -> usize {
        /// Number of vectors of the network's width that a token needs in a block: inputs, queries, keys, values, those of the
        /// joint attention, and the inner part of the feed-forward layer.
        const VECTORS: usize = 20;
        let tokens = width.div_ceil(PATCH) * height.div_ceil(PATCH) + text;
        tokens * self.config.width() * VECTORS * self.dtype.size_in_bytes()
    }

    /// Computes the velocity for `latents` (batch, channels, height, width) with even sides, `text` (batch, tokens,
    /// text_width) and `pooled` (batch, pooled_width), in the dtype of the weights. `guidance` is the guidance scale, which
    /// has an effect only if the network takes it as an input.
    ///
    /// # Errors
    /// Shapes or dtypes do not match, the image is larger than the table of positions, or the device fails.
    pub fn forward(
        &self,
        latents: &Tensor,
        timestep: f64,
        text: &Tensor,
        pooled: &Tensor,
        guidance: f64,
    ) -> Result<Tensor> {
        self.forward_cached(latents, &[timestep], text, pooled, &[guidance], None)
    }

    /// Like [`Self::forward`], with a cache of the batch's steps so far. `timesteps` and `guidance` have one element or one per
    /// batch element.
    ///
    /// # Errors
    /// Returns the errors of [`Self::forward`].
    pub fn forward_cached(
        &self,
        latents: &Tensor,
        timesteps: &[f64],
        text: &Tensor,
        pooled: &Tensor,
        guidance: &[f64],
        cache: Option<&mut BlockCache>,
    ) -> Result<Tensor> {
        let (batch, channels, height, width) = latents.dims4()?;
        if !height.is_multiple_of(PATCH) || !width.is_multiple_of(PATCH) || channels != self.config.channels {
            let expected = self.config.channels;
            bail!("latents {:?} must have {expected} channels and even sides", latents.shape())
        }
        let sizes = Sizes { batch, text: text.dim(1)?, height: height / PATCH, width: width / PATCH };
        let layout = self.layout(sizes)?;
        let mut conditioning = self.sinusoids(timesteps)?.apply(&self.time)?;
        if let Some(embedder) = &self.guidance {
            let scaled: Vec<f64> = guidance.iter().map(|guidance| GUIDANCE_FACTOR * guidance).collect();
            let guidance = self.sinusoids(&scaled)?.apply(embedder)?;
            conditioning = match scaled.len() > timesteps.len() {
                true => guidance.broadcast_add(&conditioning)?,
                false => conditioning.broadcast_add(&guidance)?,
            };
        }
        let conditioning = pooled.apply(&self.pooled)?.broadcast_add(&conditioning)?.silu()?;
        let stored = |tokens: usize| {
            let shape = (batch, tokens, self.config.heads, self.config.head_width);
            Ok::<_, candle_core::Error>(KeyValues {
                keys: Tensor::zeros(shape, self.dtype, &self.device)?,
                values: Tensor::zeros(shape, self.dtype, &self.device)?,
                cos: &layout.cos,
                sin: &layout.sin,
            })
        };
        let second = match self.config.dual_layers.is_empty() {
            true => None,
            false => Some((&layout.alone, stored(sizes.image())?)),
        };
        let context = Context {
            conditioning,
            text: &layout.text,
            image: &layout.image,
            all: &layout.all,
            joint: stored(sizes.text + sizes.image())?,
            second,
        };
        let mut image = patches(latents)?.apply(&self.image_in)?;
        if let Some(positions) = &layout.positions {
            image = image.broadcast_add(positions)?;
        }
        let image = self.blocks(text.apply(&self.text_in)?, image, &context, cache)?;
        let [scale, shift] = self.last.forward(&context.conditioning)?;
        let image = modulated(&image, &shift, &scale)?.apply(&self.image_out)?;
        // The channel is the last index within a token of Stable Diffusion 3, and the first of Flux.
        let (rows, columns) = (sizes.height, sizes.width);
        let image = match self.config.version {
            Version::Flux => image
                .reshape(&[batch, rows, columns, channels, PATCH, PATCH][..])?
                .permute(vec![0, 3, 1, 4, 2, 5])?,
            _ => image
                .reshape(&[batch, rows, columns, PATCH, PATCH, channels][..])?
                .permute(vec![0, 5, 1, 3, 2, 4])?,
        };
        image.contiguous()?.reshape((batch, channels, height, width))
    }

    /// Applies all blocks to the tokens of text and image, and returns those of the image.
    fn blocks(
        &self,
        mut text: Tensor,
        mut image: Tensor,
        context: &Context,
        cache: Option<&mut BlockCache>,
    ) -> Result<Tensor> {
        let count = self.joint.len() + self.single.len();
        let mut cache = cache.filter(|_| !self.joint.is_empty());
        let before = image.clone();
        let mut first = None;
        for block in &self.joint {
            (text, image) = block.forward(&text, &image, context)?;
            if let (Some(cache), None) = (&mut cache, &first) {
                if let Some(last) = cache.reuse(&before, &image, count)? {
                    return Ok(last);
                }
                first = Some(image.clone());
            }
        }
        if !self.single.is_empty() {
            let (tokens, all) = (text.dim(1)?, image.dim(1)?);
            let mut both = Tensor::cat(&[&text, &image], 1)?;
            for block in &self.single {
                both = block.forward(&both, context)?;
            }
            image = both.narrow(1, tokens, all)?.contiguous()?;
        }
        if let (Some(cache), Some(first)) = (cache, first) {
            cache.keep(&before, &first, &image, count)?;
        }
        Ok(image)
    }

    /// Returns the cosines and sines of values: (values, [`SINUSOIDS`]).
    fn sinusoids(&self, values: &[f64]) -> Result<Tensor> {
        let half = SINUSOIDS / 2;
        let mut numbers = Vec::with_capacity(values.len() * SINUSOIDS);
        for value in values {
            let angle = |i: usize| value * (-MAX_PERIOD.ln() * i as f64 / half as f64).exp();
            numbers.extend((0..half).map(|i| angle(i).cos() as f32));
            numbers.extend((0..half).map(|i| angle(i).sin() as f32));
        }
        Tensor::from_vec(numbers, (values.len(), SINUSOIDS), &self.device)?.to_dtype(self.dtype)
    }

    /// Returns the layout of a batch. The most recent layout is cached.
    fn layout(&self, sizes: Sizes) -> Result<Arc<Layout>> {
        let mut kept = self.layout.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = kept.as_ref().filter(|layout| layout.sizes == sizes) {
            return Ok(layout.clone());
        }
        let layout = Arc::new(self.compute_layout(sizes)?);
        *kept = Some(layout.clone());
        Ok(layout)
    }

    fn compute_layout(&self, sizes: Sizes) -> Result<Layout> {
        let (text, image, batch) = (sizes.text, sizes.image(), sizes.batch);
        let angles = self.angles(sizes);
        let has_angles = angles.len() > 1;
        let rows = |first: usize, count: usize, stride: usize| {
            let tokens = |of: &dyn Fn(usize, usize) -> usize| -> Result<Tensor> {
                let of = (0..batch * count).map(|i| of(i / count, i % count) as u32).collect::<Vec<u32>>();
                Tensor::from_vec(of, batch * count, &self.device)
            };
            Ok::<_, candle_core::Error>(Rows {
                positions: tokens(&|_, i| if has_angles { first + i } else { 0 })?,
                slots: tokens(&|b, i| b * stride + first + i)?,
            })
        };
        let table = |of: fn(f64) -> f64| {
            let (count, pairs) = (angles.len(), angles.first().map_or(0, Vec::len));
            let numbers: Vec<f32> = angles.iter().flatten().map(|angle| of(*angle) as f32).collect();
            Tensor::from_vec(numbers, (count, pairs), &self.device)
        };
        let positions = match &self.positions {
            Some(table) => {
                let side = self.config.position_side;
                if sizes.height > side || sizes.width > side {
                    bail!("{} x {} tokens exceed {side} per side; reduce the size", sizes.width, sizes.height)
                }
                let (top, left) = ((side - sizes.height) / 2, (side - sizes.width) / 2);
                let own = table.narrow(0, top, sizes.height)?.narrow(1, left, sizes.width)?;
                Some(own.contiguous()?.reshape((1, image, self.config.width()))?)
            }
            None => None,
        };
        Ok(Layout {
            sizes,
            text: rows(0, text, text + image)?,
            image: rows(text, image, text + image)?,
            all: rows(0, text + image, text + image)?,
            alone: rows(0, image, image)?,
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
            positions,
        })
    }

    /// Returns the rotary angles of all tokens, those of the text first. Without a rotary embedding, all tokens share angles
    /// of 0.
    fn angles(&self, sizes: Sizes) -> Vec<Vec<f64>> {
        let axes = self.config.axes;
        if axes == [0; 3] {
            return vec![vec![0.0; self.config.head_width / 2]];
        }
        let of = |ids: [usize; 3]| {
            let axis = |(id, axis): (usize, usize)| {
                let angle = move |i: usize| id as f64 * MAX_PERIOD.powf(-2.0 * i as f64 / axis as f64);
                (0..axis / 2).map(angle)
            };
            ids.into_iter().zip(axes).flat_map(axis).collect()
        };
        let text = (0..sizes.text).map(|_| of([0; 3]));
        text.chain((0..sizes.image()).map(|i| of([0, i / sizes.width, i % sizes.width]))).collect()
    }
}

/// Splits latents (batch, channels, height, width) into tokens (batch, height / 2 · width / 2, 4 · channels).
fn patches(latents: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = latents.dims4()?;
    let (rows, columns) = (height / PATCH, width / PATCH);
    latents
        .reshape(&[batch, channels, rows, PATCH, columns, PATCH][..])?
        .permute(vec![0, 2, 4, 1, 3, 5])?
        .contiguous()?
        .reshape((batch, rows * columns, channels * PATCH * PATCH))
}
