//! Faults that stop a launch: their kind, and the instruction and work-item that caused them.
use super::{FreedRange, Range};

/// Kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Load,
    /// A write.
    Store,
    /// An atomic read-modify-write.
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

/// The first fault of a launch. Its `Display` text is a report of several lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Name of the kernel.
    pub kernel: String,
    /// Offset of the instruction in the program's text, in bytes.
    pub pc: u64,
    /// Details of the instruction and its work-items.
    pub site: Box<Site>,
    /// Coordinates of the workgroup in the grid.
    pub workgroup: [u32; 3],
    /// Index of the wave in its workgroup.
    pub wave: u32,
    /// Kind of the fault.
    pub kind: FaultKind,
}

impl std::error::Error for Fault {}

/// The instruction of a fault and the work-items that executed it, for the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Instruction as LLVM prints it; empty if none was reached.
    pub instruction: String,
    /// Surrounding instructions: offsets in the text, and LLVM's notation.
    pub listing: Vec<(u64, String)>,
    /// Offset of the kernel's first instruction in the text.
    pub entry: u64,
    /// Work-items per workgroup in x, y, z.
    pub block: [u32; 3],
    /// Lanes per wave.
    pub lanes: u32,
}

impl Site {
    /// Returns the coordinates of a lane's work-item in its workgroup.
    pub fn work_item(&self, wave: u32, lane: u32) -> [u32; 3] {
        let [x, y, _] = self.block.map(|size| size.max(1));
        let index = wave * self.lanes + lane;
        [index % x, index / x % y, index / x / y]
    }
}

/// Location of an access.
#[allow(missing_docs, reason = "each variant says what its fields are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// An address, and the nearest allocation.
    Global { address: u64, nearest: Option<Range> },
    /// An offset into the workgroup's LDS, and the LDS size.
    Lds { offset: u64, size: u32 },
    /// An offset into the lane's private memory, and the size of that memory.
    Private { offset: u64, size: u32 },
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Global { address, .. } => write!(f, "0x{address:x}"),
            Self::Lds { offset, .. } => write!(f, "LDS offset {offset}"),
            Self::Private { offset, .. } => write!(f, "private offset {offset}"),
        }
    }
}

/// The earlier of two unordered accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierAccess {
    /// Kind of the access.
    pub access: Access,
    /// Offset of the instruction in the program's text, in bytes.
    pub pc: u64,
    /// Instruction as LLVM prints it.
    pub instruction: String,
    /// Coordinates of the workgroup in the grid.
    pub workgroup: [u32; 3],
    /// Index of the wave in its workgroup.
    pub wave: u32,
    /// Lane of the wave.
    pub lane: u32,
    /// Set if the access was by another workgroup than the present one.
    pub other_workgroup: bool,
}

/// Kinds of faults.
#[allow(missing_docs, reason = "the error text of a variant says what it is and what its fields are")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    #[error("out of bounds: {access} of {} at 0x{address:x}, outside every allocation", Bytes(*.bytes))]
    OutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, nearest: Option<Range> },
    #[error("use after free: {access} of {} at 0x{address:x}", Bytes(*.bytes))]
    UseAfterFree { access: Access, lane: u32, address: u64, bytes: u32, freed: FreedRange },
    #[error("read-only memory: {access} of {} at 0x{address:x}", Bytes(*.bytes))]
    ReadOnly { access: Access, lane: u32, address: u64, bytes: u32, nearest: Option<Range> },
    #[error("out of bounds: {access} of {} at offset {offset} of the kernel argument segment", Bytes(*.bytes))]
    KernargOutOfBounds { access: Access, lane: u32, offset: i64, bytes: u32, size: u64 },
    #[error("out of bounds: {access} of {} at LDS offset {address}", Bytes(*.bytes))]
    LdsOutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, size: u32 },
    #[error("out of bounds: {access} of {} at private offset {address}", Bytes(*.bytes))]
    PrivateOutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, size: u32 },
    #[error("misaligned: {access} of {} at {location}", Bytes(*.bytes))]
    Misaligned { access: Access, lane: u32, bytes: u32, location: Location },
    /// `unset` of the bytes are unwritten, the first of them at byte `first`.
    #[error(
        "uninitialised memory: {access} of {} at {location}, {}",
        Bytes(*.bytes), unwritten(*.bytes, *.first, *.unset)
    )]
    Uninitialised { access: Access, lane: u32, bytes: u32, first: u32, unset: u32, location: Location },
    #[error(
        "data race: {access} of {} at {location}, and nothing orders it with the {} of another {}",
        Bytes(*.bytes), .earlier.access, if .earlier.other_workgroup { "workgroup" } else { "wave" }
    )]
    Race { access: Access, lane: u32, bytes: u32, location: Location, earlier: Box<EarlierAccess> },
    #[error("unknown instruction")]
    UnknownInstruction,
    #[error("{0}")]
    Undecodable(#[from] crate::isa::DecodeError),
    #[error("jump to 0x{target:x}, which is outside the code object's text")]
    BadJump { target: u64 },
    #[error("hardware register {0} does not exist")]
    HardwareRegister(u8),
    #[error("trap {0} (__builtin_trap or a failed assertion of the device library)")]
    Trap(u32),
    #[error(
        "barrier divergence: {waiting} waves wait at a barrier that {ended} waves of the workgroup ended without reaching"
    )]
    BarrierDivergence { waiting: u32, ended: u32 },
    #[error(
        "does not end: a wave ran {0} instructions (max_instructions in CANDLE_ROCM_EMULATOR allows more)"
    )]
    InstructionLimit(u64),
    #[error("bad launch: {0}")]
    BadLaunch(String),
}

/// Formats a number of bytes.
struct Bytes(u32);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

fn unwritten(bytes: u32, first: u32, unset: u32) -> String {
    match (first, unset) {
        (_, unset) if unset == bytes => "which nothing has written".into(),
        (0, unset) => format!("{unset} of which nothing has written"),
        (first, unset) => format!("{unset} of which nothing has written, the first of them at byte {first}"),
    }
}
