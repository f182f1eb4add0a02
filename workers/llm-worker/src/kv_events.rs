//! Events of the key-value cache over ZeroMQ, in vLLM's format. Routers derive from them which prefixes this worker
//! has cached.
//!
//! A message has three frames: a topic, a sequence number (8 bytes, big-endian), and a batch in msgpack: `[time, events,
//! data-parallel rank]`. The engine only appends batches to a bounded queue. A router that detects a gap in the
//! numbers requests the missing batches at the replay endpoint.
use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::body::Bytes;
use futures_util::StreamExt;
use llm_engine::engine::{CacheEvent, CacheEventSink};
use llm_engine::step::BLOCK_SIZE;
use rmpv::Value;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use zeromq::{PubSocket, RouterSocket, Socket, SocketEvent, SocketRecv, SocketSend, ZmqMessage};

/// Maximum number of batches that wait to be sent.
pub const MAX_UNSENT: usize = 10_000;
/// Number of sent batches that are kept for replays.
pub const MAX_REPLAYED: usize = 10_000;
/// Frame that ends a replay: the number -1.
const END_OF_REPLAY: [u8; 8] = [0xff; 8];
/// Time between two attempts to reach a router.
const RETRY: Duration = Duration::from_secs(1);
/// Timeout for a router that does not read a replay.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Endpoints of the events.
#[derive(Clone, Debug)]
pub struct Options {
    /// Endpoint at which events are published.
    pub events: Endpoint,
    /// Endpoint at which routers request earlier events.
    pub replay: Option<Endpoint>,
    /// First frame of each message.
    pub topic: String,
}

/// A ZeroMQ endpoint over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    address: String,
    /// True if the worker listens, and false if it connects.
    listens: bool,
}

impl FromStr for Endpoint {
    type Err = String;

    /// Parses `tcp://HOST:PORT`. As in vLLM, the worker listens if the host is `*` or `[::]`; it also listens after `@`,
    /// and connects otherwise.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, marked) = text.strip_prefix('@').map_or((text, false), |address| (address, true));
        let parts = address.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        let wrong = || "must be tcp://HOST:PORT, tcp://*:PORT or @tcp://HOST:PORT".to_owned();
        let (host, port) = parts.ok_or_else(wrong)?;
        port.parse::<u16>().map_err(|_| wrong())?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match inner {
            Some(inner) => inner.parse::<Ipv6Addr>().is_ok(),
            None => {
                host == "*"
                    || !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/[]@:*".contains(c))
            }
        };
        if !is_host {
            return Err(wrong());
        }
        let listens = marked || ["*", "0.0.0.0", "[::]"].contains(&host);
        Ok(Endpoint { address: address.replace('*', "0.0.0.0"), listens })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

struct Batch {
    number: u64,
    time: f64,
    events: Vec<CacheEvent>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    unsent: VecDeque<Batch>,
    /// Sent batches in their encoded form.
    sent: VecDeque<(u64, Bytes)>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    added: Notify,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a batch. If too many wait, drops the oldest, whose number routers then miss.
    fn push(&self, events: Vec<CacheEvent>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        if queue.unsent.len() == MAX_UNSENT {
            queue.unsent.pop_front();
        }
        queue.unsent.push_back(Batch { number, time, events });
        drop(queue);
        self.added.notify_one();
    }

    /// Encodes the oldest unsent batch, and keeps it for replays.
    fn take(&self) -> Option<(u64, Bytes)> {
        let Batch { number, time, events } = self.queue().unsent.pop_front()?;
        let payload = Bytes::from(encode(time, events));
        let mut queue = self.queue();
        if queue.sent.len() == MAX_REPLAYED {
            queue.sent.pop_front();
        }
        queue.sent.push_back((number, payload.clone()));
        Some((number, payload))
    }
}

/// Endpoints at which the worker listens, with their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Endpoint of the events, unless the worker connects.
    pub events: Option<String>,
    /// Endpoint of replays.
    pub replay: Option<String>,
}

/// Starts a thread that publishes events. Returns the sink that the engine fills, and the bound endpoints. The thread
/// runs as long as the process.
///
/// # Errors
/// An endpoint cannot be bound, for example because its port is taken, or the thread cannot be started.
pub fn start(options: Options) -> Result<(CacheEventSink, Bound)> {
    let shared = Arc::new(Shared::default());
    let publisher = shared.clone();
    let (sender, bound) = channel();
    let run = move || match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(publish(publisher, options, sender)),
        Err(error) => drop(sender.send(Err(error.into()))),
    };
    std::thread::Builder::new().name("kv-events".to_owned()).spawn(run).context("cannot start a thread")?;
    let bound = bound.recv().context("the publisher of --kv-events stopped")??;
    Ok((Box::new(move |events| shared.push(events)), bound))
}

