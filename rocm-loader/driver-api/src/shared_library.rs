//! Shared libraries of the system: searched in folders, opened, and never closed.
//!
//! HIP and CUDA register handlers that run at exit, so unloading them would leave those dangling: keep an opened library
//! in a static, which Rust never drops.
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::table::Address;

/// A library that was opened, and where it came from.
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
    /// Where it was looked for, or the loader's message for each file that would not load.
    pub fn open(names: &[&str], first: &[PathBuf], last: &[PathBuf]) -> Result<Self, String> {
        let by_name = names.iter().map(PathBuf::from);
        let mut refusals = Vec::new();
        for file in files_in(first, names).chain(by_name).chain(files_in(last, names)) {
            // SAFETY: opening runs the library's initialisers. The names are those of ROCm or CUDA, from folders that
            // the user or the system trusts; their initialisers need nothing from the caller.
            match unsafe { libloading::Library::new(&file) }.map_err(|error| error.to_string()) {
                Ok(library) => return Ok(Self { library, path: file.display().to_string() }),
                // The loader's message for a bare name that it does not know: reported once below.
                Err(refusal) if refusal.starts_with(&format!("{}: cannot open", file.display())) => {}
                Err(refusal) => refusals.push(refusal),
            }
        }
        if !refusals.is_empty() {
            return Err(refusals.join("; "));
        }
        let folders: Vec<_> = first.iter().chain(last).map(|folder| folder.display().to_string()).collect();
        Err(format!("{} is not in {} or the system's library path", names.join(" or "), folders.join(", ")))
    }

    /// Returns the address of a function of this library.
    ///
    /// # Errors
    /// [`LoadError::SymbolMissing`].
    pub fn address(&self, symbol: &'static str) -> Result<Address, LoadError> {
        // SAFETY: the symbol is a function; whoever calls it gives it its prototype back.
        let found = unsafe { self.library.get::<Option<Address>>(symbol.as_bytes()) };
        found
            .ok()
            .and_then(|address| *address)
            .ok_or_else(|| LoadError::SymbolMissing { symbol, path: self.path.clone() })
    }

    /// Returns the file that was opened, by one of its functions; `None` if the system's loader does not tell it.
    pub fn file(&self, symbol: &'static str) -> Option<PathBuf> {
        if self.path.contains('/') {
            return Some(PathBuf::from(&self.path));
        }
        file_of(self.address(symbol).ok()? as *const c_void)
    }
}

/// Lists the files of these names in these folders that exist, folder by folder.
pub fn files_in(folders: &[PathBuf], names: &[&str]) -> impl Iterator<Item = PathBuf> {
    let files = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    files.filter(|file| file.exists())
}

/// Returns the shared library that a function lies in.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: the structure is plain pointers, for which null is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` outlives the call, which takes any address.
    if unsafe { libc::dladdr(function, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which lives as long as the library: for ever.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(file.to_bytes())))
}

/// Lists the folders of `LD_LIBRARY_PATH`, and those where a system's packages put libraries.
pub fn system_folders() -> Vec<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&named).filter(|f| !f.as_os_str().is_empty()).collect();
    for root in ["/usr/local", "/usr", "/"] {
        folders.extend(library_subfolders().iter().map(|lib| Path::new(root).join(lib)));
    }
    folders
}

/// Lists where a root folder has its libraries: AMD's packages use `lib`, Fedora `lib64`, Debian the multiarch folder.
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
    fn a_function_says_which_file_it_is_in() {
        // C's own library is opened by its bare name.
        let library = SharedLibrary::open(&["libc.so.6"], &[], &[]).expect("every program has it open");
        let file = library.file("qsort").expect("a path");
        assert!(file.is_absolute() && file.ends_with("libc.so.6") && file.exists(), "{file:?}");
        assert_eq!(file_of(std::ptr::null()), None);
    }
}
