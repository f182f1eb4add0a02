//! Model files: a GGUF file, or a folder of safetensors with a config.json.
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use serde::Deserialize;
use serde_json::Value;

mod gguf_header;
mod mxfp4;

use gguf_header::Mxfp4Tensor;
use mxfp4::Order;

const INDEX: &str = "model.safetensors.index.json";
/// Maximum length of a safetensors header, a limit of the format.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Alignment of the tensor data in GGUF, unless the file has another.
const GGUF_ALIGNMENT: u64 = 32;

/// Storage format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// Individual numbers.
    Floats(DType),
    /// GGML-quantized blocks.
    Blocks(GgmlDType),
}

impl Format {
    /// Returns the size of `elements` elements in bytes; `None` if they do not fill whole blocks.
    fn bytes(self, elements: usize) -> Option<usize> {
        match self {
            Self::Floats(dtype) => elements.checked_mul(dtype.size_in_bytes()),
            Self::Blocks(dtype) => elements
                .is_multiple_of(dtype.block_size())
                .then(|| (elements / dtype.block_size()).checked_mul(dtype.type_size()))?,
        }
    }
}

/// Encoding of a tensor in its file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Encoding {
    /// The format of the tensor.
    Same,
    /// MXFP4 blocks.
    Mxfp4,
    /// Numbers of MXFP4 blocks, and their scales at an offset of a file.
    Mxfp4Parts(usize, u64),
}

/// Location, format and shape of a tensor in a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    file: usize,
    offset: u64,
    encoding: Encoding,
    /// Format of its elements. Tensors in MXFP4 are converted to Q5_0 when they are read.
    pub format: Format,
    /// Dimensions, rows first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Returns its size in bytes.
    ///
    /// # Errors
    /// Returns an error if the elements do not fill whole blocks or the size overflows.
    pub fn bytes(&self) -> Result<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let bytes = elements.and_then(|elements| self.format.bytes(elements));
        bytes.with_context(|| format!("shape {:?} cannot be stored as {:?}", self.shape, self.format))
    }

    /// Returns the file, offset and size in bytes of its parts.
    fn parts(&self) -> Result<Vec<(usize, u64, usize)>> {
        let bytes = self.bytes()?;
        let blocks = bytes / GgmlDType::Q5_0.type_size();
        let part = |bytes| (self.file, self.offset, bytes);
        Ok(match self.encoding {
            Encoding::Same => vec![part(bytes)],
            Encoding::Mxfp4 => vec![part(blocks * (1 + mxfp4::NUMBERS))],
            Encoding::Mxfp4Parts(file, offset) => vec![part(blocks * mxfp4::NUMBERS), (file, offset, blocks)],
        })
    }

    /// Converts the bytes of its parts.
    fn decode(&self, mut parts: Vec<Vec<u8>>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        match (self.encoding, &parts[..]) {
            (Encoding::Mxfp4, [blocks]) => {
                for block in blocks.chunks_exact(1 + mxfp4::NUMBERS) {
                    mxfp4::push_q5_0(&mut out, block[0], &block[1..], Order::Halves)?;
                }
            }
            (Encoding::Mxfp4Parts(..), [numbers, scales]) => {
                for (numbers, scale) in numbers.chunks_exact(mxfp4::NUMBERS).zip(scales) {
                    mxfp4::push_q5_0(&mut out, *scale, numbers, Order::Neighbors)?;
                }
            }
            _ => out = parts.swap_remove(0),
        }
        Ok(out)
    }
}

/// Model description in the files, apart from tensors.
pub enum Description {
    /// Contents of config.json.
    Config(Value),
    /// Metadata of a GGUF file.
    Metadata(Box<Content>),
}

