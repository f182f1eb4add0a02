//! Loading of layers of Mamba 2.
use anyhow::Result;
use candle_core::{DType, Tensor};

use super::{Piece, Weights};
use crate::model::config::{RecurrentConfig, SelectiveConfig};
use crate::model::layers::{Linear, Norm};
use crate::model::mamba::MambaMixer;
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
        let (channels, width, at) = (sizes.channels(), sizes.conv_width, Some(layer));
        let total_rows = values + channels + heads;
        // Files have gates, x, B, C and steps.
        let (x, b) = (values, 2 * values);
        let c = b + keys;
        let rows = [c..c + keys, b..c, x..b, 0..values, c + keys..total_rows];
        let pieces = rows.map(|rows| TensorRows { role: Role::MambaInput, rows, total_rows });
        let input = self.linear(at, &pieces, hidden, options.projection_bias)?;
        let name = self.name(at, Role::MambaConv, "weight");
        let shape: &[usize] = if self.prefix.is_some() { &[channels, 1, width] } else { &[channels, width] };
        self.check(&name, shape)?;
        let rows = [values + keys..channels, values..values + keys, 0..values];
        let pieces = rows.clone().map(|rows| Piece::rows(name.clone(), rows, width));
        let conv = self.floats(&pieces, &[channels, width], DType::F32)?;
        let conv_bias = match options.conv_bias {
            true => {
                let name = self.name(at, Role::MambaConv, "bias");
                self.check(&name, &[channels])?;
                let pieces = rows.map(|rows| Piece::vector(name.clone(), rows));
                Some(self.floats(&pieces, &[channels], DType::F32)?)
            }
            false => None,
        };
        let rate = self.mamba_factors(layer, ["A_log", "ssm_a"], heads)?;
        let dt_bias = match self.mamba_name(layer, "dt_bias") {
            Some(name) => self.vector_named(&name, heads)?,
            None => self.vector_named(&format!("blk.{layer}.ssm_dt.bias"), heads)?,
        };
        let group_norm = match sizes.key_heads {
            1 => None,
            groups => {
                let norm = self.unweighted_norm(values / groups, options.norm_eps)?;
                Some((norm, self.mamba_norm(layer, sizes)?.to_dtype(self.dtype)?))
            }
        };
        Ok(MambaMixer {
            input,
            widths: [channels, values, heads],
            conv,
            conv_bias,
            rate: if self.prefix.is_some() { rate.exp()?.neg()? } else { rate },
            dt_bias,
            skip: self.mamba_factors(layer, ["D", "ssm_d"], heads)?,
            step_limits: options.step_limits,
            group_norm,
        })
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
        Ok(match sizes.key_heads {
            1 => {
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
