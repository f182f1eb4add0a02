//! Allocation, copies and fills.
use crate::gpu::*;
use rocm_emulator::api::*;
use std::ffi::c_void;
use std::ptr::null_mut;

fn info() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid pointers.
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    (free, total)
}

#[test]
fn memory_is_limited_to_the_devices_total() {
    let _gpu = gpu();
    set_device(1);
    let (free, total) = info();
    assert_eq!(total as u64, TOTAL_MEMORY);
    assert_eq!(free, total);
    let most = Buffer::new(total - (1 << 20));
    assert_eq!(most.0.addr() % 256, 0);
    assert_eq!(info().0, 1 << 20);
    let mut ptr = null_mut();
    // SAFETY: a valid pointer.
    assert_eq!(unsafe { hipMalloc(&mut ptr, (1 << 20) + 1) }, 2);
    let detail = rocm_emulator::last_error().unwrap();
    assert!(
        detail.contains("hipMalloc") && detail.contains("device 1") && detail.contains("1048577"),
        "{detail}"
    );
    drop(most);
    assert_eq!(info().0, total);
    set_device(0);
}

#[test]
fn allocated_memory_is_not_committed() {
    let _gpu = gpu();
    let _promised = Buffer::new(12 << 30);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(pages * 4096 < 200 << 20, "{} MB resident", (pages * 4096) >> 20);
}

#[test]
fn invalid_frees_are_errors() {
    let _gpu = gpu();
    let buffer = Buffer::new(1000);
    let address = buffer.0;
    let mut on_stack = 0u32;
    let mut pinned = null_mut();
    // SAFETY: the runtime checks addresses.
    unsafe {
        ok(hipFree(null_mut()));
        ok(hipHostFree(null_mut()));
        assert_eq!(hipFree(address.byte_add(4)), 1);
        assert_eq!(hipHostFree(address), 1);
        assert_eq!(hipFree((&raw mut on_stack).cast()), 1);
        ok(hipHostMalloc(&mut pinned, 10, 0));
        assert_eq!(hipFree(pinned), 1);
        ok(hipHostFree(pinned));
        assert_eq!(hipHostFree(pinned), 1);
        drop(buffer);
        assert_eq!(hipFree(address), 1);
        assert!(rocm_emulator::last_error().unwrap().contains("freed twice: it was an allocation of"));
        assert_eq!(hipMalloc(null_mut(), 4), 1);
        let mut empty = address;
        ok(hipMalloc(&mut empty, 0));
        assert!(empty.is_null());
    }
}

#[test]
fn copies_check_allocations_and_directions() {
    let _gpu = gpu();
    let device = Buffer::of(&[1u32, 2, 3, 4]);
    let mut host = [0u32; 8];
    let to_host = host.as_mut_ptr().cast::<c_void>();
    // SAFETY: host buffers hold 32 bytes; the runtime checks device addresses.
    unsafe {
        ok(hipMemcpy(to_host, device.0.byte_add(4), 12, hipMemcpyDefault));
        assert_eq!(host[..4], [2, 3, 4, 0]);
        assert_eq!(hipMemcpy(to_host, device.0, 17, hipMemcpyDeviceToHost), 1);
        assert_eq!(hipMemcpy(device.0.byte_add(8), to_host, 9, hipMemcpyHostToDevice), 1);
        assert_eq!(hipMemcpy(to_host, device.0, 16, hipMemcpyHostToDevice), 1);
        assert_eq!(hipMemcpy(device.0, to_host, 16, hipMemcpyDeviceToHost), 1);
        assert_eq!(hipMemcpy(device.0, to_host, 16, hipMemcpyDeviceToDevice), 1);
        assert_eq!(hipMemcpy(null_mut(), to_host, 16, hipMemcpyDefault), 1);
        assert_eq!(hipMemcpy(device.0, to_host, 16, 77), 21);
        ok(hipMemcpy(null_mut(), null_mut(), 0, hipMemcpyDefault));
        let other = Buffer::new(16);
        ok(hipMemcpyDtoD(other.0, device.0, 16));
        assert_eq!(other.read::<u32>(4), [1, 2, 3, 4]);
        ok(hipMemcpyHtoD(other.0, to_host, 4));
        ok(hipMemcpyDtoH(to_host, device.0, 4));
        assert_eq!((other.read::<u32>(1), host[0]), (vec![2], 1));
    }
}

