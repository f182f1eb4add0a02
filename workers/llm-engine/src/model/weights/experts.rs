//! Loading of mixtures of experts.
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};

use super::{Matrix, Piece, Weights};
use crate::model::config::{Activation, ExpertsConfig, Projections, Routing};
use crate::model::experts::{ExpertMatrices, Experts, SharedExpert, mlp};
use crate::model::files::Format;
use crate::model::layers::{Linear, Norm};
#[cfg(feature = "rocm")]
use crate::model::stacks::ExpertStacks;

/// Names of the projection to the inputs of experts that have another width than the states, in safetensors and in GGUF.
const LATENT_DOWN: (&str, &str) = ("mixer.fc1_latent_proj", "ffn_latent_down");
/// Names of the projection of their outputs.
const LATENT_UP: (&str, &str) = ("mixer.fc2_latent_proj", "ffn_latent_up");

/// Dimension of a matrix that is divided among ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Divided {
    Rows,
    Columns,
}

/// This rank's part of a matrix of an expert, as it is stored.
#[derive(Clone, Copy)]
struct StoredPart {
    rows: usize,
    columns: usize,
    divided: Divided,
    /// Number of such matrices whose rows are joined.
    joined: usize,
}

impl StoredPart {
    fn new([rows, columns]: [usize; 2], divided: Divided) -> Self {
        Self { rows, columns, divided, joined: 1 }
    }

    /// Returns the part of the transposed matrix.
    fn transposed(self) -> Self {
        let divided = match self.divided {
            Divided::Rows => Divided::Columns,
            Divided::Columns => Divided::Rows,
        };
        Self { rows: self.columns, columns: self.rows, divided, ..self }
    }

    /// Returns the shape of the joined matrices of `ranks` ranks.
    fn whole(self, ranks: usize) -> [usize; 2] {
        match self.divided {
            Divided::Rows => [self.joined * self.rows * ranks, self.columns],
            Divided::Columns => [self.joined * self.rows, self.columns * ranks],
        }
    }
}

