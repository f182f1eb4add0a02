//! RCCL's C functions: arguments that are refused, and the state of communicators.
use rocm_emulator::api::{hipSetDevice, hipStreamCreate, hipStreamDestroy, hipStreamSynchronize};
use rocm_emulator::rccl::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

const F32: u32 = 7;
const SUM: u32 = 0;
const INVALID_ARGUMENT: u32 = Status::InvalidArgument as u32;
const INVALID_USAGE: u32 = Status::InvalidUsage as u32;
const IN_PROGRESS: u32 = Status::InProgress as u32;

fn configure() {
    rocm_emulator::configure(&["gfx1100", "gfx1100"]).expect("two devices");
}

fn settings(blocking: i32) -> Config {
    Config { size: 24, magic: 0xcafe_beef, version: 21_400, blocking }
}

fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    // SAFETY: written to a live variable.
    assert_eq!(unsafe { ncclGetUniqueId(&mut id) }, 0);
    id
}

fn join(id: UniqueId, rank: i32, ranks: i32, config: &mut Config) -> (u32, *mut c_void) {
    let mut handle = null_mut();
    // SAFETY: handle and settings are live variables.
    let status = unsafe { ncclCommInitRankConfig(&mut handle, ranks, id, rank, config) };
    (status, handle)
}

fn state(handle: *mut c_void) -> u32 {
    let mut state = 0;
    // SAFETY: written to a live variable.
    assert_eq!(unsafe { ncclCommGetAsyncError(handle, &mut state) }, 0);
    state
}

fn explanation(handle: *mut c_void) -> String {
    // SAFETY: the text is copied before the next call.
    unsafe { CStr::from_ptr(ncclGetLastError(handle)) }.to_string_lossy().into_owned()
}

fn all_reduce(handle: *mut c_void, datatype: u32, op: u32, count: usize, stream: *mut c_void) -> u32 {
    // SAFETY: addresses may have any value.
    unsafe { ncclAllReduce(null(), null_mut(), count, datatype, op, handle, stream) }
}

#[track_caller]
fn assert_refused(status: u32, expected: u32, part: &str) {
    let text = rocm_emulator::last_error().unwrap_or_default();
    assert!(status == expected && text.contains(part), "{status}: {part:?} is not in {text:?}");
}

#[test]
fn ranks_join_and_leave() {
    configure();
    let id = unique_id();
    let (status, first) = join(id, 0, 2, &mut settings(0));
    assert_eq!((status, state(first)), (IN_PROGRESS, IN_PROGRESS));
    assert_eq!(explanation(first), "rank 0 waits for rank 1");
    assert_refused(all_reduce(first, F32, SUM, 1, null_mut()), INVALID_USAGE, "have not joined");
    assert_refused(join(id, 0, 2, &mut settings(0)).0, INVALID_USAGE, "rank 0 has already joined");
    let (status, second) = join(id, 1, 2, &mut settings(0));
    assert_eq!((status, state(first), state(second)), (0, 0, 0));
    // SAFETY: handles may have any value.
    unsafe {
        assert_eq!((ncclCommFinalize(second), ncclCommDestroy(second)), (0, 0));
        assert_refused(ncclCommDestroy(second), INVALID_ARGUMENT, "is not a communicator");
        assert_eq!(ncclCommAbort(first), 0);
    }
}

#[test]
fn ranks_that_disagree_fail() {
    configure();
    let id = unique_id();
    let (_, first) = join(id, 0, 2, &mut settings(0));
    let (_, second) = join(id, 1, 3, &mut settings(0));
    assert_eq!((state(first), state(second)), (INVALID_USAGE, INVALID_USAGE));
    assert_eq!(explanation(first), "rank 1 was started with 3 ranks, but rank 0 with 2");
    // SAFETY: handles may have any value.
    unsafe { assert_eq!((ncclCommAbort(first), ncclCommAbort(second)), (0, 0)) };
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    configure();
    let id = unique_id();
    let (_, first) = join(id, 0, 3, &mut settings(0));
    let (_, second) = join(id, 1, 3, &mut settings(0));
    // SAFETY: handles may have any value.
    assert_eq!(unsafe { ncclCommAbort(second) }, 0);
    assert_eq!(state(first), Status::RemoteError as u32);
    let text = explanation(first);
    assert!(text.starts_with("rank 1 (process ") && text.ends_with("has aborted its communicator"), "{text}");
    // SAFETY: as above.
    assert_eq!(unsafe { ncclCommAbort(first) }, 0);
}

#[test]
fn invalid_arguments_are_refused() {
    configure();
    let id = unique_id();
    assert_refused(join(id, 0, 1, &mut settings(1)).0, INVALID_USAGE, "blocking");
    assert_refused(join(id, 0, 1, &mut Config { magic: 0, ..settings(0) }).0, INVALID_ARGUMENT, "settings");
    assert_refused(join(id, 1, 1, &mut settings(0)).0, INVALID_ARGUMENT, "no rank 1 of 1");
    assert_refused(join(id, -1, 1, &mut settings(0)).0, INVALID_ARGUMENT, "negative");
    assert_refused(join(id, 0, 17, &mut settings(0)).0, INVALID_ARGUMENT, "at most 16 ranks");
    assert_refused(join(UniqueId([1; 128]), 0, 1, &mut settings(0)).0, INVALID_ARGUMENT, "not created");
    // SAFETY: no group has begun on this thread.
    assert_refused(unsafe { ncclGroupEnd() }, INVALID_USAGE, "no group has begun");

    let (status, handle) = join(id, 0, 1, &mut settings(0));
    assert_eq!(status, 0);
    let mut stream = null_mut();
    // SAFETY: the stream is written to a live variable.
    unsafe { assert_eq!(hipStreamCreate(&mut stream), 0) };
    assert_refused(all_reduce(null_mut(), F32, SUM, 1, stream), INVALID_ARGUMENT, "not a communicator");
    assert_refused(all_reduce(handle, 0, SUM, 1, stream), INVALID_ARGUMENT, "datatype 0");
    assert_refused(all_reduce(handle, F32, 1, 1, stream), INVALID_ARGUMENT, "reduction 1");
    assert_refused(all_reduce(handle, F32, SUM, usize::MAX, stream), INVALID_ARGUMENT, "overflow");
    // SAFETY: addresses and handles may have any value.
    unsafe {
        assert_refused(ncclSend(null(), 1, F32, 1, handle, stream), INVALID_ARGUMENT, "no rank 1");
        let mut elsewhere = null_mut();
        assert_eq!((hipSetDevice(1), hipStreamCreate(&mut elsewhere)), (0, 0));
        assert_refused(all_reduce(handle, F32, SUM, 1, elsewhere), INVALID_ARGUMENT, "device 0");
        assert_eq!((hipStreamDestroy(elsewhere), hipSetDevice(0)), (0, 0));
        // The memory is checked when the operation runs.
        assert_eq!(all_reduce(handle, F32, SUM, 1, stream), 0);
        assert_eq!(hipStreamSynchronize(stream), 700);
        assert_eq!(state(handle), Status::UnhandledCudaError as u32);
        assert!(explanation(handle).contains("the send buffer of rank 0"), "{}", explanation(handle));
        assert_eq!((ncclCommAbort(handle), hipStreamDestroy(stream)), (0, 0));
    }
    assert_eq!(status_name(IN_PROGRESS), c"operation in progress");
}
