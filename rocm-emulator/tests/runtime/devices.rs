//! Device properties, and the cooperation of two devices.
use crate::gpu::*;
use rocm_emulator::api::*;
use rocm_emulator::{ConfigureError, Options};
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

fn text(bytes: &[c_char]) -> String {
    // SAFETY: the runtime terminates its strings with a zero.
    unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_str().unwrap().to_string()
}

#[test]
fn properties_describe_the_chip() {
    let _gpu = gpu();
    // SAFETY: zero is valid for every field; valid pointers.
    unsafe {
        let mut prop: hipDeviceProp_tR0600 = std::mem::zeroed();
        ok(hipGetDevicePropertiesR0600(&mut prop, 0));
        assert_eq!(text(&prop.name), "Software GPU (gfx1100)");
        assert_eq!(text(&prop.gcnArchName), "gfx1100");
        assert_eq!((prop.warpSize, prop.maxThreadsPerBlock, prop.sharedMemPerBlock), (32, 1024, 65536));
        assert_eq!(prop.totalGlobalMem as u64, TOTAL_MEMORY);
        assert_eq!((prop.major, prop.minor, prop.integrated), (11, 0, 0));
        let attribute = |number| {
            let mut value = -1;
            let code = hipDeviceGetAttribute(&mut value, number, 0);
            if code == 0 { Ok(value) } else { Err(code) }
        };
        assert_eq!(attribute(87), Ok(prop.warpSize));
        assert_eq!(attribute(63), Ok(prop.multiProcessorCount));
        assert_eq!(attribute(56), Ok(1024));
        assert_eq!(attribute(74), Ok(65536));
        assert_eq!(attribute(84), Ok(i32::MAX));
        assert_eq!(attribute(5000), Err(1));
        let mut name = [1 as c_char; 12];
        ok(hipDeviceGetName(name.as_mut_ptr(), 12, 1));
        assert_eq!(text(&name), "Software GP");
        let mut bus = [1 as c_char; 32];
        ok(hipDeviceGetPCIBusId(bus.as_mut_ptr(), 32, 1));
        assert_eq!(text(&bus), "ffff:01:00.0");
        let (mut bytes, mut version, mut major, mut minor) = (0, 0, 0, 0);
        ok(hipDeviceTotalMem(&mut bytes, 1));
        ok(hipDeviceComputeCapability(&mut major, &mut minor, 1));
        ok(hipRuntimeGetVersion(&mut version));
        assert_eq!((bytes as u64, major, minor, version / 10_000_000), (TOTAL_MEMORY, 11, 0, 6));
    }
}

#[test]
fn ordinals_out_of_range_are_errors() {
    let _gpu = gpu();
    let (mut count, mut device) = (0, -1);
    // SAFETY: zero is valid for every field; valid pointers.
    unsafe {
        ok(hipInit(0));
        assert_eq!(hipInit(1), 1);
        ok(hipGetDeviceCount(&mut count));
        assert_eq!(count, 3);
        for wrong in [-1, 3, i32::MAX] {
            assert_eq!(hipSetDevice(wrong), 101);
            assert_eq!(hipDeviceGet(&mut device, wrong), 101);
            assert_eq!(hipGetDevicePropertiesR0600(&mut std::mem::zeroed(), wrong), 101);
        }
        ok(hipGetDevice(&mut device));
        assert_eq!(device, 0, "the current device is unchanged");
    }
    assert_eq!(rocm_emulator::device_archs(), ["gfx1100", "gfx1102", "gfx90a:sramecc+:xnack-"]);
}

#[test]
fn every_thread_has_a_current_device() {
    let _gpu = gpu();
    set_device(1);
    std::thread::spawn(|| {
        let mut device = -1;
        // SAFETY: a valid pointer.
        ok(unsafe { hipGetDevice(&mut device) });
        assert_eq!(device, 0);
    })
    .join()
    .unwrap();
    let (mut context, mut device) = (null_mut(), -1);
    // SAFETY: valid pointers; handles may be anything.
    unsafe {
        ok(hipCtxGetCurrent(&mut context));
        set_device(0);
        ok(hipCtxSetCurrent(context));
        ok(hipCtxGetDevice(&mut device));
        assert_eq!(device, 1);
        assert_eq!(hipCtxSetCurrent(arg(&device)), 201);
        ok(hipDevicePrimaryCtxRetain(&mut context, 0));
        ok(hipCtxSetCurrent(context));
        ok(hipCtxGetDevice(&mut device));
        assert_eq!(device, 0);
        ok(hipDevicePrimaryCtxRelease(0));
    }
}

