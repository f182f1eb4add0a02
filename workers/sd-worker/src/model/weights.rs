//! Weights of a component, loaded from safetensors or GGUF files one tensor at a time to limit host memory.
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use model_thread::error_summary;
use safetensors::tensor::{Dtype, Metadata};

use super::low_rank::LayerPart;
use super::stored_tensor::{Format, StoredTensor};
use super::{gguf, scaled};
use crate::{Error, Result};

/// Maximum header size in bytes according to the safetensors format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Parts of the names of matrices of GGUF files that become floats, because their layers have no products with quantized
/// matrices: embeddings, and layers of residual blocks and of VAEs.
const FLOATS: [&str; 10] = [
    ".emb_layers.1.",
    ".mid.attn_1.",
    ".time_emb_proj.",
    "attn_rel_b.",
    "coder.mid_block.",
    "pos_embed",
    "position_embedding.",
    "positional_embedding",
    "relative_attention_bias.",
    "token_embedding.",
];

/// Open safetensors or GGUF files.
pub(super) struct Weights {
    files: Vec<(PathBuf, Mutex<File>)>,
    /// Tensors by their names, with the index of the file.
    tensors: HashMap<String, (usize, StoredTensor)>,
    metadata: HashMap<String, Value>,
    is_gguf: bool,
}

