//! The driver that does nothing: built here, chosen by the environment of a second process, asked for its counts.
use anyhow::{Context, Result, ensure};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = include_str!("amdhip64.rs");
const LIBRARY: &str = "lib/libamdhip64.so.7";

/// A folder laid out as ROCm's, with a library that is both HIP and rocBLAS.
pub struct Driver {
    root: tempfile::TempDir,
    arch: &'static str,
}

impl Driver {
    /// Compiles the driver. It reports an architecture that this program has kernels for.
    pub fn build() -> Result<Self> {
        let held = hip_kernels::archs();
        // No GPU reports a generic target: where only such are held, a GPU that they are for.
        let exact = held.iter().copied().filter(|target| !target.ends_with("-generic"));
        let arch = exact
            .chain(["gfx1100", "gfx1030", "gfx942", "gfx1200"])
            .find(|arch| hip_kernels::best_target(arch, held).is_some())
            .with_context(|| format!("this program has kernels for {held:?} only"))?;
        let root = tempfile::tempdir()?;
        let source = root.path().join("amdhip64.rs");
        // Whoever asks rocBLAS' folder whether there are products for the GPU finds some.
        let products = root.path().join("lib/rocblas/library");
        std::fs::create_dir_all(&products)?;
        for name in [format!("TensileLibrary_lazy_{arch}.dat"), format!("Kernels.so-000-{arch}.hsaco")] {
            std::fs::write(products.join(name), [])?;
        }
        std::fs::write(&source, SOURCE)?;
        let library = root.path().join(LIBRARY);
        let status = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=3", "-Cpanic=abort", "-o"])
            .args([&library, &source])
            .status()
            .context("rustc is needed to build the driver")?;
        ensure!(status.success(), "rustc: {status}");
        std::os::unix::fs::symlink(&library, root.path().join("lib/librocblas.so.5"))?;
        Ok(Self { root, arch })
    }

    /// Runs this program again on the driver, under `wrapper` if it has any words; gives what it prints.
    pub fn run(&self, wrapper: &[String], arguments: &[&str]) -> Result<String> {
        let own = std::env::current_exe()?.into_os_string();
        let mut words = wrapper.iter().map(Into::into).chain([own]);
        let mut command = Command::new(words.next().context("no program")?);
        command.args(words).args(arguments).stderr(Stdio::inherit());
        command.env("ROCM_PATH", self.root.path()).env("CANDLE_ROCM_DRIVER", "native");
        command.env("HOST_BENCH_ARCH", self.arch).env_remove("ROCBLAS_TENSILE_LIBPATH");
        let output = command.output().context("cannot start the bench again")?;
        ensure!(output.status.success(), "the measuring process: {}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// A folder that goes when the bench ends.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }
}

// The C library's own: the driver is open already, so that this gives what the loader has.
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// RTLD_NOW.
const NOW: c_int = 2;

/// The counts of the driver that this process runs on.
pub struct Calls(unsafe extern "C" fn(*const c_char) -> u64);

impl Calls {
    /// In the process that [`Driver::run`] started.
    pub fn of_this_process() -> Result<Self> {
        let root = std::env::var_os("ROCM_PATH").context("ROCM_PATH is not set")?;
        let library = PathBuf::from(root).join(LIBRARY);
        let file = CString::new(library.as_os_str().as_bytes())?;
        // SAFETY: a C string; the library's initialisers are those of Rust's standard library.
        let opened = unsafe { dlopen(file.as_ptr(), NOW) };
        ensure!(!opened.is_null(), "cannot open {}", library.display());
        // SAFETY: an open library and a C string.
        let function = unsafe { dlsym(opened, c"host_bench_calls".as_ptr()) };
        ensure!(!function.is_null(), "{} does not count", library.display());
        // SAFETY: the function of amdhip64.rs with this name, which has this type; the library is never closed.
        Ok(Self(unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> u64>(function)
        }))
    }

    /// Calls of all functions so far.
    pub fn all(&self) -> u64 {
        // SAFETY: null is allowed.
        unsafe { (self.0)(std::ptr::null()) }
    }

    /// Calls of one function so far.
    pub fn of(&self, function: &CStr) -> u64 {
        // SAFETY: a C string.
        unsafe { (self.0)(function.as_ptr()) }
    }
}