#[test]
fn a_kernel_accesses_another_devices_memory_after_peer_access_is_enabled() {
    let _gpu = gpu();
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
    set_device(1);
    let place = Buffer::of(&[1u32]);
    set_device(0);
    let digit = 5u32;
    let append = module.function("append");
    let mut can = 0;
    // SAFETY: valid pointers.
    unsafe {
        ok(hipDeviceCanAccessPeer(&mut can, 0, 1));
        assert_eq!(can, 1);
        ok(hipDeviceCanAccessPeer(&mut can, 0, 0));
        assert_eq!(can, 0);
        launch_one(append, stream.0, &mut [arg(&place.0), arg(&digit)]);
        assert_eq!(stream.synchronize(), 700);
        ok(hipDeviceEnablePeerAccess(1, 0));
        assert_eq!(hipDeviceEnablePeerAccess(1, 0), 704);
        assert_eq!(hipDeviceEnablePeerAccess(0, 0), 101);
        launch_one(append, stream.0, &mut [arg(&place.0), arg(&digit)]);
        ok(stream.synchronize());
        ok(hipDeviceDisablePeerAccess(1));
        assert_eq!(hipDeviceDisablePeerAccess(1), 705);
    }
    assert_eq!(place.read::<u32>(1), [15]);
}

#[test]
fn peer_copies_name_their_devices() {
    let _gpu = gpu();
    let here = Buffer::of(&[11u32]);
    set_device(1);
    let (there, stream) = (Buffer::of(&[0u32]), Stream::new(hipStreamNonBlocking));
    set_device(0);
    // SAFETY: the runtime checks the addresses.
    unsafe {
        ok(hipMemcpyPeerAsync(there.0, 1, here.0, 0, 4, stream.0));
        ok(stream.synchronize());
        assert_eq!(there.read::<u32>(1), [11]);
        assert_eq!(hipMemcpyPeerAsync(there.0, 0, here.0, 0, 4, stream.0), 1);
        assert_eq!(hipMemcpyPeer(there.0, 1, here.0, 7, 4), 101);
        assert_eq!(hipMemcpyPeer(there.0, 1, here.0, 0, 5), 1);
        ok(hipMemcpyPeer(here.0, 0, there.0, 1, 4));
    }
}

#[test]
fn work_requires_a_module_and_event_of_its_device() {
    let _gpu = gpu();
    let module = Module::load("runtime.hsaco");
    let out = Buffer::new(4);
    set_device(1);
    let (stream, mut event) = (Stream::new(hipStreamNonBlocking), null_mut());
    set_device(0);
    assert_eq!(launch(module.function("at_most_64"), [1; 3], [1; 3], 0, stream.0, &mut [arg(&out.0)]), 400);
    // SAFETY: valid pointers; handles may be anything.
    unsafe {
        ok(hipEventCreate(&mut event));
        assert_eq!(hipEventRecord(event, stream.0), 400);
        ok(hipEventDestroy(event));
    }
}

#[test]
fn a_reset_destroys_the_objects_of_the_device() {
    let _gpu = gpu();
    set_device(1);
    let (buffer, stream) = (Buffer::new(1000), Stream::new(0));
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid pointers; the runtime checks addresses and handles.
    unsafe {
        ok(hipDeviceReset());
        assert_eq!(hipFree(buffer.0), 1);
        assert_eq!(stream.synchronize(), 709);
        ok(hipMemGetInfo(&mut free, &mut total));
    }
    assert_eq!(free, total);
    drop(Buffer::of(&[1u32]));
    set_device(0);
}

#[test]
fn the_process_is_configured_once() {
    let _gpu = gpu();
    assert!(rocm_emulator::is_configured());
    let other = rocm_emulator::configure_with(&["gfx1100"], Options::default());
    assert!(matches!(other, Err(ConfigureError::AlreadyConfigured { .. })));
    let unknown = rocm_emulator::configure(&["gfx1"]).unwrap_err().to_string();
    assert!(unknown.contains("gfx1") && unknown.contains("gfx1102"), "{unknown}");
    assert!(rocm_emulator::configure(&[]).is_err());
}

#[test]
fn codes_have_names_and_texts() {
    // SAFETY: the functions return static strings.
    unsafe {
        assert_eq!(CStr::from_ptr(hipGetErrorName(101)), c"hipErrorInvalidDevice");
        assert_eq!(CStr::from_ptr(hipGetErrorString(2)), c"out of memory");
        let mut name = std::ptr::null();
        ok(hipDrvGetErrorName(700, &mut name));
        assert_eq!(CStr::from_ptr(name), c"hipErrorIllegalAddress");
    }
}
