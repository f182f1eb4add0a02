//! Model files: a GGUF file, or a folder of safetensors with a config.json.
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::DType;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use serde_json::Value;

mod format;
mod gguf_parts;
mod joining;
mod matrix;
mod mxfp4;
mod numbers;
mod opened;
mod packed_bits;
pub(crate) mod python_json;
mod quantization;
mod safetensors;
mod scaled;
mod tensor_info;

pub use format::Format;
pub use gguf_parts::{GgufPart, stem as gguf_stem};
use matrix::Region;
use opened::OpenFiles;
use quantization::Quantization;
use tensor_info::Encoding;
pub use tensor_info::TensorInfo;

/// Model description in the files, apart from tensors.
pub enum Description {
    /// Contents of config.json.
    Config(Value),
    /// Metadata of a GGUF file. If the model is divided into several files, it contains the tensors of all files.
    Metadata(Box<Content>),
}

/// Open files of a model with parsed headers.
pub struct ModelFiles {
    path: PathBuf,
    /// Configuration or metadata.
    pub description: Description,
    files: OpenFiles,
    tensors: HashMap<String, TensorInfo>,
}

impl ModelFiles {
    /// Opens a safetensors folder or a GGUF file and parses its headers, without reading weights.
    ///
    /// # Errors
    /// Returns an error that names the missing, truncated or invalid file, or the tensor beyond its end.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::safetensors(path);
        }
        ensure!(path.exists(), "{} does not exist; check the path", path.display());
        ensure!(
            path.extension().is_some_and(|extension| extension == "gguf"),
            "{} is neither a folder of safetensors nor a .gguf file",
            path.display()
        );
        Self::gguf(path).with_context(|| path.display().to_string())
    }

    fn gguf(path: &Path) -> Result<Self> {
        let (mut files, mut tensors) = (OpenFiles::default(), HashMap::new());
        let mut content = add_gguf(path, &mut files, &mut tensors)?;
        let count = gguf_parts::count(&content, path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for part in GgufPart::parse(&name).iter().flat_map(|part| part.all()).take(count as usize).skip(1) {
            let path = path.with_file_name(part.to_string());
            let mut add = || {
                let content = add_gguf(&path, &mut files, &mut tensors)?;
                gguf_parts::check(&content, part.number - 1, count)?;
                anyhow::Ok(content.tensor_infos)
            };
            let added = add()
                .with_context(|| format!("its part {}, which must be in the same folder", path.display()));
            content.tensor_infos.extend(added?);
        }
        check_bounds(&tensors, &files)?;
        let description = Description::Metadata(Box::new(content));
        Ok(Self { path: path.into(), description, files, tensors })
    }

    fn safetensors(folder: &Path) -> Result<Self> {
        let config_path = folder.join("config.json");
        let config = safetensors::json(&config_path)?;
        let quantization =
            Quantization::from_config(&config).with_context(|| config_path.display().to_string())?;
        let (mut files, mut tensors) = (OpenFiles::default(), HashMap::new());
        for path in safetensors::weight_files(folder)? {
            let mut file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            let named = || format!("{} cannot be read as safetensors", path.display());
            tensors.extend(safetensors::header(&mut file, files.count()).with_context(named)?);
            files.push(path, file);
        }
        check_bounds(&tensors, &files)?;
        let named = || folder.display().to_string();
        joining::join_mxfp4(&mut tensors).with_context(named)?;
        joining::join(&quantization, &mut tensors, &files).with_context(named)?;
        Ok(Self { path: folder.into(), description: Description::Config(config), files, tensors })
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Exchanges two parts of names.
    pub(super) fn exchange_names(&mut self, one: &str, other: &str) {
        let exchanged = |name: &str| match name.contains(one) {
            true => name.replace(one, other),
            false => name.replace(other, one),
        };
        self.tensors = self.tensors.drain().map(|(name, tensor)| (exchanged(&name), tensor)).collect();
    }

    /// Returns the total size of all tensors, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().filter_map(|location| location.bytes().ok()).map(|bytes| bytes as u64).sum()
    }

    /// Sets the type of weights in eight or four bits that cannot become blocks. It is f32 unless it is set.
    pub fn dequantize_as(&mut self, dtype: DType) {
        self.tensors.values_mut().for_each(|location| location.dequantize_as(dtype));
    }

    /// Returns the total size of all tensors in bytes, after converting floats to `dtype` unless it is `None`. If `is_whole`
    /// is true, rows with an order of their own are those of [`TensorInfo::ordered`].
    pub fn bytes_as(&self, dtype: Option<DType>, is_whole: bool) -> usize {
        let bytes = |location: &TensorInfo| {
            let format = match (location.ordered().filter(|_| is_whole), location.format, dtype) {
                (Some((format, _)), ..) => format,
                (None, Format::Floats(_), Some(dtype)) => Format::Floats(dtype),
                (None, format, _) => format,
            };
            TensorInfo { format, ..location.clone() }.bytes()
        };
        self.tensors.values().filter_map(|location| bytes(location).ok()).sum()
    }

    /// Returns the size in bytes of the layers' quantized matrices as floats of 16 bits, without those of experts.
    pub fn decoded_bytes(&self) -> usize {
        // The embedding table and the projection to logits.
        let is_table = |name: &str| {
            let module = name.strip_suffix(".weight").unwrap_or(name);
            matches!(module, "token_embd" | "output")
                || ["embed_tokens", "lm_head"].iter().any(|table| module.ends_with(table))
        };
        let is_counted = |(name, location): &(&String, &TensorInfo)| {
            let is_matrix = location.shape.len() == 2 && matches!(location.format, Format::Blocks(_));
            is_matrix && !is_table(name) && !name.contains(".experts.")
        };
        let elements = |(_, location): (&String, &TensorInfo)| location.shape.iter().product::<usize>();
        self.tensors.iter().filter(is_counted).map(elements).sum::<usize>() * DType::F16.size_in_bytes()
    }

    /// Returns the data type in which all matrices are stored if they are floats: f16 or bf16 if any of them is,
    /// otherwise f32. Returns `None` if any matrix is quantized.
    pub fn float_type(&self) -> Option<DType> {
        let matrices = || self.tensors.values().filter(|location| location.shape.len() > 1);
        if matrices().any(|location| matches!(location.format, Format::Blocks(_))) {
            return None;
        }
        let has = |dtype: &DType| matrices().any(|location| location.format == Format::Floats(*dtype));
        Some([DType::F16, DType::BF16].into_iter().find(has).unwrap_or(DType::F32))
    }

    /// Returns the location of a tensor, or an error if there is none of this name.
    pub fn location(&self, name: &str) -> Result<&TensorInfo> {
        let location = self.tensors.get(name);
        location.with_context(|| format!("{}: there is no tensor '{name}'", self.path.display()))
    }

    /// Returns the file that contains a tensor.
    pub fn file_of(&self, location: &TensorInfo) -> &Path {
        self.files.path(location.file)
    }

    /// Reads the bytes of a range of the first dimension.
    ///
    /// # Errors
    /// See [`Self::part`].
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        match &self.location(name)?.shape[..] {
            [] | [_] => self.part(name, 0..1, rows),
            [_, inner @ .., width] => {
                let (inner, width) = (inner.iter().product::<usize>(), *width);
                self.part(name, rows.start.saturating_mul(inner)..rows.end.saturating_mul(inner), 0..width)
            }
        }
    }

    /// Reads the bytes of some columns of a range of rows. All dimensions before the last one count rows.
    ///
    /// # Errors
    /// Returns an error if there is no such tensor, rows or columns are out of range, columns are parts of blocks, or
    /// reading fails.
    pub fn part(&self, name: &str, rows: Range<usize>, columns: Range<usize>) -> Result<Vec<u8>> {
        self.part_as(name, self.location(name)?.format, rows, columns)
    }

    /// Reads the bytes of a range of rows in the format and the order of [`TensorInfo::ordered`].
    ///
    /// # Errors
    /// See [`Self::part`]. Also if the rows have no order.
    pub fn ordered_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let location = self.location(name)?;
        let (format, order) = location.ordered().context("internal error: rows without an order")?;
        self.part_as(name, format, rows, 0..order.len())
    }

    /// Returns the region of a file that holds some columns of a range of rows, or `None` if the tensor is converted when it
    /// is read.
    ///
    /// # Errors
    /// See [`Self::part`].
    pub fn region(&self, name: &str, rows: &Range<usize>, columns: &Range<usize>) -> Result<Option<Region>> {
        let location = self.location(name)?;
        self.check_part(name, location.format, rows, columns)?;
        let is_same = location.encoding == Encoding::Same;
        Ok(location.regions(rows, columns).into_iter().next().filter(|_| is_same))
    }

    /// Fills `part` with the bytes of regions, one after the other, from byte number `first` on.
    ///
    /// # Errors
    /// Returns the error of reading, which names the file. Also if the regions have fewer bytes.
    pub fn read_regions(&self, regions: &[Region], mut first: usize, mut part: &mut [u8]) -> io::Result<()> {
        for region in regions {
            let held = region.bytes();
            if first < held {
                let count = part.len().min(held - first);
                let Some(head) = part.split_off_mut(..count) else { break };
                let named = |error: io::Error| {
                    let path = self.files.path(region.matrix.file).display();
                    io::Error::new(error.kind(), format!("{path}: {error}"))
                };
                self.files.read_from(region, first, head).map_err(named)?;
            }
            first = first.saturating_sub(held);
        }
        match part.len() {
            0 => Ok(()),
            missing => {
                let text = format!("internal error: the regions of a tensor lack {missing} bytes");
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
            }
        }
    }

    /// Returns an error unless rows and columns are parts of a tensor that are whole blocks of `format`.
    fn check_part(
        &self,
        name: &str,
        format: Format,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Result<()> {
        let location = self.location(name)?;
        let [total_rows, width] = location.rows_and_columns();
        let is_whole = |columns: usize| format.bytes(columns).is_some();
        ensure!(
            rows.start <= rows.end
                && rows.end <= total_rows
                && columns.start <= columns.end
                && columns.end <= width
                && [columns.start, columns.end, width].into_iter().all(is_whole),
            "{}: tensor '{name}' has no rows {rows:?} with columns {columns:?}: its shape is {:?}",
            self.file_of(location).display(),
            location.shape
        );
        Ok(())
    }

    fn part_as(
        &self,
        name: &str,
        format: Format,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Vec<u8>> {
        let location = self.location(name)?;
        self.check_part(name, format, &rows, &columns)?;
        let named = || format!("{}: tensor '{name}'", self.file_of(location).display());
        let regions = location.regions(&rows, &columns);
        let data = regions.iter().map(|region| self.files.read(region)).collect::<Result<_>>();
        location.decode(format, [&rows, &columns], data.with_context(named)?).with_context(named)
    }

    /// Reads an f32 vector, or returns `None` if there is no such tensor.
    ///
    /// # Errors
    /// Returns an error if reading fails or the tensor is not an f32 vector.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(location) = self.tensors.get(name) else { return Ok(None) };
        ensure!(
            location.format == Format::Floats(DType::F32) && location.shape.len() == 1,
            "{}: tensor '{name}' is not an f32 vector",
            self.path.display()
        );
        let bytes = self.rows(name, 0..self.location(name)?.shape[0])?;
        let number = |bytes: &[u8]| Some(f32::from_le_bytes(bytes.try_into().ok()?));
        Ok(bytes.chunks_exact(4).map(number).collect())
    }
}