/// Open files of a model with parsed headers.
pub struct ModelFiles {
    path: PathBuf,
    /// Configuration or metadata.
    pub description: Description,
    files: Vec<(PathBuf, File)>,
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
        ensure!(path.exists(), "there is no {}", path.display());
        ensure!(
            path.extension().is_some_and(|extension| extension == "gguf"),
            "{} is neither a folder of safetensors nor a .gguf file",
            path.display()
        );
        Self::gguf(path).with_context(|| path.display().to_string())
    }

    fn gguf(path: &Path) -> Result<Self> {
        let file = File::open(path).context("cannot be opened")?;
        let (content, mxfp4) = read_gguf(&file).context("cannot be read as GGUF")?;
        let parts = content.metadata.get("split.count").and_then(|parts| parts.to_u64().ok());
        ensure!(
            parts.unwrap_or(1) <= 1,
            "it is one part of several; join them first (llama-gguf-split --merge)"
        );
        let location = |(name, info): (&String, &candle_core::quantized::gguf_file::TensorInfo)| {
            let format = match info.ggml_dtype {
                GgmlDType::F32 => Format::Floats(DType::F32),
                GgmlDType::F16 => Format::Floats(DType::F16),
                GgmlDType::BF16 => Format::Floats(DType::BF16),
                blocks => Format::Blocks(blocks),
            };
            let offset = content.tensor_data_offset.saturating_add(info.offset);
            let (encoding, shape) = (Encoding::Same, info.shape.dims().to_vec());
            (name.clone(), TensorInfo { file: 0, offset, encoding, format, shape })
        };
        let mut tensors: HashMap<_, _> = content.tensor_infos.iter().map(location).collect();
        tensors.extend(mxfp4.into_iter().map(|tensor| {
            let offset = content.tensor_data_offset.saturating_add(tensor.offset);
            let (encoding, format) = (Encoding::Mxfp4, Format::Blocks(GgmlDType::Q5_0));
            (tensor.name, TensorInfo { file: 0, offset, encoding, format, shape: tensor.shape })
        }));
        let description = Description::Metadata(Box::new(content));
        Self { path: path.into(), description, files: vec![(path.into(), file)], tensors }.check_bounds()
    }

    fn safetensors(folder: &Path) -> Result<Self> {
        let config = json(&folder.join("config.json"))?;
        let (mut files, mut tensors) = (Vec::new(), HashMap::new());
        for path in weight_files(folder)? {
            let mut file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            let named = || format!("{} cannot be read as safetensors", path.display());
            tensors.extend(header(&mut file, files.len()).with_context(named)?);
            files.push((path, file));
        }
        join_mxfp4(&mut tensors).with_context(|| folder.display().to_string())?;
        Self { path: folder.into(), description: Description::Config(config), files, tensors }.check_bounds()
    }

    /// Checks that all tensors lie within their files, which may be truncated.
    fn check_bounds(self) -> Result<Self> {
        let sizes = self.files.iter().map(|(_, file)| Ok(file.metadata()?.len()));
        let sizes = sizes.collect::<Result<Vec<_>>>()?;
        for (name, location) in &self.tensors {
            let path = self.files[location.file].0.display();
            let parts = location.parts().with_context(|| format!("{path}: tensor '{name}'"))?;
            for (file, offset, bytes) in parts {
                let (end, size) = (offset.saturating_add(bytes as u64), sizes[file]);
                let path = self.files[file].0.display();
                ensure!(
                    end <= size,
                    "{path}: tensor '{name}' ends at byte {end}, but the file has {size} bytes; download it again"
                );
            }
        }
        Ok(self)
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the total size of all tensors, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().filter_map(|location| location.bytes().ok()).map(|bytes| bytes as u64).sum()
    }

    /// Returns the total size of all tensors in bytes, after converting floats to `dtype` unless it is `None`.
    pub fn bytes_as(&self, dtype: Option<DType>) -> usize {
        let bytes = |location: &TensorInfo| match (location.format, dtype) {
            (Format::Floats(_), Some(dtype)) => {
                TensorInfo { format: Format::Floats(dtype), ..location.clone() }.bytes()
            }
            _ => location.bytes(),
        };
        self.tensors.values().filter_map(|location| bytes(location).ok()).sum()
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
        &self.files[location.file].0
    }

    /// Reads the bytes of a range of the first dimension.
    ///
    /// # Errors
    /// See [`Self::part`].
    pub fn rows(&mut self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
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
    pub fn part(&mut self, name: &str, rows: Range<usize>, columns: Range<usize>) -> Result<Vec<u8>> {
        let location = self.location(name)?.clone();
        let named = |path: &Path| format!("{}: tensor '{name}'", path.display());
        let own_path = self.file_of(&location).to_owned();
        let width = location.shape.last().copied().unwrap_or(1);
        let total_rows: usize = location.shape.iter().rev().skip(1).product();
        let is_whole = |columns: usize| location.format.bytes(columns).is_some();
        ensure!(
            rows.start <= rows.end
                && rows.end <= total_rows
                && columns.start <= columns.end
                && columns.end <= width
                && [columns.start, columns.end, width].into_iter().all(is_whole),
            "{} has no rows {rows:?} with columns {columns:?}: its shape is {:?}",
            named(&own_path),
            location.shape
        );
        let mut parts = Vec::new();
        for (file, offset, bytes) in location.parts().with_context(|| named(&own_path))? {
            let (path, file) = &mut self.files[file];
            let row = bytes / total_rows.max(1);
            let [start, end] = [columns.start, columns.end].map(|column| row * column / width.max(1));
            let mut data = vec![0; (end - start) * rows.len()];
            // Whole rows are one range of the file.
            let length = if end - start == row { data.len() } else { end - start };
            for (index, range) in data.chunks_exact_mut(length.max(1)).enumerate() {
                let position = offset + (row * (rows.start + index) + start) as u64;
                file.seek(SeekFrom::Start(position))
                    .and_then(|_| file.read_exact(range))
                    .with_context(|| named(path))?;
            }
            parts.push(data);
        }
        location.decode(parts).with_context(|| named(&own_path))
    }

    /// Reads an f32 vector, or returns `None` if there is no such tensor.
    ///
    /// # Errors
    /// Returns an error if reading fails or the tensor is not an f32 vector.
    pub fn floats(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
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

/// Entry of a safetensors header.
#[derive(Deserialize)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

fn header(file: &mut File, number: usize) -> Result<Vec<(String, TensorInfo)>> {
    let mut length = [0; 8];
    file.read_exact(&mut length).context("the file is shorter than a header")?;
    let length = u64::from_le_bytes(length);
    let size = file.metadata()?.len();
    ensure!(length <= MAX_HEADER_BYTES.min(size.saturating_sub(8)), "its header would have {length} bytes");
    let mut text = vec![0; usize::try_from(length)?];
    file.read_exact(&mut text)?;
    let header: HashMap<String, Value> = serde_json::from_slice(&text).context("its header is not JSON")?;
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let location = |(name, entry): (String, Value)| {
        let named = || format!("tensor '{name}'");
        let entry: HeaderEntry = serde_json::from_value(entry).with_context(named)?;
        let format = Format::Floats(match entry.dtype.as_str() {
            "F64" => DType::F64,
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            // Types of auxiliary tensors, such as position tables, that are never loaded.
            "I64" => DType::I64,
            "U8" | "BOOL" => DType::U8,
            other => bail!("{} has the unsupported dtype {other}; use F16, BF16, F32 or F64", named()),
        });
        let [start, end] = entry.data_offsets;
        let (offset, encoding, shape) = (8 + length + start, Encoding::Same, entry.shape);
        let location = TensorInfo { file: number, offset, encoding, format, shape };
        let bytes = location.bytes().with_context(named)?;
        ensure!(
            start.checked_add(bytes as u64) == Some(end),
            "{} of shape {:?} has bytes {start} to {end}, but needs {bytes} bytes",
            named(),
            location.shape
        );
        Ok((name, location))
    };
    tensors.map(location).collect()
}

/// Returns the header of a GGUF file, and its tensors in MXFP4, which Candle's parser rejects.
fn read_gguf(file: &File) -> Result<(Content, Vec<Mxfp4Tensor>)> {
    let error = match Content::read(&mut BufReader::new(file)) {
        Ok(content) => return Ok((content, Vec::new())),
        Err(error) => error,
    };
    let Ok(header) = gguf_header::without_mxfp4(&mut BufReader::new(file)) else { return Err(error.into()) };
    if header.tensors.is_empty() {
        return Err(error.into());
    }
    let mut content = Content::read(&mut Cursor::new(header.bytes))?;
    let alignment = content.metadata.get("general.alignment").and_then(|value| value.to_u64().ok());
    content.tensor_data_offset = header.length.next_multiple_of(alignment.unwrap_or(GGUF_ALIGNMENT).max(1));
    Ok((content, header.tensors))
}

/// Joins the numbers and scales of tensors in MXFP4, which are tensors of bytes.
fn join_mxfp4(tensors: &mut HashMap<String, TensorInfo>) -> Result<()> {
    let names: Vec<String> =
        tensors.keys().filter_map(|name| name.strip_suffix("_blocks")).map(str::to_owned).collect();
    for name in names {
        let [numbers, scales] = ["blocks", "scales"].map(|part| tensors.remove(&format!("{name}_{part}")));
        let scales = scales.with_context(|| format!("tensor '{name}_blocks' has no '{name}_scales'"))?;
        let Some(numbers) = numbers else { continue };
        let bytes = Format::Floats(DType::U8);
        let shape = [&scales.shape[..], &[mxfp4::NUMBERS]].concat();
        ensure!(
            numbers.shape == shape && [numbers.format, scales.format] == [bytes; 2],
            "tensor '{name}_blocks' is {:?} {:?}, but '{name}_scales' is {:?} {:?}; MXFP4 requires {} bytes for each scale",
            numbers.format,
            numbers.shape,
            scales.format,
            scales.shape,
            mxfp4::NUMBERS
        );
        let mut shape = scales.shape;
        shape.iter_mut().last().into_iter().for_each(|last| *last *= mxfp4::BLOCK);
        let encoding = Encoding::Mxfp4Parts(scales.file, scales.offset);
        let format = Format::Blocks(GgmlDType::Q5_0);
        tensors.insert(name, TensorInfo { encoding, format, shape, ..numbers });
    }
    Ok(())
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// Returns the safetensors files of a folder: those listed in its index, or the only one.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if index.exists() {
        return weight_files_of_index(folder, &index);
    }
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let with = |wanted| paths.iter().filter(move |path| path.extension().is_some_and(|e| e == wanted));
    match with("safetensors").collect::<Vec<_>>()[..] {
        [only] => Ok(vec![only.clone()]),
        [] if with("gguf").next().is_some() => {
            bail!("{} holds GGUF files: give one of them", folder.display())
        }
        [] => bail!("{} holds no safetensors files and no {INDEX}", folder.display()),
        _ => bail!("{} holds several safetensors files, but no {INDEX}", folder.display()),
    }
}

fn weight_files_of_index(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    let index_json = json(index)?;
    let map = index_json["weight_map"].as_object();
    let map = map.with_context(|| format!("{} has no \"weight_map\"", index.display()))?;
    let names: Option<BTreeSet<&str>> = map.values().map(Value::as_str).collect();
    let names = names.with_context(|| format!("{} names files that are no text", index.display()))?;
    ensure!(!names.is_empty(), "{} names no files", index.display());
    let path = |name: &str| {
        let path = folder.join(name);
        let inside = Path::new(name).file_name().is_some_and(|last| last == name);
        ensure!(inside && path.exists(), "{} names {name:?}, which is not beside it", index.display());
        Ok(path)
    };
    names.into_iter().map(path).collect()
}
