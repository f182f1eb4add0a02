//! The policy on a device that only counts.
use super::arena::BlockId;
use super::limits::Limits;
use super::pool::{Allocation, Driver, Pool, Refusal};
use std::cell::{Cell, RefCell};
use std::time::Duration;

const MIB: usize = 1 << 20;

thread_local! {
    /// Card, address and length of all segments that the cards of this test have given out. Kept here so that a segment
    /// owns nothing: one that is left to the end of the process is no leak of the test's own.
    static USED: RefCell<Vec<(usize, usize, usize)>> = const { RefCell::new(Vec::new()) };
    static CARDS: Cell<usize> = const { Cell::new(0) };
}

/// A device of so many bytes.
pub(super) struct Card {
    id: usize,
    total: usize,
    next: Cell<usize>,
    /// Sizes above this are refused even if they are free.
    refuses_above: Cell<usize>,
    stuck: Cell<bool>,
}

impl Card {
    /// Lengths of what is in use.
    fn used(&self) -> Vec<usize> {
        USED.with_borrow(|used| used.iter().filter(|(id, ..)| *id == self.id).map(|(.., len)| *len).collect())
    }
}

pub(super) struct Segment {
    card: usize,
    address: usize,
}

impl Drop for Segment {
    fn drop(&mut self) {
        let mine = (self.card, self.address);
        USED.with_borrow_mut(|used| used.retain(|&(card, address, _)| (card, address) != mine));
    }
}

impl Driver for Card {
    type Segment = Segment;
    type Error = String;

    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Segment)>, String> {
        if bytes > self.info()?.0 || bytes > self.refuses_above.get() {
            return Ok(None);
        }
        let address = self.next.replace(self.next.get() + bytes.next_multiple_of(4096));
        USED.with_borrow_mut(|used| used.push((self.id, address, bytes)));
        Ok(Some((address, Segment { card: self.id, address })))
    }

    fn may_free(&self) -> bool {
        !self.stuck.get()
    }

    fn info(&self) -> Result<(usize, usize), String> {
        Ok((self.total - self.used().iter().sum::<usize>(), self.total))
    }
}

pub(super) const ALL: Limits = Limits { share: 100, parked: None, reserve: 0, idle: None };

fn card(total: usize) -> Card {
    Card {
        id: CARDS.replace(CARDS.get() + 1),
        total,
        next: Cell::new(1 << 40),
        refuses_above: Cell::new(usize::MAX),
        stuck: Cell::new(false),
    }
}

pub(super) fn pool(total: usize, limits: Limits) -> Pool<Card> {
    Pool::new(card(total), limits, 0)
}

fn take(pool: &mut Pool<Card>, bytes: usize) -> BlockId {
    pool.take(bytes).unwrap().block
}

/// Takes all of these at once and gives them back in the same order.
fn take_and_give<const N: usize>(pool: &mut Pool<Card>, sizes: [usize; N]) {
    let taken = sizes.map(|bytes| take(pool, bytes));
    taken.into_iter().for_each(|block| pool.give(block));
}

#[test]
fn a_loop_asks_the_driver_in_its_first_round_only() {
    let mut pool = pool(1 << 30, ALL);
    let mut after_first = 0;
    for round in 0..50 {
        take_and_give(&mut pool, [100, 3 * MIB, 40 * MIB, 700_000, 100, 3 * MIB + 5]);
        let calls = pool.stats().driver_allocations;
        assert!(round == 0 || calls == after_first, "round {round}: {calls} calls");
        after_first = calls;
    }
    let stats = pool.stats();
    assert_eq!((stats.live, stats.driver_frees, stats.held, stats.fragmented), (0, 0, 0, 0));
    assert_eq!(stats.hits + stats.driver_allocations, stats.requests);
}

#[test]
fn sizes_that_drift_settle() {
    // A decode loop: the cache grows by a token and is copied; scores grow with it.
    let mut pool = pool(1 << 30, Limits { parked: Some(1 << 27), ..ALL });
    let mut cache = take(&mut pool, 64 * 1024);
    for step in 1..4000 {
        let grown = take(&mut pool, (step + 1) * 64 * 1024 / 8);
        let scores: Vec<_> = (0..4).map(|i| take(&mut pool, (step + i) * 128)).collect();
        pool.give(cache);
        cache = grown;
        scores.into_iter().for_each(|block| pool.give(block));
    }
    let stats = pool.stats();
    // Two of each size of the cache, and the segments of what is small.
    assert!(stats.driver_allocations < 100, "{stats:?}");
    assert!(stats.parked <= 1 << 27, "{stats:?}");
    let reserved = stats.live + stats.parked;
    assert!(stats.fragmented * 100 < reserved * 15, "{stats:?}");
}

