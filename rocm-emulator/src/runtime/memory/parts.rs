//! The parts of an allocation. An allocation that the program uses directly is one part. An allocation that a memory pool
//! divides consists of the live suballocations; memory between them is out of bounds.
use super::super::bail;
use super::{ErrorCode, Kind, Memory, Result, Table, fail, holding};
use crate::exec::Written;
use crate::runtime::command::{Copy, Fill, Source};
use std::sync::Arc;

/// A live part.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) base: usize,
    pub(super) len: usize,
    /// The record of written bytes, if it is checked.
    pub(super) written: Option<Arc<Written>>,
    /// True if the launch of a graph has begun it.
    of_graph: bool,
}

impl Part {
    fn holds(&self, address: usize, bytes: usize) -> bool {
        address >= self.base && address - self.base < self.len && bytes <= self.len - (address - self.base)
    }
}

/// The live parts of an allocation, as of the last executed command.
#[derive(Debug)]
pub(super) struct Parts {
    /// True if a memory pool divides the allocation.
    divided: bool,
    /// Sorted by address.
    live: Vec<Part>,
}

impl Parts {
    /// Creates the single part of an undivided allocation.
    pub(super) fn whole(base: usize, len: usize, written: Option<Arc<Written>>) -> Self {
        Self { divided: false, live: vec![Part { base, len, written, of_graph: false }] }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.live.iter()
    }

    /// Returns the part that contains the byte at `address`.
    pub(super) fn find(&self, address: usize) -> Option<&Part> {
        let after = self.live.partition_point(|part| part.base <= address);
        self.live.get(after.checked_sub(1)?).filter(|part| part.holds(address, 1))
    }

    fn hold(&self, address: usize, bytes: usize) -> bool {
        self.find(address).is_some_and(|part| part.holds(address, bytes))
    }

    /// Adds a part. Returns false if it overlaps another. The first part divides the allocation.
    fn add(&mut self, part: Part) -> bool {
        if !self.divided {
            *self = Self { divided: true, live: Vec::new() };
        }
        let place = self.live.partition_point(|other| other.base < part.base + part.len);
        let below = place.checked_sub(1).and_then(|below| self.live.get(below));
        if below.is_some_and(|below| below.base + below.len > part.base) {
            return false;
        }
        self.live.insert(place, part);
        true
    }

    /// Removes the parts of graphs that overlap a range. Graphs may share memory, so that one overwrites what another
    /// has left.
    fn remove_of_graphs(&mut self, base: usize, len: usize) -> Vec<Part> {
        let overlaps = |part: &Part| part.base < base + len && base < part.base + part.len;
        let (removed, live) =
            std::mem::take(&mut self.live).into_iter().partition(|part| part.of_graph && overlaps(part));
        self.live = live;
        removed
    }

    /// Removes the part that begins at `base`, if the allocation is divided.
    fn remove(&mut self, base: usize) -> Option<Part> {
        let place = self.live.binary_search_by_key(&base, |part| part.base).ok()?;
        self.divided.then(|| self.live.remove(place))
    }
}

/// Rows of `width` bytes, which begin `pitch` bytes apart.
struct Rows {
    address: usize,
    pitch: usize,
    width: usize,
    count: usize,
}

impl Memory {
    /// Records the call that suballocates a part. Returns false if it is empty, not inside one device allocation, or
    /// overlaps a part that earlier calls suballocated and did not free.
    pub(in crate::runtime) fn reserve_part(&self, address: usize, len: usize) -> bool {
        let within = self.find(address).is_some_and(|found| {
            matches!(found.kind, Kind::Device(_)) && len <= found.len - (address - found.base)
        });
        if len == 0 || !within {
            return false;
        }
        let mut reserved = self.reserved.lock();
        let below = reserved.range(..address + len).next_back();
        if below.is_some_and(|(base, len)| base + len > address) {
            return false;
        }
        reserved.insert(address, len);
        true
    }

    /// Records the call that frees a part. Returns false if no part begins there.
    pub(in crate::runtime) fn release_part(&self, address: usize) -> bool {
        self.reserved.lock().remove(&address).is_some()
    }

    /// Removes the parts of an allocation that is freed.
    pub(super) fn forget_parts(&self, base: usize, len: usize) {
        let mut reserved = self.reserved.lock();
        let bases: Vec<usize> = reserved.range(base..base + len).map(|(base, _)| *base).collect();
        for base in bases {
            reserved.remove(&base);
        }
        self.captured.lock().retain(|address| !(base..base + len).contains(address));
    }

    /// Records that a capture contains the begin of a part, so that it begins only when the graph is launched.
    pub(in crate::runtime) fn note_captured_part(&self, address: usize) {
        self.captured.lock().insert(address);
    }

