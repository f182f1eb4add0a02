//! Tests of the pool on a mock device that only counts bytes.
use super::arena::BlockId;
use super::limits::Limits;
use super::pool::{AllocError, Allocation, Driver, MemoryStats, Pool};
use std::cell::{Cell, RefCell};
use std::time::Duration;

const MIB: usize = 1 << 20;

thread_local! {
    /// GPU, address and length of all allocated segments. They are stored here rather than in the segments, so that a
    /// segment that the pool leaks on purpose is not a memory leak of the test.
    static USED: RefCell<Vec<(usize, usize, usize)>> = const { RefCell::new(Vec::new()) };
    static GPUS: Cell<usize> = const { Cell::new(0) };
}

/// A mock GPU with `total` bytes.
#[derive(Clone)]
pub(super) struct MockGpu {
    id: usize,
    total: usize,
    next: Cell<usize>,
    /// Allocations above this size fail even if enough memory is free.
    max_allocation: Cell<usize>,
    /// Number of calls of `allocate`.
    attempts: Cell<usize>,
    hung: Cell<bool>,
}

impl MockGpu {
    /// Returns the lengths of the allocated segments.
    fn used(&self) -> Vec<usize> {
        USED.with_borrow(|used| used.iter().filter(|(id, ..)| *id == self.id).map(|(.., len)| *len).collect())
    }
}

pub(super) struct Segment {
    gpu: usize,
    address: usize,
}

impl Drop for Segment {
    fn drop(&mut self) {
        let mine = (self.gpu, self.address);
        USED.with_borrow_mut(|used| used.retain(|&(gpu, address, _)| (gpu, address) != mine));
    }
}

impl Driver for MockGpu {
    type Segment = Segment;
    type Error = String;

    fn allocate(&self, bytes: usize) -> Result<Option<(usize, Segment)>, String> {
        self.attempts.set(self.attempts.get() + 1);
        if bytes > self.info()?.0 || bytes > self.max_allocation.get() {
            return Ok(None);
        }
        let address = self.next.replace(self.next.get() + bytes.next_multiple_of(4096));
        USED.with_borrow_mut(|used| used.push((self.id, address, bytes)));
        Ok(Some((address, Segment { gpu: self.id, address })))
    }

    fn may_free(&self) -> bool {
        !self.hung.get()
    }

    fn info(&self) -> Result<(usize, usize), String> {
        Ok((self.total - self.used().iter().sum::<usize>(), self.total))
    }
}

pub(super) const ALL: Limits = Limits { share: 100, cached: None, reserve: 0, idle: None };

fn gpu(total: usize) -> MockGpu {
    MockGpu {
        id: GPUS.replace(GPUS.get() + 1),
        total,
        next: Cell::new(1 << 40),
        max_allocation: Cell::new(usize::MAX),
        attempts: Cell::new(0),
        hung: Cell::new(false),
    }
}

pub(super) fn pool(total: usize, limits: Limits) -> Pool<MockGpu> {
    Pool::new(gpu(total), limits, 0)
}

fn alloc(pool: &mut Pool<MockGpu>, bytes: usize) -> BlockId {
    pool.alloc(bytes).unwrap().block
}

/// Allocates all sizes, then releases them in the same order.
fn alloc_and_release<const N: usize>(pool: &mut Pool<MockGpu>, sizes: [usize; N]) {
    let taken = sizes.map(|bytes| alloc(pool, bytes));
    taken.into_iter().for_each(|block| pool.release(block));
}

#[test]
fn a_loop_calls_the_driver_only_in_its_first_iteration() {
    let mut pool = pool(1 << 30, ALL);
    let mut after_first = 0;
    for round in 0..50 {
        alloc_and_release(&mut pool, [100, 3 * MIB, 40 * MIB, 700_000, 100, 3 * MIB + 5]);
        let calls = pool.stats().driver_allocations;
        assert!(round == 0 || calls == after_first, "round {round}: {calls} calls");
        after_first = calls;
    }
    let stats = pool.stats();
    assert_eq!((stats.live, stats.driver_frees, stats.held, stats.fragmented), (0, 0, 0, 0));
    assert_eq!(stats.hits + stats.driver_allocations, stats.requests);
}

