//! Tests that repeated steps, as in training, do not call the driver from the third step on.
use super::arena::BlockId;
use super::pool::Pool;
use super::pool_tests::{pool, MockGpu, ALL};
use super::sizes;

const MIB: usize = 1 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    /// Returns a size from 256 bytes to `most`, log-uniformly distributed.
    fn size(&mut self, most: usize) -> usize {
        let top = 256usize << self.below((most / 256).ilog2() as usize + 1);
        (top + self.below(top)).min(most)
    }
}

#[derive(Clone, Copy)]
enum Event {
    Alloc { slot: usize, bytes: usize },
    Release { slot: usize },
}

/// Allocations of a step: tensors of some shapes are allocated and released in any order. Some outlive the step and are
/// released at the end of the next.
struct Step {
    events: Vec<Event>,
    slots: usize,
    /// The slots that outlive the step.
    kept: Vec<usize>,
    /// Maximum number of bytes in use, in whole blocks.
    peak: usize,
}

impl Step {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let largest = MIB << (4 + random.below(6));
        let shapes: Vec<usize> = (0..3 + random.below(30)).map(|_| random.size(largest)).collect();
        let (mut events, mut open, mut slots) = (Vec::new(), Vec::new(), 0);
        let at_once = 2 + random.below(40);
        for _ in 0..100 + random.below(500) {
            if open.len() >= at_once || !open.is_empty() && random.below(5) < 2 {
                // Mostly, recent tensors are released first.
                let at = open.len() - 1 - random.below(open.len()).min(random.below(open.len()));
                events.push(Event::Release { slot: open.remove(at) });
            } else {
                events.push(Event::Alloc { slot: slots, bytes: shapes[random.below(shapes.len())] });
                open.push(slots);
                slots += 1;
            }
        }
        let kept = open.split_off(open.len() - random.below(open.len() + 1).min(4));
        events.extend(open.into_iter().map(|slot| Event::Release { slot }));
        let mut step = Self { events, slots, kept, peak: 0 };
        step.peak = step.measure();
        step
    }

    /// Computes the maximum number of bytes in use over two consecutive steps, independently of the pool.
    fn measure(&self) -> usize {
        let mut sizes = vec![0; self.slots];
        let (mut live, mut peak) = (0, 0);
        for _ in 0..2 {
            let before: usize = self.kept.iter().map(|&slot| sizes[slot]).sum();
            for event in &self.events {
                match *event {
                    Event::Alloc { slot, bytes } => {
                        sizes[slot] = sizes::block(bytes).unwrap();
                        live += sizes[slot];
                    }
                    Event::Release { slot } => live -= sizes[slot],
                }
                peak = peak.max(live);
            }
            live -= before;
        }
        peak
    }

    fn run(&self, pool: &mut Pool<MockGpu>, before: &mut Vec<BlockId>) {
        let mut blocks = vec![None; self.slots];
        for event in &self.events {
            match *event {
                Event::Alloc { slot, bytes } => blocks[slot] = Some(pool.alloc(bytes).unwrap().block),
                Event::Release { slot } => pool.release(blocks[slot].unwrap()),
            }
        }
        before.drain(..).for_each(|block| pool.release(block));
        before.extend(self.kept.iter().map(|&slot| blocks[slot].unwrap()));
    }
}

/// Returns the number of driver calls up to the end of each step, on a GPU with `tenths` tenths of the memory that a step
/// needs plus some for shared segments.
fn calls(step: &Step, tenths: usize, steps: usize) -> Vec<u64> {
    let mut pool = pool(step.peak / 10 * tenths + 100 * MIB, ALL);
    let mut before = Vec::new();
    let calls = (0..steps).map(|_| {
        step.run(&mut pool, &mut before);
        let stats = pool.stats();
        stats.driver_allocations + stats.driver_frees
    });
    let calls = calls.collect();
    let stats = pool.stats();
    // Blocks may exceed the requested size by less than a step.
    assert!(stats.peak <= step.peak + step.peak / 8, "{stats:?}");
    calls
}

#[test]
fn from_the_third_step_on_the_driver_is_not_called() {
    for seed in 0..300 {
        let step = Step::random(seed);
        for tenths in [20, 40, 1000] {
            let calls = calls(&step, tenths, 6);
            assert_eq!(calls[1], calls[5], "seed {seed}, {tenths} tenths: {calls:?}");
        }
    }
}

#[test]
fn scarce_memory_is_used_fully() {
    for seed in 0..300 {
        // `calls` panics if a request fails.
        calls(&Step::random(seed), 14, 4);
    }
}

#[test]
fn segments_grow_to_at_most_three_times_the_peak() {
    // Random sizes, which hardly repeat.
    let mut random = Random(3);
    let mut pool = pool(1 << 40, ALL);
    let mut open = Vec::new();
    for _ in 0..20_000 {
        open.push(pool.alloc(random.size(8 * MIB)).unwrap().block);
        if open.len() > 100 {
            pool.release(open.swap_remove(random.below(open.len())));
        }
    }
    let stats = pool.stats();
    assert!(stats.live + stats.cached <= 3 * stats.peak + 128 * MIB, "{stats:?}");
}
