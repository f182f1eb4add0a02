//! CUDA's libraries: searched for and opened at their first use, and never closed.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rocm_driver_api::shared_library::{SharedLibrary, system_folders};
use rocm_driver_api::{LibraryFile, LoadError};

/// File name of the GPU driver's library, which has only this version.
pub(crate) const CUDA: &str = "libcuda.so.1";
/// Folder of the library inside WSL.
pub(crate) const WSL_FOLDER: &str = "/usr/lib/wsl/lib";
/// Device file of Windows' paravirtual GPU inside WSL.
const WSL_DEVICE: &str = "/dev/dxg";
/// Cache file that lists the libraries known to the system's loader.
const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// A table of the functions that the driver calls in a library.
pub(crate) trait Functions: Sized + Send + Sync {
    /// The symbols of the functions.
    const SYMBOLS: &'static [&'static str];

    /// Looks up all functions. The library must stay open.
    ///
    /// # Errors
    /// The name of the first missing function.
    fn of(library: &SharedLibrary) -> Result<Self, &'static str>;
}

/// The file names of a library and the folders to search.
pub(crate) struct Search {
    /// The library's file names, best first.
    pub(crate) names: Vec<String>,
    /// Folders that are searched before the system's.
    pub(crate) first: Vec<PathBuf>,
    /// Folders that are searched after the system's.
    pub(crate) last: Vec<PathBuf>,
}

/// A CUDA library.
pub(crate) struct CudaLibrary<T> {
    /// The ROCm library whose functions it serves.
    pub(crate) serves: rocm_driver_api::Library,
    /// The file name, without a version if there are several.
    pub(crate) name: &'static str,
    /// The remedy if it is missing.
    pub(crate) advice: &'static str,
    pub(crate) search: fn() -> Search,
    /// Empty until the first use; a failure is cached.
    pub(crate) opened: OnceLock<Result<(SharedLibrary, T), LoadError>>,
}

impl<T: Functions> CudaLibrary<T> {
    /// Returns the library and its functions.
    ///
    /// # Errors
    /// [`LoadError::LibraryMissing`].
    #[inline]
    pub(crate) fn open(&self) -> Result<&(SharedLibrary, T), LoadError> {
        self.opened.get_or_init(|| self.find_and_open()).as_ref().map_err(Clone::clone)
    }

    fn find_and_open(&self) -> Result<(SharedLibrary, T), LoadError> {
        let missing = |reason| LoadError::LibraryMissing {
            library: self.name,
            platform: "CUDA",
            reason,
            advice: self.advice,
        };
        let Search { names, first, last } = (self.search)();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let library = SharedLibrary::open(&names, &first, &last).map_err(missing)?;
        match T::of(&library) {
            Ok(functions) => Ok((library, functions)),
            Err(symbol) => Err(missing(format!("{} has no function {symbol}", library.path))),
        }
    }

    /// Opens the library and returns its entry for reports.
    pub(crate) fn report(&self) -> LibraryFile {
        let file = self.open().ok().and_then(|(library, _)| library.file(T::SYMBOLS[0]));
        LibraryFile { serves: self.serves, name: self.name, file }
    }
}

/// Returns true if Linux has a device file for an NVIDIA GPU.
fn has_device_node() -> bool {
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let nodes = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    Path::new(WSL_DEVICE).exists()
        || nodes.into_iter().any(|node| node.file_name().to_str().is_some_and(is_gpu))
}

/// Returns true if a GPU and its driver's library exist. Opens nothing.
pub(crate) fn is_available() -> bool {
    let folders = system_folders().into_iter().chain([PathBuf::from(WSL_FOLDER)]);
    let is_installed = || {
        folders.into_iter().any(|folder| folder.join(CUDA).exists())
            || std::fs::read(LOADER_CACHE)
                .is_ok_and(|cache| cache.windows(CUDA.len()).any(|name| name == CUDA.as_bytes()))
    };
    has_device_node() && is_installed()
}

/// Returns the likely reasons why an installed driver sees no GPU.
pub(crate) fn reasons_for_no_device() -> String {
    let mut reasons = Vec::new();
    if !has_device_node() {
        reasons.push(
            "there is no /dev/nvidia0 (no NVIDIA GPU, its kernel driver is not loaded, or the container has no access \
             to it)"
                .to_owned(),
        );
    }
    if let Ok(value) = std::env::var("CUDA_VISIBLE_DEVICES") {
        reasons.push(format!("CUDA_VISIBLE_DEVICES={value:?} may hide GPUs"));
    }
    if reasons.is_empty() { "run `nvidia-smi` for details".to_owned() } else { reasons.join("; ") }
}