impl Weights {
    /// Opens a GGUF file and reads its header.
    ///
    /// # Errors
    /// The file cannot be read or is cut, or its header is damaged.
    pub fn open_gguf(path: &Path) -> Result<Self> {
        let bad = |e: std::io::Error| Error::model(format!("{}: {e}", path.display()));
        let mut file = File::open(path).map_err(bad)?;
        let size = file.metadata().map_err(bad)?.len();
        let (tensors, metadata) = gguf::header(path, &mut file, size)?;
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, (0, tensor))).collect();
        Ok(Self { files: vec![(path.to_owned(), Mutex::new(file))], tensors, metadata, is_gguf: true })
    }

    /// Opens safetensors files and reads their headers.
    ///
    /// # Errors
    /// A file cannot be read, is not a safetensors file, is shorter than its header requires, or has invalid factors.
    pub fn open(files: &[PathBuf]) -> Result<Self> {
        let mut weights =
            Self { files: Vec::new(), tensors: HashMap::new(), metadata: HashMap::new(), is_gguf: false };
        for path in files {
            let bad = |e: &dyn std::fmt::Display| Error::model(format!("{}: {e}", path.display()));
            let mut file = File::open(path).map_err(|e| bad(&e))?;
            let size = file.metadata().map_err(|e| bad(&e))?.len();
            let cut = |needed: u64| {
                bad(&format!("the file is cut: {size} bytes, but its header requires {needed}"))
            };
            let mut length = [0; 8];
            if size < length.len() as u64 {
                return Err(cut(length.len() as u64));
            }
            file.read_exact(&mut length).map_err(|e| bad(&e))?;
            let length = u64::from_le_bytes(length);
            if length > MAX_HEADER_BYTES {
                return Err(bad(&"not a safetensors file: its header exceeds 100000000 bytes"));
            }
            let start = 8 + length;
            if size < start {
                return Err(cut(start));
            }
            let mut header = Vec::new();
            file.by_ref().take(length).read_to_end(&mut header).map_err(|e| bad(&e))?;
            let header: Metadata = serde_json::from_slice(&header)
                .map_err(|e| bad(&format!("the header of the safetensors file is damaged: {e}")))?;
            for (name, info) in header.tensors() {
                let end = start + info.data_offsets.1 as u64;
                if size < end {
                    return Err(cut(end));
                }
                let tensor = StoredTensor {
                    format: Format::Floats(info.dtype),
                    shape: info.shape.clone(),
                    offset: start + info.data_offsets.0 as u64,
                    bytes: info.data_offsets.1 - info.data_offsets.0,
                    scale: None,
                };
                weights.tensors.insert(name, (weights.files.len(), tensor));
            }
            let metadata = header.metadata().clone().unwrap_or_default();
            weights.metadata.extend(metadata.into_iter().map(|(key, text)| (key, Value::String(text))));
            weights.files.push((path.clone(), Mutex::new(file)));
        }
        let files = &weights.files;
        scaled::attach(&mut weights.tensors, &|name, (file, tensor)| {
            let (path, file) = &files[*file];
            let bytes = read_at(file, tensor.offset, tensor.bytes).map_err(name_file(path, name))?;
            tensor.decode(bytes, &tensor.shape)
        })
        .map_err(|why| Error::model(format!("{}: {why}", weights.path().display())))?;
        Ok(weights)
    }

    /// Returns the path of the first file, for messages.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), |(path, ..)| path)
    }

    /// Returns the names of the tensors, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Returns the shape of a tensor, if it exists.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensors.get(name)?.1.shape)
    }

    /// Returns an entry of the metadata of the files that is a string.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.value(key)?.to_string().ok().map(String::as_str)
    }

    /// Returns an entry of the metadata of the files.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Returns the format of a matrix that stays quantized.
    fn blocks(&self, name: &str) -> Option<GgmlDType> {
        let (_, tensor) = self.tensors.get(name)?;
        let is_float = FLOATS.iter().any(|part| name.contains(part));
        tensor.block_rows().filter(|_| !is_float)
    }

    /// Returns true for a GGUF file.
    pub fn is_gguf(&self) -> bool {
        self.is_gguf
    }

    /// Reads the bytes of a part of a tensor, which is not transposed. Returns the tensor, the bytes, and the shape of the
    /// part.
    fn read(&self, name: &str, view: View) -> candle_core::Result<(&StoredTensor, Vec<u8>, Vec<usize>)> {
        let Some((file, tensor)) = self.tensors.get(name) else {
            candle_core::bail!("{} has no tensor {name}", self.path().display())
        };
        let (path, file) = &self.files[*file];
        let mut shape = tensor.shape.clone();
        let (mut offset, mut size) = (tensor.offset, tensor.bytes);
        if let View::Rows { from, count, of } = view {
            match shape.first_mut() {
                Some(rows) if rows.is_multiple_of(of) && tensor.has_parts(of) => *rows = *rows / of * count,
                _ => {
                    candle_core::bail!(
                        "{}: {name} has shape {shape:?}, which does not consist of {of} equal parts",
                        path.display()
                    )
                }
            }
            offset += (size / of * from) as u64;
            size = size / of * count;
        }
        if view == View::SwappedHalves && !tensor.has_parts(2) {
            candle_core::bail!("{}: {name} does not consist of two halves of whole blocks", path.display())
        }
        let mut bytes = read_at(file, offset, size).map_err(name_file(path, name))?;
        if view == View::SwappedHalves {
            bytes.rotate_left(size / 2);
        }
        Ok((tensor, bytes, shape))
    }

    /// Returns a function that adds the file and the tensor to an error.
    fn name_tensor(&self, name: &str) -> impl Fn(candle_core::Error) -> candle_core::Error {
        let start = format!("{}: {name}", self.path().display());
        move |e| candle_core::Error::msg(format!("{start}: {}", error_summary(&e)))
    }

    /// Reads a tensor in the dtype of the file, except that f8 becomes f16, and blocks and scaled tensors become f32.
    ///
    /// # Errors
    /// The tensor is missing, its dtype is not supported, or the file cannot be read.
    pub fn load(&self, name: &str) -> candle_core::Result<Tensor> {
        let (tensor, bytes, shape) = self.read(name, View::Whole)?;
        tensor.decode(bytes, &shape).map_err(self.name_tensor(name))
    }
}

/// Reads bytes of a file.
fn read_at(file: &Mutex<File>, offset: u64, size: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    // A poisoned lock is harmless, because each read starts with a seek.
    let mut file = file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns a function that adds a file and a tensor to an error of the operating system.
fn name_file(path: &Path, name: &str) -> impl Fn(std::io::Error) -> candle_core::Error {
    let start = format!("{}: {name}", path.display());
    move |e| candle_core::Error::msg(format!("{start}: {e}"))
}

/// Part of a stored tensor that a network uses as a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The whole tensor.
    Whole,
    /// Some of the equal parts of the rows.
    Rows {
        /// First part.
        from: usize,
        /// Number of parts.
        count: usize,
        /// Number of all parts.
        of: usize,
    },
    /// The second half of the rows before the first.
    SwappedHalves,
    /// The transposed matrix.
    Transposed,
}

