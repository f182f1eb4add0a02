//! A fake libcuda. Device memory is host memory, all work is synchronous, and some calls are logged. It is as strict as
//! CUDA: a call without a context fails, and so does every call after a kernel fault. A call after its exit handler has
//! run aborts the process.
#![allow(non_snake_case)]
mod log;

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex};

use log::log;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONTEXT: u32 = 201;
const INVALID_IMAGE: u32 = 200;
const NOT_FOUND: u32 = 500;
const NOT_READY: u32 = 600;
const ILLEGAL_ADDRESS: u32 = 700;

/// Memory of each GPU in bytes.
const MEMORY: usize = 8 << 30;
/// A context is this number plus the device's ordinal.
const CONTEXT: usize = 0xc000;

/// Sizes of live allocations by address.
static LIVE: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);
/// The code that every call returns after a kernel fault; 0 before.
static FAULT: AtomicU32 = AtomicU32::new(0);
static TORN_DOWN: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

extern "C" fn end() {
    TORN_DOWN.store(true, SeqCst);
    // Gives other threads time to make a call after the teardown.
    std::thread::sleep(std::time::Duration::from_millis(20));
}

fn setting(name: &str, default: c_int) -> c_int {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Makes queries return that work has not finished, if `busy` is 1.
#[unsafe(no_mangle)]
pub extern "C" fn fake_set_busy(busy: u32) {
    BUSY.store(busy, SeqCst);
}

/// Checks the state at the beginning of a call that needs a context.
fn check_context() -> u32 {
    match FAULT.load(SeqCst) {
        0 if CURRENT.get() == 0 => INVALID_CONTEXT,
        fault => fault,
    }
}

/// Defines functions of CUDA. Those marked `context` fail without a context or after a kernel fault.
macro_rules! cuda {
    ($($(#[$in:ident])? fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            if TORN_DOWN.load(SeqCst) {
                std::process::abort();
            }
            $(
                let $in = check_context();
                if $in != 0 {
                    return $in;
                }
            )?
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )* };
}

/// A stream, an event, a module or a function.
pub struct Object {
    context: usize,
    name: String,
    value: i64,
}

fn object(name: &str, value: i64) -> *mut Object {
    Box::into_raw(Box::new(Object { context: CURRENT.get(), name: name.to_owned(), value }))
}

fn attribute(number: u32, device: c_int) -> Option<c_int> {
    Some(match number {
        1 | 2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 48 << 10,
        10 => 32,
        13 => 1_980_000,
        16 => 132,
        18 => 0,
        19 | 31 | 41 | 115 => 1,
        33 => 0x10 + device,
        37 => 6144,
        38 => 50 << 20,
        39 => 2048,
        75 => setting("FAKE_ARCH", 90) / 10,
        76 => setting("FAKE_ARCH", 90) % 10,
        97 => 227 << 10,
        _ => return None,
    })
}

static NAMES: &[(u32, &CStr, &CStr)] = &[
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
];

fn text(code: u32, of: impl Fn(&(u32, &'static CStr, &'static CStr)) -> &'static CStr) -> *const c_char {
    NAMES.iter().find(|known| known.0 == code).map_or(std::ptr::null(), |known| of(known).as_ptr())
}

cuda! {
    fn cuInit(_flags: c_uint) { atexit(end); setting("FAKE_INIT", 0) as u32 }
    fn cuDriverGetVersion(version: *mut c_int) { *version = setting("FAKE_VERSION", 13_000); 0 }
    fn cuGetErrorName(code: u32, to: *mut *const c_char) { *to = text(code, |known| known.1); 0 }
    fn cuGetErrorString(code: u32, to: *mut *const c_char) { *to = text(code, |known| known.2); 0 }

    fn cuDeviceGetCount(count: *mut c_int) { *count = setting("FAKE_DEVICES", 2); 0 }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) { *device = ordinal; 0 }
    fn cuDeviceGetName(name: *mut c_char, _len: c_int, _device: c_int) {
        name.copy_from_nonoverlapping(c"Fake H100".as_ptr(), 10);
        0
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { *bytes = MEMORY; 0 }
    fn cuDeviceGetAttribute(value: *mut c_int, number: c_uint, device: c_int) {
        match attribute(number, device) {
            Some(found) => { *value = found; 0 }
            None => INVALID_VALUE,
        }
    }
    fn cuDeviceGetPCIBusId(to: *mut c_char, _len: c_int, _device: c_int) {
        to.copy_from_nonoverlapping(c"0000:10:00.0".as_ptr(), 13);
        0
    }
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) { *can = c_int::from(device != peer); 0 }
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        log(format!("retain {device}"));
        *context = CONTEXT + device as usize;
        0
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { log(format!("release {device}")); 0 }
    fn cuDevicePrimaryCtxReset_v2(device: c_int) { log(format!("reset {device}")); 0 }
    fn cuCtxSetCurrent(context: usize) { CURRENT.set(context); FAULT.load(SeqCst) }
    #[context] fn cuCtxSynchronize() { 0 }
    #[context] fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        (*least, *greatest) = (0, -5);
        0
    }
    #[context] fn cuCtxEnablePeerAccess(peer: usize, _flags: c_uint) { log(format!("peer {peer:x}")); 0 }

    #[context] fn cuMemAlloc_v2(to: *mut *mut u8, size: usize) {
        let mut live = LIVE.lock().unwrap();
        if size > MEMORY || live.values().sum::<usize>() > MEMORY - size {
            return OUT_OF_MEMORY;
        }
        *to = alloc(Layout::from_size_align_unchecked(size, 256));
        live.insert((*to).addr(), size);
        0
    }
    #[context] fn cuMemFree_v2(address: *mut u8) {
        let Some(size) = LIVE.lock().unwrap().remove(&address.addr()) else { return INVALID_VALUE };
        dealloc(address, Layout::from_size_align_unchecked(size, 256));
        0
    }
    #[context] fn cuMemHostAlloc(to: *mut *mut u8, size: usize, flags: c_uint) {
        log(format!("host memory flags {flags}"));
        cuMemAlloc_v2(to, size)
    }
    #[context] fn cuMemFreeHost(address: *mut u8) { cuMemFree_v2(address) }
    #[context] fn cuMemHostGetDevicePointer_v2(to: *mut *mut c_void, address: *mut c_void, _flags: c_uint) {
        *to = address;
        0
    }
    #[context] fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        (*free, *total) = (MEMORY - LIVE.lock().unwrap().values().sum::<usize>(), MEMORY);
        0
    }
    #[context] fn cuMemcpyAsync(to: *mut u8, from: *const u8, size: usize, _stream: *mut Object) {
        to.copy_from(from, size);
        0
    }
    #[context] fn cuMemcpyPeerAsync(
        to: *mut u8, to_context: usize, from: *const u8, from_context: usize, size: usize, _stream: *mut Object
    ) {
        log(format!("peer copy {from_context:x} to {to_context:x}"));
        to.copy_from(from, size);
        0
    }
    #[context] fn cuMemsetD8Async(to: *mut u8, value: u8, count: usize, _stream: *mut Object) {
        if std::env::var_os("FAKE_FAULT").is_some() {
            FAULT.store(ILLEGAL_ADDRESS, SeqCst);
            return 0;
        }
        to.write_bytes(value, count);
        0
    }
    #[context] fn cuMemsetD32Async(to: *mut u32, value: c_uint, count: usize, _stream: *mut Object) {
        (0..count).for_each(|i| unsafe { to.add(i).write(value) });
        0
    }

    #[context] fn cuStreamCreate(to: *mut *mut Object, flags: c_uint) { *to = object("stream", flags.into()); 0 }
    #[context] fn cuStreamCreateWithPriority(to: *mut *mut Object, _flags: c_uint, priority: c_int) {
        *to = object("stream", priority.into());
        0
    }
    #[context] fn cuStreamDestroy_v2(stream: *mut Object) { drop(Box::from_raw(stream)); 0 }
    #[context] fn cuStreamSynchronize(_stream: *mut Object) { 0 }
    #[context] fn cuStreamQuery(_stream: *mut Object) { BUSY.load(SeqCst) * NOT_READY }
    #[context] fn cuStreamWaitEvent(_stream: *mut Object, _event: *mut Object, _flags: c_uint) { 0 }
    #[context] fn cuStreamAddCallback(
        stream: *mut Object, callback: extern "C" fn(*mut Object, u32, *mut c_void), data: *mut c_void, _flags: c_uint
    ) {
        // A status that HIP numbers differently.
        callback(stream, 716, data);
        0
    }
    #[context] fn cuStreamGetFlags(stream: *mut Object, flags: *mut c_uint) { *flags = (*stream).value as u32; 0 }
    #[context] fn cuStreamGetPriority(stream: *mut Object, to: *mut c_int) { *to = (*stream).value as c_int; 0 }
    #[context] fn cuStreamGetCtx(stream: *mut Object, to: *mut usize) { *to = (*stream).context; 0 }

    #[context] fn cuStreamBeginCapture_v2(stream: *mut Object, mode: c_uint) {
        log(format!("capture mode {mode}"));
        (*stream).name = "capturing".to_owned();
        0
    }
    #[context] fn cuStreamEndCapture(stream: *mut Object, to: *mut *mut Object) {
        if (*stream).name != "capturing" {
            return INVALID_VALUE;
        }
        (*stream).name = "stream".to_owned();
        *to = object("graph", 3);
        0
    }
    #[context] fn cuStreamIsCapturing(stream: *mut Object, status: *mut c_uint) {
        *status = c_uint::from((*stream).name == "capturing");
        0
    }
    #[context] fn cuGraphGetNodes(graph: *mut Object, _nodes: *mut usize, count: *mut usize) {
        *count = (*graph).value as usize;
        0
    }
    #[context] fn cuGraphInstantiateWithFlags(to: *mut *mut Object, graph: *mut Object, flags: u64) {
        *to = object("executable", (*graph).value + flags as i64);
        0
    }
    #[context] fn cuGraphLaunch(executable: *mut Object, _stream: *mut Object) {
        log(format!("launch of {} nodes", (*executable).value));
        0
    }
    #[context] fn cuGraphDestroy(graph: *mut Object) { drop(Box::from_raw(graph)); 0 }
    #[context] fn cuGraphExecDestroy(executable: *mut Object) { drop(Box::from_raw(executable)); 0 }

    #[context] fn cuEventCreate(to: *mut *mut Object, flags: c_uint) { *to = object("event", flags.into()); 0 }
    #[context] fn cuEventDestroy_v2(event: *mut Object) { drop(Box::from_raw(event)); 0 }
    #[context] fn cuEventRecord(event: *mut Object, _stream: *mut Object) {
        log(format!("record flags {}", (*event).value));
        0
    }
    #[context] fn cuEventSynchronize(_event: *mut Object) { 0 }
    #[context] fn cuEventQuery(_event: *mut Object) { BUSY.load(SeqCst) * NOT_READY }
    #[context] fn cuEventElapsedTime(to: *mut f32, _start: *mut Object, _end: *mut Object) { *to = 1.5; 0 }

    #[context] fn cuModuleLoadData(to: *mut *mut Object, image: *const u8) {
        // The byte after the header is 1 if the image is valid.
        if image.add(64).read() != 1 {
            return INVALID_IMAGE;
        }
        *to = object("module", 0);
        0
    }
    #[context] fn cuModuleUnload(module: *mut Object) { drop(Box::from_raw(module)); 0 }
    #[context] fn cuModuleGetFunction(to: *mut *mut Object, _module: *mut Object, name: *const c_char) {
        let name = CStr::from_ptr(name).to_string_lossy();
        if name == "missing" {
            return NOT_FOUND;
        }
        *to = object(&name, 1024);
        0
    }
    #[context] fn cuModuleGetGlobal_v2(to: *mut *mut c_void, bytes: *mut usize, module: *mut Object, _name: *const c_char) {
        (*to, *bytes) = (module.cast(), 8);
        0
    }
    #[context] fn cuFuncGetAttribute(to: *mut c_int, number: c_uint, function: *mut Object) {
        *to = if number == 1 { (*function).value as c_int } else { number as c_int };
        0
    }
    #[context] fn cuFuncSetAttribute(function: *mut Object, number: c_uint, value: c_int) {
        log(format!("{} attribute {number} = {value}", (*function).name));
        0
    }
    #[context] fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        to: *mut c_int, _function: *mut Object, block: c_int, _shared: usize
    ) {
        *to = 2048 / block;
        0
    }
    #[context] fn cuLaunchKernelEx(
        config: *const [c_uint; 14], function: *mut Object, arguments: *mut *mut u32, _extra: *mut *mut c_void
    ) {
        // Sizes of the grid and of a block, shared memory; then padding, the stream, attributes, and their number.
        let (config, name) = (*config, &(*function).name);
        log(format!("{name} {:?}, {} attributes: {}", &config[..7], config[12], arguments.read().read()));
        0
    }
    #[context] fn cuLaunchKernel(
        function: *mut Object, x: c_uint, y: c_uint, z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, _stream: *mut Object, arguments: *mut *mut u32, extra: *mut *mut c_void
    ) {
        if (*function).name == "faults" {
            // Reported by the next call.
            FAULT.store(ILLEGAL_ADDRESS, SeqCst);
            return 0;
        }
        let first = match arguments.is_null() {
            true => None,
            false => Some(arguments.read().read()),
        };
        let mut marked = Vec::new();
        for at in 0.. {
            if extra.is_null() || extra.add(at).read().is_null() {
                break;
            }
            marked.push(extra.add(at).read().addr());
        }
        if let [1, buffer, 2, size] = marked[..] {
            let size = std::ptr::with_exposed_provenance::<usize>(size).read();
            let bytes = std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(buffer), size);
            log(format!("buffer {bytes:?}"));
        } else if !marked.is_empty() {
            return INVALID_VALUE;
        }
        let name = &(*function).name;
        log(format!("{name} {x} {y} {z}, {block_x} {block_y} {block_z}, {shared}: {first:?}"));
        0
    }
}
