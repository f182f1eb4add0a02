//! UNet2DConditionModel: predicts the noise in latents, given their timesteps and the encoded prompts.
use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use candle_transformers::models::stable_diffusion::unet_2d::{
    BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
};

use super::autoencoder::CHANNELS;
use super::composite;
use super::weights::{Part, Shapes, shapes_of};

const EPSILON: f64 = 1e-5;
/// Epsilon of the norms before attention.
const EPSILON_ATTENTION: f64 = 1e-6;

/// Dimensions of a UNet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Widths of the blocks, the second at half the resolution. Both have attention.
    pub widths: [usize; 2],
    pub heads: usize,
    pub groups: usize,
    /// Width of the encoded prompt.
    pub context: usize,
}

impl Size {
    /// Residual blocks per down block; up blocks have one more.
    pub const LAYERS: usize = 1;

    /// Returns candle-transformers' configuration.
    pub fn config(&self) -> UNet2DConditionModelConfig {
        let block = |out_channels| BlockConfig {
            out_channels,
            use_cross_attn: Some(1),
            attention_head_dim: self.heads,
        };
        UNet2DConditionModelConfig {
            blocks: self.widths.map(block).to_vec(),
            layers_per_block: Self::LAYERS,
            norm_num_groups: self.groups,
            cross_attention_dim: self.context,
            use_linear_projection: true,
            ..UNet2DConditionModelConfig::default()
        }
    }

    /// Returns the shapes of the weights by name.
    ///
    /// # Errors
    /// If a width is not divisible by the number of heads or groups.
    pub fn shapes(&self) -> Result<Shapes> {
        shapes_of(|vb| UNet2DConditionModel::new(vb, CHANNELS, CHANNELS, false, self.config()))
    }

    /// Returns the sinusoidal embedding of a timestep: cosines, then sines.
    pub fn timestep_embedding(&self, timestep: f64) -> Vec<f32> {
        let half = self.widths[0] / 2;
        let angle = |at: usize| timestep * 10_000f64.powf(-(at as f64) / half as f64);
        let cosines = (0..half).map(|at| angle(at).cos() as f32);
        cosines.chain((0..half).map(|at| angle(at).sin() as f32)).collect()
    }
}

/// UNet with its weights.
pub struct UNet<'a> {
    pub size: Size,
    pub weights: Part<'a>,
}

