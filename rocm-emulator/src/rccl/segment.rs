//! The memory that the ranks of a communicator share: a file in `/dev/shm` that each rank maps. Its name is removed when
//! all ranks have joined.
//!
//! Each rank holds a lock on one byte of the file. The system releases it when the process ends, so that the others
//! notice it.
use super::types::{Result, Status, UniqueId, reject};
use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of ranks.
pub const MAX_RANKS: usize = 16;
/// Bytes that a rank publishes at once.
pub const PART: usize = 256 << 10;
/// Bytes of a message that are in transit at once.
pub const PARCEL: usize = 64 << 10;
/// Time after which a waiting rank checks that the others are alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// First bytes of the identifiers that this library creates.
const ID_MAGIC: &[u8; 16] = b"software-gpu-id:";
const FOLDER: &str = "/dev/shm";

/// State of a rank, as the others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RankState {
    Active = 0,
    Destroyed = 1,
    Aborted = 2,
    Failed = 3,
    Died = 4,
}

impl RankState {
    /// Final states of a rank, with the words for errors.
    const FINAL_STATES: [(Self, &str); 4] = [
        (Self::Destroyed, "has destroyed its communicator"),
        (Self::Aborted, "has aborted its communicator"),
        (Self::Failed, "has failed"),
        (Self::Died, "has ended"),
    ];
}

/// The part of the segment that belongs to a rank; only this rank writes it.
#[repr(C, align(64))]
pub struct Rank {
    /// Number of ranks that the rank was started with; 0 until it has joined.
    pub ranks: AtomicU32,
    pub process: AtomicU32,
    /// A [`RankState`].
    state: AtomicU32,
    /// Number of parts that the rank has published.
    pub published: AtomicU64,
    /// Number of parts that the rank has read from all ranks.
    pub consumed: AtomicU64,
    /// Description of the call to which the published part belongs.
    pub call: [AtomicU64; 6],
}

/// A message in transit from one rank to another.
#[repr(C)]
pub struct Mailbox {
    /// Number of parcels that were written and read.
    pub written: AtomicU64,
    pub read: AtomicU64,
    /// Number of elements of the whole message, and their type.
    pub count: AtomicU64,
    pub datatype: AtomicU64,
}

#[repr(C)]
struct Header {
    /// Incremented at each change that another rank may wait for.
    events: AtomicU32,
    ranks: [Rank; MAX_RANKS],
    mailboxes: [[Mailbox; MAX_RANKS]; MAX_RANKS],
}

const PARTS_OFFSET: usize = size_of::<Header>().next_multiple_of(4096);

/// The mapped segment of one rank.
pub struct Segment {
    file: File,
    path: PathBuf,
    address: *mut u8,
    ranks: usize,
    rank: usize,
}

// SAFETY: the header consists of atomics, and the data is accessed through raw pointers in an order that they establish.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

fn failed<T>(what: &str, path: &Path, error: &io::Error) -> Result<T> {
    reject(Status::SystemError, format!("{what} failed for {}: {error}", path.display()))
}

/// Creates an identifier.
///
/// # Errors
/// `SystemError` if the system has no random numbers.
pub fn unique_id() -> Result<UniqueId> {
    let mut id = UniqueId([0; 128]);
    id.0[..16].copy_from_slice(ID_MAGIC);
    // SAFETY: 16 bytes are written behind the first 16.
    let written = unsafe { libc::getrandom(id.0[16..].as_mut_ptr().cast(), 16, 0) };
    match written {
        16 => Ok(id),
        _ => failed("getrandom", Path::new("a unique id"), &io::Error::last_os_error()),
    }
}

impl Segment {
    fn len(ranks: usize) -> usize {
        PARTS_OFFSET + ranks * PART + ranks * ranks * PARCEL
    }

