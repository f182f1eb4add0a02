//! Code objects, their functions and globals, and kernel launches.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use object::elf::{ELFMAG, EM_AMDGPU, EM_CUDA};
use rocm_rs::hip::bindings::{
    HIP_LAUNCH_CONFIG, hipDeviceptr_t, hipError_t, hipError_t_hipErrorFileNotFound,
    hipError_t_hipErrorInvalidImage, hipError_t_hipErrorInvalidValue, hipError_t_hipErrorNoBinaryForGpu,
    hipError_t_hipErrorNotSupported, hipFunction_attribute, hipFunction_t, hipJitOption, hipModule_t,
    hipStream_t,
};

use super::context::{current, forwarded, null_pointer, with_context};
use super::properties::{self, SHARED_BYTES};
use super::status::{SUCCESS, fail};
use crate::running::running;

/// `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES` and `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const STATIC_SHARED: c_uint = 1;
const MAX_DYNAMIC_SHARED: c_uint = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`, and its value for as much shared memory as possible, in percent.
const PREFERRED_SHARED_CARVEOUT: c_uint = 9;
const MAX_SHARED: c_int = 100;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_SERIALIZATION: c_uint = 6;
/// The first version that captures launches with that attribute, CUDA 12.3.
const CAPTURES_OVERLAPPING: i32 = 12030;
/// The last function attribute that HIP and CUDA number alike.
const LAST_SHARED_ATTRIBUTE: hipFunction_attribute = 9;

/// First bytes of HIP's bundles of code objects.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";

pub(crate) unsafe extern "C" fn hipModuleLoad(module: *mut hipModule_t, fname: *const c_char) -> hipError_t {
    if fname.is_null() {
        return fail(hipError_t_hipErrorInvalidValue, "the file name is null".to_owned());
    }
    // SAFETY: the caller's text.
    let name = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(fname) }.to_bytes()));
    match std::fs::read(name) {
        // An image must have a complete ELF header.
        Ok(image) if image.len() < 64 => not_an_object(),
        // SAFETY: the caller's pointer; the bytes are those of the file.
        Ok(image) => unsafe { hipModuleLoadData(module, image.as_ptr().cast()) },
        Err(error) => fail(hipError_t_hipErrorFileNotFound, format!("{}: {error}", name.display())),
    }
}

pub(crate) unsafe extern "C" fn hipModuleLoadData(
    module: *mut hipModule_t,
    image: *const c_void,
) -> hipError_t {
    if module.is_null() || image.is_null() {
        return null_pointer();
    }
    // SAFETY: the caller's image, as long as its own header says.
    let machine = match unsafe { machine_of(image.cast()) } {
        Ok(machine) => machine,
        Err(code) => return code,
    };
    if machine != EM_CUDA {
        return for_another_gpu(&match machine {
            EM_AMDGPU => "an AMD code object".to_owned(),
            other => format!("an ELF file for machine {other}"),
        });
    }
    // SAFETY: the caller's pointer and image.
    with_context("cuModuleLoadData", |cuda| unsafe { (cuda.cuModuleLoadData)(module, image) })
}

/// Returns the ELF machine of an image of unknown length. A byte is read only if those before it are as expected.
unsafe fn machine_of(image: *const u8) -> Result<u16, hipError_t> {
    // SAFETY: each byte is only read if those before it are as expected.
    let begins_with =
        |text: &[u8]| text.iter().enumerate().all(|(at, byte)| unsafe { image.add(at).read() } == *byte);
    if begins_with(&ELFMAG) {
        // SAFETY: an ELF header has 64 bytes; its machine is the little-endian number at byte 18.
        Ok(u16::from_le_bytes(unsafe { [image.add(18).read(), image.add(19).read()] }))
    } else if begins_with(BUNDLE) {
        Err(for_another_gpu("a bundle of AMD code objects"))
    } else {
        Err(not_an_object())
    }
}

fn not_an_object() -> hipError_t {
    let reason = "the image is not an NVIDIA object (an ELF file for machine 190)".to_owned();
    fail(hipError_t_hipErrorInvalidImage, reason)
}

fn for_another_gpu(image: &str) -> hipError_t {
    let arch = properties::arch(current()).unwrap_or_else(|| "sm_XX".to_owned());
    let reason =
        format!("the image is {image}, but this GPU is NVIDIA's {arch}: build with CANDLE_ROCM_ARCHS={arch}");
    fail(hipError_t_hipErrorNoBinaryForGpu, reason)
}

pub(crate) unsafe extern "C" fn hipModuleLoadDataEx(
    module: *mut hipModule_t,
    image: *const c_void,
    numOptions: c_uint,
    _: *mut hipJitOption,
    _: *mut *mut c_void,
) -> hipError_t {
    if numOptions != 0 {
        let reason = "hipModuleLoadDataEx supports no options: nothing is compiled at run time".to_owned();
        return fail(hipError_t_hipErrorNotSupported, reason);
    }
    // SAFETY: the caller's pointer and image.
    unsafe { hipModuleLoadData(module, image) }
}

forwarded! {
    hipModuleUnload => cuModuleUnload(module: hipModule_t);
    hipModuleGetGlobal => cuModuleGetGlobal(
        dptr: *mut hipDeviceptr_t, bytes: *mut usize, hmod: hipModule_t, name: *const c_char
    );
    hipModuleOccupancyMaxActiveBlocksPerMultiprocessor => cuOccupancyMaxActiveBlocksPerMultiprocessor(
        numBlocks: *mut c_int, f: hipFunction_t, blockSize: c_int, dynSharedMemPerBlk: usize
    );
}

pub(crate) unsafe extern "C" fn hipModuleGetFunction(
    function: *mut hipFunction_t,
    module: hipModule_t,
    kname: *const c_char,
) -> hipError_t {
    if function.is_null() {
        return null_pointer();
    }
    // SAFETY: the caller's pointer, module and text.
    match with_context("cuModuleGetFunction", |cuda| unsafe {
        (cuda.cuModuleGetFunction)(function, module, kname)
    }) {
        // SAFETY: just written.
        SUCCESS => allow_all_shared(unsafe { function.read() }),
        code => code,
    }
}

/// Raises the function's limit of dynamic shared memory to an AMD GPU's. CUDA's default limit is 48 KiB.
fn allow_all_shared(function: hipFunction_t) -> hipError_t {
    let mut used: c_int = 0;
    let code = with_context("cuFuncGetAttribute", |cuda| {
        // SAFETY: a live function; the int is written to a live variable.
        unsafe { (cuda.cuFuncGetAttribute)(&mut used, STATIC_SHARED, function) }
    });
    if code != SUCCESS {
        return code;
    }
    let bytes = (properties::shared_bytes(current()).min(SHARED_BYTES) - used).max(0);
    with_context("cuFuncSetAttribute", |cuda| {
        // SAFETY: a live function.
        unsafe { (cuda.cuFuncSetAttribute)(function, MAX_DYNAMIC_SHARED, bytes) }
    })
}

#[rustfmt::skip]
pub(crate) unsafe extern "C" fn hipModuleLaunchKernel(
    f: hipFunction_t, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint,
    blockDimZ: c_uint, sharedMemBytes: c_uint, stream: hipStream_t, kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    let mut list;
    let extra = match extra.is_null() {
        true => null_mut(),
        // SAFETY: the caller's list.
        false => match unsafe { translated(extra) } {
            Some(translated) => {
                list = translated;
                list.as_mut_ptr()
            }
            None => {
                let reason = "hipModuleLaunchKernel's `extra` is not a list of a buffer, its size and an end marker";
                return fail(hipError_t_hipErrorInvalidValue, reason.to_owned());
            }
        },
    };
    let [x, y, z] = [gridDimX, gridDimY, gridDimZ];
    let [a, b, c] = [blockDimX, blockDimY, blockDimZ];
    // SAFETY: the caller's function, stream and arguments.
    with_context("cuLaunchKernel", |cuda| unsafe {
        (cuda.cuLaunchKernel)(f, x, y, z, a, b, c, sharedMemBytes, stream, kernelParams, extra)
    })
}

/// Launches a kernel that may overlap with the launch before it, which HIP has no attribute for. The structs of both APIs are
/// the same.
///
/// The launch needs space on the multiprocessors next to the one before it. Both therefore prefer the same division of their
/// memory between L1 cache and shared memory. Older drivers cannot capture such a launch; there it does not overlap.
pub(crate) unsafe extern "C" fn hipDrvLaunchKernelEx(
    config: *const HIP_LAUNCH_CONFIG,
    f: hipFunction_t,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    if config.is_null() {
        return null_pointer();
    }
    // SAFETY: the caller's configuration.
    let mut config = unsafe { config.read() };
    for at in 0..config.numAttrs as usize {
        // SAFETY: the configuration has as many attributes.
        let id = unsafe { config.attrs.add(at).read().id };
        if id != PROGRAMMATIC_SERIALIZATION {
            let reason = format!("hipDrvLaunchKernelEx does not support attribute {id}");
            return fail(hipError_t_hipErrorNotSupported, reason);
        }
    }
    if !extra.is_null() {
        let reason = "hipDrvLaunchKernelEx supports no `extra`: pass the arguments in `params`".to_owned();
        return fail(hipError_t_hipErrorNotSupported, reason);
    }
    if running().is_none_or(|running| running.version < CAPTURES_OVERLAPPING) {
        config.numAttrs = 0;
    }
    let code = match config.numAttrs {
        0 => SUCCESS,
        _ => with_context("cuFuncSetAttribute", |cuda| {
            // SAFETY: the caller's function.
            unsafe { (cuda.cuFuncSetAttribute)(f, PREFERRED_SHARED_CARVEOUT, MAX_SHARED) }
        }),
    };
    match code {
        // SAFETY: the caller's configuration, function and arguments.
        SUCCESS => with_context("cuLaunchKernelEx", |cuda| unsafe {
            (cuda.cuLaunchKernelEx)(&config, f, params, extra)
        }),
        code => code,
    }
}

/// Translates HIP's list of tagged values to CUDA's. The tags are the same, except that HIP's end is 3 and CUDA's is 0.
unsafe fn translated(extra: *mut *mut c_void) -> Option<[*mut c_void; 5]> {
    const BUFFER: usize = 1;
    const SIZE: usize = 2;
    const END: usize = 3;
    let mut list = [null_mut(); 5];
    for at in [0, 2, 4] {
        // SAFETY: the caller's list continues until its end marker.
        let marker = unsafe { extra.add(at).read() };
        match marker.addr() {
            END => return Some(list),
            BUFFER | SIZE if at < 4 => {
                list[at] = marker;
                // SAFETY: a value follows the tag.
                list[at + 1] = unsafe { extra.add(at + 1).read() };
            }
            _ => return None,
        }
    }
    None
}

pub(crate) unsafe extern "C" fn hipFuncGetAttribute(
    value: *mut c_int,
    attrib: hipFunction_attribute,
    hfunc: hipFunction_t,
) -> hipError_t {
    if attrib > LAST_SHARED_ATTRIBUTE {
        return fail(hipError_t_hipErrorInvalidValue, format!("unknown function attribute {attrib}"));
    }
    // SAFETY: the caller's pointer and function.
    with_context("cuFuncGetAttribute", |cuda| unsafe { (cuda.cuFuncGetAttribute)(value, attrib, hfunc) })
}
