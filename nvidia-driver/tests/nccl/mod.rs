//! RCCL's functions on a fake libnccl.
use std::ffi::CStr;
use std::ptr::{null_mut, without_provenance, without_provenance_mut};

use rocm_loader::rccl::*;
use rocm_loader::{Library, last_error};

use crate::child::{CUDA, Outcome, assert_contains, in_child, libraries, log};

const NCCL: &str = "libnccl.so.2";

#[test]
fn operations_between_gpus_are_forwarded() -> Outcome {
    let test = "nccl::operations_between_gpus_are_forwarded";
    if !in_child(test, Some(&libraries(&[CUDA, NCCL])?), &[])? {
        return Ok(());
    }
    let mut id = ncclUniqueId { internal: [0; 128] };
    let (mut comm, mut state) = (null_mut(), 99);
    let (from, to, stream) = (without_provenance(1), without_provenance_mut(2), without_provenance_mut(3));
    // SAFETY: results are written to live variables, and the fake library accesses no other memory.
    unsafe {
        assert_eq!(ncclGetUniqueId(&mut id), ncclSuccess);
        let mut config = ncclConfig_t::non_blocking();
        assert_eq!(ncclCommInitRankConfig(&mut comm, 4, id, 2, &mut config), ncclInProgress);
        assert_eq!(ncclCommGetAsyncError(comm, &mut state), ncclSuccess);
        assert_eq!((comm.addr(), state), (11, ncclSuccess));
        assert_eq!(ncclCommGetAsyncError(without_provenance_mut(13), &mut state), ncclSuccess);
        assert_eq!(state, ncclRemoteError);
        assert_eq!(ncclGroupStart(), ncclSuccess);
        assert_eq!(ncclAllReduce(from, to, 5, ncclBfloat16, ncclMax, comm, stream), ncclSuccess);
        assert_eq!(ncclAllGather(from, to, 5, ncclFloat32, comm, stream), ncclSuccess);
        assert_eq!(ncclReduceScatter(from, to, 5, ncclFloat16, ncclSum, comm, stream), ncclSuccess);
        assert_eq!(ncclBroadcast(from, to, 5, ncclUint8, 3, comm, stream), ncclSuccess);
        assert_eq!(ncclSend(from, 5, ncclInt32, 1, comm, stream), ncclSuccess);
        assert_eq!(ncclRecv(to, 5, ncclInt32, 1, comm, stream), ncclSuccess);
        assert_eq!(ncclGroupEnd(), ncclInProgress);
        let failed = ncclAllReduce(from, to, 5, ncclFloat32, ncclSum, without_provenance_mut(12), stream);
        assert_eq!(failed, ncclInvalidArgument);
        let parts = ["ncclAllReduce returned 4", "invalid argument", "it was asked to fail"];
        assert_contains(last_error(), &parts);
        assert_eq!(CStr::from_ptr(ncclGetErrorString(4)), c"invalid argument");
        assert_eq!(CStr::from_ptr(ncclGetLastError(comm)), c"it was asked to fail");
        assert_eq!((ncclCommFinalize(comm), ncclCommDestroy(comm), ncclCommAbort(comm)), (0, 0, 0));
    }
    let expected = [
        "rank 2 of 4, id 1..127: 24 cafebeef 21400 0",
        "group",
        "reduce 1 2 5 9 2 11 3",
        "gather 1 2 5 7 11 3",
        "scatter 1 2 5 6 0 11 3",
        "broadcast 1 2 5 1 3 11 3",
        "send 1 5 2 1 11 3",
        "receive 2 5 2 1 11 3",
        "reduce 1 2 5 7 0 12 3",
        "finalize 11",
        "destroy 11",
        "abort 11",
    ];
    assert_eq!(log(NCCL)?, expected);
    assert_eq!(rocm_loader::driver()?.versions().rccl, Some(22803));
    Ok(())
}

#[test]
fn missing_nccl_is_reported() -> Outcome {
    if !in_child("nccl::missing_nccl_is_reported", Some(&libraries(&[CUDA])?), &[])? {
        return Ok(());
    }
    // SAFETY: written to a live variable.
    if unsafe { ncclGetVersion(&mut 0) } == ncclSuccess {
        return Ok(()); // NCCL is installed on this system
    }
    assert_contains(last_error(), &["libnccl.so.2 of CUDA", "nvidia-nccl-cu13", "LD_LIBRARY_PATH"]);
    // SAFETY: takes an integer, and a null handle.
    unsafe {
        assert_eq!(CStr::from_ptr(ncclGetErrorString(2)), c"libnccl.so.2 is missing");
        assert_eq!(CStr::from_ptr(ncclGetLastError(null_mut())), c"libnccl.so.2 is missing");
    }
    let files = rocm_loader::driver()?.libraries();
    assert!(files.iter().any(|file| file.serves == Library::Rccl && file.file.is_none()));
    Ok(())
}
