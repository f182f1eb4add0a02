//! What the HIP functions act on: devices, memory, streams, events, modules and launches.
//!
//! There is one [`Runtime`] per process, set up by [`configure`]. Every failure is a [`HipError`] with
//! HIP's code and the particulars.

pub mod arch;
mod command;
mod config;
mod device;
mod error;
mod event;
mod fault;
mod handle;
mod launch;
mod memory;
mod module;
mod scheduler;
mod stream;
mod thread_state;
mod transfer;

pub use command::{Callback, Command, HostWork, UserPointer};
pub use config::{
    ConfigureError, DEFAULT_TOTAL_MEMORY, EMULATOR_VARIABLE, MEMORY_VARIABLE, Options, POISON_VARIABLE,
    THREADS_VARIABLE,
};
pub use device::Device;
pub use error::{ErrorCode, HipError, Result, error_name, error_text};
pub use event::{Event, Recording};
pub use fault::{last_fault, panic_text};
pub use launch::{MAX_WORKGROUP_SIZE, PreparedLaunch, Shape};
pub use memory::{ALIGNMENT, Found, HostBuffer, Kind, Memory};
pub use module::{Function, Module};
pub use scheduler::Scheduler;
pub use stream::{NON_BLOCKING, Ordering, Queue, Stream};
pub use thread_state::{last_detail, last_error, may_wait, note, set_device};
pub use transfer::{Direction, Transfer};

use crate::exec::Counters;
use error::fail;
use handle::Handles;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, atomic};

/// The software GPUs of this process.
pub struct Runtime {
    pub options: Options,
    pub memory: Memory,
    devices: Vec<Device>,
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub modules: Handles<Module>,
    pub functions: Handles<Function>,
    launches: AtomicU64,
    counters: Mutex<BTreeMap<String, Counters>>,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The values of a stream handle with a meaning of their own, besides null.
const STREAM_LEGACY: usize = 1;
const STREAM_PER_THREAD: usize = 2;

/// Decides once for the process which devices there are (one per architecture name), with the options of
/// the environment ([`Options::from_env`]). Asking again for the same is no error.
///
/// # Errors
/// [`ConfigureError`] for unknown architectures, none at all, a variable that does not parse, or a second,
/// different wish.
pub fn configure(archs: &[&str]) -> std::result::Result<(), ConfigureError> {
    configure_with(archs, Options::from_env()?)
}

/// [`configure`], with options that do not come from the environment.
///
/// # Errors
/// As [`configure`].
pub fn configure_with(archs: &[&str], options: Options) -> std::result::Result<(), ConfigureError> {
    let rows = config::resolve(archs)?;
    let runtime = RUNTIME.get_or_init(|| Runtime::new(&rows, options.clone()));
    let same_archs =
        runtime.devices.iter().map(|device| device.arch.name).eq(rows.iter().map(|row| row.name));
    if same_archs && runtime.options == options {
        return Ok(());
    }
    let describe = |names: Vec<&str>, options: &Options| format!("{} with {options:?}", names.join(","));
    Err(ConfigureError::AlreadyConfigured {
        current: describe(runtime.devices.iter().map(|device| device.arch.name).collect(), &runtime.options),
        wanted: describe(rows.iter().map(|row| row.name).collect(), &options),
    })
}

/// Whether [`configure`] has been called.
pub fn is_configured() -> bool {
    RUNTIME.get().is_some()
}

/// The process's software GPUs.
///
/// # Errors
/// `NoDevice` before [`configure`].
pub fn runtime() -> Result<&'static Runtime> {
    match RUNTIME.get() {
        Some(runtime) => Ok(runtime),
        None => fail(ErrorCode::NoDevice, "the software GPU is not configured"),
    }
}

