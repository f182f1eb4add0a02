//! A pool that several threads can use concurrently, and that can make other pools of the GPU release idle memory.
use super::arena::BlockId;
use super::pool::{AllocError, Allocation, Driver, MemoryStats, Pool};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

/// Lock of a pool: the standard mutex, or loom's mutex in tests.
pub(super) trait Lock<T> {
    fn of(value: T) -> Self;
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

impl<T> Lock<T> for Mutex<T> {
    fn of(value: T) -> Self {
        Self::new(value)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // A pool is consistent before each call of the driver, so a panic there leaves it usable.
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A [`Pool`] with a lock. No method holds the locks of two pools at the same time.
pub(super) struct Shared<D: Driver, L: Lock<Pool<D>> = Mutex<Pool<D>>> {
    pool: L,
    driver: PhantomData<fn() -> D>,
}

impl<D: Driver, L: Lock<Pool<D>>> Shared<D, L> {
    pub(super) fn new(pool: Pool<D>) -> Self {
        Self { pool: L::of(pool), driver: PhantomData }
    }

    /// Allocates at least `bytes` bytes. If that fails even after this pool released its idle memory,
    /// `release_siblings` is called once, without the lock. It must make all other pools of the GPU release their idle
    /// memory and return true if there was any; the allocation is then tried once more.
    pub(super) fn alloc(
        &self,
        bytes: usize,
        release_siblings: impl FnOnce() -> bool,
    ) -> Result<Allocation, AllocError<D::Error>> {
        let outcome = self.pool.with(|pool| pool.alloc(bytes));
        let short = matches!(outcome, Err(AllocError::OutOfMemory { .. } | AllocError::BeyondReserve { .. }));
        if short && release_siblings() {
            self.pool.with(|pool| pool.alloc(bytes))
        } else {
            outcome
        }
    }

    /// Releases memory allocated by [`Self::alloc`].
    pub(super) fn release(&self, block: BlockId) {
        self.pool.with(|pool| pool.release(block));
    }

    /// Releases all idle segments to the driver. Returns the number of bytes.
    pub(super) fn release_idle(&self) -> usize {
        self.pool.with(|pool| pool.release_idle(0))
    }

    pub(super) fn stats(&self) -> MemoryStats {
        self.pool.with(|pool| pool.stats())
    }

    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Pool<D>) -> R) -> R {
        self.pool.with(work)
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::Limits;
    use super::*;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::sync::Arc;

    const MIB: usize = 1 << 20;

    impl<T> Lock<T> for loom::sync::Mutex<T> {
        fn of(value: T) -> Self {
            Self::new(value)
        }

        fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
            work(&mut self.lock().unwrap())
        }
    }

    /// A GPU shared by several pools: bytes in use, and the next address.
    #[derive(Clone)]
    struct Gpu(Arc<(AtomicUsize, AtomicUsize)>);

    const TOTAL: usize = 100 * MIB;

    struct Segment {
        gpu: Gpu,
        bytes: usize,
    }

    impl Drop for Segment {
        fn drop(&mut self) {
            self.gpu.0 .0.fetch_sub(self.bytes, Ordering::SeqCst);
        }
    }

    impl Driver for Gpu {
        type Segment = Segment;
        type Error = ();

        fn allocate(&self, bytes: usize) -> Result<Option<(usize, Segment)>, ()> {
            let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= TOTAL);
            if self.0 .0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_err() {
                return Ok(None);
            }
            let address = self.0 .1.fetch_add(bytes, Ordering::SeqCst);
            Ok(Some((address, Segment { gpu: self.clone(), bytes })))
        }

        fn may_free(&self) -> bool {
            true
        }

        fn info(&self) -> Result<(usize, usize), ()> {
            Ok((TOTAL - self.0 .0.load(Ordering::SeqCst), TOTAL))
        }
    }

    type LoomPool = Shared<Gpu, loom::sync::Mutex<Pool<Gpu>>>;

    fn pools<const N: usize>() -> (Gpu, [Arc<LoomPool>; N]) {
        let gpu = Gpu(Arc::new((AtomicUsize::new(0), AtomicUsize::new(MIB))));
        let limits = Limits { share: 100, cached: None, reserve: 0, idle: None };
        let pools = std::array::from_fn(|_| Arc::new(Shared::new(Pool::new(gpu.clone(), limits, 0))));
        (gpu, pools)
    }

    /// Runs the test under every interleaving of its threads with up to two preemptions.
    fn model(test: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(test);
    }

    #[test]
    fn threads_of_one_pool_never_get_the_same_memory() {
        model(|| {
            let (gpu, [pool]) = pools();
            let thread = |pool: Arc<LoomPool>| {
                move || {
                    let (a, b) =
                        (pool.alloc(3 * MIB, || false).unwrap(), pool.alloc(1000, || false).unwrap());
                    pool.release(a.block);
                    b
                }
            };
            let other = loom::thread::spawn(thread(pool.clone()));
            let (mine, others) = (thread(pool.clone())(), other.join().unwrap());
            assert_ne!(mine.address, others.address);
            pool.release(mine.block);
            pool.release(others.block);
            let stats = pool.stats();
            assert_eq!((stats.live, stats.held), (0, 0));
            assert_eq!(pool.release_idle(), stats.cached);
            assert_eq!(gpu.info(), Ok((TOTAL, TOTAL)));
        });
    }

    #[test]
    fn pools_of_one_gpu_release_idle_memory_for_each_other() {
        model(|| {
            let (gpu, pools) = pools::<2>();
            // The idle memory of one pool is more than the other leaves free.
            let kept = pools[1].alloc(60 * MIB, || false).unwrap();
            pools[1].release(kept.block);
            let thread = |mine: Arc<LoomPool>, other: Arc<LoomPool>| {
                move || {
                    let taken = mine.alloc(45 * MIB, || other.release_idle() > 0);
                    taken.map(|taken| mine.release(taken.block)).is_ok()
                }
            };
            let [first, second] = pools.clone();
            let other = loom::thread::spawn(thread(first, second));
            let [first, second] = pools.clone();
            let outcomes = [thread(second, first)(), other.join().unwrap()];
            // A request may only fail while the other thread uses the memory that had been idle.
            assert!(outcomes.contains(&true));
            pools.iter().for_each(|pool| assert_eq!(pool.stats().live, 0));
            let all = pools[0].alloc(90 * MIB, || pools[1].release_idle() > 0);
            pools[0].release(all.unwrap().block);
            for pool in &pools {
                pool.release_idle();
            }
            assert_eq!(gpu.info(), Ok((TOTAL, TOTAL)));
        });
    }

    #[test]
    fn all_siblings_release_memory_once_before_a_request_fails() {
        model(|| {
            let (gpu, [mine, siblings @ ..]) = pools::<4>();
            let kept: Vec<_> = siblings.iter().map(|pool| pool.alloc(30 * MIB, || false).unwrap()).collect();
            siblings.iter().zip(kept).for_each(|(pool, taken)| pool.release(taken.block));
            let mut calls = 0;
            let taken = mine.alloc(100 * MIB, || {
                calls += 1;
                siblings.iter().map(|pool| pool.release_idle()).sum::<usize>() > 0
            });
            mine.release(taken.unwrap().block);
            assert_eq!((calls, gpu.info()), (1, Ok((0, TOTAL))));
            let mut calls = 0;
            let failed = mine.alloc(101 * MIB, || {
                calls += 1;
                false
            });
            assert!(matches!(failed, Err(AllocError::OutOfMemory { free: TOTAL, .. })));
            assert_eq!(calls, 1);
        });
    }
}
