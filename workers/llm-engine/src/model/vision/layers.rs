//! Layers of vision encoders: attention without a mask and a feed-forward layer, with norms before each.
use anyhow::{Context, Result};
use candle_core::{D, DType, Device, Tensor, bail};
use candle_flash_attn::flash_attn_varlen_alibi_windowed_softcap;
use candle_nn::fused::Rotary;

use super::config::VisionConfig;
use super::families::Positions;
use super::grid;
use super::processor::ProcessedPicture;
use crate::model::attention::Heads;
use crate::model::config::Activation as GateActivation;
use crate::model::encoder::config::Activation;
use crate::model::layers::{FusedWith, Linear, Norm};
use crate::model::rope::rotated_heads;
use crate::model::weights::Weights;

/// Maximum size of the scores that attention without a fused kernel computes at once, in bytes.
const MAX_SCORE_BYTES: usize = 64 << 20;

/// Layers of an encoder, from patches to states.
pub(super) struct EncoderLayers {
    config: VisionConfig,
    dtype: DType,
    patch: Linear,
    table: Option<Tensor>,
    first_norm: Option<Norm>,
    last_norm: Option<Norm>,
    layers: Vec<EncoderLayer>,
}

/// States of an encoder, (patches, width).
pub(super) struct EncoderStates {
    /// States after the last layer.
    pub(super) last: Tensor,
    /// States after the layers that were asked for.
    pub(super) deepstack: Vec<Tensor>,
}

struct EncoderLayer {
    norms: [Norm; 2],
    query_key_value: Linear,
    output: Linear,
    /// Gate and up, or up alone.
    up: Linear,
    down: Linear,
}

/// Sequences of patches that see each other.
struct Segments {
    lengths: Vec<usize>,
    /// Cumulative lengths, u32 (sequences + 1).
    sums: Tensor,
}

impl Segments {
    fn new(lengths: Vec<usize>, device: &Device) -> candle_core::Result<Self> {
        let mut sums = vec![0u32];
        for length in &lengths {
            sums.push(sums[sums.len() - 1] + *length as u32);
        }
        let count = sums.len();
        Ok(Self { lengths, sums: Tensor::from_vec(sums, count, device)? })
    }
}

/// Rotary embedding of the patches of a picture.
struct PatchRotary {
    /// Cosines and sines, f32 (patches, pairs).
    tables: [Tensor; 2],
    /// Numbers of the rows, u32 (patches).
    rows: Tensor,
}

impl EncoderLayers {
    pub(super) fn load(config: &VisionConfig, weights: &mut Weights, dtype: DType) -> Result<Self> {
        let (family, hidden) = (config.family, config.hidden);
        let names = &family.names;
        let prefix =
            weights.prefix_of(&format!("{}.weight", names.patch)).context("the encoder is missing")?;
        let area = config.patch * config.patch;
        let name = format!("{prefix}{}.weight", names.patch);
        let shape = [hidden, 3, config.frames, config.patch, config.patch];
        // All frames of a picture are the same.
        let patch = match (family.has_frames, family.is_mmproj) {
            (true, false) => {
                weights.floats_named(&name, &shape)?.reshape((hidden, 3, config.frames, area))?.sum(2)?
            }
            (has_frames, _) => {
                let shape = [hidden, 3, config.patch, config.patch];
                let first = weights.floats_named(&name, &shape)?;
                if has_frames {
                    (first + weights.floats_named(&format!("{name}.1"), &shape)?)?
                } else {
                    first
                }
            }
        };
        let patch = patch.reshape((hidden, 3 * area))?;
        let bias = match names.patch_bias {
            true => Some(
                weights.vector_named(&format!("{prefix}{}.bias", names.patch), hidden)?.to_dtype(dtype)?,
            ),
            false => None,
        };
        let patch = Linear::float(patch.to_dtype(dtype)?, bias, dtype);
        let table = match names.table {
            Some(table) => {
                let side = config.table_side;
                let table =
                    weights.floats_named(&format!("{prefix}{table}.weight"), &[side * side, hidden])?;
                Some(table.to_dtype(dtype)?)
            }
            None => None,
        };
        let mut norm = |name: Option<&str>| -> Result<Option<Norm>> {
            let load = |name| load_norm(weights, &format!("{prefix}{name}"), hidden, config, dtype);
            name.map(load).transpose()
        };
        let (first_norm, last_norm) = (norm(names.first_norm)?, norm(names.last_norm)?);
        let layers = (0..config.layers)
            .map(|index| {
                let prefix = format!("{prefix}{}.{index}.", names.layers);
                EncoderLayer::load(config, weights, &prefix, dtype)
            })
            .collect::<Result<_>>()?;
        Ok(Self { config: config.clone(), dtype, patch, table, first_norm, last_norm, layers })
    }

