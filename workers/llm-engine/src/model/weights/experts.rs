//! Loading of mixtures of experts.
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::DType;
#[cfg(feature = "rocm")]
use candle_core::Tensor;

use super::{Matrix, Weights};
use crate::model::config::{Activation, ExpertsConfig};
use crate::model::experts::{ExpertMatrices, Experts, SharedExpert, mlp};
use crate::model::files::Format;
use crate::model::layers::Linear;
#[cfg(feature = "rocm")]
use crate::model::stacks::ExpertStacks;

/// Rows of a tensor that form one matrix of one expert.
type Piece = (String, Range<usize>);

/// A projection of all experts.
struct Projection {
    /// Matrix of each expert.
    pieces: Vec<Piece>,
    /// Format of all of them.
    format: Format,
    /// Number of rows of a matrix.
    rows: usize,
    /// Number of columns of a matrix.
    columns: usize,
}

impl Weights<'_> {
    /// Loads the experts of a layer.
    pub fn experts(
        &mut self,
        layer: usize,
        config: &ExpertsConfig,
        hidden: usize,
        activation: Activation,
    ) -> Result<Experts> {
        let ExpertsConfig { count, intermediate, names, .. } = *config;
        let router = self.layer_name(layer, (&format!("{}.gate", names.block), "ffn_gate_inp"), "weight");
        self.check(&router, &[count, hidden])?;
        let router = Linear::new(self.matrix(&[(router, 0..count)], &[count, hidden])?, None, DType::F32);
        let gate = self.projection(layer, config, (names.gate, "ffn_gate_exps"), [intermediate, hidden])?;
        let up = self.projection(layer, config, (names.up, "ffn_up_exps"), [intermediate, hidden])?;
        let down = self.projection(layer, config, (names.down, "ffn_down_exps"), [hidden, intermediate])?;
        let matrices = self.expert_matrices(config, &joined(gate, up), down, activation)?;
        let shared = match config.shared_intermediate {
            Some(width) => Some(self.shared_expert(layer, config, [hidden, width], activation)?),
            None => None,
        };
        Ok(Experts { router, used: config.used, normalized: config.normalized, matrices, shared })
    }

    fn expert_matrices(
        &mut self,
        config: &ExpertsConfig,
        gate_up: &[Vec<Projection>],
        down: Projection,
        activation: Activation,
    ) -> Result<ExpertMatrices> {
        let count = config.count;
        #[cfg(feature = "rocm")]
        if self.device.is_rocm() {
            let gate_up = gate_up.iter().map(|group| self.stack(count, group)).collect::<Result<Vec<_>>>()?;
            let down = self.stack(count, &[down])?;
            let order = Tensor::arange(0, config.used as u32, self.device)?;
            return Ok(ExpertMatrices::Stacked(ExpertStacks { gate_up, down, activation, order }));
        }
        let mut mlps = Vec::with_capacity(count);
        for expert in 0..count {
            let linears = gate_up.iter().map(|group| self.expert(expert, group));
            let linears = linears.collect::<Result<Vec<_>>>()?;
            mlps.push(mlp(linears, self.expert(expert, std::slice::from_ref(&down))?, activation)?);
        }
        Ok(ExpertMatrices::Separate(mlps))
    }

    /// Loads the joined rows of one expert's projections.
    fn expert(&mut self, expert: usize, group: &[Projection]) -> Result<Linear> {
        let pieces: Vec<Piece> =
            group.iter().filter_map(|projection| projection.pieces.get(expert)).cloned().collect();
        let matrix = self.matrix(&pieces, &[rows(group), columns(group)])?;
        Ok(Linear::new(matrix, None, self.dtype))
    }

    /// Loads a stack of the joined rows of each expert's projections, (experts, rows, columns).
    #[cfg(feature = "rocm")]
    fn stack(&mut self, count: usize, group: &[Projection]) -> Result<Matrix> {
        let of_expert = |expert: usize| group.iter().filter_map(move |all| all.pieces.get(expert)).cloned();
        let pieces: Vec<Piece> = (0..count).flat_map(of_expert).collect();
        self.matrix(&pieces, &[count, rows(group), columns(group)])
    }

    /// Finds the matrices of a projection of shape (rows, columns), one tensor for each expert in safetensors, and one
    /// for all of them in GGUF.
    fn projection(
        &self,
        layer: usize,
        config: &ExpertsConfig,
        (safetensors, gguf): (&str, &str),
        [rows, columns]: [usize; 2],
    ) -> Result<Projection> {
        let (count, block) = (config.count, config.names.block);
        let pieces: Vec<Piece> = match &self.prefix {
            Some(_) => {
                let name = |expert| format!("{block}.experts.{expert}.{safetensors}");
                let piece = |expert| (self.layer_name(layer, (&name(expert), gguf), "weight"), 0..rows);
                (0..count).map(piece).collect()
            }
            None => {
                let name = self.layer_name(layer, (safetensors, gguf), "weight");
                self.check(&name, &[count, rows, columns])?;
                (0..count).map(|expert| (name.clone(), expert..expert + 1)).collect()
            }
        };
        let (first, _) = pieces.first().context("internal error: a layer without experts")?;
        let format = self.files.location(first)?.format;
        for (name, _) in pieces.iter().filter(|_| self.prefix.is_some()) {
            self.check(name, &[rows, columns])?;
            let location = self.files.location(name)?;
            ensure!(
                location.format == format,
                "{}: tensor '{name}' is {:?}, but '{first}' is {format:?}; experts of a layer must have one format",
                self.files.file_of(location).display(),
                location.format
            );
        }
        Ok(Projection { pieces, format, rows, columns })
    }

    fn shared_expert(
        &mut self,
        layer: usize,
        config: &ExpertsConfig,
        [hidden, width]: [usize; 2],
        activation: Activation,
    ) -> Result<SharedExpert> {
        let names = config.names;
        let name = |this: &Self, part: &str, gguf: &str| {
            this.layer_name(layer, (&format!("{}.{part}", names.block), gguf), "weight")
        };
        let projection = |this: &Self, part: &str, gguf: &str, [rows, columns]: [usize; 2]| {
            let name = name(this, &format!("shared_expert.{part}"), gguf);
            this.check(&name, &[rows, columns])?;
            let format = this.files.location(&name)?.format;
            Ok::<_, anyhow::Error>(Projection { pieces: vec![(name, 0..rows)], format, rows, columns })
        };
        let gate = projection(self, names.gate, "ffn_gate_shexp", [width, hidden])?;
        let up = projection(self, names.up, "ffn_up_shexp", [width, hidden])?;
        let down = projection(self, names.down, "ffn_down_shexp", [hidden, width])?;
        let groups = joined(gate, up);
        let linears = groups.iter().map(|group| self.expert(0, group)).collect::<Result<Vec<_>>>()?;
        let mlp = mlp(linears, self.expert(0, &[down])?, activation)?;
        let name = name(self, "shared_expert_gate", "ffn_gate_inp_shexp");
        // Converters to GGUF drop the dimension of size 1.
        let shape: &[usize] = if self.prefix.is_some() { &[1, hidden] } else { &[hidden] };
        self.check(&name, shape)?;
        let gate = self.floats(&[(name, 0..shape[0])], &[1, hidden], self.dtype)?;
        Ok(SharedExpert { mlp, gate: Linear::new(Matrix::Float(gate), None, self.dtype) })
    }
}

/// Groups the projections whose rows can be joined.
fn joined(gate: Projection, up: Projection) -> Vec<Vec<Projection>> {
    match gate.format == up.format {
        true => vec![vec![gate, up]],
        false => vec![vec![gate], vec![up]],
    }
}

/// Returns the number of joined rows of a group.
fn rows(group: &[Projection]) -> usize {
    group.iter().map(|projection| projection.rows).sum()
}

/// Returns the number of columns of a group.
fn columns(group: &[Projection]) -> usize {
    group.first().map_or(0, |projection| projection.columns)
}
