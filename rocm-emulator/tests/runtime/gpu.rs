//! Shared test support: the configured process, and owners of the objects that the C functions return.
use rocm_emulator::Options;
use rocm_emulator::api::*;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Architectures of the devices.
pub const ARCHS: [&str; 3] = ["gfx1100", "gfx1102", "gfx90a"];
/// Memory of each device in bytes.
pub const TOTAL_MEMORY: u64 = 16 << 30;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Locks the three devices for one test at a time, because faults, counters and memory belong to the process.
pub fn gpu() -> MutexGuard<'static, ()> {
    let options = Options { total_memory: TOTAL_MEMORY, threads: 2, ..Options::default() };
    rocm_emulator::configure_with(&ARCHS, options).unwrap();
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    set_device(0);
    guard
}

pub fn set_device(device: i32) {
    // SAFETY: no pointers.
    ok(unsafe { hipSetDevice(device) });
}

/// Fails the test with the call's error unless the code is success.
#[track_caller]
pub fn ok(code: hipError_t) {
    assert_eq!(code, 0, "{}", rocm_emulator::last_error().unwrap_or_default());
}

/// Device memory that is freed at the end of the test.
pub struct Buffer(pub *mut c_void);

impl Buffer {
    pub fn new(bytes: usize) -> Self {
        let mut ptr = null_mut();
        // SAFETY: a valid pointer for the result.
        ok(unsafe { hipMalloc(&mut ptr, bytes) });
        Self(ptr)
    }

    pub fn of<T: Copy>(values: &[T]) -> Self {
        let buffer = Self::new(size_of_val(values));
        // SAFETY: both sides hold the values.
        ok(unsafe { hipMemcpy(buffer.0, values.as_ptr().cast(), size_of_val(values), 1) });
        buffer
    }

    pub fn read<T: Copy + Default>(&self, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let bytes = size_of_val(values.as_slice());
        // SAFETY: the target holds the bytes; the runtime checks the source.
        ok(unsafe { hipMemcpy(values.as_mut_ptr().cast(), self.0, bytes, 2) });
        values
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the runtime checks the address.
        unsafe { hipFree(self.0) };
    }
}

/// A word of pinned memory for which kernels wait.
pub struct Flag(pub *mut c_void);

impl Flag {
    pub fn new() -> Self {
        let mut ptr = null_mut();
        // SAFETY: a valid pointer for the result.
        ok(unsafe { hipHostMalloc(&mut ptr, 4, 0) });
        Self(ptr)
    }

    pub fn set(&self) {
        // SAFETY: the word is live and aligned; kernels only read it.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.0.cast()) }
            .store(1, std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        // If the test fails, a waiting kernel must end, because freeing waits for it.
        self.set();
        // SAFETY: the runtime checks the address.
        unsafe { hipHostFree(self.0) };
    }
}

/// A stream that is destroyed at the end of the test.
pub struct Stream(pub hipStream_t);

impl Stream {
    pub fn new(flags: u32) -> Self {
        let mut stream = null_mut();
        // SAFETY: a valid pointer for the result.
        ok(unsafe { hipStreamCreateWithFlags(&mut stream, flags) });
        Self(stream)
    }

    pub fn synchronize(&self) -> hipError_t {
        // SAFETY: handles may have any value.
        unsafe { hipStreamSynchronize(self.0) }
    }

    pub fn query(&self) -> hipError_t {
        // SAFETY: handles may have any value.
        unsafe { hipStreamQuery(self.0) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: handles may have any value.
        unsafe { hipStreamDestroy(self.0) };
    }
}

pub fn fixture(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(path).unwrap()
}

/// A loaded module.
pub struct Module(pub hipModule_t);

impl Module {
    pub fn load(name: &str) -> Self {
        let bytes = fixture(name);
        let mut module = null_mut();
        // SAFETY: a complete code object.
        ok(unsafe { hipModuleLoadData(&mut module, bytes.as_ptr().cast()) });
        Self(module)
    }

    pub fn function(&self, name: &str) -> hipFunction_t {
        let name = CString::new(name).unwrap();
        let mut function = null_mut();
        // SAFETY: valid pointers.
        ok(unsafe { hipModuleGetFunction(&mut function, self.0, name.as_ptr()) });
        function
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: handles may have any value.
        unsafe { hipModuleUnload(self.0) };
    }
}

/// Returns a pointer to an argument's value.
pub fn arg<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

pub fn launch(
    function: hipFunction_t,
    grid: [u32; 3],
    block: [u32; 3],
    lds: u32,
    stream: hipStream_t,
    args: &mut [*mut c_void],
) -> hipError_t {
    // SAFETY: the tests pass one pointer per argument of the kernel.
    unsafe {
        hipModuleLaunchKernel(
            function,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            lds,
            stream,
            args.as_mut_ptr(),
            null_mut(),
        )
    }
}

/// Launches a kernel with one work-item.
#[track_caller]
pub fn launch_one(function: hipFunction_t, stream: hipStream_t, args: &mut [*mut c_void]) {
    ok(launch(function, [1; 3], [1; 3], 0, stream, args));
}
