//! A fake libnccl that logs the calls.
#![allow(non_snake_case)]
#[macro_use]
mod log;

use std::ffi::{c_char, c_int};

use log::log;

/// `ncclUniqueId`.
#[repr(C)]
pub struct Id([u8; 128]);

/// The settings as version 2.14 reads them.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

succeed! {
    fn ncclGetVersion(to: *mut c_int) { *to = 22803; }
    fn ncclGetUniqueId(to: *mut Id) { *to = Id(std::array::from_fn(|index| index as u8)); }
    fn ncclCommGetAsyncError(comm: usize, to: *mut u32) { *to = if comm == 13 { 6 } else { 0 }; }
    fn ncclCommAbort(comm: usize) { log(format!("abort {comm}")); }
    fn ncclCommFinalize(comm: usize) { log(format!("finalize {comm}")); }
    fn ncclCommDestroy(comm: usize) { log(format!("destroy {comm}")); }
    fn ncclGroupStart() { log("group".into()); }
    fn ncclAllGather(from: usize, to: usize, count: usize, kind: u32, comm: usize, stream: usize) {
        log(format!("gather {from} {to} {count} {kind} {comm} {stream}"));
    }
    fn ncclReduceScatter(from: usize, to: usize, count: usize, kind: u32, op: u32, comm: usize, stream: usize) {
        log(format!("scatter {from} {to} {count} {kind} {op} {comm} {stream}"));
    }
    fn ncclBroadcast(from: usize, to: usize, count: usize, kind: u32, root: c_int, comm: usize, stream: usize) {
        log(format!("broadcast {from} {to} {count} {kind} {root} {comm} {stream}"));
    }
    fn ncclSend(from: usize, count: usize, kind: u32, peer: c_int, comm: usize, stream: usize) {
        log(format!("send {from} {count} {kind} {peer} {comm} {stream}"));
    }
    fn ncclRecv(to: usize, count: usize, kind: u32, peer: c_int, comm: usize, stream: usize) {
        log(format!("receive {to} {count} {kind} {peer} {comm} {stream}"));
    }
}

/// Returns `ncclInProgress`, as a group of a non-blocking communicator may.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> u32 {
    7
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut usize, ranks: c_int, id: Id, rank: c_int, config: *mut Config,
) -> u32 {
    let Config { size, magic, version, blocking } = unsafe { &*config };
    log(format!("rank {rank} of {ranks}, id {}..{}: {size} {magic:x} {version} {blocking}", id.0[1], id.0[127]));
    unsafe { *to = 11 };
    7
}

/// Fails for an unknown communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: usize, to: usize, count: usize, kind: u32, op: u32, comm: usize, stream: usize,
) -> u32 {
    log(format!("reduce {from} {to} {count} {kind} {op} {comm} {stream}"));
    if comm == 11 { 0 } else { 4 }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(_: u32) -> *const c_char {
    c"invalid argument".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: usize) -> *const c_char {
    c"it was asked to fail".as_ptr()
}
