//! Which memory an instruction is about to touch: for those who look on.
use super::{Access, Action, Descriptor, MemoryStep, Space, by_aperture, moved};
use crate::exec::wave::Wave;

/// The memory that lanes touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum MemoryKind {
    Global,
    Lds,
    Private,
}

/// One access of the lanes of a wave.
pub(in crate::exec) struct Touch<'a, const W: usize> {
    pub(in crate::exec) memory_kind: MemoryKind,
    pub(in crate::exec) access: Access,
    /// The lanes that take part; the others' addresses are meaningless.
    pub(in crate::exec) lanes: u64,
    pub(in crate::exec) addresses: &'a [u64; W],
    /// Bytes of each lane.
    pub(in crate::exec) bytes: u64,
}

impl MemoryStep {
    /// Shows the accesses that the instruction will make. Those with two addresses make two; exchanges of lanes
    /// touch no memory; the append counter and what loads to LDS write there are left out.
    pub(in crate::exec) fn touches<const W: usize>(&self, wave: &Wave<W>, mut see: impl FnMut(Touch<W>)) {
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
                    let places = self.places(wave, buffer);
                    addresses = places.addresses(0);
                    [exec & places.within(0, bytes), 0, 0]
                }
            }
            Space::Private => [0, 0, exec],
            Space::Flat => by_aperture(&mut addresses, exec),
        };
        for (memory_kind, lanes) in
            [MemoryKind::Global, MemoryKind::Lds, MemoryKind::Private].into_iter().zip(memory_kinds)
        {
            if lanes == 0 {
                continue;
            }
            match distances {
                None => see(Touch { memory_kind, access, lanes, addresses: &addresses, bytes }),
                Some(distances) => {
                    for distance in distances {
                        let addresses = &moved(&addresses, distance);
                        see(Touch { memory_kind, access, lanes, addresses, bytes });
                    }
                }
            }
        }
    }
}
