//! HIP's functions for stream capture and graphs.
use super::*;
use crate::runtime::{CaptureMode, Executable};
use std::ffi::c_void;
use std::sync::Arc;

c_functions! {
    /// Begins to record the work of a stream instead of executing it.
    fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) |runtime| {
        let mode = CaptureMode::from_number(mode)?;
        runtime.begin_capture(&*runtime.stream(stream)?, mode)
    }

    /// Ends a capture and returns its graph, or null if it fails.
    fn hipStreamEndCapture(stream: hipStream_t, pGraph: *mut hipGraph_t) -> pGraph |runtime| {
        not_null(pGraph)?;
        // SAFETY: the caller's pointer.
        unsafe { put_if_wanted(pGraph, std::ptr::null_mut()) };
        let graph = runtime.end_capture(&*runtime.stream(stream)?)?;
        runtime.graphs.insert(Arc::new(graph))
    }

    /// Returns whether a stream is capturing, and whether the capture is still valid.
    fn hipStreamIsCapturing(
        stream: hipStream_t,
        pCaptureStatus: *mut hipStreamCaptureStatus,
    ) -> pCaptureStatus |runtime| {
        match runtime.stream(stream)?.capture() {
            None => hipStreamCaptureStatusNone,
            Some(capture) if capture.is_invalid() => hipStreamCaptureStatusInvalidated,
            Some(_) => hipStreamCaptureStatusActive,
        }
    }

    /// Creates a graph that can be launched. The last three arguments are not used.
    fn hipGraphInstantiate(
        pGraphExec: *mut hipGraphExec_t,
        graph: hipGraph_t,
        _pErrorNode: *mut hipGraphNode_t,
        _pLogBuffer: *mut c_char,
        _bufferSize: usize,
    ) -> pGraphExec |runtime| {
        let graph = runtime.graphs.get(graph)?;
        not_null(pGraphExec)?;
        runtime.executables.insert(Arc::new(Executable { graph }))
    }

    /// Enqueues a launch of a graph on a stream.
    fn hipGraphLaunch(graphExec: hipGraphExec_t, stream: hipStream_t) |runtime| {
        let executable = runtime.executables.get(graphExec)?;
        runtime.launch_graph(&*runtime.stream(stream)?, &executable.graph)
    }

    /// Returns the number of nodes, and handles of the first `*numNodes` of them unless `nodes` is null.
    fn hipGraphGetNodes(graph: hipGraph_t, nodes: *mut hipGraphNode_t, numNodes: *mut usize) |runtime| {
        let found = runtime.graphs.get(graph)?;
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
    }

    /// Destroys a graph. Executable graphs that were made from it stay valid.
    fn hipGraphDestroy(graph: hipGraph_t) |runtime| {
        runtime.graphs.remove(graph).map(drop)
    }

    /// Destroys an executable graph. Launches that were enqueued still run.
    fn hipGraphExecDestroy(graphExec: hipGraphExec_t) |runtime| {
        runtime.executables.remove(graphExec).map(drop)
    }
}
