//! Connections between the processes of ranks, by which a rank notices that another one has ended. RCCL itself reports
//! nothing if a process ends without an error.
//!
//! Rank 0 is connected to each of the others, and passes on to them which rank has ended.
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

/// First byte of the message of a rank that has dropped its communicator. It takes part in no further operation.
const LEFT: u8 = 2;
/// First byte of the message that another rank has ended, followed by the rank and its process.
const ENDED: u8 = 3;

/// A rank of another process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Peer {
    rank: u64,
    process: u64,
}

/// A connection to a rank of another process.
pub(super) struct Link {
    peer: Peer,
    stream: TcpStream,
}

impl Link {
    /// Exchanges the numbers of the processes over a blocking connection to rank `rank`.
    pub(super) fn new(mut stream: TcpStream, rank: usize) -> io::Result<Self> {
        stream.write_all(&u64::from(std::process::id()).to_le_bytes())?;
        let mut process = [0; 8];
        stream.read_exact(&mut process)?;
        stream.set_nonblocking(true)?;
        Ok(Self { peer: Peer { rank: rank as u64, process: u64::from_le_bytes(process) }, stream })
    }

    /// Returns what has happened at the other end, if anything has.
    fn poll(&mut self) -> Option<LinkEvent> {
        let mut message = [0; 17];
        match self.stream.read(&mut message) {
            Ok(17) if message[0] == ENDED => {
                let number = |at: usize| message[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
                Some(LinkEvent::Ended(Peer { rank: number(1), process: number(9) }))
            }
            Ok(count) if count > 0 && message[0] == LEFT => Some(LinkEvent::Left),
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
            // The connection was closed or reset, or another program wrote to it.
            _ => Some(LinkEvent::Ended(self.peer)),
        }
    }
}

/// Event at the other end of a connection.
enum LinkEvent {
    /// The rank has dropped its communicator.
    Left,
    /// A rank's process has ended.
    Ended(Peer),
}

/// The connections of a rank.
pub(super) struct Links(Mutex<Vec<Link>>);

impl Links {
    pub(super) fn new(links: Vec<Link>) -> Self {
        Self(Mutex::new(links))
    }

    /// Returns a text that names a rank that has ended without dropping its communicator, once. Rank 0 notifies the others.
    pub(super) fn ended(&self) -> Option<String> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut ended, mut is_known) = (None, false);
        links.retain_mut(|link| match link.poll() {
            None => true,
            Some(LinkEvent::Left) => false,
            Some(LinkEvent::Ended(peer)) => {
                ended.get_or_insert(peer);
                is_known |= peer != link.peer;
                peer != link.peer
            }
        });
        let Peer { rank, process } = ended?;
        if !is_known {
            let message = [&[ENDED][..], &rank.to_le_bytes(), &process.to_le_bytes()].concat();
            for link in &mut *links {
                // A rank that cannot be notified has ended, too.
                let _ = link.stream.write_all(&message);
            }
        }
        Some(format!("rank {rank} (process {process}) has ended or failed"))
    }

    /// Notifies the others that this rank takes part in no further operation.
    pub(super) fn leave(&mut self) {
        for link in self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = link.stream.write_all(&[LEFT]);
        }
    }

    /// Closes all connections, so that the others notice that this rank has failed.
    pub(super) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Returns both ends of a connection between rank 0 and rank `rank`.
    fn linked(rank: usize) -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(move || Link::new(TcpStream::connect(address).unwrap(), 0).unwrap());
            let own = Link::new(listener.accept().unwrap().0, rank).unwrap();
            (own, other.join().unwrap())
        })
    }

    fn wait(links: &Links) -> String {
        loop {
            if let Some(text) = links.ended() {
                return text;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_rank_that_ends_is_named_on_every_rank() {
        let ((to_first, first), (to_second, second)) = (linked(1), linked(2));
        let (root, first) = (Links::new(vec![to_first, to_second]), Links::new(vec![first]));
        assert_eq!((root.ended(), first.ended()), (None, None));
        drop(second);
        let expected = format!("rank 2 (process {}) has ended or failed", std::process::id());
        assert_eq!(wait(&root), expected);
        assert_eq!(wait(&first), expected);
        assert_eq!((root.ended(), first.ended()), (None, None), "it is reported once");
        root.close();
        assert!(wait(&first).starts_with("rank 0 (process "));
    }

    #[test]
    fn a_rank_that_leaves_is_no_failure() {
        let ((to_first, first), (to_second, second)) = (linked(1), linked(2));
        let root = Links::new(vec![to_first, to_second]);
        let mut first = Links::new(vec![first]);
        first.leave();
        drop(first);
        // The end of the second rank is found after the first one has left.
        drop(second);
        assert!(wait(&root).starts_with("rank 2 "));
        assert_eq!(root.ended(), None);
    }
}
