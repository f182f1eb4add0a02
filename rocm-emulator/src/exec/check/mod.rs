//! What a launch is checked for besides what is always checked: reads of memory that nobody has written
//! ([`written`]), and accesses that nothing orders ([`cells`], [`clock`]).
//!
//! [`super::memory`]'s regions ask for every access of a launch that is checked; otherwise nothing here runs.

mod cells;
mod clock;
mod freed;
mod written;

use super::memory::Snapshot;
use super::{Access, EarlierAccess, FaultKind, Place};
use cells::{Cells, Conflict};
pub(super) use clock::Kind;
use clock::{Clock, Relation};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub use freed::{FreedRange, FreedRanges};
pub use written::{Missing, Written};

/// The checks that cost time or memory, and are therefore asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Freed memory stays unused for a while, and wide red zones part allocations.
    pub memory: bool,
    /// Accesses that nothing orders: between the waves of a workgroup, and between workgroups.
    pub race: bool,
    /// Reads of device memory and LDS that nobody has written.
    pub init: bool,
}

impl Checks {
    /// Whether accesses have to be looked at one by one.
    pub(super) fn watches_accesses(self) -> bool {
        self.race || self.init
    }
}

/// What the checks know of a range of an address space.
#[derive(Clone, Debug, Default)]
pub struct RangeHistory {
    /// The bytes that have been written; without it, all of them.
    pub written: Option<Arc<Written>>,
    /// Memory that the host uses at the same time, so that the program has to order the accesses.
    pub shared_with_host: bool,
}

/// Histories with the first address of their range.
pub type RangeHistories = Vec<(u64, RangeHistory)>;

/// An access of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneAccess {
    pub(super) access: Access,
    pub(super) lane: usize,
    /// The address, or the offset into LDS.
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// The checks of one host thread of a launch; shared by the regions of its memory.
pub(super) type SharedChecker = Rc<RefCell<Checker>>;

/// What the checks remember of a launch.
#[derive(Debug)]
pub(super) struct Checker {
    checks: Checks,
    clock: Clock,
    global: Cells,
    /// Of the instruction that runs.
    possible_races: Vec<(PossibleRace, Snapshot)>,
}

/// Two stores in no order: a race unless the later one leaves what it finds.
#[derive(Debug)]
pub(super) struct PossibleRace {
    kind: Box<FaultKind>,
    /// The bytes that both store, counted from the first one of the access.
    pub(super) bytes: std::ops::Range<u64>,
}

/// What the checks remember of a workgroup's LDS.
#[derive(Debug)]
pub(super) struct LdsHistory {
    checker: SharedChecker,
    written: Written,
    cells: Cells,
}

impl Checker {
    pub(super) fn new(checks: Checks) -> SharedChecker {
        Rc::new(RefCell::new(Self {
            checks,
            clock: Clock::default(),
            global: Cells::default(),
            possible_races: Vec::new(),
        }))
    }

    /// A wave goes on.
    pub(super) fn turn(&mut self, workgroup: [u32; 3], wave: usize) {
        if self.checks.race {
            self.clock.turn(workgroup, wave as u32);
        }
    }

    /// All waves of a workgroup have met.
    pub(super) fn barrier(&mut self, workgroup: [u32; 3]) {
        self.clock.barrier(workgroup);
    }

    /// The memory instruction that runs next, by its offset in the text.
    pub(super) fn at(&mut self, offset: u32, kind: Kind) {
        self.clock.at(offset, kind);
    }

    /// Keeps a possible race until the instruction has stored.
    pub(super) fn possible_race(&mut self, possible_race: PossibleRace, before: Snapshot) {
        self.possible_races.push((possible_race, before));
    }

    /// The instruction has stored.
    pub(super) fn settle(&mut self) -> Result<(), Box<FaultKind>> {
        match self.possible_races.drain(..).find(|(_, before)| before.has_changed()) {
            Some((possible_race, _)) => Err(possible_race.kind),
            None => Ok(()),
        }
    }

    /// Checks an access to a range of global memory that begins at `base`.
    pub(super) fn global(
        &mut self,
        history: Option<&RangeHistory>,
        base: u64,
        lane: LaneAccess,
        place: impl Fn() -> Place,
    ) -> Result<Option<PossibleRace>, Box<FaultKind>> {
        let written = history.and_then(|history| history.written.as_deref());
        if let Some(written) = written.filter(|_| self.checks.init) {
            check_written(written, lane.address - base, lane, &place)?;
        }
        let shared_with_host = history.is_some_and(|history| history.shared_with_host);
        // An atomic load waits for another wave: a race that is meant.
        let waits = self.clock.kind() == Kind::AtomicLoad;
        if self.checks.race && !waits && !shared_with_host {
            return check_order(&self.clock, &mut self.global, lane, &place);
        }
        Ok(None)
    }
}

impl LdsHistory {
    /// Of the LDS of a workgroup that begins.
    pub(super) fn new(checker: &SharedChecker, bytes: u32) -> Self {
        Self { checker: Rc::clone(checker), written: Written::new(bytes.into()), cells: Cells::default() }
    }

    /// Checks an access that lies in LDS.
    pub(super) fn access(
        &mut self,
        lane: LaneAccess,
        size: u32,
    ) -> Result<Option<PossibleRace>, Box<FaultKind>> {
        let place = || Place::Lds { offset: lane.address, size };
        let checker = self.checker.borrow();
        if checker.checks.init {
            check_written(&self.written, lane.address, lane, &place)?;
        }
        if checker.checks.race {
            return check_order(&checker.clock, &mut self.cells, lane, &place);
        }
        Ok(None)
    }

    /// Keeps a possible race until the instruction has stored.
    pub(super) fn possible_race(&mut self, possible_race: PossibleRace, before: Snapshot) {
        self.checker.borrow_mut().possible_race(possible_race, before);
    }
}

fn check_written(
    written: &Written,
    offset: u64,
    lane: LaneAccess,
    place: &impl Fn() -> Place,
) -> Result<(), Box<FaultKind>> {
    let LaneAccess { access, lane, bytes, .. } = lane;
    if access != Access::Store
        && let Some(missing) = written.missing(offset, bytes)
    {
        let (lane, bytes, place) = (lane as u32, bytes as u32, place());
        let (first, unset) = (missing.first as u32, missing.count as u32);
        return Err(Box::new(FaultKind::Uninitialised { access, lane, bytes, first, unset, place }));
    }
    if access != Access::Load {
        written.set(offset, bytes);
    }
    Ok(())
}

fn check_order(
    clock: &Clock,
    cells: &mut Cells,
    lane: LaneAccess,
    place: &impl Fn() -> Place,
) -> Result<Option<PossibleRace>, Box<FaultKind>> {
    let LaneAccess { access, lane, address, bytes } = lane;
    let Some(conflict) = cells.access(clock, access, address, bytes, clock.record(lane as u32)) else {
        return Ok(None);
    };
    let Conflict { access: kind, record, start, end } = conflict;
    let (workgroup, wave) = clock.who(record);
    let earlier = EarlierAccess {
        access: kind,
        pc: record.offset(),
        instruction: String::new(),
        workgroup,
        wave,
        lane: record.lane(),
        elsewhere: clock.relation(record) == Relation::Elsewhere,
    };
    let (lane, bytes, place) = (lane as u32, bytes as u32, place());
    let race = Box::new(FaultKind::Race { access, lane, bytes, place, earlier: Box::new(earlier) });
    match (access, kind) {
        (Access::Store, Access::Store) => {
            Ok(Some(PossibleRace { kind: race, bytes: start - address..end - address }))
        }
        _ => Err(race),
    }
}