impl UNet<'_> {
    /// Predicts the noise in `latents` (batch, 4, h, w). `timesteps` (batch, first width) is their
    /// [`Size::timestep_embedding`], `context` (batch, tokens, width) the encoded prompts. `residuals` are those of a
    /// ControlNet, or empty.
    ///
    /// # Errors
    /// If a weight is missing, `h` or `w` is odd, the number of residuals is wrong, or the device fails.
    pub fn forward(
        &self,
        latents: &Tensor,
        timesteps: &Tensor,
        context: &Tensor,
        residuals: &[Tensor],
    ) -> Result<Tensor> {
        let all = &self.weights;
        let time = self.time(timesteps)?;
        let mut features = self.encode(latents, None, &time, context)?;
        if !residuals.is_empty() {
            let (own, given) = (features.len(), residuals.len());
            ensure!(own == given, "{given} residuals for a UNet with {own} features");
            let sums = features.iter().zip(residuals).map(|(own, given)| own + given);
            features = sums.collect::<candle_core::Result<_>>()?;
        }
        let mut x = features.pop().context("a UNet without blocks")?;
        for block in 0..self.size.widths.len() {
            let block = all.part(&format!("up_blocks.{block}"));
            for at in 0..=Size::LAYERS {
                let skip = features.pop().context("more up blocks than skip connections")?;
                x = self.layer(&block, at, &Tensor::cat(&[&x, &skip], 1)?, &time, context)?;
            }
            if block.has("upsamplers.0.conv.weight") {
                x = block.part("upsamplers.0.conv").conv(&composite::upsample(&x)?, 1, 1)?;
            }
        }
        let normed = all.part("conv_norm_out").group_norm(&x, self.size.groups, EPSILON, true)?;
        all.part("conv_out").conv(&normed, 1, 1)
    }

    /// Returns the embedding that residual blocks take, from the [`Size::timestep_embedding`].
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
    pub fn time(&self, timesteps: &Tensor) -> Result<Tensor> {
        let embedding = self.weights.part("time_embedding");
        let time = composite::silu(&embedding.part("linear_1").linear(timesteps)?)?;
        // All blocks apply this SiLU first.
        Ok(composite::silu(&embedding.part("linear_2").linear(&time)?)?)
    }

    /// Returns the outputs of all layers before the middle block, which skip connections pass to the up blocks, followed
    /// by the output of the middle block. `hint` (batch, first width, h, w) is added to the first convolution's output.
    ///
    /// # Errors
    /// If a weight is missing, `h` or `w` is odd, or the device fails.
    pub fn encode(
        &self,
        latents: &Tensor,
        hint: Option<&Tensor>,
        time: &Tensor,
        context: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let all = &self.weights;
        let mut x = all.part("conv_in").conv(latents, 1, 1)?;
        if let Some(hint) = hint {
            x = (x + hint)?;
        }
        let mut features = vec![x.clone()];
        for block in 0..self.size.widths.len() {
            let block = all.part(&format!("down_blocks.{block}"));
            for at in 0..Size::LAYERS {
                x = self.layer(&block, at, &x, time, context)?;
                features.push(x.clone());
            }
            if block.has("downsamplers.0.conv.weight") {
                x = block.part("downsamplers.0.conv").conv(&x, 1, 2)?;
                features.push(x.clone());
            }
        }
        let middle = all.part("mid_block");
        x = self.layer(&middle, 0, &x, time, context)?;
        if middle.has("resnets.1.conv1.weight") {
            x = self.residual(&middle.part("resnets.1"), &x, time)?;
        }
        features.push(x);
        Ok(features)
    }

    /// Applies a residual block and its transformer, if it has one.
    fn layer(&self, block: &Part, at: usize, x: &Tensor, time: &Tensor, context: &Tensor) -> Result<Tensor> {
        let x = self.residual(&block.part(&format!("resnets.{at}")), x, time)?;
        let transformer = block.part(&format!("attentions.{at}"));
        if transformer.has("norm.weight") { self.transformer(&transformer, &x, context) } else { Ok(x) }
    }

    fn residual(&self, part: &Part, x: &Tensor, time: &Tensor) -> Result<Tensor> {
        part.residual(x, Some(time), self.size.groups, EPSILON)
    }

    fn transformer(&self, part: &Part, x: &Tensor, context: &Tensor) -> Result<Tensor> {
        let normed = part.part("norm").group_norm(x, self.size.groups, EPSILON_ATTENTION, false)?;
        let mut rows = part.part("proj_in").linear(&composite::flatten_spatial(&normed)?)?;
        let block = part.part("transformer_blocks.0");
        for (norm, attention, others) in [("norm1", "attn1", None), ("norm2", "attn2", Some(context))] {
            let normed = block.part(norm).layer_norm(&rows)?;
            let part = block.part(attention);
            let project = |name: &str, x: &Tensor| part.part(name).linear(x);
            let others = others.unwrap_or(&normed);
            let (q, k, v) = (project("to_q", &normed)?, project("to_k", others)?, project("to_v", others)?);
            let mixed = composite::attention(&q, &k, &v, self.size.heads, None)?;
            rows = (rows + project("to_out.0", &mixed)?)?;
        }
        let wide = block.part("ff.net.0.proj").linear(&block.part("norm3").layer_norm(&rows)?)?;
        rows = (rows + block.part("ff.net.2").linear(&composite::geglu(&wide)?)?)?;
        Ok((x + composite::unflatten_spatial(&part.part("proj_out").linear(&rows)?, x.dim(2)?)?)?)
    }
}
