//! HIP's functions for stream capture and graphs. CUDA numbers modes and states of a capture alike.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::c_char;

use rocm_rs::hip::bindings::{
    hipError_t, hipGraph_t, hipGraphExec_t, hipGraphNode_t, hipStream_t, hipStreamCaptureMode,
    hipStreamCaptureStatus,
};

use super::context::{forwarded, with_context};

forwarded! {
    hipStreamBeginCapture => cuStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode);
    hipStreamEndCapture => cuStreamEndCapture(stream: hipStream_t, pGraph: *mut hipGraph_t);
    hipStreamIsCapturing =>
        cuStreamIsCapturing(stream: hipStream_t, pCaptureStatus: *mut hipStreamCaptureStatus);
    hipGraphGetNodes => cuGraphGetNodes(graph: hipGraph_t, nodes: *mut hipGraphNode_t, numNodes: *mut usize);
    hipGraphLaunch => cuGraphLaunch(graphExec: hipGraphExec_t, stream: hipStream_t);
    hipGraphDestroy => cuGraphDestroy(graph: hipGraph_t);
    hipGraphExecDestroy => cuGraphExecDestroy(graphExec: hipGraphExec_t);
}

/// Ignores the arguments for an error's node and text, which CUDA does not have any more.
pub(crate) unsafe extern "C" fn hipGraphInstantiate(
    pGraphExec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    _: *mut hipGraphNode_t,
    _: *mut c_char,
    _: usize,
) -> hipError_t {
    with_context("cuGraphInstantiateWithFlags", |cuda| {
        // SAFETY: the caller's pointer and graph.
        unsafe { (cuda.cuGraphInstantiateWithFlags)(pGraphExec, graph, 0) }
    })
}
