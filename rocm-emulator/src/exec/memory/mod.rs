//! Memory instructions: FLAT, GLOBAL, SCRATCH, DS, untyped buffers and scalar loads.
//!
//! A [`region::Region`] checks a lane's address and converts it to a host pointer. The regions are global
//! memory, the workgroup's LDS and the lane's private memory. Data movement ([`lanes`]) and atomics
//! ([`atomics`]) are common to all regions.

// Loops index several arrays by lane.
#![allow(clippy::needless_range_loop)]

mod accesses;
mod atomics;
mod buffer;
mod contiguous;
mod exchange;
mod lanes;
mod prepare;
mod region;
mod scalar_load;

use super::check::{Kind, SharedChecker};
use super::vector::each;
use super::wave::{Lanes, Wave};
use super::{Access, Counters, FaultKind, PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::sreg;
pub(super) use accesses::{Accesses, MemoryKind};
use atomics::AtomicOperation;
use buffer::Descriptor;
use exchange::Exchange;
use lanes::{LoadFormat, StoreFormat};
pub(super) use prepare::prepare;
use region::Region;
pub(super) use region::{Global, KERNARG_SURROUNDINGS, Lds, Private, Snapshot};
pub(super) use scalar_load::{ScalarLoad, prepare as prepare_scalar};

/// Result of a memory access. The fault is boxed because it is rare and large.
pub(super) type MemoryResult<T> = Result<T, Box<FaultKind>>;

/// Memory of a workgroup.
pub(super) struct Memory<'a> {
    pub(super) global: Global<'a>,
    pub(super) lds: Lds,
    pub(super) counters: Counters,
    /// Optional checks, called by the regions.
    pub(super) checker: Option<SharedChecker>,
    /// Result of [`wide_vectors`] on this host.
    pub(super) wide_vectors: bool,
}

impl Memory<'_> {
    /// Decides the possible races of an instruction after it has stored its data.
    pub(super) fn check_races(&self) -> MemoryResult<()> {
        self.checker.as_ref().map_or(Ok(()), |checker| checker.borrow_mut().check_races())
    }
}

/// Returns true if the host supports all features that [`MemoryStep::run_on_wide_vectors`] needs.
#[cfg(target_arch = "x86_64")]
pub(super) fn wide_vectors() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn wide_vectors() -> bool {
    false
}

/// Address space of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Space {
    Global,
    Flat,
    Lds,
    Private,
    /// Buffer whose descriptor starts at scalar register `resource`: either global memory, or private memory,
    /// for which the scalar offset counts the bytes of all lanes.
    Buffer {
        resource: u8,
    },
}

/// Operation at the address.
#[derive(Clone, Copy)]
enum Action {
    Load(LoadFormat),
    Store(StoreFormat),
    /// Copies a dword per lane from global memory to LDS (gfx9).
    LoadToLds(LoadFormat),
    /// Two-address forms: the distance of each access from the lane's address, in bytes.
    LoadTwo(LoadFormat, [u32; 2]),
    StoreTwo(StoreFormat, [u32; 2]),
    Atomic(AtomicOperation),
    AtomicTwo(AtomicOperation, [u32; 2]),
    /// Moves data between lanes without memory access, or uses the append/consume counter.
    Exchange(Exchange),
}

/// A prepared vector memory instruction.
#[derive(Clone, Copy)]
pub(super) struct MemoryStep {
    space: Space,
    /// Set for a compare-and-swap.
    is_compare: bool,
    action: Action,
    /// Vector register (pair) with the lanes' addresses.
    address: Option<u16>,
    /// Scalar register (pair) that is added to the address.
    base: Option<u8>,
    offset: i32,
    /// Data registers. The second is the second operand of LDS instructions; elsewhere it follows the first.
    data: [u16; 2],
    /// Destination of loads and returning atomics.
    dst: Option<u16>,
    /// Set for an atomic load, which bypasses the wave's own caches.
    pub(super) is_atomic_load: bool,
    /// Result of [`contiguous::access_shift`].
    access_shift: Option<u8>,
    /// Entry of the instruction in the range cache.
    slot: u8,
}

impl MemoryStep {
    /// Assigns an entry of the range cache.
    pub(super) fn with_cache_slot(self, slot: u8) -> Self {
        Self { slot, ..self }
    }

    /// Returns the instruction's kind for the race check.
    pub(super) fn kind(&self) -> Kind {
        match (self.is_atomic_load, self.is_compare) {
            (true, _) => Kind::AtomicLoad,
            (_, true) => Kind::Compare,
            _ => Kind::Other,
        }
    }

