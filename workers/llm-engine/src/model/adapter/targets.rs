//! Projections of a decoder that adapters may change, and the limits of adapters.
use std::ops::Range;

use candle_core::{DType, Device};

use super::expert_targets::{ExpertTargets, padded_rank};
use crate::model::config::DecoderConfig;
use crate::model::part::Part;
use crate::model::roles::Role;

/// Projections of a layer that have a common input. Their outputs are concatenated in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Queries, keys and values.
    QueryKeyValue,
    /// Output of attention.
    Output,
    /// Gate and up, or up only.
    GateUp,
    /// Output of the feed-forward layer.
    Down,
    /// Gate and up of all experts.
    ExpertGateUp,
    /// Down of all experts.
    ExpertDown,
}

/// Number of [`Target`]s.
pub(super) const TARGETS: usize = 6;

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

/// Part of the targets that one device computes, in the order of [`Target`].
#[derive(Clone, Debug)]
pub(super) struct TargetShare {
    pub(super) device: Device,
    pub(super) inputs: [Range<usize>; TARGETS],
    pub(super) outputs: [Vec<Range<usize>>; TARGETS],
}

/// Projections of a decoder that adapters may change.
#[derive(Clone, Debug)]
pub struct AdapterTargets {
    /// Modules of a layer.
    pub(super) modules: Vec<Module>,
    /// Numbers of inputs and outputs of the targets, in the order of [`Target`].
    pub(super) sizes: [[usize; 2]; TARGETS],
    /// Projections of experts, in layers that are not dense.
    pub(super) experts: Option<ExpertTargets>,
    /// Parts of the devices, by rank.
    pub(super) shares: Vec<TargetShare>,
    /// Layers: true if the feed-forward layer is dense.
    pub(super) dense: Vec<bool>,
    /// Data type of the states, and of adapters.
    pub(super) dtype: DType,
    /// Limits.
    pub limits: AdapterLimits,
}

impl AdapterTargets {
    /// Returns the targets of a decoder with states of type `dtype`, of which `config` describes the part on `device`.
    /// They exclude projections of latent attention, and experts that files store together.
    pub fn new(
        config: &DecoderConfig,
        part: &Part,
        dtype: DType,
        device: &Device,
        limits: AdapterLimits,
    ) -> Self {
        let hidden = config.hidden;
        let [own_queries, own_keys] = [config.heads, config.kv_heads].map(|heads| heads * config.head_dim);
        let own_attended = config.latent.map_or(own_queries, |latent| config.heads * latent.value);
        let (heads, kv_heads) = (config.heads * part.ranks(), config.kv_heads * part.key_parts());
        let (queries, keys) = (heads * config.head_dim, kv_heads * config.head_dim);
        let (attended, intermediate) = (own_attended * part.ranks(), config.intermediate * part.ranks());
        let gate_up: &[Role] = if config.gated { &[Role::Gate, Role::Up] } else { &[Role::Up] };
        let inner = intermediate * gate_up.len();
        let own_expert = config.experts.as_ref().map_or(0, |experts| experts.intermediate);
        let expert = own_expert * part.ranks();
        let sizes = [
            [hidden, queries + 2 * keys],
            [attended, hidden],
            [hidden, inner],
            [intermediate, hidden],
            [hidden, 2 * expert],
            [expert, hidden],
        ];
        let experts = config.experts.as_ref().and_then(|own| ExpertTargets::of(own, hidden, expert));
        // The outputs of a target are those of one tensor.
        let own_rows = |tensors: &[(Role, usize)]| {
            let rows = part.rows(Some(Role::GateUp), tensors).into_iter();
            rows.map(|tensor| tensor.rows).collect::<Vec<_>>()
        };
        let attention = [(Role::Query, own_queries), (Role::Key, own_keys), (Role::Value, own_keys)];
        let gate_up: Vec<_> = gate_up.iter().map(|role| (*role, config.intermediate)).collect();
        let of_expert = [(Role::Gate, own_expert), (Role::Up, own_expert)];
        let whole = 0..hidden;
        let all = || std::iter::once(0..hidden).collect::<Vec<_>>();
        let [of_heads, in_dense, in_expert] =
            [own_attended, config.intermediate, own_expert].map(|size| part.own(size));
        let share = TargetShare {
            device: device.clone(),
            inputs: [whole.clone(), of_heads, whole.clone(), in_dense, whole, in_expert],
            outputs: [own_rows(&attention), all(), own_rows(&gate_up), all(), own_rows(&of_expert), all()],
        };
        let name = |role: Role| {
            let renamed = config.names.iter().find(|(known, _)| *known == role);
            renamed.map_or(role.names().0, |(_, name)| *name)
        };
        let mut modules = Vec::new();
        let mut push = |target, projections: &[(Role, usize)]| {
            let mut first = 0;
            for &(role, outputs) in projections {
                let heads = match role {
                    Role::Query => heads,
                    _ => kv_heads,
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
        push(Target::Output, &[(Role::Output, hidden)]);
        match (config.gated, config.fused_gate_up) {
            (true, true) => push(Target::GateUp, &[(Role::GateUp, inner)]),
            (true, false) => {
                push(Target::GateUp, &[(Role::Gate, intermediate), (Role::Up, intermediate)]);
            }
            (false, _) => push(Target::GateUp, &[(Role::Up, intermediate)]),
        }
        push(Target::Down, &[(Role::Down, hidden)]);
        let is_dense = |layer| config.experts.as_ref().is_none_or(|experts| experts.dense_layers[layer]);
        let dense = (0..config.layer_count()).map(is_dense).collect();
        Self { modules, sizes, experts, shares: vec![share], dense, dtype, limits }
    }

    /// Adds the parts of the devices of later ranks.
    pub fn with_ranks(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        self.shares.extend(others.into_iter().flat_map(|other| other.shares));
        self
    }

    /// Returns the device of the first rank.
    pub fn device(&self) -> &Device {
        &self.shares[0].device
    }

    /// Returns true if a layer has a target.
    pub(super) fn has(&self, layer: usize, target: Target) -> bool {
        self.dense[layer] || matches!(target, Target::QueryKeyValue | Target::Output)
    }

    /// Returns the maximum size of all adapters on a device in bytes.
    pub fn max_bytes(&self) -> usize {
        let AdapterLimits { count, rank } = self.limits;
        let TargetShare { inputs, outputs, .. } = &self.shares[0];
        let size = |target: Target| {
            let target = target as usize;
            inputs[target].len() + outputs[target].iter().map(Range::len).sum::<usize>()
        };
        let of_module = |module: &Module| {
            let layers = (0..self.dense.len()).filter(|layer| self.has(*layer, module.target)).count();
            size(module.target).saturating_mul(layers).saturating_mul(rank)
        };
        let elements: usize = self.modules.iter().map(of_module).sum();
        let experts = self.experts.as_ref().map_or(0, |experts| {
            let layers = self.dense.iter().filter(|is_dense| !**is_dense).count();
            let of_layer = (2 * size(Target::ExpertGateUp) + size(Target::ExpertDown)) * experts.count;
            of_layer.saturating_mul(layers).saturating_mul(padded_rank(rank))
        });
        let elements = elements.saturating_add(experts);
        elements.saturating_mul(count).saturating_mul(self.dtype.size_in_bytes())
    }
}
