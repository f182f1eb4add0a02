//! The end of the process while other threads are inside of the driver, and go on calling it.
mod fake;

use std::error::Error;
use std::ffi::{c_int, c_uint, c_void};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use rocm_loader::hip;

/// Names the stand-in to the program, and how to call it.
const LIBRARY: &str = "ENDING_LIBRARY";
const WAY: &str = "ENDING_WAY";
const HIP_ERROR_DEINITIALIZED: u32 = 4;
const SIGABRT: i32 = 6;

/// As in fake/ending.rs.
#[repr(C)]
struct Shared {
    waiting: AtomicBool,
    may_return: AtomicBool,
}

/// The functions that the program calls.
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

/// The stand-in's own functions.
fn directly(library: &Path) -> Result<Hip, Box<dyn Error>> {
    // SAFETY: the stand-in's initialisers do nothing, and its functions have these prototypes; it stays open.
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

/// Runs after all other handlers: the exiting thread gets an error, and the stand-in is not reached.
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

/// Waits before the next look. A thread that yields in a loop may be kept off a busy machine for seconds.
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// The program whose end is tested: one thread waits in a call, one calls again and again, and this one exits.
#[test]
fn program() -> Result<(), Box<dyn Error>> {
    let (Some(library), Ok(way)) = (std::env::var_os(LIBRARY), std::env::var(WAY)) else { return Ok(()) };
    let hip = if way == "direct" { directly(Path::new(&library))? } else { THROUGH_THE_LOADER };
    if way != "direct" {
        // SAFETY: the handler does not unwind.
        assert_eq!(unsafe { atexit(last_handler) }, 0);
    }
    if way == "emulator" {
        // SAFETY: it takes an integer.
        assert_eq!(unsafe { (hip.init)(0) }, 0);
        std::process::exit(0);
    }
    let mut address = std::ptr::null_mut();
    // SAFETY: the stand-in writes the address of a static that is never freed.
    let shared = unsafe {
        assert_eq!((hip.init)(0), 0);
        assert_eq!((hip.shared)(&mut address, std::ptr::null_mut(), 0), 0);
        &*address.cast::<Shared>()
    };
    // SAFETY: these functions take nothing.
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

/// Runs the program against the stand-in, and says how it ended.
fn end_of_program(way: &str) -> Result<ExitStatus, Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    let library = root.path().join("lib/libamdhip64.so.7");
    std::fs::create_dir_all(root.path().join("lib"))?;
    fake::build("ending.rs", &library)?;
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", "program", "--nocapture"])
        .env(LIBRARY, &library)
        .env(WAY, way)
        .env("CANDLE_ROCM_DRIVER", if way == "emulator" { way } else { "native" })
        .env("ROCM_PATH", root.path())
        .output()?;
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(output.status)
}

#[test]
fn calls_in_flight_end_and_later_ones_are_stopped() -> Result<(), Box<dyn Error>> {
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
fn the_software_gpu_is_left_alone_too() -> Result<(), Box<dyn Error>> {
    let status = end_of_program("emulator")?;
    assert!(status.success(), "{status}");
    Ok(())
}
