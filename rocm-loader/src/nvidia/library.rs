//! libcuda, libcublas, libcublasLt and libcudnn: where they are looked for.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::LoadError;
use crate::library::{Opened, open_file, system_folders};

/// The GPU driver's library; there is no other version of it.
pub(super) const CUDA: &str = "libcuda.so.1";
/// cuBLAS without its version.
pub(super) const CUBLAS: &str = "libcublas.so";
/// cuDNN without its version.
pub(super) const CUDNN: &str = "libcudnn.so";
/// cuBLASLt, which comes with cuBLAS, without its version.
pub(super) const CUBLASLT: &str = "libcublasLt.so";

/// Where WSL keeps the driver's library.
const WSL_FOLDER: &str = "/usr/lib/wsl/lib";
/// Windows' paravirtual GPU inside WSL.
const WSL_DEVICE: &str = "/dev/dxg";
/// What the system's loader knows by name.
const LOADER_CACHE: &str = "/etc/ld.so.cache";
/// The variables that name CUDA's root folder, the first before the second.
const ROOT_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

const CUDA_ADVICE: &str = "It comes with NVIDIA's GPU driver (525 or newer), not with the CUDA toolkit; a container \
                           has to be given it (--gpus all), and LD_LIBRARY_PATH may name its folder";
const CUBLAS_ADVICE: &str = "Install cuBLAS (NVIDIA's packages: libcublas; PyPI: nvidia-cublas) of a CUDA that the \
                             driver serves, and set CUDA_HOME to CUDA's folder or LD_LIBRARY_PATH to the library's";
/// What is to be done about cuDNN; it opens its other files when they are needed.
pub(super) const CUDNN_ADVICE: &str = "Install cuDNN 9 or 8 (NVIDIA's packages: libcudnn9; PyPI: nvidia-cudnn-cu13 or \
                                       nvidia-cudnn-cu12) with all its files, and set LD_LIBRARY_PATH to their folder, \
                                       or CUDA_HOME to CUDA's folder if they lie there";

/// libcuda, opened at the first call and never closed; a failure is remembered.
pub(super) fn cuda() -> Result<&'static Opened, LoadError> {
    static OPENED: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
    let find = || open(CUDA, &[CUDA], &[], &[PathBuf::from(WSL_FOLDER)], CUDA_ADVICE);
    OPENED.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// cuBLAS, likewise.
pub(super) fn cublas() -> Result<&'static Opened, LoadError> {
    static OPENED: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
    OPENED.get_or_init(|| open_of_cublas(CUBLAS)).as_ref().map_err(Clone::clone)
}

/// cuBLASLt, likewise.
pub(super) fn cublaslt() -> Result<&'static Opened, LoadError> {
    static OPENED: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
    OPENED.get_or_init(|| open_of_cublas(CUBLASLT)).as_ref().map_err(Clone::clone)
}

/// The version that belongs to the driver's before another.
fn open_of_cublas(stem: &'static str) -> Result<Opened, LoadError> {
    let serves_13 = super::RUNNING.get().is_some_and(|running| running.version >= 13_000);
    let versions = if serves_13 { [13, 12] } else { [12, 13] };
    let names = versions.map(|version| format!("{stem}.{version}"));
    open_of_toolkit(stem, &names.each_ref().map(String::as_str), CUBLAS_ADVICE)
}

/// cuDNN, likewise: the newer before the older.
pub(super) fn cudnn() -> Result<&'static Opened, LoadError> {
    static OPENED: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
    let find = || open_of_toolkit(CUDNN, &["libcudnn.so.9", "libcudnn.so.8"], CUDNN_ADVICE);
    OPENED.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// Opens a library that lies with CUDA's toolkit, or where the system's loader looks.
fn open_of_toolkit(stem: &'static str, names: &[&str], advice: &'static str) -> Result<Opened, LoadError> {
    let roots = ROOT_VARIABLES.into_iter().filter_map(std::env::var_os).filter(|root| !root.is_empty());
    let named: Vec<PathBuf> = roots.map(PathBuf::from).flat_map(|root| subfolders(&root)).collect();
    open(stem, names, &named, &subfolders(Path::new("/usr/local/cuda")), advice)
}

fn subfolders(root: &Path) -> [PathBuf; 2] {
    ["lib64", "lib"].map(|folder| root.join(folder))
}

/// Opens the first of `names` that is in the folders `first`, known to the system's loader, or in the folders `last`.
fn open(
    stem: &'static str,
    names: &[&str],
    first: &[PathBuf],
    last: &[PathBuf],
    advice: &'static str,
) -> Result<Opened, LoadError> {
    let in_folders = |folders: &[PathBuf]| {
        let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        files.filter(|file| file.exists()).collect::<Vec<_>>()
    };
    let by_name = names.iter().map(PathBuf::from);
    let mut refusals = Vec::new();
    for file in in_folders(first).into_iter().chain(by_name).chain(in_folders(last)) {
        match open_file(&file) {
            Ok(library) => return Ok(Opened { library, path: file.display().to_string() }),
            // The loader's word for a bare name that it does not know; said once below.
            Err(refusal) if refusal.starts_with(&format!("{}: cannot open", file.display())) => {}
            Err(refusal) => refusals.push(refusal),
        }
    }
    let reason = if refusals.is_empty() {
        let folders: Vec<_> = first.iter().chain(last).map(|folder| folder.display().to_string()).collect();
        format!("{} is not in {} or the system's library path", names.join(" or "), folders.join(", "))
    } else {
        refusals.join("; ")
    };
    Err(LoadError::CudaLibrary { library: stem, reason, advice })
}

/// A library that lacks a function.
pub(super) fn without(library: &'static str, path: &str, symbol: &str) -> LoadError {
    let advice = match library {
        CUDA => CUDA_ADVICE,
        CUBLAS => CUBLAS_ADVICE,
        _ => CUDNN_ADVICE,
    };
    LoadError::CudaLibrary { library, reason: format!("{path} has no function {symbol}"), advice }
}

/// Whether the kernel has an NVIDIA GPU to offer.
pub(super) fn has_device_node() -> bool {
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let nodes = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    Path::new(WSL_DEVICE).exists()
        || nodes.into_iter().any(|node| node.file_name().to_str().is_some_and(is_gpu))
}

/// Whether libcuda can be found, without opening it.
pub(super) fn is_cuda_installed() -> bool {
    let folders = system_folders().into_iter().chain([PathBuf::from(WSL_FOLDER)]);
    folders.into_iter().any(|folder| folder.join(CUDA).exists())
        || std::fs::read(LOADER_CACHE)
            .is_ok_and(|cache| cache.windows(CUDA.len()).any(|name| name == CUDA.as_bytes()))
}
