//! Files of a ControlNet: a folder in the layout of diffusers, or a single file with the names of diffusers or the original
//! ones.
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use model_thread::error_summary;

use super::super::json_file::json;
use super::super::required::required;
use super::super::single_file::{self, UNetNames};
use super::super::unet_config::UNetConfig;
use super::super::weight_files;
use super::super::weights::{Component, View, Weights};
use super::config::ControlNetConfig;
use super::network::ControlNet;
use crate::{Error, Result};

/// Start of the names in files that also contain the UNet.
const PREFIX: &str = "control_model.";
/// Part of the names of files whose residuals are averaged, as in A1111. No tensor shows it.
const AVERAGED_NAME: &str = "shuffle";
/// Weight file of diffusers that is not supported.
const PICKLED: &str = "diffusion_pytorch_model.bin";

/// The network that a ControlNet must fit.
#[derive(Debug, Clone)]
pub(in super::super) struct Controlled {
    /// Configuration of the UNet.
    pub unet: UNetConfig,
    /// Number of channels of the latents.
    pub channels: usize,
    /// Number of pixels per latent in each dimension.
    pub factor: usize,
}

/// Files of a ControlNet whose tensors have been checked.
#[derive(Debug)]
pub(super) struct ControlNetFiles {
    config: ControlNetConfig,
    weights: Component,
    /// Number of elements of all weights.
    pub elements: usize,
}

impl ControlNetFiles {
    /// Reads the configuration and the headers, and checks them. `half` prefers weights in half precision.
    ///
    /// # Errors
    /// Returns [`Error::Request`] if a file is missing or invalid, or holds no ControlNet for this network.
    pub fn open(path: &Path, network: &Controlled, half: bool) -> Result<Self> {
        let invalid = |what: String| Error::request(format!("ControlNet {what}"));
        let opened = if path.is_dir() { folder(path, half) } else { file(path, &network.unet) };
        let (mut config, weights) = opened.map_err(|error| invalid(error.to_string()))?;
        config.unet.activation = network.unet.activation;
        let other = |what: String| invalid(format!("{} {what}", path.display()));
        config.check_fits(&network.unet, network.channels, network.factor).map_err(&other)?;
        let required = required(|vb| ControlNet::new(&vb, &config).map(drop));
        let required = required.map_err(|error| other(error_summary(&error)))?;
        weights.check(&required).map_err(invalid)?;
        let elements = required.iter().map(|(_, shape)| shape.elem_count()).sum();
        Ok(Self { config, weights, elements })
    }

    /// Loads the weights.
    ///
    /// # Errors
    /// A file cannot be read, or the device is out of memory.
    pub fn load(&self, dtype: DType, device: &Device) -> Result<ControlNet> {
        let network = ControlNet::new(&self.weights.open(dtype, device, Arc::new(|_| ())), &self.config);
        drop(self.weights.take_loaded());
        Ok(network?)
    }
}

fn folder(path: &Path, half: bool) -> Result<(ControlNetConfig, Component)> {
    let file = path.join("config.json");
    let config = ControlNetConfig::from_value(json(&file)?)
        .map_err(|what| Error::model(format!("{}: {what}", file.display())))?;
    let files = weight_files::files(path, half).map_err(|error| match path.join(PICKLED) {
        pickled if pickled.exists() => Error::model(format!(
            "{} is a pickled file, which can run code when it is loaded; convert it to safetensors",
            pickled.display()
        )),
        _ => error,
    })?;
    let weights = Arc::new(Weights::open(&files)?);
    Ok((config, Component::renamed(weights, "", |name: &str| (name.to_owned(), View::Whole))))
}

fn file(path: &Path, unet: &UNetConfig) -> Result<(ControlNetConfig, Component)> {
    let weights = single_file::open(path)?;
    let bad = |what: String| Error::model(format!("{} {what}", path.display()));
    let has = |name: &str| weights.shape(name).is_some();
    if has("difference") {
        return Err(bad("has differences from the weights of a UNet, which is not supported".to_owned()));
    }
    let hint = |prefix: &str, i: usize| format!("{prefix}input_hint_block.{i}.weight");
    let component = match ["", PREFIX].into_iter().find(|prefix| has(&hint(prefix, 0))) {
        Some(prefix) => {
            let convolutions = (0..).take_while(|i| has(&hint(prefix, 2 * i))).count();
            let names = UNetNames::of(unet);
            Component::renamed(weights, prefix, move |name: &str| {
                let original = names.controlnet(name, convolutions.saturating_sub(2));
                (original.unwrap_or_else(|| name.to_owned()), View::Whole)
            })
        }
        None if has("controlnet_cond_embedding.conv_in.weight") => {
            Component::renamed(weights, "", |name: &str| (name.to_owned(), View::Whole))
        }
        None => return Err(bad(format!("holds {}; a ControlNet is required", single_file::found(&weights)))),
    };
    let mut config = ControlNetConfig::from_shapes(&component, unet).map_err(bad)?;
    config.averages = path.file_name().is_some_and(|name| name.to_string_lossy().contains(AVERAGED_NAME));
    Ok((config, component))
}
