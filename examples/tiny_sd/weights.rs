//! Weights by name, their initialization, and layers that use them.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use rand::Rng;

pub use super::adam::Weights;
use super::composite;

/// Shapes of weights by name.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// Names of the autoencoder's attention layers in candle-transformers, and in current versions of diffusers.
const NAMES: [(&str, &str); 4] =
    [(".query.", ".to_q."), (".key.", ".to_k."), (".value.", ".to_v."), (".proj_attn.", ".to_out.0.")];

/// Layers initialized to zero, so that residual branches start as identities and the predicted noise as zero.
const ZEROS: [&str; 5] =
    ["conv2.weight", "proj_out.weight", "mlp.fc2.weight", "unet.conv_out.weight", ".lora_up.weight"];
/// Starts of the names of a ControlNet's layers initialized to zero, so that it has no effect at first.
const CONTROL_ZEROS: [&str; 2] = ["controlnet_down_blocks.", "controlnet_mid_block."];

/// Returns the shapes of the weights that a module of candle-transformers loads.
///
/// # Errors
/// If its configuration is invalid.
pub fn shapes_of<M>(make: impl FnOnce(VarBuilder) -> candle_core::Result<M>) -> Result<Shapes> {
    let weights = VarMap::new();
    make(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
    let weights = weights.data().lock().map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
    let renamed = |name: &String| NAMES.iter().fold(name.clone(), |name, (old, now)| name.replace(old, now));
    Ok(weights.iter().map(|(name, weight)| (renamed(name), weight.dims().to_vec())).collect())
}

/// Returns random weights: norms start as identities, biases at zero, and other layers preserve the scale of activations.
///
/// # Errors
/// If the device fails.
pub fn random(shapes: &Shapes, rng: &mut impl Rng, device: &Device) -> Result<Weights> {
    let weight = |(name, dims): (&String, &Vec<usize>)| {
        let count: usize = dims.iter().product();
        let inputs: usize = dims.iter().skip(1).product();
        let most = if name.contains("embeddings.") { 0.1 } else { (inputs as f32).powf(-0.5) };
        let values = match dims.len() {
            1 => vec![f32::from(u8::from(name.ends_with("weight"))); count],
            _ if ZEROS.iter().any(|end| name.ends_with(end))
                || CONTROL_ZEROS.iter().any(|start| name.starts_with(start)) =>
            {
                vec![0.; count]
            }
            _ => (0..count).map(|_| rng.random_range(-most..most)).collect(),
        };
        Ok((name.clone(), Tensor::from_vec(values, dims.as_slice(), device)?))
    };
    shapes.iter().map(weight).collect()
}

/// Writes weights to a file as f16.
///
/// # Errors
/// If the file cannot be written.
pub fn write(file: &Path, weights: &Weights) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let halves = weights.iter().map(|(name, weight)| Ok((name.clone(), weight.to_dtype(DType::F16)?)));
    candle_core::safetensors::save(&halves.collect::<Result<HashMap<_, _>>>()?, file)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Reads the weights of a file as f32.
///
/// # Errors
/// If the file is missing or damaged.
pub fn read(file: &Path, device: &Device) -> Result<Weights> {
    let weights = candle_core::safetensors::load(file, device);
    let weights = weights.with_context(|| format!("cannot read {}", file.display()))?;
    weights.into_iter().map(|(name, weight)| Ok((name, weight.to_dtype(DType::F32)?))).collect()
}

/// Part of a network: the weights whose names share a prefix.
#[derive(Clone)]
pub struct Part<'a> {
    weights: &'a Weights,
    name: String,
}

impl<'a> Part<'a> {
    /// Returns the whole network.
    pub fn root(weights: &'a Weights) -> Self {
        Self { weights, name: String::new() }
    }

    /// Returns a part of this part.
    pub fn part(&self, name: &str) -> Self {
        Self { weights: self.weights, name: format!("{}{name}.", self.name) }
    }

    /// Returns whether the part has a weight of this name.
    pub fn has(&self, name: &str) -> bool {
        self.weights.contains_key(&format!("{}{name}", self.name))
    }

    /// Returns a weight.
    ///
    /// # Errors
    /// If it is missing.
    pub fn get(&self, name: &str) -> Result<&'a Tensor> {
        let name = format!("{}{name}", self.name);
        self.weights.get(&name).with_context(|| format!("no weight '{name}'"))
    }

    fn pair(&self) -> Result<(&'a Tensor, &'a Tensor)> {
        Ok((self.get("weight")?, self.get("bias")?))
    }

    /// Applies the linear layer, with its bias if it has one.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn linear(&self, x: &Tensor) -> Result<Tensor> {
        let bias = if self.has("bias") { Some(self.get("bias")?) } else { None };
        Ok(composite::linear(x, self.get("weight")?, bias)?)
    }

    /// Applies the convolution and its bias.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn conv(&self, x: &Tensor, padding: usize, stride: usize) -> Result<Tensor> {
        let (weight, bias) = self.pair()?;
        Ok(composite::add_per_channel(&composite::conv(x, weight, padding, stride)?, bias)?)
    }

    /// Applies GroupNorm, followed by SiLU if `silu`.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn group_norm(&self, x: &Tensor, groups: usize, eps: f64, silu: bool) -> Result<Tensor> {
        let (weight, bias) = self.pair()?;
        Ok(composite::group_norm(x, weight, bias, groups, eps, silu)?)
    }

    /// Applies LayerNorm over the last dimension.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn layer_norm(&self, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = self.pair()?;
        Ok(composite::layer_norm(x, weight, bias, 1e-5)?)
    }

    /// Applies the residual block to `x` (batch, channels, h, w). `time` (batch, width) is the UNet's embedded timestep.
    ///
    /// # Errors
    /// If a weight is missing or has the wrong shape.
    pub fn residual(&self, x: &Tensor, time: Option<&Tensor>, groups: usize, eps: f64) -> Result<Tensor> {
        let mut y = self.part("conv1").conv(&self.part("norm1").group_norm(x, groups, eps, true)?, 1, 1)?;
        if let Some(time) = time {
            y = composite::add_per_channel(&y, &self.part("time_emb_proj").linear(time)?)?;
        }
        let y = self.part("conv2").conv(&self.part("norm2").group_norm(&y, groups, eps, true)?, 1, 1)?;
        if self.has("conv_shortcut.weight") {
            return Ok((self.part("conv_shortcut").conv(x, 0, 1)? + y)?);
        }
        Ok((x + y)?)
    }
}