#[test]
fn what_is_free_is_kept_whatever_its_share_of_the_card() {
    let mut pool = pool(100 * MIB, ALL);
    take_and_give(&mut pool, [40 * MIB, 56 * MIB]);
    assert_eq!((pool.stats().parked, pool.stats().driver_frees), (96 * MIB, 0));
    take_and_give(&mut pool, [56 * MIB, 40 * MIB]);
    assert_eq!((pool.stats().hits, pool.stats().driver_allocations), (2, 2));
    assert_eq!(pool.give_back_idle(0), 96 * MIB);
    assert_eq!(pool.driver().used().len(), 0);
}

#[test]
fn what_is_kept_may_be_bounded_and_the_longest_unused_goes_first() {
    let mut pool = pool(1 << 30, Limits { parked: Some(50 * MIB), ..ALL });
    take_and_give(&mut pool, [20 * MIB, 40 * MIB, 10 * MIB]);
    let stats = pool.stats();
    assert_eq!((stats.parked, stats.driver_frees), (50 * MIB, 1));
    assert!(pool.take(40 * MIB).is_ok());
    assert_eq!(pool.stats().hits, 1);
}

#[test]
fn what_is_idle_is_given_back_before_memory_runs_out() {
    let mut pool = pool(100 * MIB, ALL);
    take_and_give(&mut pool, [60 * MIB]);
    assert!(pool.take(80 * MIB).is_ok());
    assert_eq!(pool.stats().driver_frees, 1);
    // What is enough stays: of two, the larger goes.
    let mut two = self::pool(100 * MIB, ALL);
    take_and_give(&mut two, [30 * MIB, 48 * MIB]);
    assert!(two.take(60 * MIB).is_ok());
    assert_eq!((two.stats().driver_frees, two.stats().parked), (1, 30 * MIB));
    assert_eq!(
        pool.take(30 * MIB),
        Err(Refusal::OutOfMemory { requested: 30 * MIB, free: 20 * MIB, total: 100 * MIB })
    );
}

#[test]
fn a_large_segment_is_split_for_small_blocks_only_under_pressure() {
    let mut pool = pool(200 * MIB, ALL);
    take_and_give(&mut pool, [96 * MIB]);
    let first = pool.take(40 * MIB).unwrap();
    assert_eq!(pool.driver().used(), [96 * MIB, 40 * MIB]);
    let second = pool.take(48 * MIB).unwrap();
    assert_eq!(pool.driver().used(), [96 * MIB, 40 * MIB, 48 * MIB]);
    // No room for another of its own: the large one serves, and nothing is given back.
    let third = pool.take(40 * MIB).unwrap();
    assert_eq!((pool.driver().used().len(), pool.stats().driver_frees), (3, 0));
    assert!(third.address < first.address && first.address < second.address);
    assert_eq!(pool.stats().live, 128 * MIB);
}

#[test]
fn a_shared_segment_shrinks_to_what_is_there() {
    let mut pool = pool(10 * MIB, ALL);
    assert!(pool.take(2 * MIB).is_ok());
    assert_eq!(pool.driver().info(), Ok((8 * MIB, 10 * MIB)));
}

#[test]
fn a_block_shrinks_to_what_is_there_and_is_found_again() {
    let mut pool = pool(100 * MIB, ALL);
    for _ in 0..3 {
        // Rounded up it would be 104 MiB.
        take_and_give(&mut pool, [99 * MIB]);
    }
    let stats = pool.stats();
    assert_eq!((stats.driver_allocations, stats.driver_frees, stats.parked), (1, 0, 99 * MIB));
}

#[test]
fn a_driver_that_refuses_is_asked_again_and_believed() {
    let mut pool = pool(1 << 30, ALL);
    pool.driver().refuses_above.set(16 * MIB);
    assert!(pool.take(4 * MIB).is_ok());
    assert!(matches!(pool.take(20 * MIB), Err(Refusal::OutOfMemory { .. })));
    assert!(pool.take(4 * MIB).is_ok());
}

#[test]
fn the_reserve_stays_free_over_all_requests_together() {
    let mut pool = pool(100 * MIB, Limits { reserve: 20 * MIB, ..ALL });
    let first = take(&mut pool, 40 * MIB);
    assert!(pool.take(36 * MIB).is_ok());
    let refusal = |requested, free| {
        Err(Refusal::BeyondReserve { requested, reserve: 20 * MIB, free, total: 100 * MIB })
    };
    assert_eq!(pool.take(10 * MIB), refusal(10 * MIB, 24 * MIB));
    // What is idle goes back before the reserve is touched.
    pool.give(first);
    assert!(pool.take(44 * MIB).is_ok());
    assert_eq!(pool.take(17 * MIB), refusal(17 * MIB, 20 * MIB));
    assert!(matches!(pool.take(21 * MIB), Err(Refusal::OutOfMemory { .. })));
    pool.limits.reserve = 0;
    assert!(pool.take(20 * MIB).is_ok());
}

