//! Previews: a linear map from latent channels to RGB, without the VAE.
use candle_core::{DType, Tensor};
use serde::Deserialize;

use super::version::Version;
use crate::Result;
use crate::picture::Picture;

/// Linear map from latent channels to RGB in [-1, 1].
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PreviewMap {
    /// RGB factors of each latent channel.
    pub factors: Vec<[f32; 3]>,
    /// RGB value for zero latents.
    #[serde(default)]
    pub bias: [f32; 3],
}

// Linear fits to the output of the published VAEs.
const V1: [[f32; 3]; 4] = [
    [0.3512, 0.2297, 0.3227],
    [0.3250, 0.4974, 0.2350],
    [-0.2829, 0.1762, 0.2721],
    [-0.2120, -0.2616, -0.7177],
];
const XL: [[f32; 3]; 4] = [
    [0.3920, 0.4054, 0.4549],
    [-0.2634, -0.0196, 0.0653],
    [0.0568, 0.1687, -0.0755],
    [-0.3112, -0.2359, -0.2076],
];

impl PreviewMap {
    /// Returns the map for the VAE of a model family, if known.
    pub(crate) fn of(version: Version) -> Option<Self> {
        let factors = match version {
            Version::V1 | Version::V2 => V1,
            Version::Xl => XL,
            _ => return None,
        };
        Some(Self { factors: factors.to_vec(), bias: [0.0; 3] })
    }

    /// Returns previews of latents (n, channels, height, width), with one pixel per cell.
    pub(crate) fn pictures(&self, latents: &Tensor) -> Result<Vec<Picture>> {
        let (n, channels, height, width) = latents.dims4()?;
        let device = latents.device();
        let factors: Vec<f32> = (0..3).flat_map(|c| self.factors.iter().map(move |rgb| rgb[c])).collect();
        let factors = Tensor::from_vec(factors, (3, channels), device)?;
        let bias = Tensor::new(&self.bias, device)?.reshape((1, 3, 1))?;
        let cells = latents.to_dtype(DType::F32)?.reshape((n, channels, height * width))?;
        let rgb = factors.broadcast_matmul(&cells)?.broadcast_add(&bias)?;
        Picture::from_tensor(&rgb.reshape((n, 3, height, width))?)
    }
}
