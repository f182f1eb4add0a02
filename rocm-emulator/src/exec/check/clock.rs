//! Who runs when: a wave's run between two barriers is a segment, and barriers order a workgroup's segments.
use std::collections::HashMap;

/// A wave's run between two barriers, or a part of it.
#[derive(Clone, Copy, Debug)]
struct Segment {
    group: u32,
    /// Barriers that the workgroup had passed.
    epoch: u32,
    wave: u32,
}

/// Where an earlier access stands to the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// Before it: of the same wave, or a barrier lies between them. Or there was none.
    Before,
    /// Another wave of the workgroup, and no barrier between them.
    Beside,
    /// Another workgroup.
    Elsewhere,
}

/// An access that is remembered: by which segment, by which instruction and lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Counted from 1; 0 if there was none.
    segment: u32,
    site: u32,
}

impl Record {
    /// The instruction's offset in the text.
    pub(super) fn offset(self) -> u64 {
        u64::from((self.site & !COMPARES) >> LANE_BITS) * 4
    }

    /// Whether it was a compare-and-swap.
    pub(super) fn is_compare(self) -> bool {
        self.site & COMPARES != 0
    }

    pub(super) fn lane(self) -> u32 {
        self.site & ((1 << LANE_BITS) - 1)
    }
}

/// 64 lanes; above them in a site is the instruction's offset in dwords.
const LANE_BITS: u32 = 6;
/// The uppermost bit of a site.
const COMPARES: u32 = 1 << 31;

/// What the race check has to know of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) enum Kind {
    #[default]
    Other,
    /// An atomic load: one that other caches than the wave's own have to answer.
    AtomicLoad,
    /// A compare-and-swap.
    Compare,
}

/// The segments of a launch.
#[derive(Debug, Default)]
pub(super) struct Clock {
    segments: Vec<Segment>,
    groups: Vec<[u32; 3]>,
    /// Number and epoch of each workgroup.
    epochs: HashMap<[u32; 3], (u32, u32)>,
    /// The segment that runs.
    now: Option<Segment>,
    /// The upper bits of the instruction's site.
    site: u32,
    kind: Kind,
}

impl Clock {
    /// A wave goes on.
    pub(super) fn turn(&mut self, workgroup: [u32; 3], wave: u32) {
        let (group, epoch) = *self.epochs.entry(workgroup).or_insert_with(|| {
            self.groups.push(workgroup);
            (self.groups.len() as u32 - 1, 0)
        });
        let segment = Segment { group, epoch, wave };
        self.segments.push(segment);
        self.now = Some(segment);
    }

    /// All waves of a workgroup have met.
    pub(super) fn barrier(&mut self, workgroup: [u32; 3]) {
        if let Some((_, epoch)) = self.epochs.get_mut(&workgroup) {
            *epoch += 1;
        }
    }

    /// The instruction that runs.
    pub(super) fn at(&mut self, offset: u32, kind: Kind) {
        self.site = (offset / 4) << LANE_BITS | if kind == Kind::Compare { COMPARES } else { 0 };
        self.kind = kind;
    }

    /// What it is.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The present access of a lane.
    pub(super) fn record(&self, lane: u32) -> Record {
        Record { segment: self.segments.len() as u32, site: self.site | lane }
    }

    fn segment(&self, record: Record) -> Option<Segment> {
        self.segments.get((record.segment as usize).checked_sub(1)?).copied()
    }

    /// Where an earlier access stands to the present one.
    #[inline]
    pub(super) fn relation(&self, earlier: Record) -> Relation {
        if earlier.segment == 0 || earlier.segment as usize == self.segments.len() {
            return Relation::Before;
        }
        match (self.segment(earlier), self.now) {
            (Some(earlier), Some(now)) if earlier.group != now.group => Relation::Elsewhere,
            (Some(earlier), Some(now)) if earlier.epoch == now.epoch && earlier.wave != now.wave => {
                Relation::Beside
            }
            _ => Relation::Before,
        }
    }

    /// Remembers the present access beside others of its kind: of all that a later access may race with, there
    /// stay two by different waves, if possible by different workgroups.
    pub(super) fn remember(&self, records: &mut [Record; 2], record: Record) {
        let [last, other] = records;
        if self.relation(*last) != Relation::Before && self.relation(*other) != Relation::Elsewhere {
            *other = *last;
        }
        *last = record;
    }

    /// Workgroup and wave of an access.
    pub(super) fn who(&self, record: Record) -> ([u32; 3], u32) {
        let segment = self.segment(record);
        let group = segment.and_then(|segment| self.groups.get(segment.group as usize));
        (group.copied().unwrap_or_default(), segment.map_or(0, |segment| segment.wave))
    }
}