    /// Computes the states of a picture, and those after the layers `deepstack`.
    pub(super) fn forward(
        &self,
        picture: &ProcessedPicture,
        deepstack: &[usize],
        device: &Device,
    ) -> candle_core::Result<EncoderStates> {
        let config = &self.config;
        let cells: Vec<[usize; 2]> = picture
            .grids
            .iter()
            .flat_map(|&grid| grid::patch_order(grid, config.merge, config.window))
            .collect();
        let mut x = self.patch.forward(&self.pixels(picture, device)?)?;
        if let Some(table) = &self.table {
            x = self.add_positions(x, table, picture, &cells)?;
        }
        if let Some(norm) = &self.first_norm {
            x = norm.forward(&x)?;
        }
        let rotary = match config.family.positions {
            Positions::Rotary { column_shift } => Some(self.rotary(&cells, column_shift, device)?),
            Positions::InterpolatedAndRotary => Some(self.rotary(&cells, 0, device)?),
            Positions::Table => None,
        };
        let area = |grid: &[usize; 2]| grid[0] * grid[1];
        let whole = Segments::new(picture.grids.iter().map(area).collect(), device)?;
        let windows = match config.window {
            Some(window) => {
                let lengths = |grid: &[usize; 2]| grid::window_lengths(*grid, config.merge, window);
                Some(Segments::new(picture.grids.iter().flat_map(lengths).collect(), device)?)
            }
            None => None,
        };
        for segments in [Some(&whole), windows.as_ref()].into_iter().flatten() {
            let rows: usize = segments.lengths.iter().sum();
            if rows != cells.len() || rows != x.dim(0)? {
                bail!("internal error: segments of {rows} patches for a picture of {} patches", cells.len())
            }
        }
        let mut deepstack_states = Vec::with_capacity(deepstack.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let windows = windows.as_ref().filter(|_| !config.full_layers.contains(&index));
            x = layer.forward(config, &x, windows.unwrap_or(&whole), rotary.as_ref())?;
            if deepstack.contains(&index) {
                deepstack_states.push(x.clone());
            }
        }
        if let Some(norm) = &self.last_norm {
            x = norm.forward(&x)?;
        }
        Ok(EncoderStates { last: x, deepstack: deepstack_states })
    }

    /// Returns the normalized pixels of the patches, (patches, 3 · patch²).
    fn pixels(&self, picture: &ProcessedPicture, device: &Device) -> candle_core::Result<Tensor> {
        let area = self.config.patch * self.config.patch;
        let count = picture.patches.len() / (3 * area);
        let pixels = Tensor::from_slice(&picture.patches, (count, 3, area), device)?.to_dtype(DType::F32)?;
        let channels = |values: [f32; 3]| Tensor::new(&values, device)?.reshape((1, 3, 1));
        let pixels =
            pixels.broadcast_mul(&channels(picture.scale)?)?.broadcast_add(&channels(picture.shift)?)?;
        pixels.reshape((count, 3 * area))?.to_dtype(self.dtype)
    }

