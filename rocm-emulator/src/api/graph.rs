//! HIP's functions for stream capture and graphs.
use super::*;
use crate::runtime::{CaptureMode, Executable};
use std::ffi::c_void;
use std::sync::Arc;

/// Begins to record the work of a stream instead of executing it.
pub unsafe extern "C" fn hipStreamBeginCapture(
    stream: hipStream_t,
    mode: hipStreamCaptureMode,
) -> hipError_t {
    call("hipStreamBeginCapture", |runtime| {
        let mode = CaptureMode::from_number(mode)?;
        runtime.begin_capture(&*runtime.stream(stream)?, mode)
    })
}

/// Ends a capture and returns its graph, or null if it fails.
pub unsafe extern "C" fn hipStreamEndCapture(stream: hipStream_t, pGraph: *mut hipGraph_t) -> hipError_t {
    call("hipStreamEndCapture", |runtime| {
        // SAFETY: the caller's pointer.
        unsafe { put(pGraph, std::ptr::null_mut())? };
        let graph = runtime.end_capture(&*runtime.stream(stream)?)?;
        // SAFETY: the caller's pointer.
        unsafe { put(pGraph, runtime.graphs.insert(Arc::new(graph))) }
    })
}

/// Returns whether a stream is capturing, and whether the capture is still valid.
pub unsafe extern "C" fn hipStreamIsCapturing(
    stream: hipStream_t,
    pCaptureStatus: *mut hipStreamCaptureStatus,
) -> hipError_t {
    call("hipStreamIsCapturing", |runtime| {
        let status = match runtime.stream(stream)?.capture() {
            None => hipStreamCaptureStatusNone,
            Some(capture) if capture.is_invalid() => hipStreamCaptureStatusInvalidated,
            Some(_) => hipStreamCaptureStatusActive,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(pCaptureStatus, status) }
    })
}

/// Creates a graph that can be launched. The last three arguments are not used.
pub unsafe extern "C" fn hipGraphInstantiate(
    pGraphExec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    pErrorNode: *mut hipGraphNode_t,
    pLogBuffer: *mut c_char,
    bufferSize: usize,
) -> hipError_t {
    let _ = (pErrorNode, pLogBuffer, bufferSize);
    call("hipGraphInstantiate", |runtime| {
        let Some(graph) = runtime.graphs.get(graph) else {
            bail!(InvalidValue, "{graph:?} is not a graph");
        };
        if pGraphExec.is_null() {
            bail!(InvalidValue, "the pointer for the result is null");
        }
        // SAFETY: the caller's pointer.
        unsafe { put(pGraphExec, runtime.executables.insert(Arc::new(Executable { graph }))) }
    })
}

/// Enqueues a launch of a graph on a stream.
pub unsafe extern "C" fn hipGraphLaunch(graphExec: hipGraphExec_t, stream: hipStream_t) -> hipError_t {
    call("hipGraphLaunch", |runtime| {
        let Some(executable) = runtime.executables.get(graphExec) else {
            bail!(InvalidValue, "{graphExec:?} is not an executable graph");
        };
        runtime.launch_graph(&*runtime.stream(stream)?, &executable.graph)
    })
}

/// Returns the number of nodes, and handles of the first `*numNodes` of them unless `nodes` is null.
pub unsafe extern "C" fn hipGraphGetNodes(
    graph: hipGraph_t,
    nodes: *mut hipGraphNode_t,
    numNodes: *mut usize,
) -> hipError_t {
    call("hipGraphGetNodes", |runtime| {
        let Some(found) = runtime.graphs.get(graph) else {
            bail!(InvalidValue, "{graph:?} is not a graph");
        };
        if numNodes.is_null() {
            bail!(InvalidValue, "the pointer for the number of nodes is null");
        }
        // SAFETY: the caller's pointers, the second with space for as many handles as the first says.
        unsafe {
            if !nodes.is_null() {
                for index in 0..found.len.min(numNodes.read()) {
                    let handle: *mut c_void = std::ptr::without_provenance_mut(graph.addr() * 4096 + index);
                    nodes.add(index).write(handle);
                }
            }
            put(numNodes, found.len)
        }
    })
}

/// Destroys a graph. Executable graphs that were made from it stay valid.
pub unsafe extern "C" fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t {
    call("hipGraphDestroy", |runtime| match runtime.graphs.remove(graph) {
        Some(_) => Ok(()),
        None => fail(ErrorCode::InvalidValue, format!("{graph:?} is not a graph")),
    })
}

/// Destroys an executable graph. Launches that were enqueued still run.
pub unsafe extern "C" fn hipGraphExecDestroy(graphExec: hipGraphExec_t) -> hipError_t {
    call("hipGraphExecDestroy", |runtime| match runtime.executables.remove(graphExec) {
        Some(_) => Ok(()),
        None => fail(ErrorCode::InvalidValue, format!("{graphExec:?} is not an executable graph")),
    })
}
