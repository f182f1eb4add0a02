//! Loading of a decoder's weights by role. Errors name the file and the tensor.
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::{QMatMul, QTensor, ggml_file};
use candle_core::{DType, Device, Tensor};

use super::files::{Description, Format, ModelFiles};
use super::layers::{Embedding, Linear};
use super::roles::Role;

/// A range of rows of a tensor.
#[derive(Clone, Debug)]
pub struct TensorRows {
    /// Role of the tensor.
    pub role: Role,
    /// Rows to read.
    pub rows: Range<usize>,
    /// Number of rows that the tensor must have.
    pub total_rows: usize,
}

impl TensorRows {
    /// Selects all `rows` rows of a tensor.
    pub fn whole(role: Role, rows: usize) -> Self {
        Self { role, rows: 0..rows, total_rows: rows }
    }
}

/// Reads tensors from files and uploads them to a device.
pub struct Weights<'a> {
    files: &'a mut ModelFiles,
    /// Prefix of tensor names in safetensors; `None` for GGUF.
    prefix: Option<String>,
    dtype: DType,
    device: &'a Device,
    progress: &'a mut dyn FnMut(f32),
    read: u64,
    total: u64,
}

impl<'a> Weights<'a> {
    /// Creates a loader that converts floats to `dtype`. `progress` receives the fraction that was read.
    pub fn new(
        files: &'a mut ModelFiles,
        dtype: DType,
        device: &'a Device,
        progress: &'a mut dyn FnMut(f32),
    ) -> Self {
        // Multimodal models have a longer prefix for their text model.
        let embedding = "embed_tokens.weight";
        let prefix = || files.names().find_map(|name| name.strip_suffix(embedding)).unwrap_or("model.");
        let prefix = match &files.description {
            Description::Config(_) => Some(prefix().to_string()),
            Description::Metadata(_) => None,
        };
        let total = files.bytes().max(1);
        Self { files, prefix, dtype, device, progress, read: 0, total }
    }

    fn name(&self, layer: Option<usize>, role: Role, kind: &str) -> String {
        let (safetensors, gguf) = role.names();
        match (&self.prefix, layer) {
            (Some(_), None) if role == Role::Head => format!("{safetensors}.{kind}"),
            (Some(prefix), None) => format!("{prefix}{safetensors}.{kind}"),
            (Some(prefix), Some(layer)) => format!("{prefix}layers.{layer}.{safetensors}.{kind}"),
            (None, None) => format!("{gguf}.{kind}"),
            (None, Some(layer)) => format!("blk.{layer}.{gguf}.{kind}"),
        }
    }

    /// Loads the weights of a norm, as f32 (width).
    pub fn norm(&mut self, layer: Option<usize>, role: Role, width: usize) -> Result<Tensor> {
        let name = self.name(layer, role, "weight");
        self.check(&name, &[width])?;
        match self.matrix(&[(name, 0..width)], &[width])? {
            Matrix::Float(tensor) => Ok(tensor.to_dtype(DType::F32)?),
            Matrix::Quantized(tensor) => Ok(tensor.dequantize(self.device)?),
        }
    }

    /// Loads the embedding table (vocabulary, width). The vocabulary size comes from the file.
    pub fn embedding(&mut self, width: usize) -> Result<Embedding> {
        let name = self.name(None, Role::Embedding, "weight");
        let rows = self.files.location(&name)?.shape.first().copied().unwrap_or(0);
        self.check(&name, &[rows, width])?;
        Ok(match self.matrix(&[(name, 0..rows)], &[rows, width])? {
            Matrix::Float(tensor) => Embedding::Float(tensor.to_dtype(self.dtype)?),
            Matrix::Quantized(tensor) => Embedding::Quantized {
                matrix: QMatMul::from_qtensor(tensor)?,
                vocabulary: rows,
                dtype: self.dtype,
            },
        })
    }

    /// Returns true if the weights of these tensors are stored in the same format, so that they can be fused.
    pub fn same_format(&self, layer: Option<usize>, pieces: &[TensorRows]) -> Result<bool> {
        let format_of =
            |piece: &TensorRows| Ok(self.files.location(&self.name(layer, piece.role, "weight"))?.format);
        let formats = pieces.iter().map(format_of).collect::<Result<Vec<_>>>()?;
        Ok(formats.windows(2).all(|pair| pair[0] == pair[1]))
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
        let rows: usize = pieces.iter().map(|piece| piece.rows.len()).sum();
        let named = |weights: &Self, kind| {
            let name = |piece: &TensorRows| (weights.name(layer, piece.role, kind), piece.rows.clone());
            pieces.iter().map(name).collect::<Vec<_>>()
        };
        let names = named(self, "weight");
        for ((name, _), piece) in names.iter().zip(pieces) {
            self.check(name, &[piece.total_rows, width])?;
        }
        let matrix = self.matrix(&names, &[rows, width])?;
        let bias = match bias {
            true => {
                let names = named(self, "bias");
                for ((name, _), piece) in names.iter().zip(pieces) {
                    self.check(name, &[piece.total_rows])?;
                }
                match self.matrix(&names, &[rows])? {
                    Matrix::Float(tensor) => Some(tensor.to_dtype(self.dtype)?),
                    Matrix::Quantized(tensor) => Some(tensor.dequantize(self.device)?.to_dtype(self.dtype)?),
                }
            }
            false => None,
        };
        Ok(match matrix {
            Matrix::Float(tensor) => {
                Linear::Float(candle_nn::Linear::new(tensor.to_dtype(self.dtype)?, bias))
            }
            Matrix::Quantized(tensor) => Linear::Quantized(QMatMul::from_qtensor(tensor)?, bias),
        })
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
            Format::Floats(dtype) => dtype.is_float(),
            Format::Blocks(_) => true,
        };
        let file = self.files.file_of(location);
        ensure!(floats, "{}: tensor '{name}' is {:?}, expected floats", file.display(), location.format);
        Ok(())
    }

    /// Reads and concatenates rows of tensors that are stored in the same format.
    fn matrix(&mut self, names: &[(String, Range<usize>)], shape: &[usize]) -> Result<Matrix> {
        let (first, _) = names.first().context("internal error: a linear layer of no tensors")?;
        let location = self.files.location(first)?;
        let (format, file) = (location.format, self.files.file_of(location).display().to_string());
        let mut bytes = Vec::new();
        for (name, rows) in names {
            let piece = self.files.rows(name, rows.clone())?;
            bytes = if bytes.is_empty() { piece } else { [bytes, piece].concat() };
        }
        self.read += bytes.len() as u64;
        let made = match format {
            Format::Floats(dtype) => {
                Tensor::from_raw_buffer(&bytes, dtype, shape, self.device).map(Matrix::Float)
            }
            Format::Blocks(dtype) => ggml_file::qtensor_from_ggml(dtype, &bytes, shape.to_vec(), self.device)
                .map(Matrix::Quantized),
        };
        let made = made.with_context(|| format!("{file}: tensor '{first}'"))?;
        (self.progress)((self.read as f64 / self.total as f64).min(1.0) as f32);
        Ok(made)
    }
}

enum Matrix {
    Float(Tensor),
    Quantized(QTensor),
}
