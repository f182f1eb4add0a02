//! Graphs: work that is captured once and replayed by one call. `docs/explanation/graphs.md` describes them.
use super::device::{DeviceState, RocmDevice};
use super::graph_faults;
use crate::rocm_backend::stream::{capturing, Capture, Captured, GraphMemory, Stream};
use crate::rocm_backend::RocmError;
use crate::Result;
use rocm_rs::hip::bindings;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory that several graphs share, see [`RocmDevice::capture_into`]. Cheap to clone.
#[derive(Clone)]
pub struct RocmGraphMemory(Arc<GraphMemory>);

impl RocmGraphMemory {
    /// Returns the number of bytes that were allocated from the driver.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl std::fmt::Debug for RocmGraphMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RocmGraphMemory({} bytes)", self.bytes())
    }
}

/// Captured work of a device, which [`RocmGraph::replay`] enqueues by one call.
///
/// Replays use the addresses and values of the capture. Inputs are tensors that exist before the capture and are
/// written in place, for example by [`copy_to_tensor`](crate::rocm::copy_to_tensor). Tensors that were created during
/// the capture are written by each replay. The graph keeps all memory that it uses, even if the tensors are dropped.
pub struct RocmGraph {
    /// The executable graph; `None` if nothing was captured. HIP permits one launch at a time.
    executable: Mutex<Option<Executable>>,
    nodes: usize,
    kernels: u64,
    name: String,
    /// Other streams whose work is part of the graph, and those that write its operands.
    joined: Vec<Arc<Stream>>,
    sources: Vec<Arc<Stream>>,
    memory: Vec<Arc<GraphMemory>>,
    device: RocmDevice,
}

struct Executable(bindings::hipGraphExec_t);

// SAFETY: HIP allows a handle to be used from any thread, one at a time; a mutex guards its use.
unsafe impl Send for Executable {}

impl RocmDevice {
    /// Runs `work` once while the operations that the calling thread enqueues on this device are recorded into a graph.
    /// They are not executed: tensors that `work` returns are written by [`RocmGraph::replay`]. The signature is that
    /// of upstream's graph type for CUDA, as a method of the device.
    ///
    /// The graph contains kernels, products and convolutions of libraries, copies within the GPU, fills, and random
    /// numbers, which are the same in each replay. Work of other devices on the same GPU is part of it if it is ordered
    /// after work of this device. Run `work` once before the capture, so that kernels and libraries are loaded.
    ///
    /// Other threads may use the device meanwhile; their work is executed as usual.
    ///
    /// # Errors
    /// The error of `work`, which is [`RocmError::NotCapturable`] for operations that wait, copy from or to the host, or
    /// load a kernel. [`RocmError::GraphsDisabled`] if graphs are disabled. HIP's error if the graph cannot be
    /// created; [`RocmError::is_out_of_memory`] returns true if memory ran out. The device stays usable in all cases.
    pub fn capture<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(RocmGraph, T)> {
        self.capture_graph(None, work)
    }

