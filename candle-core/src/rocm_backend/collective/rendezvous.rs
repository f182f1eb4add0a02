//! Passing the unique id from rank 0 to the processes of the other ranks.
use super::communicator::{Communicator, Id};
use super::links::{Link, Links};
use crate::rocm_backend::RocmError;
use crate::{Device, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// First bytes of a file or a connection; the last digit is the version of the format.
const MAGIC: &[u8; 16] = b"candle-rocm-id 1";
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum time for one connection, so that a silent client does not block the others.
const EXCHANGE_TIME: Duration = Duration::from_secs(5);
/// First byte of the reply to a rank that may join. Other ranks receive an error text.
const ACCEPTED: u8 = 1;

/// Length of [`encode`]'s result.
const ENCODED_BYTES: usize = 16 + 8 + 128;

/// Place where processes find the unique id of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// A file that rank 0 creates, and removes when all ranks have joined. Only its owner may read it.
    File(PathBuf),
    /// An address on which rank 0 listens, and to which the others connect. The connections remain, so that the ranks notice
    /// at once if a process ends.
    Tcp(SocketAddr),
}

fn error(rank: usize, text: impl std::fmt::Display) -> crate::Error {
    RocmError::Unsupported(format!("exchanging the unique id failed on rank {rank}: {text}")).into()
}

impl Communicator {
    /// Joins a communicator as rank `rank` of `world_size`, where each rank is a separate process. Waits up to
    /// `deadline` for the unique id of rank 0.
    ///
    /// # Errors
    /// If the ranks do not find each other in time, were started with different numbers of ranks, or a rank is started
    /// twice; if the file exists already, belongs to another user or is damaged; if the address is in use; and the errors
    /// of [`Self::new`].
    pub fn connect(
        device: &Device,
        rank: usize,
        world_size: usize,
        rendezvous: &Rendezvous,
        deadline: Duration,
    ) -> Result<Self> {
        if rank >= world_size {
            return Err(error(rank, format_args!("there are only {world_size} ranks, numbered from 0")));
        }
        let until = Instant::now() + deadline;
        let (id, links) = match (rendezvous, rank) {
            (Rendezvous::File(path), 0) => (write_file(path, world_size)?, Vec::new()),
            (Rendezvous::File(path), _) => (read_file(path, rank, world_size, until)?, Vec::new()),
            (Rendezvous::Tcp(address), 0) => serve(*address, world_size, until)?,
            (Rendezvous::Tcp(address), _) => {
                let (id, link) = request(*address, rank, world_size, until)?;
                (id, vec![link])
            }
        };
        let communicator = Self::linked(device, rank, world_size, &id, Some(Links::new(links)));
        if let (Rendezvous::File(path), 0) = (rendezvous, rank) {
            // All ranks have joined, or none can any more.
            let _ = std::fs::remove_file(path);
        }
        communicator
    }
}

/// Encodes the contents of a file, or the answer to a rank.
fn encode(id: &Id, world_size: usize) -> Vec<u8> {
    [&MAGIC[..], &(world_size as u64).to_le_bytes(), &id.to_bytes()].concat()
}

/// Decodes [`encode`]'s result: the identifier and the number of ranks.
fn decode(bytes: &[u8]) -> Option<(Id, u64)> {
    let (world_size, id) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    Some((Id::from_bytes(id.try_into().ok()?), u64::from_le_bytes(*world_size)))
}

fn write_file(path: &Path, world_size: usize) -> Result<Id> {
    let id = Id::new()?;
    // Readers see the file only when it is complete. The link fails if the name exists.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .and_then(|mut file| file.write_all(&encode(&id, world_size)))
        .and_then(|()| std::fs::hard_link(&partial, path));
    let _ = std::fs::remove_file(&partial);
    match written {
        Ok(()) => Ok(id),
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {
            let remedy = "another run uses it, or one has ended early; remove it or use another name";
            Err(error(0, format_args!("{} exists already: {remedy}", path.display())))
        }
        Err(cause) => Err(error(0, format_args!("{} cannot be written: {cause}", path.display()))),
    }
}

fn read_file(path: &Path, rank: usize, world_size: usize, until: Instant) -> Result<Id> {
    let file = loop {
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
            Ok(file) => break file,
            Err(cause) if cause.kind() == ErrorKind::NotFound && Instant::now() < until => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(cause) => {
                let text = format_args!("rank 0's file {} cannot be read: {cause}", path.display());
                return Err(error(rank, text));
            }
        }
    };
    check_owner(&file, path, rank)?;
    let mut bytes = Vec::new();
    let read = file.take(4096).read_to_end(&mut bytes);
    read.map_err(|cause| error(rank, format_args!("{} cannot be read: {cause}", path.display())))?;
    match decode(&bytes) {
        Some((id, count)) if count == world_size as u64 => Ok(id),
        Some((_, count)) => Err(error(
            rank,
            format_args!("rank 0 was started with {count} ranks, rank {rank} with {world_size}"),
        )),
        None => {
            let text = "has not the form of a unique id; remove it and start all ranks again";
            Err(error(rank, format_args!("{} ({} bytes) {text}", path.display(), bytes.len())))
        }
    }
}

