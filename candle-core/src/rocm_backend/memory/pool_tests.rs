//! The policy on a device that only counts.
use super::limits::Limits;
use super::pool::{Driver, Pool, Refusal};
use std::cell::{Cell, RefCell};

const MIB: usize = 1 << 20;

thread_local! {
    /// Card, address and length of all segments that the cards of this test have given out. Kept here so that a segment
    /// owns nothing: one that is left to the end of the process is no leak of the test's own.
    static USED: RefCell<Vec<(usize, usize, usize)>> = const { RefCell::new(Vec::new()) };
    static CARDS: Cell<usize> = const { Cell::new(0) };
}

/// A device of so many bytes.
struct Card {
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

struct Segment {
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

fn pool(total: usize, limits: Limits) -> Pool<Card> {
    let card = Card {
        id: CARDS.replace(CARDS.get() + 1),
        total,
        next: Cell::new(1 << 40),
        refuses_above: Cell::new(usize::MAX),
        stuck: Cell::new(false),
    };
    Pool::new(card, limits)
}

const ALL: Limits = Limits { share: 100, parked: usize::MAX };

#[test]
fn a_loop_asks_the_driver_in_its_first_round_only() {
    let mut pool = pool(1 << 30, ALL);
    let mut after_first = 0;
    for round in 0..50 {
        let sizes = [100, 3 * MIB, 40 * MIB, 700_000, 100, 3 * MIB + 5];
        let taken: Vec<usize> = sizes.iter().map(|&bytes| pool.take(bytes).unwrap()).collect();
        taken.into_iter().for_each(|address| assert!(pool.give(address)));
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
    let mut pool = pool(1 << 30, Limits { share: 100, parked: 1 << 27 });
    let mut cache = pool.take(64 * 1024).unwrap();
    for step in 1..4000 {
        let grown = pool.take((step + 1) * 64 * 1024 / 8).unwrap();
        let scores: Vec<usize> = (0..4).map(|i| pool.take((step + i) * 128).unwrap()).collect();
        assert!(pool.give(cache));
        cache = grown;
        scores.into_iter().for_each(|address| assert!(pool.give(address)));
    }
    let stats = pool.stats();
    // Two of each size of the cache, and the segments of what is small.
    assert!(stats.driver_allocations < 100, "{stats:?}");
    assert!(stats.parked <= 1 << 27, "{stats:?}");
    let reserved = stats.live + stats.parked;
    assert!(stats.fragmented * 100 < reserved * 15, "{stats:?}");
}

#[test]
fn what_is_parked_is_bounded_and_the_longest_unused_goes_first() {
    let mut pool = pool(1 << 30, Limits { share: 100, parked: 50 * MIB });
    let taken = [20, 40, 10].map(|mib| pool.take(mib * MIB).unwrap());
    taken.into_iter().for_each(|address| assert!(pool.give(address)));
    let stats = pool.stats();
    assert_eq!((stats.parked, stats.driver_frees), (50 * MIB, 1));
    assert!(pool.take(40 * MIB).is_ok());
    assert_eq!(pool.stats().hits, 1);
}

#[test]
fn what_is_parked_is_given_back_before_memory_runs_out() {
    let mut pool = pool(100 * MIB, ALL);
    let first = pool.take(60 * MIB).unwrap();
    assert!(pool.give(first));
    assert!(pool.take(80 * MIB).is_ok());
    assert_eq!(pool.stats().driver_frees, 1);
    // What is enough stays: of two parked, the larger goes.
    let mut two = self::pool(100 * MIB, ALL);
    let taken = [30, 50].map(|mib| two.take(mib * MIB).unwrap());
    taken.into_iter().for_each(|address| assert!(two.give(address)));
    assert!(two.take(60 * MIB).is_ok());
    assert_eq!((two.stats().driver_frees, two.stats().parked), (1, 30 * MIB));
    assert_eq!(
        pool.take(30 * MIB),
        Err(Refusal::OutOfMemory { requested: 30 * MIB, free: 20 * MIB, total: 100 * MIB })
    );
}

#[test]
fn a_shared_segment_shrinks_to_what_is_there() {
    let mut pool = pool(10 * MIB, ALL);
    assert!(pool.take(2 * MIB).is_ok());
    assert_eq!(pool.driver().info(), Ok((8 * MIB, 10 * MIB)));
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
fn more_than_the_share_is_refused_by_name() {
    let mut pool = pool(100 * MIB, Limits { share: 70, parked: usize::MAX });
    assert_eq!(
        pool.take(71 * MIB),
        Err(Refusal::BeyondShare {
            requested: 71 * MIB,
            allowed: 70 * MIB,
            free: 100 * MIB,
            total: 100 * MIB
        })
    );
    assert_eq!(pool.allowed(), Ok(70 * MIB));
    assert!(pool.take(70 * MIB).is_ok());
    pool.limits.share = 100;
    assert!(pool.take(30 * MIB).is_ok());
}

#[test]
fn without_parking_every_request_is_the_drivers() {
    let mut pool = pool(1 << 20, Limits { share: 100, parked: 0 });
    let (a, b) = (pool.take(1000).unwrap(), pool.take(24).unwrap());
    assert_eq!(pool.driver().used(), [1000, 24]);
    assert_eq!(pool.stats().live, 1024);
    assert!(pool.give(a) && pool.give(b) && !pool.give(b));
    assert_eq!((pool.stats().live, pool.stats().parked, pool.driver().used().len()), (0, 0, 0));
}

#[test]
fn parking_may_be_turned_off_between() {
    let mut pool = pool(1 << 30, ALL);
    let parked = pool.take(1000).unwrap();
    pool.limits.parked = 0;
    let single = pool.take(1000).unwrap();
    assert!(pool.give(parked) && pool.give(single));
    assert_eq!(pool.driver().used().len(), 0);
}

#[test]
fn what_lies_between_is_told_from_what_lies_beside() {
    let mut pool = pool(1 << 30, ALL);
    let [a, b, c, d] = [1000; 4].map(|bytes| pool.take(bytes).unwrap());
    let block = 1024;
    assert_eq!((pool.stats().held, pool.stats().fragmented), (2 * MIB - 4 * block, 0));
    assert!(pool.give(a) && pool.give(c));
    assert_eq!((pool.stats().held, pool.stats().fragmented), (2 * MIB - 2 * block, 2 * block));
    assert!(pool.give(b) && pool.give(d));
    assert_eq!((pool.stats().held, pool.stats().fragmented, pool.stats().parked), (0, 0, 2 * MIB));
}

#[test]
fn a_stuck_device_keeps_what_would_be_given_back() {
    let mut pool = pool(1 << 30, Limits { share: 100, parked: MIB });
    let taken = pool.take(4 * MIB).unwrap();
    pool.driver().stuck.set(true);
    assert!(pool.give(taken));
    let stats = pool.stats();
    assert_eq!((stats.driver_frees, stats.abandoned, stats.live, stats.parked), (0, 32 * MIB, 0, 0));
    assert_eq!(pool.driver().used().len(), 1);
}

#[test]
fn sizes_beyond_the_address_space_are_out_of_memory() {
    let mut pool = pool(1 << 30, ALL);
    assert!(matches!(pool.take(usize::MAX), Err(Refusal::OutOfMemory { requested: usize::MAX, .. })));
}
