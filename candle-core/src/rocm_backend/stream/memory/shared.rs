//! A pool that several threads use at once, and that makes room with others on the same GPU.
use super::arena::BlockId;
use super::pool::{Allocation, Driver, MemoryStats, Pool, Refusal};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

/// Lock of a pool: the standard mutex, or one whose every schedule a test goes through.
pub(super) trait Lock<T> {
    fn of(value: T) -> Self;
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

impl<T> Lock<T> for Mutex<T> {
    fn of(value: T) -> Self {
        Self::new(value)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // A pool is whole between any two calls of the driver, which are all that can fail in it.
        work(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A [`Pool`] under a lock. No call holds the lock of another pool at the same time.
pub(super) struct Shared<D: Driver, L: Lock<Pool<D>> = Mutex<Pool<D>>> {
    pool: L,
    driver: PhantomData<fn() -> D>,
}

impl<D: Driver, L: Lock<Pool<D>>> Shared<D, L> {
    pub(super) fn new(pool: Pool<D>) -> Self {
        Self { pool: L::of(pool), driver: PhantomData }
    }

    /// Memory of at least `bytes` bytes. Where this pool finds none, also after giving back what is idle in it,
    /// `siblings_give_back` is called once, without the lock: it has all other pools of the GPU give back what is idle
    /// in them, and says whether any had something. If so, the request is tried once more before it is refused.
    pub(super) fn take(
        &self,
        bytes: usize,
        siblings_give_back: impl FnOnce() -> bool,
    ) -> Result<Allocation, Refusal<D::Error>> {
        let outcome = self.pool.with(|pool| pool.take(bytes));
        let short = matches!(outcome, Err(Refusal::OutOfMemory { .. } | Refusal::BeyondReserve { .. }));
        if short && siblings_give_back() {
            self.pool.with(|pool| pool.take(bytes))
        } else {
            outcome
        }
    }

    /// Takes memory back that [`Self::take`] gave.
    pub(super) fn give(&self, block: BlockId) {
        self.pool.with(|pool| pool.give(block));
    }

    /// Gives all idle segments back to the driver; returns how many bytes.
    pub(super) fn give_back_idle(&self) -> usize {
        self.pool.with(|pool| pool.give_back_idle(0))
    }

    pub(super) fn stats(&self) -> MemoryStats {
        self.pool.with(|pool| pool.stats())
    }

    /// For what is seldom done.
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

    /// A GPU that two pools share: bytes in use, and the next address.
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
        let limits = Limits { share: 100, parked: None, reserve: 0, idle: None };
        let pools = std::array::from_fn(|_| Arc::new(Shared::new(Pool::new(gpu.clone(), limits, 0))));
        (gpu, pools)
    }

    /// Goes through every order of the threads' steps with up to two preemptions.
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
                    let (a, b) = (pool.take(3 * MIB, || false).unwrap(), pool.take(1000, || false).unwrap());
                    pool.give(a.block);
                    b
                }
            };
            let other = loom::thread::spawn(thread(pool.clone()));
            let (mine, others) = (thread(pool.clone())(), other.join().unwrap());
            assert_ne!(mine.address, others.address);
            pool.give(mine.block);
            pool.give(others.block);
            let stats = pool.stats();
            assert_eq!((stats.live, stats.held), (0, 0));
            assert_eq!(pool.give_back_idle(), stats.parked);
            assert_eq!(gpu.info(), Ok((TOTAL, TOTAL)));
        });
    }

    #[test]
    fn pools_of_one_gpu_make_room_for_each_other() {
        model(|| {
            let (gpu, pools) = pools::<2>();
            // Either keeps more than the other leaves free.
            let kept = pools[1].take(60 * MIB, || false).unwrap();
            pools[1].give(kept.block);
            let thread = |mine: Arc<LoomPool>, other: Arc<LoomPool>| {
                move || {
                    let taken = mine.take(45 * MIB, || other.give_back_idle() > 0);
                    taken.map(|taken| mine.give(taken.block)).is_ok()
                }
            };
            let [first, second] = pools.clone();
            let other = loom::thread::spawn(thread(first, second));
            let [first, second] = pools.clone();
            let outcomes = [thread(second, first)(), other.join().unwrap()];
            // Refused is only who came while the other was using what had been idle.
            assert!(outcomes.contains(&true));
            pools.iter().for_each(|pool| assert_eq!(pool.stats().live, 0));
            let all = pools[0].take(90 * MIB, || pools[1].give_back_idle() > 0);
            pools[0].give(all.unwrap().block);
            for pool in &pools {
                pool.give_back_idle();
            }
            assert_eq!(gpu.info(), Ok((TOTAL, TOTAL)));
        });
    }

    #[test]
    fn all_siblings_give_back_before_a_refusal_and_are_asked_once() {
        model(|| {
            let (gpu, [mine, siblings @ ..]) = pools::<4>();
            let kept: Vec<_> = siblings.iter().map(|pool| pool.take(30 * MIB, || false).unwrap()).collect();
            siblings.iter().zip(kept).for_each(|(pool, taken)| pool.give(taken.block));
            let mut asked = 0;
            let taken = mine.take(100 * MIB, || {
                asked += 1;
                siblings.iter().map(|pool| pool.give_back_idle()).sum::<usize>() > 0
            });
            mine.give(taken.unwrap().block);
            assert_eq!((asked, gpu.info()), (1, Ok((0, TOTAL))));
            let mut asked = 0;
            let refused = mine.take(101 * MIB, || {
                asked += 1;
                false
            });
            assert!(matches!(refused, Err(Refusal::OutOfMemory { free: TOTAL, .. })));
            assert_eq!(asked, 1);
        });
    }
}
