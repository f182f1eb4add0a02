//! Configurations of networks, derived from the shapes of their weights.
use super::super::attention::Activation;
use super::super::clip::ClipConfig;
use super::super::unet_config::{PerBlock, UNetConfig};
use super::super::vae::VaeConfig;
use super::super::weights::Weights;
use crate::{Error, Result};

/// Width of an attention head of CLIP, and of UNets with linear projections (Stable Diffusion 2 and XL).
const HEAD_WIDTH: usize = 64;

/// The shapes of the tensors whose names begin with a prefix.
pub(super) struct Shapes<'a> {
    pub weights: &'a Weights,
    pub prefix: &'a str,
}

impl Shapes<'_> {
    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&[usize]> {
        self.weights.shape(&format!("{}{name}", self.prefix))
    }

    /// Returns the first two dims of a matrix or of the weight of a convolution.
    fn dims(&self, name: &str) -> Result<[usize; 2]> {
        let path = self.weights.path().display();
        match self.find(name) {
            Some([rows, columns, ..]) => Ok([*rows, *columns]),
            Some(other) => Err(Error::model(format!(
                "{path}: {}{name} has shape {other:?}, but a matrix is required",
                self.prefix
            ))),
            None => Err(Error::model(format!("{path} has no tensor {}{name}", self.prefix))),
        }
    }

    /// Returns the number of consecutive names that exist.
    fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..).take_while(|i| self.has(&name(*i))).count()
    }

    fn depth(&self, block: &str) -> usize {
        self.count(|i| format!("{block}.transformer_blocks.{i}.attn1.to_q.weight"))
    }

    fn unsupported<T>(&self, what: &str) -> Result<T> {
        Err(Error::model(format!("{}: {what}", self.weights.path().display())))
    }

    /// Returns the configuration of a UNet with original names. `added` is the width of the pooled prompt of XL, and the number
    /// of other parts of the additional embedding.
    pub fn unet(&self, added: Option<(usize, usize)>) -> Result<UNetConfig> {
        let [first, in_channels] = self.dims("input_blocks.0.0.weight")?;
        let [out_channels, _] = self.dims("out.2.weight")?;
        // Each block has a number of residual blocks, a width, and a number of transformer blocks.
        let mut blocks = vec![(0, first, 0)];
        for i in 1.. {
            let name = format!("input_blocks.{i}");
            if self.has(&format!("{name}.0.op.weight")) {
                blocks.push((0, 0, 0));
            } else if self.has(&format!("{name}.0.in_layers.2.weight"))
                && let Some((layers, width, depth)) = blocks.last_mut()
            {
                [*width, _] = self.dims(&format!("{name}.0.in_layers.2.weight"))?;
                *layers += 1;
                *depth = self.depth(&format!("{name}.1"));
            } else {
                break;
            }
        }
        let layers = blocks[0].0;
        if layers == 0 || blocks.iter().any(|block| block.0 != layers) {
            return self.unsupported("a UNet with different numbers of layers per block is not supported");
        }
        let up_attention: Vec<bool> = (0..blocks.len())
            .map(|block| self.depth(&format!("output_blocks.{}.1", block * (layers + 1))) > 0)
            .collect();
        let types = |attention: &mut dyn Iterator<Item = bool>, kind: &str| {
            attention
                .map(|attention| format!("{}{kind}Block2D", if attention { "CrossAttn" } else { "" }))
                .collect()
        };
        let [_, cross_attention_dim] = self.dims("middle_block.1.transformer_blocks.0.attn2.to_k.weight")?;
        let linear = self.find("middle_block.1.proj_in.weight").is_some_and(|shape| shape.len() == 2);
        let widths: Vec<usize> = blocks.iter().map(|block| block.1).collect();
        let mut depths: Vec<usize> = blocks.iter().map(|block| block.2.max(1)).collect();
        if let (Some(depth), Some((.., 0))) = (depths.last_mut(), blocks.last()) {
            *depth = self.depth("middle_block.1").max(1);
        }
        let mut config = UNetConfig {
            in_channels,
            out_channels,
            down_block_types: types(&mut blocks.iter().map(|block| block.2 > 0), "Down"),
            up_block_types: types(&mut up_attention.iter().copied(), "Up"),
            layers_per_block: layers,
            attention_head_dim: match linear {
                true => PerBlock::Each(widths.iter().map(|width| width / HEAD_WIDTH).collect()),
                false => PerBlock::All(8),
            },
            transformer_layers_per_block: PerBlock::Each(depths),
            block_out_channels: widths,
            cross_attention_dim,
            use_linear_projection: linear,
            ..UNetConfig::default()
        };
        if let Some((pooled, numbers)) = added {
            let [_, all] = self.dims("label_emb.0.0.weight")?;
            config.addition_embed_type = Some("text_time".to_owned());
            config.addition_time_embed_dim = Some(all.saturating_sub(pooled) / numbers);
            config.projection_class_embeddings_input_dim = Some(all);
        }
        match config.check() {
            Ok(()) => Ok(config),
            Err(why) => self.unsupported(&format!("the UNet is not supported: {why}")),
        }
    }

    /// Returns the configuration of a VAE, with original names or those of diffusers.
    pub fn vae(&self, original: bool) -> Result<VaeConfig> {
        let resnet = |block: usize, layer: usize| match original {
            true => format!("encoder.down.{block}.block.{layer}.conv1.weight"),
            false => format!("encoder.down_blocks.{block}.resnets.{layer}.conv1.weight"),
        };
        let [_, in_channels] = self.dims("encoder.conv_in.weight")?;
        let [_, latent_channels] = self.dims("decoder.conv_in.weight")?;
        let [out_channels, _] = self.dims("decoder.conv_out.weight")?;
        let blocks = self.count(|block| resnet(block, 0));
        let widths: Result<Vec<usize>> =
            (0..blocks).map(|block| Ok(self.dims(&resnet(block, 0))?[0])).collect();
        let config = VaeConfig {
            in_channels,
            out_channels,
            latent_channels,
            block_out_channels: widths?,
            layers_per_block: self.count(|layer| resnet(0, layer)),
            force_upcast: false,
            use_quant_conv: self.has("quant_conv.weight"),
            use_post_quant_conv: self.has("post_quant_conv.weight"),
            ..VaeConfig::default()
        };
        match config.check() {
            Ok(()) => Ok(config),
            Err(why) => self.unsupported(&format!("the VAE is not supported: {why}")),
        }
    }

    /// Returns the configuration of a CLIP text encoder with the names of transformers. `projection` is the whole name of
    /// the projection (projection_dim, width), if it is used.
    pub fn clip(&self, projection: Option<&str>) -> Result<ClipConfig> {
        let layer = |i: usize| format!("encoder.layers.{i}.mlp.fc1.weight");
        let names = ["embeddings.token_embedding.weight", "embeddings.position_embedding.weight"];
        let config = self.text(names, &layer, Activation::QuickGelu, None)?;
        let Some(name) = projection else { return Ok(config) };
        let [projection_dim, _] = Shapes { weights: self.weights, prefix: "" }.dims(name)?;
        Ok(ClipConfig { projection_dim, ..config })
    }

    /// Returns the configuration of OpenCLIP's text encoder. `projection` is true if the projection of the pooled
    /// embedding is used.
    pub fn open_clip(&self, projection: bool) -> Result<ClipConfig> {
        let layer = |i: usize| format!("transformer.resblocks.{i}.mlp.c_fc.weight");
        let projection = projection.then_some("text_projection");
        let names = ["token_embedding.weight", "positional_embedding"];
        self.text(names, &layer, Activation::Gelu, projection)
    }

    fn text(
        &self,
        [tokens, positions]: [&str; 2],
        layer: &dyn Fn(usize) -> String,
        hidden_act: Activation,
        projection: Option<&str>,
    ) -> Result<ClipConfig> {
        let [vocab_size, hidden_size] = self.dims(tokens)?;
        let [intermediate_size, _] = self.dims(&layer(0))?;
        Ok(ClipConfig {
            vocab_size,
            hidden_size,
            intermediate_size,
            max_position_embeddings: self.dims(positions)?[0],
            num_hidden_layers: self.count(layer),
            num_attention_heads: (hidden_size / HEAD_WIDTH).max(1),
            hidden_act,
            layer_norm_eps: 1e-5,
            projection_dim: projection.map_or(Ok(0), |name| Ok::<_, Error>(self.dims(name)?[1]))?,
        })
    }
}
