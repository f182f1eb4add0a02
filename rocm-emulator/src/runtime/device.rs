//! Devices: a chip, its streams, and the memory that its kernels may access.
use super::arch::ArchSpec;
use super::error::{HipError, Result, bail};
use super::memory::Memory;
use super::stream::{Marker, Ordering, Stream};
use super::{Scheduler, command::Command, thread_state};
use crate::exec::AddressSpace;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Weak};

/// A software GPU.
pub struct Device {
    pub ordinal: usize,
    /// Index among all devices, including those hidden from the process.
    pub slot: usize,
    pub arch: &'static ArchSpec,
    null_stream: Arc<Stream>,
    null_stream_uses: AtomicU64,
    streams: Mutex<Vec<Weak<Stream>>>,
    /// Devices whose memory this device's kernels may access.
    peers: Mutex<BTreeSet<usize>>,
    /// The cached address space, with the memory generation that it reflects.
    seen: Mutex<Option<(u64, Arc<AddressSpace>)>>,
    /// Runs the streams' commands if they have no threads.
    scheduler: Option<Arc<Scheduler>>,
}

impl Device {
    /// Creates a device without work.
    pub fn new(
        ordinal: usize,
        slot: usize,
        arch: &'static ArchSpec,
        scheduler: Option<Arc<Scheduler>>,
    ) -> Self {
        Self {
            ordinal,
            slot,
            arch,
            null_stream_uses: AtomicU64::new(0),
            null_stream: Arc::new(Stream::new(ordinal, 0, 0, Ordering::Null, scheduler.clone())),
            streams: Mutex::default(),
            peers: Mutex::default(),
            seen: Mutex::default(),
            scheduler,
        }
    }

    /// hipDeviceProp_t::name.
    pub fn name(&self) -> String {
        format!("Software GPU ({})", self.arch.name())
    }

    /// Returns the PCI address as printed by hipDeviceGetPCIBusId. No real bus has this domain.
    pub fn pci_bus_id(&self) -> String {
        format!("ffff:{:02x}:00.0", self.slot)
    }

    /// Counts a use of `stream` if it is the null stream: submitted work, or a wait of the host.
    fn note_use(&self, stream: &Stream) {
        if stream.ordering == Ordering::Null {
            self.null_stream_uses.fetch_add(1, atomic::Ordering::Relaxed);
        }
    }

    /// Returns how often work was submitted to the null stream or the host waited for it.
    pub fn null_stream_uses(&self) -> u64 {
        self.null_stream_uses.load(atomic::Ordering::Relaxed)
    }

    /// Returns the stream of the null handle.
    pub fn null_stream(&self) -> &Arc<Stream> {
        &self.null_stream
    }

