//! Tests the end of a process while other threads are inside the driver and keep calling it.
mod fake;

use std::error::Error;
use std::ffi::{c_int, c_uint, c_void};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rocm_loader::hip;

/// Variables that tell the child process the path of the fake library and how to call it.
const LIBRARY: &str = "ENDING_LIBRARY";
const MODE: &str = "ENDING_MODE";
const HIP_ERROR_DEINITIALIZED: u32 = 4;
const SIGABRT: i32 = 6;

/// Same layout as in fake/ending.rs.
#[repr(C)]
struct Shared {
    waiting: AtomicBool,
    may_return: AtomicBool,
}

/// The functions that the child process calls.
#[derive(Clone, Copy)]
struct Hip {
    init: unsafe extern "C" fn(c_uint) -> u32,
    shared: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, c_uint) -> u32,
    synchronize: unsafe extern "C" fn() -> u32,
    peek: unsafe extern "C" fn() -> u32,
}

const THROUGH_THE_LOADER: Hip = Hip {
    init: hip::hipInit,
    shared: hip::hipHostGetDevicePointer,
    synchronize: hip::hipDeviceSynchronize,
    peek: hip::hipPeekAtLastError,
};

/// Returns the functions of the fake library itself.
fn directly(library: &Path) -> Result<Hip, Box<dyn Error>> {
    // SAFETY: the fake library's initializers do nothing; its functions have these prototypes; it is never closed.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new(library)?));
        Ok(Hip {
            init: *library.get(b"hipInit")?,
            shared: *library.get(b"hipHostGetDevicePointer")?,
            synchronize: *library.get(b"hipDeviceSynchronize")?,
            peek: *library.get(b"hipPeekAtLastError")?,
        })
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Runs after all other exit handlers: the exiting thread gets an error, and no call reaches the fake library.
extern "C" fn last_handler() {
    // SAFETY: both are callable at any time.
    unsafe {
        let code = hip::hipPeekAtLastError();
        if code != HIP_ERROR_DEINITIALIZED {
            eprintln!("a call in an exit handler returned {code}");
            _exit(3);
        }
    }
}

/// Sleeps before the next check. A thread that only yields may not run for seconds on a busy machine.
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// The child process, whose end is tested: one thread waits in a call, one makes calls in a loop, and this one exits.
#[test]
fn program() -> Result<(), Box<dyn Error>> {
    let (Some(library), Ok(mode)) = (std::env::var_os(LIBRARY), std::env::var(MODE)) else { return Ok(()) };
    let hip = if mode == "direct" { directly(Path::new(&library))? } else { THROUGH_THE_LOADER };
    if mode != "direct" {
        // SAFETY: the handler does not unwind.
        assert_eq!(unsafe { atexit(last_handler) }, 0);
    }
    if mode == "emulator" {
        // SAFETY: it takes an integer.
        assert_eq!(unsafe { (hip.init)(0) }, 0);
        std::process::exit(0);
    }
    let mut address = std::ptr::null_mut();
    // SAFETY: the fake library writes the address of a static.
    let shared = unsafe {
        assert_eq!((hip.init)(0), 0);
        assert_eq!((hip.shared)(&mut address, std::ptr::null_mut(), 0), 0);
        &*address.cast::<Shared>()
    };
    // SAFETY: these functions take no arguments.
    std::thread::spawn(move || unsafe { (hip.synchronize)() });
    std::thread::spawn(move || {
        loop {
            // SAFETY: as above.
            unsafe { (hip.peek)() };
        }
    });
    std::thread::spawn(|| {
        while !rocm_loader::is_ending() {
            pause();
        }
        shared.may_return.store(true, SeqCst);
    });
    while !shared.waiting.load(SeqCst) {
        pause();
    }
    std::process::exit(0)
}

/// Runs the child process with the fake library and returns its exit status.
fn end_of_program(mode: &str) -> Result<ExitStatus, Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    let library = root.path().join("lib/libamdhip64.so.7");
    std::fs::create_dir_all(root.path().join("lib"))?;
    fake::build("ending.rs", &library)?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", "program", "--nocapture"])
        .env(LIBRARY, &library)
        .env(MODE, mode)
        .env("CANDLE_ROCM_DRIVER", if mode == "emulator" { mode } else { "native" })
        .env("ROCM_PATH", root.path())
        .output()?;
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(output.status)
}

#[test]
fn calls_in_flight_finish_and_later_ones_are_stopped() -> Result<(), Box<dyn Error>> {
    let status = end_of_program("loader")?;
    assert!(status.success(), "{status}");
    Ok(())
}

#[test]
fn the_same_program_crashes_without_the_loader() -> Result<(), Box<dyn Error>> {
    assert_eq!(end_of_program("direct")?.signal(), Some(SIGABRT));
    Ok(())
}

#[cfg(feature = "emulator")]
#[test]
fn the_software_gpu_is_not_called_at_exit_either() -> Result<(), Box<dyn Error>> {
    let status = end_of_program("emulator")?;
    assert!(status.success(), "{status}");
    Ok(())
}
