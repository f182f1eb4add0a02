//! Kernel faults: each is reported once, by the next wait, and the device works afterwards.
use crate::gpu::*;
use rocm_emulator::api::*;
use std::ptr::null_mut;

const ILLEGAL_ADDRESS: hipError_t = 700;
const LAUNCH_FAILURE: hipError_t = 719;

fn works(module: &Module, stream: &Stream) {
    let place = Buffer::of(&[4u32]);
    let digit = 2u32;
    launch_one(module.function("append"), stream.0, &mut [arg(&place.0), arg(&digit)]);
    ok(stream.synchronize());
    assert_eq!(place.read::<u32>(1), [42]);
}

/// Stores a word `index` words after the start of `place`.
fn store(module: &Module, stream: &Stream, place: &Buffer, index: u64) {
    let value = 7u32;
    launch_one(module.function("store_at"), stream.0, &mut [arg(&place.0), arg(&index), arg(&value)]);
}

#[test]
fn an_out_of_bounds_store_is_reported_once_with_its_details() {
    let _gpu = gpu();
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
    let place = Buffer::of(&[0u32; 4]);
    store(&module, &stream, &place, 3);
    store(&module, &stream, &place, 4);
    store(&module, &stream, &place, 0);
    assert_eq!(stream.synchronize(), ILLEGAL_ADDRESS);
    let fault = rocm_emulator::last_fault().unwrap();
    for part in ["store_at", "store of 4 bytes", "lane 0", "workgroup [0, 0, 0]", "global_store"] {
        assert!(fault.contains(part), "{part}: {fault}");
    }
    assert!(rocm_emulator::last_error().unwrap().contains(&fault));
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(hipPeekAtLastError(), ILLEGAL_ADDRESS);
        assert_eq!(hipGetLastError(), ILLEGAL_ADDRESS);
        assert_eq!(hipGetLastError(), 0);
    }
    ok(stream.synchronize());
    assert_eq!(place.read::<u32>(4), [7, 0, 0, 7], "later work has run");
    works(&module, &stream);
}

#[test]
fn a_trap_is_a_launch_failure() {
    let _gpu = gpu();
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
    launch_one(module.function("trap"), stream.0, &mut []);
    assert_eq!(stream.synchronize(), LAUNCH_FAILURE);
    assert!(rocm_emulator::last_fault().unwrap().contains("trap"));
    works(&module, &stream);
}

#[test]
fn a_fault_belongs_to_its_stream() {
    let _gpu = gpu();
    let module = Module::load("runtime.hsaco");
    let (bad, good) = (Stream::new(hipStreamNonBlocking), Stream::new(hipStreamNonBlocking));
    let place = Buffer::of(&[0u32]);
    store(&module, &bad, &place, 1 << 40);
    works(&module, &good);
    // Freeing memory waits for the device but does not report the fault.
    let other = Buffer::new(4);
    // SAFETY: the runtime checks the address.
    ok(unsafe { hipFree(other.0) });
    std::mem::forget(other);
    // SAFETY: no pointers.
    assert_eq!(unsafe { hipDeviceSynchronize() }, ILLEGAL_ADDRESS);
    // SAFETY: no pointers.
    ok(unsafe { hipDeviceSynchronize() });
    ok(bad.synchronize());
    works(&module, &bad);
}

#[test]
fn every_wait_reports_a_fault() {
    let _gpu = gpu();
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamDefault));
    let (place, mut word, mut event) = (Buffer::of(&[0u32]), 0u32, null_mut());
    let target = (&raw mut word).cast();
    // SAFETY: the target holds four bytes; handles may be anything.
    unsafe {
        store(&module, &stream, &place, 1);
        assert_eq!(hipMemcpyAsync(target, place.0, 4, hipMemcpyDeviceToHost, stream.0), ILLEGAL_ADDRESS);
        // The null stream waits for blocking streams.
        store(&module, &stream, &place, 1);
        assert_eq!(hipMemcpyDtoH(target, place.0, 4), ILLEGAL_ADDRESS);
        store(&module, &stream, &place, 1);
        assert_eq!(hipStreamSynchronize(null_mut()), ILLEGAL_ADDRESS);
        ok(hipEventCreate(&mut event));
        store(&module, &stream, &place, 1);
        ok(hipEventRecord(event, stream.0));
        assert_eq!(hipEventSynchronize(event), ILLEGAL_ADDRESS);
        ok(hipEventDestroy(event));
    }
    works(&module, &stream);
}

#[test]
fn freed_memory_is_out_of_bounds() {
    let _gpu = gpu();
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
    // Large enough that the allocator does not reuse the address.
    let place = Buffer::new(64 << 20);
    let address = place.0;
    drop(place);
    store(&module, &stream, &Buffer(address), 1000);
    assert_eq!(stream.synchronize(), ILLEGAL_ADDRESS);
    works(&module, &stream);
}

#[test]
fn code_and_constants_are_read_only() {
    let _gpu = gpu();
    let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
    let (mut descriptor, mut bytes) = (null_mut(), 0);
    // SAFETY: valid pointers.
    ok(unsafe { hipModuleGetGlobal(&mut descriptor, &mut bytes, module.0, c"append.kd".as_ptr()) });
    assert_eq!(bytes, 64);
    let target = std::mem::ManuallyDrop::new(Buffer(descriptor));
    store(&module, &stream, &target, 0);
    assert_eq!(stream.synchronize(), ILLEGAL_ADDRESS);
    assert!(rocm_emulator::last_fault().unwrap().contains("read-only"));
    // SAFETY: the runtime checks the target.
    assert_eq!(unsafe { hipMemset(descriptor, 0, 4) }, 1);
    works(&module, &stream);
}