    /// Like [`Self::capture`]; the graph shares the memory of another graph of this device, so that both together need
    /// little more than the larger one. A replay may overwrite the results of the other graphs: use them before.
    ///
    /// # Errors
    /// See [`Self::capture`].
    pub fn capture_into<T>(
        &self,
        memory: &RocmGraphMemory,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(RocmGraph, T)> {
        self.capture_graph(Some(memory.0.clone()), work)
    }

    fn capture_graph<T>(
        &self,
        memory: Option<Arc<GraphMemory>>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(RocmGraph, T)> {
        let state = self.state();
        if let Some(reason) = graph_faults::disabled(state) {
            return Err(RocmError::GraphsDisabled { device: state.label().to_string(), reason }.into());
        }
        if memory.as_ref().is_some_and(|memory| !memory.belongs_to(state.stream.id())) {
            let text = format!("the graph memory belongs to another device than {}", state.label());
            return Err(RocmError::Unsupported(text).into());
        }
        if !capturing::is_active() {
            state.prepare_capture()?;
        }
        let capture = Capture::begin(&state.stream, memory)?;
        let value = work();
        let captured = capture.end();
        // The error of an operation says more than that of the capture that it invalidated.
        let value = value?;
        Ok((RocmGraph::instantiate(self, captured?)?, value))
    }
}

/// Returns the number of nodes of a graph.
fn count_nodes(state: &DeviceState, graph: bindings::hipGraph_t) -> Result<usize> {
    let mut nodes = 0;
    // SAFETY: the graph is valid, no handles are requested, and the pointer is valid for a write.
    let code = unsafe { bindings::hipGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
    state.stream.check_code(code, || "hipGraphGetNodes".to_string())?;
    Ok(nodes)
}

/// Creates an executable graph. An empty graph has none, since HIP's versions differ in whether it can be launched.
fn executable(state: &DeviceState, graph: bindings::hipGraph_t, nodes: usize) -> Result<Option<Executable>> {
    if nodes == 0 {
        return Ok(None);
    }
    let mut executable = std::ptr::null_mut();
    let (node, log) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the graph is valid, the pointer is valid for a write, and no log is requested.
    let code = unsafe { bindings::hipGraphInstantiate(&mut executable, graph, node, log, 0) };
    state.stream.check_code(code, || format!("hipGraphInstantiate({nodes} nodes)"))?;
    Ok(Some(Executable(executable)))
}

impl RocmGraph {
    fn instantiate(device: &RocmDevice, captured: Captured) -> Result<Self> {
        let Captured { graph, joined, sources, memory, kernels } = captured;
        let state = device.state();
        let created =
            count_nodes(state, graph).and_then(|nodes| Ok((executable(state, graph, nodes)?, nodes)));
        // SAFETY: the graph was created by the capture; the executable graph does not depend on it.
        let _ = unsafe { bindings::hipGraphDestroy(graph) };
        let (executable, nodes) = created?;
        memory.iter().for_each(|memory| memory.add_graph());
        let name = format!("a graph of {nodes} nodes");
        let (executable, device) = (Mutex::new(executable), device.clone());
        Ok(Self { executable, nodes, kernels, name, joined, sources, memory, device })
    }

    /// Enqueues all work of the graph on the device's stream without waiting for it.
    ///
    /// Concurrent replays of a graph run one after the other. Errors that occur while the work runs are returned by
    /// the next call that waits for the device.
    ///
    /// # Errors
    /// HIP's error for the launch, or [`RocmError::NotCapturable`] during a capture.
    pub fn replay(&self) -> Result<()> {
        let stream = &self.device.state().stream;
        if capturing::is_active() {
            return Err(RocmError::NotCapturable {
                operation: "replaying a graph".to_string(),
                device: stream.label().to_string(),
                remedy: "replay it before or after the capture",
            }
            .into());
        }
        self.joined.iter().chain(&self.sources).try_for_each(|other| stream.wait_for_stream(other))?;
        stream.bind_and_flush()?;
        let executable = self.executable.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Executable(executable)) = *executable {
            // SAFETY: the executable graph is valid and locked, and the graph keeps the memory that it uses.
            let code = unsafe { bindings::hipGraphLaunch(executable, stream.raw()) };
            stream.check_code(code, || format!("hipGraphLaunch({} nodes)", self.nodes))?;
        }
        drop(executable);
        self.device.state().launches.fetch_add(self.kernels, Ordering::Relaxed);
        stream.wait().record_launch(&self.name);
        self.joined.iter().try_for_each(|other| other.wait_for_stream(stream))
    }

    /// Returns the number of HIP nodes: kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the number of kernel launches, excluding those of libraries.
    pub fn kernels(&self) -> u64 {
        self.kernels
    }

    /// Returns the device whose work was captured.
    pub fn device(&self) -> &RocmDevice {
        &self.device
    }

    /// Returns the memory of the graph, for other graphs of the device; see [`RocmDevice::capture_into`].
    pub fn memory(&self) -> Option<RocmGraphMemory> {
        self.memory.first().cloned().map(RocmGraphMemory)
    }

    /// Returns a known fault of the driver that may make replays of this graph compute wrong results. The first replays
    /// should then be compared with results of the same operations without a graph; if they differ, call
    /// [`RocmDevice::disable_graphs`].
    pub fn known_fault(&self) -> Option<&'static str> {
        graph_faults::known_fault(self.device.state(), self.nodes)
    }
}

impl std::fmt::Debug for RocmGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RocmGraph({} nodes on {})", self.nodes, self.device.state().label())
    }
}

impl Drop for RocmGraph {
    fn drop(&mut self) {
        let executable = self.executable.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // HIP's versions differ in whether a graph may be destroyed while it runs.
        let has_finished = capturing::outside(|| self.device.state().stream.finish_or_abandon());
        match executable {
            Some(Executable(executable)) if has_finished => {
                // SAFETY: the executable graph is valid and has ended. A drop cannot return errors.
                let _ = unsafe { bindings::hipGraphExecDestroy(executable) };
            }
            _ => {}
        }
        self.memory.iter().for_each(|memory| memory.remove_graph());
    }
}
