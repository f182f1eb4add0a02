//! Happens-before order of memory accesses, for the race check. A segment is a wave's execution between two barriers,
//! which order the segments of a workgroup.
use std::collections::HashMap;

/// Execution of a wave between two barriers, or a part of it.
#[derive(Clone, Copy, Debug)]
struct Segment {
    group: u32,
    /// Number of barriers that the workgroup has passed.
    epoch: u32,
    wave: u32,
}

/// Order of an earlier access relative to the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The earlier access was by the same wave, or there was a barrier in between. Also used if there was no earlier
    /// access.
    Before,
    /// The earlier access was by another wave of the same workgroup, without a barrier in between.
    SameWorkgroup,
    /// The earlier access was by another workgroup.
    OtherWorkgroup,
}

/// A recorded access: its segment, instruction and lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Segment number, counted from 1; 0 if there was no access.
    segment: u32,
    site: u32,
}

impl Record {
    /// Returns the instruction's offset in the program's text, in bytes.
    pub(super) fn offset(self) -> u64 {
        u64::from((self.site & !COMPARE_FLAG) >> LANE_BITS) * 4
    }

    /// Returns true for a compare-and-swap.
    pub(super) fn is_compare(self) -> bool {
        self.site & COMPARE_FLAG != 0
    }

    pub(super) fn lane(self) -> u32 {
        self.site & ((1 << LANE_BITS) - 1)
    }
}

/// Bits of a site that hold the lane. Above them is the instruction's offset in dwords.
const LANE_BITS: u32 = 6;
/// Uppermost bit of a site, set for a compare-and-swap.
const COMPARE_FLAG: u32 = 1 << 31;

/// Kind of an instruction, as far as the race check distinguishes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) enum Kind {
    #[default]
    Other,
    /// An atomic load, which bypasses the wave's own caches.
    AtomicLoad,
    /// A compare-and-swap.
    Compare,
}

/// The segments of a launch.
#[derive(Debug, Default)]
pub(super) struct Clock {
    segments: Vec<Segment>,
    groups: Vec<[u32; 3]>,
    /// Number and epoch of each workgroup, by its coordinates.
    epochs: HashMap<[u32; 3], (u32, u32)>,
    /// Segment that is running.
    now: Option<Segment>,
    /// Site of the running instruction, without the lane.
    site: u32,
    kind: Kind,
}

impl Clock {
    /// Starts a segment for a wave that resumes.
    pub(super) fn resume_wave(&mut self, workgroup: [u32; 3], wave: u32) {
        let (group, epoch) = *self.epochs.entry(workgroup).or_insert_with(|| {
            self.groups.push(workgroup);
            (self.groups.len() as u32 - 1, 0)
        });
        let segment = Segment { group, epoch, wave };
        self.segments.push(segment);
        self.now = Some(segment);
    }

    /// Ends the epoch of a workgroup whose waves have all reached a barrier.
    pub(super) fn barrier(&mut self, workgroup: [u32; 3]) {
        if let Some((_, epoch)) = self.epochs.get_mut(&workgroup) {
            *epoch += 1;
        }
    }

    /// Sets the running instruction by its offset in bytes.
    pub(super) fn set_instruction(&mut self, offset: u32, kind: Kind) {
        self.site = (offset / 4) << LANE_BITS | if kind == Kind::Compare { COMPARE_FLAG } else { 0 };
        self.kind = kind;
    }

    /// Returns the kind of the running instruction.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the record of the present access of a lane.
    pub(super) fn record(&self, lane: u32) -> Record {
        Record { segment: self.segments.len() as u32, site: self.site | lane }
    }

    fn segment(&self, record: Record) -> Option<Segment> {
        self.segments.get((record.segment as usize).checked_sub(1)?).copied()
    }

    /// Returns how an earlier access is ordered with the present one.
    #[inline]
    pub(super) fn relation(&self, earlier: Record) -> Relation {
        if earlier.segment == 0 || earlier.segment as usize == self.segments.len() {
            return Relation::Before;
        }
        match (self.segment(earlier), self.now) {
            (Some(earlier), Some(now)) if earlier.group != now.group => Relation::OtherWorkgroup,
            (Some(earlier), Some(now)) if earlier.epoch == now.epoch && earlier.wave != now.wave => {
                Relation::SameWorkgroup
            }
            _ => Relation::Before,
        }
    }

    /// Adds the present access to the two records of its kind. Of all accesses that a later one may race
    /// with, it keeps two of different waves, if possible of different workgroups.
    pub(super) fn add_record(&self, records: &mut [Record; 2], record: Record) {
        let [last, other] = records;
        if self.relation(*last) != Relation::Before && self.relation(*other) != Relation::OtherWorkgroup {
            *other = *last;
        }
        *last = record;
    }

    /// Returns the workgroup and wave of an access.
    pub(super) fn workgroup_and_wave(&self, record: Record) -> ([u32; 3], u32) {
        let segment = self.segment(record);
        let group = segment.and_then(|segment| self.groups.get(segment.group as usize));
        (group.copied().unwrap_or_default(), segment.map_or(0, |segment| segment.wave))
    }
}
