//! Statistics of an open-loop load.
use std::fmt::Write;
use std::time::Duration;

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The text ended.
    Completed,
    /// The client disconnected, as planned.
    Cancelled,
    /// The server reported an error.
    Failed(String),
    /// The connection failed or ended early, or time ran out.
    Lost(String),
}

/// Times of one request. All are counted from the planned arrival, so that waiting is part of every latency.
#[derive(Clone, Debug)]
pub struct Record {
    /// Planned arrival, counted from the begin of the load.
    pub arrival: Duration,
    /// Time until the request was sent, which is above 0 if this program was late.
    pub late: Duration,
    /// Time until the first piece of text.
    pub first: Option<Duration>,
    /// Times between successive pieces of text.
    pub gaps: Vec<Duration>,
    /// Time until the response ended.
    pub end: Duration,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub outcome: Outcome,
}

impl Record {
    /// Returns the record of a request that has received nothing.
    pub fn new(arrival: Duration) -> Self {
        Self {
            arrival,
            late: Duration::ZERO,
            first: None,
            gaps: Vec::new(),
            end: Duration::ZERO,
            prompt_tokens: 0,
            output_tokens: 0,
            outcome: Outcome::Lost("nothing was received".into()),
        }
    }

    /// Returns the mean time between tokens, of which one piece of text may contain several.
    fn mean_gap(&self) -> Duration {
        let gaps = self.output_tokens.saturating_sub(1).max(1);
        self.gaps.iter().sum::<Duration>() / u32::try_from(gaps).unwrap_or(u32::MAX)
    }
}

/// Latencies that a good request does not exceed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    pub first: Option<Duration>,
    /// Bound of the mean time between tokens.
    pub gap: Option<Duration>,
}

impl Bounds {
    fn is_met(self, record: &Record) -> bool {
        let is_below = |bound: Option<Duration>, time: Duration| bound.is_none_or(|bound| time <= bound);
        let has_first = record.first.is_some_and(|first| is_below(self.first, first));
        record.outcome == Outcome::Completed && has_first && is_below(self.gap, record.mean_gap())
    }
}

/// Returns the quantile `q` of sorted values, interpolated linearly between the closest ranks: the default of NumPy,
/// type 7 in the list of Hyndman and Fan.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    Some(low + (high - low) * rank.fract())
}