    fn add_positions(
        &self,
        x: Tensor,
        table: &Tensor,
        picture: &ProcessedPicture,
        cells: &[[usize; 2]],
    ) -> candle_core::Result<Tensor> {
        let (side, device) = (self.config.table_side, x.device().clone());
        if self.config.family.positions == Positions::Table {
            if picture.grids.iter().any(|grid| *grid != [side; 2]) {
                bail!("a picture of {:?} patches for a table of {side} x {side}", picture.grids)
            }
            let rows = cells.iter().map(|[row, column]| (row * side + column) as u32);
            return x + table.index_select(&Tensor::from_iter(rows, &device)?, 0)?;
        }
        let sizes = picture.grids.iter().flat_map(|grid| std::iter::repeat_n(*grid, grid[0] * grid[1]));
        let taps: Vec<_> = cells
            .iter()
            .zip(sizes)
            .map(|(cell, size)| [0, 1].map(|axis| grid::interpolated(cell[axis], size[axis], side)))
            .collect();
        let mut x = x;
        for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let weight = |second: f32, place: usize| if place == 1 { second } else { 1.0 - second };
            let rows = taps.iter().map(|[row, column]| (row.0[down] * side + column.0[right]) as u32);
            let weights: Vec<f32> =
                taps.iter().map(|[row, column]| weight(row.1, down) * weight(column.1, right)).collect();
            let weights = Tensor::from_vec(weights, (cells.len(), 1), &device)?.to_dtype(self.dtype)?;
            let rows = table.index_select(&Tensor::from_iter(rows, &device)?, 0)?;
            x = (x + rows.broadcast_mul(&weights)?)?;
        }
        Ok(x)
    }

    /// Returns the rotation of each patch: the first half of the pairs by its row, the other by its column.
    fn rotary(
        &self,
        cells: &[[usize; 2]],
        column_shift: usize,
        device: &Device,
    ) -> candle_core::Result<PatchRotary> {
        let width = self.config.hidden / self.config.heads;
        let frequency = |pair: usize, shift: usize| {
            self.config.rope_theta.powf(-((4 * pair + shift) as f64) / width as f64) as f32
        };
        let (mut angles, quarter) = (Vec::with_capacity(cells.len() * width / 2), width / 4);
        for [row, column] in cells {
            angles.extend((0..quarter).map(|pair| *row as f32 * frequency(pair, 0)));
            angles.extend((0..quarter).map(|pair| *column as f32 * frequency(pair, column_shift)));
        }
        let angles = Tensor::from_vec(angles, (cells.len(), 2 * quarter), device)?;
        let rows = Tensor::arange(0, cells.len() as u32, device)?;
        Ok(PatchRotary { tables: [angles.cos()?, angles.sin()?], rows })
    }
}

/// Loads a norm of width `width`.
pub(super) fn load_norm(
    weights: &mut Weights,
    name: &str,
    width: usize,
    config: &VisionConfig,
    dtype: DType,
) -> Result<Norm> {
    let weight = weights.vector_named(&format!("{name}.weight"), width)?;
    Ok(match config.family.is_rms {
        true => Norm::rms(weight, false, config.norm_eps, dtype)?,
        false => {
            let bias = weights.vector_named(&format!("{name}.bias"), width)?;
            Norm::layer(weight, Some(bias), config.norm_eps, dtype)?
        }
    })
}

impl EncoderLayer {
    fn load(config: &VisionConfig, weights: &mut Weights, prefix: &str, dtype: DType) -> Result<Self> {
        let VisionConfig { family, hidden, intermediate, .. } = *config;
        let names = &family.names;
        let full = |names: &[&str]| names.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>();
        let mut linear =
            |names: &[&str], rows, width| weights.linear_named(&full(names), rows, width, family.has_bias);
        let fused = names.query_key_value.len();
        let query_key_value = linear(names.query_key_value, 3 * hidden / fused, hidden)?;
        let output = linear(&[names.output], hidden, hidden)?;
        let (down, up) =
            names.mlp.split_last().context("internal error: a feed-forward layer without names")?;
        let (up, down) = (linear(up, intermediate, hidden)?, linear(&[down], hidden, intermediate)?);
        let mut norm = |name: &str| load_norm(weights, &format!("{prefix}{name}"), hidden, config, dtype);
        Ok(Self { norms: [norm(names.norms[0])?, norm(names.norms[1])?], query_key_value, output, up, down })
    }

