//! The libraries of CUDA's toolkit: the search for their files, and calls with a current context.
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_uint};
use std::path::{Path, PathBuf};

use rocm_driver_api::LoadError;
use rocm_driver_api::error::record;

use crate::hip::context::with_context;
use crate::library::{CudaLibrary, Functions, Search};
use crate::running;

/// The result of a library function. 0 is success in all libraries of CUDA and ROCm.
pub(crate) type Status = c_uint;

/// Variables that name CUDA's root folder; the first takes precedence.
const ROOT_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// The remedy if cuBLAS or cuBLASLt is missing.
pub(crate) const CUBLAS_ADVICE: &str = "Install cuBLAS (NVIDIA's packages: libcublas; PyPI: nvidia-cublas) of a CUDA \
                                        version that the driver supports, and set CUDA_HOME to CUDA's folder or \
                                        LD_LIBRARY_PATH to the library's folder";

/// Returns the search for a library with these file names.
pub(crate) fn search(names: &[&str]) -> Search {
    let roots = ROOT_VARIABLES.into_iter().filter_map(std::env::var_os).filter(|root| !root.is_empty());
    Search {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        first: roots.flat_map(|root| subfolders(Path::new(&root))).collect(),
        last: subfolders(Path::new("/usr/local/cuda")).into(),
    }
}

/// Returns the search for a library whose file name has CUDA's major version; the driver's version comes first.
pub(crate) fn search_by_version(stem: &str) -> Search {
    let supports_13 = running::running().is_some_and(|running| running.version >= 13_000);
    let versions = if supports_13 { [13, 12] } else { [12, 13] };
    let names = versions.map(|version| format!("{stem}.{version}"));
    search(&names.each_ref().map(String::as_str))
}

fn subfolders(root: &Path) -> [PathBuf; 2] {
    ["lib64", "lib"].map(|folder| root.join(folder))
}

/// A CUDA library with the status codes of the ROCm library that it replaces.
pub(crate) struct Toolkit<T> {
    pub(crate) library: CudaLibrary<T>,
    /// Converts the error for a missing library to a status code.
    pub(crate) status_of: fn(&LoadError) -> u32,
    /// The status code if there is no context.
    pub(crate) internal_error: u32,
    /// Records a failure of the named function and returns its status code.
    pub(crate) failed: fn(&T, &str, Status) -> u32,
}

impl<T: Functions> Toolkit<T> {
    /// Returns the library's functions.
    ///
    /// # Errors
    /// The status code if the library is missing; the reason is recorded.
    #[inline]
    pub(crate) fn functions(&self) -> Result<&T, u32> {
        match self.library.open() {
            Ok((_, functions)) => Ok(functions),
            Err(error) => Err(fail((self.status_of)(&error), error.to_string())),
        }
    }

    /// Calls the library with a current context. `call` is the function's name for error messages.
    #[inline]
    pub(crate) fn call(&'static self, call: &str, work: impl FnOnce(&'static T) -> Status) -> u32 {
        let functions = match self.functions() {
            Ok(functions) => functions,
            Err(status) => return status,
        };
        let mut status = 0;
        let code = with_context(call, |_| {
            status = work(functions);
            0
        });
        match (code, status) {
            (0, 0) => 0,
            (0, status) => (self.failed)(functions, call, status),
            _ => self.internal_error,
        }
    }
}

/// Records the reason of a failure and returns its status code.
#[cold]
pub(crate) fn fail(status: u32, reason: impl Into<String>) -> u32 {
    record(reason.into());
    status
}

/// Returns a library's text for a status code.
///
/// # Safety
/// `text` is null, or a C string that is never freed.
pub(crate) unsafe fn text_of(text: *const c_char) -> Cow<'static, str> {
    match text.is_null() {
        true => "an unknown status".into(),
        // SAFETY: the caller's condition.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
    }
}