    #[inline]
    pub(super) fn run<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
        private: &mut Private,
    ) -> MemoryResult<()> {
        #[cfg(target_arch = "x86_64")]
        if memory.wide_vectors {
            // SAFETY: `wide_vectors` says that the host has the features.
            return unsafe { self.run_on_wide_vectors(wave, memory, private) };
        }
        self.run_on_any(wave, memory, private)
    }

    /// # Safety
    /// [`wide_vectors`] must be true.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    unsafe fn run_on_wide_vectors<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
        private: &mut Private,
    ) -> MemoryResult<()> {
        self.run_on_any(wave, memory, private)
    }

    #[inline(always)]
    fn run_on_any<const W: usize>(
        &self,
        wave: &mut Wave<W>,
        memory: &mut Memory,
        private: &mut Private,
    ) -> MemoryResult<()> {
        let exec = wave.exec();
        match self.space {
            Space::Global => memory.counters.global_memory += 1,
            Space::Flat => memory.counters.global_memory += 1,
            Space::Lds => memory.counters.lds += 1,
            Space::Private => memory.counters.scratch += 1,
            Space::Buffer { resource } => {
                let buffer = Descriptor::read(wave, resource);
                if !buffer.is_scratch() {
                    return self.run_on_buffer(wave, memory, buffer);
                }
                memory.counters.scratch += 1;
            }
        }
        if self.run_contiguous(wave, memory) {
            return Ok(());
        }
        match self.action {
            Action::Exchange(exchange) => return exchange.run(self, wave, &mut memory.lds),
            Action::LoadToLds(format) => return self.load_to_lds(wave, memory, format),
            _ => {}
        }
        if exec == 0 {
            return Ok(());
        }
        let mut addresses = [0; W];
        self.addresses(wave, &mut addresses);
        memory.global.select(self.slot);
        let [in_global, in_lds, in_private] = match self.space {
            Space::Global => [exec, 0, 0],
            Space::Lds => [0, exec, 0],
            Space::Private | Space::Buffer { .. } => [0, 0, exec],
            Space::Flat => split_by_aperture(&mut addresses, exec),
        };
        if in_global != 0 {
            self.count(memory, in_global);
            self.access(&mut memory.global, wave, &addresses, in_global)?;
        }
        if in_lds != 0 {
            self.access(&mut memory.lds, wave, &addresses, in_lds)?;
        }
        if in_private != 0 {
            self.access(private, wave, &addresses, in_private)?;
        }
        Ok(())
    }

    /// Copies a dword per lane from global memory to LDS, starting at M0 plus the offset.
    #[inline(never)]
    fn load_to_lds<const W: usize>(
        &self,
        wave: &Wave<W>,
        memory: &mut Memory,
        format: LoadFormat,
    ) -> MemoryResult<()> {
        let exec = wave.exec();
        let mut addresses = [0; W];
        self.addresses(wave, &mut addresses);
        memory.global.select(self.slot);
        self.count(memory, exec);
        let first = (wave.sgpr[usize::from(sreg::M0)] & 0xffff).wrapping_add(self.offset as u32);
        lanes::load_to_lds(memory, &addresses, [exec; 2], format, first)
    }

    /// Computes the lanes' addresses. Those of inactive lanes are meaningless.
    #[inline(always)]
    fn addresses<const W: usize>(&self, wave: &Wave<W>, out: &mut [u64; W]) {
        let offset = i64::from(self.offset) as u64;
        match (self.space, self.address, self.base) {
            (Space::Global | Space::Flat, Some(v), None) => {
                let (low, high) = (&wave.vgpr[usize::from(v)].0, &wave.vgpr[usize::from(v) + 1].0);
                for lane in 0..W {
                    out[lane] = (u64::from(low[lane]) | u64::from(high[lane]) << 32).wrapping_add(offset);
                }
            }
            (Space::Global | Space::Flat, v, base) => {
                let base = base.map_or(0, |base| wave.sgpr64(base)).wrapping_add(offset);
                match v {
                    Some(v) => {
                        let low = &wave.vgpr[usize::from(v)].0;
                        for lane in 0..W {
                            out[lane] = base.wrapping_add(u64::from(low[lane]));
                        }
                    }
                    None => *out = [base; W],
                }
            }
            // These spaces have 32-bit addresses.
            (Space::Lds | Space::Private | Space::Buffer { .. }, v, base) => {
                let base = base.map_or(0, |base| wave.sgpr[usize::from(base & 127)]);
                let swizzled = matches!(self.space, Space::Buffer { .. });
                let base = if swizzled { base / W as u32 } else { base };
                let base = base.wrapping_add(offset as u32);
                match v {
                    Some(v) => {
                        let low = &wave.vgpr[usize::from(v)].0;
                        for lane in 0..W {
                            out[lane] = u64::from(low[lane].wrapping_add(base));
                        }
                    }
                    None => *out = [u64::from(base); W],
                }
            }
        }
    }

    #[inline(always)]
    fn count(&self, memory: &mut Memory, exec: u64) {
        let lanes = u64::from(exec.count_ones());
        match self.action {
            Action::Load(format) | Action::LoadToLds(format) => {
                memory.counters.bytes_loaded += lanes * format.bytes();
            }
            Action::Store(format) => memory.counters.bytes_stored += lanes * format.bytes(),
            Action::Atomic(operation) => {
                memory.counters.bytes_loaded += lanes * operation.bytes();
                memory.counters.bytes_stored += lanes * operation.bytes();
            }
            // These actions only access LDS or no memory.
            Action::LoadTwo(..) | Action::StoreTwo(..) | Action::AtomicTwo(..) | Action::Exchange(_) => {}
        }
    }

    #[inline(always)]
    fn access<const W: usize, R: Region>(
        &self,
        region: &mut R,
        wave: &mut Wave<W>,
        addresses: &[u64; W],
        exec: u64,
    ) -> MemoryResult<()> {
        let dst = usize::from(self.dst.unwrap_or(0));
        let [data0, data1] = self.data.map(usize::from);
        match self.action {
            Action::Load(format) => lanes::load(region, wave, addresses, exec, format, dst),
            Action::Store(format) => lanes::store(region, wave, addresses, exec, format, data0),
            Action::LoadTwo(format, distances) if R::IS_LDS => {
                let second = dst + format.registers();
                for (distance, dst) in distances.into_iter().zip([dst, second]) {
                    lanes::load(region, wave, &add_distance(addresses, distance), exec, format, dst)?;
                }
                Ok(())
            }
            Action::StoreTwo(format, distances) if R::IS_LDS => {
                for (distance, data) in distances.into_iter().zip([data0, data1]) {
                    lanes::store(region, wave, &add_distance(addresses, distance), exec, format, data)?;
                }
                Ok(())
            }
            Action::Atomic(operation) => {
                operation.run(region, wave, addresses, exec, [data0, data1], self.dst)
            }
            Action::AtomicTwo(operation, distances) if R::IS_LDS => {
                let second = self.dst.map(|dst| dst + operation.registers());
                // Read both operands before the first result is written.
                let operands = [operation.operand(wave, data0), operation.operand(wave, data1)];
                for ((distance, operand), dst) in distances.into_iter().zip(operands).zip([self.dst, second])
                {
                    operation.run_with(
                        region,
                        wave,
                        &add_distance(addresses, distance),
                        exec,
                        &operand,
                        &operand,
                        dst,
                    )?;
                }
                Ok(())
            }
            // Two-address forms exist only for LDS; exchanges and loads to LDS are handled by the caller.
            Action::LoadTwo(..)
            | Action::StoreTwo(..)
            | Action::AtomicTwo(..)
            | Action::Exchange(_)
            | Action::LoadToLds(_) => Ok(()),
        }
    }
}

