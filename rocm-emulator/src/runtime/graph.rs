//! Graphs: recorded work that a stream executes as one command.
use super::command::{Command, Source};
use super::error::{Result, bail};
use super::injection;
use super::memory::Memory;
use super::runtime;
use super::stream::{Queue, Stream};
use super::{Runtime, device::Device};
use crate::exec::Random;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic;

/// A command of a graph.
pub struct Node {
    pub command: Command,
    /// Indices of the nodes that must run before this one.
    pub after: Vec<usize>,
}

impl Node {
    /// Returns true for work of the device, which HIP counts as a node, and false for the beginning or end of a part.
    pub fn is_work(&self) -> bool {
        !self.command.can_wait()
    }

    /// Checks that the memory of a copy or a fill has not been freed since it was captured.
    fn check(&self, memory: &Memory) -> Result<()> {
        let check = |what: &str, address: usize, bytes: usize| {
            let is_live =
                memory.find(address).is_some_and(|found| bytes <= found.len - (address - found.base));
            match is_live {
                true => Ok(()),
                false => bail!(
                    IllegalAddress,
                    "use after free: {what} of {bytes} bytes at 0x{address:x}, whose memory was freed after the graph \
                     was captured"
                ),
            }
        };
        match &self.command {
            Command::Copy(copy) => {
                let extent = |pitch: usize| (copy.rows - 1) * pitch + copy.width;
                if let Source::Address(source) = copy.source {
                    check("a copy from", source, extent(copy.source_pitch))?;
                }
                check("a copy to", copy.target, extent(copy.target_pitch))
            }
            Command::Fill(fill) => check("a fill", fill.target, fill.count * fill.width),
            _ => Ok(()),
        }
    }
}

/// Work that was captured.
pub struct Graph {
    /// Device of the stream whose capture recorded the graph.
    pub device: usize,
    /// Number of nodes that are work.
    pub len: usize,
    launches: usize,
    /// Sorted so that each node follows those that it depends on. Locked while the graph runs.
    nodes: Mutex<Vec<Node>>,
    /// Addresses of the parts that begin in the graph and do not end in it. They live until the next launch.
    left: Vec<usize>,
}

/// A graph that can be launched.
pub struct Executable {
    pub graph: Arc<Graph>,
}

impl Graph {
    pub fn new(device: usize, nodes: Vec<Node>, left: Vec<usize>) -> Self {
        let len = nodes.iter().filter(|node| node.is_work()).count();
        let launches = nodes.iter().filter(|node| matches!(node.command, Command::Launch(_))).count();
        Self { device, len, launches, nodes: Mutex::new(nodes), left }
    }

    /// Executes all nodes on the calling thread. If the launch is stale, it only begins and ends parts of memory. With a
    /// seed, nodes without an order run in a random one.
    ///
    /// # Errors
    /// The first failure of a node; later nodes run nevertheless.
    pub fn run(&self, queue: &Queue, is_stale: bool) -> Result<()> {
        let memory = &runtime()?.memory;
        let nodes = self.nodes.lock();
        self.left.iter().for_each(|address| memory.forget_part(*address));
        let mut outcome = Ok(());
        for index in order(&nodes, queue.seed_of_launch("graph")) {
            let node = &nodes[index];
            let result = match node.command {
                Command::BeginPart { address, len } => memory.begin_part(address, len, true),
                _ if is_stale && node.is_work() => Ok(()),
                // All work runs on one thread, which must not wait for work of another rank.
                Command::Resumable(_) if queue.scheduler().is_some() => {
                    bail!(NotSupported, "with a seed, a graph cannot contain operations between ranks")
                }
                _ => node.check(memory).and_then(|()| node.command.run(queue)),
            };
            outcome = outcome.and(result);
        }
        outcome
    }
}

/// Returns the indices of all nodes in an order of execution: the recorded one, or a random one with a seed.
fn order(nodes: &[Node], seed: Option<u64>) -> Vec<usize> {
    let Some(seed) = seed else { return (0..nodes.len()).collect() };
    let mut random = Random::of(seed, []);
    let mut waiting: Vec<usize> = (0..nodes.len()).collect();
    let mut done = vec![false; nodes.len()];
    let mut order = Vec::with_capacity(nodes.len());
    while !waiting.is_empty() {
        let is_ready = |place: &usize| nodes[waiting[*place]].after.iter().all(|before| done[*before]);
        let ready: Vec<usize> = (0..waiting.len()).filter(is_ready).collect();
        let index = waiting.remove(ready[random.below(ready.len() as u64) as usize]);
        done[index] = true;
        order.push(index);
    }
    order
}

impl Runtime {
    /// Enqueues a launch of a graph.
    ///
    /// # Errors
    /// `StreamCaptureUnsupported` if the stream is capturing: graphs within graphs are not supported.
    pub fn launch_graph(&self, stream: &Stream, graph: &Arc<Graph>) -> Result<()> {
        stream.refuse_in_capture("launching a graph")?;
        let device: &Device = self.device(stream.device)?;
        if let Some(stall) = injection::next_launch_stall() {
            device.submit(stream, Command::Stall(stall))?;
        }
        let is_stale = injection::next_replay_is_stale();
        self.launches.fetch_add(graph.launches as u64, atomic::Ordering::Relaxed);
        device.submit(stream, Command::Replay { graph: Arc::clone(graph), is_stale })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_respects_dependencies() {
        let after: [&[usize]; 6] = [&[], &[0], &[0], &[1], &[2], &[3, 4]];
        let part = || Command::EndPart { address: 0 };
        let nodes: Vec<Node> =
            after.iter().map(|after| Node { command: part(), after: after.to_vec() }).collect();
        let mut orders = std::collections::BTreeSet::new();
        for seed in (0..40).map(Some).chain([None]) {
            let order = order(&nodes, seed);
            let place = |node: usize| order.iter().position(|other| *other == node).unwrap();
            assert_eq!(order.len(), nodes.len());
            for (node, after) in after.iter().enumerate() {
                assert!(after.iter().all(|before| place(*before) < place(node)), "{order:?}");
            }
            orders.insert(order);
        }
        assert_eq!(orders.len(), 6, "all interleavings of two chains of two nodes: {orders:?}");
    }
}