    fn forward(
        &self,
        config: &VisionConfig,
        x: &Tensor,
        segments: &Segments,
        rotary: Option<&PatchRotary>,
    ) -> candle_core::Result<Tensor> {
        let (rows, heads) = (x.dim(0)?, config.heads);
        let onto = |residual| FusedWith { residual: Some(residual), ..FusedWith::default() };
        let all = self.query_key_value.forward(&self.norms[0].forward(x)?)?;
        let [q, k, v] = match rotary {
            Some(PatchRotary { tables: [cos, sin], rows }) => {
                let rotary = Rotary { cos, sin, interleaved: config.family.is_interleaved() };
                rotated_heads(&all, heads, rotary, rows, rows)?
            }
            None => {
                let part = |index| all.narrow(1, index * config.hidden, config.hidden);
                let by_heads = |index| part(index)?.reshape((rows, heads, ()));
                [by_heads(0)?, by_heads(1)?, by_heads(2)?]
            }
        };
        let attended = attend(&q, &k, &v, segments)?;
        let x = self.output.forward_fused(&attended, onto(x))?;
        let normed = self.norms[1].forward(&x)?;
        let inner = match config.family.names.mlp {
            [_, _, _] => self.gated(&normed, config.activation)?,
            _ => config.activation.forward(&self.up.forward(&normed)?)?,
        };
        self.down.forward_fused(&inner, onto(&x))
    }

    /// Returns activation(gate) · up.
    fn gated(&self, x: &Tensor, activation: Activation) -> candle_core::Result<Tensor> {
        if activation == Activation::Silu {
            let with = FusedWith { gate: Some(GateActivation::Silu), ..FusedWith::default() };
            return self.up.forward_fused(x, with);
        }
        let both = self.up.forward(x)?.chunk(2, D::Minus1)?;
        let [gate, up] = &both[..] else { bail!("internal error: expected a gate and another projection") };
        activation.forward(&gate.contiguous()?)? * up
    }
}

/// Computes attention of the patches (rows, heads, width) of each segment over each other. Returns (rows, heads · width).
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, segments: &Segments) -> candle_core::Result<Tensor> {
    let (rows, heads, width) = q.dims3()?;
    let scale = (width as f64).powf(-0.5) as f32;
    let flash = Heads { dtype: q.dtype(), width }.support_flash_attention(q.device());
    if flash {
        let (sums, longest) = (&segments.sums, segments.lengths.iter().copied().max().unwrap_or(0));
        let out = flash_attn_varlen_alibi_windowed_softcap(
            q, k, v, None, sums, sums, longest, longest, scale, None, None, 0.0,
        )?;
        return out.flatten_from(1);
    }
    let by_heads = |x: &Tensor| x.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous();
    let (q_heads, k_heads, v_heads) = (by_heads(q)?, by_heads(k)?, by_heads(v)?);
    let (mut parts, mut start) = (Vec::new(), 0);
    for &length in &segments.lengths {
        let keys = k_heads.narrow(1, start, length)?.transpose(1, 2)?.contiguous()?;
        let values = v_heads.narrow(1, start, length)?.contiguous()?;
        let step = (MAX_SCORE_BYTES / (heads * length * size_of::<f32>()).max(1)).max(1);
        for first in (0..length).step_by(step) {
            let queries = q_heads.narrow(1, start + first, step.min(length - first))?.contiguous()?;
            let scores = (queries.matmul(&keys)? * f64::from(scale))?;
            parts.push(candle_nn::ops::softmax_last_dim(&scores)?.matmul(&values)?);
        }
        start += length;
    }
    let out = Tensor::cat(&parts, 1)?.transpose(0, 1)?;
    out.reshape((rows, heads * width))?.to_dtype(q.dtype())
}