    /// Creates a stream on this device.
    pub fn create_stream(&self, flags: u32, priority: i32) -> Arc<Stream> {
        let ordering =
            if flags & super::stream::NON_BLOCKING != 0 { Ordering::NonBlocking } else { Ordering::Blocking };
        let stream = Arc::new(Stream::new(self.ordinal, flags, priority, ordering, self.scheduler.clone()));
        let mut streams = self.streams.lock();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    fn live_streams(&self) -> Vec<Arc<Stream>> {
        self.streams.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the markers for which work on `stream` must wait by the null stream's rules.
    fn dependencies(&self, stream: &Stream) -> Vec<Marker> {
        match stream.ordering {
            Ordering::NonBlocking => Vec::new(),
            Ordering::Blocking => self.null_stream.queue().pending().into_iter().collect(),
            Ordering::Null => self
                .live_streams()
                .iter()
                .filter(|stream| stream.ordering == Ordering::Blocking)
                .filter_map(|stream| stream.queue().pending())
                .collect(),
        }
    }

    /// Waits for the work that the null stream's rules order before new work on `stream`.
    pub fn wait_for_dependencies(&self, stream: &Stream) {
        self.dependencies(stream).iter().for_each(Marker::wait);
    }

    /// Enqueues a command after the work that the null stream's rules order before it.
    ///
    /// # Errors
    /// The errors of [`super::stream::Queue::push`].
    pub fn submit(&self, stream: &Stream, command: Command) -> Result<()> {
        self.note_use(stream);
        self.enqueue(stream, command)
    }

    /// Like [`Self::submit`], for a command that is not device work and is not counted.
    ///
    /// # Errors
    /// The errors of [`Self::submit`].
    pub fn enqueue(&self, stream: &Stream, command: Command) -> Result<()> {
        if let Some(capture) = stream.capture() {
            return capture.record(stream, command);
        }
        self.refuse_implicit_dependency(stream)?;
        let dependencies = self.dependencies(stream);
        let wait = (!dependencies.is_empty()).then_some(Command::WaitForStreams(dependencies));
        stream.queue().push(wait.into_iter().chain([command]))
    }

    /// Invalidates captures of blocking streams that work on the null stream would have to wait for.
    fn refuse_implicit_dependency(&self, stream: &Stream) -> Result<()> {
        if stream.ordering != Ordering::Null {
            return Ok(());
        }
        let streams = self.live_streams();
        let blocking = streams.iter().filter(|stream| stream.ordering == Ordering::Blocking);
        match blocking.filter_map(|stream| stream.capture()).inspect(|capture| capture.invalidate()).count() {
            0 => Ok(()),
            _ => bail!(
                StreamCaptureImplicit,
                "the null stream would have to wait for a blocking stream that captures"
            ),
        }
    }

    /// Returns the streams to wait for when the host waits for `stream`: the null stream includes the blocking streams.
    fn joined(&self, stream: &Arc<Stream>) -> Vec<Arc<Stream>> {
        let mut streams = vec![Arc::clone(stream)];
        if stream.ordering == Ordering::Null {
            streams.extend(self.live_streams().into_iter().filter(|s| s.ordering == Ordering::Blocking));
        }
        streams
    }

    fn wait_for(streams: &[Arc<Stream>]) -> Result<()> {
        thread_state::may_wait()?;
        streams.iter().for_each(|stream| stream.queue().wait());
        let faults: Vec<HipError> = streams.iter().filter_map(|stream| stream.queue().take_fault()).collect();
        faults.into_iter().next().map_or(Ok(()), Err)
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// The first failure of its work that has not been reported yet.
    pub fn synchronize_stream(&self, stream: &Arc<Stream>) -> Result<()> {
        self.note_use(stream);
        stream.refuse_in_capture("waiting for the stream")?;
        self.refuse_implicit_dependency(stream)?;
        Self::wait_for(&self.joined(stream))
    }

    /// Returns `Ok` if a stream's work has finished.
    ///
    /// # Errors
    /// `NotReady`, or the first failure that has not been reported yet.
    pub fn query_stream(&self, stream: &Arc<Stream>) -> Result<()> {
        stream.refuse_in_capture("querying the stream")?;
        self.refuse_implicit_dependency(stream)?;
        let streams = self.joined(stream);
        streams.iter().for_each(|stream| stream.queue().poll());
        if streams.iter().any(|stream| !stream.queue().is_idle()) {
            bail!(NotReady, "the stream still has work");
        }
        Self::wait_for(&streams)
    }

    /// Waits for all streams.
    ///
    /// # Errors
    /// The first failure that has not been reported yet.
    pub fn synchronize(&self) -> Result<()> {
        let mut streams = self.live_streams();
        streams.push(Arc::clone(&self.null_stream));
        if streams.iter().any(|stream| stream.capture().is_some()) {
            bail!(
                StreamCaptureUnsupported,
                "waiting for the device is not permitted while a stream is capturing"
            );
        }
        Self::wait_for(&streams)
    }

    /// Waits for all streams. Failures stay pending until they are queried.
    ///
    /// # Errors
    /// `IllegalState` inside a stream callback.
    pub fn drain(&self) -> Result<()> {
        thread_state::may_wait()?;
        self.live_streams().iter().for_each(|stream| stream.queue().wait());
        self.null_stream.queue().wait();
        Ok(())
    }

    /// Allows this device's kernels to access a peer's memory.
    ///
    /// # Errors
    /// `PeerAccessAlreadyEnabled`.
    pub fn enable_peer(&self, memory: &Memory, peer: usize) -> Result<()> {
        if !self.peers.lock().insert(peer) {
            bail!(PeerAccessAlreadyEnabled, "device {} already has access to device {peer}", self.ordinal);
        }
        memory.touch();
        Ok(())
    }

    /// Revokes the access granted by [`Self::enable_peer`].
    ///
    /// # Errors
    /// `PeerAccessNotEnabled`.
    pub fn disable_peer(&self, memory: &Memory, peer: usize) -> Result<()> {
        if !self.peers.lock().remove(&peer) {
            bail!(PeerAccessNotEnabled, "device {} has no access to device {peer}", self.ordinal);
        }
        memory.touch();
        Ok(())
    }

    /// Revokes the access to all peers.
    pub fn forget_peers(&self, memory: &Memory) {
        self.peers.lock().clear();
        memory.touch();
    }

    /// Returns the memory that kernels may access now. The caller holds [`Memory::running`].
    pub fn address_space(&self, memory: &Memory) -> Arc<AddressSpace> {
        let mut seen = self.seen.lock();
        let generation = memory.generation();
        match &*seen {
            Some((shown, space)) if *shown == generation => Arc::clone(space),
            _ => {
                let peers: Vec<usize> = self.peers.lock().iter().copied().collect();
                let space = memory.address_space(self.ordinal, &peers);
                *seen = Some((generation, Arc::clone(&space)));
                space
            }
        }
    }
}
