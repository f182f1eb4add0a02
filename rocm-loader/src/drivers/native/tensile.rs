//! Search for rocBLAS' kernels (Tensile files) for a GPU. Without them rocBLAS ends the process at the first product, so
//! callers check first.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rocm_driver_api::{Library, LoadError};

use super::library;

/// Variable that replaces the folder of rocBLAS' files, which is next to its library by default.
const LIBPATH_VARIABLE: &str = "ROCBLAS_TENSILE_LIBPATH";

/// File extensions of Tensile's descriptions and code objects.
const EXTENSIONS: &[&str] = &["dat", "yaml", "co", "hsaco"];

/// Returns the folder with rocBLAS' Tensile files for an architecture as HIP reports it; features like `:xnack-` are
/// ignored. Opens rocBLAS. The result is cached per architecture.
///
/// # Errors
/// rocBLAS is missing, or [`LoadError::NoTensileFiles`].
pub(super) fn files_for(arch: &str) -> Result<PathBuf, LoadError> {
    type Results = BTreeMap<String, Result<PathBuf, LoadError>>;
    static RESULTS: Mutex<Results> = Mutex::new(BTreeMap::new());

    let arch = arch.split(':').next().unwrap_or(arch);
    let mut results = RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
    match results.get(arch) {
        Some(result) => result.clone(),
        None => {
            let result = folders().and_then(|folders| find(arch, &folders));
            results.entry(arch.to_owned()).or_insert(result).clone()
        }
    }
}

/// Lists the folders that rocBLAS searches.
fn folders() -> Result<Vec<PathBuf>, LoadError> {
    match std::env::var_os(LIBPATH_VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(vec![PathBuf::from(folder)]),
        None => {
            let file = library::open(Library::RocBlas)?.file("rocblas_create_handle");
            Ok(file.map(|file| tensile_folders(&file)).unwrap_or_default())
        }
    }
}

/// Returns the folders for the files of a rocBLAS library, relative to its own folder: `rocblas/library` (AMD, Fedora),
/// then `rocblas/VERSION/library` (Debian).
fn tensile_folders(library: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    // The library may be a link to a file in another folder.
    for file in [Some(library.to_owned()), library.canonicalize().ok()].into_iter().flatten() {
        let Some(rocblas) = file.parent().map(|folder| folder.join("rocblas")) else { continue };
        let mut versions: Vec<_> = entries(&rocblas).map(|version| version.join("library")).collect();
        versions.retain(|folder| folder.is_dir());
        versions.sort();
        let found = [rocblas.join("library")].into_iter().chain(versions.into_iter().rev());
        found.for_each(|folder| {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        });
    }
    folders
}

/// Returns the first folder that has files for `arch`, either directly or in a subfolder named after it.
fn find(arch: &str, folders: &[PathBuf]) -> Result<PathBuf, LoadError> {
    let mut present = BTreeSet::new();
    for folder in folders {
        for candidate in [folder.clone(), folder.join(arch)] {
            let archs: BTreeSet<String> = entries(&candidate).filter_map(|file| arch_of(&file)).collect();
            if archs.contains(arch) {
                return Ok(candidate);
            }
            present.extend(archs);
        }
    }
    let listed = |names: Vec<String>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(LoadError::NoTensileFiles {
        arch: arch.to_owned(),
        folders: listed(folders.iter().map(|folder| folder.display().to_string()).collect()),
        present: listed(present.into_iter().collect()),
    })
}

/// Returns the architecture in the name of a Tensile file: `TensileLibrary_lazy_gfx1100.dat`,
/// `Kernels.so-000-gfx90a-xnack-.hsaco`.
fn arch_of(file: &Path) -> Option<String> {
    let extension = file.extension()?.to_str()?;
    if !EXTENSIONS.contains(&extension) {
        return None;
    }
    let words = file.file_stem()?.to_str()?.split(|c: char| !c.is_ascii_alphanumeric());
    let is_arch = |word: &&str| {
        word.strip_prefix("gfx")
            .is_some_and(|version| version.len() > 2 && version.chars().all(|c| c.is_ascii_hexdigit()))
    };
    words.rev().find(is_arch).map(str::to_owned)
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = std::io::Result<()>;

    fn with_files(folder: &Path, names: &[&str]) -> Outcome {
        std::fs::create_dir_all(folder)?;
        names.iter().try_for_each(|name| std::fs::write(folder.join(name), ""))
    }

    #[test]
    fn the_architecture_is_read_from_the_file_name() {
        let of = |name: &str| arch_of(Path::new(name));
        assert_eq!(of("TensileLibrary_lazy_gfx1100.dat").as_deref(), Some("gfx1100"));
        assert_eq!(of("Kernels.so-000-gfx90a-xnack-.hsaco").as_deref(), Some("gfx90a"));
        assert_eq!(of("Kernels.so-000-gfx1030.hsaco").as_deref(), Some("gfx1030"));
        assert_eq!(
            of("TensileLibrary_Type_HH_Contraction_l_Ailk_Bjlk_Cijk_Dijk_gfx942.co").as_deref(),
            Some("gfx942")
        );
        assert_eq!(of("TensileManifest.txt"), None);
        assert_eq!(of("TensileLibrary_gfx1100.txt"), None);
        assert_eq!(of("TensileLibrary.dat"), None);
    }

    #[test]
    fn amds_and_debians_folders_are_found() -> Outcome {
        let root = tempfile::tempdir()?;
        let library = root.path().join("librocblas.so.4");
        let (amd, debian) = (root.path().join("rocblas/library"), root.path().join("rocblas/4.0.0/library"));
        with_files(&debian, &["TensileLibrary_lazy_gfx1030.dat"])?;
        assert_eq!(find("gfx1030", &tensile_folders(&library)).ok(), Some(debian.clone()));
        with_files(&amd, &["TensileLibrary_lazy_gfx1030.dat"])?;
        assert_eq!(find("gfx1030", &tensile_folders(&library)).ok(), Some(amd));
        // A common prefix does not make it the same architecture.
        assert!(find("gfx103", &tensile_folders(&library)).is_err());
        // The library is a link to another folder.
        let elsewhere = tempfile::tempdir()?;
        with_files(root.path(), &["librocblas.so.4"])?;
        let link = elsewhere.path().join("librocblas.so");
        std::os::unix::fs::symlink(&library, &link)?;
        assert!(find("gfx1030", &tensile_folders(&link)).is_ok());
        Ok(())
    }

    #[test]
    fn a_subfolder_named_after_the_architecture_is_searched() -> Outcome {
        let root = tempfile::tempdir()?;
        with_files(&root.path().join("gfx942"), &["TensileLibrary_lazy_gfx942.dat"])?;
        let found = find("gfx942", &[root.path().to_owned()]);
        assert_eq!(found.ok(), Some(root.path().join("gfx942")));
        Ok(())
    }

    #[test]
    fn the_error_names_the_missing_files_and_the_remedy() -> Outcome {
        let root = tempfile::tempdir()?;
        with_files(root.path(), &["TensileLibrary_lazy_gfx90a.dat", "Kernels.so-000-gfx1030.hsaco"])?;
        let text = find("gfx1103", &[root.path().to_owned()]).unwrap_err().to_string();
        let folder = root.path().to_string_lossy();
        for part in ["gfx1103", &folder, "gfx1030, gfx90a", LIBPATH_VARIABLE, "HSA_OVERRIDE_GFX_VERSION"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let nowhere = find("gfx1103", &[]).unwrap_err().to_string();
        assert!(nowhere.contains("looked in: none"), "{nowhere}");
        Ok(())
    }
}
