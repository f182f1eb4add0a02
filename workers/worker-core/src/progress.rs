//! Progress of loading, shown on the terminal and at `/ready`.

use crate::Lifecycle;
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BAR_STEPS: u64 = 1000;
/// Minimum time between two reports of the same activity.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Reporter of loading progress. Clones share the state.
#[derive(Clone, Debug)]
pub struct Progress {
    lifecycle: Lifecycle,
    bar: ProgressBar,
    last: Arc<Mutex<Option<Instant>>>,
}

impl Progress {
    /// Creates a reporter that updates the terminal and `lifecycle`.
    pub fn new(lifecycle: &Lifecycle) -> Self {
        let bar = ProgressBar::new(BAR_STEPS);
        if let Ok(style) = ProgressStyle::with_template("{msg} [{wide_bar}] {percent}% ({eta})") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { lifecycle: lifecycle.clone(), bar, last: Arc::default() }
    }

    /// Returns the state of the worker.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Reports the completed fraction of `activity`, 0 to 1.
    pub fn report(&self, share: f32, activity: &str) {
        let mut last = self.last.lock();
        let continues = self.bar.message() == activity;
        if share < 1.0 && continues && last.is_some_and(|last| last.elapsed() < MIN_REPORT_INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        self.lifecycle.loading(share, activity);
        if !continues {
            tracing::info!("{activity}");
            self.bar.set_message(activity.to_owned());
        }
        self.bar.set_position((share * BAR_STEPS as f32) as u64);
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
