//! The state behind the HIP functions: devices, memory, streams, events, modules and launches.
//!
//! There is one [`Runtime`] per process, created by [`configure`]. Every failure is a [`HipError`] with HIP's code and
//! the cause.

pub mod arch;
mod at_exit;
mod capture;
mod command;
mod config;
mod device;
mod error;
mod event;
mod fault;
mod graph;
mod handle;
mod injection;
mod launch;
mod memory;
mod module;
mod profile;
mod scheduler;
mod stream;
mod thread_state;
mod transfer;
mod visible;

pub use capture::{Capture, CaptureMode};
pub use command::{Command, ResumableWork, UserPointer};
pub use config::{ConfigureError, DEFAULT_TOTAL_MEMORY, HipBlasLt, Miopen, Options};
pub use device::Device;
pub(crate) use error::bail;
pub use error::{ErrorCode, HipError, Result, error_name, error_text, fail};
pub use event::{Event, Last, Recording};
pub use fault::{catch_panic, last_fault};
pub use graph::{Executable, Graph};
pub use handle::Handles;
pub use injection::{
    CollectiveFault, FaultOfRank, Injection, called, calls, fault_of_rank, inject, release_stalled,
};
pub use launch::{MAX_WORKGROUP_SIZE, PreparedLaunch, Shape};
pub use memory::{Found, HostBuffer, Kind, Memory};
pub use module::{Function, Module};
pub use profile::ProfileFile;
pub use scheduler::Scheduler;
pub use stream::Stream;
pub use thread_state::{last_detail, last_error, may_wait, note, note_detail, set_device};
pub use transfer::{Direction, Transfer};

use crate::exec::{AddressSpace, Counters};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak, atomic};

/// The software GPUs of this process.
pub struct Runtime {
    pub options: Options,
    pub memory: Memory,
    devices: Vec<Device>,
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub modules: Handles<Module>,
    pub functions: Handles<Function>,
    pub graphs: Handles<Graph>,
    pub executables: Handles<Executable>,
    captures: Mutex<Vec<Weak<Capture>>>,
    launches: AtomicU64,
    counters: Mutex<BTreeMap<String, Counters>>,
    /// The profile, if the options name a file for it.
    profile: Option<ProfileFile>,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// HIP's special stream handles besides null: hipStreamLegacy and hipStreamPerThread.
const STREAM_LEGACY: usize = 1;
const STREAM_PER_THREAD: usize = 2;

/// Configures the process's devices once: one per architecture name, of which `HIP_VISIBLE_DEVICES` and
/// `ROCR_VISIBLE_DEVICES` may hide some. The options come from the environment ([`Options::from_env`]). Repeating the
/// same configuration is not an error.
///
/// # Errors
/// [`ConfigureError`] for an unknown architecture, an empty list, a variable that does not parse, or a configuration
/// that differs from an earlier one.
pub fn configure(archs: &[&str]) -> std::result::Result<(), ConfigureError> {
    let rows = config::resolve(archs)?;
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let visible = visible::devices(rows.len(), lookup);
    start(visible.into_iter().map(|slot| (slot, rows[slot])).collect(), Options::from_env()?)
}

/// Like [`configure`], with all devices visible and with the given options instead of the environment's.
///
/// # Errors
/// The errors of [`configure`].
pub fn configure_with(archs: &[&str], options: Options) -> std::result::Result<(), ConfigureError> {
    start(config::resolve(archs)?.into_iter().enumerate().collect(), options)
}

/// The visible devices with their index among all devices.
type Slots = Vec<(usize, &'static arch::ArchSpec)>;

fn start(slots: Slots, options: Options) -> std::result::Result<(), ConfigureError> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock();
    let runtime = match RUNTIME.get() {
        Some(runtime) => runtime,
        None => {
            let profile = options.profile.as_ref().map(|file| open_profile(file)).transpose()?;
            inject(options.injection.clone());
            RUNTIME.get_or_init(|| Runtime::new(&slots, options.clone(), profile))
        }
    };
    let current: Slots = runtime.devices.iter().map(|device| (device.slot, device.arch)).collect();
    let plain = |slots: &Slots| slots.iter().map(|(slot, arch)| (*slot, arch.name())).collect::<Vec<_>>();
    if plain(&current) == plain(&slots) && runtime.options == options {
        return Ok(());
    }
    let describe = |slots: &Slots, options: &Options| {
        let names: Vec<&str> = slots.iter().map(|(_, arch)| arch.name()).collect();
        format!("{} with {options:?}", names.join(","))
    };
    Err(ConfigureError::AlreadyConfigured {
        current: describe(&current, &runtime.options),
        wanted: describe(&slots, &options),
    })
}

fn open_profile(file: &Path) -> std::result::Result<ProfileFile, ConfigureError> {
    let refused = |reason: String| ConfigureError::Profile { file: file.display().to_string(), reason };
    let profile = ProfileFile::create(file.to_path_buf()).map_err(|error| refused(error.to_string()))?;
    match at_exit::write_profile() {
        true => Ok(profile),
        false => Err(refused("the C library cannot register an exit handler".into())),
    }
}

/// Returns true after [`configure`] has succeeded.
pub fn is_configured() -> bool {
    RUNTIME.get().is_some()
}

/// Returns the process's software GPUs.
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
    fn new(slots: &Slots, options: Options, profile: Option<ProfileFile>) -> Self {
        let scheduler = options.seed.map(|seed| Arc::new(Scheduler::new(seed)));
        Self {
            memory: Memory::new(slots.len(), options.total_memory, options.poison, options.checks),
            devices: slots
                .iter()
                .enumerate()
                .map(|(n, (slot, arch))| Device::new(n, *slot, arch, scheduler.clone()))
                .collect(),
            options,
            streams: Handles::new(1, "a stream", ErrorCode::ContextIsDestroyed),
            events: Handles::new(2, "an event", ErrorCode::InvalidHandle),
            modules: Handles::new(3, "a module", ErrorCode::InvalidHandle),
            functions: Handles::new(4, "a kernel function", ErrorCode::InvalidHandle),
            graphs: Handles::new(5, "a graph", ErrorCode::InvalidValue),
            executables: Handles::new(6, "an executable graph", ErrorCode::InvalidValue),
            captures: Mutex::default(),
            launches: AtomicU64::new(0),
            counters: Mutex::default(),
            profile,
        }
    }

