//! What stops a launch, and where.
use super::{FreedRange, Range};

/// How memory was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Load,
    /// A write.
    Store,
    /// A read and a write that nothing comes between.
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

/// The first thing that went wrong in a launch. Its text is a report of several lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// Address of the instruction, as an offset into the program's text.
    pub pc: u64,
    /// The instruction and its work-items.
    pub site: Box<Site>,
    /// The workgroup's coordinates in the grid.
    pub workgroup: [u32; 3],
    /// The wave in its workgroup.
    pub wave: u32,
    /// What happened.
    pub kind: FaultKind,
}

impl std::error::Error for Fault {}

/// What a report says about the instruction and the work-items that executed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The instruction as LLVM prints it; empty where none was reached.
    pub instruction: String,
    /// The instructions around it: offsets into the text, and what LLVM prints.
    pub listing: Vec<(u64, String)>,
    /// The kernel's first instruction, as an offset into the text.
    pub entry: u64,
    /// Work-items of a workgroup in x, y, z.
    pub block: [u32; 3],
    /// Lanes of a wave.
    pub lanes: u32,
}

impl Site {
    /// The coordinates of a lane's work-item in its workgroup.
    pub fn work_item(&self, wave: u32, lane: u32) -> [u32; 3] {
        let [x, y, _] = self.block.map(|size| size.max(1));
        let index = wave * self.lanes + lane;
        [index % x, index / x % y, index / x / y]
    }
}

/// Where an access went.
#[allow(missing_docs, reason = "each variant says what its fields are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address, and the allocation nearest to it.
    Global { address: u64, nearest: Option<Range> },
    /// An offset into the workgroup's LDS, and how much the workgroup has.
    Lds { offset: u64, size: u32 },
    /// An offset into the lane's private memory, and how much a lane has.
    Private { offset: u64, size: u32 },
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
    /// How it touched the memory.
    pub access: Access,
    /// As in [`Fault`].
    pub pc: u64,
    /// As LLVM prints it.
    pub instruction: String,
    /// As in [`Fault`].
    pub workgroup: [u32; 3],
    /// As in [`Fault`].
    pub wave: u32,
    /// The lane of the wave.
    pub lane: u32,
    /// Whether its workgroup is another one.
    pub elsewhere: bool,
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
    #[error("misaligned: {access} of {} at {place}", Bytes(*.bytes))]
    Misaligned { access: Access, lane: u32, bytes: u32, place: Place },
    /// `unset` of the bytes, from byte `first` on.
    #[error(
        "uninitialised memory: {access} of {} at {place}, {}",
        Bytes(*.bytes), unwritten(*.bytes, *.first, *.unset)
    )]
    Uninitialised { access: Access, lane: u32, bytes: u32, first: u32, unset: u32, place: Place },
    #[error(
        "data race: {access} of {} at {place}, and nothing orders it with the {} of another {}",
        Bytes(*.bytes), .earlier.access, if .earlier.elsewhere { "workgroup" } else { "wave" }
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
    #[error(
        "does not end: a wave ran {0} instructions (max_instructions in CANDLE_ROCM_EMULATOR allows more)"
    )]
    DoesNotEnd(u64),
    #[error("bad launch: {0}")]
    BadLaunch(String),
}

/// An amount of memory.
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