/// A projection of all experts.
struct Projection {
    /// Matrix of each expert.
    pieces: Vec<Vec<Piece>>,
    /// Format of all of them.
    format: Format,
    /// Number of rows of a matrix.
    rows: usize,
    /// Number of columns of a matrix.
    columns: usize,
    /// Order of a matrix's elements in its file.
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
    /// Returns the bytes of a matrix in row order, gate first. `size` is the size of an element, if it is transposed.
    fn to_row_order(self, bytes: Vec<u8>, rows: usize, size: usize) -> Vec<u8> {
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
        states: usize,
        activation: Activation,
    ) -> Result<Experts> {
        let ExpertsConfig { count, intermediate, names, .. } = *config;
        let hidden = config.latent.unwrap_or(states);
        let router = self.layer_name(layer, (names.router, "ffn_gate_inp"), "weight");
        self.check(&router, &[count, states])?;
        let router = self.matrix(&[Piece::rows(router, 0..count, states)], &[count, states])?;
        let bias = match config.biases {
            true => Some(
                self.vector_named(&self.layer_name(layer, (names.router, "ffn_gate_inp"), "bias"), count)?,
            ),
            false => None,
        };
        let router = Linear::new(router, bias, DType::F32);
        let (gate_up, down) = match names.projections {
            Projections::Stacked([gate_up, down]) if self.prefix.is_some() => {
                let stack = |part: &str, stored| {
                    let name = format!("{}.{part}", names.experts);
                    self.stacked(self.layer_name(layer, (&name, ""), "weight"), count, stored)
                };
                let both = StoredPart { joined: 2, ..StoredPart::new([intermediate, hidden], Divided::Rows) };
                let down = stack(down, StoredPart::new([hidden, intermediate], Divided::Columns))?;
                (vec![vec![stack(gate_up, both)?]], down)
            }
            Projections::Interleaved([gate_up, down]) if self.prefix.is_some() => {
                let stack = |part: &str, stored: StoredPart, alternates| {
                    let name = format!("{}.{part}", names.experts);
                    let name = self.layer_name(layer, (&name, ""), "");
                    let name = name.trim_end_matches('.').to_owned();
                    let transposed = matches!(self.files.location(&name)?.format, Format::Floats(_));
                    let StoredPart { rows, columns, .. } = stored;
                    let order = Order { alternates, transposed };
                    let stored = if transposed { stored.transposed() } else { stored };
                    let projection = self.stacked(name, count, stored)?;
                    Ok::<_, anyhow::Error>(Projection { rows, columns, order, ..projection })
                };
                let gate_up =
                    stack(gate_up, StoredPart::new([2 * intermediate, hidden], Divided::Rows), true)?;
                let columns = StoredPart::new([hidden, intermediate], Divided::Columns);
                (vec![vec![gate_up]], stack(down, columns, false)?)
            }
            Projections::Stacked(_) | Projections::Interleaved(_) => {
                self.projections(layer, config, [""; 3], hidden)?
            }
            Projections::Ungated([up, down]) => {
                let stored = StoredPart::new([intermediate, hidden], Divided::Rows);
                let up = self.projection(layer, config, (up, "ffn_up_exps"), stored)?;
                let stored = StoredPart::new([hidden, intermediate], Divided::Columns);
                (vec![vec![up]], self.projection(layer, config, (down, "ffn_down_exps"), stored)?)
            }
            Projections::Separate(parts) => match self.joined_projections(layer, config, hidden)? {
                Some(joined) => joined,
                None => self.projections(layer, config, parts, hidden)?,
            },
        };
        let biases = match config.biases {
            true => Some(self.expert_biases(layer, config, hidden)?),
            false => None,
        };
        let matrices = self.expert_matrices(config, &gate_up, down, biases, activation)?;
        let shared = match config.shared_intermediate {
            Some(width) => Some(self.shared_expert(layer, config, [states, width], activation)?),
            None => None,
        };
        let mut latent = |names, rows, width| {
            let name = self.layer_name(layer, names, "").trim_end_matches('.').to_owned();
            self.linear_named(&[name], rows, width, false)
        };
        let latent = match config.latent {
            Some(width) => Some([latent(LATENT_DOWN, width, states)?, latent(LATENT_UP, states, width)?]),
            None => None,
        };
        let correction = match config.routing {
            Routing::Sigmoid { .. } | Routing::CorrectedSoftmax => {
                let name = match self.layer_prefix(layer) {
                    Some(prefix) => format!("{prefix}{}", names.correction),
                    None => format!("blk.{layer}.exp_probs_b.bias"),
                };
                // ERNIE's files have one row.
                Some(match self.files.location(&name)?.shape.len() {
                    2 => self.row(Some(&name), false, 0, count)?.squeeze(0)?,
                    _ => self.vector_named(&name, count)?,
                })
            }
            _ => None,
        };
        let ExpertsConfig { used, routing, scale, groups, .. } = *config;
        let (router_norm, factors) = (None, None);
        Ok(Experts {
            router,
            router_norm,
            factors,
            used,
            routing,
            scale,
            groups,
            correction,
            latent,
            matrices,
            shared,
        })
    }

