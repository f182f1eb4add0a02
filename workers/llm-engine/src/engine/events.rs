//! Bounded channel from the engine's thread to the reader of a stream.
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};

use crate::request::Event;

/// Sender of a stream's events. It never waits for the reader, and the final event always fits.
pub(super) struct EventSink {
    events: Sender<Event>,
    last: Option<OwnedPermit<Event>>,
    max_unread: usize,
}

impl EventSink {
    /// Creates a channel for `max_unread` unread events and the final one.
    pub(super) fn new(max_unread: usize) -> (Self, Receiver<Event>) {
        let (events, receiver) = channel(max_unread + 1);
        let last = events.clone().try_reserve_owned().ok();
        (Self { events, last, max_unread }, receiver)
    }

    /// Returns true if the reader was dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Sends an event. Has no effect if the reader was dropped.
    ///
    /// # Errors
    /// Returns the event that ends the stream if too many are unread.
    pub(super) fn send(&self, event: Event) -> Result<(), Event> {
        match self.events.try_send(event) {
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Event::Error {
                code: "client_too_slow",
                message: format!(
                    "the text was cancelled because the client left {} events unread; read the stream faster, \
                     or request the text without `stream`",
                    self.max_unread
                ),
            }),
        }
    }

    /// Sends the final event, once.
    pub(super) fn finish(&mut self, event: Event) {
        if let Some(last) = self.last.take() {
            last.send(event);
        }
    }
}
