//! The native driver: ROCm's own libraries, opened when first needed and never closed.
mod gpu;
mod library;
mod tensile;

use std::path::PathBuf;

use rocm_driver_api::{Address, Driver, Library, LibraryFile, LoadError, Registration};

pub(super) static REGISTRATION: Registration =
    Registration { name: "native", usage: "`native` (ROCm)", feature: None, driver: Some(&Native) };

struct Native;

impl Driver for Native {
    fn detect(&self) -> Option<Result<(), String>> {
        Some(gpu::find().map(|_| ()))
    }

    fn is_available(&self) -> bool {
        gpu::find().is_ok() && library::is_installed(Library::Hip)
    }

    fn start(&self, _: &str) -> Result<(), LoadError> {
        library::open(Library::Hip).map(|_| ())
    }

    fn find(&self, library: Library, symbol: &'static str) -> Result<Address, LoadError> {
        library::open(library)?.address(symbol)
    }

    fn description(&self) -> String {
        match library::open(Library::Hip) {
            Ok(opened) => format!("ROCm (HIP runtime {})", opened.path),
            Err(error) => format!("ROCm ({error})"),
        }
    }

    fn libraries(&self) -> Vec<LibraryFile> {
        let library_file =
            |serves: Library| LibraryFile { serves, name: serves.soname_stem(), file: library::file(serves) };
        Library::ALL.map(library_file).into()
    }

    fn reasons_for_no_device(&self) -> String {
        gpu::reasons_for_no_device()
    }

    fn tensile_files(&self, arch: &str) -> Result<Option<PathBuf>, LoadError> {
        tensile::files_for(arch).map(Some)
    }
}
