//! Running and waiting requests, which `progress` reports and `interrupt` cancels.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::images::Format;
use crate::queue::{Canceller, Event};

/// A request that runs or waits.
struct Job {
    canceller: Canceller,
    begin: Option<Instant>,
    step: usize,
    total: usize,
    preview: Option<String>,
}

/// Requests that run or wait, in the order of their start.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<BTreeMap<u64, Job>>>);

/// Entry of a request in [`Running`], which is removed when it is dropped.
pub struct Entry {
    running: Running,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.0.lock().remove(&self.id);
    }
}

impl Entry {
    /// Reports an event: completed steps, or a preview.
    pub fn report(&self, event: Event) {
        // Encode the preview before taking the lock.
        let preview = match &event {
            Event::Preview { picture, .. } => Format::Png.base64(picture).ok(),
            _ => None,
        };
        let mut jobs = self.running.0.lock();
        let Some(job) = jobs.get_mut(&self.id) else { return };
        if let Event::Progress { step, total } = event {
            job.begin.get_or_insert_with(Instant::now);
            (job.step, job.total) = (step, total);
        }
        if preview.is_some() {
            job.preview = preview;
        }
    }
}

impl Running {
    /// Adds a request.
    pub fn add(&self, canceller: Canceller) -> Entry {
        let mut jobs = self.0.lock();
        let id = jobs.last_key_value().map_or(0, |(id, _)| id + 1);
        jobs.insert(id, Job { canceller, begin: None, step: 0, total: 0, preview: None });
        Entry { running: self.clone(), id }
    }

    /// Cancels the first request.
    pub fn interrupt(&self) {
        let first = self.0.lock().first_key_value().map(|(_, job)| job.canceller.clone());
        if let Some(canceller) = first {
            canceller.cancel();
        }
    }

    /// Describes the first request as A1111 does.
    pub fn progress(&self) -> Value {
        let jobs = self.0.lock();
        let first = jobs.first_key_value().map(|(_, job)| job);
        let (step, total) = first.map_or((0, 0), |job| (job.step, job.total));
        let progress = step as f64 / total.max(1) as f64;
        let elapsed = first.and_then(|job| job.begin).map_or(0.0, |begin| begin.elapsed().as_secs_f64());
        let eta = if progress > 0.0 { elapsed / progress - elapsed } else { 0.0 };
        json!({
            "progress": progress,
            "eta_relative": eta,
            "state": {
                "skipped": false,
                "interrupted": false,
                "stopping_generation": false,
                "job": if first.is_some() { "scripts_txt2img" } else { "" },
                "job_count": jobs.len(),
                "job_timestamp": "",
                "job_no": 0,
                "sampling_step": step,
                "sampling_steps": total,
            },
            "current_image": first.and_then(|job| job.preview.as_deref()),
            "textinfo": null,
        })
    }
}
