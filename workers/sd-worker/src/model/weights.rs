//! Weights of a component, loaded from safetensors files one tensor at a time to limit host memory.
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use crate::{Error, Result};

/// File name stems of weights.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
/// Maximum header size in bytes according to the safetensors format.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Returns the weight files of a component.
///
/// # Errors
/// There are no weight files, or some of several parts are missing.
pub(super) fn files(folder: &Path, half: bool) -> Result<Vec<PathBuf>> {
    let cannot = |e| Error::model(format!("cannot list {}: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(cannot)?;
    let mut found: Vec<(ShardName, PathBuf)> =
        entries.flatten().filter_map(|entry| Some((part(&entry.path())?, entry.path()))).collect();
    found.sort();
    // If both precisions are available, use the one that needs no conversion.
    let wanted = [half, !half].into_iter().find(|half| found.iter().any(|(part, _)| part.half == *half));
    found.retain(|(part, _)| Some(part.half) == wanted);
    let Some((first, _)) = found.first() else {
        return Err(Error::model(format!(
            "{} holds no safetensors named {}",
            folder.display(),
            STEMS.map(|stem| format!("{stem}.safetensors or {stem}.fp16.safetensors")).join(", ")
        )));
    };
    let (stem, of) = (first.stem, first.of);
    found.retain(|(part, _)| part.stem == stem && part.of == of);
    if found.len() != of {
        return Err(Error::model(format!(
            "{} holds {} of {of} parts of its weights",
            folder.display(),
            found.len()
        )));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Parsed file name: `stem[.fp16][-00001-of-00002][.fp16].safetensors`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShardName {
    half: bool,
    stem: usize,
    of: usize,
    number: usize,
}

fn part(path: &Path) -> Option<ShardName> {
    let name = path.file_name()?.to_str()?.strip_suffix(".safetensors")?;
    let (stem, rest) = STEMS.iter().enumerate().find_map(|(i, stem)| Some((i, name.strip_prefix(stem)?)))?;
    let half = rest.contains(".fp16");
    let rest = rest.replacen(".fp16", "", 1);
    if rest.is_empty() {
        return Some(ShardName { half, stem, of: 1, number: 1 });
    }
    let (number, of) = rest.strip_prefix('-')?.split_once("-of-")?;
    Some(ShardName { half, stem, of: of.parse().ok()?, number: number.parse().ok()? })
}

/// Open safetensors files.
pub(super) struct Weights {
    /// Path, offset of the data, and open file.
    files: Vec<(PathBuf, u64, Mutex<File>)>,
    tensors: HashMap<String, (usize, TensorInfo)>,
    metadata: HashMap<String, String>,
}

impl Weights {
    /// Opens files and reads their headers.
    ///
    /// # Errors
    /// A file cannot be read, is not a safetensors file, or is shorter than its header requires.
    pub fn open(files: &[PathBuf]) -> Result<Self> {
        let mut weights = Self { files: Vec::new(), tensors: HashMap::new(), metadata: HashMap::new() };
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
                weights.tensors.insert(name, (weights.files.len(), info.clone()));
            }
            weights.metadata.extend(header.metadata().clone().unwrap_or_default());
            weights.files.push((path.clone(), start, Mutex::new(file)));
        }
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

    /// Returns an entry of the metadata of the files.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Reads a tensor, or a part of its rows, in the dtype of the file, except that f8 becomes f16. `part` is the first of
    /// `of` equal parts, their number, and `of`.
    ///
    /// # Errors
    /// The tensor is missing, its dtype is not supported, or the file cannot be read.
    pub fn load(&self, name: &str, part: Option<(usize, usize, usize)>) -> candle_core::Result<Tensor> {
        let Some((file, info)) = self.tensors.get(name) else {
            candle_core::bail!("{} has no tensor {name}", self.path().display())
        };
        let (path, start, file) = &self.files[*file];
        let mut shape = info.shape.clone();
        let (mut from, to) = info.data_offsets;
        let mut size = to - from;
        if let Some((first, count, of)) = part {
            match shape.first_mut() {
                Some(rows) if rows.is_multiple_of(of) => *rows = *rows / of * count,
                _ => {
                    candle_core::bail!(
                        "{}: {name} has shape {shape:?}, which does not consist of {of} equal parts",
                        path.display()
                    )
                }
            }
            from += size / of * first;
            size = size / of * count;
        }
        let mut bytes = vec![0; size];
        {
            // A poisoned lock is harmless, because each read starts with a seek.
            let mut file = file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let read =
                file.seek(SeekFrom::Start(start + from as u64)).and_then(|_| file.read_exact(&mut bytes));
            read.map_err(|e| candle_core::Error::msg(format!("{}: {name}: {e}", path.display())))?;
        }
        match info.dtype {
            // These are the upper bytes of f16.
            Dtype::F8_E5M2 => {
                let wide: Vec<u8> = bytes.into_iter().flat_map(|byte| [0, byte]).collect();
                Tensor::from_raw_buffer(&wide, DType::F16, &shape, &Device::Cpu)
            }
            Dtype::F8_E4M3 => {
                Tensor::from_raw_buffer(&bytes, DType::F8E4M3, &shape, &Device::Cpu)?.to_dtype(DType::F16)
            }
            dtype => {
                let dtype = DType::try_from(dtype)
                    .map_err(|e| candle_core::Error::msg(format!("{}: {name}: {e}", path.display())))?;
                Tensor::from_raw_buffer(&bytes, dtype, &shape, &Device::Cpu)
            }
        }
    }
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
        Self { weights, prefix, rename, used: Arc::default(), loaded: Arc::default(), has_list: true }
    }

    /// Changes the component so that [`Self::take_loaded`] returns nothing, for networks that do not share the storage of
    /// all weights, which the list would hold in memory.
    pub fn without_list(self) -> Self {
        Self { has_list: false, ..self }
    }

    /// Marks the tensors whose names begin with `start` after the prefix as used.
    pub fn ignore(&self, start: &str) {
        let start = format!("{}{start}", self.prefix);
        let names = self.weights.names().into_iter().filter(|name| name.starts_with(&start));
        let mut used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        used.extend(names.map(str::to_owned));
    }

    /// Returns the size of its tensors in bytes.
    pub fn bytes(&self) -> u64 {
        let own = self.weights.tensors.iter().filter(|(name, _)| name.starts_with(self.prefix));
        own.map(|(_, (_, info))| (info.data_offsets.1 - info.data_offsets.0) as u64).sum()
    }

    /// Returns the number of elements of its tensors.
    pub fn elements(&self) -> usize {
        let own = self.weights.tensors.iter().filter(|(name, _)| name.starts_with(self.prefix));
        own.map(|(_, (_, info))| info.shape.iter().product::<usize>()).sum()
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
        // Files with original names store some linear layers as 1x1 convolutions.
        let trimmed = |dims: &[usize]| {
            let mut dims = dims.to_vec();
            while self.rename.is_some() && dims.len() > 2 && dims.last() == Some(&1) {
                dims.pop();
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

    /// Checks that the stored tensors are exactly those that a network requires, without reading them.
    ///
    /// # Errors
    /// Returns a message about the first tensor that is missing, has another shape or a dtype that is not supported, or
    /// does not belong to the network.
    pub fn check(&self, required: &[(String, Shape)]) -> std::result::Result<(), String> {
        let path = self.weights.path().display();
        let mut stored = HashSet::new();
        for (name, shape) in required {
            let (own, _) = self.stored(name);
            let Some((_, info)) = self.weights.tensors.get(&own) else {
                return Err(format!("{path} has no tensor {own}"));
            };
            if let Some(mismatch) = self.mismatch(name, shape) {
                return Err(mismatch);
            }
            let is_known =
                DType::try_from(info.dtype).is_ok() || matches!(info.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2);
            if !is_known {
                return Err(format!("{path}: {own} has dtype {:?}, which is not supported", info.dtype));
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
        let reader = Reader { component: self.clone(), on_read };
        VarBuilder::from_backend(Box::new(reader), dtype, device.clone())
    }

    /// Returns the weights that were loaded, which share their storage with the network, and forgets them.
    pub fn take_loaded(&self) -> HashMap<String, Tensor> {
        std::mem::take(&mut self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
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

struct Reader {
    component: Component,
    on_read: OnRead,
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
        let part = match view {
            View::Rows { from, count, of } => Some((from, count, of)),
            View::Whole | View::Transposed | View::SwappedHalves => None,
        };
        let mut tensor = self.component.weights.load(&stored, part)?;
        match view {
            View::Transposed => tensor = tensor.t()?.contiguous()?,
            View::SwappedHalves => {
                let half = tensor.dim(0)? / 2;
                let halves = [tensor.narrow(0, half, half)?, tensor.narrow(0, 0, half)?];
                tensor = Tensor::cat(&halves, 0)?;
            }
            View::Whole | View::Rows { .. } => {}
        }
        (self.on_read)(tensor.elem_count() * tensor.dtype().size_in_bytes());
        self.component.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(stored);
        tensor.to_dtype(dtype)?.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.component.weights.tensors.contains_key(&self.component.stored(name).0)
    }
}
