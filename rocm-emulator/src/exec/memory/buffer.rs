//! Untyped buffers without a stride (gfx9). Each dword of an access that lies beyond the end of the buffer
//! reads as zero and is not written.
use super::{Action, LoadFormat, Memory, MemoryResult, MemoryStep, StoreFormat};
use super::{lanes, write_lanes};
use crate::exec::FaultKind;
use crate::exec::wave::Wave;
use crate::isa::sreg;

/// Buffer resource descriptor in four scalar registers (see its table in AMD's "Instinct MI200 Instruction
/// Set Architecture").
#[derive(Clone, Copy)]
pub(super) struct Descriptor([u32; 4]);

impl Descriptor {
    pub(super) fn read<const W: usize>(wave: &Wave<W>, register: u8) -> Self {
        Self(std::array::from_fn(|word| wave.sgpr[usize::from(register & 127) + word]))
    }

    /// Returns true if ADD_TID_ENABLE is set: addresses are swizzled by lane, which only scratch memory uses.
    pub(super) fn is_scratch(self) -> bool {
        self.0[3] & 1 << 23 != 0
    }

    /// Returns true for a gfx9 buffer without a stride or swizzling. On later GPUs the upper bits are not
    /// zero: they select how bounds are checked.
    fn is_linear(self) -> bool {
        self.0[1] & 0xbfff_0000 == 0 && self.0[3] >> 28 == 0
    }

    fn base(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1] & 0xffff) << 32
    }

    fn bytes(self) -> u32 {
        self.0[2]
    }
}

/// Lanes' offsets into a buffer.
pub(super) struct Offsets<const W: usize> {
    /// Offset of each lane from the buffer's base, in bytes.
    offsets: [u32; W],
    /// Size of the buffer in bytes.
    end: u32,
    base: u64,
}

impl<const W: usize> Offsets<W> {
    /// Returns the mask of lanes whose `bytes` bytes at `distance` from their offset are within the buffer.
    pub(super) fn within(&self, distance: u32, bytes: u64) -> u64 {
        let mut mask = 0;
        for (lane, &offset) in self.offsets.iter().enumerate() {
            let last = u64::from(offset) + u64::from(distance) + bytes;
            mask |= u64::from(last <= u64::from(self.end)) << lane;
        }
        mask
    }

    pub(super) fn addresses(&self, distance: u32) -> [u64; W] {
        self.offsets.map(|offset| self.base.wrapping_add(u64::from(offset) + u64::from(distance)))
    }
}

/// Returns the parts that are bounds-checked separately: distance, register index and format of each.
fn parts<F: Copy>(format: F, bytes: u64, dword: F) -> impl Iterator<Item = (u32, usize, F)> {
    let dwords = (bytes / 4).max(1) as usize;
    (0..dwords).map(move |n| (4 * n as u32, n, if bytes < 4 { format } else { dword }))
}

impl MemoryStep {
    pub(super) fn offsets<const W: usize>(&self, wave: &Wave<W>, buffer: Descriptor) -> Offsets<W> {
        let scalar = self.base.map_or(0, |base| wave.sgpr[usize::from(base & 127)]);
        let mut offsets = [self.offset as u32; W];
        if let Some(v) = self.address {
            for (offset, low) in offsets.iter_mut().zip(&wave.vgpr[usize::from(v)].0) {
                *offset = offset.wrapping_add(*low);
            }
        }
        let end = buffer.bytes().saturating_sub(scalar);
        Offsets { offsets, end, base: buffer.base().wrapping_add(scalar.into()) }
    }

    /// Executes the instruction on a buffer that is not scratch memory.
    #[inline(never)]
    pub(super) fn run_on_buffer<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
        buffer: Descriptor,
    ) -> MemoryResult<()> {
        if !buffer.is_linear() {
            return Err(Box::new(FaultKind::UnknownInstruction));
        }
        memory.counters.global_memory += 1;
        memory.global.select(self.slot);
        let (exec, offsets) = (wave.exec(), self.offsets(wave, buffer));
        match self.action {
            Action::Load(format) => {
                let dst = usize::from(self.dst.unwrap_or(0));
                for (distance, register, part) in parts(format, format.bytes(), LoadFormat::Dword1) {
                    let within = exec & offsets.within(distance, part.bytes());
                    memory.counters.bytes_loaded += u64::from(within.count_ones()) * part.bytes();
                    let mut zeros = [0; W];
                    lanes::extend(part, &mut zeros, &wave.vgpr[dst + register].0);
                    write_lanes(&mut wave.vgpr[dst + register], &zeros, exec & !within);
                    let addresses = offsets.addresses(distance);
                    lanes::load(&mut memory.global, wave, &addresses, within, part, dst + register)?;
                }
                Ok(())
            }
            Action::Store(format) => {
                let data = usize::from(self.data[0]);
                for (distance, register, part) in parts(format, format.bytes(), StoreFormat::Dword1) {
                    let within = exec & offsets.within(distance, part.bytes());
                    memory.counters.bytes_stored += u64::from(within.count_ones()) * part.bytes();
                    let addresses = offsets.addresses(distance);
                    lanes::store(&mut memory.global, wave, &addresses, within, part, data + register)?;
                }
                Ok(())
            }
            Action::LoadToLds(format) => {
                let within = exec & offsets.within(0, format.bytes());
                memory.counters.bytes_loaded += u64::from(within.count_ones()) * format.bytes();
                let first = (wave.sgpr[usize::from(sreg::M0)] & 0xffff).wrapping_add(self.offset as u32);
                lanes::load_to_lds(memory, &offsets.addresses(0), [exec, within], format, first)
            }
            _ => Err(Box::new(FaultKind::UnknownInstruction)),
        }
    }
}
