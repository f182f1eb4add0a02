//! A HIP driver and a rocBLAS that do nothing: every call succeeds at once and is counted.
//!
//! The bench `host` compiles this file to a library of its own and runs against it, so that what it measures is the
//! host's share alone. Device memory is a range of addresses that nothing lies behind; kernels do not run; what is
//! copied to the host is zero.
#![allow(non_snake_case, non_camel_case_types, unused_unsafe, unused_braces)]
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The variable that names the architecture to report.
const ARCH_VARIABLE: &str = "HOST_BENCH_ARCH";

/// Where `gcnArchName` lies in hipDeviceProp_tR0600, and other members that are asked for.
const ARCH_OFFSET: usize = 1160;
const TOTAL_MEMORY_OFFSET: usize = 288;
const WARP_SIZE_OFFSET: usize = 308;

const TOTAL_MEMORY: usize = 64 << 30;
const FREE_MEMORY: usize = 60 << 30;
/// hipMemcpyDeviceToHost.
const TO_HOST: u32 = 2;

/// Distinct device addresses and handles.
static NEXT_ADDRESS: AtomicUsize = AtomicUsize::new(0x7f00_0000_0000);
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(0x1000);

fn handle() -> usize {
    NEXT_HANDLE.fetch_add(16, Ordering::Relaxed)
}

/// Defines the functions: their names are listed, their calls counted, and they return success.
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        enum Function { $($name),* }

        const NAMES: &[&str] = &[$(stringify!($name)),*];
        static CALLS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                count(Function::$name);
                // SAFETY: HIP's own conditions: each address that is given has room for what is written there.
                unsafe { $body }
                0
            }
        )*
    };
}

/// Load and store instead of an atomic addition, which would cost as much as some of what is measured: the bench calls
/// from one thread.
fn count(function: Function) {
    let calls = &CALLS[function as usize];
    calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// How often the function `name` was called; all functions together if `name` is null.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn host_bench_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller's word.
    let wanted = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
    let counted = NAMES.iter().zip(&CALLS).filter(|(name, _)| wanted.is_none_or(|w| w == name.as_bytes()));
    counted.map(|(_, calls)| calls.load(Ordering::Relaxed)).sum()
}

// Arguments that a function has no use for are left out: the C calling convention lets a callee ignore the last ones.
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
        // Pinned memory stays until the process ends: hipHostFree is not told its size.
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
    c"an error of a driver that does nothing".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString() -> *const c_char {
    c"no call of it fails".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn rocblas_status_to_string() -> *const c_char {
    c"a status of a rocBLAS that does nothing".as_ptr()
}