/// Returns an error for a file of another user, who could make the ranks connect elsewhere.
fn check_owner(file: &File, path: &Path, rank: usize) -> Result<()> {
    // SAFETY: takes no arguments.
    let user = unsafe { libc::geteuid() };
    match file.metadata().map(|metadata| metadata.uid()) {
        Ok(owner) if owner == user => Ok(()),
        Ok(owner) => Err(error(rank, format_args!("{} belongs to user {owner}, not {user}", path.display()))),
        Err(cause) => Err(error(rank, format_args!("{} cannot be read: {cause}", path.display()))),
    }
}

/// Sends the identifier to the other ranks, and returns it with the connections.
fn serve(address: SocketAddr, world_size: usize, until: Instant) -> Result<(Id, Vec<Link>)> {
    let id = Id::new()?;
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = listener.map_err(|cause| error(0, format_args!("cannot listen on {address}: {cause}")))?;
    let (mut missing, mut links): (Vec<usize>, Vec<Link>) = ((1..world_size).collect(), Vec::new());
    while !missing.is_empty() {
        match listener.accept() {
            Ok((stream, _)) => links.extend(answer(stream, &id, world_size, &mut missing)?),
            Err(_) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            Err(_) => {
                let ranks: Vec<String> = missing.iter().map(usize::to_string).collect();
                let text = format_args!("rank {} did not connect to {address} in time", ranks.join(", "));
                return Err(error(0, text));
            }
        }
    }
    Ok((id, links))
}

/// Replies to a connection, and removes its rank from those that are missing. Connections of other programs are
/// ignored.
fn answer(
    mut stream: TcpStream,
    id: &Id,
    world_size: usize,
    missing: &mut Vec<usize>,
) -> Result<Option<Link>> {
    let mut hello = [0u8; 32];
    if prepare(&stream).and_then(|()| stream.read_exact(&mut hello)).is_err() || !hello.starts_with(MAGIC) {
        return Ok(None);
    }
    let number = |at: usize| hello[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes) as usize);
    let (count, rank) = (number(16), number(24));
    let refusal = match missing.iter().position(|other| *other == rank) {
        _ if count != world_size => {
            Some(format!("rank 0 was started with {world_size} ranks, rank {rank} with {count}"))
        }
        None => Some(format!("rank {rank} was started twice")),
        Some(place) => {
            missing.remove(place);
            None
        }
    };
    match refusal {
        // A write fails if the rank has ended. It is then missing, and the deadline is reported.
        None => {
            let accepted = stream.write_all(&[&[ACCEPTED], &encode(id, world_size)[..]].concat());
            Ok(accepted.and_then(|()| Link::new(stream, rank)).ok())
        }
        Some(text) => {
            let _ = stream.write_all(text.as_bytes());
            Err(error(0, text))
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(EXCHANGE_TIME))?;
    stream.set_write_timeout(Some(EXCHANGE_TIME))
}

/// Requests the identifier of rank 0, and returns it with the connection.
fn request(address: SocketAddr, rank: usize, world_size: usize, until: Instant) -> Result<(Id, Link)> {
    let failed = |cause: io::Error| error(rank, format_args!("rank 0 at {address}: {cause}"));
    let mut stream = loop {
        match TcpStream::connect_timeout(&address, EXCHANGE_TIME) {
            Ok(stream) => break stream,
            Err(_) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            Err(cause) => return Err(failed(cause)),
        }
    };
    let hello = [&MAGIC[..], &(world_size as u64).to_le_bytes(), &(rank as u64).to_le_bytes()].concat();
    let mut exchange = || {
        prepare(&stream)?;
        // Rank 0 may serve other ranks first.
        let left = until.saturating_duration_since(Instant::now()).max(EXCHANGE_TIME);
        stream.set_read_timeout(Some(left))?;
        stream.write_all(&hello)?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        if first != [ACCEPTED] {
            let mut refusal = first.to_vec();
            (&stream).take(4096).read_to_end(&mut refusal)?;
            return Ok(Err(String::from_utf8_lossy(&refusal).into_owned()));
        }
        let mut sent = vec![0; ENCODED_BYTES];
        stream.read_exact(&mut sent)?;
        Ok(Ok(decode(&sent)))
    };
    match exchange().map_err(failed)? {
        Ok(Some((id, _))) => Ok((id, Link::new(stream, 0).map_err(failed)?)),
        Ok(None) => Err(error(rank, format_args!("{address} has sent no unique id"))),
        Err(refusal) => Err(error(rank, refusal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_survive_encoding() {
        let id = Id::from_bytes(std::array::from_fn(|index| index as u8));
        let bytes = encode(&id, 4);
        assert_eq!(decode(&bytes), Some((id, 4)));
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode(b"candle-rocm-id 0"), None);
    }
}
