//! First half of a UNet: embeddings, down blocks and middle block. ControlNets are copies of it.
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Module, conv2d};

use super::layer_builder::{LayerBuilder, Linear};
use super::level::ResolutionLevel;
use super::unet_config::UNetConfig;

/// Two linear layers that compute an embedding of the same width as that of the timestep.
#[derive(Debug)]
struct Embedding([Linear; 2]);

impl Embedding {
    fn new(from: usize, to: usize, vb: &LayerBuilder) -> Result<Self> {
        let vb = vb.clone().of_few_rows();
        Ok(Self([vb.pp("linear_1").linear(from, to)?, vb.pp("linear_2").linear(to, to)?]))
    }
}

impl Module for Embedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply(&self.0[0])?.silu()?.apply(&self.0[1])
    }
}

/// Output of the middle block, and outputs of the layers before it, which skip connections pass to the decoder.
#[derive(Debug, Clone)]
pub struct Features {
    pub(super) skips: Vec<Tensor>,
    pub(super) mid: Tensor,
}

impl Features {
    /// Applies `f` to each tensor. Its first argument is the index of a skip connection; `None` for the middle block.
    pub(super) fn map(self, f: impl Fn(Option<usize>, Tensor) -> Result<Tensor>) -> Result<Self> {
        let skips = self.skips.into_iter().enumerate().map(|(i, x)| f(Some(i), x)).collect::<Result<_>>()?;
        Ok(Self { skips, mid: f(None, self.mid)? })
    }

    /// Returns the sums of the tensors of two networks with the same widths.
    ///
    /// # Errors
    /// Shapes or dtypes differ, or the device fails.
    pub fn plus(self, other: &Self) -> Result<Self> {
        if self.skips.len() != other.skips.len() {
            candle_core::bail!("{} skip connections, expected {}", other.skips.len(), self.skips.len())
        }
        self.map(|i, x| x + i.map_or(&other.mid, |i| &other.skips[i]))
    }
}

/// Embeddings, down blocks and middle block.
#[derive(Debug)]
pub(super) struct Encoder {
    conv_in: Conv2d,
    time: Embedding,
    added: Option<Embedding>,
    down: Vec<ResolutionLevel>,
    mid: ResolutionLevel,
    pub config: UNetConfig,
    pub dtype: DType,
}

impl Encoder {
    /// Loads weights with the names that UNet2DConditionModel and ControlNetModel have in diffusers.
    pub fn new(vb: &LayerBuilder, config: &UNetConfig) -> Result<Self> {
        let c = config;
        let widths = &c.block_out_channels;
        let (Some(first), Some(last)) = (widths.first().copied(), widths.last().copied()) else {
            candle_core::bail!("the UNet has no blocks")
        };
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        let mut width = first;
        let mut down = Vec::new();
        for (block, kind) in c.down_block_types.iter().enumerate() {
            let vb = vb.pp("down_blocks").pp(block);
            let mut inputs = vec![widths[block]; c.layers_per_block];
            if let Some(input) = inputs.first_mut() {
                *input = width;
            }
            width = widths[block];
            let transformers = if kind.starts_with("CrossAttn") { inputs.len() } else { 0 };
            let mut level = ResolutionLevel::new(c, block, &inputs, transformers, 1.0, &vb)?;
            if block + 1 < widths.len() {
                let config = Conv2dConfig { stride: 2, padding: c.downsample_padding, ..Default::default() };
                level.resample =
                    Some(conv2d(width, width, 3, config, vb.floats().pp("downsamplers.0.conv"))?);
            }
            down.push(level);
        }
        let (layers, transformers) = if c.has_mid_attention() { (2, 1) } else { (1, 0) };
        let (block, scale, vb_mid) = (widths.len() - 1, c.mid_block_scale_factor, vb.pp("mid_block"));
        let mid = ResolutionLevel::new(c, block, &vec![last; layers], transformers, scale, &vb_mid)?;
        let added = match c.added_widths() {
            Some((_, all)) => Some(Embedding::new(all, c.time_width(), &vb.pp("add_embedding"))?),
            None => None,
        };
        Ok(Self {
            conv_in: conv2d(c.in_channels, first, 3, same, vb.floats().pp("conv_in"))?,
            time: Embedding::new(first, c.time_width(), &vb.pp("time_embedding"))?,
            added,
            down,
            mid,
            config: config.clone(),
            dtype: vb.dtype(),
        })
    }

