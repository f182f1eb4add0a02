//! Fault injection through the C interface.
use crate::gpu::*;
use crate::injected::Injected;
use rocm_emulator::api::*;
use rocm_emulator::{Injection, inject, release_stalled};
use std::ffi::c_void;
use std::ptr::null_mut;

fn allocate(bytes: usize) -> (hipError_t, *mut c_void) {
    let mut ptr = null_mut();
    // SAFETY: a valid pointer for the result.
    (unsafe { hipMalloc(&mut ptr, bytes) }, ptr)
}

fn free(ptr: *mut c_void) -> hipError_t {
    // SAFETY: the runtime checks the address.
    unsafe { hipFree(ptr) }
}

#[test]
fn only_the_injected_calls_fail() {
    let _gpu = gpu();
    let failing = vec![("hipMalloc".into(), 2), ("hipFree".into(), 1)];
    let _asked = Injected::new(Injection { failing, ..Injection::default() });
    let (first, kept) = allocate(64);
    assert_eq!((first, allocate(64).0), (0, 2));
    let error = rocm_emulator::last_error().unwrap();
    assert!(error.contains("hipMalloc: call 2 failed (injected fault)"), "{error}");
    assert_eq!((free(kept), free(kept)), (999, 0));
    let calls = rocm_emulator::calls();
    assert_eq!((calls["hipMalloc"], calls["hipFree"]), (2, 2));
    // A new injection resets the counts.
    inject(Injection { failing: vec![("hipMalloc".into(), 1)], ..Injection::default() });
    assert_eq!(allocate(64).0, 2);
    inject(Injection::default());
    let (code, ptr) = allocate(64);
    assert_eq!((code, free(ptr)), (0, 0));
    assert!(rocm_emulator::calls().is_empty());
}

#[test]
fn functions_with_a_common_implementation_are_counted_separately() {
    let _gpu = gpu();
    let failing = ["hipStreamCreateWithFlags", "hipEventCreate", "hipMemcpy"];
    let failing = failing.iter().map(|name| (name.to_string(), 1)).collect();
    let _asked = Injected::new(Injection { failing, ..Injection::default() });
    let (mut stream, mut event) = (null_mut(), null_mut());
    // SAFETY: valid pointers.
    unsafe {
        assert_eq!(hipStreamCreate(&mut stream), 0);
        assert_eq!(hipStreamDestroy(stream), 0);
        assert_eq!(hipStreamCreateWithFlags(&mut stream, 0), 999);
        assert_eq!(hipEventCreateWithFlags(&mut event, 0), 0);
        assert_eq!(hipEventDestroy(event), 0);
        assert_eq!(hipEventCreate(&mut event), 999);
        assert_eq!(hipMemcpy(null_mut(), null_mut(), 0, 4), 999);
        assert_eq!(hipMemcpyAsync(null_mut(), null_mut(), 0, 4, null_mut()), 0);
    }
}

#[test]
fn every_call_fails_after_a_device_is_lost() {
    let _gpu = gpu();
    let lost = Some(("hipDeviceSynchronize".into(), 2));
    let _asked = Injected::new(Injection { lost, ..Injection::default() });
    let (code, ptr) = allocate(64);
    // SAFETY: no arguments.
    let synchronize = || unsafe { hipDeviceSynchronize() };
    assert_eq!((code, synchronize(), synchronize(), synchronize()), (0, 0, 719, 719));
    assert_eq!((allocate(64).0, free(ptr)), (719, 719));
    inject(Injection::default());
    assert_eq!(free(ptr), 0);
}

#[test]
fn large_requests_can_fail() {
    let _gpu = gpu();
    let _asked = Injected::new(Injection { largest: Some(1000), ..Injection::default() });
    let (code, ptr) = allocate(1000);
    assert_eq!((code, allocate(1001).0, free(ptr)), (0, 2, 0));
}

#[test]
fn copies_of_large_pageable_memory_can_fail() {
    let _gpu = gpu();
    let (device, mut pinned) = (Buffer::new(101), null_mut());
    let mut pageable = [0u8; 101];
    let host: *mut c_void = pageable.as_mut_ptr().cast();
    let _asked = Injected::new(Injection { pageable: Some(100), ..Injection::default() });
    // SAFETY: all memory has 101 bytes.
    unsafe {
        let copies = |memory: *mut c_void, bytes| {
            (hipMemcpy(device.0, memory, bytes, 1), hipMemcpy(memory, device.0, bytes, 2))
        };
        assert_eq!((copies(host, 100), copies(host, 101)), ((0, 0), (1, 1)));
        // Memory that HIP maps, but has not allocated, is refused, too.
        ok(hipHostRegister(host, 101, 0));
        assert_eq!(copies(host, 101), (1, 1));
        ok(hipHostUnregister(host));
        ok(hipHostMalloc(&mut pinned, 101, 0));
        assert_eq!(copies(pinned, 101), (0, 0));
        ok(hipHostFree(pinned));
    }
}

#[test]
fn a_stalled_launch_blocks_only_its_stream() {
    let _gpu = gpu();
    let module = Module::load("runtime.hsaco");
    let function = module.function("append");
    let (place, other) = (Buffer::of(&[0u32]), Buffer::of(&[0u32]));
    let (stalled, free) = (Stream::new(1), Stream::new(1));
    let _asked = Injected::new(Injection { stalled: Some(1), ..Injection::default() });
    launch_one(function, stalled.0, &mut [arg(&place.0), arg(&7u32)]);
    launch_one(function, stalled.0, &mut [arg(&place.0), arg(&8u32)]);
    assert_eq!(stalled.query(), 600, "not ready");
    launch_one(function, free.0, &mut [arg(&other.0), arg(&9u32)]);
    ok(free.synchronize());
    assert_eq!(stalled.query(), 600);
    release_stalled();
    ok(stalled.synchronize());
    assert_eq!((place.read::<u32>(1)[0], other.read::<u32>(1)[0]), (78, 9));
}
