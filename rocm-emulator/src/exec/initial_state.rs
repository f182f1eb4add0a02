//! Register values of a wave at its start, after the AMDHSA ABI ("Initial Kernel Execution State" in LLVM's
//! "User Guide for AMDGPU Backend").
use super::wave::{FIRST_AGPR, Lanes, Mode, VGPRS, VGPRS_AND_AGPRS, Wave};
use super::{KernelSpec, Launch};
use crate::isa::{Family, sreg};

/// Kernel code properties: bits for the user SGPRs that the kernel needs, in this order.
mod property {
    pub const PRIVATE_SEGMENT_BUFFER: u16 = 1 << 0;
    pub const DISPATCH_PTR: u16 = 1 << 1;
    pub const QUEUE_PTR: u16 = 1 << 2;
    pub const KERNARG_SEGMENT_PTR: u16 = 1 << 3;
    pub const DISPATCH_ID: u16 = 1 << 4;
    pub const FLAT_SCRATCH_INIT: u16 = 1 << 5;
    pub const PRIVATE_SEGMENT_SIZE: u16 = 1 << 6;
    pub const DYNAMIC_STACK: u16 = 1 << 11;
}

/// Additional private bytes of a kernel with recursion or indirect calls.
const DYNAMIC_STACK_BYTES: u32 = 16 << 10;

/// Returns the private bytes per lane.
pub(super) fn private_bytes(kernel: &KernelSpec) -> u32 {
    let dynamic = kernel.code_properties & property::DYNAMIC_STACK != 0;
    kernel.private_bytes.saturating_add(if dynamic { DYNAMIC_STACK_BYTES } else { 0 })
}

/// AQL packet that the dispatch pointer points to (HSA runtime specification, kernel dispatch packet).
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct DispatchPacket {
    header: u16,
    setup: u16,
    workgroup_size: [u16; 3],
    reserved0: u16,
    grid_size: [u32; 3],
    private_segment_size: u32,
    group_segment_size: u32,
    kernel_object: u64,
    kernarg_address: u64,
    reserved2: u64,
    completion_signal: u64,
}

impl DispatchPacket {
    pub(super) fn new(launch: &Launch, kernarg_address: u64) -> Self {
        let work_items = |axis: usize| launch.grid[axis].saturating_mul(launch.block[axis]);
        Self {
            // Packet type: kernel dispatch.
            header: 2,
            setup: 3,
            workgroup_size: launch.block.map(|size| size as u16),
            grid_size: [work_items(0), work_items(1), work_items(2)],
            private_segment_size: private_bytes(launch.kernel),
            group_segment_size: launch.kernel.lds_bytes + launch.dynamic_lds,
            kernarg_address,
            ..Self::default()
        }
    }
}

/// Buffer descriptor of gfx908's and gfx10's scratch memory: swizzled by lane (ADD_TID_ENABLE), unlimited.
const SCRATCH_BUFFER: [u32; 4] = [0, 0, u32::MAX, 1 << 23];

/// Returns the numbers of the kernel's vector registers and accumulation registers.
fn register_counts(family: Family, kernel: &KernelSpec) -> (usize, usize) {
    let registers = kernel.vgprs as usize;
    match family {
        // There are two register files of equal size.
        Family::Cdna1 => (registers, registers),
        // One register file, whose end holds the accumulation registers (ACCUM_OFFSET).
        _ if family.has_unified_registers() => {
            let vgprs = registers.min((kernel.rsrc3 as usize & 0x3f) * 4 + 4);
            (vgprs, registers - vgprs)
        }
        _ => (registers, 0),
    }
}

/// Addresses passed in user SGPRs.
pub(super) struct Pointers {
    pub(super) packet: u64,
    pub(super) kernarg: u64,
}

/// Initial registers that all waves of a launch share, and the positions of those that differ.
pub(super) struct InitialState {
    sgpr: [u32; 128],
    mode: Mode,
    /// First SGPR after the user SGPRs, and which of workgroup x, y, z and info follow.
    system: usize,
    system_enabled: [bool; 4],
    /// Set if the workgroup's coordinates are in TTMP registers (gfx12).
    in_ttmp: bool,
    /// Number of axes of the work-item id.
    id_axes: u32,
    /// Set if each axis has its own register (gfx906, gfx908, gfx10). Otherwise v0 holds all axes, 10 bits each.
    separate_ids: bool,
    /// Allocated registers, then the kernel's vector registers and accumulation registers among them.
    registers: usize,
    vgprs: usize,
    agprs: usize,
}

