//! Builds the stub driver, runs a child process with it, and reads its call counts.
use anyhow::{Context, Result, ensure};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = include_str!("amdhip64.rs");
const LIBRARY: &str = "lib/libamdhip64.so.7";

/// Folder with ROCm's layout that contains the stub driver as HIP and as rocBLAS.
pub struct Driver {
    root: tempfile::TempDir,
    arch: &'static str,
}

impl Driver {
    /// Compiles the driver, which reports an architecture that this program has kernels for.
    pub fn build() -> Result<Self> {
        let targets = hip_kernels::archs();
        // GPUs do not report generic targets, so a GPU that is compatible with one is reported instead.
        let exact = targets.iter().copied().filter(|target| !target.ends_with("-generic"));
        let arch = exact
            .chain(["gfx1100", "gfx1030", "gfx942", "gfx1200"])
            .find(|arch| hip_kernels::best_target(arch, targets).is_some())
            .with_context(|| format!("this program only has kernels for {targets:?}"))?;
        let root = tempfile::tempdir()?;
        let source = root.path().join("amdhip64.rs");
        // Files that indicate that rocBLAS supports the GPU.
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
            .context("cannot start rustc to build the stub driver")?;
        ensure!(status.success(), "rustc: {status}");
        std::os::unix::fs::symlink(&library, root.path().join("lib/librocblas.so.5"))?;
        Ok(Self { root, arch })
    }

    /// Runs this program with the driver in a child process, under `wrapper` unless it is empty; returns its output.
    pub fn run(&self, wrapper: &[String], arguments: &[&str]) -> Result<String> {
        let own = std::env::current_exe()?.into_os_string();
        let mut words = wrapper.iter().map(Into::into).chain([own]);
        let mut command = Command::new(words.next().context("no program")?);
        command.args(words).args(arguments).stderr(Stdio::inherit());
        command.env("ROCM_PATH", self.root.path()).env("CANDLE_ROCM_DRIVER", "native");
        command.env("HOST_BENCH_ARCH", self.arch).env_remove("ROCBLAS_TENSILE_LIBPATH");
        let output = command.output().context("cannot start the child process")?;
        ensure!(output.status.success(), "the child process failed: {}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns a folder that is deleted when the benchmark ends.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }
}

// Functions of the C library. The loader has opened the driver already, so dlopen returns the same library.
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// RTLD_NOW.
const NOW: c_int = 2;

/// Call counts of the driver in this process.
pub struct Calls(unsafe extern "C" fn(*const c_char) -> u64);

impl Calls {
    /// Opens the driver's counters in a process that [`Driver::run`] has started.
    pub fn of_this_process() -> Result<Self> {
        let root = std::env::var_os("ROCM_PATH").context("ROCM_PATH is not set")?;
        let library = PathBuf::from(root).join(LIBRARY);
        let file = CString::new(library.as_os_str().as_bytes())?;
        // SAFETY: `file` is a C string, and the library has no initialisers except those of Rust's standard library.
        let opened = unsafe { dlopen(file.as_ptr(), NOW) };
        ensure!(!opened.is_null(), "cannot open {}", library.display());
        // SAFETY: the library is open, and the name is a C string.
        let function = unsafe { dlsym(opened, c"host_bench_calls".as_ptr()) };
        ensure!(!function.is_null(), "{} has no symbol host_bench_calls", library.display());
        // SAFETY: amdhip64.rs defines the function with this type, and the library is never closed.
        Ok(Self(unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> u64>(function)
        }))
    }

    /// Returns the number of calls of all functions.
    pub fn all(&self) -> u64 {
        // SAFETY: the function accepts null.
        unsafe { (self.0)(std::ptr::null()) }
    }

    /// Returns the number of calls of one function.
    pub fn of(&self, function: &CStr) -> u64 {
        // SAFETY: `function` is a C string.
        unsafe { (self.0)(function.as_ptr()) }
    }
}
