//! HIP's functions for modules, kernels and launches.
use super::*;
use crate::code_object::{Target, copy_image, extract};
use crate::runtime::{MAX_WORKGROUP_SIZE, PreparedLaunch, Shape};
use std::ffi::c_void;
use std::sync::Arc;

c_functions! {
    /// Loads a code object from a file.
    fn hipModuleLoad(module: *mut hipModule_t, fname: *const c_char) -> module |runtime| {
        // SAFETY: the caller's string.
        let path = unsafe { text(fname)? };
        let Ok(bytes) = std::fs::read(path) else {
            bail!(FileNotFound, "{path} cannot be read");
        };
        runtime.load_module(&extract(&bytes, bundle_filter(runtime)?)?)?
    }

    /// Loads a code object or an offload bundle from memory.
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) -> module |runtime| {
        // SAFETY: the caller's image.
        unsafe { load_image(runtime, module, image)? }
    }

    /// Like [`hipModuleLoadData`]. The compiler options do not apply to compiled code.
    fn hipModuleLoadDataEx(
        module: *mut hipModule_t,
        image: *const c_void,
        _numOptions: u32,
        _options: *mut hipJitOption,
        _optionValues: *mut *mut c_void,
    ) -> module |runtime| {
        // SAFETY: the caller's image.
        unsafe { load_image(runtime, module, image)? }
    }
}

/// Returns a filter for the entries of an offload bundle that the current device can run.
fn bundle_filter(runtime: &Runtime) -> Result<impl Fn(&str) -> bool> {
    let arch = runtime.current_device()?.arch;
    Ok(move |target: &str| Target::name_fits(target, arch.name(), arch.generic, arch.gcn_arch_name))
}

/// # Safety
/// `image` must be null or point to a code object or bundle.
unsafe fn load_image(
    runtime: &Runtime,
    module: *mut hipModule_t,
    image: *const c_void,
) -> Result<hipModule_t> {
    if module.is_null() || image.is_null() {
        bail!(InvalidValue, "null pointer: module {module:?}, image {image:?}");
    }
    let wanted = bundle_filter(runtime)?;
    // SAFETY: the caller guarantees the image.
    runtime.load_module(&unsafe { copy_image(image.cast(), wanted)? })
}

c_functions! {
    /// Unloads a module. Enqueued launches still finish.
    fn hipModuleUnload(module: hipModule_t) |runtime| {
        runtime.unload_module(module)
    }

    /// Looks up a kernel by name. Every call creates a handle, which is valid as long as the module.
    fn hipModuleGetFunction(
        function: *mut hipFunction_t,
        module: hipModule_t,
        kname: *const c_char,
    ) -> function |runtime| {
        // SAFETY: the caller's string.
        let found = runtime.modules.get(module)?.function(unsafe { text(kname)? })?;
        not_null(function)?;
        runtime.functions.insert(Arc::new(found))
    }

    /// Returns the address and size of a global variable. Either result pointer may be null.
    fn hipModuleGetGlobal(
        dptr: *mut hipDeviceptr_t,
        bytes: *mut usize,
        hmod: hipModule_t,
        name: *const c_char,
    ) |runtime| {
        // SAFETY: the caller's string and pointers.
        unsafe {
            let (address, size) = runtime.modules.get(hmod)?.global(text(name)?)?;
            put_if_wanted(dptr, std::ptr::with_exposed_provenance_mut(address));
            put_if_wanted(bytes, size);
        }
        Ok(())
    }

    /// Launches a kernel on a stream. `gridDim*` counts workgroups; `sharedMemBytes` is dynamic LDS.
    fn hipModuleLaunchKernel(
        f: hipFunction_t,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        stream: hipStream_t,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |runtime| {
        let function = runtime.functions.get(f)?;
        let stream = runtime.stream(stream)?;
        let shape = Shape {
            grid: [gridDimX, gridDimY, gridDimZ],
            block: [blockDimX, blockDimY, blockDimZ],
            dynamic_lds: sharedMemBytes,
        };
        let arch = runtime.device(stream.device)?.arch;
        // SAFETY: the caller's arguments.
        let launch = unsafe { PreparedLaunch::new(arch, Arc::clone(&function), shape, kernelParams, extra)? };
        runtime.launch(&stream, &function, launch)
    }

    /// Fails: the software GPU does not run kernels that are compiled into the host executable.
    fn hipLaunchKernel(
        function_address: *const c_void,
        _numBlocks: dim3,
        _dimBlocks: dim3,
        _args: *mut *mut c_void,
        _sharedMemBytes: usize,
        _stream: hipStream_t,
    ) {
        bail!(
            NotSupported,
            "{function_address:?}: the software GPU only launches kernels of modules; use hipModuleLaunchKernel"
        )
    }

    /// Returns an attribute of a kernel, by HIP_FUNC_ATTRIBUTE number.
    fn hipFuncGetAttribute(
        value: *mut i32,
        attrib: hipFunction_attribute,
        hfunc: hipFunction_t,
    ) -> value |runtime| {
        let function = runtime.functions.get(hfunc)?;
        let arch = runtime.device(function.module.device)?.arch;
        let number = match attrib {
            // MAX_THREADS_PER_BLOCK
            0 => function.kernel.metadata.max_workgroup_size.min(MAX_WORKGROUP_SIZE),
            // SHARED_SIZE_BYTES
            1 => function.spec.lds_bytes,
            // CONST_SIZE_BYTES, CACHE_MODE_CA, PREFERRED_SHARED_MEMORY_CARVEOUT
            2 | 7 | 9 => 0,
            // LOCAL_SIZE_BYTES
            3 => function.spec.private_bytes,
            // NUM_REGS
            4 => function.kernel.metadata.vgprs,
            // PTX_VERSION, BINARY_VERSION
            5 | 6 => arch.major * 10 + arch.minor,
            // MAX_DYNAMIC_SHARED_SIZE_BYTES
            8 => arch.lds_per_workgroup.saturating_sub(function.spec.lds_bytes),
            _ => bail!(InvalidValue, "unknown function attribute {attrib}"),
        };
        number as i32
    }

    /// Returns the number of workgroups of a kernel that fit on a multiprocessor.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        numBlocks: *mut i32,
        f: hipFunction_t,
        blockSize: i32,
        dynSharedMemPerBlk: usize,
    ) -> numBlocks |runtime| {
        let function = runtime.functions.get(f)?;
        let block = match u32::try_from(blockSize) {
            Ok(block) if (1..=MAX_WORKGROUP_SIZE).contains(&block) => block,
            _ => bail!(InvalidValue, "invalid block size of {blockSize} work-items"),
        };
        function.workgroups_per_multiprocessor(block, dynSharedMemPerBlk) as i32
    }
}
