//! Loading of layers of Mamba 1 and 2.
use std::ops::Range;

use anyhow::Result;
use candle_core::{DType, Tensor};

use super::{Piece, Weights};
use crate::model::config::{Mamba1Config, RecurrentConfig, SelectiveConfig, SelectiveNorm};
use crate::model::layers::{Linear, Norm};
use crate::model::mamba::{Convolution, Mamba1Mixer, MambaMixer};
use crate::model::part::TensorRows;
use crate::model::roles::Role;

impl Weights<'_> {
    /// Loads a layer of Mamba 2, without its output projection.
    pub fn mamba_mixer(
        &mut self,
        layer: usize,
        (sizes, options): (&RecurrentConfig, &SelectiveConfig),
        hidden: usize,
    ) -> Result<MambaMixer> {
        let (keys, values, heads) = (sizes.keys(), sizes.values(), sizes.value_heads);
        let (channels, at) = (sizes.channels(), Some(layer));
        let total_rows = values + channels + heads;
        // Files have gates, x, B, C and steps.
        let (x, b) = (values, 2 * values);
        let c = b + keys;
        let rows = [c..c + keys, b..c, x..b, 0..values, c + keys..total_rows];
        let pieces = rows.map(|rows| TensorRows { role: Role::MambaInput, rows, total_rows });
        let [of_z, of_x, of_b, of_c, of_steps] = options.input_factors;
        let input = self.scaled_linear(
            at,
            &pieces,
            &[of_c, of_b, of_x, of_z, of_steps],
            hidden,
            options.projection_bias,
        )?;
        let rows = [values + keys..channels, values..values + keys, 0..values];
        let conv = self.mamba_conv(layer, &rows, sizes.conv_width, options.conv_bias)?;
        let rate = self.mamba_factors(layer, ["A_log", "ssm_a"], heads)?;
        let dt_bias = match self.mamba_name(layer, "dt_bias") {
            Some(name) => self.vector_named(&name, heads)?,
            None => self.vector_named(&format!("blk.{layer}.ssm_dt.bias"), heads)?,
        };
        let group_norm = match (options.norm, sizes.key_heads) {
            (SelectiveNorm::Absent, _) | (SelectiveNorm::AfterGates, 1) => None,
            (_, groups) => {
                let norm = self.unweighted_norm(values / groups, options.norm_eps)?;
                Some((norm, self.mamba_norm(layer, sizes)?.to_dtype(self.dtype)?))
            }
        };
        Ok(MambaMixer {
            input,
            widths: [channels, values, heads],
            conv,
            rate: if self.prefix.is_some() { rate.exp()?.neg()? } else { rate },
            dt_bias,
            skip: self.mamba_factors(layer, ["D", "ssm_d"], heads)?,
            step_limits: options.step_limits,
            group_norm,
            gates_last: options.norm == SelectiveNorm::BeforeGates,
        })
    }

    /// Loads a layer of Mamba 1, without its output projection.
    pub fn mamba1_mixer(
        &mut self,
        layer: usize,
        (sizes, options): (&RecurrentConfig, &Mamba1Config),
        hidden: usize,
    ) -> Result<Mamba1Mixer> {
        let (values, state, rank, at) = (sizes.values(), sizes.key_width, options.step_rank, Some(layer));
        let whole = [TensorRows::whole(Role::MambaInput, 2 * values)];
        let input = self.linear(at, &whole, hidden, options.projection_bias)?;
        // Files have the steps' inputs, B and C.
        let total_rows = rank + 2 * state;
        let rows = [rank + state..total_rows, rank..rank + state, 0..rank];
        let pieces = rows.map(|rows| TensorRows { role: Role::MambaSelection, rows, total_rows });
        let mut norm = |role, width| {
            let weight = self.vector_named(&self.name(at, role, "weight"), width)?;
            Norm::rms(weight, false, options.norm_eps, self.dtype).map_err(anyhow::Error::from)
        };
        let norms = [
            norm(Role::MambaQueryNorm, state)?,
            norm(Role::MambaKeyNorm, state)?,
            norm(Role::MambaStepNorm, rank)?,
        ];
        let step = [TensorRows::whole(Role::MambaStep, values)];
        let [rate, skip] = [["A_log", "ssm_a"], ["D", "ssm_d"]]
            .map(|[own, gguf]| self.mamba_name(layer, own).unwrap_or(format!("blk.{layer}.{gguf}")));
        let rate = self.floats_named(&rate, &[values, state])?;
        let rate = if self.prefix.is_some() { rate.exp()?.neg()? } else { rate };
        Ok(Mamba1Mixer {
            input,
            values,
            conv: self.mamba_conv(
                layer,
                std::slice::from_ref(&(0..values)),
                sizes.conv_width,
                options.conv_bias,
            )?,
            selection: self.linear(at, &pieces, values, false)?,
            widths: [state, state, rank],
            norms,
            step: self.linear(at, &step, rank, false)?,
            rate: rate.reshape((sizes.value_heads, sizes.value_width, state))?,
            dt_bias: self.vector_named(&self.name(at, Role::MambaStep, "bias"), values)?,
            skip: self.vector_named(&skip, values)?,
        })
    }

    /// Loads the convolution of a layer from rows of its tensors, which together are all channels.
    fn mamba_conv(
        &mut self,
        layer: usize,
        rows: &[Range<usize>],
        width: usize,
        has_bias: bool,
    ) -> Result<Convolution> {
        let channels = rows.iter().map(Range::len).sum();
        let name = self.name(Some(layer), Role::MambaConv, "weight");
        let shape: &[usize] = if self.prefix.is_some() { &[channels, 1, width] } else { &[channels, width] };
        self.check(&name, shape)?;
        let pieces: Vec<_> = rows.iter().map(|rows| Piece::rows(name.clone(), rows.clone(), width)).collect();
        let weight = self.floats(&pieces, &[channels, width], DType::F32)?;
        let bias = match has_bias {
            true => {
                let name = self.name(Some(layer), Role::MambaConv, "bias");
                self.check(&name, &[channels])?;
                let pieces: Vec<_> =
                    rows.iter().map(|rows| Piece::vector(name.clone(), rows.clone())).collect();
                Some(self.floats(&pieces, &[channels], DType::F32)?)
            }
            false => None,
        };
        Ok(Convolution { weight, bias })
    }

    /// Loads the output projection of a layer of Mamba 2, which includes the norm of its input if there is one group of heads.
    pub fn mamba_output(
        &mut self,
        layer: usize,
        (sizes, options): (&RecurrentConfig, &SelectiveConfig),
        hidden: usize,
    ) -> Result<Linear> {
        let shape = [hidden, sizes.values()];
        let output =
            self.linear_of_columns(Some(layer), Role::MambaOutput, shape, options.projection_bias)?;
        Ok(match (options.norm, sizes.key_heads) {
            (SelectiveNorm::AfterGates, 1) => {
                let weight = self.mamba_norm(layer, sizes)?;
                output.with_input_norm(Norm::rms(weight, false, options.norm_eps, self.dtype)?)
            }
            _ => output,
        })
    }

    /// Returns the name in safetensors of a tensor of the block that has the input projection.
    fn mamba_name(&self, layer: usize, part: &str) -> Option<String> {
        self.prefix.as_ref()?;
        let input = self.name(Some(layer), Role::MambaInput, "");
        let (block, _) = input.trim_end_matches('.').rsplit_once('.')?;
        Some(format!("{block}.{part}"))
    }

    /// Loads a factor of each head. Converters to GGUF add a dimension of size 1.
    fn mamba_factors(
        &mut self,
        layer: usize,
        [safetensors, gguf]: [&str; 2],
        heads: usize,
    ) -> Result<Tensor> {
        match self.mamba_name(layer, safetensors) {
            Some(name) => self.vector_named(&name, heads),
            None => Ok(self.floats_named(&format!("blk.{layer}.{gguf}"), &[heads, 1])?.squeeze(1)?),
        }
    }

    /// Loads the weights of the norm, f32 (values), which have a row for each group of heads in GGUF.
    fn mamba_norm(&mut self, layer: usize, sizes: &RecurrentConfig) -> Result<Tensor> {
        let (name, values) = (self.name(Some(layer), Role::MambaNorm, "weight"), sizes.values());
        match &self.prefix {
            Some(_) => self.vector_named(&name, values),
            None => {
                let shape = [sizes.key_heads, values / sizes.key_heads];
                Ok(self.floats_named(&name, &shape)?.flatten_all()?)
            }
        }
    }
}
