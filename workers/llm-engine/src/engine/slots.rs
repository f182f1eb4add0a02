//! Slots for loaded models, which several engines share.
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Grant = Box<dyn FnOnce(ModelSlot) + Send>;
type Claim = Box<dyn Fn() + Send>;

/// A fixed number of slots for loaded models. An engine holds a [`ModelSlot`] while its model is loaded. If none is free,
/// the slot of the least recently used engine is claimed. Requests are granted in order.
#[derive(Clone)]
pub struct ModelSlots(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    free: usize,
    holders: Vec<Holder>,
    waiting: VecDeque<Grant>,
    /// Number of slots granted so far.
    granted: u64,
    /// Number of uses recorded so far.
    uses: u64,
}

/// An engine with a slot.
struct Holder {
    id: u64,
    /// Number of the last use.
    used: u64,
    is_claimed: bool,
    claim: Option<Claim>,
}

impl ModelSlots {
    /// Creates `count` slots, at least one.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: count.max(1), ..State::default() })))
    }

    /// Requests a slot. `granted` receives it on this thread, or later on the thread of an engine that releases one. The
    /// callback must return quickly. If it drops the slot, the next request is granted.
    pub fn request(&self, granted: impl FnOnce(ModelSlot) + Send + 'static) {
        self.lock().waiting.push_back(Box::new(granted));
        self.distribute();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the free slots, and claims one for each request that still waits.
    fn distribute(&self) {
        loop {
            let mut state = self.lock();
            let Some(grant) = state.grant() else {
                state.claim();
                return;
            };
            let id = state.granted;
            // A callback may request or drop slots.
            drop(state);
            grant(ModelSlot { slots: self.clone(), id });
        }
    }
}

impl State {
    /// Makes the first waiting request a holder, if a slot is free.
    fn grant(&mut self) -> Option<Grant> {
        let grant = if self.free > 0 { self.waiting.pop_front()? } else { return None };
        self.free -= 1;
        self.granted += 1;
        self.uses += 1;
        let (id, used) = (self.granted, self.uses);
        self.holders.push(Holder { id, used, is_claimed: false, claim: None });
        Some(grant)
    }

    fn claim(&mut self) {
        let claimed = self.holders.iter().filter(|holder| holder.is_claimed).count();
        for _ in claimed..self.waiting.len() {
            let unclaimed = self.holders.iter_mut().filter(|holder| !holder.is_claimed);
            let Some(holder) = unclaimed.min_by_key(|holder| holder.used) else { return };
            holder.is_claimed = true;
            holder.claim.iter().for_each(|claim| claim());
        }
    }

    fn holder(&mut self, id: u64) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.id == id)
    }
}

/// Slot for one loaded model, released when dropped.
pub struct ModelSlot {
    slots: ModelSlots,
    id: u64,
}

impl ModelSlot {
    /// Sets the callback that is called when another model needs the slot, immediately if one already does.
    /// The callback must return quickly and must not use the slots.
    pub fn on_claim(&self, claim: impl Fn() + Send + 'static) {
        let mut state = self.slots.lock();
        if let Some(holder) = state.holder(self.id) {
            if holder.is_claimed {
                claim();
            }
            holder.claim = Some(Box::new(claim));
        }
    }

    /// Records that the model is used now.
    pub fn mark_used(&self) {
        let mut state = self.slots.lock();
        state.uses += 1;
        let used = state.uses;
        if let Some(holder) = state.holder(self.id) {
            holder.used = used;
        }
    }

    /// Returns the slots that it belongs to.
    pub fn slots(&self) -> &ModelSlots {
        &self.slots
    }
}

impl Drop for ModelSlot {
    fn drop(&mut self) {
        let mut state = self.slots.lock();
        state.holders.retain(|holder| holder.id != self.id);
        state.free += 1;
        drop(state);
        self.slots.distribute();
    }
}

impl fmt::Debug for ModelSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelSlot").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn request(slots: &ModelSlots) -> Receiver<ModelSlot> {
        let (sender, receiver) = channel();
        slots.request(move |slot| sender.send(slot).unwrap_or_default());
        receiver
    }

    fn claims(slot: &ModelSlot) -> Receiver<()> {
        let (sender, receiver) = channel();
        slot.on_claim(move || sender.send(()).unwrap_or_default());
        receiver
    }

    #[test]
    fn slots_are_granted_in_order() {
        let slots = ModelSlots::new(1);
        let first = request(&slots).try_recv().unwrap();
        let (second, third) = (request(&slots), request(&slots));
        assert!(second.try_recv().is_err());
        drop(first);
        let second = second.try_recv().unwrap();
        assert!(third.try_recv().is_err());
        drop(second);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn the_least_recently_used_slot_is_claimed_once() {
        let slots = ModelSlots::new(2);
        let [first, second] = [(); 2].map(|()| request(&slots).try_recv().unwrap());
        let (of_first, of_second) = (claims(&first), claims(&second));
        first.mark_used();
        let third = request(&slots);
        assert_eq!((of_first.try_recv().is_ok(), of_second.try_recv().is_ok()), (false, true));
        let _fourth = request(&slots);
        assert_eq!((of_first.try_recv().is_ok(), of_second.try_recv().is_ok()), (true, false));
        let _fifth = request(&slots);
        assert_eq!((of_first.try_recv().is_ok(), of_second.try_recv().is_ok()), (false, false));
        // The fifth request claims the slot that the third one gets.
        drop(second);
        let third = third.try_recv().unwrap();
        assert!(claims(&third).try_recv().is_ok());
    }

    #[test]
    fn abandoned_requests_leave_their_slot_to_the_next() {
        let slots = ModelSlots::new(0);
        let first = request(&slots).try_recv().unwrap();
        drop(request(&slots));
        let third = request(&slots);
        drop(first);
        assert!(third.try_recv().is_ok());
    }
}
