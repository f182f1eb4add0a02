//! Keeps the driver in place under calls that other threads are in when the process ends.
//!
//! HIP and the libraries above it tear themselves down in exit handlers. A handler of ours runs before theirs:
//! it lets the calls in flight end and stops later ones, so that nobody is inside when they begin.
use std::cell::Cell;
use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a call in flight is waited for: a kernel that never ends must not keep the process alive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at the calls in flight.
const PAUSE: Duration = Duration::from_micros(200);

static ENDING: AtomicBool = AtomicBool::new(false);
/// The process that the calls are counted in: a forked child has the counts, but not the other threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static SLOTS: Mutex<Slots> = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });
/// Counts for threads whose own slot is given back already: calls from the destructors of thread-locals.
static SHARED: Slot = Slot { calls: AtomicU32::new(0), shared: true };

/// How many calls, one inside of another, a thread is in. On cache lines of its own, so that counting does
/// not slow other threads.
#[repr(align(128))]
struct Slot {
    calls: AtomicU32,
    shared: bool,
}

/// Slots are never freed; a thread that ends leaves its own to the next.
struct Slots {
    all: Vec<&'static Slot>,
    free: Vec<&'static Slot>,
}

thread_local! {
    static SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    static GIVE_BACK: GiveBack = const { GiveBack };
    /// Whether this thread runs the exit handlers.
    static ENDS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Gives this thread's slot back when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
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
            // Only this thread writes here, so that a plain store does.
            calls.store(calls.load(Ordering::Relaxed) - 1, Ordering::Release);
        }
    }
}

/// Whether the process is ending: calls from other threads than the one that ends it do not return any more, and
/// that one's return an error.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Begins a call. `None` on the thread that ends the process; does not return on others while it ends, unless
/// inside of a call that is waited for.
#[inline]
pub(crate) fn enter() -> Option<InFlight> {
    let slot = SLOT.get().unwrap_or_else(own_slot);
    // Counted first, asked second, and `end` does it the other way round, all in one total order: either the
    // handler sees this call, or this call sees the handler.
    let before = slot.calls.fetch_add(1, Ordering::SeqCst);
    let call = InFlight(slot);
    if is_ending() { while_ending(call, before) } else { Some(call) }
}

#[cold]
fn while_ending(call: InFlight, before: u32) -> Option<InFlight> {
    if ENDS_HERE.get() {
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
    if GIVE_BACK.try_with(|_| ()).is_err() {
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
    /// C's `atexit`: what is registered last runs first.
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Has [`end`] run before every exit handler that is registered by now.
pub(crate) fn run_before_other_handlers() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the function is C's, and what it gets does not unwind. If the host cannot keep one more, the
    // one that is registered already has to do.
    unsafe { atexit(end) };
}

extern "C" fn end() {
    ENDS_HERE.set(true);
    // Registered again and again; the first to run does it all.
    if ENDING.swap(true, Ordering::SeqCst) || PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let own = SLOT.get();
    let begun = Instant::now();
    // A slot that is made after this look belongs to a thread that sees ENDING.
    for slot in slots(|slots| slots.all.clone()).into_iter().chain([&SHARED]) {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, slot));
        while !is_own && slot.calls.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() >= PATIENCE {
                report_impatience();
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Not by `eprintln`: a thread that is stopped or stuck may hold its lock.
fn report_impatience() {
    if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
        // Nobody is left to be told that it cannot be written.
        let _ = writeln!(
            File::from(stderr),
            "rocm-loader: the process ends while a call into the driver has not ended for {PATIENCE:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_inside_of_each_other_and_slots_serve_again() {
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
    fn a_call_after_the_slot_is_given_back_is_counted_too() {
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
            // Destructors run in an order that is not said: one of the two comes late.
            LATE.with(|_| ());
            drop(enter());
        });
        thread.join().expect("no panic");
        assert_eq!(SHARED.calls.load(Ordering::SeqCst), 0);
    }
}
