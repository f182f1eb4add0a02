//! Stub of HIP and rocBLAS: every call succeeds immediately and is counted.
//!
//! The benchmark `host` compiles this file to a shared library and runs with it, so that it measures host
//! time only. Device memory is a range of addresses without backing memory, kernels do not run, and copies to
//! the host return zeros.
#![allow(non_snake_case, non_camel_case_types, unused_unsafe, unused_braces)]
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Environment variable with the architecture to report.
const ARCH_VARIABLE: &str = "HOST_BENCH_ARCH";

/// Offsets of `gcnArchName` and other members in hipDeviceProp_tR0600.
const ARCH_OFFSET: usize = 1160;
const TOTAL_MEMORY_OFFSET: usize = 288;
const WARP_SIZE_OFFSET: usize = 308;

const TOTAL_MEMORY: usize = 64 << 30;
const FREE_MEMORY: usize = 60 << 30;
/// hipMemcpyDeviceToHost.
const TO_HOST: u32 = 2;

/// Next unused device address and handle.
static NEXT_ADDRESS: AtomicUsize = AtomicUsize::new(0x7f00_0000_0000);
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x1000);

fn handle() -> usize {
    NEXT_HANDLE.fetch_add(16, Ordering::Relaxed)
}

/// Defines functions that count their calls and return success, and the list of their names.
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        enum Function { $($name),* }

        const NAMES: &[&str] = &[$(stringify!($name)),*];
        static CALLS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                count(Function::$name);
                // SAFETY: the caller guarantees HIP's conditions: pointers to results are valid for writes.
                unsafe { $body }
                0
            }
        )*
    };
}

/// Counts with load and store. An atomic addition would distort the measurement, and the benchmark has only one thread.
fn count(function: Function) {
    let calls = &CALLS[function as usize];
    calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Returns the number of calls of the function `name`; of all functions if `name` is null.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_bench_calls(name: *const c_char) -> u64 {
    // SAFETY: guaranteed by the caller.
    let wanted = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
    let counted = NAMES.iter().zip(&CALLS).filter(|(name, _)| wanted.is_none_or(|w| w == name.as_bytes()));
    counted.map(|(_, calls)| calls.load(Ordering::Relaxed)).sum()
}

// Unused trailing parameters are omitted, which the C calling convention allows.
driver! {
    fn hipInit() {}
    fn hipRuntimeGetVersion(version: *mut c_int) { *version = 70_000_000 }
    fn hipDriverGetVersion(version: *mut c_int) { *version = 70_000_000 }
    fn hipGetLastError() {}
    fn hipPeekAtLastError() {}

    fn hipGetDeviceCount(count: *mut c_int) { *count = 1 }
    fn hipGetDevice(device: *mut c_int) { *device = 0 }
    fn hipSetDevice() {}
    fn hipGetDevicePropertiesR0600(properties: *mut u8) {
        let arch = std::env::var(ARCH_VARIABLE).unwrap_or_default();
        std::ptr::copy_nonoverlapping(arch.as_ptr(), properties.add(ARCH_OFFSET), arch.len());
        properties.add(TOTAL_MEMORY_OFFSET).cast::<usize>().write_unaligned(TOTAL_MEMORY);
        let wave = if arch.starts_with("gfx9") { 64 } else { 32 };
        properties.add(WARP_SIZE_OFFSET).cast::<c_int>().write_unaligned(wave);
    }
    fn hipDeviceGetAttribute(value: *mut c_int) { *value = 0 }
    fn hipDeviceGetPCIBusId(text: *mut c_char, length: c_int) {
        let id = c"0000:00:00.0".to_bytes_with_nul();
        std::ptr::copy_nonoverlapping(id.as_ptr().cast(), text, id.len().min(length as usize));
    }
    fn hipDeviceCanAccessPeer(can: *mut c_int) { *can = 0 }
    fn hipDeviceSynchronize() {}

    fn hipMalloc(address: *mut usize, bytes: usize) {
        *address = NEXT_ADDRESS.fetch_add(bytes.next_multiple_of(1 << 21), Ordering::Relaxed)
    }
    fn hipFree() {}
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) {
        *free = FREE_MEMORY;
        *total = TOTAL_MEMORY;
    }
    fn hipHostMalloc(address: *mut *mut c_void, bytes: usize) {
        // Pinned memory is never freed, since hipHostFree does not receive its size.
        *address = Vec::leak(vec![0u64; bytes.div_ceil(8)]).as_mut_ptr().cast()
    }
    fn hipHostFree() {}
    fn hipHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void) { *device = host }
    fn hipMemcpy(to: *mut u8, _from: *const u8, bytes: usize, kind: u32) {
        if kind == TO_HOST { to.write_bytes(0, bytes) }
    }
    fn hipMemcpyAsync(to: *mut u8, _from: *const u8, bytes: usize, kind: u32) {
        if kind == TO_HOST { to.write_bytes(0, bytes) }
    }
    fn hipMemcpyPeerAsync() {}
    fn hipMemset() {}
    fn hipMemsetAsync() {}
    fn hipMemsetD8Async() {}
    fn hipMemsetD32Async() {}

    fn hipStreamCreate(stream: *mut usize) { *stream = handle() }
    fn hipStreamCreateWithFlags(stream: *mut usize) { *stream = handle() }
    fn hipStreamDestroy() {}
    fn hipStreamSynchronize() {}
    fn hipStreamQuery() {}
    fn hipStreamWaitEvent() {}
    fn hipEventCreate(event: *mut usize) { *event = handle() }
    fn hipEventCreateWithFlags(event: *mut usize) { *event = handle() }
    fn hipEventDestroy() {}
    fn hipEventRecord() {}
    fn hipEventSynchronize() {}
    fn hipEventQuery() {}

    fn hipModuleLoadData(module: *mut usize) { *module = handle() }
    fn hipModuleUnload() {}
    fn hipModuleGetFunction(function: *mut usize) { *function = handle() }
    fn hipModuleGetGlobal(address: *mut usize, bytes: *mut usize) {
        *address = NEXT_ADDRESS.fetch_add(1 << 21, Ordering::Relaxed);
        *bytes = size_of::<usize>();
    }
    fn hipModuleLaunchKernel() {}
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int) { *blocks = 1 }
    fn hipFuncGetAttribute(value: *mut c_int) { *value = 1024 }

    fn rocblas_create_handle(created: *mut usize) { *created = handle() }
    fn rocblas_destroy_handle() {}
    fn rocblas_set_stream() {}
    fn rocblas_set_pointer_mode() {}
    fn rocblas_set_atomics_mode() {}
    fn rocblas_set_workspace() {}
    fn rocblas_get_version_string_size(bytes: *mut usize) { *bytes = 6 }
    fn rocblas_get_version_string(text: *mut c_char) {
        std::ptr::copy_nonoverlapping(c"5.0.0".as_ptr(), text, 6)
    }
    fn rocblas_gemm_ex() {}
    fn rocblas_gemm_strided_batched_ex() {}
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName() -> *const c_char {
    c"error of the stub driver".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString() -> *const c_char {
    c"the stub driver never fails".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn rocblas_status_to_string() -> *const c_char {
    c"status of the stub rocBLAS".as_ptr()
}
