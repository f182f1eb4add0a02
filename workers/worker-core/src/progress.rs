//! How far loading is, on the terminal and at `/ready`.

use crate::Lifecycle;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parts of the bar on the terminal.
const PARTS: u64 = 1000;
/// Shortest time between two reports of one activity.
const PAUSE: Duration = Duration::from_millis(100);

/// Reports how far loading is; clones share the report.
#[derive(Clone, Debug)]
pub struct Progress {
    lifecycle: Lifecycle,
    bar: ProgressBar,
    last: Arc<Mutex<Option<Instant>>>,
}

impl Progress {
    /// Reports to the terminal and to `lifecycle`.
    pub fn new(lifecycle: &Lifecycle) -> Self {
        let bar = ProgressBar::new(PARTS);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{wide_bar}] {percent}% ({eta})") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { lifecycle: lifecycle.clone(), bar, last: Arc::default() }
    }

    /// The state of the worker.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Reports the share of `activity` that is done, 0 to 1.
    pub fn report(&self, share: f32, activity: &str) {
        let mut last = self.last.lock();
        let continues = self.bar.message() == activity;
        if share < 1.0 && continues && last.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        *last = Some(Instant::now());
        self.lifecycle.loading(share, activity);
        if !continues {
            tracing::info!("{activity}");
            self.bar.set_message(activity.to_owned());
        }
        self.bar.set_position((share * PARTS as f32) as u64);
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
