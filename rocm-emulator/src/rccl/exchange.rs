//! Messages between two ranks. Those of one group are in transit at the same time, so that ranks may send to each other.
use super::call::Call;
use super::communicator::Communicator;
use super::segment::PARCEL;
use super::types::{DataType, Kind};
use std::sync::atomic::Ordering;

/// Progress of a message.
#[derive(Clone, Copy)]
pub struct Message {
    pub call: Call,
    done: usize,
    is_complete: bool,
}

/// The result of a step of a message.
pub enum Step {
    Waiting,
    Moved,
    /// The ranks disagree; the text names them.
    Disagreement(String),
}

impl Message {
    pub fn new(call: Call) -> Self {
        Self { call, done: 0, is_complete: false }
    }

    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn sends(&self) -> bool {
        self.call.kind == Kind::Send
    }

    /// Returns the sender and the receiver.
    fn ends(&self, communicator: &Communicator) -> (usize, usize) {
        match self.sends() {
            true => (communicator.rank, self.call.peer),
            false => (self.call.peer, communicator.rank),
        }
    }

    /// Returns true if the other rank is ready: the parcel is empty for the sender, full for the receiver.
    pub fn can_move(&self, communicator: &Communicator) -> bool {
        let (from, to) = self.ends(communicator);
        let mailbox = communicator.segment.mailbox(from, to);
        (mailbox.written.load(Ordering::Acquire) == mailbox.read.load(Ordering::Acquire)) == self.sends()
    }

    /// Moves the next parcel if the other rank is ready.
    ///
    /// # Safety
    /// The device memory of the call must be mapped and not referenced.
    pub unsafe fn step(&mut self, communicator: &Communicator) -> Step {
        if !self.can_move(communicator) {
            return Step::Waiting;
        }
        let (own, peer, bytes) = (communicator.rank, self.call.peer, self.call.bytes);
        let (from, to) = self.ends(communicator);
        let (mailbox, parcel) =
            (communicator.segment.mailbox(from, to), communicator.segment.parcel(from, to));
        let len = PARCEL.min(bytes - self.done);
        if self.sends() {
            let source = std::ptr::with_exposed_provenance::<u8>(self.call.send + self.done);
            // SAFETY: the caller guarantees the source; the parcel belongs to the sender while it is empty.
            unsafe { std::ptr::copy_nonoverlapping(source, parcel, len) };
            mailbox.count.store(self.call.count as u64, Ordering::Relaxed);
            mailbox.datatype.store(self.call.datatype as u64, Ordering::Relaxed);
            mailbox.written.fetch_add(1, Ordering::Release);
        } else {
            let count = mailbox.count.load(Ordering::Relaxed);
            let datatype = DataType::new(mailbox.datatype.load(Ordering::Relaxed));
            if count != self.call.count as u64 || datatype != Some(self.call.datatype) {
                let sent = datatype.map_or("unknown", DataType::name);
                let (own_count, own_type) = (self.call.count, self.call.datatype.name());
                return Step::Disagreement(format!(
                    "rank {own} receives {own_count} {own_type} from rank {peer}, which sends {count} {sent}"
                ));
            }
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.call.receive + self.done);
            // SAFETY: the caller guarantees the target; the parcel belongs to the receiver while it is full.
            unsafe { std::ptr::copy_nonoverlapping(parcel, target, len) };
            mailbox.read.fetch_add(1, Ordering::Release);
        }
        self.done += len;
        self.is_complete = self.done == bytes;
        Step::Moved
    }
}
