//! The jobs by their ids, and when those that ended are forgotten.

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
    keep: Duration,
    kept: usize,
    kept_bytes: usize,
    jobs: HashMap<Uuid, Arc<Entry>>,
    /// Those that ended, the oldest first.
    ended: VecDeque<Ended>,
    ended_bytes: usize,
}

impl Table {
    pub fn new(keep: Duration, kept: usize, kept_bytes: usize) -> Table {
        let (jobs, ended) = (HashMap::new(), VecDeque::new());
        Table { keep, kept, kept_bytes, jobs, ended, ended_bytes: 0 }
    }

    pub fn insert(&mut self, entry: Arc<Entry>) {
        self.forget();
        self.jobs.insert(entry.id, entry);
    }

    pub fn find(&mut self, id: Uuid) -> Option<Arc<Entry>> {
        self.forget();
        self.jobs.get(&id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Entry>> {
        self.jobs.values().cloned().collect()
    }

    pub fn running(&self) -> usize {
        self.jobs.len() - self.ended.len()
    }

    /// Takes note that a job ended, with so many bytes in its log.
    pub fn ended(&mut self, id: Uuid, bytes: usize) {
        self.ended_bytes += bytes;
        self.ended.push_back(Ended { id, at: Instant::now(), bytes });
        self.forget();
    }

    fn forget(&mut self) {
        while let Some(oldest) = self.ended.front() {
            let many = self.ended.len() > self.kept || self.ended_bytes > self.kept_bytes;
            if !many && oldest.at.elapsed() <= self.keep {
                break;
            }
            self.ended_bytes -= oldest.bytes;
            self.jobs.remove(&oldest.id);
            self.ended.pop_front();
        }
    }
}
