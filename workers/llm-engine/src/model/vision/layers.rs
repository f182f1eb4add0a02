//! Layers of vision encoders: attention without a mask and a feed-forward layer, with norms before each.
use anyhow::{Context, Result, bail as fail};
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
use crate::model::layers::{FusedWith, Linear, Norm, QueryKeyNorms};
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
    /// One product for queries, keys and values, or three.
    query_key_value: Vec<Projection>,
    output: Projection,
    /// Gate and up in one product or two, or up alone.
    up: Vec<Projection>,
    down: Projection,
    further_norms: Option<FurtherNorms>,
}

/// Norms that only some encoders have.
struct FurtherNorms {
    heads: QueryKeyNorms,
    /// Norm of each head of values, without weights.
    values: Norm,
    after_attention: Norm,
    after_mlp: Norm,
}

/// A linear layer whose inputs and outputs may be limited.
struct Projection {
    linear: Linear,
    /// Least and greatest input, least and greatest output.
    limits: Option<[f64; 4]>,
}

impl Projection {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let Some([least, most, least_output, most_output]) = self.limits else {
            return self.linear.forward(x);
        };
        self.linear.forward(&x.clamp(least, most)?)?.clamp(least_output, most_output)
    }
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
                let plain = [hidden, 3 * area];
                let is_plain = family.positions == Positions::TablesAndRotaryHalves && !family.is_mmproj;
                let shape = [hidden, 3, config.patch, config.patch];
                let shape = if is_plain { &plain[..] } else { &shape };
                let first = weights.floats_named(&name, shape)?;
                if has_frames { (first + weights.floats_named(&format!("{name}.1"), shape)?)? } else { first }
            }
        };
        // Gemma 4's files have the channels of each pixel together.
        let patch = match config.family.positions {
            Positions::TablesAndRotaryHalves if !family.is_mmproj => {
                patch.reshape((hidden, area, 3))?.transpose(1, 2)?
            }
            _ => patch,
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
                let table = match config.family.positions {
                    Positions::TablesAndRotaryHalves => {
                        let ending = if family.is_mmproj { ".weight" } else { "" };
                        let name = format!("{prefix}{table}{ending}");
                        let both = weights.floats_named(&name, &[2, side, hidden])?;
                        both.reshape((2 * side, hidden))?
                    }
                    _ => weights.floats_named(&format!("{prefix}{table}.weight"), &[side * side, hidden])?,
                };
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
            Positions::TablesAndRotaryHalves => {
                let swapped: Vec<_> = cells.iter().map(|[row, column]| [*column, *row]).collect();
                Some(self.rotary(&swapped, 0, device)?)
            }
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
        if self.config.family.positions == Positions::TablesAndRotaryHalves {
            if picture.grids.iter().flatten().any(|patches| *patches > side) {
                bail!("a picture of {:?} patches for tables of {side} columns and rows", picture.grids)
            }
            let columns = cells.iter().map(|[_, column]| *column as u32);
            let columns = table.index_select(&Tensor::from_iter(columns, &device)?, 0)?;
            let rows = cells.iter().map(|[row, _]| (side + row) as u32);
            return x + (columns + table.index_select(&Tensor::from_iter(rows, &device)?, 0)?)?;
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
        if let Some(further_norms) = names.further_norms {
            return Self::load_separately(config, weights, prefix, further_norms, dtype);
        }
        let full = |names: &[&str]| names.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>();
        let mut linear = |names: &[&str], rows, width| -> Result<Projection> {
            let linear = weights.linear_named(&full(names), rows, width, family.has_bias)?;
            Ok(Projection { linear, limits: None })
        };
        let fused = names.query_key_value.len();
        let query_key_value = vec![linear(names.query_key_value, 3 * hidden / fused, hidden)?];
        let output = linear(&[names.output], hidden, hidden)?;
        let (down, up) =
            names.mlp.split_last().context("internal error: a feed-forward layer without names")?;
        let (up, down) = (vec![linear(up, intermediate, hidden)?], linear(&[down], hidden, intermediate)?);
        let mut norm = |name: &str| load_norm(weights, &format!("{prefix}{name}"), hidden, config, dtype);
        let norms = [norm(names.norms[0])?, norm(names.norms[1])?];
        Ok(Self { norms, query_key_value, output, up, down, further_norms: None })
    }

    /// Loads a layer of Gemma 4, whose projections may have limits of their own. The elements of queries and keys are ordered so
    /// that pairs of elements of both halves of a head rotate together.
    fn load_separately(
        config: &VisionConfig,
        weights: &mut Weights,
        prefix: &str,
        further_norms: [&str; 4],
        dtype: DType,
    ) -> Result<Self> {
        let VisionConfig { family, hidden, intermediate, heads, .. } = *config;
        let (names, width) = (&family.names, hidden / heads);
        let quarter = (width / 4) as u32;
        let order: Vec<u32> =
            [0, 2, 1, 3].iter().flat_map(|part| part * quarter..(part + 1) * quarter).collect();
        let order = weights.upload(order)?;
        let mut projection = |name: &str, rows, columns, is_ordered: bool| -> Result<Projection> {
            let name = format!("{prefix}{name}");
            let ending = if family.is_mmproj { "weight" } else { "linear.weight" };
            let matrix = weights.floats_named(&format!("{name}.{ending}"), &[rows, columns])?;
            let matrix = match is_ordered {
                true => matrix.reshape((heads, width, columns))?.index_select(&order, 1)?,
                false => matrix,
            };
            let matrix = matrix.reshape((rows, columns))?.to_dtype(dtype)?;
            let limits = match config.has_limits {
                true => {
                    let mut limit = |part: &str| weights.scalar_named(&format!("{name}.{part}"));
                    let input = [limit("input_min")?, limit("input_max")?];
                    Some([input[0], input[1], limit("output_min")?, limit("output_max")?])
                }
                false => None,
            };
            Ok(Projection { linear: Linear::float(matrix, None, dtype), limits })
        };
        let [query, key, value] = names.query_key_value else {
            fail!("internal error: expected names of queries, keys and values")
        };
        let [gate, up, down] = names.mlp else {
            fail!("internal error: expected names of three projections")
        };
        let query_key_value = vec![
            projection(query, hidden, hidden, true)?,
            projection(key, hidden, hidden, true)?,
            projection(value, hidden, hidden, false)?,
        ];
        let output = projection(names.output, hidden, hidden, false)?;
        let up = vec![
            projection(gate, intermediate, hidden, false)?,
            projection(up, intermediate, hidden, false)?,
        ];
        let down = projection(down, hidden, intermediate, false)?;
        let mut of_heads = |name: &str| -> Result<Norm> {
            let weight = weights.vector_named(&format!("{prefix}{name}.weight"), width)?;
            Ok(Norm::rms(weight.index_select(&order, 0)?, false, config.norm_eps, dtype)?)
        };
        let heads = QueryKeyNorms { query: of_heads(further_norms[0])?, key: of_heads(further_norms[1])? };
        let values = weights.unweighted_norm(width, config.norm_eps)?;
        let mut norm = |name: &str| load_norm(weights, &format!("{prefix}{name}"), hidden, config, dtype);
        let norms = [norm(names.norms[0])?, norm(names.norms[1])?];
        let (after_attention, after_mlp) = (norm(further_norms[2])?, norm(further_norms[3])?);
        let further_norms = Some(FurtherNorms { heads, values, after_attention, after_mlp });
        Ok(Self { norms, query_key_value, output, up, down, further_norms })
    }

    fn forward(
        &self,
        config: &VisionConfig,
        x: &Tensor,
        segments: &Segments,
        rotary: Option<&PatchRotary>,
    ) -> candle_core::Result<Tensor> {
        let (rows, heads) = (x.dim(0)?, config.heads);
        let further = self.further_norms.as_ref();
        let normed = self.norms[0].forward(x)?;
        let mut parts = Vec::with_capacity(self.query_key_value.len());
        for (index, projection) in self.query_key_value.iter().enumerate() {
            let part = projection.forward(&normed)?;
            parts.push(match further.filter(|_| index == 2) {
                Some(norms) => {
                    norms.values.forward(&part.reshape((rows * heads, ()))?)?.reshape((rows, ()))?
                }
                None => part,
            });
        }
        let all = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(&parts, 1)? };
        let norms = further.map(|norms| norms.heads.head_norms());
        let [q, k, v] = match rotary {
            Some(PatchRotary { tables: [cos, sin], rows }) => {
                let rotary = Rotary { cos, sin, interleaved: config.family.is_interleaved() };
                rotated_heads(&all, heads, (norms, rotary), rows, rows)?
            }
            None => {
                let part = |index| all.narrow(1, index * config.hidden, config.hidden);
                let by_heads = |index| part(index)?.reshape((rows, heads, ()));
                [by_heads(0)?, by_heads(1)?, by_heads(2)?]
            }
        };
        let scale = if further.is_some() { 1.0 } else { (q.dim(2)? as f64).powf(-0.5) as f32 };
        let attended = attend(&q, &k, &v, scale, segments)?;
        let x = add(&self.output, &attended, x, further.map(|norms| &norms.after_attention))?;
        let normed = self.norms[1].forward(&x)?;
        let inner = match (&self.up[..], config.family.names.mlp) {
            ([gate, up], _) => {
                (config.activation.forward(&gate.forward(&normed)?)? * up.forward(&normed)?)?
            }
            ([up], [_, _, _]) => gated(up, &normed, config.activation)?,
            ([up, ..], _) => config.activation.forward(&up.forward(&normed)?)?,
            ([], _) => bail!("internal error: a feed-forward layer without projections"),
        };
        add(&self.down, &inner, &x, further.map(|norms| &norms.after_mlp))
    }
}