/// Opens a GGUF file, adds it and the locations of its tensors, and returns its header.
///
/// # Errors
/// Returns an error if the file cannot be opened or read, or if another file contains a tensor of the same name.
fn add_gguf(
    path: &Path,
    files: &mut OpenFiles,
    tensors: &mut HashMap<String, TensorInfo>,
) -> Result<Content> {
    let handle = File::open(path).context("cannot be opened")?;
    let content = Content::read(&mut BufReader::new(&handle)).context("cannot be read as GGUF")?;
    let file = files.count();
    files.push(path.into(), handle);
    for (name, info) in &content.tensor_infos {
        let format = match info.ggml_dtype {
            GgmlDType::F32 => Format::Floats(DType::F32),
            GgmlDType::F16 => Format::Floats(DType::F16),
            GgmlDType::BF16 => Format::Floats(DType::BF16),
            blocks => Format::Blocks(blocks),
        };
        let offset = content.tensor_data_offset.saturating_add(info.offset);
        let shape = info.shape.dims().to_vec();
        let tensor = TensorInfo { file, offset, encoding: Encoding::Same, format, shape };
        let earlier = tensors.insert(name.clone(), tensor);
        ensure!(earlier.is_none(), "tensor '{name}' is in two files");
    }
    Ok(content)
}

/// Checks that all tensors lie within their files, which may be truncated.
fn check_bounds(tensors: &HashMap<String, TensorInfo>, files: &OpenFiles) -> Result<()> {
    let sizes = files.sizes()?;
    for (name, location) in tensors {
        let path = files.path(location.file).display();
        location.bytes().with_context(|| format!("{path}: tensor '{name}'"))?;
        for matrix in location.matrices() {
            let (end, size) = (matrix.end(), sizes[matrix.file]);
            ensure!(
                end <= size,
                "{path}: tensor '{name}' ends at byte {end}, but the file has {size} bytes; download it again"
            );
        }
    }
    Ok(())
}
