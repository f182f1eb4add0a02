//! What stops a launch, and where.
use super::Range;

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
    pub instruction: String,
    /// The workgroup's coordinates in the grid.
    pub workgroup: [u32; 3],
    /// The wave in its workgroup.
    pub wave: u32,
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    #[error("{access} of {bytes} bytes at 0x{address:x} by lane {lane} is outside every allocation{}", nearest_text(.nearest, *.address))]
    OutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, nearest: Option<Range> },
    #[error("{access} of {bytes} bytes at 0x{address:x} by lane {lane} hits read-only memory{}", nearest_text(.nearest, *.address))]
    ReadOnly { access: Access, lane: u32, address: u64, bytes: u32, nearest: Option<Range> },
    #[error(
        "{access} of {bytes} bytes at LDS offset {address} by lane {lane}: the workgroup has {size} bytes of LDS"
    )]
    LdsOutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, size: u32 },
    #[error(
        "{access} of {bytes} bytes at private offset {address} by lane {lane}: a lane has {size} bytes of private memory"
    )]
    PrivateOutOfBounds { access: Access, lane: u32, address: u64, bytes: u32, size: u32 },
    #[error("{access} of {bytes} bytes at 0x{address:x} by lane {lane} is not aligned")]
    Misaligned { access: Access, lane: u32, address: u64, bytes: u32 },
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
