//! The NVIDIA driver with fakes of libcuda, libcublas, libcublasLt and libnccl.
mod child;
mod cublaslt;
#[path = "../../rocm-loader/tests/fake/mod.rs"]
mod fake;
mod nccl;

use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use child::{CUBLAS, CUDA, CUDNN, Outcome, assert_contains, in_child, is_child, libraries, log};
use rocm_loader::{Library, LibraryFile, LoadError, bound_device, hip, last_error, miopen, rocblas};
use rocm_rs::hip::bindings as hip_types;
use rocm_rs::rocblas::ffi;

/// Returns an image that the fake library accepts, with an ELF machine.
fn object(machine: u16) -> Vec<u8> {
    let mut image = vec![0u8; 65];
    image[..4].copy_from_slice(b"\x7fELF");
    image[18..20].copy_from_slice(&machine.to_le_bytes());
    image[64] = 1;
    image
}

fn function(name: &CStr) -> hip_types::hipFunction_t {
    let (mut module, mut function, image) = (null_mut(), null_mut(), object(190));
    // SAFETY: the handles are written to live variables, and an image that is long enough.
    unsafe {
        assert_eq!(hip::hipModuleLoadData(&mut module, image.as_ptr().cast()), 0);
        assert_eq!(hip::hipModuleGetFunction(&mut function, module, name.as_ptr()), 0);
    }
    function
}

fn launch(function: hip_types::hipFunction_t, arguments: *mut *mut c_void, extra: *mut *mut c_void) -> u32 {
    // SAFETY: a function of the fake library, which reads one argument.
    unsafe { hip::hipModuleLaunchKernel(function, 7, 6, 5, 4, 3, 2, 96, null_mut(), arguments, extra) }
}

#[test]
fn missing_libcuda_is_reported() -> Outcome {
    if !in_child("missing_libcuda_is_reported", None, &[])? {
        return Ok(());
    }
    let Err(error) = rocm_loader::driver() else { return Ok(()) }; // this machine has a real libcuda
    assert_contains(Some(error.to_string()), &[CUDA, "not in", "NVIDIA's GPU driver", "LD_LIBRARY_PATH"]);
    assert!(matches!(error, LoadError::LibraryMissing { .. }) && !rocm_loader::is_available());
    // SAFETY: the int is written to a live variable.
    assert_eq!(unsafe { hip::hipGetDeviceCount(&mut 0) }, 303);
    assert_contains(last_error(), &[CUDA]);
    Ok(())
}

#[test]
fn a_file_that_is_not_a_library_is_reported() -> Outcome {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join(CUDA), "text")?;
    if in_child("a_file_that_is_not_a_library_is_reported", Some(folder.path()), &[])? {
        let error = rocm_loader::driver().map_err(|error| error.to_string()).err();
        assert_contains(error, &["libcuda.so.1 of CUDA cannot be used", "file too short"]);
    }
    Ok(())
}

#[test]
fn an_outdated_driver_is_reported() -> Outcome {
    if in_child(
        "an_outdated_driver_is_reported",
        Some(&libraries(&[CUDA, CUBLAS])?),
        &[("FAKE_VERSION", "11080")],
    )? {
        let error = rocm_loader::device_archs().map_err(|error| error.to_string()).err();
        assert_contains(
            error,
            &["libcuda.so.1 serves CUDA up to 11.8", "12.0 is needed", "newer NVIDIA driver"],
        );
        // SAFETY: takes an integer.
        assert_eq!(unsafe { hip::hipSetDevice(0) }, 35);
    }
    Ok(())
}

