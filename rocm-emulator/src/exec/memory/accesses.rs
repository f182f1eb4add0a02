//! Enumeration of the memory accesses that an instruction is about to make, for the profiler.
use super::{Access, Action, Descriptor, MemoryStep, Space, add_distance, split_by_aperture};
use crate::exec::wave::Wave;

/// Kind of memory that lanes access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum MemoryKind {
    Global,
    Lds,
    Private,
}

/// One memory access by the lanes of a wave.
pub(in crate::exec) struct Accesses<'a, const W: usize> {
    pub(in crate::exec) memory_kind: MemoryKind,
    pub(in crate::exec) access: Access,
    /// Mask of the lanes that take part. The other lanes' addresses are meaningless.
    pub(in crate::exec) lanes: u64,
    pub(in crate::exec) addresses: &'a [u64; W],
    /// Bytes per lane.
    pub(in crate::exec) bytes: u64,
}

impl MemoryStep {
    /// Calls `f` for each access that the instruction will make. Two-address forms make two; exchanges
    /// between lanes make none. The append counter and the stores of loads to LDS are left out.
    pub(in crate::exec) fn accesses<const W: usize>(&self, wave: &Wave<W>, mut f: impl FnMut(Accesses<W>)) {
        let exec = wave.exec();
        let (access, bytes, distances) = match self.action {
            Action::Load(format) | Action::LoadToLds(format) => (Access::Load, format.bytes(), None),
            Action::Store(format) => (Access::Store, format.bytes(), None),
            Action::Atomic(operation) => (Access::Atomic, operation.bytes(), None),
            Action::LoadTwo(format, distances) => (Access::Load, format.bytes(), Some(distances)),
            Action::StoreTwo(format, distances) => (Access::Store, format.bytes(), Some(distances)),
            Action::AtomicTwo(operation, distances) => (Access::Atomic, operation.bytes(), Some(distances)),
            Action::Exchange(_) => return,
        };
        let mut addresses = [0; W];
        self.addresses(wave, &mut addresses);
        let memory_kinds = match self.space {
            Space::Global => [exec, 0, 0],
            Space::Lds => [0, exec, 0],
            Space::Buffer { resource } => {
                let buffer = Descriptor::read(wave, resource);
                if buffer.is_scratch() {
                    [0, 0, exec]
                } else {
                    let offsets = self.offsets(wave, buffer);
                    addresses = offsets.addresses(0);
                    [exec & offsets.within(0, bytes), 0, 0]
                }
            }
            Space::Private => [0, 0, exec],
            Space::Flat => split_by_aperture(&mut addresses, exec),
        };
        for (memory_kind, lanes) in
            [MemoryKind::Global, MemoryKind::Lds, MemoryKind::Private].into_iter().zip(memory_kinds)
        {
            if lanes == 0 {
                continue;
            }
            match distances {
                None => f(Accesses { memory_kind, access, lanes, addresses: &addresses, bytes }),
                Some(distances) => {
                    for distance in distances {
                        let addresses = &add_distance(&addresses, distance);
                        f(Accesses { memory_kind, access, lanes, addresses, bytes });
                    }
                }
            }
        }
    }
}
