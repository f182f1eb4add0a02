//! Table of jobs by id, with eviction of finished jobs.

use super::entry::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

struct Ended {
    id: Uuid,
    at: Instant,
    bytes: usize,
}

pub(super) struct Table {
    retention: Duration,
    max_ended: usize,
    max_ended_bytes: usize,
    jobs: HashMap<Uuid, Arc<Entry>>,
    /// Finished jobs, the oldest first.
    ended: VecDeque<Ended>,
    ended_bytes: usize,
}

impl Table {
    pub fn new(retention: Duration, max_ended: usize, max_ended_bytes: usize) -> Table {
        let (jobs, ended) = (HashMap::new(), VecDeque::new());
        Table { retention, max_ended, max_ended_bytes, jobs, ended, ended_bytes: 0 }
    }

    pub fn insert(&mut self, entry: Arc<Entry>) {
        self.evict();
        self.jobs.insert(entry.id, entry);
    }

    pub fn find(&mut self, id: Uuid) -> Option<Arc<Entry>> {
        self.evict();
        self.jobs.get(&id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Entry>> {
        self.jobs.values().cloned().collect()
    }

    pub fn running(&self) -> usize {
        self.jobs.len() - self.ended.len()
    }

    /// Records that a job has finished with a log of `bytes` bytes.
    pub fn mark_ended(&mut self, id: Uuid, bytes: usize) {
        self.ended_bytes += bytes;
        self.ended.push_back(Ended { id, at: Instant::now(), bytes });
        self.evict();
    }

    fn evict(&mut self) {
        while let Some(oldest) = self.ended.front() {
            let over_limit = self.ended.len() > self.max_ended || self.ended_bytes > self.max_ended_bytes;
            if !over_limit && oldest.at.elapsed() <= self.retention {
                break;
            }
            self.ended_bytes -= oldest.bytes;
            self.jobs.remove(&oldest.id);
            self.ended.pop_front();
        }
    }
}
