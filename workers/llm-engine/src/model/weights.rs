//! Loading of a decoder's weights by role. Errors name the file and the tensor.
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
#[cfg(feature = "rocm")]
use candle_core::quantized::rocm::read_quantized;
use candle_core::quantized::{QMatMul, QTensor, ggml_file};
#[cfg(feature = "rocm")]
use candle_core::rocm;
use candle_core::{DType, Device, Tensor};

use super::config::NormKind;
use super::files::{Description, Format, ModelFiles};
use super::layers::{Embedding, Linear, Matrix, Norm};
use super::part::{Part, TensorRows};
use super::roles::Role;

mod delta;
mod experts;
mod latent;
mod mamba;

/// Prefix in safetensors of a head that predicts further tokens and is a module of its own.
const MTP_MODULE: &str = "mtp.";

/// Elements of a tensor that are read together.
#[derive(Clone, Debug)]
struct Piece {
    name: String,
    rows: Range<usize>,
    columns: Range<usize>,
    /// If true, whole rows are read in the order of [`TensorInfo::ordered`](super::files::TensorInfo::ordered).
    in_order: bool,
    /// Factor of the elements of a matrix of floats.
    factor: f64,
}

impl Piece {
    /// Selects rows of a matrix.
    fn rows(name: String, rows: Range<usize>, width: usize) -> Self {
        Self { name, rows, columns: 0..width, in_order: false, factor: 1.0 }
    }

    /// Selects elements of a vector.
    fn vector(name: String, columns: Range<usize>) -> Self {
        Self { name, rows: 0..1, columns, in_order: false, factor: 1.0 }
    }
}

/// Reads tensors from files and uploads them to a device.
pub struct Weights<'a> {
    files: &'a mut ModelFiles,
    part: Part,
    /// Prefix of tensor names in safetensors; `None` for GGUF.
    prefix: Option<String>,
    /// Prefix of the projection to logits in safetensors.
    head_prefix: String,
    /// Names in safetensors that differ from those of the roles.
    names: &'static [(Role, &'static str)],
    /// Factors of the outputs of projections.
    factors: Vec<(Role, f64)>,
    /// Number of the layer that is in [`MTP_MODULE`] in safetensors.
    mtp_layer: Option<usize>,
    /// Data type of the states.
    dtype: DType,
    /// Data type of float matrices; `None` for the stored one.
    matrices: Option<DType>,
    /// Memory for decoded copies of quantized matrices, and the part of it that is used, in bytes.
    decoded: [usize; 2],
    device: &'a Device,
    progress: &'a mut dyn FnMut(f32),
    read: u64,
    total: u64,
}

impl<'a> Weights<'a> {
    /// Creates a loader for states of type `dtype`, which converts float matrices to `matrices` unless it is `None`.
    /// `progress` receives the fraction that was read, first 0.
    pub fn new(
        files: &'a mut ModelFiles,
        dtype: DType,
        matrices: Option<DType>,
        device: &'a Device,
        progress: &'a mut dyn FnMut(f32),
    ) -> Self {
        // Multimodal models have a longer prefix for their text model.
        let embedding = "embed_tokens.weight";
        let prefix = || first_prefix(files.names(), embedding).unwrap_or("model.");
        let prefix = match &files.description {
            Description::Config(_) => Some(prefix().to_string()),
            Description::Metadata(_) => None,
        };
        // Early checkpoints of multimodal models have such a prefix.
        let head_prefix = first_prefix(files.names(), "lm_head.weight").unwrap_or_default().to_owned();
        files.dequantize_as(matrices.unwrap_or(DType::F32));
        let (part, total) = (Part::whole(), files.bytes().max(1));
        progress(0.0);
        Self {
            files,
            part,
            prefix,
            head_prefix,
            names: &[],
            factors: Vec::new(),
            mtp_layer: None,
            dtype,
            matrices,
            decoded: [0; 2],
            device,
            progress,
            read: 0,
            total,
        }
    }

    /// Reads only a part of the tensors that ranks divide. Sizes are those of the part.
    pub fn with_part(self, part: &Part) -> Self {
        Self { part: part.clone(), total: (self.total / part.ranks() as u64).max(1), ..self }
    }