#[test]
fn rows_are_copied_with_their_pitches() {
    let _gpu = gpu();
    let device = Buffer::of(&[0u8; 24]);
    let source: Vec<u8> = (1..=12).collect();
    // SAFETY: the source holds three rows at a pitch of four; the runtime checks the target.
    unsafe {
        let from = source.as_ptr().cast();
        ok(hipMemcpy2DAsync(device.0, 8, from, 4, 2, 3, hipMemcpyHostToDevice, null_mut()));
        assert_eq!(hipMemcpy2DAsync(device.0, 1, from, 4, 2, 3, hipMemcpyHostToDevice, null_mut()), 12);
        assert_eq!(hipMemcpy2DAsync(device.0, 12, from, 4, 2, 3, hipMemcpyHostToDevice, null_mut()), 1);
    }
    let mut expected = [0u8; 24];
    for row in 0..3 {
        expected[row * 8..row * 8 + 2].copy_from_slice(&source[row * 4..row * 4 + 2]);
    }
    assert_eq!(device.read::<u8>(24), expected);
}

#[test]
fn fills_set_elements() {
    let _gpu = gpu();
    let (stream, buffer) = (Stream::new(hipStreamDefault), Buffer::of(&[9u8; 16]));
    let at = |offset: usize| buffer.0.wrapping_byte_add(offset);
    // SAFETY: the runtime checks addresses.
    unsafe {
        ok(hipMemset(at(0), 0x1ff, 2));
        ok(hipMemsetAsync(at(2), 1, 2, stream.0));
        ok(hipMemsetD8Async(at(4), 2, 2, stream.0));
        ok(hipMemsetD16Async(at(6), 0x0403, 1, stream.0));
        ok(hipMemsetD32Async(at(8), 0x0807_0605, 1, stream.0));
        assert_eq!(hipMemset(at(0), 0, 17), 1);
        assert_eq!(hipMemsetD32Async(at(8), 0, usize::MAX, stream.0), 1);
        assert_eq!(hipMemset(null_mut(), 0, 1), 1);
        let mut on_stack = 0u32;
        assert_eq!(hipMemset((&raw mut on_stack).cast(), 0, 4), 1);
        ok(hipMemset(null_mut(), 0, 0));
    }
    assert_eq!(buffer.read::<u8>(16), [255, 255, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]);
}

#[test]
fn pointer_attributes_distinguish_kinds_of_memory() {
    let _gpu = gpu();
    let (device, mut pinned, mut own) = (Buffer::new(64), null_mut(), [0u64; 8]);
    let mut seen = null_mut();
    let kind = |address: *const c_void| {
        // SAFETY: zero is valid for every field; the runtime fills them.
        unsafe {
            let mut attributes: hipPointerAttribute_t = std::mem::zeroed();
            let code = hipPointerGetAttributes(&mut attributes, address);
            if code == 0 { Ok((attributes.r#type, attributes.device)) } else { Err(code) }
        }
    };
    // SAFETY: valid pointers; the array is unregistered before it is dropped.
    unsafe {
        ok(hipHostMalloc(&mut pinned, 64, 0));
        assert_eq!(kind(device.0.byte_add(63)), Ok((2, 0)));
        assert_eq!(kind(pinned), Ok((1, 0)));
        let address = own.as_mut_ptr().cast::<c_void>();
        assert_eq!(kind(address), Err(1));
        assert_eq!(hipHostGetDevicePointer(&mut seen, address, 0), 1);
        ok(hipHostRegister(address, 64, 0));
        assert_eq!(hipHostRegister(address.byte_add(8), 8, 0), 712);
        assert_eq!(kind(address), Ok((1, 0)));
        ok(hipHostGetDevicePointer(&mut seen, address, 0));
        assert_eq!(seen, address);
        ok(hipHostUnregister(address));
        assert_eq!(hipHostUnregister(address), 713);
        ok(hipHostGetDevicePointer(&mut seen, pinned, 0));
        assert_eq!(seen, pinned);
        ok(hipHostFree(pinned));
    }
}

#[test]
fn large_pageable_uploads_are_complete() {
    let _gpu = gpu();
    // Larger than an asynchronous copy captures.
    let words: Vec<u32> = (0..5 << 20).collect();
    let (device, stream) = (Buffer::new(words.len() * 4), Stream::new(hipStreamNonBlocking));
    let source = words.as_ptr().cast();
    // SAFETY: both sides hold the words.
    ok(unsafe { hipMemcpyAsync(device.0, source, words.len() * 4, hipMemcpyHostToDevice, stream.0) });
    ok(stream.synchronize());
    assert!(device.read::<u32>(words.len()) == words);
}