#[test]
fn slowly_growing_sizes_reuse_memory() {
    // Like a decode loop: the cache grows by a token and is copied; scores grow with it.
    let mut pool = pool(1 << 30, Limits { cached: Some(1 << 27), ..ALL });
    let mut cache = alloc(&mut pool, 64 * 1024);
    for step in 1..4000 {
        let grown = alloc(&mut pool, (step + 1) * 64 * 1024 / 8);
        let scores: Vec<_> = (0..4).map(|i| alloc(&mut pool, (step + i) * 128)).collect();
        pool.release(cache);
        cache = grown;
        scores.into_iter().for_each(|block| pool.release(block));
    }
    let stats = pool.stats();
    // Two blocks of each size of the cache, and the segments of small blocks.
    assert!(stats.driver_allocations < 100, "{stats:?}");
    assert!(stats.cached <= 1 << 27, "{stats:?}");
    let reserved = stats.live + stats.cached;
    assert!(stats.fragmented * 100 < reserved * 15, "{stats:?}");
}

#[test]
fn cached_memory_is_not_limited_by_default() {
    let mut pool = pool(100 * MIB, ALL);
    alloc_and_release(&mut pool, [40 * MIB, 56 * MIB]);
    assert_eq!((pool.stats().cached, pool.stats().driver_frees), (96 * MIB, 0));
    alloc_and_release(&mut pool, [56 * MIB, 40 * MIB]);
    assert_eq!((pool.stats().hits, pool.stats().driver_allocations), (2, 2));
    assert_eq!(pool.release_idle(0), 96 * MIB);
    assert_eq!(pool.driver().used().len(), 0);
}

#[test]
fn the_cache_limit_releases_the_least_recently_used_segment() {
    let mut pool = pool(1 << 30, Limits { cached: Some(58 * MIB), ..ALL });
    alloc_and_release(&mut pool, [20 * MIB, 40 * MIB, 18 * MIB]);
    let stats = pool.stats();
    assert_eq!((stats.cached, stats.driver_frees), (58 * MIB, 1));
    assert!(pool.alloc(40 * MIB).is_ok());
    assert_eq!(pool.stats().hits, 1);
}

#[test]
fn idle_memory_is_released_before_memory_runs_out() {
    let mut pool = pool(100 * MIB, ALL);
    alloc_and_release(&mut pool, [60 * MIB]);
    assert!(pool.alloc(80 * MIB).is_ok());
    assert_eq!(pool.stats().driver_frees, 1);
    // If there are two idle segments and the larger is enough, only that one is released.
    let mut two = self::pool(100 * MIB, ALL);
    alloc_and_release(&mut two, [30 * MIB, 48 * MIB]);
    assert!(two.alloc(60 * MIB).is_ok());
    assert_eq!((two.stats().driver_frees, two.stats().cached), (1, 30 * MIB));
    assert_eq!(
        pool.alloc(30 * MIB),
        Err(AllocError::OutOfMemory { requested: 30 * MIB, free: 20 * MIB, total: 100 * MIB })
    );
}

#[test]
fn a_large_segment_is_split_for_shorter_blocks() {
    let mut pool = pool(200 * MIB, ALL);
    alloc_and_release(&mut pool, [96 * MIB]);
    let [first, second, third] = [40 * MIB, 48 * MIB, 8 * MIB].map(|bytes| pool.alloc(bytes).unwrap());
    assert_eq!((pool.driver().used(), pool.stats().live), (vec![96 * MIB], 96 * MIB));
    assert!(first.address < second.address && second.address < third.address);
    [second, third].into_iter().for_each(|taken| pool.release(taken.block));
    assert_eq!(pool.alloc(56 * MIB).map(|taken| taken.address), Ok(second.address));
}