async fn publish(shared: Arc<Shared>, options: Options, sender: Sender<Result<Bound>>) {
    let mut socket = PubSocket::new();
    match bind(&mut socket, &shared, &options).await {
        Ok(bound) => drop(sender.send(Ok(bound))),
        Err(error) => return drop(sender.send(Err(error))),
    }
    let endpoint = &options.events;
    let mut changes = socket.monitor();
    let mut is_connected = endpoint.listens;
    loop {
        while !is_connected {
            match socket.connect(&endpoint.address).await {
                Ok(()) => is_connected = true,
                Err(error) => {
                    tracing::warn!(%endpoint, %error, "cannot reach the router of --kv-events; trying again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        while let Some((number, payload)) = shared.take() {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            let message = message(options.topic.clone().into(), [number, payload]);
            // The socket drops messages for routers that read too slowly.
            if let Err(error) = socket.send(message).await {
                tracing::warn!(%endpoint, %error, "cannot publish events of the cache");
            }
        }
        tokio::select! {
            () = shared.added.notified() => {}
            Some(SocketEvent::Disconnected(_)) = changes.next() => {
                tracing::warn!(%endpoint, "a router of --kv-events went away");
                is_connected = endpoint.listens;
            }
        }
    }
}

/// Binds the sockets, and starts answering replays.
async fn bind(socket: &mut PubSocket, shared: &Arc<Shared>, options: &Options) -> Result<Bound> {
    let mut bound = Bound::default();
    if options.events.listens {
        let at = socket.bind(&options.events.address).await;
        let at = at
            .with_context(|| format!("cannot listen on --kv-events {}; is the port free?", options.events))?;
        bound.events = Some(at.to_string());
    }
    if let Some(endpoint) = &options.replay {
        let mut router = RouterSocket::new();
        let at = router.bind(&endpoint.address).await;
        let at =
            at.with_context(|| format!("cannot listen on --kv-events-replay {endpoint}; is the port free?"))?;
        bound.replay = Some(at.to_string());
        tokio::spawn(replay(router, shared.clone()));
    }
    Ok(bound)
}

/// Answers requests, each of which is an empty frame and the first wanted number.
async fn replay(mut socket: RouterSocket, shared: Arc<Shared>) {
    loop {
        let request = match socket.recv().await {
            Ok(request) => request.into_vec(),
            Err(error) => {
                tracing::warn!(%error, "cannot receive a request for a replay");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let [client, empty, first] = &request[..] else {
            tracing::warn!(frames = request.len(), "malformed request for a replay");
            continue;
        };
        let Some(first) = first[..].try_into().ok().filter(|_| empty.is_empty()).map(u64::from_be_bytes)
        else {
            tracing::warn!("malformed request for a replay: the number must have 8 bytes");
            continue;
        };
        let sent: Vec<_> = {
            let queue = shared.queue();
            queue.sent.iter().filter(|(number, _)| *number >= first).cloned().collect()
        };
        let sent = sent.into_iter().map(|(number, payload)| (number.to_be_bytes(), payload));
        let end = (END_OF_REPLAY, Bytes::new());
        for (number, payload) in sent.chain([end]) {
            let number = Bytes::copy_from_slice(&number);
            let message = message(client.clone(), [Bytes::new(), number, payload]);
            let sent = tokio::time::timeout(REPLAY_TIMEOUT, socket.send(message)).await;
            if !matches!(sent, Ok(Ok(()))) {
                tracing::warn!("a replay ended early, because the router reads too slowly or went away");
                break;
            }
        }
    }
}

fn message(first: Bytes, others: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let mut message = ZmqMessage::from(first);
    others.into_iter().for_each(|frame| message.push_back(frame));
    message
}

/// Encodes a batch as vLLM does: structures are arrays, and events begin with their names.
fn encode(time: f64, events: Vec<CacheEvent>) -> Vec<u8> {
    let events = events.into_iter().map(|event| match event {
        CacheEvent::Stored { hashes, parent, tokens } => Value::Array(vec![
            "BlockStored".into(),
            numbers(hashes),
            parent.map_or(Value::Nil, Value::from),
            numbers(tokens),
            BLOCK_SIZE.into(),
            Value::Nil,
        ]),
        CacheEvent::Removed { hashes } => Value::Array(vec!["BlockRemoved".into(), numbers(hashes)]),
        CacheEvent::Cleared => Value::Array(vec!["AllBlocksCleared".into()]),
    });
    let batch = Value::Array(vec![time.into(), Value::Array(events.collect()), 0.into()]);
    let mut bytes = Vec::new();
    // Writing to memory cannot fail.
    let _ = rmpv::encode::write_value(&mut bytes, &batch);
    bytes
}

fn numbers<T>(numbers: Vec<T>) -> Value
where
    Value: From<T>,
{
    Value::Array(numbers.into_iter().map(Value::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed() {
        for (text, address, listens) in [
            ("tcp://*:5557", "tcp://0.0.0.0:5557", true),
            ("tcp://[::]:5557", "tcp://[::]:5557", true),
            ("@tcp://127.0.0.1:0", "tcp://127.0.0.1:0", true),
            ("tcp://router.svc:5557", "tcp://router.svc:5557", false),
        ] {
            assert_eq!(text.parse(), Ok(Endpoint { address: address.to_owned(), listens }), "{text}");
        }
        let wrong = [
            "",
            "tcp://",
            "tcp://a",
            "tcp://a:x",
            "tcp://a:65536",
            "tcp://:1",
            "ipc:///tmp/a",
            "tcp://[a]:1",
        ];
        for wrong in wrong.into_iter().chain(["tcp://a*:1", "tcp://a b:1", "tcp://::1:1", "@@tcp://a:1"]) {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_oldest_unsent_batch_is_dropped_and_its_number_missing() {
        let shared = Shared::default();
        (0..MAX_UNSENT + 2).for_each(|_| shared.push(vec![CacheEvent::Cleared]));
        assert_eq!(shared.take().unwrap().0, 2);
        assert_eq!(std::iter::from_fn(|| shared.take()).last().unwrap().0, MAX_UNSENT as u64 + 1);
        assert_eq!(shared.queue().sent.len(), MAX_REPLAYED);
    }
}