    /// Computes the additional embedding of XL from the pooled prompts (batch, width) and `numbers`: sizes and
    /// scores, either one set for all rows or the sets of all rows, concatenated.
    pub fn added(&self, pooled: &Tensor, numbers: &[f64]) -> Result<Tensor> {
        let (Some(added), Some((width, _))) = (&self.added, self.config.added_widths()) else {
            candle_core::bail!("this UNet does not take a pooled prompt and sizes")
        };
        let (rows, pooled_width) = pooled.dims2()?;
        let embedded = self.sinusoids(numbers, width, pooled.device())?;
        let embedded = match self.config.added_numbers(pooled_width) == Some(numbers.len()) {
            true => embedded.flatten_all()?.unsqueeze(0)?.repeat((rows, 1))?,
            false => embedded.reshape((rows, ()))?,
        };
        added.forward(&Tensor::cat(&[&pooled.to_dtype(self.dtype)?, &embedded], D::Minus1)?)
    }

    /// Computes the embedding of one timestep or of one per batch element, after SiLU. `added` is the result of [`Self::added`].
    pub fn time(&self, timesteps: &[f64], added: Option<&Tensor>, device: &Device) -> Result<Tensor> {
        if added.is_some() != self.added.is_some() {
            candle_core::bail!("pooled prompt and sizes are required by XL and not supported by other UNets")
        }
        let width = self.config.block_out_channels[0];
        let time = self.time.forward(&self.sinusoids(timesteps, width, device)?)?;
        added.map_or(Ok(time.clone()), |added| added.broadcast_add(&time))?.silu()
    }

    /// Computes the features of `latents` (batch, in_channels, height, width). `time` is the result of [`Self::time`].
    /// `hint` (1, first width, height, width) is added to the output of the first convolution.
    pub fn forward(
        &self,
        latents: &Tensor,
        hint: Option<&Tensor>,
        time: &Tensor,
        text: &Tensor,
    ) -> Result<Features> {
        let mut x = self.conv_in.forward(latents)?;
        if let Some(hint) = hint {
            x = x.broadcast_add(hint)?;
        }
        let mut skips = vec![x.clone()];
        for level in &self.down {
            for i in 0..level.resnets.len() {
                x = level.forward_layer(i, &x, time, text)?;
                skips.push(x.clone());
            }
            if let Some(conv) = &level.resample {
                // If the convolution has no padding, diffusers pads only the right and bottom edges.
                if self.config.downsample_padding == 0 {
                    x = x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?;
                }
                x = conv.forward(&x)?;
                skips.push(x.clone());
            }
        }
        for i in 0..self.mid.resnets.len() {
            x = self.mid.forward_layer(i, &x, time, text)?;
        }
        Ok(Features { skips, mid: x })
    }

    /// Returns sinusoidal embeddings of numbers: (numbers, width), computed in f32 as in training.
    fn sinusoids(&self, numbers: &[f64], width: usize, device: &Device) -> Result<Tensor> {
        let half = width / 2;
        let base = -(10_000f64.ln()) as f32;
        let part = (1.0 / (half as f64 - self.config.freq_shift)) as f32;
        let mut values = Vec::with_capacity(numbers.len() * width);
        for number in numbers {
            let angle = |i: usize| *number as f32 * (i as f32 * base * part).exp();
            let sines = (0..half).map(|i| angle(i).sin());
            let cosines = (0..half).map(|i| angle(i).cos());
            if self.config.flip_sin_to_cos {
                values.extend(cosines.chain(sines));
            } else {
                values.extend(sines.chain(cosines));
            }
            values.resize(values.len() + width % 2, 0.0);
        }
        Tensor::from_vec(values, (numbers.len(), width), device)?.to_dtype(self.dtype)
    }
}
