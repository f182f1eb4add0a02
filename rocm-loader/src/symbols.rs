//! The forwarded functions, and their comparison with real ROCm libraries.
//!
//! The prototypes need no check at run time: the compiler compares each with rocm-rs' bindings and with the functions of
//! the compiled-in drivers.
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol};

use rocm_driver_api::{Library, LoadError};

pub use crate::forward::Symbol;
use crate::functions::ALL;

/// Lists every forwarded function, by library.
pub fn all() -> impl Iterator<Item = &'static Symbol> {
    ALL.iter().copied().flatten().copied()
}

/// Returns the C name of each forwarded function and the number of its calls in this process, including calls that
/// reached no driver. To count the calls of an operation, subtract two readings while nothing else uses a device.
#[cfg(feature = "emulator")]
pub fn calls() -> impl Iterator<Item = (&'static str, u64)> {
    all().map(|symbol| (symbol.name, symbol.calls()))
}

/// Returns the number of driver objects that this process has created and not destroyed: allocations, streams, events,
/// modules, library handles and descriptors. Counted by calls, failed ones included, and only if the software GPU is
/// compiled in; otherwise `None`.
pub fn open_objects() -> Option<i64> {
    #[cfg(feature = "emulator")]
    return Some(calls().map(|(name, count)| object_change(name) * count as i64).sum());
    #[cfg(not(feature = "emulator"))]
    None
}

/// Returns 1 for a function that creates an object, -1 for one that destroys it.
#[cfg(feature = "emulator")]
fn object_change(name: &str) -> i64 {
    const OTHERS: [(&str, &str); 5] = [
        // ncclCommDestroy destroys a communicator, too.
        ("ncclCommInitRankConfig", "ncclCommAbort"),
        ("hipGraphInstantiate", "hipGraphExecDestroy"),
        ("hipMalloc", "hipFree"),
        ("hipHostMalloc", "hipHostFree"),
        ("hipModuleLoadData", "hipModuleUnload"),
    ];
    if name == "hipGraphDestroy" {
        // No function is named after the creation of a graph, and a failed capture creates none.
        return 0;
    }
    let lower = name.to_ascii_lowercase();
    if lower.contains("create") || OTHERS.iter().any(|(creates, _)| *creates == name) {
        1
    } else if lower.contains("destroy") || OTHERS.iter().any(|(_, destroys)| *destroys == name) {
        -1
    } else {
        0
    }
}

/// Comparison of a library file with the functions that are forwarded to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryReport {
    /// The file.
    pub file: PathBuf,
    /// The library, identified by the file name.
    pub library: Library,
    /// Number of functions that it defines as dynamic symbols, of any name.
    pub functions: usize,
    /// Forwarded functions that it defines.
    pub present: Vec<&'static str>,
    /// Forwarded functions that it lacks.
    pub missing: Vec<&'static str>,
}

/// The result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolReport {
    /// One entry per file, in the order given.
    pub libraries: Vec<LibraryReport>,
    /// Number of forwarded functions that rocm-rs declares, whose prototypes the compiler has compared.
    pub prototypes: usize,
    /// Number of forwarded functions that every compiled-in driver has.
    pub required: usize,
}

impl SymbolReport {
    /// Returns true if every file has every function that is forwarded to it.
    pub fn is_complete(&self) -> bool {
        self.libraries.iter().all(|library| library.missing.is_empty())
    }
}

/// Compares the forwarded functions with the dynamic symbols of real library files. The files are only read, so this
/// needs neither a GPU nor the libraries' dependencies.
///
/// # Errors
/// A file cannot be read, is not an ELF shared library, or has a name that matches no [`Library`].
pub fn check(files: &[impl AsRef<Path>]) -> Result<SymbolReport, LoadError> {
    let libraries = files.iter().map(|file| check_file(file.as_ref())).collect::<Result<_, _>>()?;
    Ok(SymbolReport {
        libraries,
        prototypes: all().filter(|symbol| symbol.declared).count(),
        required: all().filter(|symbol| symbol.required).count(),
    })
}

fn check_file(file: &Path) -> Result<LibraryReport, LoadError> {
    let refuse = |reason: String| LoadError::NotALibrary { path: file.display().to_string(), reason };
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let library = Library::ALL
        .into_iter()
        .find(|library| name.starts_with(library.soname_stem()))
        .ok_or_else(|| {
            let stems = Library::ALL.map(Library::soname_stem).join(", ");
            refuse(format!("the name begins with none of {stems}"))
        })?;
    let bytes = std::fs::read(file).map_err(|error| refuse(error.to_string()))?;
    let elf = object::File::parse(bytes.as_slice()).map_err(|error| refuse(error.to_string()))?;
    let functions: HashSet<&str> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    if functions.is_empty() {
        return Err(refuse("it defines no dynamic symbols".to_owned()));
    }
    let wanted = all().filter(|symbol| symbol.library == library).map(|symbol| symbol.name);
    let (present, missing) = wanted.partition(|name| functions.contains(name));
    Ok(LibraryReport { file: file.to_owned(), library, functions: functions.len(), present, missing })
}

impl fmt::Display for SymbolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for report in &self.libraries {
            let forwarded = report.present.len() + report.missing.len();
            writeln!(
                f,
                "{}: {} of {forwarded} forwarded functions",
                report.file.display(),
                report.present.len()
            )?;
            for name in &report.missing {
                writeln!(f, "  missing: {name}")?;
            }
        }
        writeln!(
            f,
            "prototypes: {} equal rocm-rs' bindings (checked by the compiler); in every driver: {}",
            self.prototypes, self.required
        )?;
        let missing: usize = self.libraries.iter().map(|report| report.missing.len()).sum();
        write!(f, "check-symbols: {} libraries, {missing} missing", self.libraries.len())
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name() {
        let count = |wanted: &str| calls().find(|(name, _)| *name == wanted).map(|(_, count)| count);
        let before = count("hipPeekAtLastError").unwrap();
        // SAFETY: it takes no arguments.
        unsafe { crate::functions::hip::hipPeekAtLastError() };
        // Other tests in this process may have called it too.
        assert!(count("hipPeekAtLastError").unwrap() > before);
        assert_eq!(count("hipLaunchKernel"), Some(0));
        assert!(calls().map(|(name, _)| name).eq(all().map(|symbol| symbol.name)));
    }

    #[test]
    fn functions_that_create_have_one_that_destroys() {
        let count = |change| all().filter(|symbol| object_change(symbol.name) == change).count();
        assert!(count(1) >= 8 && count(-1) >= 8, "{} create, {} destroy", count(1), count(-1));
        for (name, change) in [("hipStreamCreateWithFlags", 1), ("hipStreamDestroy", -1), ("hipMalloc", 1)] {
            assert!(all().any(|symbol| symbol.name == name));
            assert_eq!(object_change(name), change, "{name}");
        }
        assert_eq!(object_change("hipLaunchKernel"), 0);
    }
}