#[test]
fn a_small_block_uses_a_large_segment_under_pressure() {
    let mut pool = pool(32 * MIB, ALL);
    let large = alloc(&mut pool, 4 * MIB);
    let small = alloc(&mut pool, 1000);
    assert_eq!(pool.driver().used(), [32 * MIB]);
    [large, small].into_iter().for_each(|block| pool.release(block));
    assert_eq!((pool.stats().held, pool.release_idle(0)), (0, 32 * MIB));
}

#[test]
fn large_sizes_are_not_rounded_up() {
    let mut pool = pool(1 << 40, ALL);
    // Weights of 2 GB: products and convolutions of 320 to 1280 channels.
    let weights = [320, 640, 1280].iter().cycle().flat_map(|n| [2 * n * n, 18 * n * n, 16 * n * n]).take(250);
    let bytes: usize = weights.clone().sum();
    for bytes in weights {
        alloc(&mut pool, bytes);
    }
    let stats = pool.stats();
    assert!(stats.live + stats.cached <= bytes + bytes / 25, "{bytes} bytes: {stats:?}");
}

#[test]
fn idle_segments_are_released_rather_than_exceeding_the_growth_limit() {
    let mut pool = pool(1 << 40, ALL);
    // Like the stages of a decoder: each tensor is larger than the one before.
    for step in 0..6 {
        for size in [40, 80, 160, 320, 640] {
            alloc_and_release(&mut pool, [size * MIB; 2]);
        }
        let MemoryStats { live, peak, cached, driver_frees, .. } = pool.stats();
        assert!(live + cached <= peak + peak / 16 + 64 * MIB, "step {step}: {:?}", pool.stats());
        assert!(driver_frees <= 8, "step {step}: {driver_frees}");
    }
    assert_eq!(pool.stats().peak, 1280 * MIB);
}

#[test]
fn segments_for_growing_sizes_serve_the_next_sizes_too() {
    let mut pool = pool(1 << 40, ALL);
    // Like a cache of keys and values that is copied for each token.
    let mut cache = alloc(&mut pool, 100 * MIB);
    for step in 1..=100 {
        let grown = alloc(&mut pool, (100 + step) * MIB);
        pool.release(std::mem::replace(&mut cache, grown));
    }
    let stats = pool.stats();
    assert!(stats.driver_allocations <= 24 && stats.cached <= 250 * MIB, "{stats:?}");
}

/// Graphs use the addresses of memory that is not in use.
#[test]
fn memory_of_graphs_is_kept_when_memory_runs_out() {
    let mut pool = pool(100 * MIB, ALL).new_like();
    alloc_and_release(&mut pool, [60 * MIB, 1000]);
    assert!(matches!(pool.alloc(80 * MIB), Err(AllocError::OutOfMemory { .. })));
    assert_eq!((pool.release_idle(0), pool.release_idle_for(Duration::ZERO, Duration::MAX)), (0, 0));
    assert_eq!(pool.driver().used(), [60 * MIB, 2 * MIB]);
}

#[test]
fn a_shared_segment_shrinks_to_the_free_memory() {
    let mut pool = pool(10 * MIB, ALL);
    assert!(pool.alloc(2 * MIB).is_ok());
    assert_eq!(pool.driver().info(), Ok((8 * MIB, 10 * MIB)));
}

#[test]
fn a_block_shrinks_to_the_free_memory_and_is_reused() {
    let mut pool = pool(99 * MIB, ALL);
    for _ in 0..3 {
        // Rounding up would give a segment of 100 MiB.
        alloc_and_release(&mut pool, [99 * MIB]);
    }
    let stats = pool.stats();
    assert_eq!((stats.driver_allocations, stats.driver_frees, stats.cached), (1, 0, 99 * MIB));
}

