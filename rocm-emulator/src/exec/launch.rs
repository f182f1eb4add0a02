//! One kernel launch: workgroups dealt to the host's cores.
use super::{AddressSpace, Counters, Fault, FaultKind, Program};

/// A wave that executes more instructions than this is taken to hang, unless the launch says otherwise.
pub const DEFAULT_INSTRUCTION_LIMIT: u64 = 2_000_000_000;

/// A kernel of a program, from its descriptor and metadata.
#[derive(Clone, Debug, Default)]
pub struct KernelSpec {
    pub name: String,
    /// Address of the first instruction (absolute: the program's `text_address` plus its offset).
    pub entry: u64,
    pub vgprs: u32,
    pub sgprs: u32,
    /// Static LDS bytes per workgroup.
    pub lds_bytes: u32,
    /// Private bytes per lane.
    pub private_bytes: u32,
    /// Size of the kernel argument segment.
    pub kernarg_bytes: u32,
    /// COMPUTE_PGM_RSRC1..3 and the code properties, as in the kernel descriptor.
    pub rsrc1: u32,
    pub rsrc2: u32,
    pub rsrc3: u32,
    pub code_properties: u16,
    /// Whether it was compiled for waves of 32 lanes.
    pub wave32: bool,
}

/// What to run, on what, and where.
pub struct Launch<'a> {
    pub program: &'a Program,
    pub kernel: &'a KernelSpec,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// Work-items per workgroup in x, y, z.
    pub block: [u32; 3],
    /// LDS bytes besides the static ones.
    pub dynamic_lds: u32,
    /// The kernel argument segment, hidden arguments filled in.
    pub kernarg: &'a [u8],
    pub memory: &'a AddressSpace,
    /// Host threads to use at most.
    pub threads: usize,
    /// Instructions one wave may execute: [`DEFAULT_INSTRUCTION_LIMIT`], or less to catch hangs sooner.
    pub instruction_limit: u64,
}

/// Runs a launch to its end.
///
/// # Errors
/// The fault of the lowest workgroup that had one. Memory written before it stays written.
pub fn run(launch: &Launch) -> Result<Counters, Fault> {
    Err(Fault {
        kernel: launch.kernel.name.clone(),
        pc: launch.kernel.entry,
        instruction: String::new(),
        workgroup: [0; 3],
        wave: 0,
        kind: FaultKind::BadLaunch("the executor is not there yet".into()),
    })
}