/// Adds the output of a projection, normalized if there is a norm, to the residual.
fn add(
    projection: &Projection,
    x: &Tensor,
    residual: &Tensor,
    norm: Option<&Norm>,
) -> candle_core::Result<Tensor> {
    match norm {
        Some(norm) => residual + norm.forward(&projection.forward(x)?)?,
        None if projection.limits.is_some() => residual + projection.forward(x)?,
        None => {
            let with = FusedWith { residual: Some(residual), ..FusedWith::default() };
            projection.linear.forward_fused(x, with)
        }
    }
}

/// Returns activation(gate) · up of one product of both.
fn gated(up: &Projection, x: &Tensor, activation: Activation) -> candle_core::Result<Tensor> {
    if activation == Activation::Silu && up.limits.is_none() {
        let with = FusedWith { gate: Some(GateActivation::Silu), ..FusedWith::default() };
        return up.linear.forward_fused(x, with);
    }
    let both = up.forward(x)?.chunk(2, D::Minus1)?;
    let [gate, up] = &both[..] else { bail!("internal error: expected a gate and another projection") };
    activation.forward(&gate.contiguous()?)? * up
}

/// Computes attention of the patches (rows, heads, width) of each segment over each other. Returns (rows, heads · width).
fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f32,
    segments: &Segments,
) -> candle_core::Result<Tensor> {
    let (rows, heads, width) = q.dims3()?;
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
