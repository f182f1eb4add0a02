//! Keeps the driver alive while other threads are inside its calls when the process ends.
//!
//! HIP and the libraries above it tear themselves down in exit handlers. This module's handler runs before theirs. It
//! waits for the calls in flight and stops later ones, so that no call is in flight when the teardown begins.
use std::cell::Cell;
use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time to wait for calls in flight: a kernel that never ends must not keep the process alive.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two checks for calls in flight.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

static ENDING: AtomicBool = AtomicBool::new(false);
/// Identifier of the process whose calls are counted: a forked child inherits the counts, but not the other threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static SLOTS: Mutex<Slots> = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });
/// Counter for threads that have already released their own slot: calls from destructors of thread-locals.
static SHARED: Slot = Slot { calls: AtomicU32::new(0), shared: true };

/// Nesting depth of a thread's calls. The alignment keeps slots on separate cache lines, so that counting does not slow
/// down other threads.
#[repr(align(128))]
struct Slot {
    calls: AtomicU32,
    shared: bool,
}

/// The slots of all threads. They are never freed; the slot of a finished thread is reused.
struct Slots {
    all: Vec<&'static Slot>,
    free: Vec<&'static Slot>,
}

thread_local! {
    static SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static SLOT_GUARD: SlotGuard = const { SlotGuard };
    /// True on the thread that runs the exit handlers.
    static IS_EXITING_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Releases this thread's slot when the thread ends.
struct SlotGuard;

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(slot) = SLOT.replace(Some(&SHARED)).filter(|slot| !slot.shared) {
            slots(|slots| slots.free.push(slot));
        }
    }
}

/// A call in flight: the exit handler waits until it is dropped.
pub(crate) struct InFlight(&'static Slot);

impl Drop for InFlight {
    #[inline]
    fn drop(&mut self) {
        let Slot { calls, shared } = self.0;
        if *shared {
            calls.fetch_sub(1, Ordering::Release);
        } else {
            // Only this thread writes to its slot, so a plain store suffices.
            calls.store(calls.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
    }
}

/// Returns true if the process is ending. From then on calls on the thread that ends it return an error, and calls on
/// other threads do not return.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Begins a call. While the process ends, returns `None` on the thread that ends it and does not return on other threads,
/// except for calls nested in a call that is already in flight.
#[inline]
pub(crate) fn enter() -> Option<InFlight> {
    let slot = SLOT.get().unwrap_or_else(own_slot);
    // Increment, then read ENDING; `end` does the opposite. Both are SeqCst, so either the handler sees this call or
    // this call sees ENDING.
    let before = slot.calls.fetch_add(1, Ordering::SeqCst);
    let call = InFlight(slot);
    if is_ending() { while_ending(call, before) } else { Some(call) }
}

#[cold]
fn while_ending(call: InFlight, before: u32) -> Option<InFlight> {
    if IS_EXITING_THREAD.get() {
        return None;
    }
    if before > 0 && !call.0.shared {
        return Some(call);
    }
    drop(call);
    loop {
        std::thread::park();
    }
}

#[cold]
fn own_slot() -> &'static Slot {
    if SLOT_GUARD.try_with(|_| ()).is_err() {
        SLOT.set(Some(&SHARED));
        return &SHARED;
    }
    let slot = slots(|slots| {
        slots.free.pop().unwrap_or_else(|| {
            let slot = Box::leak(Box::new(Slot { calls: AtomicU32::new(0), shared: false }));
            slots.all.push(slot);
            slot
        })
    });
    SLOT.set(Some(slot));
    slot
}

fn slots<T>(use_them: impl FnOnce(&mut Slots) -> T) -> T {
    use_them(&mut SLOTS.lock().unwrap_or_else(PoisonError::into_inner))
}

unsafe extern "C" {
    /// C's `atexit`: the handler that was registered last runs first.
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Registers [`end`] again, so that it runs before every exit handler registered so far.
pub(crate) fn run_before_other_handlers() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: `end` does not unwind. If the C library cannot register another handler, the earlier registration of
    // `end` remains.
    unsafe { atexit(end) };
}

extern "C" fn end() {
    IS_EXITING_THREAD.set(true);
    // The handler is registered several times; only the first run does the work.
    if ENDING.swap(true, Ordering::SeqCst) || PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let own = SLOT.get();
    let begun = Instant::now();
    // A slot created after this copy belongs to a thread that sees ENDING.
    for slot in slots(|slots| slots.all.clone()).into_iter().chain([&SHARED]) {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, slot));
        while !is_own && slot.calls.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() >= SHUTDOWN_TIMEOUT {
                report_timeout();
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Writes a warning to stderr without `eprintln`, whose lock a stopped or stuck thread may hold.
fn report_timeout() {
    if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
        // There is no way left to report a failed write.
        let _ = writeln!(
            File::from(stderr),
            "rocm-loader: the process ends while a call into the driver has not ended for {SHUTDOWN_TIMEOUT:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_calls_are_counted_and_slots_are_reused() {
        let slot_of = || {
            let outer = enter().expect("the process is not ending");
            let inner = enter().expect("the process is not ending");
            assert!(std::ptr::eq(outer.0, inner.0) && outer.0.calls.load(Ordering::SeqCst) == 2);
            drop(inner);
            assert_eq!(outer.0.calls.load(Ordering::SeqCst), 1);
            let slot = outer.0;
            drop(outer);
            assert_eq!(slot.calls.load(Ordering::SeqCst), 0);
            std::ptr::from_ref(slot).addr()
        };
        let here = slot_of();
        let threads: Vec<_> =
            (0..20).map(|_| std::thread::spawn(slot_of).join().expect("no panic")).collect();
        assert!(threads.iter().all(|slot| *slot != here));
        let made = slots(|slots| slots.all.len());
        assert!(made < 20, "twenty threads, one after the other, made {made} slots");
    }

    #[test]
    fn a_call_after_the_slot_is_released_is_counted_too() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                drop(enter().expect("the process is not ending"));
            }
        }
        thread_local! {
            static LATE: Late = const { Late };
        }
        let thread = std::thread::spawn(|| {
            // The order of destructors is unspecified: one of the two runs after the other.
            LATE.with(|_| ());
            drop(enter());
        });
        thread.join().expect("no panic");
        assert_eq!(SHARED.calls.load(Ordering::SeqCst), 0);
    }
}