    /// Loads the norm of the router's input and the factors of the experts' weights, (experts), of a layer that has them.
    pub fn router_factors(
        &mut self,
        layer: usize,
        config: &ExpertsConfig,
        hidden: usize,
        eps: f64,
    ) -> Result<(Norm, Tensor)> {
        let [scale, factors] = match &self.prefix {
            Some(prefix) => {
                ["scale", "per_expert_scale"].map(|part| format!("{prefix}layers.{layer}.router.{part}"))
            }
            None => ["ffn_gate_inp", "ffn_down_exps"].map(|part| format!("blk.{layer}.{part}.scale")),
        };
        let scale = self.vector_named(&scale, hidden)?;
        let norm = Norm::rms((scale * (hidden as f64).powf(-0.5))?, false, eps, self.dtype)?;
        Ok((norm, self.vector_named(&factors, config.count)?))
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
            let is_gated = config.names.are_gated();
            let stacks = ExpertStacks { gate_up, down, biases, activation, is_gated, order, experts: count };
            return Ok(ExpertMatrices::Stacked(stacks));
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
                (activation, config.names.are_gated()),
            )?);
        }
        Ok(ExpertMatrices::Separate(mlps))
    }

    /// Loads the biases of gate and up, joined, and of down, (experts, rows) each.
    fn expert_biases(&mut self, layer: usize, config: &ExpertsConfig, hidden: usize) -> Result<[Tensor; 2]> {
        let (count, inner, prefix) = (config.count, config.intermediate, self.prefix.clone());
        let mut load = |name: String, width: usize| {
            self.check(&name, &[count, width * self.part.ranks()])?;
            let piece =
                Piece { name, rows: 0..count, columns: self.part.own(width), in_order: false, factor: 1.0 };
            self.floats(&[piece], &[count, width], self.dtype)
        };
        let names = config.names;
        let (gate_up, down) = match (&names.projections, prefix) {
            (Projections::Interleaved([gate_up, down]), Some(prefix)) => {
                let name = |part: &str| format!("{prefix}layers.{layer}.{}.{part}_bias", names.experts);
                let gate_up = load(name(gate_up), 2 * inner)?.reshape((count, inner, 2))?.transpose(1, 2)?;
                (gate_up.reshape((count, 2 * inner))?, name(down))
            }
            _ => {
                let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.bias");
                let gate_up = [load(name("gate"), inner)?, load(name("up"), inner)?];
                (Tensor::cat(&gate_up, 1)?, name("down"))
            }
        };
        self.check(&down, &[count, hidden])?;
        let down = self.floats(&[Piece::rows(down, 0..count, hidden)], &[count, hidden], self.dtype)?;
        // The outputs of the ranks are summed.
        let down = if self.part.is_first() { down } else { down.zeros_like()? };
        Ok([gate_up, down])
    }

    /// Loads a matrix from pieces of a group of projections.
    fn pieces(&mut self, group: &[Projection], pieces: &[Piece], shape: &[usize]) -> Result<Matrix> {
        // Only projections that are not joined have an order of their own.
        let first = group.first().context("internal error: a product of no projections")?;
        let size = match first.format {
            Format::Floats(dtype) => dtype.size_in_bytes(),
            Format::Blocks(_) => 1,
        };
        let to_row_order = |bytes| first.order.to_row_order(bytes, first.rows, size);
        let is_reordered = first.order.alternates || first.order.transposed;
        self.matrix_of(pieces, shape, if is_reordered { Some(&to_row_order) } else { None })
    }

    /// Loads the joined rows of one expert's projections.
    fn expert(&mut self, expert: usize, group: &[Projection], bias: Option<Tensor>) -> Result<Linear> {
        let pieces: Vec<Piece> =
            group.iter().filter_map(|projection| projection.pieces.get(expert)).flatten().cloned().collect();
        let matrix = self.pieces(group, &pieces, &[rows(group), columns(group)])?;
        Ok(Linear::new(matrix, bias, self.dtype))
    }

    /// Loads a stack of the joined rows of each expert's projections, (experts, rows, columns).
    #[cfg(feature = "rocm")]
    fn stack(&mut self, count: usize, group: &[Projection]) -> Result<Matrix> {
        let of_expert =
            |expert: usize| group.iter().filter_map(move |all| all.pieces.get(expert)).flatten().cloned();
        let pieces: Vec<Piece> = (0..count).flat_map(of_expert).collect();
        self.pieces(group, &pieces, &[count, rows(group), columns(group)])
    }

    /// Finds the stacks of gate and up, joined, and of down, if files have them instead of other matrices. Some files have them
    /// transposed.
    fn joined_projections(
        &self,
        layer: usize,
        config: &ExpertsConfig,
        hidden: usize,
    ) -> Result<Option<(Vec<Vec<Projection>>, Projection)>> {
        let name = |part, gguf| match self.layer_prefix(layer) {
            Some(prefix) => format!("{prefix}{}.{part}", config.names.experts),
            None => format!("blk.{layer}.{gguf}.weight"),
        };
        let (gate_up, inner) = (name("gate_up_proj", "ffn_gate_up_exps"), config.intermediate);
        if self.files.location(&gate_up).is_err() {
            return Ok(None);
        }
        let (down, ranks) = (name("down_proj", "ffn_down_exps"), self.part.ranks());
        let own_down = StoredPart::new([hidden, inner], Divided::Columns);
        let location = self.files.location(&gate_up)?;
        let are_floats = matches!(location.format, Format::Floats(_));
        if are_floats && 2 * inner != hidden && location.shape == [config.count, hidden, 2 * inner] {
            ensure!(
                ranks == 1,
                "{}: tensor '{gate_up}' is transposed, so that {ranks} GPUs cannot divide it; use one GPU",
                self.files.file_of(location).display()
            );
            let stack = |name, [rows, columns]: [usize; 2]| {
                let stored = StoredPart::new([columns, rows], Divided::Rows);
                let order = Order { alternates: false, transposed: true };
                let projection = self.stacked(name, config.count, stored)?;
                Ok::<_, anyhow::Error>(Projection { rows, columns, order, ..projection })
            };
            let gate_up = stack(gate_up, [2 * inner, hidden])?;
            return Ok(Some((vec![vec![gate_up]], stack(down, [hidden, inner])?)));
        }
        let both = StoredPart { joined: 2, ..StoredPart::new([inner, hidden], Divided::Rows) };
        let gate_up = self.stacked(gate_up, config.count, both)?;
        Ok(Some((vec![vec![gate_up]], self.stacked(down, config.count, own_down)?)))
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
        let stored = StoredPart::new([inner, hidden], Divided::Rows);
        let gate = self.projection(layer, config, (gate, "ffn_gate_exps"), stored)?;
        let up = self.projection(layer, config, (up, "ffn_up_exps"), stored)?;
        let stored = StoredPart::new([hidden, inner], Divided::Columns);
        let down = self.projection(layer, config, (down, "ffn_down_exps"), stored)?;
        Ok((joined(gate, up), down))
    }

    /// Finds the matrices of a projection, one tensor for each expert in safetensors, and one for all of them in GGUF.
    fn projection(
        &self,
        layer: usize,
        config: &ExpertsConfig,
        (safetensors, gguf): (&str, &str),
        stored: StoredPart,
    ) -> Result<Projection> {
        if self.prefix.is_none() {
            return self.stacked(self.layer_name(layer, ("", gguf), "weight"), config.count, stored);
        }
        let name = |expert| {
            let name = format!("{}.{expert}.{safetensors}", config.names.experts);
            self.layer_name(layer, (&name, gguf), "weight")
        };
        let first = name(0);
        let format = self.files.location(&first)?.format;
        let mut pieces = Vec::with_capacity(config.count);
        for name in (0..config.count).map(name) {
            self.check(&name, &stored.whole(self.part.ranks()))?;
            let location = self.files.location(&name)?;
            ensure!(
                location.format == format,
                "{}: tensor '{name}' is {:?}, but '{first}' is {format:?}; experts of a layer must have one format",
                self.files.file_of(location).display(),
                location.format
            );
            pieces.push(self.expert_pieces(&name, 0, stored)?);
        }
        Ok(Projection { pieces, format, rows: stored.rows, columns: stored.columns, order: Order::default() })
    }

    /// Finds the matrices of a stack (experts, rows, columns).
    fn stacked(&self, name: String, count: usize, stored: StoredPart) -> Result<Projection> {
        let [rows, columns] = stored.whole(self.part.ranks());
        self.check(&name, &[count, rows, columns])?;
        let format = self.files.location(&name)?.format;
        let pieces = (0..count).map(|expert| self.expert_pieces(&name, expert, stored));
        let (pieces, rows) = (pieces.collect::<Result<_>>()?, stored.joined * stored.rows);
        Ok(Projection { pieces, format, rows, columns: stored.columns, order: Order::default() })
    }

    /// Returns this rank's pieces of the matrices of an expert, which is number `expert` in the tensor `name`.
    fn expert_pieces(&self, name: &str, expert: usize, stored: StoredPart) -> Result<Vec<Piece>> {
        let StoredPart { rows, columns, divided, joined } = stored;
        let [whole, _] = stored.whole(self.part.ranks());
        let (first, columns) = match divided {
            Divided::Rows => (self.part.own(rows).start, 0..columns),
            Divided::Columns => (0, self.own_columns(name, columns)?),
        };
        let piece = |number: usize| {
            let first = expert * whole + number * (whole / joined) + first;
            Piece {
                name: name.to_owned(),
                rows: first..first + rows,
                columns: columns.clone(),
                in_order: false,
                factor: 1.0,
            }
        };
        Ok((0..joined).map(piece).collect())
    }

    fn shared_expert(
        &mut self,
        layer: usize,
        config: &ExpertsConfig,
        [hidden, width]: [usize; 2],
        activation: Activation,
    ) -> Result<SharedExpert> {
        let names = config.names;
        let projection = |this: &Self, part: &str, gguf: &str, stored: StoredPart| {
            let name = this.layer_name(layer, (&format!("{}.{part}", names.shared), gguf), "weight");
            this.check(&name, &stored.whole(this.part.ranks()))?;
            let format = this.files.location(&name)?.format;
            let pieces = vec![this.expert_pieces(&name, 0, stored)?];
            let (rows, columns) = (stored.joined * stored.rows, stored.columns);
            Ok::<_, anyhow::Error>(Projection { pieces, format, rows, columns, order: Order::default() })
        };
        let inner = StoredPart::new([width, hidden], Divided::Rows);
        let (parts, is_joined) = match names.projections {
            Projections::Separate(parts) => (parts, false),
            Projections::Ungated([up, down]) => ([up, up, down], false),
            Projections::Stacked([gate_up, down]) | Projections::Interleaved([gate_up, down]) => {
                ([gate_up, gate_up, down], self.prefix.is_some())
            }
        };
        let [gate, up, down] = parts;
        let groups = match is_joined {
            true => vec![vec![projection(self, gate, "", StoredPart { joined: 2, ..inner })?]],
            false if !names.are_gated() => vec![vec![projection(self, up, "ffn_up_shexp", inner)?]],
            false => joined(
                projection(self, gate, "ffn_gate_shexp", inner)?,
                projection(self, up, "ffn_up_shexp", inner)?,
            ),
        };
        let outer = StoredPart::new([hidden, width], Divided::Columns);
        let down = projection(self, down, "ffn_down_shexp", outer)?;
        let linears = groups.iter().map(|group| self.expert(0, group, None)).collect::<Result<Vec<_>>>()?;
        let activation = (activation, names.are_gated());
        let mlp = mlp(linears, self.expert(0, &[down], None)?, activation)?;
        let Some(gate) = names.shared_gate else { return Ok(SharedExpert { mlp, gate: None }) };
        let name = self.layer_name(layer, (gate, "ffn_gate_inp_shexp"), "weight");
        // Converters to GGUF drop the dimension of size 1.
        let shape: &[usize] = if self.prefix.is_some() { &[1, hidden] } else { &[hidden] };
        self.check(&name, shape)?;
        let gate = self.floats(&[Piece::rows(name, 0..1, hidden)], &[1, hidden], self.dtype)?;
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