fn milliseconds(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

/// First line of the CSV file.
pub const HEADER: &str =
    "arrival_s,late_ms,prompt_tokens,output_tokens,ttft_ms,end_to_end_ms,outcome,intervals_ms";

/// Returns the CSV file of the records.
pub fn csv(records: &[Record]) -> String {
    let mut text = format!("{HEADER}\n");
    for record in records {
        let outcome = match record.outcome {
            Outcome::Completed => "completed",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed(_) => "failed",
            Outcome::Lost(_) => "lost",
        };
        let first = record.first.map_or(String::new(), |first| format!("{:.3}", milliseconds(first)));
        let gaps: Vec<String> = record.gaps.iter().map(|gap| format!("{:.3}", milliseconds(*gap))).collect();
        let _ = writeln!(
            text,
            "{:.6},{:.3},{},{},{first},{:.3},{outcome},{}",
            record.arrival.as_secs_f64(),
            milliseconds(record.late),
            record.prompt_tokens,
            record.output_tokens,
            milliseconds(record.end),
            gaps.join(" ")
        );
    }
    text
}

/// Summary of a load.
#[derive(Debug)]
pub struct Summary {
    /// Rows of the table: a name, and the sorted times in milliseconds.
    times: [(&'static str, Vec<f64>); 4],
    counts: [usize; 4],
    prompt_tokens: u64,
    output_tokens: u64,
    /// Time from the begin of the load until the last response ended, in seconds.
    seconds: f64,
    good: usize,
}

impl Summary {
    pub fn new(records: &[Record], bounds: Bounds) -> Self {
        let sorted = |times: &mut dyn Iterator<Item = Duration>| {
            let mut times: Vec<f64> = times.map(milliseconds).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let is = |wanted: fn(&Outcome) -> bool| records.iter().filter(move |record| wanted(&record.outcome));
        let is_completed = |outcome: &Outcome| *outcome == Outcome::Completed;
        let ends = records.iter().map(|record| record.arrival + record.end);
        Self {
            times: [
                ("time to first token", sorted(&mut records.iter().filter_map(|record| record.first))),
                ("time between tokens", sorted(&mut records.iter().flat_map(|record| record.gaps.clone()))),
                ("end to end", sorted(&mut is(is_completed).map(|record| record.end))),
                ("delay of the load program", sorted(&mut records.iter().map(|record| record.late))),
            ],
            counts: [
                is(is_completed).count(),
                is(|outcome| *outcome == Outcome::Cancelled).count(),
                is(|outcome| matches!(outcome, Outcome::Failed(_))).count(),
                is(|outcome| matches!(outcome, Outcome::Lost(_))).count(),
            ],
            prompt_tokens: records.iter().map(|record| record.prompt_tokens).sum(),
            output_tokens: records.iter().map(|record| record.output_tokens).sum(),
            seconds: ends.max().unwrap_or_default().as_secs_f64(),
            good: records.iter().filter(|record| bounds.is_met(record)).count(),
        }
    }

    /// Returns true if a request was completed and none was lost.
    pub fn is_ok(&self) -> bool {
        self.counts[0] > 0 && self.counts[3] == 0
    }

    /// Returns the table of latencies in Markdown, and the throughput.
    pub fn table(&self) -> String {
        let mut text = "| milliseconds | median | p95 | p99 |\n|---|---|---|---|\n".to_owned();
        for (name, times) in &self.times {
            let cells =
                [0.5, 0.95, 0.99].map(|q| quantile(times, q).map_or("-".into(), |time| format!("{time:.1}")));
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        let per_second = |count: f64| if self.seconds > 0.0 { count / self.seconds } else { 0.0 };
        let [completed, cancelled, failed, lost] = self.counts;
        // A cancelled request may not have had the time to meet a bound or to miss it.
        let judged = completed + failed + lost;
        let _ = write!(
            text,
            "\n{} requests, {:.1} s, {} prompt tokens, {} generated tokens\n\
             goodput: {:.1} % of {judged} requests, {:.2} per second\n\
             load: {} completed={completed} cancelled={cancelled} failed={failed} lost={lost} \
             requests_per_second={:.2} tokens_per_second={:.1}",
            self.counts.iter().sum::<usize>(),
            self.seconds,
            self.prompt_tokens,
            self.output_tokens,
            100.0 * self.good as f64 / judged.max(1) as f64,
            per_second(self.good as f64),
            if self.is_ok() { "ok" } else { "failed" },
            per_second(completed as f64),
            per_second(self.output_tokens as f64),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn record(first: u32, gap: u32, outcome: Outcome) -> Record {
        Record {
            first: Some(MS * first),
            gaps: vec![MS * gap; 3],
            end: MS * first + 3 * MS * gap,
            prompt_tokens: 10,
            output_tokens: 4,
            outcome,
            ..Record::new(MS * 1000)
        }
    }

    #[test]
    fn quantiles_are_interpolated_as_in_numpy() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.99), Some(3.0));
        // numpy.percentile([1, 2, 4, 8], [0, 50, 95, 99, 100])
        let values = [1.0, 2.0, 4.0, 8.0];
        for (q, expected) in [(0.0, 1.0), (0.5, 3.0), (0.95, 7.4), (0.99, 7.88), (1.0, 8.0)] {
            assert!((quantile(&values, q).unwrap() - expected).abs() < 1e-9, "{q}");
        }
    }

    #[test]
    fn a_good_request_is_complete_and_within_both_bounds() {
        let bounds = Bounds { first: Some(MS * 100), gap: Some(MS * 10) };
        let records = [
            record(100, 10, Outcome::Completed),
            record(101, 10, Outcome::Completed),
            record(100, 11, Outcome::Completed),
            record(1, 1, Outcome::Cancelled),
            record(1, 1, Outcome::Failed("429".into())),
            record(1, 1, Outcome::Lost("early".into())),
        ];
        let summary = Summary::new(&records, bounds);
        assert_eq!((summary.good, summary.counts), (1, [3, 1, 1, 1]));
        assert!(!summary.is_ok());
        let table = summary.table();
        assert!(table.contains("goodput: 20.0 % of 5 requests"), "{table}");
        assert_eq!(Summary::new(&records, Bounds::default()).good, 3);
        // One token has no time between tokens, and meets every bound of it.
        let single = Record { gaps: Vec::new(), ..record(100, 0, Outcome::Completed) };
        assert_eq!(Summary::new(&[single], bounds).good, 1);
    }

    #[test]
    fn rates_are_those_from_the_begin_to_the_last_end() {
        let summary = Summary::new(&[record(400, 200, Outcome::Completed)], Bounds::default());
        assert!((summary.seconds - 2.0).abs() < 1e-9);
        let table = summary.table();
        assert!(table.contains("| time to first token | 400.0 | 400.0 | 400.0 |"), "{table}");
        assert!(table.contains("| end to end | 1000.0 | 1000.0 | 1000.0 |"), "{table}");
        assert!(table.ends_with("lost=0 requests_per_second=0.50 tokens_per_second=2.0"), "{table}");
        let nothing = Summary::new(&[], Bounds::default());
        assert!(!nothing.is_ok() && nothing.table().contains("| - | - | - |"));
    }

    #[test]
    fn a_line_of_the_file_has_a_field_for_each_column() {
        let text = csv(&[record(5, 2, Outcome::Completed)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, [HEADER, "1.000000,0.000,10,4,5.000,11.000,completed,2.000 2.000 2.000"]);
        let none = Record { first: None, gaps: Vec::new(), ..record(5, 2, Outcome::Lost("early".into())) };
        assert!(csv(&[none]).ends_with("4,,11.000,lost,\n"));
    }
}
