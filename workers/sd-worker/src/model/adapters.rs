//! Applies LoRA files to the weights of a loaded model, and restores the original weights.
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use candle_core::{DType, Device, Tensor};

use super::lora::{Lora, NETWORK, delta, low_rank};
use super::low_rank::{self, Changes, LayerPart, Slot};
use super::weights::{Component, View};
use crate::{Check, Error, Result};

/// A LoRA file of a request, and its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraChoice {
    /// The file.
    pub path: PathBuf,
    /// Factor of the changes.
    pub weight: f64,
}

/// Index of the network, and name of the weight.
type Key = (usize, String);

/// Weights of the denoising network and of CLIP text encoders, in the order of [`super::lora`].
#[derive(Default)]
pub(super) struct Loaded {
    /// Float weights that share their storage with the network.
    weights: HashMap<String, Tensor>,
    /// Weights of linear layers.
    layers: HashMap<String, LayerPart>,
}

impl Loaded {
    /// Takes the weights of a component, after its network was built.
    pub fn take(component: &Component) -> Self {
        Self { weights: component.take_loaded(), layers: component.take_layers() }
    }
}

/// Weights that LoRA files can change. A float weight that shares its storage with the network is changed in place.
/// For other weights, such as quantized matrices, the low-rank product is added to the output of the layer.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    weights: HashMap<Key, Tensor>,
    layers: HashMap<Key, LayerPart>,
    /// Weights by network and layer name in LoRA files, in which kohya's files replace dots by underscores. Each has
    /// the rows of the file's weight that it holds.
    names: HashMap<Key, Vec<(String, View)>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    active: Vec<LoraChoice>,
    /// Copies of the weights that are changed, on the CPU.
    originals: BTreeMap<Key, Tensor>,
    /// Layers to whose outputs a low-rank product is added.
    slots: Vec<Slot>,
}

impl Adapters {
    /// Collects the weights of `networks`: the UNet or transformer, followed by the text encoders. `original` maps
    /// the name of a weight of the UNet or transformer to its name in the authors' files, and to the rows of that
    /// tensor that it holds.
    pub fn of(networks: Vec<Loaded>, original: impl Fn(&str) -> Option<(String, View)>) -> Self {
        let mut adapters = Self::default();
        for (network, loaded) in networks.into_iter().enumerate() {
            let weights = loaded.weights.into_iter().filter(|(_, tensor)| tensor.rank() >= 2);
            for (name, tensor) in weights {
                adapters.add_name(network, &name, &original);
                adapters.weights.insert((network, name), tensor);
            }
            for (name, part) in loaded.layers {
                let key = (network, name);
                if !adapters.weights.contains_key(&key) {
                    adapters.add_name(network, &key.1, &original);
                    adapters.layers.insert(key, part);
                }
            }
        }
        adapters
    }

    fn add_name(&mut self, network: usize, name: &str, original: impl Fn(&str) -> Option<(String, View)>) {
        let Some(layer) = name.strip_suffix(".weight") else { return };
        let other = match network {
            NETWORK => original(name).map(|(original, view)| {
                (original.strip_suffix(".weight").unwrap_or(&original).to_owned(), view)
            }),
            _ if layer.starts_with("text_model.") => {
                Some((layer.replacen("text_model.", "", 1), View::Whole))
            }
            _ => Some((format!("text_model.{layer}"), View::Whole)),
        };
        for (layer, view) in [(layer.to_owned(), View::Whole)].into_iter().chain(other) {
            let weights = self.names.entry((network, layer.replace('.', "_"))).or_default();
            if weights.iter().all(|(known, _)| known != name) {
                weights.push((name.to_owned(), view));
            }
        }
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
        low_rank::clear(&std::mem::take(&mut state.slots));
        let changed = self.change(&mut state, choices, check);
        match &changed {
            Ok(()) => state.active = choices.to_vec(),
            Err(_) => self.restore(&mut state, |_| true)?,
        }
        changed
    }

    fn change(&self, state: &mut State, choices: &[LoraChoice], check: Check) -> Result<()> {
        state.active.clear();
        let mut targets: BTreeMap<Key, Vec<(usize, String, View)>> = BTreeMap::new();
        let mut files = Vec::new();
        for (i, choice) in choices.iter().enumerate() {
            let lora = Lora::open(&choice.path)?;
            let mut missing = Vec::new();
            for (network, layer) in lora.layers() {
                match self.names.get(&(network, layer.replace('.', "_"))) {
                    Some(names) => {
                        for (name, view) in names {
                            let target = targets.entry((network, name.clone())).or_default();
                            target.push((i, layer.to_owned(), *view));
                        }
                    }
                    None => missing.push(layer),
                }
            }
            if let Some(first) = missing.first() {
                let (count, all) = (missing.len(), lora.layers().count());
                return Err(Error::request(format!(
                    "LoRA {} is for another network: this model lacks {count} of its {all} layers, such as {first}",
                    choice.path.display()
                )));
            }
            files.push(lora);
        }
        self.restore(state, |key| !targets.contains_key(key))?;
        let mut separate = Changes::default();
        for (key, changes) in targets {
            check()?;
            if let Some(part) = self.layers.get(&key) {
                for (file, layer, view) in changes {
                    let (rows, columns) = part.shape;
                    let product = files[file].product(key.0, &layer, &[view.stored_rows(rows), columns])?;
                    separate.add(part, low_rank(&product, choices[file].weight, view)?)?;
                }
                continue;
            }
            let Some(weight) = self.weights.get(&key) else { continue };
            if !state.originals.contains_key(&key) {
                // On the CPU, the copy must not share its storage with the weight.
                let copy =
                    if weight.device().is_cpu() { weight.copy()? } else { weight.to_device(&Device::Cpu)? };
                state.originals.insert(key.clone(), copy);
            }
            let original = state.originals[&key].to_device(weight.device())?;
            let mut changed = original.to_dtype(DType::F32)?;
            for (file, layer, _) in changes {
                let product = files[file].product(key.0, &layer, weight.dims())?;
                let delta = delta(&product, choices[file].weight, weight.device())?;
                changed = (changed + delta.reshape(weight.shape())?)?;
            }
            weight.slice_set(&changed.to_dtype(weight.dtype())?, 0, 0)?;
        }
        state.slots = separate.apply(check)?;
        Ok(())
    }

    /// Restores the original values of the weights for which `wanted` returns true.
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
