//! A pool that several threads use at once, and that makes room with others on the same GPU.
use super::pool::{Driver, MemoryStats, Pool, Refusal};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

/// What a pool is locked with: the standard mutex, or one whose every schedule a test goes through.
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

    /// Memory of at least `bytes` bytes. Before it is refused, `others_give_back` has other pools of the GPU give back
    /// what they have parked, and says whether there was anything.
    pub(super) fn take(
        &self,
        bytes: usize,
        others_give_back: impl Fn() -> bool,
    ) -> Result<usize, Refusal<D::Error>> {
        match self.pool.with(|pool| pool.take(bytes)) {
            Err(Refusal::OutOfMemory { .. } | Refusal::BeyondShare { .. }) if others_give_back() => {
                self.pool.with(|pool| pool.take(bytes))
            }
            outcome => outcome,
        }
    }

    /// Takes memory back that [`Self::take`] gave. Returns false if it is none of it.
    pub(super) fn give(&self, address: usize) -> bool {
        self.pool.with(|pool| pool.give(address))
    }

    /// Gives what is parked back to the driver as far as it can be; returns the bytes.
    pub(super) fn give_back_parked(&self) -> usize {
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

    fn two_pools() -> (Gpu, [Arc<LoomPool>; 2]) {
        let gpu = Gpu(Arc::new((AtomicUsize::new(0), AtomicUsize::new(MIB))));
        let limits = Limits { share: 100, parked: usize::MAX };
        let pool = || Arc::new(Shared::new(Pool::new(gpu.clone(), limits)));
        let pools = [pool(), pool()];
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
            let (gpu, [pool, _]) = two_pools();
            let thread = |pool: Arc<LoomPool>| {
                move || {
                    let (a, b) = (pool.take(3 * MIB, || false).unwrap(), pool.take(1000, || false).unwrap());
                    assert!(pool.give(a));
                    b
                }
            };
            let other = loom::thread::spawn(thread(pool.clone()));
            let (mine, others) = (thread(pool.clone())(), other.join().unwrap());
            assert_ne!(mine, others);
            assert!(pool.give(mine) && pool.give(others) && !pool.give(mine));
            let stats = pool.stats();
            assert_eq!((stats.live, stats.held), (0, 0));
            assert_eq!(pool.give_back_parked(), stats.parked);
            assert_eq!(gpu.info(), Ok((TOTAL, TOTAL)));
        });
    }

    #[test]
    fn pools_of_one_gpu_make_room_for_each_other() {
        model(|| {
            let (gpu, pools) = two_pools();
            // Either parks more than the other leaves free.
            let parked = pools[1].take(60 * MIB, || false).unwrap();
            assert!(pools[1].give(parked));
            let thread = |mine: Arc<LoomPool>, other: Arc<LoomPool>| {
                move || {
                    let taken = mine.take(45 * MIB, || other.give_back_parked() > 0);
                    taken.map(|address| assert!(mine.give(address))).is_ok()
                }
            };
            let [first, second] = pools.clone();
            let other = loom::thread::spawn(thread(first, second));
            let [first, second] = pools.clone();
            let outcomes = [thread(second, first)(), other.join().unwrap()];
            // Refused is only who came while the other was using what had been parked.
            assert!(outcomes.contains(&true));
            pools.iter().for_each(|pool| assert_eq!(pool.stats().live, 0));
            let all = pools[0].take(90 * MIB, || pools[1].give_back_parked() > 0);
            assert!(all.is_ok_and(|address| pools[0].give(address)));
            for pool in &pools {
                pool.give_back_parked();
            }
            assert_eq!(gpu.info(), Ok((TOTAL, TOTAL)));
        });
    }
}
