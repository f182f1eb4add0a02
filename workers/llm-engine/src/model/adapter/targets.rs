//! Projections of a decoder that adapters may change, and the limits of adapters.
use std::ops::Range;

use candle_core::{DType, Device};

use super::weights::Target;
use crate::model::config::DecoderConfig;
use crate::model::roles::Role;

/// Limits of the adapters that are loaded at once. Memory for them is reserved when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Maximum number of adapters; 0 by default.
    pub count: usize,
    /// Maximum rank of an adapter.
    pub rank: usize,
}

impl Default for AdapterLimits {
    fn default() -> Self {
        Self { count: 0, rank: 16 }
    }
}

/// A projection that adapters may change.
#[derive(Clone, Debug)]
pub(super) struct Module {
    /// Name in safetensors, relative to the layer.
    pub(super) name: &'static str,
    pub(super) target: Target,
    /// Outputs of the target that the projection computes.
    pub(super) outputs: Range<usize>,
    /// Number of heads, if the model's files have their rows in another order than transformers.
    pub(super) reordered_heads: Option<usize>,
}

/// Projections of a decoder that adapters may change.
#[derive(Clone, Debug)]
pub struct AdapterTargets {
    /// Modules of a layer.
    pub(super) modules: Vec<Module>,
    /// Numbers of inputs and outputs of the targets, in the order of [`Target`].
    pub(super) sizes: [[usize; 2]; 4],
    /// Layers: true if the feed-forward layer is dense.
    pub(super) dense: Vec<bool>,
    /// Data type of the states, and of adapters.
    pub(super) dtype: DType,
    /// Device of the model.
    pub device: Device,
    /// Limits.
    pub limits: AdapterLimits,
}

impl AdapterTargets {
    /// Returns the targets of a decoder with states of type `dtype`. They exclude projections of latent attention and experts.
    pub fn new(config: &DecoderConfig, dtype: DType, device: &Device, limits: AdapterLimits) -> Self {
        let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let attended = config.latent.map_or(queries, |latent| config.heads * latent.value);
        let inner = config.intermediate * if config.gated { 2 } else { 1 };
        let sizes = [
            [config.hidden, queries + 2 * keys],
            [attended, config.hidden],
            [config.hidden, inner],
            [config.intermediate, config.hidden],
        ];
        let name = |role: Role| {
            let renamed = config.names.iter().find(|(known, _)| *known == role);
            renamed.map_or(role.names().0, |(_, name)| *name)
        };
        let mut modules = Vec::new();
        let mut push = |target, projections: &[(Role, usize)]| {
            let mut first = 0;
            for &(role, outputs) in projections {
                let heads = match role {
                    Role::Query => config.heads,
                    _ => config.kv_heads,
                };
                let is_reordered = config.reordered_heads && matches!(role, Role::Query | Role::Key);
                modules.push(Module {
                    name: name(role),
                    target,
                    outputs: first..first + outputs,
                    reordered_heads: is_reordered.then_some(heads),
                });
                first += outputs;
            }
        };
        match (config.latent.is_some(), config.fused_qkv) {
            (true, _) => {}
            (false, true) => push(Target::QueryKeyValue, &[(Role::QueryKeyValue, queries + 2 * keys)]),
            (false, false) => {
                push(
                    Target::QueryKeyValue,
                    &[(Role::Query, queries), (Role::Key, keys), (Role::Value, keys)],
                );
            }
        }
        push(Target::Output, &[(Role::Output, config.hidden)]);
        match (config.gated, config.fused_gate_up) {
            (true, true) => push(Target::GateUp, &[(Role::GateUp, inner)]),
            (true, false) => {
                push(Target::GateUp, &[(Role::Gate, config.intermediate), (Role::Up, config.intermediate)]);
            }
            (false, _) => push(Target::GateUp, &[(Role::Up, config.intermediate)]),
        }
        push(Target::Down, &[(Role::Down, config.hidden)]);
        let is_dense = |layer| config.experts.as_ref().is_none_or(|experts| experts.dense_layers[layer]);
        let dense = (0..config.windows.len()).map(is_dense).collect();
        Self { modules, sizes, dense, dtype, device: device.clone(), limits }
    }

    /// Returns true if a layer has a target.
    pub(super) fn has(&self, layer: usize, target: Target) -> bool {
        self.dense[layer] || matches!(target, Target::QueryKeyValue | Target::Output)
    }

    /// Returns the maximum size of all adapters in bytes.
    pub fn max_bytes(&self) -> usize {
        let AdapterLimits { count, rank } = self.limits;
        let of_module = |module: &Module| {
            let layers = (0..self.dense.len()).filter(|layer| self.has(*layer, module.target)).count();
            self.sizes[module.target as usize].iter().sum::<usize>().saturating_mul(layers)
        };
        let elements: usize = self.modules.iter().map(of_module).sum();
        elements.saturating_mul(rank).saturating_mul(count).saturating_mul(self.dtype.size_in_bytes())
    }
}
