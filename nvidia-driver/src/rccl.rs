//! RCCL's functions on NCCL. Functions, handles, types and codes are the same.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use rocm_driver_api::rccl::*;
use rocm_driver_api::{Library, Table, table};

use crate::cuda::functions;
use crate::library::CudaLibrary;
use crate::toolkit::{Status, Toolkit, fail, search, text_of};

functions! {
    /// The functions of libnccl.
    Nccl {
        version = "ncclGetVersion": fn(*mut c_int) -> Status;
        error_string = "ncclGetErrorString": fn(Status) -> *const c_char;
        last_error = "ncclGetLastError": fn(ncclComm_t) -> *const c_char;
        unique_id = "ncclGetUniqueId": fn(*mut ncclUniqueId) -> Status;
        init_rank = "ncclCommInitRankConfig":
            fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Status;
        async_error = "ncclCommGetAsyncError": fn(ncclComm_t, *mut ncclResult_t) -> Status;
        abort = "ncclCommAbort": fn(ncclComm_t) -> Status;
        finalize = "ncclCommFinalize": fn(ncclComm_t) -> Status;
        destroy = "ncclCommDestroy": fn(ncclComm_t) -> Status;
        group_start = "ncclGroupStart": fn() -> Status;
        group_end = "ncclGroupEnd": fn() -> Status;
        all_reduce = "ncclAllReduce":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, hipStream_t) -> Status;
        all_gather = "ncclAllGather":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, hipStream_t) -> Status;
        reduce_scatter = "ncclReduceScatter":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, hipStream_t) -> Status;
        broadcast = "ncclBroadcast":
            fn(*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, hipStream_t) -> Status;
        send = "ncclSend": fn(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, hipStream_t) -> Status;
        receive = "ncclRecv": fn(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, hipStream_t) -> Status;
    }
}

/// libnccl with RCCL's status codes.
pub(crate) static NCCL: Toolkit<Nccl> = Toolkit {
    library: CudaLibrary {
        serves: Library::Rccl,
        name: "libnccl.so.2",
        advice: "Operations between GPUs need it: install NCCL 2.14 or later (NVIDIA's packages: libnccl2; PyPI: \
                 nvidia-nccl-cu13), and set LD_LIBRARY_PATH to the library's folder if it is not found",
        search: || search(&["libnccl.so.2"]),
        opened: OnceLock::new(),
    },
    status_of,
    internal_error: ncclInternalError,
    failed,
};

#[cold]
fn failed(nccl: &Nccl, call: &str, status: Status) -> ncclResult_t {
    if status == ncclInProgress {
        return status;
    }
    // SAFETY: takes any integer and returns a static text; the other text is copied before the next call.
    let (text, last) =
        unsafe { (text_of((nccl.error_string)(status)), text_of((nccl.last_error)(std::ptr::null_mut()))) };
    fail(status, format!("{call} returned {status}: {text}; {last}"))
}

/// Defines functions that forward their arguments.
macro_rules! forwarded {
    ($($name:ident => $field:ident ($($argument:ident: $type:ty),*);)*) => {
        $(pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> ncclResult_t {
            // SAFETY: the caller's handles, values and pointers.
            NCCL.call(stringify!($name), |nccl| unsafe { (nccl.$field)($($argument),*) })
        })*
    };
}

forwarded! {
    ncclGetVersion => version(version: *mut c_int);
    ncclGetUniqueId => unique_id(uniqueId: *mut ncclUniqueId);
    ncclCommInitRankConfig => init_rank(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t
    );
    ncclCommGetAsyncError => async_error(comm: ncclComm_t, asyncError: *mut ncclResult_t);
    ncclCommAbort => abort(comm: ncclComm_t);
    ncclCommFinalize => finalize(comm: ncclComm_t);
    ncclCommDestroy => destroy(comm: ncclComm_t);
    ncclGroupStart => group_start();
    ncclGroupEnd => group_end();
    ncclAllReduce => all_reduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: hipStream_t
    );
    ncclAllGather => all_gather(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t,
        stream: hipStream_t
    );
    ncclReduceScatter => reduce_scatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: hipStream_t
    );
    ncclBroadcast => broadcast(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: hipStream_t
    );
    ncclSend => send(
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: hipStream_t
    );
    ncclRecv => receive(
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: hipStream_t
    );
}

pub(crate) unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    match NCCL.functions() {
        // SAFETY: takes any integer.
        Ok(nccl) => unsafe { (nccl.error_string)(result) },
        Err(_) => c"libnccl.so.2 is missing".as_ptr(),
    }
}

pub(crate) unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    match NCCL.functions() {
        // SAFETY: the caller's handle.
        Ok(nccl) => unsafe { (nccl.last_error)(comm) },
        Err(_) => c"libnccl.so.2 is missing".as_ptr(),
    }
}

pub(crate) const TABLE: Table = {
    use crate::rccl as functions;
    rocm_driver_api::rccl_functions!(table functions)
};
