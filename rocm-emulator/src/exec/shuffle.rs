//! Workgroups and waves in an order that a seed decides: several workgroups are under way at once, and a wave may
//! have to give way to any other after any instruction. All on one host thread, so the order repeats exactly.
use super::Fault;
use super::memory::{Lds, Memory};
use super::random::Random;
use super::watch::Watch;
use super::wave_size::{PerWaveSize, WaveSizes};
use super::workgroup::{Dispatch, Waves};

/// Workgroups that are under way at once, at most.
const MOST_AT_ONCE: u64 = 8;
/// Workgroups whose order is drawn at once; the order of such batches is forwards or backwards.
const BATCH: u64 = 1 << 16;
/// A turn is at most two to this power instructions.
const LONGEST_TURN: u64 = 10;

/// A workgroup that is under way.
struct UnderWay<const W: usize> {
    waves: Waves<W>,
    count: usize,
    lds: Lds,
    workgroup: [u32; 3],
}

/// Runs `groups` workgroups, whose coordinates `coordinates` knows, up to the first fault.
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
    let at_once = 1 + random.below(MOST_AT_ONCE) as usize;
    let mut under_way: Vec<UnderWay<W>> = Vec::new();
    let mut spare: Vec<(Waves<W>, Lds)> = Vec::new();
    loop {
        while under_way.len() < at_once
            && let Some(group) = order.next(&mut random)
        {
            let (mut waves, mut lds) = spare.pop().unwrap_or_default();
            let workgroup = coordinates(group);
            let count = waves.begin(dispatch, workgroup, &mut lds, memory.checker.as_ref());
            under_way.push(UnderWay { waves, count, lds, workgroup });
        }
        if under_way.is_empty() {
            return Ok(());
        }
        let chosen = random.below(under_way.len() as u64) as usize;
        let group = &mut under_way[chosen];
        std::mem::swap(&mut memory.lds, &mut group.lds);
        let outcome = group.step(dispatch, memory, watch, &mut random);
        std::mem::swap(&mut memory.lds, &mut group.lds);
        if outcome? {
            let group = under_way.swap_remove(chosen);
            spare.push((group.waves, group.lds));
        }
    }
}

impl<const W: usize> UnderWay<W>
where
    WaveSizes: PerWaveSize<W>,
{
    /// One turn of one wave; true if the workgroup has ended.
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
            let most = 1 << random.below(LONGEST_TURN + 1);
            watch.turn = 1 + random.below(most);
            self.waves.turn::<true>(dispatch, self.workgroup, index, memory, watch)?;
        }
        self.waves.settle(dispatch, self.workgroup, memory)
    }
}

/// Every workgroup once.
struct Order {
    /// Batches that are left, and whether the last one comes next.
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
    fn every_workgroup_comes_once() {
        for (groups, seed) in [(0, 1), (1, 1), (5, 2), (2 * BATCH + 3, 3), (2 * BATCH + 3, 4)] {
            let mut random = Random::new(seed);
            let mut order = Order::new(groups, &mut random);
            let mut found: Vec<u64> = std::iter::from_fn(|| order.next(&mut random)).collect();
            found.sort_unstable();
            assert!(found.into_iter().eq(0..groups));
        }
    }
}