    /// Keeps decoded copies of the quantized matrices of layers, in the order in which they are loaded, of up to `bytes` together.
    /// Products of many rows read them.
    pub fn with_decoded(self, bytes: usize) -> Self {
        Self { decoded: [bytes, 0], ..self }
    }

    /// Returns the size of the decoded copies in bytes.
    pub fn decoded_bytes(&self) -> usize {
        self.decoded[1]
    }

    /// Returns the part of the model that is read.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Replaces the names of some roles in safetensors.
    pub fn with_names(self, names: &'static [(Role, &'static str)]) -> Self {
        let embedding = names.iter().find(|(role, _)| *role == Role::Embedding);
        let embedding = embedding.map(|(_, embedding)| format!("{embedding}.weight"));
        let prefix = match (&self.prefix, embedding) {
            (Some(_), Some(embedding)) => self.prefix_of(&embedding),
            _ => None,
        };
        Self { names, prefix: prefix.or(self.prefix), ..self }
    }

    /// Multiplies the outputs of some projections, which have no biases.
    pub fn with_factors(self, factors: &[(Role, f64)]) -> Self {
        Self { factors: factors.to_vec(), ..self }
    }

    fn factor(&self, role: Role) -> f64 {
        self.factors.iter().find(|(known, _)| *known == role).map_or(1.0, |(_, factor)| *factor)
    }

    /// Sets the number of the layer of a head that is a module of its own.
    pub fn with_mtp_module(self, layer: Option<usize>) -> Self {
        Self { mtp_layer: layer, ..self }
    }

    /// Returns the prefix of a layer's tensors in safetensors; `None` for GGUF.
    fn layer_prefix(&self, layer: usize) -> Option<String> {
        let prefix = self.prefix.as_ref()?;
        Some(match self.mtp_layer == Some(layer) {
            true => format!("{MTP_MODULE}layers.0."),
            false => format!("{prefix}{}.{layer}.", self.names_of(Role::Layers).0),
        })
    }

    /// Returns the full name of a layer's tensor, from its names in safetensors and in GGUF.
    fn layer_name(&self, layer: usize, (safetensors, gguf): (&str, &str), kind: &str) -> String {
        match self.layer_prefix(layer) {
            Some(prefix) => format!("{prefix}{safetensors}.{kind}"),
            None => format!("{}.{layer}.{gguf}.{kind}", self.names_of(Role::Layers).1),
        }
    }

    /// Returns the names of a role in safetensors and in GGUF.
    fn names_of(&self, role: Role) -> (&'static str, &'static str) {
        let (safetensors, gguf) = role.names();
        let renamed = self.names.iter().find(|(known, _)| *known == role);
        (renamed.map_or(safetensors, |(_, name)| name), gguf)
    }

    /// Checks that the files have a head that predicts further tokens, whose layer has this number.
    pub fn check_mtp(&self, layer: usize) -> Result<()> {
        let name = self.name(Some(layer), Role::MtpInput, "weight");
        let missing = "the files have no head that predicts further tokens (MTP), which many conversions drop; use the original \
                       checkpoint, or the method ngram or draft_model in --speculative-config";
        self.files.location(&name).map(|_| ()).context(missing)
    }

    fn name(&self, layer: Option<usize>, role: Role, kind: &str) -> String {
        let (safetensors, gguf) = self.names_of(role);
        let is_module = layer.is_some() && self.mtp_layer == layer && self.prefix.is_some();
        if let Some(own) = role.name_in_mtp_module().filter(|_| is_module) {
            return format!("{MTP_MODULE}{own}.{kind}");
        }
        match (&self.prefix, layer) {
            (_, Some(layer)) => self.layer_name(layer, (safetensors, gguf), kind),
            (Some(_), None) if role == Role::Head => format!("{}{safetensors}.{kind}", self.head_prefix),
            (Some(prefix), None) => format!("{prefix}{safetensors}.{kind}"),
            (None, None) => format!("{gguf}.{kind}"),
        }
    }

    /// Loads a norm of states of type `dtype`.
    pub fn norm(
        &mut self,
        layer: Option<usize>,
        role: Role,
        width: usize,
        (kind, eps): (NormKind, f64),
    ) -> Result<Norm> {
        let dtype = self.dtype;
        let weight = self.vector_named(&self.name(layer, role, "weight"), width)?;
        Ok(match kind {
            NormKind::Rms => Norm::rms(weight, false, eps, dtype)?,
            NormKind::RmsPlusOne => Norm::rms(weight, true, eps, dtype)?,
            NormKind::Layer { bias: false } => Norm::layer(weight, None, eps, dtype)?,
            NormKind::Layer { bias: true } | NormKind::LayerPlusOne => {
                let weight = if kind == NormKind::LayerPlusOne { (weight + 1.0)? } else { weight };
                let bias = self.vector_named(&self.name(layer, role, "bias"), width)?;
                Norm::layer(weight, Some(bias), eps, dtype)?
            }
        })
    }

    /// Loads this rank's rows of the embedding table (vocabulary, width). The vocabulary size comes from the file.
    pub fn embedding(&mut self, width: usize) -> Result<Embedding> {
        self.table(Role::Embedding, width)
    }

    /// Like [`Self::embedding`], for another table with a row for each token.
    pub fn table(&mut self, role: Role, width: usize) -> Result<Embedding> {
        let name = self.name(None, role, "");
        self.table_named(name.trim_end_matches('.'), width)
    }

    /// Like [`Self::embedding`], for the tensor `{name}.weight`.
    pub fn table_named(&mut self, name: &str, width: usize) -> Result<Embedding> {
        let name = format!("{name}.weight");
        let rows = self.files.location(&name)?.shape.first().copied().unwrap_or(0);
        self.check(&name, &[rows, width])?;
        let rows = self.part.share(rows, "tokens of the vocabulary")?;
        let piece = Piece::rows(name, self.part.own(rows), width);
        Ok(match self.matrix(&[piece], &[rows, width])? {
            Matrix::Float(table) => Embedding::Float(table),
            Matrix::Quantized(table) => Embedding::Quantized(table, rows),
        })
    }

    /// Splits `pieces` into runs whose weights are stored in one format, so that each run can be one product.
    pub fn runs_of_one_format<'p>(
        &self,
        layer: Option<usize>,
        pieces: &'p [TensorRows],
    ) -> Result<Vec<&'p [TensorRows]>> {
        let format_of = |piece: &TensorRows| self.format_of_product(&self.name(layer, piece.role, "weight"));
        let formats = pieces.iter().map(format_of).collect::<Result<Vec<_>>>()?;
        let mut rest = pieces;
        let run = |formats: &[_]| rest.split_off(..formats.len());
        Ok(formats.chunk_by(|one, next| one == next).filter_map(run).collect())
    }

    /// Returns the format in which a product reads the whole rows of a matrix, and the order of its columns, if it has one.
    fn format_of_product(&self, name: &str) -> Result<(Format, Option<Arc<[u32]>>)> {
        let location = self.files.location(name)?;
        let ordered = location.ordered().map(|(format, order)| (format, Some(order.clone())));
        Ok(ordered.unwrap_or((location.format, None)))
    }

    /// Loads a linear layer without a bias from pieces of whole rows. Keeps the order of their columns if it is the same.
    fn product(&mut self, mut pieces: Vec<Piece>, shape: &[usize]) -> Result<Linear> {
        let formats = pieces.iter().map(|piece| self.format_of_product(&piece.name));
        let formats = formats.collect::<Result<Vec<_>>>()?;
        let order = match &formats[..] {
            [(_, Some(order)), rest @ ..] if rest.iter().all(|format| *format == formats[0]) => {
                pieces.iter_mut().for_each(|piece| piece.in_order = true);
                Some(Tensor::new(&order[..], self.device)?)
            }
            _ => None,
        };
        let matrix = self.matrix(&pieces, shape)?;
        Ok(Linear::new(matrix, None, self.dtype).with_input_order(order))
    }

    /// Loads a linear layer from the concatenated rows of `pieces`, each row `width` elements wide, and its
    /// bias if `bias` is set.
    pub fn linear(
        &mut self,
        layer: Option<usize>,
        pieces: &[TensorRows],
        width: usize,
        bias: bool,
    ) -> Result<Linear> {
        let factors: Vec<f64> = pieces.iter().map(|piece| self.factor(piece.role)).collect();
        self.scaled_linear(layer, pieces, &factors, width, bias)
    }

    /// Like [`Self::linear`], and multiplies the rows of each piece by a factor.
    fn scaled_linear(
        &mut self,
        layer: Option<usize>,
        pieces: &[TensorRows],
        factors: &[f64],
        width: usize,
        bias: bool,
    ) -> Result<Linear> {
        let rows = pieces.iter().map(|piece| piece.rows.len()).sum();
        let mut named = Vec::with_capacity(pieces.len());
        for (piece, factor) in pieces.iter().zip(factors) {
            let name = self.name(layer, piece.role, "weight");
            self.check(&name, &[piece.total_rows, width])?;
            named.push(Piece { factor: *factor, ..Piece::rows(name, piece.rows.clone(), width) });
        }
        let linear = self.product(named, &[rows, width])?;
        self.keep_decoded(layer, &linear)?;
        Ok(match bias {
            true => linear.with_bias(self.bias(layer, pieces)?),
            false => linear,
        })
    }

    /// Keeps a decoded copy of a layer's matrix if there is memory for it. The projection to logits has few rows, which products
    /// multiply with the blocks.
    fn keep_decoded(&mut self, layer: Option<usize>, linear: &Linear) -> Result<()> {
        let [max_bytes, used] = self.decoded;
        if layer.is_some() {
            self.decoded[1] += linear.keep_decoded(max_bytes - used)?;
        }
        Ok(())
    }

    /// Loads a linear layer with `rows` output features, of whose input features this rank has `width`. The outputs of the
    /// ranks are to be summed; the first rank adds the bias.
    pub fn linear_of_columns(
        &mut self,
        layer: Option<usize>,
        role: Role,
        [rows, width]: [usize; 2],
        bias: bool,
    ) -> Result<Linear> {
        let name = self.name(layer, role, "weight");
        self.check(&name, &[rows, width * self.part.ranks()])?;
        let columns = self.own_columns(&name, width)?;
        let factor = self.factor(role);
        let linear = match self.part.ranks() {
            1 => {
                let piece = Piece { factor, ..Piece::rows(name, 0..rows, width) };
                self.product(vec![piece], &[rows, width])?
            }
            _ => {
                let piece = Piece { name, rows: 0..rows, columns, in_order: false, factor };
                Linear::new(self.matrix(&[piece], &[rows, width])?, None, self.dtype)
            }
        };
        self.keep_decoded(layer, &linear)?;
        Ok(match bias && self.part.is_first() {
            true => linear.with_bias(self.bias(layer, &[TensorRows::whole(role, rows)])?),
            false => linear,
        })
    }

    /// Returns this rank's columns of a tensor, of which each rank has `width`.
    ///
    /// # Errors
    /// Returns an error if they are parts of blocks.
    fn own_columns(&self, name: &str, width: usize) -> Result<Range<usize>> {
        let (location, ranks) = (self.files.location(name)?, self.part.ranks());
        if let (Format::Blocks(dtype), true) = (location.format, ranks > 1) {
            let (unit, all) = (dtype.block_size(), width * ranks);
            ensure!(
                width.is_multiple_of(unit),
                "{}: tensor '{name}' in {dtype:?} has rows of {all} elements in {blocks} blocks of {unit}, which {ranks} \
                 GPUs cannot divide; use a number of GPUs that divides {blocks}",
                self.files.file_of(location).display(),
                blocks = all.div_ceil(unit)
            );
        }
        Ok(self.part.own(width))
    }

    /// Loads the concatenated biases of `pieces`, in the data type of the states.
    pub fn bias(&mut self, layer: Option<usize>, pieces: &[TensorRows]) -> Result<Tensor> {
        let rows = pieces.iter().map(|piece| piece.rows.len()).sum();
        let mut named = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let name = self.name(layer, piece.role, "bias");
            self.check(&name, &[piece.total_rows])?;
            named.push(Piece::vector(name, piece.rows.clone()));
        }
        self.floats(&named, &[rows], self.dtype)
    }

    /// Loads this rank's `width` elements of a vector, as f32 (width). Its name in safetensors has no suffix `.weight`.
    pub fn vector(&mut self, layer: Option<usize>, role: Role, width: usize) -> Result<Tensor> {
        let name = self.name(layer, role, "weight");
        let name = if self.prefix.is_some() { name.trim_end_matches(".weight") } else { &name };
        self.check(name, &[width * self.part.ranks()])?;
        self.floats(&[Piece::vector(name.to_owned(), self.part.own(width))], &[width], DType::F32)
    }

    /// Loads the factor of a layer's states; 1 if a GGUF file does not contain it.
    pub fn layer_scale(&mut self, layer: usize) -> Result<f64> {
        let name = self.name(Some(layer), Role::LayerScale, "weight");
        if self.prefix.is_none() && self.files.location(&name).is_err() {
            return Ok(1.0);
        }
        let scale = self.vector(Some(layer), Role::LayerScale, 1)?;
        Ok(scale.get(0)?.to_scalar::<f32>()?.into())
    }

    /// Loads `count` square matrices, which are one stack in GGUF.
    pub fn square_matrices(&mut self, role: Role, count: usize, width: usize) -> Result<Vec<Linear>> {
        let shape = [width, width];
        // The count is not limited before the tensors are found.
        let mut linears = Vec::new();
        for index in 0..count {
            let piece = match &self.prefix {
                Some(prefix) => {
                    let name = format!("{prefix}{}.{index}.weight", role.names().0);
                    self.check(&name, &shape)?;
                    Piece::rows(name, 0..width, width)
                }
                None => {
                    let name = self.name(None, role, "weight");
                    self.check(&name, &[count, width, width])?;
                    Piece::rows(name, index * width..(index + 1) * width, width)
                }
            };
            linears.push(Linear::new(self.matrix(&[piece], &shape)?, None, self.dtype));
        }
        Ok(linears)
    }

    /// Uploads a vector.
    pub fn upload(&self, values: Vec<u32>) -> Result<Tensor> {
        let count = values.len();
        Ok(Tensor::from_vec(values, count, self.device)?)
    }

    /// Uploads a vector in the data type of the states.
    pub fn states(&self, values: Vec<f32>) -> Result<Tensor> {
        let count = values.len();
        Ok(Tensor::from_vec(values, count, self.device)?.to_dtype(self.dtype)?)
    }

    /// Creates an RMS norm without weights for states of this width.
    pub fn unweighted_norm(&self, width: usize, eps: f64) -> Result<Norm> {
        Ok(Norm::unweighted(width, eps, self.dtype, self.device)?)
    }

    /// Loads the vector `name`, as f32 (width).
    pub fn vector_named(&mut self, name: &str, width: usize) -> Result<Tensor> {
        self.check(name, &[width])?;
        self.floats(&[Piece::vector(name.to_owned(), 0..width)], &[width], DType::F32)
    }

    /// Loads a row of a matrix, as f32 (1, width). Without a name, the matrix is the projection to logits, which is the
    /// embedding table if `is_tied`.
    pub fn row(&mut self, name: Option<&str>, is_tied: bool, row: usize, width: usize) -> Result<Tensor> {
        let role = if is_tied { Role::Embedding } else { Role::Head };
        let name = name.map_or_else(|| self.name(None, role, "weight"), str::to_owned);
        let rows = self.files.location(&name)?.shape.first().copied().unwrap_or(0);
        self.check(&name, &[rows, width])?;
        self.floats(&[Piece::rows(name, row..row.saturating_add(1), width)], &[1, width], DType::F32)
    }

    /// Returns true if the matrices `{name}.weight` are stored in one format.
    pub fn are_stored_alike(&self, names: &[String]) -> Result<bool> {
        let format = |name: &String| Ok(self.files.location(&format!("{name}.weight"))?.format);
        let formats = names.iter().map(format).collect::<Result<Vec<Format>>>()?;
        Ok(formats.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// Returns the prefix of the tensors of a module that has a tensor `ending`. See [`first_prefix`].
    pub fn prefix_of(&self, ending: &str) -> Option<String> {
        first_prefix(self.files.names(), ending).map(str::to_owned)
    }

    /// Loads the number `name`, a tensor without dimensions or with one element.
    pub fn scalar_named(&mut self, name: &str) -> Result<f64> {
        let shape = self.files.location(name)?.shape.clone();
        self.check(name, if shape.is_empty() { &[] } else { &[1] })?;
        let number = self.floats(&[Piece::vector(name.to_owned(), 0..1)], &[1], DType::F32)?;
        Ok(number.get(0)?.to_scalar::<f32>()?.into())
    }

    /// Loads the tensor `name`, as f32.
    pub fn floats_named(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.check(name, shape)?;
        let (width, rows) = shape.split_last().context("internal error: a tensor without dimensions")?;
        let piece = Piece::rows(name.to_owned(), 0..rows.iter().product(), *width);
        self.floats(&[piece], shape, DType::F32)
    }

    /// Loads a linear layer from the concatenated rows of the matrices `{name}.weight`, which are stored in one format and
    /// have `rows` rows of `width` elements each. With `has_bias`, also loads the biases `{name}.bias`.
    pub fn linear_named(
        &mut self,
        names: &[String],
        rows: usize,
        width: usize,
        has_bias: bool,
    ) -> Result<Linear> {
        let (mut matrices, mut biases) = (Vec::new(), Vec::new());
        for name in names {
            let weight = format!("{name}.weight");
            self.check(&weight, &[rows, width])?;
            matrices.push(Piece::rows(weight, 0..rows, width));
            if has_bias {
                let bias = format!("{name}.bias");
                self.check(&bias, &[rows])?;
                biases.push(Piece::vector(bias, 0..rows));
            }
        }
        let total = rows * names.len();
        let matrix = self.matrix(&matrices, &[total, width])?;
        let bias = if has_bias { Some(self.floats(&biases, &[total], self.dtype)?) } else { None };
        Ok(Linear::new(matrix, bias, self.dtype))
    }

    fn check(&self, name: &str, shape: &[usize]) -> Result<()> {
        let location = self.files.location(name)?;
        ensure!(
            location.shape == shape,
            "{}: tensor '{name}' has shape {:?}, but the configuration requires {shape:?}",
            self.files.file_of(location).display(),
            location.shape
        );
        let floats = match location.format {
            // Floats of 8 bits without scales are rejected, too.
            Format::Floats(dtype) => dtype.is_float() && dtype.size_in_bytes() > 1,
            Format::Blocks(_) => true,
        };
        let file = self.files.file_of(location);
        ensure!(
            floats,
            "{}: tensor '{name}' has type {}, expected F64, F32, F16 or BF16",
            file.display(),
            location.format
        );
        Ok(())
    }

    /// Loads a matrix from pieces of tensors that are stored in the same format.
    fn matrix(&mut self, pieces: &[Piece], shape: &[usize]) -> Result<Matrix> {
        self.matrix_of(pieces, shape, None)
    }

    /// Like [`Self::matrix`]; `reorder` converts the bytes of each piece if it is given.
    fn matrix_of(&mut self, pieces: &[Piece], shape: &[usize], reorder: Option<&Reorder>) -> Result<Matrix> {
        Ok(match self.stored(pieces, shape, reorder)? {
            Stored::Float(tensor) => {
                let dtype = self.matrices.unwrap_or(tensor.dtype());
                Matrix::Float(scaled_rows(tensor, pieces)?.to_dtype(dtype)?)
            }
            Stored::Blocks(tensor) => {
                if let Some(Piece { name, factor, .. }) = pieces.iter().find(|piece| piece.factor != 1.0) {
                    let location = self.files.location(name)?;
                    bail!(
                        "{}: tensor '{name}' is {}, but its factor {factor} is only supported for floats; use a checkpoint of \
                         floats or a GGUF file",
                        self.files.file_of(location).display(),
                        location.format
                    )
                }
                Matrix::Quantized(QMatMul::from_qtensor(*tensor)?)
            }
        })
    }

    /// Loads pieces of tensors that are stored in the same format as floats of type `dtype`.
    fn floats(&mut self, pieces: &[Piece], shape: &[usize], dtype: DType) -> Result<Tensor> {
        Ok(match self.stored(pieces, shape, None)? {
            Stored::Float(tensor) => tensor.to_dtype(dtype)?,
            Stored::Blocks(tensor) => tensor.dequantize(self.device)?.to_dtype(dtype)?,
        })
    }

    /// Reads pieces of tensors into the memory of a ROCm device. Returns `None` on other devices, and for tensors that are
    /// converted.
    #[cfg(feature = "rocm")]
    fn read_to_device(&self, pieces: &[Piece], format: Format, shape: &[usize]) -> Result<Option<Stored>> {
        let Device::Rocm(device) = self.device else { return Ok(None) };
        let regions = pieces.iter().map(|piece| self.files.region(&piece.name, &piece.rows, &piece.columns));
        let Some(regions) = regions.collect::<Result<Option<Vec<_>>>>()? else { return Ok(None) };
        let read = |first: usize, part: &mut [u8]| self.files.read_regions(&regions, first, part);
        let shape = shape.into();
        let loaded = match format {
            Format::Floats(dtype) => rocm::read_tensor(device, dtype, &shape, &read).map(Stored::Float),
            Format::Blocks(dtype) => {
                read_quantized(device, dtype, &shape, &read).map(|tensor| Stored::Blocks(Box::new(tensor)))
            }
        };
        Ok(Some(loaded?))
    }

    #[cfg(not(feature = "rocm"))]
    fn read_to_device(&self, _: &[Piece], _: Format, _: &[usize]) -> Result<Option<Stored>> {
        Ok(None)
    }

    /// Reads and concatenates pieces of tensors that are stored in the same format.
    fn stored(&mut self, pieces: &[Piece], shape: &[usize], reorder: Option<&Reorder>) -> Result<Stored> {
        let first = &pieces.first().context("internal error: a linear layer of no tensors")?.name;
        let location = self.files.location(first)?;
        let ordered = location.ordered().filter(|_| pieces.iter().any(|piece| piece.in_order));
        let format = ordered.map_or(location.format, |(format, _)| format);
        let file = self.files.file_of(location).display().to_string();
        let named = || format!("{file}: tensor '{first}'");
        let read = match reorder.is_none() && ordered.is_none() {
            true => self.read_to_device(pieces, format, shape).with_context(named)?,
            false => None,
        };
        let loaded = match read {
            Some(loaded) => loaded,
            None => {
                let bytes = self.read_to_host(pieces, reorder)?;
                match format {
                    Format::Floats(dtype) => {
                        Tensor::from_raw_buffer(&bytes, dtype, shape, self.device).map(Stored::Float)
                    }
                    Format::Blocks(dtype) => {
                        let tensor = ggml_file::qtensor_from_ggml(dtype, &bytes, shape.to_vec(), self.device);
                        tensor.map(|tensor| Stored::Blocks(Box::new(tensor)))
                    }
                }
                .with_context(named)?
            }
        };
        self.read += loaded.bytes() as u64;
        (self.progress)((self.read as f64 / self.total as f64).min(1.0) as f32);
        Ok(loaded)
    }

    /// Reads and concatenates pieces of tensors, which `reorder` converts.
    fn read_to_host(&self, pieces: &[Piece], reorder: Option<&Reorder>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for Piece { name, rows, columns, in_order, .. } in pieces {
            let piece = match in_order {
                true => self.files.ordered_rows(name, rows.clone())?,
                false => self.files.part(name, rows.clone(), columns.clone())?,
            };
            let piece = match reorder {
                Some(reorder) => reorder(piece),
                None => piece,
            };
            match bytes.is_empty() {
                true => bytes = piece,
                false => bytes.extend(piece),
            }
        }
        Ok(bytes)
    }
}

/// Multiplies the rows of pieces of a matrix by their factors.
fn scaled_rows(matrix: Tensor, pieces: &[Piece]) -> Result<Tensor> {
    if pieces.iter().all(|piece| piece.factor == 1.0) {
        return Ok(matrix);
    }
    let factors: Vec<f32> =
        pieces.iter().flat_map(|piece| piece.rows.clone().map(|_| piece.factor as f32)).collect();
    let rows = factors.len();
    let factors = Tensor::from_vec(factors, (rows, 1), matrix.device())?;
    // Rounded once, to the data type of the model.
    Ok(matrix.to_dtype(DType::F32)?.broadcast_mul(&factors)?)
}

/// Converts the bytes of a piece of a tensor.
type Reorder<'r> = dyn Fn(Vec<u8>) -> Vec<u8> + 'r;

/// Returns the prefix before `ending` in the names of a module's tensors: empty, or the names of the enclosing modules. If
/// several modules have such a tensor, such as those that draft tokens, returns the first prefix in byte order.
fn first_prefix<'n>(names: impl Iterator<Item = &'n str>, ending: &str) -> Option<&'n str> {
    let prefixes = names.filter_map(|name| name.strip_suffix(ending));
    prefixes.filter(|prefix| prefix.is_empty() || prefix.ends_with('.')).min()
}

enum Stored {
    Float(Tensor),
    Blocks(Box<QTensor>),
}

impl Stored {
    fn bytes(&self) -> usize {
        match self {
            Self::Float(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Self::Blocks(tensor) => tensor.storage_size_in_bytes(),
        }
    }
}
