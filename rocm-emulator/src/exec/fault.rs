//! What stops a launch, and where.
use super::{FreedRange, Range};

/// How memory was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load,
    Store,
    Atomic,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::Atomic => "atomic",
        })
    }
}

/// The first thing that went wrong in a launch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("kernel {kernel}: {kind}; at `{instruction}` (pc 0x{pc:x}), workgroup {workgroup:?}, wave {wave}")]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// Address of the instruction, as an offset into the program's text.
    pub pc: u64,
    /// The instruction as LLVM prints it; empty where none was reached.
    pub instruction: Box<str>,
    /// The workgroup's coordinates in the grid.
    pub workgroup: [u32; 3],
    /// The wave in its workgroup.
    pub wave: u32,
    pub kind: FaultKind,
}

/// Where an access went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address, and the allocation nearest to it.
    Global { address: u64, nearest: Option<Range> },
    /// An offset into the workgroup's LDS, and how much the workgroup has.
    Lds { offset: u64, size: u32 },
    /// An offset into the lane's private memory, and how much a lane has.
    Private { offset: u64, size: u32 },
}

impl Place {
    /// What surrounds the place, to be put after the message.
    fn surroundings(&self) -> String {
        match self {
            Self::Global { address, nearest } => nearest_text(nearest, *address),
            Self::Lds { size, .. } => format!("; the workgroup has {size} bytes of LDS"),
            Self::Private { size, .. } => format!("; a lane has {size} bytes of private memory"),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Global { address, .. } => write!(f, "0x{address:x}"),
            Self::Lds { offset, .. } => write!(f, "LDS offset {offset}"),
            Self::Private { offset, .. } => write!(f, "private offset {offset}"),
        }
    }
}

/// The earlier one of two accesses that nothing orders.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierAccess {
    pub access: Access,
    /// As in [`Fault`].
    pub pc: u64,
    pub instruction: String,
    pub workgroup: [u32; 3],
    pub wave: u32,
    pub lane: u32,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    #[error("{access} of {bytes} bytes at 0x{address:x} by lane {lane} is outside every allocation{}", nearest_text(.nearest, *.address))]
    OutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, nearest: Option<Range> },
    #[error(
        "use after free: {access} of {bytes} bytes at 0x{address:x} by lane {lane}, {} bytes after the start of an allocation of {} bytes at 0x{:x} that was freed ({} others were freed later)",
        .address - .freed.base, .freed.len, .freed.base, .freed.since
    )]
    UseAfterFree { access: Access, lane: u32, address: u64, bytes: u32, freed: FreedRange },
    #[error("{access} of {bytes} bytes at 0x{address:x} by lane {lane} hits read-only memory{}", nearest_text(.nearest, *.address))]
    ReadOnly { access: Access, lane: u32, address: u64, bytes: u32, nearest: Option<Range> },
    #[error(
        "{access} of {bytes} bytes by lane {lane} at offset {offset} of the kernel argument segment: it has {size} bytes"
    )]
    KernargOutOfBounds { access: Access, lane: u32, offset: i64, bytes: u32, size: u64 },
    #[error(
        "{access} of {bytes} bytes at LDS offset {address} by lane {lane}: the workgroup has {size} bytes of LDS"
    )]
    LdsOutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, size: u32 },
    #[error(
        "{access} of {bytes} bytes at private offset {address} by lane {lane}: a lane has {size} bytes of private memory"
    )]
    PrivateOutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, size: u32 },
    #[error("{access} of {bytes} bytes at {place} by lane {lane} is not aligned{}", .place.surroundings())]
    Misaligned { access: Access, lane: u32, bytes: u32, place: Place },
    /// `unset` of the bytes, from byte `first` on.
    #[error(
        "uninitialised memory: {access} of {bytes} bytes at {place} by lane {lane}, {unset} of which nothing has written, byte {first} first{}",
        .place.surroundings()
    )]
    Uninitialised { access: Access, lane: u32, bytes: u32, first: u32, unset: u32, place: Place },
    #[error(
        "data race: {access} of {bytes} bytes at {place} by lane {lane}, and nothing orders it after the {} by workgroup {:?}, wave {}, lane {} at `{}` (pc 0x{:x}){}",
        .earlier.access, .earlier.workgroup, .earlier.wave, .earlier.lane, .earlier.instruction, .earlier.pc,
        .place.surroundings()
    )]
    Race { access: Access, lane: u32, bytes: u32, place: Place, earlier: Box<EarlierAccess> },
    #[error("unknown instruction")]
    UnknownInstruction,
    #[error("{0}")]
    Undecodable(#[from] crate::isa::DecodeError),
    #[error("jump to 0x{target:x}, which is outside the code object's text")]
    BadJump { target: u64 },
    #[error("hardware register {0} is not there")]
    HardwareRegister(u8),
    #[error("trap {0} (__builtin_trap or a failed assertion of the device library)")]
    Trap(u32),
    #[error(
        "barrier divergence: {waiting} waves wait at a barrier that {ended} waves of the workgroup ended without reaching"
    )]
    BarrierDivergence { waiting: u32, ended: u32 },
    #[error("does not end: a wave ran {0} instructions")]
    DoesNotEnd(u64),
    #[error("bad launch: {0}")]
    BadLaunch(String),
}

fn nearest_text(nearest: &Option<Range>, address: u64) -> String {
    match nearest {
        None => "; there is no allocation".into(),
        Some(range) if address >= range.base => format!(
            "; the nearest is 0x{:x}, {} bytes, and the access lies {} bytes after its start",
            range.base,
            range.len,
            address - range.base
        ),
        Some(range) => format!(
            "; the nearest is 0x{:x}, {} bytes, and the access lies {} bytes before its start",
            range.base,
            range.len,
            range.base - address
        ),
    }
}
