//! rocBLAS' kernels for a GPU. Where it has none, it ends the process at the first product, so they are looked for
//! before.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rocm_driver_api::{Library, LoadError};

use super::library;

/// Names the folder that rocBLAS takes its files from, instead of the one beside its library.
const LIBPATH_VARIABLE: &str = "ROCBLAS_TENSILE_LIBPATH";

/// How Tensile's files end: descriptions, and code objects.
const ENDINGS: &[&str] = &["dat", "yaml", "co", "hsaco"];

/// Returns the folder with rocBLAS' Tensile files for an architecture (as HIP reports it; features like `:xnack-` do
/// not matter). Opens rocBLAS. The answer is kept per architecture.
///
/// # Errors
/// A rocBLAS that is missing; [`LoadError::NoTensileFiles`].
pub(super) fn files_for(arch: &str) -> Result<PathBuf, LoadError> {
    type Answers = BTreeMap<String, Result<PathBuf, LoadError>>;
    static ANSWERS: Mutex<Answers> = Mutex::new(BTreeMap::new());

    let arch = arch.split(':').next().unwrap_or(arch);
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    match answers.get(arch) {
        Some(answer) => answer.clone(),
        None => {
            let answer = folders().and_then(|folders| find(arch, &folders));
            answers.entry(arch.to_owned()).or_insert(answer).clone()
        }
    }
}

/// Lists the folders in which rocBLAS looks.
fn folders() -> Result<Vec<PathBuf>, LoadError> {
    match std::env::var_os(LIBPATH_VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => Ok(vec![PathBuf::from(folder)]),
        None => {
            let file = library::open(Library::RocBlas)?.file("rocblas_create_handle");
            Ok(file.map(|file| beside(&file)).unwrap_or_default())
        }
    }
}

/// The folders that belong to a rocBLAS library file: `rocblas/library` beside it, as AMD and Fedora have it, then
/// `rocblas/VERSION/library`, as Debian has it.
fn beside(library: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    // A link may lie elsewhere than the files.
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

/// The first of the folders that has files for `arch`, itself or in a folder of the architecture's name.
fn find(arch: &str, folders: &[PathBuf]) -> Result<PathBuf, LoadError> {
    let mut present = BTreeSet::new();
    for folder in folders {
        for place in [folder.clone(), folder.join(arch)] {
            let archs: BTreeSet<String> = entries(&place).filter_map(|file| arch_of(&file)).collect();
            if archs.contains(arch) {
                return Ok(place);
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

/// The architecture that a Tensile file is for: `TensileLibrary_lazy_gfx1100.dat`,
/// `Kernels.so-000-gfx90a-xnack-.hsaco`.
fn arch_of(file: &Path) -> Option<String> {
    let ending = file.extension()?.to_str()?;
    if !ENDINGS.contains(&ending) {
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
    fn a_file_says_its_architecture() {
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
    fn amds_and_debians_folders_are_found_beside_the_library() -> Outcome {
        let root = tempfile::tempdir()?;
        let library = root.path().join("librocblas.so.4");
        let (amd, debian) = (root.path().join("rocblas/library"), root.path().join("rocblas/4.0.0/library"));
        with_files(&debian, &["TensileLibrary_lazy_gfx1030.dat"])?;
        assert_eq!(find("gfx1030", &beside(&library)).ok(), Some(debian.clone()));
        with_files(&amd, &["TensileLibrary_lazy_gfx1030.dat"])?;
        assert_eq!(find("gfx1030", &beside(&library)).ok(), Some(amd));
        // A name that only begins alike is another architecture.
        assert!(find("gfx103", &beside(&library)).is_err());
        // Through a link in another folder.
        let elsewhere = tempfile::tempdir()?;
        with_files(root.path(), &["librocblas.so.4"])?;
        let link = elsewhere.path().join("librocblas.so");
        std::os::unix::fs::symlink(&library, &link)?;
        assert!(find("gfx1030", &beside(&link)).is_ok());
        Ok(())
    }

    #[test]
    fn a_folder_of_the_architectures_name_counts() -> Outcome {
        let root = tempfile::tempdir()?;
        with_files(&root.path().join("gfx942"), &["TensileLibrary_lazy_gfx942.dat"])?;
        let found = find("gfx942", &[root.path().to_owned()]);
        assert_eq!(found.ok(), Some(root.path().join("gfx942")));
        Ok(())
    }

    #[test]
    fn what_is_missing_is_said_with_the_remedy() -> Outcome {
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
