//! Vision encoders: features of pictures, which replace the embeddings of placeholder tokens in prompts.
//!
//! | file | subject |
//! |---|---|
//! | `config` | sizes and options of an encoder and its projector |
//! | `families` | tables of the kinds of encoders: names of tensors, and how each differs |
//! | `mmproj` | encoders in mmproj files, for GGUF files |
//! | `processor` | scaling of pictures and their division into patches, according to preprocessor_config.json |
//! | `sizes` | sizes to which pictures are scaled |
//! | `grid` | order of patches, windows and positions |
//! | `layers` | layers of encoders |
//! | `projector` | merging of patches and projection to the width of the decoder |
//! | `axes` | positions of three axes |
use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};

mod axes;
mod config;
mod families;
mod grid;
mod layers;
mod mmproj;
mod processor;
mod projector;
mod sizes;

use super::weights::Weights;
pub use axes::PromptAxes;
use config::KEPT_PICTURES;
pub use config::VisionConfig;
pub(super) use mmproj::Mmproj;
pub use processor::{DEFAULT_IMAGE_TOKENS, ImageProcessor, PictureError, Placement, ProcessedPicture};

use layers::EncoderLayers;
use projector::Projector;

/// Encoder and projector of a model that reads pictures.
pub struct Vision {
    config: VisionConfig,
    processor: Arc<ImageProcessor>,
    layers: EncoderLayers,
    projector: Projector,
    /// Projectors of the states after some layers, whose outputs are added after the first layers of the decoder.
    deepstack_projectors: Vec<Projector>,
    device: Device,
    /// Hashes and features of pictures, least recently used first.
    kept: VecDeque<([u8; 32], Tensor)>,
    kept_bytes: usize,
}

impl Vision {
    /// Loads the weights. States have type `dtype`.
    ///
    /// # Errors
    /// Returns an error that names the file and the invalid tensor, or if memory runs out.
    pub fn load(
        config: VisionConfig,
        processor: Arc<ImageProcessor>,
        weights: &mut Weights,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let layers = EncoderLayers::load(&config, weights, dtype).context("vision encoder")?;
        let projector = Projector::load(&config, weights, dtype).context("projector of pictures")?;
        let deepstack = (0..config.deepstack_layers.len())
            .map(|index| Projector::load_deepstack(&config, weights, index, dtype));
        let deepstack_projectors = deepstack.collect::<Result<_>>().context("projector of pictures")?;
        let kept_bytes = KEPT_PICTURES.saturating_mul(config.feature_bytes(processor.max_tokens(), dtype));
        let (device, kept) = (device.clone(), VecDeque::new());
        Ok(Self { config, processor, layers, projector, deepstack_projectors, device, kept, kept_bytes })
    }

    /// Returns the processor of pictures.
    pub fn processor(&self) -> &Arc<ImageProcessor> {
        &self.processor
    }

    /// Returns the padding token, whose per-layer inputs the rows of picture features get.
    pub fn padding(&self) -> u32 {
        self.config.padding
    }

    /// Returns the features of a picture, (1 + number of deepstack layers, tokens, width of the decoder): those that replace
    /// embeddings, then those that are added after the first layers.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn features(&mut self, picture: &ProcessedPicture) -> candle_core::Result<Tensor> {
        if let Some(index) = self.kept.iter().position(|(hash, _)| *hash == picture.hash)
            && let Some(kept) = self.kept.remove(index)
        {
            let features = kept.1.clone();
            self.kept.push_back(kept);
            return Ok(features);
        }
        let features = self.encode(picture)?;
        let bytes = |features: &Tensor| features.elem_count() * features.dtype().size_in_bytes();
        let mut left = self.kept_bytes.saturating_sub(bytes(&features));
        let mut fitting = 0;
        for (_, kept) in self.kept.iter().rev() {
            let Some(rest) = left.checked_sub(bytes(kept)) else { break };
            (left, fitting) = (rest, fitting + 1);
        }
        self.kept.drain(..self.kept.len() - fitting);
        self.kept.push_back((picture.hash, features.clone()));
        Ok(features)
    }

    fn encode(&self, picture: &ProcessedPicture) -> candle_core::Result<Tensor> {
        let states = self.layers.forward(picture, &self.config.deepstack_layers, &self.device)?;
        let mut features = vec![self.projector.forward(&states.last)?];
        for (projector, states) in self.deepstack_projectors.iter().zip(&states.deepstack) {
            features.push(projector.forward(states)?);
        }
        let features = Tensor::stack(&features, 0)?;
        match grid::restored_order(&picture.grids, self.config.merge, self.config.window) {
            Some(order) => {
                let rows = order.len();
                features.index_select(&Tensor::from_vec(order, rows, &self.device)?, 1)
            }
            None => Ok(features),
        }
    }
}