impl Runtime {
    fn new(rows: &[&'static arch::ArchSpec], options: Options) -> Self {
        let scheduler = options.seed.map(|seed| Arc::new(Scheduler::new(seed)));
        Self {
            memory: Memory::new(rows.len(), options.total_memory, options.poison, options.checks),
            devices: rows
                .iter()
                .enumerate()
                .map(|(n, arch)| Device::new(n, arch, scheduler.clone()))
                .collect(),
            options,
            streams: Handles::new(1),
            events: Handles::new(2),
            modules: Handles::new(3),
            functions: Handles::new(4),
            launches: AtomicU64::new(0),
            counters: Mutex::default(),
        }
    }

    /// All devices by ordinal.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// A device by ordinal.
    ///
    /// # Errors
    /// `InvalidDevice`.
    pub fn device(&self, ordinal: usize) -> Result<&Device> {
        match self.devices.get(ordinal) {
            Some(device) => Ok(device),
            None => fail(
                ErrorCode::InvalidDevice,
                format!("there is no device {ordinal}; the software GPU has {}", self.devices.len()),
            ),
        }
    }

    /// The calling thread's current device.
    ///
    /// # Errors
    /// `InvalidDevice` when there is none.
    pub fn current_device(&self) -> Result<&Device> {
        self.device(thread_state::device())
    }

    /// The stream of a handle: null and hipStreamLegacy are the current device's null stream,
    /// hipStreamPerThread is a blocking stream of the calling thread.
    ///
    /// # Errors
    /// `ContextIsDestroyed` for a handle that is not (or no more) a stream.
    pub fn stream(&self, handle: *mut c_void) -> Result<Arc<Stream>> {
        match handle.addr() {
            0 | STREAM_LEGACY => Ok(Arc::clone(self.current_device()?.null_stream())),
            STREAM_PER_THREAD => self.stream_of_thread(),
            _ => match self.streams.get(handle) {
                Some(stream) => Ok(stream),
                None => fail(ErrorCode::ContextIsDestroyed, format!("{handle:?} is no stream")),
            },
        }
    }

    fn stream_of_thread(&self) -> Result<Arc<Stream>> {
        thread_local! {
            static STREAMS: RefCell<BTreeMap<usize, Arc<Stream>>> = const { RefCell::new(BTreeMap::new()) };
        }
        let device = self.current_device()?;
        Ok(STREAMS.with_borrow_mut(|streams| {
            Arc::clone(streams.entry(device.ordinal).or_insert_with(|| device.create_stream(0, 0)))
        }))
    }

    /// An event by handle.
    ///
    /// # Errors
    /// `InvalidHandle`.
    pub fn event(&self, handle: *mut c_void) -> Result<Arc<Event>> {
        match self.events.get(handle) {
            Some(event) => Ok(event),
            None => fail(ErrorCode::InvalidHandle, format!("{handle:?} is no event")),
        }
    }

    /// A module by handle.
    ///
    /// # Errors
    /// `InvalidHandle`.
    pub fn module(&self, handle: *mut c_void) -> Result<Arc<Module>> {
        match self.modules.get(handle) {
            Some(module) => Ok(module),
            None => fail(ErrorCode::InvalidHandle, format!("{handle:?} is no module")),
        }
    }

    /// A kernel function by handle.
    ///
    /// # Errors
    /// `InvalidHandle`.
    pub fn function(&self, handle: *mut c_void) -> Result<Arc<Function>> {
        match self.functions.get(handle) {
            Some(function) => Ok(function),
            None => fail(ErrorCode::InvalidHandle, format!("{handle:?} is no kernel function")),
        }
    }

    /// Loads a code object on the current device.
    ///
    /// # Errors
    /// Those of [`Module::load`].
    pub fn load_module(&self, bytes: &[u8]) -> Result<*mut c_void> {
        let device = self.current_device()?;
        let module = Module::load(&self.memory, device.ordinal, device.arch, bytes)?;
        Ok(self.modules.insert(Arc::new(module)))
    }

    /// Ends a module's handle and those of its functions.
    ///
    /// # Errors
    /// `InvalidHandle`.
    pub fn unload_module(&self, handle: *mut c_void) -> Result<()> {
        let module = self.module(handle)?;
        self.modules.remove(handle);
        drop(self.functions.remove_where(|function| Arc::ptr_eq(&function.module, &module)));
        Ok(())
    }

    /// Enqueues a launch on its stream.
    ///
    /// # Errors
    /// `InvalidHandle` when the kernel was loaded on another device than the stream's.
    pub fn launch(&self, stream: &Stream, function: &Function, launch: PreparedLaunch) -> Result<()> {
        if function.module.device != stream.device {
            return fail(
                ErrorCode::InvalidHandle,
                format!(
                    "kernel {} is loaded on device {}, the stream is on device {}",
                    function.spec.name, function.module.device, stream.device
                ),
            );
        }
        self.device(stream.device)?.submit(stream, Command::Launch(Box::new(launch)))?;
        self.launches.fetch_add(1, atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Records an event on a stream.
    ///
    /// # Errors
    /// `InvalidHandle` when they are on different devices.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<()> {
        if event.device != stream.device {
            return fail(
                ErrorCode::InvalidHandle,
                format!("the event is on device {}, the stream on device {}", event.device, stream.device),
            );
        }
        let recording = Recording::new(Arc::clone(stream.queue()));
        self.device(stream.device)?.submit(stream, Command::Record(Arc::clone(&recording)))?;
        event.set(recording);
        Ok(())
    }

    /// Does host work of this crate's libraries in a stream's order. A failure surfaces like a kernel fault.
    ///
    /// # Errors
    /// Those of [`Device::submit`].
    pub fn submit_host_work(&self, stream: &Stream, work: HostWork) -> Result<()> {
        self.device(stream.device)?.submit(stream, Command::Host(work))
    }

    /// Checks that `bytes` bytes at `address` lie in one live allocation that `device` may touch.
    ///
    /// # Errors
    /// `IllegalAddress`, saying what lies there; `what` names the operand.
    pub fn check_range(&self, device: usize, address: usize, bytes: usize, what: &str) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let fits = self.memory.find(address).is_some_and(|found| {
            bytes <= found.len - (address - found.base)
                && found.kind.device().is_none_or(|owner| owner == device)
        });
        if fits {
            return Ok(());
        }
        let there = match self.memory.find(address) {
            None => "no allocation is there".to_string(),
            Some(found) => format!(
                "an allocation of {} bytes is there ({:?}), {} bytes after its start",
                found.len,
                found.kind,
                address - found.base
            ),
        };
        fail(ErrorCode::IllegalAddress, format!("{what}: {bytes} bytes at 0x{address:x}: {there}"))
    }

    /// Gives device memory back, after the device's work has finished.
    ///
    /// # Errors
    /// `InvalidValue` for an address that hipMalloc did not give, or that was freed.
    pub fn free_device(&self, address: usize) -> Result<()> {
        if let Some(Kind::Device(device)) = self.memory.find(address).map(|found| found.kind) {
            self.device(device)?.drain()?;
        }
        self.memory.free(address, |kind| matches!(kind, Kind::Device(_)), "hipFree")
    }

    /// Gives pinned host memory back, after all devices' work has finished.
    ///
    /// # Errors
    /// `InvalidValue` for an address that hipHostMalloc did not give, or that was freed.
    pub fn free_pinned(&self, address: usize) -> Result<()> {
        for device in &self.devices {
            device.drain()?;
        }
        self.memory.free(address, |kind| matches!(kind, Kind::Pinned { .. }), "hipHostFree")
    }

    /// Ends everything on a device: its streams, events, modules and allocations.
    ///
    /// # Errors
    /// The first failure that nobody was told yet; the device is reset all the same.
    pub fn reset(&self, device: &Device) -> Result<()> {
        let outcome = device.synchronize();
        let ordinal = device.ordinal;
        drop(self.streams.remove_where(|stream| stream.device == ordinal));
        drop(self.events.remove_where(|event| event.device == ordinal));
        drop(self.functions.remove_where(|function| function.module.device == ordinal));
        drop(self.modules.remove_where(|module| module.device == ordinal));
        self.memory.free_all(ordinal);
        outcome
    }

    /// Launches that were enqueued.
    pub fn launch_count(&self) -> u64 {
        self.launches.load(atomic::Ordering::Relaxed)
    }

    /// Adds what a launch executed.
    fn count(&self, kernel: &str, counters: Counters) {
        let mut table = self.counters.lock();
        match table.get_mut(kernel) {
            Some(sum) => *sum += counters,
            None => {
                table.insert(kernel.to_string(), counters);
            }
        }
    }

    /// What was executed so far, by kernel.
    pub fn counters(&self) -> BTreeMap<String, Counters> {
        self.counters.lock().clone()
    }
}
