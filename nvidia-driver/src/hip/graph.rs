//! HIP's functions for stream capture and graphs. CUDA numbers modes and states of a capture alike.
//!
//! A kernel of a graph begins as soon as the one before it has no more workgroups to start, if its module has
//! [`EARLY_LAUNCH`]: such kernels wait themselves for those that they depend on (programmatic dependent launch). This hides
//! the time between two kernels.
#![allow(non_snake_case, reason = "named as in C")]
use std::collections::HashSet;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock};

use rocm_rs::hip::bindings::{
    hipError_t, hipFunction_t, hipGraph_t, hipGraphExec_t, hipGraphNode_t, hipModule_t, hipStream_t,
    hipStreamCaptureMode, hipStreamCaptureStatus,
};

use super::context::{forwarded, running, with_context};
use super::status::SUCCESS;

/// Symbol of modules whose kernels wait for those that they depend on (`hip-kernels/build/src/nvidia.rs`).
const EARLY_LAUNCH: &CStr = c"candle_early_launch";
/// The first version of CUDA whose captures record dependencies of this kind: 12.3.
const OLDEST_CUDA: i32 = 12_030;
/// Disables early launches if it is `0`.
const VARIABLE: &str = "CANDLE_NVIDIA_EARLY_LAUNCH";

/// Number of streams that are being captured.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
/// Addresses of the functions that wait for those that they depend on.
static WAITING: LazyLock<RwLock<HashSet<usize>>> = LazyLock::new(RwLock::default);
static IS_ENABLED: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os(VARIABLE).is_none_or(|value| value != "0"));

pub(crate) unsafe extern "C" fn hipStreamBeginCapture(
    stream: hipStream_t,
    mode: hipStreamCaptureMode,
) -> hipError_t {
    // SAFETY: the caller's stream.
    let code =
        with_context("cuStreamBeginCapture", |cuda| unsafe { (cuda.cuStreamBeginCapture)(stream, mode) });
    CAPTURES.fetch_add(usize::from(code == SUCCESS), Ordering::Relaxed);
    code
}

pub(crate) unsafe extern "C" fn hipStreamEndCapture(
    stream: hipStream_t,
    pGraph: *mut hipGraph_t,
) -> hipError_t {
    let was_capturing = is_capturing(stream);
    // SAFETY: the caller's stream and pointer.
    let code =
        with_context("cuStreamEndCapture", |cuda| unsafe { (cuda.cuStreamEndCapture)(stream, pGraph) });
    CAPTURES.fetch_sub(usize::from(was_capturing), Ordering::Relaxed);
    code
}

/// Returns true if a stream is being captured, also if the capture has failed.
fn is_capturing(stream: hipStream_t) -> bool {
    let mut status = 0;
    // SAFETY: the caller's stream; writes one int.
    let code = running().map(|running| unsafe { (running.cuda.cuStreamIsCapturing)(stream, &mut status) });
    code == Ok(0) && status != 0
}

/// Notes whether a function of a module waits for those that it depends on.
pub(super) fn note_function(module: hipModule_t, function: hipFunction_t) {
    let (mut address, mut bytes) = (null_mut(), 0);
    let waits = running().is_ok_and(|running| {
        let mut has_symbol = || {
            let symbol = EARLY_LAUNCH.as_ptr();
            // SAFETY: a live module and a text; writes an address and a size.
            unsafe { (running.cuda.cuModuleGetGlobal)(&mut address, &mut bytes, module, symbol) == 0 }
        };
        *IS_ENABLED && running.version >= OLDEST_CUDA && has_symbol()
    });
    let mut waiting = WAITING.write().unwrap_or_else(PoisonError::into_inner);
    // The address may be that of a function of an unloaded module.
    match waits {
        true => waiting.insert(function.addr()),
        false => waiting.remove(&function.addr()),
    };
}

/// Returns true if a launch on a stream may begin before those before it have ended.
pub(super) fn launches_early(function: hipFunction_t, stream: hipStream_t) -> bool {
    CAPTURES.load(Ordering::Relaxed) > 0
        && WAITING.read().unwrap_or_else(PoisonError::into_inner).contains(&function.addr())
        && is_capturing(stream)
}

forwarded! {
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