    /// Returns all devices by ordinal.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns a device by ordinal.
    ///
    /// # Errors
    /// `InvalidDevice`.
    pub fn device(&self, ordinal: usize) -> Result<&Device> {
        match self.devices.get(ordinal) {
            Some(device) => Ok(device),
            None => bail!(
                InvalidDevice,
                "there is no device {ordinal}; the software GPU has {}",
                self.devices.len()
            ),
        }
    }

    /// Returns the calling thread's current device.
    ///
    /// # Errors
    /// `InvalidDevice` when there is none.
    pub fn current_device(&self) -> Result<&Device> {
        self.device(thread_state::device())
    }

    /// Returns the stream of a handle. Null and hipStreamLegacy are the current device's null stream; hipStreamPerThread
    /// is a blocking stream of the calling thread.
    ///
    /// # Errors
    /// `ContextIsDestroyed` for a handle that is not a live stream.
    pub fn stream(&self, handle: *mut c_void) -> Result<Arc<Stream>> {
        match handle.addr() {
            0 | STREAM_LEGACY => Ok(Arc::clone(self.current_device()?.null_stream())),
            STREAM_PER_THREAD => self.stream_of_thread(),
            _ => self.streams.get(handle),
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

    /// Loads a code object on the current device.
    ///
    /// # Errors
    /// The errors of [`Module::load`].
    pub fn load_module(&self, bytes: &[u8]) -> Result<*mut c_void> {
        let device = self.current_device()?;
        let module = Module::load(&self.memory, device.ordinal, device.arch, bytes)?;
        Ok(self.modules.insert(Arc::new(module)))
    }

    /// Removes the handles of a module and its functions.
    ///
    /// # Errors
    /// `InvalidHandle`.
    pub fn unload_module(&self, handle: *mut c_void) -> Result<()> {
        let module = self.modules.remove(handle)?;
        drop(self.functions.remove_where(|function| Arc::ptr_eq(&function.module, &module)));
        Ok(())
    }

    /// Enqueues a launch on its stream.
    ///
    /// # Errors
    /// `InvalidHandle` when the kernel was loaded on another device than the stream's.
    pub fn launch(&self, stream: &Stream, function: &Function, launch: PreparedLaunch) -> Result<()> {
        if function.module.device != stream.device {
            bail!(
                InvalidHandle,
                "kernel {} is loaded on device {}, but the stream is on device {}",
                function.spec.name,
                function.module.device,
                stream.device
            );
        }
        let device = self.device(stream.device)?;
        // A launch that is captured counts when its graph is launched.
        if stream.capture().is_none() {
            if let Some(stall) = injection::next_launch_stall() {
                device.submit(stream, Command::Stall(stall))?;
            }
            self.launches.fetch_add(1, atomic::Ordering::Relaxed);
        }
        device.submit(stream, Command::Launch(Box::new(launch)))
    }

    /// Records an event on a stream.
    ///
    /// # Errors
    /// `InvalidHandle` when they are on different devices.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<()> {
        if event.device != stream.device {
            bail!(
                InvalidHandle,
                "the event is on device {}, but the stream is on device {}",
                event.device,
                stream.device
            );
        }
        if let Some(capture) = stream.capture() {
            event.set(Last::Captured(Arc::clone(&capture), capture.position(stream)?));
            return Ok(());
        }
        let recording = Recording::new(Arc::clone(stream.queue()));
        self.device(stream.device)?.submit(stream, Command::Record(Arc::clone(&recording)))?;
        event.set(Last::Enqueued(recording));
        Ok(())
    }

    /// Executes host work of this crate's libraries in stream order. The work receives the memory of the stream's device
    /// and the number of threads that it may use. A failure is reported like a kernel fault.
    ///
    /// # Errors
    /// The errors of [`Device::submit`].
    pub fn submit_host_work(
        &'static self,
        stream: &Stream,
        work: impl Fn(&AddressSpace, usize) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let device = self.device(stream.device)?;
        let work = move || work(&device.address_space(&self.memory), self.options.threads);
        device.submit(stream, Command::Host(Box::new(work)))
    }

    /// Begins the life of a suballocation in stream order; its contents count as never written. Returns false if it is
    /// empty, not inside one live allocation, or overlaps a live part.
    ///
    /// # Errors
    /// The errors of [`Device::enqueue`].
    pub fn begin_part(&self, stream: &Stream, address: usize, len: usize) -> Result<bool> {
        if !self.memory.reserve_part(address, len) {
            return Ok(false);
        }
        let enqueued = self.device(stream.device)?.enqueue(stream, Command::BeginPart { address, len });
        if enqueued.is_err() {
            self.memory.release_part(address);
        }
        enqueued.map(|()| true)
    }

    /// Frees a suballocation in stream order. Returns false if no live part begins at the address.
    ///
    /// # Errors
    /// The errors of [`Device::enqueue`].
    pub fn end_part(&self, stream: &Stream, address: usize) -> Result<bool> {
        if !self.memory.release_part(address) {
            return Ok(false);
        }
        self.device(stream.device)?.enqueue(stream, Command::EndPart { address })?;
        Ok(true)
    }

    /// Checks that a range is inside one live allocation that `device` may access. `what` names it in the error.
    ///
    /// # Errors
    /// `IllegalAddress`, with the allocation at this address.
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

    /// Waits for the device's work, then frees device memory.
    ///
    /// # Errors
    /// `InvalidValue` for an address that hipMalloc did not return, or that was freed.
    pub fn free_device(&self, address: usize) -> Result<()> {
        if let Some(Kind::Device(device)) = self.memory.find(address).map(|found| found.kind) {
            self.device(device)?.drain()?;
        }
        self.memory.free(address, |kind| matches!(kind, Kind::Device(_)), "hipFree")
    }

    /// Waits for the work of all devices, then frees pinned host memory.
    ///
    /// # Errors
    /// `InvalidValue` for an address that hipHostMalloc did not return, or that was freed.
    pub fn free_pinned(&self, address: usize) -> Result<()> {
        for device in &self.devices {
            device.drain()?;
        }
        self.memory.free(address, |kind| matches!(kind, Kind::Pinned { .. }), "hipHostFree")
    }

    /// Destroys everything on a device: its streams, events, modules and allocations.
    ///
    /// # Errors
    /// The first failure that has not been reported yet; the device is reset nevertheless.
    pub fn reset(&self, device: &Device) -> Result<()> {
        let outcome = device.synchronize();
        let ordinal = device.ordinal;
        drop(self.streams.remove_where(|stream| stream.device == ordinal));
        drop(self.events.remove_where(|event| event.device == ordinal));
        drop(self.functions.remove_where(|function| function.module.device == ordinal));
        drop(self.modules.remove_where(|module| module.device == ordinal));
        drop(self.executables.remove_where(|executable| executable.graph.device == ordinal));
        drop(self.graphs.remove_where(|graph| graph.device == ordinal));
        self.memory.free_all(ordinal);
        device.forget_peers(&self.memory);
        outcome
    }

    /// Returns the number of enqueued launches.
    pub fn launch_count(&self) -> u64 {
        self.launches.load(atomic::Ordering::Relaxed)
    }

    /// Adds the counters of a launch.
    fn count(&self, function: &Function, counters: Counters) {
        if let (Some(profile), Ok(device)) = (&self.profile, self.device(function.module.device)) {
            profile.add(device.arch.name(), function, counters);
        }
        let kernel = &function.spec.name;
        let mut table = self.counters.lock();
        match table.get_mut(kernel) {
            Some(sum) => *sum += counters,
            None => {
                table.insert(kernel.to_string(), counters);
            }
        }
    }

    /// Writes the profile of all launches so far if the options enable profiling.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_profile(&self) -> std::io::Result<()> {
        self.profile.as_ref().map_or(Ok(()), ProfileFile::write)
    }

    /// Returns the profile of all launches so far in the file's format and resets it; `None` if profiling is not enabled.
    pub fn take_profile(&self) -> Option<String> {
        self.profile.as_ref().map(ProfileFile::take)
    }

    /// Waits for the streams' running work and writes the profile. Commands that a seeded scheduler has deferred are not
    /// run, because the host has not waited for them.
    fn finish_profile(&self) -> std::io::Result<()> {
        if self.options.seed.is_none() {
            for device in &self.devices {
                // Fails only inside a stream callback, which cannot wait for its own stream.
                let _ = device.drain();
            }
        }
        self.write_profile()
    }

    /// Returns the counters of all launches so far, by kernel.
    pub fn counters(&self) -> BTreeMap<String, Counters> {
        self.counters.lock().clone()
    }
}
