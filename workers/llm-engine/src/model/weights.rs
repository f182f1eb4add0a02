//! A decoder's weights by their roles: what files call them, and what is made of them.
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::{QMatMul, QTensor, ggml_file};
use candle_core::{DType, Device, Tensor};

use super::files::{Description, ModelFiles, Stored};
use super::layers::{Embedding, Linear};
use super::parts::Part;

/// Some rows of a tensor, of which there are `of`.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Which tensor.
    pub part: Part,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// How many rows it has to have.
    pub of: usize,
}

impl Piece {
    /// All rows.
    pub fn whole(part: Part, rows: usize) -> Self {
        Self { part, rows: 0..rows, of: rows }
    }
}

/// Reads tensors and puts them on a device.
pub struct Weights<'a> {
    files: &'a mut ModelFiles,
    /// What stands before the names of safetensors; none for GGUF.
    body: Option<String>,
    dtype: DType,
    device: &'a Device,
    progress: &'a mut dyn FnMut(f32),
    read: u64,
    total: u64,
}

impl<'a> Weights<'a> {
    /// Those of `files`, which become `dtype` where they are no blocks. `progress` is told the share that was read.
    pub fn new(
        files: &'a mut ModelFiles,
        dtype: DType,
        device: &'a Device,
        progress: &'a mut dyn FnMut(f32),
    ) -> Self {
        // Models that also see have theirs behind a longer name.
        let embedding = "embed_tokens.weight";
        let body = || files.names().find_map(|name| name.strip_suffix(embedding)).unwrap_or("model.");
        let body = match &files.description {
            Description::Config(_) => Some(body().to_string()),
            Description::Metadata(_) => None,
        };
        let total = files.bytes().max(1);
        Self { files, body, dtype, device, progress, read: 0, total }
    }

    fn name(&self, layer: Option<usize>, part: Part, kind: &str) -> String {
        let (safetensors, gguf) = part.names();
        match (&self.body, layer) {
            (Some(_), None) if part == Part::Head => format!("{safetensors}.{kind}"),
            (Some(body), None) => format!("{body}{safetensors}.{kind}"),
            (Some(body), Some(layer)) => format!("{body}layers.{layer}.{safetensors}.{kind}"),
            (None, None) => format!("{gguf}.{kind}"),
            (None, Some(layer)) => format!("blk.{layer}.{gguf}.{kind}"),
        }
    }

    /// A norm's weights, f32 (width).
    ///
    /// # Errors
    /// Names file and tensor.
    pub fn norm(&mut self, layer: Option<usize>, part: Part, width: usize) -> Result<Tensor> {
        let name = self.name(layer, part, "weight");
        self.check(&name, &[width])?;
        match self.matrix(&[(name, 0..width)], &[width])? {
            Matrix::Full(tensor) => Ok(tensor.to_dtype(DType::F32)?),
            Matrix::Quantized(tensor) => Ok(tensor.dequantize(self.device)?),
        }
    }

    /// The embedding: (vocabulary, width), of which the file says the first.
    ///
    /// # Errors
    /// Names file and tensor.
    pub fn embedding(&mut self, width: usize) -> Result<Embedding> {
        let name = self.name(None, Part::Embedding, "weight");
        let rows = self.files.place(&name)?.shape.first().copied().unwrap_or(0);
        self.check(&name, &[rows, width])?;
        Ok(match self.matrix(&[(name, 0..rows)], &[rows, width])? {
            Matrix::Full(tensor) => Embedding::Full(tensor.to_dtype(self.dtype)?),
            Matrix::Quantized(tensor) => Embedding::Quantized {
                matrix: QMatMul::from_qtensor(tensor)?,
                vocabulary: rows,
                dtype: self.dtype,
            },
        })
    }

    /// Whether the weights of these pieces are stored alike, so that they can be one product.
    pub fn alike(&self, layer: Option<usize>, pieces: &[Piece]) -> Result<bool> {
        let stored = |piece: &Piece| Ok(self.files.place(&self.name(layer, piece.part, "weight"))?.stored);
        let stored = pieces.iter().map(stored).collect::<Result<Vec<_>>>()?;
        Ok(stored.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// The product with the pieces' rows behind each other, each of `width` elements, and their biases if there are some.
    ///
    /// # Errors
    /// Names file and tensor.
    pub fn linear(
        &mut self,
        layer: Option<usize>,
        pieces: &[Piece],
        width: usize,
        bias: bool,
    ) -> Result<Linear> {
        let rows: usize = pieces.iter().map(|piece| piece.rows.len()).sum();
        let named = |weights: &Self, kind| {
            let name = |piece: &Piece| (weights.name(layer, piece.part, kind), piece.rows.clone());
            pieces.iter().map(name).collect::<Vec<_>>()
        };
        let names = named(self, "weight");
        for ((name, _), piece) in names.iter().zip(pieces) {
            self.check(name, &[piece.of, width])?;
        }
        let matrix = self.matrix(&names, &[rows, width])?;
        let bias = match bias {
            true => {
                let names = named(self, "bias");
                for ((name, _), piece) in names.iter().zip(pieces) {
                    self.check(name, &[piece.of])?;
                }
                match self.matrix(&names, &[rows])? {
                    Matrix::Full(tensor) => Some(tensor.to_dtype(self.dtype)?),
                    Matrix::Quantized(tensor) => Some(tensor.dequantize(self.device)?.to_dtype(self.dtype)?),
                }
            }
            false => None,
        };
        Ok(match matrix {
            Matrix::Full(tensor) => Linear::Full(candle_nn::Linear::new(tensor.to_dtype(self.dtype)?, bias)),
            Matrix::Quantized(tensor) => Linear::Quantized(QMatMul::from_qtensor(tensor)?, bias),
        })
    }

    fn check(&self, name: &str, shape: &[usize]) -> Result<()> {
        let place = self.files.place(name)?;
        ensure!(
            place.shape == shape,
            "{}: tensor '{name}' has the shape {:?}, the model's sizes say {shape:?}",
            self.files.file_of(place).display(),
            place.shape
        );
        let floats = match place.stored {
            Stored::Floats(dtype) => dtype.is_float(),
            Stored::Blocks(_) => true,
        };
        let file = self.files.file_of(place);
        ensure!(floats, "{}: tensor '{name}' is {:?}, expected floats", file.display(), place.stored);
        Ok(())
    }

    /// Rows of tensors that are stored alike, behind each other.
    fn matrix(&mut self, names: &[(String, Range<usize>)], shape: &[usize]) -> Result<Matrix> {
        let (first, _) = names.first().context("a product of no matrices")?;
        let place = self.files.place(first)?;
        let (stored, file) = (place.stored, self.files.file_of(place).display().to_string());
        let mut bytes = Vec::new();
        for (name, rows) in names {
            let piece = self.files.rows(name, rows.clone())?;
            bytes = if bytes.is_empty() { piece } else { [bytes, piece].concat() };
        }
        self.read += bytes.len() as u64;
        let made = match stored {
            Stored::Floats(dtype) => {
                Tensor::from_raw_buffer(&bytes, dtype, shape, self.device).map(Matrix::Full)
            }
            Stored::Blocks(dtype) => ggml_file::qtensor_from_ggml(dtype, &bytes, shape.to_vec(), self.device)
                .map(Matrix::Quantized),
        };
        let made = made.with_context(|| format!("{file}: tensor '{first}'"))?;
        (self.progress)((self.read as f64 / self.total as f64).min(1.0) as f32);
        Ok(made)
    }
}

enum Matrix {
    Full(Tensor),
    Quantized(QTensor),
}