impl View {
    /// Returns the number of rows of the stored tensor for a weight with this number of rows.
    pub fn stored_rows(self, rows: usize) -> usize {
        match self {
            Self::Rows { count, of, .. } => rows / count * of,
            _ => rows,
        }
    }
}

/// Returns the name and the part of the stored tensor for the name of a weight.
pub(super) type Rename = Arc<dyn Fn(&str) -> (String, View) + Send + Sync>;
/// Receives the number of bytes after each read.
pub(super) type OnRead = Arc<dyn Fn(usize) + Send + Sync>;

/// Weights of a network.
#[derive(Clone)]
pub(super) struct Component {
    weights: Arc<Weights>,
    /// Start of the names of its tensors.
    prefix: &'static str,
    /// Names in the file; `None` if they are those of the network.
    rename: Option<Rename>,
    /// Stored tensors that have been used.
    used: Arc<Mutex<HashSet<String>>>,
    /// Weights that were loaded, by their names in the network.
    loaded: Arc<Mutex<HashMap<String, Tensor>>>,
    /// Weights of linear layers that were loaded through [`super::layer_builder::LayerBuilder`], by their names in the network.
    layers: Arc<Mutex<HashMap<String, LayerPart>>>,
    /// If false, `loaded` stays empty.
    has_list: bool,
}

impl std::fmt::Debug for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Component({}, {:?})", self.weights.path().display(), self.prefix)
    }
}

impl Component {
    /// Creates a component whose weights have the names of the network.
    pub fn of(weights: Weights) -> Self {
        Self {
            weights: Arc::new(weights),
            prefix: "",
            rename: None,
            used: Arc::default(),
            loaded: Arc::default(),
            layers: Arc::default(),
            has_list: true,
        }
    }

    /// Creates a component of a file with other names, of the tensors whose names begin with `prefix`.
    pub fn renamed(
        weights: Arc<Weights>,
        prefix: &'static str,
        rename: impl Fn(&str) -> (String, View) + Send + Sync + 'static,
    ) -> Self {
        let rename: Option<Rename> = Some(Arc::new(rename));
        let (used, loaded, layers) = Default::default();
        Self { weights, prefix, rename, used, loaded, layers, has_list: true }
    }

    /// Returns the path of the first file, for messages.
    pub fn path(&self) -> &Path {
        self.weights.path()
    }

    /// Changes the component so that [`Self::take_loaded`] returns nothing, for networks that do not share the storage of
    /// all weights, which the list would hold in memory.
    pub fn without_list(self) -> Self {
        Self { has_list: false, ..self }
    }

    /// Marks tensors as used although no weight of the network needs them: those for which `is_ignored` returns true,
    /// given the name after the prefix.
    pub fn ignore(&self, is_ignored: impl Fn(&str) -> bool) {
        let is_own = |name: &&str| name.strip_prefix(self.prefix).is_some_and(&is_ignored);
        let names = self.weights.names().into_iter().filter(is_own);
        let mut used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        used.extend(names.map(str::to_owned));
    }

    /// Calls `f` for each of its tensors that is not ignored, and returns the sum of the results.
    fn sum(&self, f: impl Fn(&str, &StoredTensor) -> usize) -> usize {
        let used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let own = self.weights.tensors.iter();
        let own = own.filter(|(name, _)| name.starts_with(self.prefix) && !used.contains(*name));
        own.map(|(name, (_, tensor))| f(name, tensor)).sum()
    }

    /// Returns the size of its tensors in bytes, before they are loaded.
    pub fn bytes(&self) -> usize {
        self.sum(|_, tensor| tensor.bytes)
    }

    /// Returns the size in bytes that its tensors will have in memory, where floats have this dtype, and matrices stay
    /// quantized.
    pub fn loaded_bytes(&self, dtype: DType) -> usize {
        self.sum(|name, tensor| match self.weights.blocks(name) {
            Some(_) => tensor.bytes,
            None => tensor.shape.iter().product::<usize>() * dtype.size_in_bytes(),
        })
    }