    /// Joins the ranks with the same identifier. Does not wait for them.
    ///
    /// # Errors
    /// `InvalidArgument` for an identifier of another library, `InvalidUsage` if the rank has joined already or the file
    /// belongs to another user, and `SystemError`.
    pub fn join(id: &UniqueId, rank: usize, ranks: usize) -> Result<Self> {
        if &id.0[..16] != ID_MAGIC || id.0[32..].iter().any(|byte| *byte != 0) {
            return reject(Status::InvalidArgument, "the unique id was not created by the software GPU");
        }
        let digits: String = id.0[16..32].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = Path::new(FOLDER).join(format!("candle-rocm-{digits}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = match options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&path) {
            Ok(file) => file,
            Err(error) => return failed("opening shared memory", &path, &error),
        };
        // SAFETY: takes no arguments.
        let user = unsafe { libc::geteuid() };
        if file.metadata().map_or(u32::MAX, |metadata| metadata.uid()) != user {
            let reason = format!("{} belongs to another user; create a new unique id", path.display());
            return reject(Status::InvalidUsage, reason);
        }
        let mut segment = Self { file, path, address: std::ptr::null_mut(), ranks, rank };
        if !segment.try_lock() {
            return reject(Status::InvalidUsage, format!("rank {rank} has already joined the communicator"));
        }
        segment.map()?;
        let own = segment.rank(rank);
        own.process.store(std::process::id(), Ordering::Relaxed);
        own.ranks.store(ranks as u32, Ordering::Release);
        if segment.have_all_joined() {
            segment.remove_name();
        }
        segment.notify();
        Ok(segment)
    }

    fn map(&mut self) -> Result<()> {
        let len = Self::len(self.ranks);
        // SAFETY: a descriptor of an open file.
        let code = unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, len as libc::off_t) };
        if code != 0 {
            return failed("allocating shared memory", &self.path, &io::Error::from_raw_os_error(code));
        }
        // SAFETY: a shared mapping at an address chosen by the system does not affect existing memory.
        let address = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, self.file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return failed("mapping shared memory", &self.path, &io::Error::last_os_error());
        }
        self.address = address.cast();
        Ok(())
    }

    fn lock(rank: usize) -> libc::flock {
        // SAFETY: plain integers, for which zero is valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        lock.l_whence = libc::SEEK_SET as _;
        lock.l_start = rank as libc::off_t;
        lock.l_len = 1;
        lock
    }

    fn try_lock(&self) -> bool {
        let lock = Self::lock(self.rank);
        // SAFETY: a descriptor of an open file, and a lock that outlives the call.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
    }

    /// Returns true if a rank that has joined still has the segment open.
    fn is_open_in(&self, rank: usize) -> bool {
        let mut lock = Self::lock(rank);
        // SAFETY: as above; the system writes the conflicting lock.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
        result != 0 || c_int::from(lock.l_type) != libc::F_UNLCK
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is aligned to a page and begins with a header of atomics, for which zero is valid.
        unsafe { &*self.address.cast::<Header>() }
    }

    /// Returns the state of a rank.
    pub fn rank(&self, rank: usize) -> &Rank {
        &self.header().ranks[rank]
    }

    /// Returns the mailbox for messages from one rank to another.
    pub fn mailbox(&self, from: usize, to: usize) -> &Mailbox {
        &self.header().mailboxes[from][to]
    }

    /// Returns the address of the part that a rank publishes.
    pub fn part(&self, rank: usize) -> *mut u8 {
        // SAFETY: inside the mapping.
        unsafe { self.address.add(PARTS_OFFSET + rank * PART) }
    }

    /// Returns the address of the parcel from one rank to another.
    pub fn parcel(&self, from: usize, to: usize) -> *mut u8 {
        let index = from * self.ranks + to;
        // SAFETY: inside the mapping.
        unsafe { self.address.add(PARTS_OFFSET + self.ranks * PART + index * PARCEL) }
    }

    /// Returns true if a rank has joined.
    pub fn has_joined(&self, rank: usize) -> bool {
        self.rank(rank).ranks.load(Ordering::Acquire) != 0
    }

    /// Returns true if all ranks have joined.
    pub fn have_all_joined(&self) -> bool {
        (0..self.ranks).all(|rank| self.has_joined(rank))
    }

    /// Describes a rank that was started with another number of ranks, if there is one.
    pub fn disagreement(&self) -> Option<String> {
        let counts = (0..MAX_RANKS).map(|rank| (rank, self.rank(rank).ranks.load(Ordering::Acquire)));
        let (rank, count) = counts.into_iter().find(|(_, n)| *n != 0 && *n as usize != self.ranks)?;
        Some(format!(
            "rank {rank} was started with {count} ranks, but rank {} with {}",
            self.rank, self.ranks
        ))
    }

    /// Publishes the state of this rank.
    pub fn set_state(&self, state: RankState) {
        self.rank(self.rank).state.store(state as u32, Ordering::Release);
        self.notify();
    }

    /// Returns the reason why a rank can make no further progress; `None` if it can.
    pub fn end_reason(&self, rank: usize) -> Option<String> {
        let shared = self.rank(rank);
        let process = shared.process.load(Ordering::Relaxed);
        let of = |what: &str| Some(format!("rank {rank} (process {process}) {what}"));
        let state = shared.state.load(Ordering::Acquire);
        match RankState::FINAL_STATES.iter().find(|(end, _)| *end as u32 == state) {
            Some((_, what)) => of(what),
            None if self.has_joined(rank) && rank != self.rank && !self.is_open_in(rank) => of("has ended"),
            None => None,
        }
    }

    /// Returns the number of events so far, for [`Self::wait`].
    pub fn events(&self) -> u32 {
        self.header().events.load(Ordering::Acquire)
    }

    /// Wakes the ranks that wait.
    pub fn notify(&self) {
        let events = &self.header().events;
        events.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the address is mapped and aligned.
        unsafe { libc::syscall(libc::SYS_futex, events.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
    }

    /// Waits until there are more events than `seen`, or until a short timeout has passed.
    pub fn wait(&self, seen: u32) {
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: CHECK_INTERVAL.subsec_nanos().into() };
        let events = self.header().events.as_ptr();
        // SAFETY: the address is mapped and aligned, and the timeout outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, events, libc::FUTEX_WAIT, seen, &raw const timeout) };
    }

    /// Removes the file's name, so that no rank can join any more.
    pub fn remove_name(&self) {
        // Another rank may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.address.is_null() {
            // SAFETY: mapped with this size, and no reference outlives the segment. Unmapping a whole mapping succeeds.
            let _ = unsafe { libc::munmap(self.address.cast(), Self::len(self.ranks)) };
        }
    }
}
