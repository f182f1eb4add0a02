//! ROCm's libraries: their file names, and the folders that are searched for them.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rocm_driver_api::shared_library::{SharedLibrary, files_in, library_subfolders, system_folders};
use rocm_driver_api::{Library, LoadError};

/// The variable that names ROCm's root folder; ROCm's own tools use it too.
const ROCM_PATH_VARIABLE: &str = "ROCM_PATH";

/// Default root folder of ROCm, as installed by AMD's packages.
const DEFAULT_ROOT: &str = "/opt/rocm";

/// Returns the file names to look for, best first (ROCm 7, ROCm 6, the link of a development package), and the remedy if
/// none is found.
fn names_and_advice(library: Library) -> (&'static [&'static str], &'static str) {
    match library {
        Library::Hip => (
            &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"],
            "Install the HIP runtime (AMD's packages: hip-runtime-amd; Debian and Ubuntu: libamdhip64-6; \
             Fedora: rocm-hip) or set ROCM_PATH to ROCm's folder",
        ),
        Library::RocBlas => (
            &["librocblas.so.5", "librocblas.so.4", "librocblas.so"],
            "Install rocBLAS (AMD's packages: rocblas; Debian and Ubuntu: librocblas4; Fedora: rocblas) \
             or set ROCM_PATH to ROCm's folder",
        ),
        Library::MiOpen => (
            &["libMIOpen.so.1", "libMIOpen.so"],
            "Install MIOpen (AMD's packages: miopen-hip; Debian: libmiopen1; Fedora: miopen) or set \
             ROCM_PATH to ROCm's folder",
        ),
        Library::HipBlasLt => (
            &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"],
            "It is optional: without it rocBLAS computes all matrix products. To use it, install hipBLASLt (AMD's and \
             Fedora's packages: hipblaslt; Debian: libhipblaslt1) or set ROCM_PATH to ROCm's folder",
        ),
        Library::Rccl => (
            &["librccl.so.1", "librccl.so"],
            "Operations between GPUs need it: install RCCL (AMD's and Fedora's packages: rccl; Debian's librccl1 is too \
             old) or set ROCM_PATH to ROCm's folder",
        ),
        _ => (&[], "This driver does not open it"),
    }
}

static OPENED: [OnceLock<Result<SharedLibrary, LoadError>>; Library::ALL.len()] =
    [const { OnceLock::new() }; Library::ALL.len()];

/// Returns a library. The first call opens it; the result is cached even if it is an error.
///
/// # Errors
/// [`LoadError::LibraryMissing`].
pub(super) fn open(library: Library) -> Result<&'static SharedLibrary, LoadError> {
    let (names, advice) = names_and_advice(library);
    let missing = |reason| LoadError::LibraryMissing {
        library: library.soname_stem(),
        platform: "ROCm",
        reason,
        advice,
    };
    let open = || SharedLibrary::open(names, &rocm_folders(), &[]).map_err(missing);
    OPENED[library as usize].get_or_init(open).as_ref().map_err(Clone::clone)
}

/// Returns true if a library is open, or a file with its name is in a folder that is searched.
pub(super) fn is_installed(library: Library) -> bool {
    matches!(OPENED[library as usize].get(), Some(Ok(_))) || file(library).is_some()
}

/// Returns the file that would be opened; `None` if none was found. Opens nothing.
pub(super) fn file(library: Library) -> Option<PathBuf> {
    let folders = [rocm_folders(), system_folders()].concat();
    files_in(&folders, names_and_advice(library).0).next()
}

/// Lists the `lib` folders of `ROCM_PATH` and of the default root, in this order.
fn rocm_folders() -> Vec<PathBuf> {
    let variable = std::env::var_os(ROCM_PATH_VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from);
    let roots: Vec<PathBuf> = variable
        .into_iter()
        .filter(|root| root != Path::new(DEFAULT_ROOT))
        .chain([DEFAULT_ROOT.into()])
        .collect();
    roots.iter().flat_map(|root| library_subfolders().map(|lib| root.join(lib))).collect()
}