/// Splits lanes with flat addresses into those of global, LDS and private memory, and converts addresses of
/// the latter two to offsets.
#[inline(always)]
fn split_by_aperture<const W: usize>(addresses: &mut [u64; W], exec: u64) -> [u64; 3] {
    let (mut in_lds, mut in_private) = (0, 0);
    for (lane, address) in addresses.iter_mut().enumerate() {
        let aperture = *address & !u64::from(u32::MAX);
        if aperture == SHARED_APERTURE || aperture == PRIVATE_APERTURE {
            *address &= u64::from(u32::MAX);
            let mask = if aperture == SHARED_APERTURE { &mut in_lds } else { &mut in_private };
            *mask |= exec & 1 << lane;
        }
    }
    [exec & !(in_lds | in_private), in_lds, in_private]
}

/// Adds a distance to 32-bit addresses.
#[inline(always)]
fn add_distance<const W: usize>(addresses: &[u64; W], distance: u32) -> [u64; W] {
    each(addresses, |address| u64::from((address as u32).wrapping_add(distance)))
}

/// Writes the active lanes of a register.
#[inline(always)]
fn write_lanes<const W: usize>(register: &mut Lanes<W>, values: &[u32; W], exec: u64) {
    if exec == Wave::<W>::full() {
        register.0 = *values;
    } else {
        for lane in 0..W {
            if exec >> lane & 1 != 0 {
                register.0[lane] = values[lane];
            }
        }
    }
}

#[cfg(test)]
mod tests;
