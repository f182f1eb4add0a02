//! Suballocations: they determine the memory that commands may access, in stream order.
use crate::gpu::*;
use rocm_emulator::{api::*, parts};
use std::ffi::c_void;
use std::ptr::null_mut;

const ILLEGAL_ADDRESS: hipError_t = 700;
const SEGMENT: usize = 4096;

/// A segment, and a stream for kernels.
struct Fixture {
    module: Module,
    stream: Stream,
    segment: Buffer,
}

impl Fixture {
    fn new() -> Self {
        let (module, stream) = (Module::load("runtime.hsaco"), Stream::new(hipStreamNonBlocking));
        Self { module, stream, segment: Buffer::new(SEGMENT) }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.segment.0.wrapping_byte_add(offset)
    }

    fn take(&self, offset: usize, len: usize) -> bool {
        parts::allocated(self.stream.0, self.at(offset).addr(), len)
    }

    fn give(&self, offset: usize) -> bool {
        parts::freed(self.stream.0, self.at(offset).addr())
    }

    fn store_on(&self, stream: &Stream, offset: usize) {
        let (place, index, value) = (self.at(offset), 0u64, 7u32);
        launch_one(self.module.function("store_at"), stream.0, &mut [arg(&place), arg(&index), arg(&value)]);
    }

    /// Returns the result of a kernel that stores a word.
    fn store(&self, offset: usize) -> hipError_t {
        self.store_on(&self.stream, offset);
        self.stream.synchronize()
    }

    /// Checks that a command failed and that the error contains these texts.
    #[track_caller]
    fn fails(&self, code: hipError_t, expected: &[&str]) {
        assert_eq!(code, ILLEGAL_ADDRESS);
        let fault = rocm_emulator::last_error().unwrap();
        expected.iter().for_each(|part| assert!(fault.contains(part), "{part}: {fault}"));
    }

    /// Returns the text by which errors name a part.
    fn name(&self, offset: usize, len: usize) -> String {
        format!("{len} bytes at 0x{:x}", self.at(offset).addr())
    }
}

#[test]
fn memory_between_parts_is_out_of_bounds() {
    let _gpu = gpu();
    let f = Fixture::new();
    ok(f.store(300));
    assert!(f.take(0, 256) && f.take(512, 256));
    for inside in [0, 252, 512, 764] {
        ok(f.store(inside));
    }
    let (first, second) = (f.name(0, 256), f.name(512, 256));
    let nearest = |distance: &str, part: &str| format!("{distance} the nearest allocation, {part}");
    f.fails(f.store(256), &["out of bounds: store of 4 bytes", &nearest("right behind", &first)]);
    f.fails(f.store(300), &[&nearest("44 bytes behind", &first)]);
    f.fails(f.store(508), &[&nearest("4 bytes before", &second)]);
    f.fails(f.store(254), &[&format!("byte 254 of an allocation of {first}, 2 bytes beyond its end")]);
    f.fails(f.store(768), &[&nearest("right behind", &second)]);
    // Closer than any allocation of another test after the segment.
    f.fails(f.store(1020), &[&nearest("252 bytes behind", &second)]);
}

#[test]
fn a_freed_part_is_freed_memory() {
    let _gpu = gpu();
    let f = Fixture::new();
    assert!(f.take(0, 256) && f.take(256, 256) && f.give(0));
    let freed = format!("byte 8 of an allocation of {} that has been freed", f.name(0, 256));
    f.fails(f.store(8), &["use after free: store of 4 bytes", &freed, "nothing was freed after it"]);
    assert!(f.give(256));
    f.fails(f.store(8), &[&freed, "one other allocation was freed after it"]);
    // Allocates the address again with another length.
    assert!(f.take(0, 64));
    ok(f.store(8));
    f.fails(f.store(64), &["use after free: store of 4 bytes", "byte 64 of", &f.name(0, 256)]);
    f.fails(f.store(1024), &["out of bounds"]);
}

#[test]
fn earlier_kernels_may_use_a_part_until_they_finish() {
    let _gpu = gpu();
    let (f, flag) = (Fixture::new(), Flag::new());
    assert!(f.take(0, 256));
    launch_one(f.module.function("wait_for_flag"), f.stream.0, &mut [arg(&flag.0)]);
    f.store_on(&f.stream, 0);
    assert!(f.give(0) && f.take(128, 64));
    f.store_on(&f.stream, 128);
    flag.set();
    ok(f.stream.synchronize());
    f.fails(f.store(0), &["use after free"]);
}

#[test]
fn a_kernel_before_the_allocation_of_its_part_fails() {
    let _gpu = gpu();
    let f = Fixture::new();
    assert!(f.take(0, 256));
    f.store_on(&f.stream, 512);
    assert!(f.take(512, 256));
    f.fails(f.store(512), &["out of bounds: store of 4 bytes"]);
}

#[test]
fn parts_must_not_overlap_and_must_be_in_device_memory() {
    let _gpu = gpu();
    let f = Fixture::new();
    assert!(f.take(256, 256));
    for (offset, len) in [(256, 256), (256, 1), (511, 1), (300, 8), (0, 257), (0, SEGMENT), (500, 100)] {
        assert!(!f.take(offset, len), "{len} bytes at {offset}");
    }
    assert!(f.take(255, 1) && f.take(512, 1));
    for (offset, len) in [(SEGMENT - 8, 9), (SEGMENT, 1), (0, usize::MAX), (0, 0)] {
        assert!(!f.take(offset, len), "{len} bytes at {offset}");
    }
    assert!(!f.give(0) && !f.give(257) && f.give(256) && !f.give(256));
    let pinned = Flag::new();
    assert!(!parts::allocated(f.stream.0, pinned.0.addr(), 4));
    let no_stream = std::ptr::without_provenance_mut(77);
    assert!(!parts::allocated(no_stream, f.at(1024).addr(), 4) && f.take(1024, 4));
    assert!(!parts::freed(no_stream, f.at(1024).addr()) && f.give(1024));
}