#[test]
fn the_share_advises_and_refuses_nothing() {
    let mut pool = pool(100 * MIB, Limits { share: 70, ..ALL });
    assert_eq!(pool.allowed(), Ok(70 * MIB));
    take_and_give(&mut pool, [60 * MIB]);
    assert_eq!(pool.allowed(), Ok(70 * MIB));
    pool.limits.reserve = 40 * MIB;
    assert_eq!(pool.allowed(), Ok(60 * MIB));
    pool.limits.reserve = 0;
    let taken = take(&mut pool, 80 * MIB);
    assert_eq!(pool.allowed(), Ok(14 * MIB));
    pool.give(taken);
}

#[test]
fn idle_memory_goes_back_after_its_time() {
    let mut pool = pool(1 << 30, ALL);
    let (time, second) = (Duration::from_secs(60), Duration::from_secs(1));
    let kept = take(&mut pool, 1000);
    take_and_give(&mut pool, [40 * MIB, 1000]);
    assert_eq!(pool.give_back_idle_for(time, 100 * second), 0);
    assert_eq!(pool.give_back_idle_for(time, 159 * second), 0);
    assert_eq!(pool.give_back_idle_for(time, 160 * second), 40 * MIB);
    // The rest shares a segment with what is in use.
    assert_eq!(pool.give_back_idle_for(time, 1000 * second), 0);
    pool.give(kept);
    assert_eq!(pool.give_back_idle_for(time, 1001 * second), 0);
    assert_eq!(pool.give_back_idle_for(time, 1061 * second), 2 * MIB);
    assert_eq!((pool.stats().parked, pool.stats().driver_frees), (0, 2));
}

#[test]
fn a_gap_stays_behind_each_request() {
    let mut pool = Pool::new(card(1 << 30), ALL, 256);
    let taken: Vec<Allocation> = [256, 256, 1024, 1000].map(|bytes| pool.take(bytes).unwrap()).to_vec();
    for (pair, bytes) in taken.windows(2).zip([256, 256, 1024]) {
        assert!(pair[0].address + bytes + 256 <= pair[1].address);
    }
    assert_eq!(pool.stats().live, 512 + 512 + 1280 + 1280);
}

#[test]
fn without_reuse_every_request_is_the_drivers() {
    let mut pool = pool(1 << 20, Limits { parked: Some(0), ..ALL });
    let [a, b] = [1000, 24].map(|bytes| take(&mut pool, bytes));
    assert_eq!(pool.driver().used(), [1000, 24]);
    assert_eq!(pool.stats().live, 1024);
    pool.give(a);
    pool.give(b);
    assert_eq!((pool.stats().live, pool.stats().parked, pool.driver().used().len()), (0, 0, 0));
}

#[test]
fn reuse_may_be_turned_off_and_on_between() {
    let mut pool = pool(1 << 30, ALL);
    let shared = take(&mut pool, 1000);
    pool.limits.parked = Some(0);
    let single = take(&mut pool, 1000);
    pool.give(shared);
    pool.limits.parked = None;
    pool.give(single);
    assert_eq!(pool.stats().parked, 1000);
    // Too short for the size that the request is rounded up to.
    assert!(pool.take(1000).is_ok());
    assert_eq!(pool.driver().used(), [1000, 2 * MIB]);
    assert_eq!(pool.give_back_idle(0), 1000);
}

#[test]
#[should_panic(expected = "given back twice")]
fn giving_back_twice_is_found() {
    let mut pool = pool(1 << 30, ALL);
    let block = take(&mut pool, 1000);
    pool.give(block);
    pool.give(block);
}

#[test]
fn what_lies_between_is_told_from_what_lies_beside() {
    let mut pool = pool(1 << 30, ALL);
    let [a, b, c, d] = [1000; 4].map(|bytes| take(&mut pool, bytes));
    let block = 1024;
    assert_eq!((pool.stats().held, pool.stats().fragmented), (2 * MIB - 4 * block, 0));
    pool.give(a);
    pool.give(c);
    assert_eq!((pool.stats().held, pool.stats().fragmented), (2 * MIB - 2 * block, 2 * block));
    pool.give(b);
    pool.give(d);
    assert_eq!((pool.stats().held, pool.stats().fragmented, pool.stats().parked), (0, 0, 2 * MIB));
}

#[test]
fn a_stuck_device_keeps_what_would_be_given_back() {
    let mut pool = pool(1 << 30, Limits { parked: Some(MIB), ..ALL });
    let taken = take(&mut pool, 4 * MIB);
    pool.driver().stuck.set(true);
    pool.give(taken);
    let stats = pool.stats();
    assert_eq!((stats.driver_frees, stats.abandoned, stats.live, stats.parked), (0, 32 * MIB, 0, 0));
    assert_eq!(pool.driver().used().len(), 1);
}

#[test]
fn sizes_beyond_the_address_space_are_out_of_memory() {
    let mut pool = pool(1 << 30, ALL);
    assert!(matches!(pool.take(usize::MAX), Err(Refusal::OutOfMemory { requested: usize::MAX, .. })));
}