#[test]
fn a_missing_gpu_is_reported() -> Outcome {
    if in_child(
        "a_missing_gpu_is_reported",
        Some(&libraries(&[CUDA, CUBLAS])?),
        &[("FAKE_INIT", "100"), ("CUDA_VISIBLE_DEVICES", "7")],
    )? {
        let error = rocm_loader::device_archs().map_err(|error| error.to_string()).err();
        assert_contains(
            error,
            &["cuInit", "CUDA_ERROR_NO_DEVICE (100)", r#"CUDA_VISIBLE_DEVICES="7" may hide GPUs"#],
        );
        // SAFETY: the int is written to a live variable.
        assert_eq!(unsafe { hip::hipGetDeviceCount(&mut 0) }, 100);
    }
    Ok(())
}

#[test]
fn missing_cublas_is_reported() -> Outcome {
    if !in_child("missing_cublas_is_reported", Some(&libraries(&[CUDA])?), &[])? {
        return Ok(());
    }
    let Err(error) = rocm_loader::driver()?.tensile_files("sm_90") else { return Ok(()) }; // cuBLAS is installed on this system
    assert_contains(
        Some(error.to_string()),
        &["libcublas.so of CUDA", "libcublas.so.13 or libcublas.so.12", "CUDA_HOME"],
    );
    // SAFETY: the handle is written to a live variable.
    assert_eq!(unsafe { rocblas::rocblas_create_handle(&mut null_mut()) }, 6);
    assert_contains(last_error(), &["libcublas.so"]);
    assert_eq!(rocm_loader::driver()?.versions().rocblas, None);
    // Everything except products works.
    assert_eq!(rocm_loader::device_archs()?, ["sm_90", "sm_90"]);
    Ok(())
}

#[test]
fn cublas_is_loaded_from_cuda_home() -> Outcome {
    let root = tempfile::tempdir()?;
    if !is_child() {
        std::fs::create_dir(root.path().join("lib"))?;
        std::fs::copy(libraries(&[CUDA, CUBLAS])?.join(CUBLAS), root.path().join("lib").join(CUBLAS))?;
    }
    let home = root.path().to_string_lossy();
    if in_child("cublas_is_loaded_from_cuda_home", Some(&libraries(&[CUDA])?), &[("CUDA_HOME", &home)])? {
        let libraries = rocm_loader::driver()?.libraries();
        let expected = PathBuf::from(std::env::var("CUDA_HOME")?).join("lib").join(CUBLAS);
        assert_eq!(
            libraries[1],
            LibraryFile { serves: Library::RocBlas, name: "libcublas.so", file: Some(expected) }
        );
    }
    Ok(())
}

#[test]
fn the_driver_describes_itself() -> Outcome {
    let folder = libraries(&[CUDA, CUBLAS, CUDNN])?;
    if !in_child("the_driver_describes_itself", Some(&folder), &[])? {
        return Ok(());
    }
    let driver = rocm_loader::driver()?;
    assert_eq!((driver.name(), driver.is_software()), ("nvidia", false));
    let note = "NVIDIA, for development: no AMD figure";
    assert_eq!(driver.note(), Some(note));
    assert_eq!(driver.description(), format!("CUDA driver 13.0 (libcuda.so.1), {note}"));
    let versions = driver.versions();
    assert_eq!((versions.hip_runtime, versions.hip_driver), (None, None));
    assert_eq!(versions.miopen, Some([9, 12, 3]), "cuDNN's");
    assert_eq!(versions.rocblas.as_deref(), Some("cuBLAS 13.1.7"));
    assert_eq!(rocm_loader::device_archs()?, ["sm_90", "sm_90"]);
    assert_eq!(rocm_loader::driver()?.tensile_files("sm_90")?, None);
    // SAFETY: the structure is plain data, and the results are written to live variables.
    unsafe {
        let mut found: hip_types::hipDeviceProp_tR0600 = std::mem::zeroed();
        hip::hipGetLastError();
        assert_eq!(hip::hipGetDevicePropertiesR0600(&mut found, 1), 0);
        // Attributes that CUDA does not know are skipped without an error.
        assert_eq!((hip::hipGetLastError(), last_error()), (0, None));
        assert_eq!(CStr::from_ptr(found.name.as_ptr()), c"Fake H100");
        assert_eq!((found.sharedMemPerBlock, found.sharedMemPerBlockOptin), (65536, 227 << 10));
        assert_eq!((found.warpSize, found.multiProcessorCount, found.pciBusID), (32, 132, 0x11));
        assert_eq!((found.maxThreadsDim, found.l2CacheSize), ([1024, 1024, 64], 50 << 20));
        let mut value = 0;
        let of = |attribute, value| hip::hipDeviceGetAttribute(value, attribute, 0);
        assert_eq!(of(hip_types::hipDeviceAttribute_t_hipDeviceAttributeWarpSize, &mut value), 0);
        assert_eq!(value, 32);
        assert_eq!(of(hip_types::hipDeviceAttribute_t_hipDeviceAttributeFineGrainSupport, &mut value), 801);
        assert_contains(last_error(), &["attribute 10016"]);
        // The driver has no HIP version, no find mode of MIOpen and no kernels compiled into the executable.
        assert_eq!(hip::hipRuntimeGetVersion(&mut value), 801);
        let mut size = 0;
        let found = miopen::miopenConvolutionForwardGetWorkSpaceSize(
            null_mut(),
            null_mut(),
            null_mut(),
            null_mut(),
            null_mut(),
            &mut size,
        );
        assert_eq!(found, 6);
        assert_contains(last_error(), &["the NVIDIA driver has no miopenConvolutionForwardGetWorkSpaceSize"]);
        assert_eq!(CStr::from_ptr(hip::hipGetErrorName(209)), c"hipErrorNoBinaryForGpu");
    }
    Ok(())
}

#[test]
fn every_thread_has_a_current_device() -> Outcome {
    if !in_child("every_thread_has_a_current_device", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let allocates = || {
        let mut memory = null_mut();
        // SAFETY: the address is written to a live variable and freed.
        unsafe { (hip::hipMalloc(&mut memory, 256), hip::hipFree(memory)) }
    };
    let device_of_new_stream = || {
        let (mut stream, mut device) = (null_mut(), -1);
        // SAFETY: the results are written to live variables.
        unsafe {
            assert_eq!(hip::hipStreamCreateWithFlags(&mut stream, 1), 0);
            assert_eq!(hip::hipStreamGetDevice(stream, &mut device), 0);
            assert_eq!(hip::hipStreamDestroy(stream), 0);
        }
        device
    };
    // SAFETY: the functions take integers or write one.
    unsafe {
        assert_eq!(hip::hipSetDevice(1), 0);
        assert_eq!((bound_device(), device_of_new_stream()), (Some(1), 1));
        // A thread that has selected no device uses the first.
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(move || (allocates(), device_of_new_stream()))).collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), ((0, 0), 0));
        }
        let mut device = -1;
        assert_eq!((hip::hipGetDevice(&mut device), device), (0, 1));
        assert_eq!(hip::hipSetDevice(2), 101);
        assert_contains(last_error(), &["no device 2", "CUDA has 2"]);
        assert_eq!(
            (hip::hipPeekAtLastError(), hip::hipGetLastError(), hip::hipGetLastError()),
            (101, 101, 0)
        );
        // A created context is the device's primary context.
        let mut context = null_mut();
        assert_eq!(hip::hipCtxCreate(&mut context, 0, 0), 0);
        assert_eq!((hip::hipGetDevice(&mut device), device), (0, 0));
        assert_eq!((hip::hipCtxDestroy(context), device_of_new_stream()), (0, 0));
        assert_eq!(hip::hipCtxSetCurrent(std::ptr::without_provenance_mut(5)), 201);
    }
    // Each context was retained once, by the first thread that used it.
    let retained: Vec<String> = log(CUDA)?.into_iter().filter(|line| line.starts_with("retain")).collect();
    assert_eq!(retained, ["retain 1", "retain 0"]);
    Ok(())
}

