//! Progress of downloading and loading, shown on the terminal, in the log and at `/ready`.

use crate::Lifecycle;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BAR_STEPS: u64 = 1000;
const SHARE_BAR: &str = "{msg} [{wide_bar}] {percent}% ({eta} left)";
const BYTES_BAR: &str =
    "{msg} [{wide_bar}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} ({eta} left)";
/// Minimum time between two reports of the same activity.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two lines about the same activity in the log, if there is no terminal.
const MIN_LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Completed part of an activity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Completed {
    /// Fraction, 0 to 1.
    Share(f32),
    /// Bytes of a file.
    Bytes {
        /// Bytes that are on the disk.
        done: u64,
        /// Size of the file.
        total: u64,
        /// Bytes of an earlier, interrupted download, which do not count for the rate.
        resumed: u64,
    },
}

impl From<f32> for Completed {
    fn from(share: f32) -> Self {
        Completed::Share(share)
    }
}

impl Completed {
    /// Returns the completed fraction, 0 to 1.
    pub fn share(self) -> f32 {
        match self {
            Completed::Share(share) => share,
            Completed::Bytes { done, total, .. } => (done as f64 / total.max(1) as f64) as f32,
        }
    }

    /// Returns the completed part, the rate and the remaining time of an activity that began `elapsed` ago.
    fn describe(self, elapsed: Duration) -> String {
        let left = |done: f64, rest: f64| {
            let seconds = (elapsed.as_secs_f64() * rest / done).round();
            let is_known = done > 0.0 && !elapsed.is_zero();
            is_known.then(|| format!(", {:#} left", HumanDuration(Duration::from_secs(seconds as u64))))
        };
        match self {
            Completed::Share(share) => {
                let left = left(f64::from(share), f64::from(1.0 - share)).unwrap_or_default();
                format!("{:.0}%{left}", share * 100.0)
            }
            Completed::Bytes { done, total, resumed } => {
                let (new, rest) = (done.saturating_sub(resumed) as f64, total.saturating_sub(done) as f64);
                let rate = BinaryBytes((new / elapsed.as_secs_f64()) as u64);
                let speed = left(new, rest).map(|left| format!(", {rate}/s{left}")).unwrap_or_default();
                format!("{} of {}{speed}", BinaryBytes(done), BinaryBytes(total))
            }
        }
    }
}

/// Times of the current activity.
#[derive(Clone, Copy, Debug)]
struct Times {
    started: Instant,
    reported: Instant,
    logged: Instant,
}

/// Reporter of loading progress. Clones share the state.
#[derive(Clone, Debug)]
pub struct Progress {
    lifecycle: Lifecycle,
    bar: ProgressBar,
    times: Arc<Mutex<Option<Times>>>,
}

impl Progress {
    /// Creates a reporter that updates the terminal, or else the log, and `lifecycle`.
    pub fn new(lifecycle: &Lifecycle) -> Self {
        Self { lifecycle: lifecycle.clone(), bar: ProgressBar::new(BAR_STEPS), times: Arc::default() }
    }

    /// Returns the state of the worker.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Reports the completed part of `activity`.
    pub fn report(&self, completed: impl Into<Completed>, activity: &str) {
        let (completed, now) = (completed.into(), Instant::now());
        let (mut times, share) = (self.times.lock(), completed.share());
        let current = times.as_mut().filter(|_| self.bar.message() == activity);
        let since = |time: Instant| now.saturating_duration_since(time);
        if share < 1.0 && current.as_ref().is_some_and(|times| since(times.reported) < MIN_REPORT_INTERVAL) {
            return;
        }
        self.lifecycle.loading(share, activity);
        match current {
            Some(times) => {
                times.reported = now;
                if self.bar.is_hidden() && since(times.logged) >= MIN_LINE_INTERVAL {
                    times.logged = now;
                    tracing::info!("{activity}: {}", completed.describe(since(times.started)));
                }
            }
            None => {
                *times = Some(Times { started: now, reported: now, logged: now });
                self.begin(completed, activity);
                self.bar.suspend(|| tracing::info!("{activity}"));
            }
        }
        self.bar.set_position(match completed {
            Completed::Share(share) => (share * BAR_STEPS as f32) as u64,
            Completed::Bytes { done, .. } => done,
        });
    }

    /// Sets the bar to the start of an activity.
    fn begin(&self, completed: Completed, activity: &str) {
        let (template, length, start) = match completed {
            Completed::Share(_) => (SHARE_BAR, BAR_STEPS, 0),
            Completed::Bytes { total, resumed, .. } => (BYTES_BAR, total, resumed),
        };
        // The style comes first, because each of these calls may draw the bar.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_message(activity.to_owned());
        self.bar.set_length(length);
        self.bar.reset();
        self.bar.set_position(start);
        self.bar.reset_eta();
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_contain_bytes_rate_and_time() {
        let bytes = |done: u64, resumed: u64| Completed::Bytes {
            done: done << 20,
            total: 1 << 30,
            resumed: resumed << 20,
        };
        for (completed, seconds, expected) in [
            (Completed::Share(0.25), 10, "25%, 30s left"),
            (Completed::Share(0.0), 10, "0%"),
            (Completed::Share(1.0), 10, "100%, 0s left"),
            (bytes(256, 0), 8, "256.00 MiB of 1.00 GiB, 32.00 MiB/s, 24s left"),
            // Bytes of an earlier download do not raise the rate.
            (bytes(768, 512), 8, "768.00 MiB of 1.00 GiB, 32.00 MiB/s, 8s left"),
            (bytes(512, 512), 8, "512.00 MiB of 1.00 GiB"),
            (bytes(1, 0), 0, "1.00 MiB of 1.00 GiB"),
        ] {
            let described = completed.describe(Duration::from_secs(seconds));
            assert_eq!(described, expected, "{completed:?} after {seconds} s");
        }
        assert_eq!(Completed::Bytes { done: 0, total: 0, resumed: 0 }.share(), 0.0);
    }
}
