//! VAEs in single files: in the file of a model, or in separate files.
use std::path::Path;
use std::sync::Arc;

use super::super::parts::FileOptions;
use super::super::vae::VaeConfig;
use super::super::weights::{Component, Weights};
use super::kind;
use super::names::{self, is_ignored, whole};
use super::open::open;
use super::shapes::Shapes;
use crate::{Error, Result};

/// Starts of the names of a VAE.
const VAES: [&str; 2] = ["first_stage_model.", "vae."];

/// Reads the header of the VAE that is given, or of that in the file of the model.
///
/// # Errors
/// There is none, or it is not supported.
pub(in super::super) fn own_vae(
    weights: &Arc<Weights>,
    options: &FileOptions,
    scaling_factor: f64,
) -> Result<(VaeConfig, Component)> {
    if let Some(path) = &options.vae {
        return vae(path, scaling_factor);
    }
    match vae_prefix(weights) {
        Some(prefix) => original_vae(weights, prefix, scaling_factor),
        None => {
            let (path, names) = (weights.path().display(), VAES.join("* or "));
            Err(Error::model(format!("{path} holds no VAE ({names}*); set --vae to a file with one")))
        }
    }
}

/// Returns the prefix of the VAE in a file with other networks.
fn vae_prefix(weights: &Weights) -> Option<&'static str> {
    let has = |prefix: &&str| weights.shape(&format!("{prefix}decoder.conv_in.weight")).is_some();
    VAES.into_iter().find(has)
}

/// Reads the header of a file that holds a VAE, with original names or those of diffusers.
///
/// # Errors
/// The file holds no VAE, or one that is not supported.
pub(in super::super) fn vae(path: &Path, scaling_factor: f64) -> Result<(VaeConfig, Component)> {
    let weights = open(path)?;
    let prefix = vae_prefix(&weights).unwrap_or("");
    if weights.shape("decoder.mid_block.resnets.0.conv1.weight").is_some() {
        let config = Shapes { weights: &weights, prefix }.vae(false)?;
        let vae = Component::renamed(weights, prefix, |name: &str| whole(None, name));
        return Ok((VaeConfig { scaling_factor, ..config }, vae));
    }
    if weights.shape(&format!("{prefix}decoder.conv_in.weight")).is_none() {
        let path = path.display();
        return Err(Error::model(format!("{path} holds {}; --vae requires a VAE", kind::found(&weights))));
    }
    original_vae(&weights, prefix, scaling_factor)
}

fn original_vae(
    weights: &Arc<Weights>,
    prefix: &'static str,
    scaling_factor: f64,
) -> Result<(VaeConfig, Component)> {
    let config = Shapes { weights, prefix }.vae(true)?;
    let blocks = config.block_out_channels.len();
    let rename = move |name: &str| whole(names::vae(name, blocks), name);
    let component = Component::renamed(weights.clone(), prefix, rename);
    component.ignore(is_ignored);
    Ok((VaeConfig { scaling_factor, ..config }, component))
}