#[test]
fn memory_streams_and_events() -> Outcome {
    if !in_child("memory_streams_and_events", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let mut memory: *mut c_void = std::ptr::without_provenance_mut(8);
    // SAFETY: the sizes are those of the variables and allocations.
    unsafe {
        // An allocation of no bytes is null and may be freed.
        assert_eq!(
            (hip::hipMalloc(&mut memory, 0), memory.is_null(), hip::hipFree(null_mut())),
            (0, true, 0)
        );
        assert_eq!(hip::hipMalloc(null_mut(), 8), 1);
        let (mut free, mut total) = (0, 0);
        assert_eq!(hip::hipMemGetInfo(&mut free, &mut total), 0);
        assert_eq!(hip::hipMalloc(&mut memory, total + 1), 2);
        assert_contains(last_error(), &["cuMemAlloc returned CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"]);
        assert_eq!((hip::hipGetLastError(), last_error()), (2, None));
        assert_eq!(hip::hipMalloc(&mut memory, 8), 0);
        let (from, mut to) = ([1u8, 2, 3, 4, 5, 6, 7, 8], [0u8; 8]);
        assert_eq!(hip::hipMemcpy(memory, from.as_ptr().cast(), 8, 1), 0);
        assert_eq!(hip::hipMemsetAsync(memory, 0x1ff, 2, null_mut()), 0);
        assert_eq!(hip::hipMemsetD32Async(memory.byte_add(4), -2, 1, null_mut()), 0);
        assert_eq!(hip::hipMemcpyAsync(to.as_mut_ptr().cast(), memory, 8, 2, null_mut()), 0);
        assert_eq!(to, [255, 255, 3, 4, 254, 255, 255, 255]);
        assert_eq!(hip::hipMemcpyAsync(null_mut(), null(), 0, 3, null_mut()), 0);
        assert_eq!(hip::hipMemcpyAsync(to.as_mut_ptr().cast(), memory, 8, 5, null_mut()), 21);
        assert!(last_error().is_some() && hip::hipGetLastError() == 21);
        log(CUDA)?;
        assert_eq!(hip::hipMemcpyPeerAsync(to.as_mut_ptr().cast(), 1, memory, 0, 8, null_mut()), 0);
        assert_eq!(hip::hipFree(memory), 0);
        // Mapped and coherent. CUDA has no flag for coherence.
        assert_eq!(hip::hipHostMalloc(&mut memory, 64, 2 | 0x4000_0000), 0);
        assert_eq!(hip::hipHostFree(memory), 0);
        assert_eq!(log(CUDA)?, ["retain 1", "peer copy c000 to c001", "host memory flags 3"]);

        let (mut stream, mut event, mut flags, mut ms) = (null_mut(), null_mut(), 9, 0.0);
        assert_eq!(hip::hipStreamCreateWithFlags(&mut stream, 1), 0);
        assert_eq!((hip::hipStreamGetFlags(stream, &mut flags), flags), (0, 1));
        // No timing, system-scope release: CUDA has only the first flag.
        assert_eq!(hip::hipEventCreateWithFlags(&mut event, 2 | 0x8000_0000), 0);
        assert_eq!(hip::hipEventRecord(event, stream), 0);
        assert_eq!(log(CUDA)?, ["record flags 2"]);
        assert_eq!(hip::hipStreamWaitEvent(stream, event, 0), 0);
        assert_eq!((hip::hipEventElapsedTime(&mut ms, event, event), ms), (0, 1.5));
        assert_eq!((hip::hipStreamQuery(stream), hip::hipEventQuery(event)), (0, 0));
        let library = libloading::Library::new(CUDA)?;
        library.get::<unsafe extern "C" fn(u32)>(b"fake_set_busy")?(1);
        assert_eq!((hip::hipStreamQuery(stream), hip::hipEventQuery(event)), (600, 600));
        assert_eq!((hip::hipGetLastError(), last_error()), (0, None), "not ready is not a failure");
        assert_eq!(callback_status(stream), 719);
        assert_eq!(hip::hipStreamAddCallback(stream, None, null_mut(), 0), 1);
        assert_eq!((hip::hipEventDestroy(event), hip::hipStreamDestroy(stream)), (0, 0));
    }
    Ok(())
}

#[test]
fn graphs() -> Outcome {
    if !in_child("graphs", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let (mut stream, mut graph, mut executable, mut status, mut nodes) =
        (null_mut(), null_mut(), null_mut(), 9, 0);
    // SAFETY: handles of the driver, and pointers to live variables.
    unsafe {
        assert_eq!(hip::hipStreamCreateWithFlags(&mut stream, 1), 0);
        log(CUDA)?;
        assert_eq!(hip::hipStreamEndCapture(stream, &mut graph), 1);
        // Relaxed.
        assert_eq!(hip::hipStreamBeginCapture(stream, 2), 0);
        assert_eq!((hip::hipStreamIsCapturing(stream, &mut status), status), (0, 1));
        assert_eq!(hip::hipStreamEndCapture(stream, &mut graph), 0);
        assert_eq!((hip::hipStreamIsCapturing(stream, &mut status), status), (0, 0));
        assert_eq!((hip::hipGraphGetNodes(graph, null_mut(), &mut nodes), nodes), (0, 3));
        assert_eq!(hip::hipGraphInstantiate(&mut executable, graph, null_mut(), null_mut(), 0), 0);
        assert_eq!(hip::hipGraphDestroy(graph), 0);
        assert_eq!(hip::hipGraphLaunch(executable, stream), 0);
        assert_eq!((hip::hipGraphExecDestroy(executable), hip::hipStreamDestroy(stream)), (0, 0));
    }
    assert_eq!(log(CUDA)?, ["capture mode 2", "launch of 3 nodes"]);
    Ok(())
}

/// Returns the status that a callback receives.
fn callback_status(stream: hip_types::hipStream_t) -> u32 {
    static STATUS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn callback(_: hip_types::hipStream_t, status: u32, to: *mut c_void) {
        // SAFETY: the address of the static.
        unsafe { &*to.cast::<AtomicU32>() }.store(status, Ordering::SeqCst);
    }
    let to = (&raw const STATUS).cast_mut().cast();
    // SAFETY: the callback receives the address that it expects.
    assert_eq!(unsafe { hip::hipStreamAddCallback(stream, Some(callback), to, 0) }, 0);
    STATUS.load(Ordering::SeqCst)
}

#[test]
fn images_for_other_gpus_are_rejected() -> Outcome {
    if !in_child("images_for_other_gpus_are_rejected", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let refused = |image: &[u8]| {
        // SAFETY: the handle is written to a live variable; images that begin like an object are as long as its header.
        (unsafe { hip::hipModuleLoadData(&mut null_mut(), image.as_ptr().cast()) }, last_error())
    };
    let (code, text) = refused(&object(224));
    assert_eq!(code, 209);
    assert_contains(text, &["an AMD code object", "NVIDIA's sm_90", "CANDLE_ROCM_ARCHS=sm_90"]);
    let (code, text) = refused(b"__CLANG_OFFLOAD_BUNDLE__ and so on");
    assert_eq!(code, 209);
    assert_contains(text, &["a bundle of AMD code objects"]);
    let (code, text) = refused(&object(62));
    assert_eq!(code, 209);
    assert_contains(text, &["an ELF file for machine 62"]);
    let (code, text) = refused(b"no object");
    assert_eq!(code, 200);
    assert_contains(text, &["not an NVIDIA object"]);
    let mut damaged = object(190);
    damaged[64] = 0;
    let (code, text) = refused(&damaged);
    assert_eq!(code, 200);
    assert_contains(text, &["cuModuleLoadData returned CUDA_ERROR_INVALID_IMAGE (200)"]);
    // SAFETY: the handles are written to live variables.
    unsafe {
        let (mut module, image) = (null_mut(), object(190));
        assert_eq!(hip::hipModuleLoadData(&mut module, image.as_ptr().cast()), 0);
        assert_eq!(hip::hipModuleGetFunction(&mut null_mut(), module, c"missing".as_ptr()), 500);
        assert_eq!(hip::hipModuleUnload(module), 0);
        assert_eq!(hip::hipModuleLoad(&mut module, c"/nowhere".as_ptr()), 301);
        assert_contains(last_error(), &["/nowhere"]);
    }
    Ok(())
}

#[test]
fn launch_arguments_are_passed_in_both_forms() -> Outcome {
    if !in_child("launch_arguments_are_passed_in_both_forms", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let kernel = function(c"kernel");
    let mut argument = 77u32;
    let mut arguments = [(&raw mut argument).cast::<c_void>()];
    assert_eq!(launch(kernel, arguments.as_mut_ptr(), null_mut()), 0);
    let (mut buffer, mut size) = ([1u8, 2, 3], 3usize);
    let marker = std::ptr::without_provenance_mut::<c_void>;
    let (buffer, size) = ((&raw mut buffer).cast(), (&raw mut size).cast());
    let mut extra = [marker(1), buffer, marker(2), size, marker(3)];
    assert_eq!(launch(kernel, null_mut(), extra.as_mut_ptr()), 0);
    let mut endless = [marker(1), buffer, marker(2), size, marker(1)];
    assert_eq!(launch(kernel, null_mut(), endless.as_mut_ptr()), 1);
    assert_contains(last_error(), &["`extra`"]);
    // The limit is 64 KiB less the kernel's static shared memory.
    let expected = [
        "retain 0",
        "kernel attribute 8 = 64512",
        "kernel 7 6 5, 4 3 2, 96: Some(77)",
        "buffer [1, 2, 3]",
        "kernel 7 6 5, 4 3 2, 96: None",
    ];
    assert_eq!(log(CUDA)?, expected);
    let mut value = 0;
    // SAFETY: the int is written to a live variable.
    unsafe {
        let blocks = hip::hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&mut value, kernel, 256, 0);
        assert_eq!((blocks, value), (0, 8));
        assert_eq!((hip::hipFuncGetAttribute(&mut value, 1, kernel), value), (0, 1024));
        assert_eq!(hip::hipFuncGetAttribute(&mut value, 10, kernel), 1);
    }
    Ok(())
}

#[test]
fn overlapping_launches_prefer_shared_memory() -> Outcome {
    if !in_child("overlapping_launches_prefer_shared_memory", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let kernel = function(c"kernel");
    let mut argument = 77u32;
    let mut arguments = [(&raw mut argument).cast::<c_void>()];
    // SAFETY: zeros are valid for both structs.
    let (mut attribute, mut config): (hip_types::hipLaunchAttribute, hip_types::HIP_LAUNCH_CONFIG) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    attribute.id = 6;
    (config.gridDimX, config.blockDimX, config.attrs, config.numAttrs) = (7, 32, &raw mut attribute, 1);
    // SAFETY: a function of the fake library, which reads one argument, and a configuration with one attribute.
    unsafe {
        let launched = hip::hipDrvLaunchKernelEx(&config, kernel, arguments.as_mut_ptr(), null_mut());
        assert_eq!(launched, 0);
        let mut extra = [null_mut()];
        assert_eq!(hip::hipDrvLaunchKernelEx(&config, kernel, null_mut(), extra.as_mut_ptr()), 801);
        assert_contains(last_error(), &["`extra`"]);
        (*config.attrs).id = 2;
        assert_eq!(hip::hipDrvLaunchKernelEx(&config, kernel, arguments.as_mut_ptr(), null_mut()), 801);
        assert_contains(last_error(), &["attribute 2"]);
    }
    let expected = [
        "retain 0",
        "kernel attribute 8 = 64512",
        "kernel attribute 9 = 100",
        "kernel [7, 0, 0, 32, 0, 0, 0], 1 attributes: 77",
    ];
    assert_eq!(log(CUDA)?, expected);
    Ok(())
}

#[test]
fn a_kernel_fault_invalidates_the_context() -> Outcome {
    if !in_child("a_kernel_fault_invalidates_the_context", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let (kernel, mut memory) = (function(c"faults"), null_mut());
    // SAFETY: the address is written to a live variable, and is freed once.
    unsafe {
        assert_eq!(hip::hipMalloc(&mut memory, 64), 0);
        assert_eq!(launch(kernel, null_mut(), null_mut()), 0);
        for _ in 0..2 {
            assert_eq!(hip::hipStreamSynchronize(null_mut()), 700);
            assert_contains(last_error(), &["cuStreamSynchronize returned CUDA_ERROR_ILLEGAL_ADDRESS (700)"]);
        }
        assert_eq!((hip::hipMalloc(&mut null_mut(), 64), hip::hipFree(memory)), (700, 700));
        assert_eq!(hip::hipGetLastError(), 700);
    }
    // The process must end normally: in_child checks its status.
    Ok(())
}

#[test]
fn threads_inside_calls_do_not_crash_the_exit() -> Outcome {
    if !in_child("threads_inside_calls_do_not_crash_the_exit", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    static CALLS: AtomicU32 = AtomicU32::new(0);
    for _ in 0..3 {
        std::thread::spawn(|| {
            loop {
                // SAFETY: the null stream always exists.
                unsafe { hip::hipStreamQuery(null_mut()) };
                CALLS.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while CALLS.load(Ordering::Relaxed) < 1000 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The child process ends while the threads keep calling; in_child checks its status.
    Ok(())
}

/// A batch of 5 products of 2 x 3 and 3 x 4 matrices, with the parameters that vary by test case.
struct Product {
    data_type: u32,
    compute: u32,
    beta: f32,
    c: usize,
    d: usize,
}

impl Product {
    fn run(&self, handle: ffi::rocblas_handle, m: i32) -> u32 {
        let (alpha, address) = (1f32, std::ptr::without_provenance_mut::<c_void>);
        let (t, none, transposed) = (self.data_type, 111, 112);
        // SAFETY: the fake library reads no matrix; the factors are large enough for every type.
        unsafe {
            rocblas::rocblas_gemm_strided_batched_ex(
                handle,
                none,
                transposed,
                m,
                4,
                3,
                (&raw const alpha).cast(),
                address(16),
                t,
                2,
                6,
                address(32),
                t,
                4,
                12,
                (&raw const self.beta).cast(),
                address(self.c),
                t,
                2,
                8,
                address(self.d),
                t,
                2,
                8,
                5,
                self.compute,
                0,
                0,
                0,
            )
        }
    }
}

#[test]
fn products_keep_their_types_and_strides() -> Outcome {
    if !in_child("products_keep_their_types_and_strides", Some(&libraries(&[CUDA, CUBLAS])?), &[])? {
        return Ok(());
    }
    let mut handle = null_mut();
    // SAFETY: the handle is written to a live variable.
    assert_eq!(unsafe { rocblas::rocblas_create_handle(&mut handle) }, 0);
    let (f16, f32, bf16, i8, i32, c32) = (150, 151, 168, 160, 162, 154);
    let product = |data_type, compute| Product { data_type, compute, beta: 0.0, c: 48, d: 48 };
    // Math mode 16 keeps sums of narrow floats in f32.
    let written = |t: u32, compute: u32| {
        format!(
            "strided 01 2 4 3 a 16:{t}:2+6 b 32:{t}:4+12 c 48:{t}:2+8 x 5 in {compute} by -1 | pointers 0 math 16"
        )
    };
    for (data_type, compute, expected) in [
        (f32, f32, (0, 68)),
        (f16, f32, (2, 68)),
        (f16, f16, (2, 64)),
        (bf16, f32, (14, 68)),
        (152, 152, (1, 70)),
        (i8, i32, (3, 72)),
    ] {
        assert_eq!(product(data_type, compute).run(handle, 2), 0, "{data_type}");
        assert_eq!(log(CUBLAS)?, [written(expected.0, expected.1)]);
    }
    assert_eq!(product(c32, c32).run(handle, 2), 2);
    assert_contains(last_error(), &["no products of these types"]);
    // An empty product needs no library. cuBLAS' own errors have its text.
    assert_eq!((product(f32, f32).run(handle, 0), product(f32, f32).run(handle, -1)), (0, 4));
    assert_eq!(product(f32, f32).run(handle, 99), 2);
    assert_contains(last_error(), &["cublasGemmStridedBatchedEx returned CUBLAS_STATUS_NOT_SUPPORTED (15)"]);
    log(CUBLAS)?;
    // A C other than D is an error only if beta is not zero.
    let apart = |beta| Product { beta, d: 64, ..product(f32, f32) };
    assert_eq!(apart(0.0).run(handle, 2), 0);
    assert_contains(log(CUBLAS)?.pop(), &["c 64:0:2+8"]);
    assert_eq!(apart(0.5).run(handle, 2), 2);
    assert_contains(last_error(), &["whose C and D differ"]);
    // SAFETY: the fake library reads no matrix; the factors outlive the calls.
    unsafe {
        let (address, one) = (std::ptr::without_provenance_mut::<c_void>, 1f32);
        let sgemm = || {
            rocblas::rocblas_sgemm(
                handle,
                112,
                111,
                2,
                4,
                3,
                &one,
                address(16).cast(),
                3,
                address(32).cast(),
                3,
                &one,
                address(48).cast(),
                2,
            )
        };
        assert_eq!(sgemm(), 0);
        assert_eq!(
            log(CUBLAS)?,
            ["gemm 10 2 4 3 a 16:0:3 b 32:0:3 c 48:0:2 in 68 by -1 | pointers 0 math 16"]
        );
        // With factors on the device, beta is unknown to the driver.
        let mut mode = 0;
        assert_eq!(rocblas::rocblas_set_pointer_mode(handle, 1), 0);
        assert_eq!((rocblas::rocblas_get_pointer_mode(handle, &mut mode), mode), (0, 1));
        assert_eq!((apart(0.0).run(handle, 2), sgemm()), (2, 0));
        assert_contains(log(CUBLAS)?.pop(), &["pointers 1"]);
        let (alpha, f32_lists) = ((&raw const one).cast(), address(80));
        let listed = rocblas::rocblas_gemm_batched_ex(
            handle, 111, 111, 2, 4, 3, alpha, f32_lists, f32, 2, f32_lists, f32, 3, alpha, f32_lists, f32, 2,
            f32_lists, f32, 2, 6, f32, 0, 0, 0,
        );
        assert_eq!(listed, 0);
        assert_contains(log(CUBLAS)?.pop(), &["listed 00 2 4 3 a 80:0:2 b 80:0:3 c 80:0:2 x 6 in 68"]);
        let (stream, mut got) = (address(96).cast(), null_mut());
        assert_eq!(rocblas::rocblas_set_stream(handle, stream), 0);
        assert_eq!((rocblas::rocblas_get_stream(handle, &mut got), got), (0, stream));
        // A destroyed handle is kept, and reset before it is used again.
        assert_eq!(rocblas::rocblas_set_atomics_mode(handle, 1), 0);
        assert_eq!(rocblas::rocblas_destroy_handle(handle), 0);
        assert_eq!(rocblas::rocblas_destroy_handle(handle), 1);
        let mut reused = null_mut();
        assert_eq!((rocblas::rocblas_create_handle(&mut reused), reused), (0, handle));
        assert_eq!((rocblas::rocblas_get_pointer_mode(reused, &mut mode), mode), (0, 0));
        assert_eq!((rocblas::rocblas_get_atomics_mode(reused, &mut mode), mode), (0, 0));
        assert_eq!((rocblas::rocblas_get_stream(reused, &mut got), got), (0, null_mut()));
        let mut other = null_mut();
        assert_eq!(rocblas::rocblas_create_handle(&mut other), 0);
        assert_ne!(other, handle);
        assert_eq!(CStr::from_ptr(rocblas::rocblas_status_to_string(2)), c"rocblas_status_not_implemented");
    }
    Ok(())
}
