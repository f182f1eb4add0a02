//! Loading of linear attention.
use anyhow::Result;
use candle_core::{DType, Tensor};

use super::{Piece, Weights};
use crate::model::config::RecurrentConfig;
use crate::model::delta::DeltaAttention;
use crate::model::layers::Linear;
use crate::model::part::TensorRows;
use crate::model::roles::Role;

impl Weights<'_> {
    /// Loads the linear attention of a layer, without its output projection.
    pub fn delta_attention(
        &mut self,
        layer: usize,
        (config, is_grouped): (&RecurrentConfig, bool),
        hidden: usize,
        eps: f64,
    ) -> Result<DeltaAttention> {
        let (keys, values, heads) = (config.keys(), config.values(), config.value_heads);
        // Indices of the value heads in the files.
        let index_in_file = |head| if self.prefix.is_some() { head } else { config.stored_head(head) };
        let order: Vec<usize> = (0..heads).map(index_in_file).collect();
        let of_heads = |role, first: usize, width: usize, total_rows| {
            let rows = order.iter().map(move |head| first + head * width..first + (head + 1) * width);
            rows.map(move |rows| TensorRows { role, rows, total_rows })
        };
        let pieces = match is_grouped {
            true => grouped(config),
            false => {
                let (role, width) = (Role::DeltaQueryKeyValue, config.value_width);
                let first = TensorRows { role, rows: 0..2 * keys, total_rows: 2 * keys + values };
                std::iter::once(first)
                    .chain(of_heads(role, 2 * keys, width, 2 * keys + values))
                    .chain(of_heads(Role::DeltaGate, 0, width, values))
                    .chain(of_heads(Role::DeltaLearningRate, 0, 1, heads))
                    .chain(of_heads(Role::DeltaDecay, 0, 1, heads))
                    .collect()
            }
        };
        let mut products = Vec::new();
        for pieces in self.runs_of_one_format(Some(layer), &pieces)? {
            products.push(self.linear(Some(layer), pieces, hidden, false)?);
        }
        let (channels, width, prefix) = (config.channels(), config.conv_width, self.prefix.clone());
        let conv = self.name(Some(layer), Role::DeltaConv, "weight");
        let shape: &[usize] = if self.prefix.is_some() { &[channels, 1, width] } else { &[channels, width] };
        self.check(&conv, shape)?;
        let rows = std::iter::once(0..2 * keys);
        let rows = rows
            .chain(of_heads(Role::DeltaConv, 2 * keys, config.value_width, channels).map(|part| part.rows));
        let pieces: Vec<Piece> = rows.map(|rows| Piece::rows(conv.clone(), rows, width)).collect();
        let conv = self.floats(&pieces, &[channels, width], DType::F32)?;
        let mut factors = |name: String| {
            self.check(&name, &[heads])?;
            let pieces: Vec<Piece> =
                order.iter().map(|head| Piece::vector(name.clone(), *head..head + 1)).collect();
            self.floats(&pieces, &[heads], DType::F32)
        };
        let (rate, dt_bias) = match &prefix {
            Some(prefix) => {
                let name = |part: &str| format!("{prefix}layers.{layer}.linear_attn.{part}");
                (factors(name("A_log"))?.exp()?.neg()?, factors(name("dt_bias"))?)
            }
            None => (factors(format!("blk.{layer}.ssm_a"))?, factors(format!("blk.{layer}.ssm_dt.bias"))?),
        };
        let norm =
            self.vector_named(&self.name(Some(layer), Role::DeltaNorm, "weight"), config.value_width)?;
        Ok(DeltaAttention {
            products,
            widths: [channels, values, heads, heads],
            conv,
            rate,
            dt_bias,
            norm: norm.to_dtype(self.dtype)?,
            eps: eps as f32,
        })
    }

    /// Loads the output projection of linear attention, whose inputs are the values of all heads.
    pub fn delta_output(&mut self, layer: usize, config: &RecurrentConfig, hidden: usize) -> Result<Linear> {
        let (heads, width) = (config.value_heads, config.value_width);
        let output =
            self.linear_of_columns(Some(layer), Role::DeltaOutput, [hidden, config.values()], false)?;
        if self.prefix.is_some() || config.key_heads == heads {
            return Ok(output);
        }
        // Columns are in the order of the file.
        let mut order = vec![0; config.values()];
        for head in 0..heads {
            let stored = config.stored_head(head);
            for element in 0..width {
                order[stored * width + element] = (head * width + element) as u32;
            }
        }
        Ok(output.with_input_order(Some(Tensor::new(order, self.device)?)))
    }
}

/// Returns the rows of queries, keys, values, gates, learning rates and decays of matrices in which the rows of each key
/// head are together.
fn grouped(config: &RecurrentConfig) -> Vec<TensorRows> {
    let (heads, width) = (config.key_heads, config.key_width);
    let shared = config.value_heads / heads;
    let values = shared * config.value_width;
    let parts = |role, widths: &[usize]| {
        let group: usize = widths.iter().sum();
        let mut rows = Vec::new();
        let mut start = 0;
        for width in widths {
            let first = (0..heads).map(|head| head * group + start);
            rows.extend(first.map(|first| TensorRows {
                role,
                rows: first..first + width,
                total_rows: heads * group,
            }));
            start += width;
        }
        rows
    };
    let mut rows = parts(Role::DeltaGroups, &[width, width, values, values]);
    rows.extend(parts(Role::DeltaGroupFactors, &[shared, shared]));
    rows
}