#[test]
fn a_failed_driver_allocation_is_out_of_memory() {
    let mut pool = pool(1 << 30, ALL);
    pool.driver().max_allocation.set(16 * MIB);
    assert!(pool.alloc(4 * MIB).is_ok());
    assert!(matches!(pool.alloc(20 * MIB), Err(AllocError::OutOfMemory { .. })));
    assert!(pool.alloc(4 * MIB).is_ok());
}

/// A driver may refuse a size although enough memory is free, in fragments.
#[test]
fn a_refused_size_is_tried_again_only_after_idle_memory_is_released() {
    let mut pool = pool(1 << 30, ALL);
    alloc_and_release(&mut pool, [18 * MIB]);
    pool.driver().max_allocation.set(16 * MIB);
    pool.driver().attempts.set(0);
    assert!(matches!(pool.alloc(64 * MIB), Err(AllocError::OutOfMemory { .. })));
    assert_eq!((pool.driver().attempts.get(), pool.stats().driver_frees), (2, 1));
}

#[test]
fn a_free_block_is_reported_if_a_request_needs_no_driver() {
    let mut pool = pool(1 << 30, ALL);
    assert!(!pool.has_free(1) && !pool.has_free(usize::MAX));
    let block = alloc(&mut pool, 40 * MIB);
    assert!(!pool.has_free(2 * MIB));
    pool.release(block);
    for (bytes, has_free) in [(40 * MIB, true), (20 * MIB, true), (40 * MIB + 1, false)] {
        assert_eq!(pool.has_free(bytes), has_free, "{bytes}");
        let calls = pool.driver().attempts.get();
        let block = alloc(&mut pool, bytes);
        assert_eq!(pool.driver().attempts.get() == calls, has_free, "{bytes}");
        pool.release(block);
    }
    pool.limits.cached = Some(0);
    assert!(!pool.has_free(2 * MIB));
}

#[test]
fn the_reserve_stays_free_over_all_requests() {
    let mut pool = pool(100 * MIB, Limits { reserve: 20 * MIB, ..ALL });
    let first = alloc(&mut pool, 40 * MIB);
    assert!(pool.alloc(36 * MIB).is_ok());
    let beyond_reserve = |requested, free| {
        Err(AllocError::BeyondReserve { requested, reserve: 20 * MIB, free, total: 100 * MIB })
    };
    assert_eq!(pool.alloc(10 * MIB), beyond_reserve(10 * MIB, 24 * MIB));
    // Idle memory is released before the reserve is used.
    pool.release(first);
    assert!(pool.alloc(44 * MIB).is_ok());
    assert_eq!(pool.alloc(17 * MIB), beyond_reserve(17 * MIB, 20 * MIB));
    assert!(matches!(pool.alloc(21 * MIB), Err(AllocError::OutOfMemory { .. })));
    pool.limits.reserve = 0;
    assert!(pool.alloc(20 * MIB).is_ok());
}

#[test]
fn the_share_is_only_a_recommendation() {
    let mut pool = pool(100 * MIB, Limits { share: 70, ..ALL });
    assert_eq!(pool.allowed(), Ok(70 * MIB));
    alloc_and_release(&mut pool, [60 * MIB]);
    assert_eq!(pool.allowed(), Ok(70 * MIB));
    pool.limits.reserve = 40 * MIB;
    assert_eq!(pool.allowed(), Ok(60 * MIB));
    pool.limits.reserve = 0;
    let taken = alloc(&mut pool, 80 * MIB);
    assert_eq!(pool.allowed(), Ok(14 * MIB));
    pool.release(taken);
}

#[test]
fn idle_memory_is_released_after_the_idle_time() {
    let mut pool = pool(1 << 30, ALL);
    let (time, second) = (Duration::from_secs(60), Duration::from_secs(1));
    let kept = alloc(&mut pool, 1000);
    alloc_and_release(&mut pool, [40 * MIB, 1000]);
    assert_eq!(pool.release_idle_for(time, 100 * second), 0);
    assert_eq!(pool.release_idle_for(time, 159 * second), 0);
    assert_eq!(pool.release_idle_for(time, 160 * second), 40 * MIB);
    // The remaining memory shares a segment with a block in use.
    assert_eq!(pool.release_idle_for(time, 1000 * second), 0);
    pool.release(kept);
    assert_eq!(pool.release_idle_for(time, 1001 * second), 0);
    assert_eq!(pool.release_idle_for(time, 1061 * second), 2 * MIB);
    assert_eq!((pool.stats().cached, pool.stats().driver_frees), (0, 2));
}

