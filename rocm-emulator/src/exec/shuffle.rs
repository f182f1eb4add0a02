//! Random scheduling of workgroups and waves by a seed. Several workgroups are in flight, and a wave can be
//! preempted after any instruction. Everything runs on one host thread, so the order is reproducible.
use super::Fault;
use super::memory::{Lds, Memory};
use super::random::Random;
use super::watch::Watch;
use super::wave_size::{PerWaveSize, WaveSizes};
use super::workgroup::{Dispatch, Waves};

/// Maximum number of workgroups in flight.
const MAX_IN_FLIGHT: u64 = 8;
/// Number of workgroups that are shuffled together. The batches run in ascending or descending order.
const BATCH: u64 = 1 << 16;
/// Base-2 logarithm of the maximum number of instructions per turn.
const MAX_TURN_LOG2: u64 = 10;

/// A workgroup in flight.
struct InFlight<const W: usize> {
    waves: Waves<W>,
    count: usize,
    lds: Lds,
    workgroup: [u32; 3],
}

/// Runs `groups` workgroups until the first fault. `coordinates` maps a workgroup's index to its coordinates.
pub(super) fn run<const W: usize>(
    dispatch: &Dispatch<W>,
    groups: u64,
    coordinates: impl Fn(u64) -> [u32; 3],
    memory: &mut Memory,
    watch: &mut Watch,
    seed: u64,
) -> Result<(), Fault>
where
    WaveSizes: PerWaveSize<W>,
{
    let mut random = Random::new(seed);
    let mut order = Order::new(groups, &mut random);
    let limit = 1 + random.below(MAX_IN_FLIGHT) as usize;
    let mut in_flight: Vec<InFlight<W>> = Vec::new();
    let mut spare: Vec<(Waves<W>, Lds)> = Vec::new();
    loop {
        while in_flight.len() < limit
            && let Some(group) = order.next(&mut random)
        {
            let (mut waves, mut lds) = spare.pop().unwrap_or_default();
            let workgroup = coordinates(group);
            let count = waves.begin(dispatch, workgroup, &mut lds, memory.checker.as_ref());
            in_flight.push(InFlight { waves, count, lds, workgroup });
        }
        if in_flight.is_empty() {
            return Ok(());
        }
        let selected = random.below(in_flight.len() as u64) as usize;
        let group = &mut in_flight[selected];
        std::mem::swap(&mut memory.lds, &mut group.lds);
        let outcome = group.step(dispatch, memory, watch, &mut random);
        std::mem::swap(&mut memory.lds, &mut group.lds);
        if outcome? {
            let group = in_flight.swap_remove(selected);
            spare.push((group.waves, group.lds));
        }
    }
}

impl<const W: usize> InFlight<W>
where
    WaveSizes: PerWaveSize<W>,
{
    /// Runs one turn of one wave; returns true if the workgroup has ended.
    fn step(
        &mut self,
        dispatch: &Dispatch<W>,
        memory: &mut Memory,
        watch: &mut Watch,
        random: &mut Random,
    ) -> Result<bool, Fault> {
        let ready = || (0..self.count).filter(|&index| self.waves.is_ready(index));
        let nth = random.below(ready().count() as u64) as usize;
        if let Some(index) = ready().nth(nth) {
            let max_turn = 1 << random.below(MAX_TURN_LOG2 + 1);
            watch.turn = 1 + random.below(max_turn);
            self.waves.turn::<true>(dispatch, self.workgroup, index, memory, watch)?;
        }
        self.waves.release_barrier(dispatch, self.workgroup, memory)
    }
}

/// Random order of all workgroups.
struct Order {
    /// Remaining batches, and whether they are taken from the end.
    batches: std::ops::Range<u64>,
    backwards: bool,
    groups: u64,
    batch: Vec<u64>,
}

impl Order {
    fn new(groups: u64, random: &mut Random) -> Self {
        let backwards = random.below(2) == 1;
        Self { batches: 0..groups.div_ceil(BATCH), backwards, groups, batch: Vec::new() }
    }

    fn next(&mut self, random: &mut Random) -> Option<u64> {
        if self.batch.is_empty() {
            let batch = if self.backwards { self.batches.next_back()? } else { self.batches.next()? };
            self.batch.extend(batch * BATCH..self.groups.min((batch + 1) * BATCH));
            random.shuffle(&mut self.batch);
        }
        self.batch.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workgroup_occurs_once() {
        for (groups, seed) in [(0, 1), (1, 1), (5, 2), (2 * BATCH + 3, 3), (2 * BATCH + 3, 4)] {
            let mut random = Random::new(seed);
            let mut order = Order::new(groups, &mut random);
            let mut found: Vec<u64> = std::iter::from_fn(|| order.next(&mut random)).collect();
            found.sort_unstable();
            assert!(found.into_iter().eq(0..groups));
        }
    }
}
