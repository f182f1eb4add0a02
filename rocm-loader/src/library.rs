//! ROCm's libraries: where they are looked for, opened when first needed, and never closed.
//!
//! HIP registers handlers that run at exit, so unloading it would leave them dangling: every
//! opened library lives in a static, which Rust never drops.
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::LoadError;

/// The variable that names ROCm's root folder; ROCm's own tools use it too.
pub const ROCM_PATH_VARIABLE: &str = "ROCM_PATH";

/// Where AMD's packages install ROCm.
const DEFAULT_ROOT: &str = "/opt/rocm";

/// A library of ROCm whose functions are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Library {
    /// The HIP runtime.
    Hip,
    /// Dense linear algebra.
    RocBlas,
    /// Convolutions and other layers.
    MiOpen,
    /// Products with a bias, for newer GPUs. Optional: missing is a normal state.
    HipBlasLt,
}

/// A library that was opened, and where it came from.
pub(crate) struct Opened {
    pub(crate) library: libloading::Library,
    /// The path or the bare file name that the system's loader resolved.
    pub(crate) path: String,
}

impl Opened {
    /// The address of a function of this library.
    pub(crate) fn address(&self, symbol: &'static str) -> Result<*mut c_void, LoadError> {
        let missing = || LoadError::SymbolMissing { symbol, path: self.path.clone() };
        // SAFETY: the symbol is a function, whose address is read here as a plain pointer; whoever
        // calls it casts it to the prototype that is checked against rocm-rs' bindings.
        let found = unsafe { self.library.get::<*mut c_void>(symbol.as_bytes()) }.map_err(|_| missing())?;
        let address = *found;
        if address.is_null() { Err(missing()) } else { Ok(address) }
    }

    /// The file that was opened; `None` if the system's loader does not say.
    pub(crate) fn file(&self, symbol: &'static str) -> Option<PathBuf> {
        if self.path.contains('/') {
            return Some(PathBuf::from(&self.path));
        }
        file_of(self.address(symbol).ok()?)
    }
}

/// C's `Dl_info`.
#[repr(C)]
struct SymbolInfo {
    file: *const c_char,
    base: *mut c_void,
    name: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    /// Which file an address of this process was loaded from. 0 if from none.
    fn dladdr(address: *const c_void, info: *mut SymbolInfo) -> c_int;
}

/// The shared library that a function lies in.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    let null = std::ptr::null_mut();
    let mut info = SymbolInfo { file: std::ptr::null(), base: null, name: std::ptr::null(), address: null };
    // SAFETY: `info` has the layout of C's structure and outlives the call.
    if unsafe { dladdr(function, &mut info) } == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which lives as long as the library: for ever.
    let file = unsafe { CStr::from_ptr(info.file) };
    Some(PathBuf::from(OsStr::from_bytes(file.to_bytes())))
}

impl Library {
    /// Every library, in the order in which they are described.
    pub const ALL: [Library; 4] = [Library::Hip, Library::RocBlas, Library::MiOpen, Library::HipBlasLt];