    /// Begins the life of a part, in stream order. If it is part of a graph, the parts that launches of graphs have left
    /// there end.
    ///
    /// # Errors
    /// `IllegalAddress` if it overlaps a part that another stream has not freed yet, or if the allocation was freed.
    pub(in crate::runtime) fn begin_part(&self, address: usize, len: usize, of_graph: bool) -> Result<()> {
        let running = self.running();
        let mut table = self.table.write();
        let Some((base, allocation)) = holding_mut(&mut table, address) else {
            bail!(IllegalAddress, "a suballocation at 0x{address:x} is not inside a live allocation");
        };
        let written = self.checks.init.then(|| Arc::new(Written::new(len as u64)));
        if !allocation.parts.divided {
            // These addresses may be recorded as freed from earlier allocations.
            self.freed.forget(base as u64, allocation.len as u64);
        }
        if of_graph {
            for part in allocation.parts.remove_of_graphs(address, len) {
                self.freed.note(part.base as u64, part.len as u64);
            }
        }
        if !allocation.parts.add(Part { base: address, len, written, of_graph }) {
            bail!(
                IllegalAddress,
                "a suballocation of {len} bytes at 0x{address:x} overlaps a live part: nothing orders the stream \
                     that frees that part with this one"
            );
        }
        drop(table);
        self.touch();
        if let Some(byte) = self.poison {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: the part is inside a live allocation, which stays mapped while `running` is held, and the
            // runtime keeps no references into device memory.
            unsafe { target.write_bytes(byte, len) };
        }
        drop(running);
        Ok(())
    }

    /// Ends the life of a part, in stream order.
    ///
    /// # Errors
    /// `IllegalAddress` if the stream that suballocates it has not executed that command yet.
    pub(in crate::runtime) fn end_part(&self, address: usize) -> Result<()> {
        let mut table = self.table.write();
        // The allocation may have been freed together with its parts.
        let Some((_, allocation)) = holding_mut(&mut table, address) else { return Ok(()) };
        let Some(part) = allocation.parts.remove(address) else {
            if self.captured.lock().contains(&address) {
                return Ok(());
            }
            bail!(
                IllegalAddress,
                "the part at 0x{address:x} is freed before it is allocated: nothing orders the stream that \
                     allocates it with this one"
            );
        };
        drop(table);
        self.freed.note(part.base as u64, part.len as u64);
        self.touch();
        Ok(())
    }

    /// Ends the life of a part if it is live. A graph does so for the parts that its previous launch left.
    pub(in crate::runtime) fn forget_part(&self, address: usize) {
        let mut table = self.table.write();
        let removed =
            holding_mut(&mut table, address).and_then(|(_, allocation)| allocation.parts.remove(address));
        drop(table);
        if let Some(part) = removed {
            self.freed.note(part.base as u64, part.len as u64);
            self.touch();
        }
    }

    /// Checks that a copy stays inside live parts.
    ///
    /// # Errors
    /// `IllegalAddress`, with the memory at this address.
    pub(super) fn check_copy_bounds(&self, copy: &Copy) -> Result<()> {
        let Copy { target, target_pitch, source_pitch, width, rows: count, .. } = *copy;
        self.check_rows("a copy to", Rows { address: target, pitch: target_pitch, width, count })?;
        match copy.source {
            Source::Address(address) => {
                self.check_rows("a copy from", Rows { address, pitch: source_pitch, width, count })
            }
            Source::Captured(_) => Ok(()),
        }
    }

    /// Checks that a fill stays inside live parts.
    ///
    /// # Errors
    /// The error of [`Self::check_copy_bounds`].
    pub(super) fn check_fill_bounds(&self, fill: &Fill) -> Result<()> {
        let width = fill.count * fill.width;
        self.check_rows("a fill of", Rows { address: fill.target, pitch: width, width, count: 1 })
    }

    fn check_rows(&self, what: &str, rows: Rows) -> Result<()> {
        let Rows { address, pitch, width, count } = rows;
        let (kind, outside) = {
            let table = self.table.read();
            // Unknown memory is pageable host memory.
            let Some((_, allocation)) = holding(&table, address) else { return Ok(()) };
            let parts = &allocation.parts;
            if parts.hold(address, (count - 1) * pitch + width) {
                return Ok(());
            }
            let mut places = (0..count).map(|row| address + row * pitch);
            match places.find(|place| !parts.hold(*place, width)) {
                Some(place) => (allocation.kind, place),
                None => return Ok(()),
            }
        };
        let space = self.address_space(kind.device().unwrap_or(0), &[]);
        let (wrong, there) = space.outside(outside as u64, width as u64);
        fail(
            ErrorCode::IllegalAddress,
            format!("{wrong}: {what} {width} bytes at 0x{outside:x}\n  memory  {there}"),
        )
    }
}

fn holding_mut(table: &mut Table, address: usize) -> Option<(usize, &mut super::Allocation)> {
    let (base, allocation) = table.live.range_mut(..=address).next_back()?;
    (address - base < allocation.len).then_some((*base, allocation))
}
