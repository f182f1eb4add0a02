//! Optional checks of a launch: reads of uninitialised memory ([`written`]), and data races, which are
//! accesses that are not ordered ([`cells`], [`clock`]).
//!
//! The regions of [`super::memory`] call these checks for every access of a checked launch.

mod cells;
mod clock;
mod freed;
mod written;

use super::memory::Snapshot;
use super::{Access, EarlierAccess, FaultKind, Location};
use cells::{Cells, Conflict};
pub(super) use clock::Kind;
use clock::{Clock, Relation};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub use freed::{FreedRange, FreedRanges};
pub use written::{Missing, Written};

/// Checks that cost time or memory and are therefore optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Quarantines freed memory, and separates allocations with wide red zones.
    pub memory: bool,
    /// Detects data races between the waves of a workgroup and between workgroups.
    pub race: bool,
    /// Detects reads of device memory and LDS that have not been written.
    pub init: bool,
}

impl Checks {
    /// Returns true if the checks need to see every access.
    pub(super) fn watches_accesses(self) -> bool {
        self.race || self.init
    }
}

/// State of a range of an address space that the checks use.
#[derive(Clone, Debug, Default)]
pub struct RangeHistory {
    /// Bytes that have been written; `None` means all of them.
    pub written: Option<Arc<Written>>,
    /// Set if the host accesses the memory concurrently. Such memory is exempt from the race check.
    pub shared_with_host: bool,
}

/// Histories, each with the first address of its range.
pub type RangeHistories = Vec<(u64, RangeHistory)>;

/// An access of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneAccess {
    pub(super) access: Access,
    pub(super) lane: usize,
    /// Address, or offset into LDS.
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// Checker of one host thread of a launch, shared by the thread's memory regions.
pub(super) type SharedChecker = Rc<RefCell<Checker>>;

/// State of the checks of a launch.
#[derive(Debug)]
pub(super) struct Checker {
    checks: Checks,
    clock: Clock,
    global: Cells,
    /// Possible races of the running instruction.
    possible_races: Vec<(PossibleRace, Snapshot)>,
}

/// Two unordered stores, which are a race only if the later one changes the memory's contents.
#[derive(Debug)]
pub(super) struct PossibleRace {
    kind: Box<FaultKind>,
    /// Bytes that both store, relative to the first byte of the access.
    pub(super) bytes: std::ops::Range<u64>,
}

/// State of the checks of a workgroup's LDS.
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

    /// Records that a wave resumes.
    pub(super) fn resume_wave(&mut self, workgroup: [u32; 3], wave: usize) {
        if self.checks.race {
            self.clock.resume_wave(workgroup, wave as u32);
        }
    }

    /// Records that all waves of a workgroup have reached a barrier.
    pub(super) fn barrier(&mut self, workgroup: [u32; 3]) {
        self.clock.barrier(workgroup);
    }

    /// Sets the memory instruction that runs next, by its offset in the program's text.
    pub(super) fn set_instruction(&mut self, offset: u32, kind: Kind) {
        self.clock.set_instruction(offset, kind);
    }

    /// Keeps a possible race until the instruction has stored its data.
    pub(super) fn possible_race(&mut self, possible_race: PossibleRace, before: Snapshot) {
        self.possible_races.push((possible_race, before));
    }

    /// Decides the possible races once the instruction has stored its data.
    pub(super) fn check_races(&mut self) -> Result<(), Box<FaultKind>> {
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
        location: impl Fn() -> Location,
    ) -> Result<Option<PossibleRace>, Box<FaultKind>> {
        let written = history.and_then(|history| history.written.as_deref());
        if let Some(written) = written.filter(|_| self.checks.init) {
            check_written(written, lane.address - base, lane, &location)?;
        }
        let shared_with_host = history.is_some_and(|history| history.shared_with_host);
        // Polling another wave's progress with an atomic load is an intended race.
        let is_atomic_load = self.clock.kind() == Kind::AtomicLoad;
        if self.checks.race && !is_atomic_load && !shared_with_host {
            return check_order(&self.clock, &mut self.global, lane, &location);
        }
        Ok(None)
    }
}

impl LdsHistory {
    /// Creates the history of a new workgroup's LDS of `bytes` bytes.
    pub(super) fn new(checker: &SharedChecker, bytes: u32) -> Self {
        Self { checker: Rc::clone(checker), written: Written::new(bytes.into()), cells: Cells::default() }
    }

    /// Checks an access that lies within LDS of `size` bytes.
    pub(super) fn access(
        &mut self,
        lane: LaneAccess,
        size: u32,
    ) -> Result<Option<PossibleRace>, Box<FaultKind>> {
        let location = || Location::Lds { offset: lane.address, size };
        let checker = self.checker.borrow();
        if checker.checks.init {
            check_written(&self.written, lane.address, lane, &location)?;
        }
        if checker.checks.race {
            return check_order(&checker.clock, &mut self.cells, lane, &location);
        }
        Ok(None)
    }

    /// Keeps a possible race until the instruction has stored its data.
    pub(super) fn possible_race(&mut self, possible_race: PossibleRace, before: Snapshot) {
        self.checker.borrow_mut().possible_race(possible_race, before);
    }
}

fn check_written(
    written: &Written,
    offset: u64,
    lane: LaneAccess,
    location: &impl Fn() -> Location,
) -> Result<(), Box<FaultKind>> {
    let LaneAccess { access, lane, bytes, .. } = lane;
    if access != Access::Store
        && let Some(missing) = written.missing(offset, bytes)
    {
        let (lane, bytes, location) = (lane as u32, bytes as u32, location());
        let (first, unset) = (missing.first as u32, missing.count as u32);
        return Err(Box::new(FaultKind::Uninitialised { access, lane, bytes, first, unset, location }));
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
    location: &impl Fn() -> Location,
) -> Result<Option<PossibleRace>, Box<FaultKind>> {
    let LaneAccess { access, lane, address, bytes } = lane;
    let Some(conflict) = cells.access(clock, access, address, bytes, clock.record(lane as u32)) else {
        return Ok(None);
    };
    let Conflict { access: kind, record, start, end } = conflict;
    let (workgroup, wave) = clock.workgroup_and_wave(record);
    let earlier = EarlierAccess {
        access: kind,
        pc: record.offset(),
        instruction: String::new(),
        workgroup,
        wave,
        lane: record.lane(),
        other_workgroup: clock.relation(record) == Relation::OtherWorkgroup,
    };
    let (lane, bytes, location) = (lane as u32, bytes as u32, location());
    let race = Box::new(FaultKind::Race { access, lane, bytes, location, earlier: Box::new(earlier) });
    match (access, kind) {
        (Access::Store, Access::Store) => {
            Ok(Some(PossibleRace { kind: race, bytes: start - address..end - address }))
        }
        _ => Err(race),
    }
}