impl InitialState {
    pub(super) fn new(family: Family, kernel: &KernelSpec, pointers: &Pointers) -> Self {
        let mut sgpr = [0u32; 128];
        let mut next = 0;
        let mut user = |property: u16, values: &[u32]| {
            if kernel.code_properties & property != 0 {
                sgpr[next..next + values.len()].copy_from_slice(values);
                next += values.len();
            }
        };
        let pair = |address: u64| [address as u32, (address >> 32) as u32];
        // Private addresses are relative to scratch memory, so a scratch buffer's base is 0.
        user(property::PRIVATE_SEGMENT_BUFFER, &SCRATCH_BUFFER);
        user(property::DISPATCH_PTR, &pair(pointers.packet));
        user(property::QUEUE_PTR, &[0; 2]);
        user(property::KERNARG_SEGMENT_PTR, &pair(pointers.kernarg));
        user(property::DISPATCH_ID, &[0; 2]);
        // gfx908, gfx90a and gfx10 kernels set FLAT_SCRATCH to this base.
        user(property::FLAT_SCRATCH_INIT, &[0; 2]);
        user(property::PRIVATE_SEGMENT_SIZE, &[private_bytes(kernel)]);
        let rsrc1 = kernel.rsrc1;
        let bits = |at: u32, count: u32| (rsrc1 >> at & ((1 << count) - 1)) as u8;
        let mode = Mode {
            round_32: bits(12, 2),
            round_16_64: bits(14, 2),
            denorm_32: bits(16, 2),
            denorm_16_64: bits(18, 2),
            // gfx12 has no such modes: it clamps NaN to zero, and IEEE minima have separate names.
            dx10_clamp: family == Family::Rdna4 || bits(21, 1) != 0,
            ieee: family != Family::Rdna4 && bits(23, 1) != 0,
        };
        let rsrc2 = kernel.rsrc2;
        let (vgprs, agprs) = register_counts(family, kernel);
        Self {
            sgpr,
            mode,
            system: (rsrc2 >> 1 & 31) as usize,
            system_enabled: [7, 8, 9, 10].map(|bit| rsrc2 >> bit & 1 != 0),
            in_ttmp: family == Family::Rdna4,
            id_axes: 1 + (rsrc2 >> 11 & 3).min(2),
            separate_ids: matches!(family, Family::Gcn5 | Family::Cdna1 | Family::Rdna2),
            registers: if family.is_gfx9() { VGPRS_AND_AGPRS } else { VGPRS },
            vgprs: vgprs.clamp(1, VGPRS),
            agprs: agprs.min(VGPRS),
        }
    }

    /// Initializes the registers of wave `index` of a workgroup.
    pub(super) fn apply<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        index: u32,
        workgroup: [u32; 3],
        block: [u32; 3],
    ) {
        wave.sgpr = self.sgpr;
        wave.scc = false;
        wave.mode = self.mode;
        let values = [workgroup[0], workgroup[1], workgroup[2], 0];
        if self.in_ttmp {
            let ttmp = usize::from(sreg::TTMP0);
            wave.sgpr[ttmp + 9] = workgroup[0];
            wave.sgpr[ttmp + 7] = workgroup[1] & 0xffff | workgroup[2] << 16;
        } else {
            let enabled = values.into_iter().zip(self.system_enabled).filter(|(_, enabled)| *enabled);
            for (at, (value, _)) in enabled.enumerate() {
                wave.sgpr[self.system + at] = value;
            }
        }
        wave.vgpr.resize(self.registers, Lanes::splat(0));
        // The compiler turns this loop over arrays into one memset.
        wave.vgpr[..self.vgprs].iter_mut().for_each(|register| register.0 = [0; W]);
        let first = usize::from(FIRST_AGPR);
        if self.agprs > 0 {
            wave.vgpr[first..first + self.agprs].iter_mut().for_each(|register| register.0 = [0; W]);
        }
        let exec = self.set_ids(&mut wave.vgpr[0], index * W as u32, block);
        if self.separate_ids {
            let packed = wave.vgpr[0];
            for axis in 0..3 {
                wave.vgpr[axis] = Lanes(packed.0.map(|ids| ids >> (10 * axis) & 0x3ff));
            }
        }
        wave.set_sgpr64(sreg::EXEC_LO, exec);
    }

    /// Writes the work-item ids, 10 bits per axis, and returns the mask of lanes that have a work-item.
    fn set_ids<const W: usize>(
        &self,
        ids: &mut Lanes<W>,
        first: u32,
        [x_size, y_size, z_size]: [u32; 3],
    ) -> u64 {
        let count = (x_size * y_size * z_size - first).min(W as u32);
        if count == W as u32 && first + count <= x_size {
            // The whole wave lies in the first row.
            for (lane, id) in ids.0.iter_mut().enumerate() {
                *id = first + lane as u32;
            }
            return Wave::<W>::full();
        }
        let (mut x, mut y, mut z) = (first % x_size, first / x_size % y_size, first / x_size / y_size);
        for id in ids.0.iter_mut().take(count as usize) {
            *id = x;
            if self.id_axes > 1 {
                *id |= y << 10;
            }
            if self.id_axes > 2 {
                *id |= z << 20;
            }
            x += 1;
            if x == x_size {
                (x, y) = (0, y + 1);
            }
            if y == y_size {
                (y, z) = (0, z + 1);
            }
        }
        if count == 64 { u64::MAX } else { (1 << count) - 1 }
    }
}