    /// Returns the size in bytes that a weight of the network will have in memory, as for [`Self::loaded_bytes`].
    pub fn weight_bytes(&self, name: &str, shape: &Shape, dtype: DType) -> usize {
        let (stored, _) = self.stored(name);
        match (self.weights.blocks(&stored), self.weights.tensors.get(&stored)) {
            (Some(format), Some((_, tensor))) if tensor.shape.len() == shape.rank() => {
                shape.elem_count() / format.block_size() * format.type_size()
            }
            _ => shape.elem_count() * dtype.size_in_bytes(),
        }
    }

    /// Returns true if a weight of the network is stored in the file.
    pub fn has(&self, name: &str) -> bool {
        self.weights.shape(&self.stored(name).0).is_some()
    }

    /// Returns name and viewed part of the stored tensor for a weight of the network.
    fn stored(&self, name: &str) -> (String, View) {
        match &self.rename {
            Some(rename) => {
                let (name, view) = rename(name);
                (format!("{}{name}", self.prefix), view)
            }
            None => (name.to_owned(), View::Whole),
        }
    }

    /// Returns the shape of the stored tensor, or of the part of it, for a weight of the network, if it exists.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let (stored, view) = self.stored(name);
        let mut shape = self.weights.shape(&stored)?.to_vec();
        match (view, &mut shape[..]) {
            (View::Rows { count, of, .. }, [rows, ..]) => *rows = *rows / of * count,
            (View::Transposed, [rows, columns]) => std::mem::swap(rows, columns),
            _ => {}
        }
        Some(shape)
    }

    /// Describes the shape of the stored tensor for a weight if the network requires another one.
    fn mismatch(&self, name: &str, shape: &Shape) -> Option<String> {
        // Files with original names store some linear layers as 1x1 convolutions, and GGUF files lack leading ones.
        let trimmed = |dims: &[usize]| {
            let mut dims = dims.to_vec();
            while self.rename.is_some() && dims.len() > 2 && dims.last() == Some(&1) {
                dims.pop();
            }
            while self.rename.is_some() && dims.len() > 2 && dims.first() == Some(&1) {
                dims.remove(0);
            }
            dims
        };
        let found = self.shape(name).filter(|found| trimmed(found) != trimmed(shape.dims()))?;
        let (stored, view) = self.stored(name);
        let path = self.weights.path().display();
        let (found, part) = match view {
            View::Rows { count, of, .. } => {
                let whole = self.weights.shape(&stored)?.to_vec();
                (whole, format!(" in {count} of {of} equal parts of its rows"))
            }
            _ => (found, String::new()),
        };
        Some(format!("{path}: {stored} has shape {found:?}, but the configuration requires {shape:?}{part}"))
    }

    /// Checks that the stored tensors are exactly those that a network requires and those that are marked as used, without
    /// reading them.
    ///
    /// # Errors
    /// Returns a message about the first tensor that is missing, has another shape or a dtype that is not supported, or
    /// does not belong to the network.
    pub fn check(&self, required: &[(String, Shape)]) -> std::result::Result<(), String> {
        let path = self.weights.path().display();
        let mut stored = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        for (name, shape) in required {
            let (own, _) = self.stored(name);
            let Some((_, tensor)) = self.weights.tensors.get(&own) else {
                return Err(format!("{path} has no tensor {own}"));
            };
            if let Some(mismatch) = self.mismatch(name, shape) {
                return Err(mismatch);
            }
            match tensor.format {
                Format::Floats(Dtype::F8_E4M3 | Dtype::F8_E5M2) | Format::Blocks(_) => {}
                Format::Floats(dtype) if DType::try_from(dtype).is_ok() => {}
                Format::Floats(dtype) => {
                    return Err(format!("{path}: {own} has dtype {dtype:?}, which is not supported"));
                }
            }
            stored.insert(own);
        }
        self.extra(&stored, |_| false).map_or(Ok(()), Err)
    }

    /// Describes the stored tensors whose names begin with the prefix that are not in `used` and not ignored, if there
    /// are any.
    fn extra(&self, used: &HashSet<String>, ignored: impl Fn(&str) -> bool) -> Option<String> {
        let is_extra = |name: &&str| name.starts_with(self.prefix) && !used.contains(*name) && !ignored(name);
        let extra: Vec<&str> = self.weights.names().into_iter().filter(is_extra).collect();
        let (path, first, count) = (self.weights.path().display(), extra.first()?, extra.len());
        Some(format!("{path}: {count} tensors do not belong to this architecture, such as {first}"))
    }

    /// Returns a source of weights. Each tensor is converted to `dtype` when it is loaded.
    pub fn open(&self, dtype: DType, device: &Device, on_read: OnRead) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.reader(on_read)), dtype, device.clone())
    }

    /// Returns a source of quantized matrices.
    pub fn reader(&self, on_read: OnRead) -> Reader {
        Reader { component: self.clone(), on_read }
    }

    /// Returns the weights that were loaded, which share their storage with the network, and forgets them.
    pub fn take_loaded(&self) -> HashMap<String, Tensor> {
        std::mem::take(&mut self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Returns the weights of linear layers that were loaded, and forgets them.
    pub fn take_layers(&self) -> HashMap<String, LayerPart> {
        std::mem::take(&mut self.layers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Checks that the network that was built used all tensors whose names begin with the prefix, except those for
    /// which `ignored` returns true. Names of the network itself are not checked.
    ///
    /// # Errors
    /// A tensor was not used.
    pub fn check_all_used(&self, ignored: impl Fn(&str) -> bool) -> Result<()> {
        if self.rename.is_none() {
            return Ok(());
        }
        let used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.extra(&used, ignored).map_or(Ok(()), |extra| Err(Error::model(extra)))
    }
}

/// Reads the weights of a component.
#[derive(Clone)]
pub(super) struct Reader {
    component: Component,
    on_read: OnRead,
}

impl Reader {
    /// Reads a part of a stored tensor, and marks it as used.
    fn read(&self, stored: &str, view: View) -> candle_core::Result<(&StoredTensor, Vec<u8>, Vec<usize>)> {
        let read = self.component.weights.read(stored, view)?;
        (self.on_read)(read.1.len());
        let mut used = self.component.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        used.insert(stored.to_owned());
        Ok(read)
    }

    /// Records that a weight of the network is a part of a linear layer.
    pub fn add_layer(&self, name: String, part: LayerPart) {
        let mut layers = self.component.layers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        layers.insert(name, part);
    }

    /// Returns true if a weight is stored as a matrix whose products are computed from blocks.
    pub fn has_blocks(&self, name: &str) -> bool {
        let (stored, view) = self.component.stored(name);
        view != View::Transposed && self.component.weights.blocks(&stored).is_some()
    }

    /// Loads the rows of several matrices of this shape as one quantized matrix, if all are stored in one format of
    /// blocks, and their rows consist of whole blocks.
    ///
    /// # Errors
    /// A matrix has another shape, the file cannot be read, or the device is out of memory.
    pub fn quantized(
        &self,
        names: &[String],
        (rows, columns): (usize, usize),
        device: &Device,
    ) -> candle_core::Result<Option<QTensor>> {
        let weights = &self.component.weights;
        let stored: Vec<_> = names.iter().map(|name| self.component.stored(name)).collect();
        let Some((first, _)) = stored.first() else { return Ok(None) };
        let Some(format) = weights.blocks(first) else { return Ok(None) };
        if stored.iter().any(|(name, view)| weights.blocks(name) != Some(format) || *view == View::Transposed)
        {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (name, (stored, view)) in names.iter().zip(&stored) {
            if let Some(mismatch) = self.component.mismatch(name, &(rows, columns).into()) {
                candle_core::bail!("{mismatch}")
            }
            all.extend(self.read(stored, *view)?.1);
        }
        let shape = vec![rows * names.len(), columns];
        qtensor_from_ggml(format, &all, shape, device).map(Some).map_err(weights.name_tensor(first))
    }
}

impl SimpleBackend for Reader {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        if let Some(mismatch) = self.component.mismatch(name, &shape) {
            candle_core::bail!("{mismatch}")
        }
        let weight = self.get_unchecked(name, dtype, device)?.reshape(shape)?;
        if self.component.has_list {
            let mut loaded = self.component.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            loaded.insert(name.to_owned(), weight.clone());
        }
        Ok(weight)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let (stored, view) = self.component.stored(name);
        let (tensor, bytes, shape) = self.read(&stored, view)?;
        let mut tensor = tensor.decode(bytes, &shape).map_err(self.component.weights.name_tensor(&stored))?;
        if view == View::Transposed {
            tensor = tensor.t()?.contiguous()?;
        }
        tensor.to_dtype(dtype)?.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.component.has(name)
    }
}