#[test]
fn a_gap_follows_each_allocation() {
    let mut pool = Pool::new(gpu(1 << 30), ALL, 256);
    let taken: Vec<Allocation> = [256, 256, 1024, 1000].map(|bytes| pool.alloc(bytes).unwrap()).to_vec();
    for (pair, bytes) in taken.windows(2).zip([256, 256, 1024]) {
        assert!(pair[0].address + bytes + 256 <= pair[1].address);
    }
    assert_eq!(pool.stats().live, 512 + 512 + 1280 + 1280);
}

#[test]
fn without_reuse_every_request_goes_to_the_driver() {
    let mut pool = pool(1 << 20, Limits { cached: Some(0), ..ALL });
    let [a, b] = [1000, 24].map(|bytes| alloc(&mut pool, bytes));
    assert_eq!(pool.driver().used(), [1000, 24]);
    assert_eq!(pool.stats().live, 1024);
    pool.release(a);
    pool.release(b);
    assert_eq!((pool.stats().live, pool.stats().cached, pool.driver().used().len()), (0, 0, 0));
}

#[test]
fn reuse_can_be_switched_off_and_on() {
    let mut pool = pool(1 << 30, ALL);
    let shared = alloc(&mut pool, 1000);
    pool.limits.cached = Some(0);
    let single = alloc(&mut pool, 1000);
    pool.release(shared);
    pool.limits.cached = None;
    pool.release(single);
    assert_eq!(pool.stats().cached, 1000);
    // The cached block is shorter than the rounded size of the request.
    assert!(pool.alloc(1000).is_ok());
    assert_eq!(pool.driver().used(), [1000, 2 * MIB]);
    assert_eq!(pool.release_idle(0), 1000);
}

#[test]
#[should_panic(expected = "released twice")]
fn a_double_release_panics() {
    let mut pool = pool(1 << 30, ALL);
    let block = alloc(&mut pool, 1000);
    pool.release(block);
    pool.release(block);
}

#[test]
fn only_memory_between_blocks_in_use_is_fragmented() {
    let mut pool = pool(1 << 30, ALL);
    let [a, b, c, d] = [1000; 4].map(|bytes| alloc(&mut pool, bytes));
    let block = 1024;
    assert_eq!((pool.stats().held, pool.stats().fragmented), (2 * MIB - 4 * block, 0));
    pool.release(a);
    pool.release(c);
    assert_eq!((pool.stats().held, pool.stats().fragmented), (2 * MIB - 2 * block, 2 * block));
    pool.release(b);
    pool.release(d);
    assert_eq!((pool.stats().held, pool.stats().fragmented, pool.stats().cached), (0, 0, 2 * MIB));
}

#[test]
fn segments_of_a_hung_device_are_leaked() {
    let mut pool = pool(1 << 30, Limits { cached: Some(MIB), ..ALL });
    let taken = alloc(&mut pool, 4 * MIB);
    pool.driver().hung.set(true);
    pool.release(taken);
    let stats = pool.stats();
    assert_eq!((stats.driver_frees, stats.abandoned, stats.live, stats.cached), (0, 32 * MIB, 0, 0));
    assert_eq!(pool.driver().used().len(), 1);
}

#[test]
fn sizes_beyond_the_address_space_are_out_of_memory() {
    let mut pool = pool(1 << 30, ALL);
    assert!(matches!(pool.alloc(usize::MAX), Err(AllocError::OutOfMemory { requested: usize::MAX, .. })));
}
