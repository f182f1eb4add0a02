//! Shared libraries of the system: searched in folders, opened, and never closed.
//!
//! HIP and CUDA register exit handlers, which would dangle if the library were unloaded. Keep an opened library in a
//! static, which Rust never drops.
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::table::Address;

/// An opened library and its path.
pub struct SharedLibrary {
    library: libloading::Library,
    /// The path, or the bare file name that the system's loader resolved.
    pub path: String,
}

impl SharedLibrary {
    /// Opens the first of `names`, best first, that is in the folders `first`, known to the system's loader, or in the
    /// folders `last`.
    ///
    /// # Errors
    /// The places that were searched, or the loader's message for each file that would not load.
    pub fn open(names: &[&str], first: &[PathBuf], last: &[PathBuf]) -> Result<Self, String> {
        let by_name = names.iter().map(PathBuf::from);
        let mut failures = Vec::new();
        for file in files_in(first, names).chain(by_name).chain(files_in(last, names)) {
            // SAFETY: opening runs the library's initialisers. The names are those of ROCm or CUDA, from folders that
            // the user or the system trusts; their initialisers need nothing from the caller.
            match unsafe { libloading::Library::new(&file) }.map_err(|error| error.to_string()) {
                Ok(library) => return Ok(Self { library, path: file.display().to_string() }),
                // The loader does not find a bare name: reported once below.
                Err(message) if message.starts_with(&format!("{}: cannot open", file.display())) => {}
                Err(message) => failures.push(message),
            }
        }
        if !failures.is_empty() {
            return Err(failures.join("; "));
        }
        let folders: Vec<_> = first.iter().chain(last).map(|folder| folder.display().to_string()).collect();
        Err(format!("{} is not in {} or the system's library path", names.join(" or "), folders.join(", ")))
    }

    /// Returns the address of a function of this library.
    ///
    /// # Errors
    /// [`LoadError::SymbolMissing`].
    pub fn address(&self, symbol: &'static str) -> Result<Address, LoadError> {
        // SAFETY: the symbol is a function; callers cast the address to its prototype before calling it.
        let found = unsafe { self.library.get::<Option<Address>>(symbol.as_bytes()) };
        found
            .ok()
            .and_then(|address| *address)
            .ok_or_else(|| LoadError::SymbolMissing { symbol, path: self.path.clone() })
    }

    /// Returns the path of the file that contains `symbol`; `None` if the system's loader does not report it.
    pub fn file(&self, symbol: &'static str) -> Option<PathBuf> {
        if self.path.contains('/') {
            return Some(PathBuf::from(&self.path));
        }
        file_of(self.address(symbol).ok()? as *const c_void)
    }
}

/// Lists the existing files with these names in these folders, folder by folder.
pub fn files_in(folders: &[PathBuf], names: &[&str]) -> impl Iterator<Item = PathBuf> {
    let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.filter(|file| file.exists())
}

/// Returns the shared library that contains a function.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: the structure is plain pointers, for which null is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` outlives the call, which takes any address.
    if unsafe { libc::dladdr(function, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the text is the loader's and lives as long as the library, which is never unloaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(file.to_bytes())))
}

/// Lists the folders of `LD_LIBRARY_PATH` and the folders into which system packages install libraries.
pub fn system_folders() -> Vec<PathBuf> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&variable).filter(|f| !f.as_os_str().is_empty()).collect();
    for root in ["/usr/local", "/usr", "/"] {
        folders.extend(library_subfolders().iter().map(|lib| Path::new(root).join(lib)));
    }
    folders
}

/// Lists the library subfolders of a root folder: AMD's packages use `lib`, Fedora `lib64`, Debian the multiarch folder.
pub fn library_subfolders() -> [&'static str; 3] {
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
    fn the_file_of_an_opened_library_is_found() {
        // C's own library is opened by its bare name.
        let library = SharedLibrary::open(&["libc.so.6"], &[], &[]).expect("every program has it open");
        let file = library.file("qsort").expect("a path");
        assert!(file.is_absolute() && file.ends_with("libc.so.6") && file.exists(), "{file:?}");
        assert_eq!(file_of(std::ptr::null()), None);
    }
}