    /// The file name without its version: `libamdhip64.so`.
    pub fn soname_stem(self) -> &'static str {
        match self {
            Library::Hip => "libamdhip64.so",
            Library::RocBlas => "librocblas.so",
            Library::MiOpen => "libMIOpen.so",
            Library::HipBlasLt => "libhipblaslt.so",
        }
    }

    /// The file names to look for, best first: ROCm 7, ROCm 6, whatever a development package links.
    pub fn file_names(self) -> &'static [&'static str] {
        match self {
            Library::Hip => &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"],
            Library::RocBlas => &["librocblas.so.5", "librocblas.so.4", "librocblas.so"],
            Library::MiOpen => &["libMIOpen.so.1", "libMIOpen.so"],
            Library::HipBlasLt => &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"],
        }
    }

    /// What to install when it is missing.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Library::Hip => {
                "Install the HIP runtime (AMD's packages: hip-runtime-amd; Debian and Ubuntu: libamdhip64-6; \
                 Fedora: rocm-hip) or set ROCM_PATH to ROCm's folder"
            }
            Library::RocBlas => {
                "Install rocBLAS (AMD's packages: rocblas; Debian and Ubuntu: librocblas4; Fedora: rocblas) \
                 or set ROCM_PATH to ROCm's folder"
            }
            Library::MiOpen => {
                "Install MIOpen (AMD's packages: miopen-hip; Debian: libmiopen1; Fedora: miopen) or set \
                 ROCM_PATH to ROCm's folder"
            }
            Library::HipBlasLt => {
                "Nothing depends on it: without it products are rocBLAS'. To have it, install hipBLASLt (AMD's and \
                 Fedora's packages: hipblaslt; Debian: libhipblaslt0) or set ROCM_PATH to ROCm's folder"
            }
        }
    }

    /// The opened library; the first call opens it, a failure is remembered.
    pub(crate) fn open(self) -> Result<&'static Opened, LoadError> {
        static HIP: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
        static ROCBLAS: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
        static MIOPEN: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
        static HIPBLASLT: OnceLock<Result<Opened, LoadError>> = OnceLock::new();
        let slot = match self {
            Library::Hip => &HIP,
            Library::RocBlas => &ROCBLAS,
            Library::MiOpen => &MIOPEN,
            Library::HipBlasLt => &HIPBLASLT,
        };
        slot.get_or_init(|| self.find_and_open()).as_ref().map_err(Clone::clone)
    }

    /// Whether a file of this name lies where it would be opened from, without opening it.
    pub(crate) fn is_installed(self) -> bool {
        self.file().is_some()
    }

    /// The file that would be opened, if there is one; nothing is opened.
    pub fn file(self) -> Option<PathBuf> {
        let folders = rocm_folders().into_iter().chain(system_folders());
        folders
            .flat_map(|folder| self.file_names().iter().map(move |name| folder.join(name)))
            .find(|file| file.exists())
    }

    fn find_and_open(self) -> Result<Opened, LoadError> {
        let folders = rocm_folders();
        let mut refusals = Vec::new();
        for folder in &folders {
            for name in self.file_names() {
                let file = folder.join(name);
                if file.exists() {
                    match open_file(&file) {
                        Ok(library) => return Ok(Opened { library, path: file.display().to_string() }),
                        Err(refusal) => refusals.push(refusal),
                    }
                }
            }
        }
        for name in self.file_names() {
            match open_file(Path::new(name)) {
                Ok(library) => return Ok(Opened { library, path: (*name).to_owned() }),
                // "Not found" is said once below; any other refusal says what is really wrong.
                Err(refusal) if refusal.contains("No such file") => {}
                Err(refusal) => refusals.push(refusal),
            }
        }
        let reason = if refusals.is_empty() {
            let folders = folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
            format!("none of {} is in {folders} or the system's library path", self.file_names().join(", "))
        } else {
            refusals.join("; ")
        };
        Err(LoadError::LibraryMissing { library: self, reason })
    }
}

pub(crate) fn open_file(file: &Path) -> Result<libloading::Library, String> {
    // SAFETY: opening runs the library's initialisers. The names are ROCm's own, from folders the
    // user or the system trusts; ROCm's initialisers need nothing from the caller.
    unsafe { libloading::Library::new(file) }.map_err(|error| error.to_string())
}

/// `lib` folders of `ROCM_PATH` and of the default root, in this order.
fn rocm_folders() -> Vec<PathBuf> {
    let named = std::env::var_os(ROCM_PATH_VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from);
    let mut folders = Vec::new();
    for root in named.into_iter().chain([PathBuf::from(DEFAULT_ROOT)]) {
        for lib in library_subfolders() {
            let folder = root.join(lib);
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// Where a system's packages put libraries, and what the dynamic loader was told.
pub(crate) fn system_folders() -> Vec<PathBuf> {
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&told).filter(|f| !f.as_os_str().is_empty()).collect();
    for root in ["/usr/local", "/usr", "/"] {
        folders.extend(library_subfolders().iter().map(|lib| Path::new(root).join(lib)));
    }
    folders
}

/// AMD's packages use `lib`, Fedora `lib64`, Debian the multiarch folder.
fn library_subfolders() -> [&'static str; 3] {
    [
        "lib",
        "lib64",
        if cfg!(target_arch = "aarch64") { "lib/aarch64-linux-gnu" } else { "lib/x86_64-linux-gnu" },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_says_which_file_it_is_in() {
        // C's own library is opened by its bare name.
        let library = open_file(Path::new("libc.so.6")).expect("every program has it open");
        let opened = Opened { library, path: "libc.so.6".to_owned() };
        let file = opened.file("qsort").expect("a path");
        assert!(file.is_absolute() && file.ends_with("libc.so.6") && file.exists(), "{file:?}");
        assert_eq!(file_of(std::ptr::null()), None);
    }
}
