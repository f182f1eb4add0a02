//! Weights of a model that LoRA files change, and the changes that are in effect.
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use candle_core::{DType, Device, Tensor};

use super::lora::{Lora, UNET, delta};
use super::single_file::UNetNames;
use crate::{Check, Error, Result};

/// A LoRA file of a request, and its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraChoice {
    /// The file.
    pub path: PathBuf,
    /// Factor of the changes.
    pub weight: f64,
}

/// Networks and names of weights.
type Key = (usize, String);

/// Weights of UNet and text encoders, which share their storage with the networks.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    weights: HashMap<Key, Tensor>,
    /// Weights by network and by each of their names in files, whose dots are underscores in kohya's files.
    names: HashMap<Key, String>,
    /// True if the network has quantized layers, which LoRA files cannot change.
    is_quantized: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    active: Vec<LoraChoice>,
    /// Copies of the weights that are changed, on the CPU.
    originals: BTreeMap<Key, Tensor>,
}

impl Adapters {
    /// Collects weights. `networks` are the UNet and the text encoders. `is_quantized` tells whether there are quantized
    /// layers in addition.
    pub fn of(networks: Vec<HashMap<String, Tensor>>, unet_names: &UNetNames, is_quantized: bool) -> Self {
        let (mut weights, mut names) = (HashMap::new(), HashMap::new());
        for (network, tensors) in networks.into_iter().enumerate() {
            for (name, tensor) in tensors.into_iter().filter(|(_, tensor)| tensor.rank() >= 2) {
                let Some(layer) = name.strip_suffix(".weight") else { continue };
                let other = match network {
                    UNET => unet_names.original(&name).unwrap_or_default().replace(".weight", ""),
                    _ if layer.starts_with("text_model.") => layer.replacen("text_model.", "", 1),
                    _ => format!("text_model.{layer}"),
                };
                for layer in [layer, &other] {
                    names.insert((network, layer.replace('.', "_")), name.clone());
                }
                weights.insert((network, name), tensor);
            }
        }
        Self { weights, names, is_quantized, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts exactly `choices` into effect. Weights that are not changed any more get their original values back, bit
    /// for bit. If this fails, no change is in effect.
    ///
    /// # Errors
    /// A file is no LoRA for this network, or the device or `check`, which is called between weights, fails.
    pub fn apply(&self, choices: &[LoraChoice], check: Check) -> Result<()> {
        let mut state = self.state();
        if state.active == choices {
            return Ok(());
        }
        let changed = self.change(&mut state, choices, check);
        match &changed {
            Ok(()) => state.active = choices.to_vec(),
            Err(_) => self.restore(&mut state, |_| true)?,
        }
        changed
    }

    fn change(&self, state: &mut State, choices: &[LoraChoice], check: Check) -> Result<()> {
        state.active.clear();
        let mut targets: BTreeMap<Key, Vec<(usize, String)>> = BTreeMap::new();
        let mut files = Vec::new();
        for (i, choice) in choices.iter().enumerate() {
            let lora = Lora::open(&choice.path)?;
            let mut missing = Vec::new();
            for (network, layer) in lora.layers() {
                match self.names.get(&(network, layer.replace('.', "_"))) {
                    Some(name) => {
                        let target = targets.entry((network, name.clone())).or_default();
                        target.push((i, layer.to_owned()));
                    }
                    None => missing.push(layer),
                }
            }
            if let Some(first) = missing.first() {
                let (count, all) = (missing.len(), lora.layers().count());
                if self.is_quantized {
                    return Err(Error::request(format!(
                        "LoRA {} changes {count} layers that are quantized in this model, such as {first}; use LoRA files \
                         with a model in safetensors",
                        choice.path.display()
                    )));
                }
                return Err(Error::request(format!(
                    "LoRA {} is for another network: this model lacks {count} of its {all} layers, such as {first}",
                    choice.path.display()
                )));
            }
            files.push(lora);
        }
        self.restore(state, |key| !targets.contains_key(key))?;
        for (key, changes) in targets {
            check()?;
            let Some(weight) = self.weights.get(&key) else { continue };
            if !state.originals.contains_key(&key) {
                // On the CPU, the copy must not share its storage with the weight.
                let copy =
                    if weight.device().is_cpu() { weight.copy()? } else { weight.to_device(&Device::Cpu)? };
                state.originals.insert(key.clone(), copy);
            }
            let original = state.originals[&key].to_device(weight.device())?;
            let mut changed = original.to_dtype(DType::F32)?;
            for (file, layer) in changes {
                let product = files[file].product(key.0, &layer, weight.dims())?;
                let delta = delta(&product, choices[file].weight, weight.device())?;
                changed = (changed + delta.reshape(weight.shape())?)?;
            }
            weight.slice_set(&changed.to_dtype(weight.dtype())?, 0, 0)?;
        }
        Ok(())
    }

    /// Gives the original values back to the weights for which `wanted` returns true.
    fn restore(&self, state: &mut State, wanted: impl Fn(&Key) -> bool) -> candle_core::Result<()> {
        for key in state.originals.keys().filter(|key| wanted(key)).cloned().collect::<Vec<Key>>() {
            if let (Some(weight), Some(original)) = (self.weights.get(&key), state.originals.get(&key)) {
                weight.slice_set(&original.to_device(weight.device())?, 0, 0)?;
            }
            state.originals.remove(&key);
        }
        Ok(())
    }
}
