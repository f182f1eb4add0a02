//! Loading of mixtures of experts.
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};

use super::{Matrix, Weights};
use crate::model::config::{Activation, ExpertsConfig, Projections, Routing};
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
    /// Order of a matrix' elements in its file.
    order: Order,
}

/// Order of the elements of a matrix in its file.
#[derive(Clone, Copy, Default)]
struct Order {
    /// If true, rows of gate and up alternate.
    alternates: bool,
    /// If true, it is transposed.
    transposed: bool,
}

impl Order {
    /// Returns the bytes of a matrix by rows, those of the gate first. `size` is that of an element if it is transposed.
    fn undo(self, bytes: Vec<u8>, rows: usize, size: usize) -> Vec<u8> {
        if !self.alternates && !self.transposed {
            return bytes;
        }
        let row_bytes = bytes.len() / rows;
        let source = |row: usize| match self.alternates {
            true => row % (rows / 2) * 2 + row / (rows / 2),
            false => row,
        };
        let mut out = Vec::with_capacity(bytes.len());
        for row in (0..rows).map(source) {
            match self.transposed {
                true => {
                    let columns = row_bytes / size;
                    out.extend(
                        (0..columns).flat_map(|column| &bytes[(column * rows + row) * size..][..size]),
                    );
                }
                false => out.extend(&bytes[row * row_bytes..][..row_bytes]),
            }
        }
        out
    }
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
        let router = self.layer_name(layer, (names.router, "ffn_gate_inp"), "weight");
        self.check(&router, &[count, hidden])?;
        let router = self.matrix(&[(router, 0..count)], &[count, hidden])?;
        let bias = match config.biases {
            true => Some(
                self.vector_named(&self.layer_name(layer, (names.router, "ffn_gate_inp"), "bias"), count)?,
            ),
            false => None,
        };
        let router = Linear::new(router, bias, DType::F32);
        let (gate_up, down) = match names.projections {
            Projections::Stacked([gate_up, down]) if self.prefix.is_some() => {
                let stack = |part: &str, rows, columns| {
                    let name = format!("{}.{part}", names.experts);
                    self.stacked(self.layer_name(layer, (&name, ""), "weight"), count, [rows, columns])
                };
                (vec![vec![stack(gate_up, 2 * intermediate, hidden)?]], stack(down, hidden, intermediate)?)
            }
            Projections::Interleaved([gate_up, down]) if self.prefix.is_some() => {
                let stack = |part: &str, [rows, columns]: [usize; 2], alternates| {
                    let name = format!("{}.{part}", names.experts);
                    let name = self.layer_name(layer, (&name, ""), "");
                    let name = name.trim_end_matches('.').to_owned();
                    let transposed = matches!(self.files.location(&name)?.format, Format::Floats(_));
                    let dims = if transposed { [columns, rows] } else { [rows, columns] };
                    let order = Order { alternates, transposed };
                    Ok::<_, anyhow::Error>(Projection {
                        rows,
                        columns,
                        order,
                        ..self.stacked(name, count, dims)?
                    })
                };
                let gate_up = stack(gate_up, [2 * intermediate, hidden], true)?;
                (vec![vec![gate_up]], stack(down, [hidden, intermediate], false)?)
            }
            Projections::Stacked(_) | Projections::Interleaved(_) => {
                self.projections(layer, config, [""; 3], hidden)?
            }
            Projections::Separate(parts) => self.projections(layer, config, parts, hidden)?,
        };
        let biases = match config.biases {
            true => Some(self.expert_biases(layer, config, hidden)?),
            false => None,
        };
        let matrices = self.expert_matrices(config, &gate_up, down, biases, activation)?;
        let shared = match config.shared_intermediate {
            Some(width) => Some(self.shared_expert(layer, config, [hidden, width], activation)?),
            None => None,
        };
        let correction = match config.routing {
            Routing::Sigmoid { .. } => {
                let name = match &self.prefix {
                    Some(prefix) => {
                        format!("{prefix}layers.{layer}.{}.e_score_correction_bias", names.router)
                    }
                    None => format!("blk.{layer}.exp_probs_b.bias"),
                };
                Some(self.vector_named(&name, count)?)
            }
            _ => None,
        };
        let ExpertsConfig { used, routing, scale, groups, .. } = *config;
        Ok(Experts { router, used, routing, scale, groups, correction, matrices, shared })
    }

    fn expert_matrices(
        &mut self,
        config: &ExpertsConfig,
        gate_up: &[Vec<Projection>],
        down: Projection,
        biases: Option<[Tensor; 2]>,
        activation: Activation,
    ) -> Result<ExpertMatrices> {
        let count = config.count;
        #[cfg(feature = "rocm")]
        if self.device.is_rocm() {
            let gate_up = gate_up.iter().map(|group| self.stack(count, group)).collect::<Result<Vec<_>>>()?;
            let down = self.stack(count, &[down])?;
            let order = Tensor::arange(0, config.used as u32, self.device)?;
            return Ok(ExpertMatrices::Stacked(ExpertStacks { gate_up, down, biases, activation, order }));
        }
        let mut mlps = Vec::with_capacity(count);
        for expert in 0..count {
            let [gate_up_bias, down_bias] = match &biases {
                Some(biases) => biases.each_ref().map(|bias| Some(bias.get(expert))),
                None => [None, None],
            };
            let (gate_up_bias, down_bias) = (gate_up_bias.transpose()?, down_bias.transpose()?);
            let (mut linears, mut first) = (Vec::new(), 0);
            for group in gate_up {
                let bias =
                    gate_up_bias.as_ref().map(|bias| bias.narrow(0, first, rows(group))).transpose()?;
                linears.push(self.expert(expert, group, bias)?);
                first += rows(group);
            }
            mlps.push(mlp(
                linears,
                self.expert(expert, std::slice::from_ref(&down), down_bias)?,
                activation,
            )?);
        }
        Ok(ExpertMatrices::Separate(mlps))
    }

    /// Loads the biases of gate and up, joined, and of down, (experts, rows) each.
    fn expert_biases(&mut self, layer: usize, config: &ExpertsConfig, hidden: usize) -> Result<[Tensor; 2]> {
        let (count, inner, prefix) = (config.count, config.intermediate, self.prefix.clone());
        let mut load = |name: String, width: usize| {
            self.check(&name, &[count, width])?;
            self.floats(&[(name, 0..count)], &[count, width], self.dtype)
        };
        let names = config.names;
        match (&names.projections, prefix) {
            (Projections::Interleaved([gate_up, down]), Some(prefix)) => {
                let name = |part: &str| format!("{prefix}layers.{layer}.{}.{part}_bias", names.experts);
                let gate_up = load(name(gate_up), 2 * inner)?.reshape((count, inner, 2))?.transpose(1, 2)?;
                Ok([gate_up.reshape((count, 2 * inner))?, load(name(down), hidden)?])
            }
            _ => {
                let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.bias");
                let gate_up = [load(name("gate"), inner)?, load(name("up"), inner)?];
                Ok([Tensor::cat(&gate_up, 1)?, load(name("down"), hidden)?])
            }
        }
    }

    /// Loads a matrix from pieces of a group of projections.
    fn pieces(&mut self, group: &[Projection], pieces: &[Piece], shape: &[usize]) -> Result<Matrix> {
        // Only projections that are not joined have an order of their own.
        let first = group.first().context("internal error: a product of no projections")?;
        let size = match first.format {
            Format::Floats(dtype) => dtype.size_in_bytes(),
            Format::Blocks(_) => 1,
        };
        self.matrix_of(pieces, shape, &|bytes| first.order.undo(bytes, first.rows, size))
    }

    /// Loads the joined rows of one expert's projections.
    fn expert(&mut self, expert: usize, group: &[Projection], bias: Option<Tensor>) -> Result<Linear> {
        let pieces: Vec<Piece> =
            group.iter().filter_map(|projection| projection.pieces.get(expert)).cloned().collect();
        let matrix = self.pieces(group, &pieces, &[rows(group), columns(group)])?;
        Ok(Linear::new(matrix, bias, self.dtype))
    }

    /// Loads a stack of the joined rows of each expert's projections, (experts, rows, columns).
    #[cfg(feature = "rocm")]
    fn stack(&mut self, count: usize, group: &[Projection]) -> Result<Matrix> {
        let of_expert = |expert: usize| group.iter().filter_map(move |all| all.pieces.get(expert)).cloned();
        let pieces: Vec<Piece> = (0..count).flat_map(of_expert).collect();
        self.pieces(group, &pieces, &[count, rows(group), columns(group)])
    }

    /// Finds the projections of all experts: gate and up, joined if possible, and down. `parts` are their names in
    /// safetensors.
    fn projections(
        &self,
        layer: usize,
        config: &ExpertsConfig,
        [gate, up, down]: [&str; 3],
        hidden: usize,
    ) -> Result<(Vec<Vec<Projection>>, Projection)> {
        let inner = config.intermediate;
        let gate = self.projection(layer, config, (gate, "ffn_gate_exps"), [inner, hidden])?;
        let up = self.projection(layer, config, (up, "ffn_up_exps"), [inner, hidden])?;
        let down = self.projection(layer, config, (down, "ffn_down_exps"), [hidden, inner])?;
        Ok((joined(gate, up), down))
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
        if self.prefix.is_none() {
            return self.stacked(self.layer_name(layer, ("", gguf), "weight"), config.count, [rows, columns]);
        }
        let name = |expert| {
            let name = format!("{}.{expert}.{safetensors}", config.names.experts);
            self.layer_name(layer, (&name, gguf), "weight")
        };
        let pieces: Vec<Piece> = (0..config.count).map(|expert| (name(expert), 0..rows)).collect();
        let (first, _) = pieces.first().context("internal error: a layer without experts")?;
        let format = self.files.location(first)?.format;
        for (name, _) in &pieces {
            self.check(name, &[rows, columns])?;
            let location = self.files.location(name)?;
            ensure!(
                location.format == format,
                "{}: tensor '{name}' is {:?}, but '{first}' is {format:?}; experts of a layer must have one format",
                self.files.file_of(location).display(),
                location.format
            );
        }
        Ok(Projection { pieces, format, rows, columns, order: Order::default() })
    }

    /// Finds the matrices of a stack (experts, rows, columns).
    fn stacked(&self, name: String, count: usize, [rows, columns]: [usize; 2]) -> Result<Projection> {
        self.check(&name, &[count, rows, columns])?;
        let format = self.files.location(&name)?.format;
        let pieces = (0..count).map(|expert| (name.clone(), expert..expert + 1)).collect();
        Ok(Projection { pieces, format, rows, columns, order: Order::default() })
    }

    fn shared_expert(
        &mut self,
        layer: usize,
        config: &ExpertsConfig,
        [hidden, width]: [usize; 2],
        activation: Activation,
    ) -> Result<SharedExpert> {
        let names = config.names;
        let projection = |this: &Self, part: &str, gguf: &str, [rows, columns]: [usize; 2]| {
            let name = this.layer_name(layer, (&format!("{}.{part}", names.shared), gguf), "weight");
            this.check(&name, &[rows, columns])?;
            let format = this.files.location(&name)?.format;
            let pieces = vec![(name, 0..rows)];
            Ok::<_, anyhow::Error>(Projection { pieces, format, rows, columns, order: Order::default() })
        };
        let (parts, is_joined) = match names.projections {
            Projections::Separate(parts) => (parts, false),
            Projections::Stacked([gate_up, down]) | Projections::Interleaved([gate_up, down]) => {
                ([gate_up, gate_up, down], self.prefix.is_some())
            }
        };
        let [gate, up, down] = parts;
        let groups = match is_joined {
            true => vec![vec![projection(self, gate, "", [2 * width, hidden])?]],
            false => joined(
                projection(self, gate, "ffn_gate_shexp", [width, hidden])?,
                projection(self, up, "ffn_up_shexp", [width, hidden])?,
            ),
        };
        let down = projection(self, down, "ffn_down_shexp", [hidden, width])?;
        let linears = groups.iter().map(|group| self.expert(0, group, None)).collect::<Result<Vec<_>>>()?;
        let mlp = mlp(linears, self.expert(0, &[down], None)?, activation)?;
        let Some(gate) = names.shared_gate else { return Ok(SharedExpert { mlp, gate: None }) };
        let name = self.layer_name(layer, (gate, "ffn_gate_inp_shexp"), "weight");
        // Converters to GGUF drop the dimension of size 1.
        let shape: &[usize] = if self.prefix.is_some() { &[1, hidden] } else { &[hidden] };
        self.check(&name, shape)?;
        let gate = self.floats(&[(name, 0..shape[0])], &[1, hidden], self.dtype)?;
        Ok(SharedExpert { mlp, gate: Some(Linear::new(Matrix::Float(gate), None, self.dtype)) })
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
