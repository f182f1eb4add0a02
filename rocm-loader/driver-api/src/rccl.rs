//! RCCL: operations between the GPUs of a machine. rocm-rs does not declare it, so its types and constants are defined
//! here under their C names. They come from rccl.h and nccl.h, which agree from version 2.14 on.
//!
//! The library is optional: without it every function returns `ncclSystemError`. Communicators are non-blocking
//! ([`ncclConfig_t::non_blocking`]): a call may return `ncclInProgress`, and `ncclCommGetAsyncError` then returns the
//! result. Drivers may refuse blocking communicators.
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, reason = "named as in C")]
#![allow(missing_docs, reason = "documented in the C headers")]
pub use std::ffi::{c_char, c_int, c_void};

pub use rocm_rs::hip::bindings::hipStream_t;

use crate::error::LoadError;

pub type ncclResult_t = u32;
pub type ncclDataType_t = u32;
pub type ncclRedOp_t = u32;

#[repr(C)]
pub struct ncclComm {
    _private: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;

/// Identifier that all ranks of a communicator share, passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ncclUniqueId {
    pub internal: [u8; 128],
}

/// The settings of version 2.14. Later versions add fields, which they take from here only if `version` is theirs.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: u32,
    pub version: u32,
    pub blocking: c_int,
    /// Padding, which later versions read as a field that is not set.
    pub reserved: c_int,
}

impl ncclConfig_t {
    /// Returns the settings of a non-blocking communicator.
    pub fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_400,
            blocking: 0,
            reserved: c_int::MIN,
        }
    }
}

const _: () = assert!(size_of::<ncclConfig_t>() == 24);

macro_rules! constants {
    ($($type:ident { $($name:ident = $value:literal)* })*) => {
        $($(pub const $name: $type = $value;)*)*
    };
}
constants! {
    ncclResult_t {
        ncclSuccess = 0
        ncclUnhandledCudaError = 1
        ncclSystemError = 2
        ncclInternalError = 3
        ncclInvalidArgument = 4
        ncclInvalidUsage = 5
        ncclRemoteError = 6
        ncclInProgress = 7
    }
    ncclDataType_t {
        ncclUint8 = 1
        ncclInt32 = 2
        ncclUint32 = 3
        ncclInt64 = 4
        ncclFloat16 = 6
        ncclFloat32 = 7
        ncclFloat64 = 8
        ncclBfloat16 = 9
    }
    ncclRedOp_t {
        ncclSum = 0
        ncclMax = 2
    }
}

/// Returns the `ncclResult_t` of a call that fails before it reaches a driver.
pub fn status_of(error: &LoadError) -> ncclResult_t {
    match error.is_missing_function() {
        true => ncclInvalidUsage,
        false => ncclSystemError,
    }
}

/// Passes RCCL's prototypes to `$macro`, like [`crate::hip_functions`].
#[macro_export]
macro_rules! rccl_functions {
    ($macro:ident $($arguments:tt)*) => {
        $macro! { $($arguments)*
            required ours {
                fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
                fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
                fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
                fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;

                fn ncclCommInitRankConfig(
                    comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t,
                ) -> ncclResult_t;
                fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
                fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
                fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
                fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;

                fn ncclGroupStart() -> ncclResult_t;
                fn ncclGroupEnd() -> ncclResult_t;

                fn ncclAllReduce(
                    sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
                    op: ncclRedOp_t, comm: ncclComm_t, stream: hipStream_t,
                ) -> ncclResult_t;
                fn ncclAllGather(
                    sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
                    comm: ncclComm_t, stream: hipStream_t,
                ) -> ncclResult_t;
                fn ncclReduceScatter(
                    sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
                    op: ncclRedOp_t, comm: ncclComm_t, stream: hipStream_t,
                ) -> ncclResult_t;
                fn ncclBroadcast(
                    sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
                    comm: ncclComm_t, stream: hipStream_t,
                ) -> ncclResult_t;
                fn ncclSend(
                    sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
                    stream: hipStream_t,
                ) -> ncclResult_t;
                fn ncclRecv(
                    recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
                    stream: hipStream_t,
                ) -> ncclResult_t;
            }
        }
    };
}