#[test]
fn copies_and_fills_stay_within_live_parts() {
    let _gpu = gpu();
    let f = Fixture::new();
    let (other, mut bytes, stream) = (Buffer::of(&[5u8; 512]), [0u8; 512], f.stream.0);
    assert!(f.take(0, 256) && f.take(512, 256) && f.take(1024, 256) && f.give(512));
    let (host, freed) = (bytes.as_mut_ptr().cast::<c_void>(), f.name(512, 256));
    // SAFETY: the host buffer holds the bytes; the runtime checks device addresses.
    unsafe {
        ok(hipMemsetAsync(f.at(0), 9, 256, stream));
        ok(hipMemcpyDtoDAsync(f.at(1024), f.at(0), 256, stream));
        ok(f.stream.synchronize());
        // A copy to the host waits, so that the call itself fails.
        f.fails(
            hipMemcpyDtoHAsync(host, f.at(512), 4, stream),
            &["use after free: a copy from 4 bytes", &freed],
        );
        f.fails(hipMemcpyDtoHAsync(host, f.at(0), 257, stream), &["out of bounds", "1 bytes beyond its end"]);
        for enqueue in [
            &|| hipMemsetAsync(f.at(512), 1, 256, stream),
            &|| hipMemcpyHtoDAsync(f.at(516), host, 4, stream),
            &|| hipMemcpyDtoDAsync(other.0, f.at(512), 256, stream),
            &|| hipMemcpyDtoDAsync(f.at(512), other.0, 256, stream) as hipError_t,
        ] as [&dyn Fn() -> hipError_t; 4]
        {
            ok(enqueue());
            f.fails(f.stream.synchronize(), &["use after free", &freed]);
        }
        // Rows may be in different parts, but not between them.
        ok(hipMemcpy2DAsync(f.at(0), 1024, other.0, 256, 256, 2, hipMemcpyDeviceToDevice, stream));
        ok(f.stream.synchronize());
        ok(hipMemcpy2DAsync(f.at(0), 512, other.0, 128, 128, 3, hipMemcpyDeviceToDevice, stream));
        f.fails(f.stream.synchronize(), &["a copy to 128 bytes", &freed]);
        ok(hipMemcpyDtoH(host, f.at(1024), 256));
    }
    assert_eq!(bytes[..256], [5; 256]);
}

#[test]
fn two_streams_need_an_order() {
    let _gpu = gpu();
    let (f, flag, other) = (Fixture::new(), Flag::new(), Stream::new(hipStreamNonBlocking));
    let (mut event, place) = (null_mut(), f.at(0).addr());
    assert!(f.take(0, 256));
    ok(f.stream.synchronize());
    launch_one(f.module.function("wait_for_flag"), f.stream.0, &mut [arg(&flag.0)]);
    assert!(f.give(0));
    // The other stream does not wait for the first to free the part.
    assert!(parts::allocated(other.0, place, 256));
    f.fails(other.synchronize(), &["nothing orders the stream that frees that part"]);
    // Released only now, because otherwise either stream could be the one that frees a missing part.
    flag.set();
    ok(f.stream.synchronize());
    assert!(parts::freed(other.0, place));
    f.fails(other.synchronize(), &["before it is allocated"]);

    // SAFETY: valid pointers and handles.
    unsafe {
        ok(hipEventCreate(&mut event));
        assert!(f.take(0, 256));
        f.store_on(&f.stream, 0);
        assert!(f.give(0));
        ok(hipEventRecord(event, f.stream.0));
        ok(hipStreamWaitEvent(other.0, event, 0));
        ok(hipEventDestroy(event));
    }
    assert!(parts::allocated(other.0, place, 128));
    f.store_on(&other, 0);
    ok(other.synchronize());
    ok(f.stream.synchronize());
    f.store_on(&other, 128);
    f.fails(other.synchronize(), &["use after free"]);
}

#[test]
fn suballocations_on_the_null_stream_are_not_counted_as_its_use() {
    let _gpu = gpu();
    let (f, uses) = (Fixture::new(), rocm_emulator::null_stream_uses());
    let blocking = Stream::new(hipStreamDefault);
    assert!(parts::allocated(null_mut(), f.at(0).addr(), 256));
    f.store_on(&blocking, 0);
    ok(blocking.synchronize());
    assert!(parts::freed(null_mut(), f.at(0).addr()));
    f.store_on(&blocking, 0);
    f.fails(blocking.synchronize(), &["use after free"]);
    assert_eq!(rocm_emulator::null_stream_uses(), uses);
}

#[test]
fn repeated_queries_complete_a_suballocation() {
    let _gpu = gpu();
    let f = Fixture::new();
    ok(f.store(0));
    assert!(f.take(0, 256));
    while f.stream.query() != 0 {}
    // SAFETY: the null stream.
    while unsafe { hipStreamQuery(null_mut()) } != 0 {}
}

#[test]
fn the_segment_remains_one_allocation() {
    let _gpu = gpu();
    let free = || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid pointers.
        ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
        free
    };
    let f = Fixture::new();
    let before = free();
    assert!(f.take(0, 256) && f.take(512, 256));
    ok(f.stream.synchronize());
    assert_eq!(free(), before);
    // SAFETY: the runtime checks addresses.
    unsafe {
        assert_eq!(hipFree(f.at(512)), 1);
        ok(hipFree(f.at(0)));
    }
    assert_eq!(free(), before + SEGMENT);
    assert!(!f.give(0) && !f.take(0, 256));
    f.fails(f.store(512), &["store of 4 bytes"]);
}
