//! Requests of an open-loop load: times of arrival, lengths and prompts, all determined by a seed.
use std::f64::consts::TAU;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Words of the prompts, chosen at random.
const WORDS: [&str; 32] = [
    "the", "king", "saw", "a", "dog", "near", "mill", "and", "then", "old", "queen", "went", "home", "with",
    "bread", "in", "morning", "when", "children", "sang", "of", "rivers", "under", "bright", "stars",
    "while", "horses", "slept", "by", "fire", "for", "winter",
];

#[derive(Clone, clap::Args)]
pub struct Options {
    /// Average number of requests per second; their arrivals are a Poisson process
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1.0)]
    pub rate: f64,
    /// Duration in which requests arrive, in seconds
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// Seed of arrivals, lengths and prompts
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Log-normal distribution of the prompts' lengths: median in tokens, and sigma
    #[arg(long, value_name = "MEDIAN:SIGMA", default_value = "128:0.8")]
    pub prompt_tokens: LogNormal,
    /// Log-normal distribution of the texts' lengths: median in tokens, and sigma
    #[arg(long, value_name = "MEDIAN:SIGMA", default_value = "64:0.6")]
    pub output_tokens: LogNormal,
    /// CSV file with columns prompt_tokens, output_tokens and optionally arrival_s, instead of distributions
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Share of requests whose prompts begin with a common prefix, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub shared_prefix: f64,
    /// Length of the common prefix in tokens, in addition to the prompt's length
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub prefix_tokens: usize,
    /// Share of requests that disconnect at a random place of their text, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub cancel: f64,
}

/// Log-normal distribution of lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogNormal {
    median: f64,
    sigma: f64,
}

impl FromStr for LogNormal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (median, sigma) = text.split_once(':').unwrap_or((text, "0"));
        let number =
            |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        match (number(median), number(sigma)) {
            (Some(median), Some(sigma)) if median >= 1.0 => Ok(Self { median, sigma }),
            _ => {
                Err(format!("{text:?} is not MEDIAN:SIGMA with a median of at least 1, for example 128:0.8"))
            }
        }
    }
}

impl LogNormal {
    fn sample(self, random: &mut StdRng) -> usize {
        // The method of Box and Muller.
        let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
        let normal = radius * (TAU * random.random::<f64>()).cos();
        (self.median * (self.sigma * normal).exp()).round().max(1.0) as usize
    }
}

/// Times of a Poisson process, counted from its begin.
pub struct Arrivals {
    rate: f64,
    random: StdRng,
    seconds: f64,
}

impl Arrivals {
    pub fn new(rate: f64, seed: u64) -> Result<Self> {
        ensure!(rate > 0.0 && rate.is_finite(), "--rate is {rate}, but must be above 0");
        Ok(Self { rate, random: StdRng::seed_from_u64(seed), seconds: 0.0 })
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.seconds -= (1.0 - self.random.random::<f64>()).ln() / self.rate;
        Duration::try_from_secs_f64(self.seconds).ok()
    }
}

/// One request of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub arrival: Duration,
    /// Length of the prompt without the common prefix.
    pub prompt_tokens: usize,
    pub has_prefix: bool,
    pub output_tokens: usize,
    /// Number of received pieces of text after which the client disconnects.
    pub cancel_after: Option<usize>,
    seed: u64,
}

impl Options {
    /// Returns the requests in the order of their arrival. Prompts and texts are at most 7/16 of `context`
    /// long, because the lengths of prompts are estimates.
    ///
    /// # Errors
    /// If an option is out of range, or the trace cannot be read.
    pub fn plan(&self, context: Option<usize>) -> Result<Vec<Planned>> {
        for (name, share) in [("--shared-prefix", self.shared_prefix), ("--cancel", self.cancel)] {
            ensure!((0.0..=1.0).contains(&share), "{name} is {share}, but must be from 0 to 1");
        }
        let rows = self.trace.as_deref().map(read_trace).transpose()?;
        let has_times = rows.as_ref().is_some_and(|rows| rows.iter().all(|row| row.arrival.is_some()));
        let arrivals: Vec<Duration> = match &rows {
            Some(rows) if has_times => rows.iter().filter_map(|row| row.arrival).collect(),
            _ => Arrivals::new(self.rate, self.seed)?
                .take_while(|time| time.as_secs_f64() < self.seconds)
                .collect(),
        };
        let prefix = if self.shared_prefix > 0.0 { self.prefix_tokens } else { 0 };
        let longest = context.map_or(usize::MAX, |context| context * 7 / 16);
        ensure!(
            prefix < longest,
            "--prefix-tokens is {prefix}, but must be below 7/16 of the context, {longest}"
        );
        let request = |(number, arrival): (usize, Duration)| {
            // Each request has its own numbers, so that one option does not change what another determines.
            let mut random =
                StdRng::seed_from_u64(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number as u64);
            let drawn = (self.prompt_tokens.sample(&mut random), self.output_tokens.sample(&mut random));
            let row = rows.as_ref().map(|rows| &rows[number % rows.len()]);
            let (prompt, output) = row.map_or(drawn, |row| (row.prompt_tokens, row.output_tokens));
            let output_tokens = output.clamp(1, longest);
            let has_prefix = random.random::<f64>() < self.shared_prefix;
            let cancels = random.random::<f64>() < self.cancel;
            let after = random.random_range(1..=output_tokens);
            Planned {
                arrival,
                prompt_tokens: prompt.clamp(1, longest - prefix),
                has_prefix,
                output_tokens,
                cancel_after: cancels.then_some(after),
                seed: random.random(),
            }
        };
        Ok(arrivals.into_iter().enumerate().map(request).collect())
    }
}

struct Row {
    arrival: Option<Duration>,
    prompt_tokens: usize,
    output_tokens: usize,
}

/// Reads a CSV file whose first line names its columns.
fn read_trace(path: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = parse_trace(&text).with_context(|| path.display().to_string())?;
    ensure!(!rows.is_empty(), "{} has no requests", path.display());
    Ok(rows)
}

fn parse_trace(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let column = |name: &str| names.iter().position(|other| *other == name);
    let required = |name: &str| column(name).with_context(|| format!("the first line has no column {name}"));
    let (prompt, output) = (required("prompt_tokens")?, required("output_tokens")?);
    let arrival = column("arrival_s");
    let row = |line: &str| -> Option<Row> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let arrival = match arrival {
            Some(column) => Some(Duration::try_from_secs_f64(fields.get(column)?.parse().ok()?).ok()?),
            None => None,
        };
        let tokens = |column: usize| fields.get(column)?.parse().ok();
        Some(Row { arrival, prompt_tokens: tokens(prompt)?, output_tokens: tokens(output)? })
    };
    lines.map(|line| row(line).with_context(|| format!("not a request: {line:?}"))).collect()
}

/// Number of words for a number of tokens of a prompt, as the server counts them.
#[derive(Clone, Copy, Debug)]
pub struct WordCount {
    /// Tokens of a prompt without words.
    base: f64,
    tokens_per_word: f64,
}

impl WordCount {
    /// Derives the counts from the tokens of two prompts with these numbers of words.
    ///
    /// # Errors
    /// If the longer prompt does not have more tokens.
    pub fn from_counts(short: (usize, f64), long: (usize, f64)) -> Result<Self> {
        let tokens_per_word = (long.1 - short.1) / (long.0 - short.0) as f64;
        ensure!(
            tokens_per_word > 0.0,
            "the server counts {} tokens for {} words, and {} for {}; they must grow with the prompt",
            short.1,
            short.0,
            long.1,
            long.0
        );
        Ok(Self { base: short.1 - tokens_per_word * short.0 as f64, tokens_per_word })
    }

    fn words(self, tokens: usize) -> usize {
        ((tokens as f64 - self.base) / self.tokens_per_word).round().max(1.0) as usize
    }
}

/// Returns a text of random words.
pub fn text(seed: u64, words: usize) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let words: Vec<&str> = (0..words).map(|_| WORDS[random.random_range(0..WORDS.len())]).collect();
    words.join(" ")
}

impl Planned {
    /// Returns the prompt; `prefix` is the number of tokens of the common prefix, and `seed` the load's.
    pub fn prompt(&self, count: WordCount, prefix: usize, seed: u64) -> String {
        let own = text(self.seed, count.words(self.prompt_tokens));
        let prefix = (prefix as f64 / count.tokens_per_word).round() as usize;
        if self.has_prefix { format!("{} {own}", text(seed, prefix)) } else { own }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        Line::parse_from(["load"].into_iter().chain(line.split_whitespace())).options
    }

    fn mean_and_variance(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64)
    }

    #[test]
    fn times_between_arrivals_are_exponential() {
        let times: Vec<f64> =
            Arrivals::new(4.0, 7).unwrap().take(40_000).map(|time| time.as_secs_f64()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (mean, variance) = mean_and_variance(&gaps);
        // The mean of an exponential distribution is 1 / rate, the variance 1 / rate². Bounds are four standard errors.
        assert!((mean - 0.25).abs() < 4.0 * 0.25 / 200.0, "{mean}");
        assert!((variance - 0.0625).abs() < 4.0 * 0.0625 * 8f64.sqrt() / 200.0, "{variance}");
        let above_mean = gaps.iter().filter(|gap| **gap > 0.25).count() as f64 / gaps.len() as f64;
        assert!((above_mean - (-1f64).exp()).abs() < 0.01, "{above_mean}");
        assert!(Arrivals::new(0.0, 1).is_err() && Arrivals::new(f64::NAN, 1).is_err());
    }

    #[test]
    fn lengths_are_log_normal() {
        let lengths: LogNormal = "200:0.5".parse().unwrap();
        let mut random = StdRng::seed_from_u64(3);
        let logs: Vec<f64> = (0..40_000).map(|_| (lengths.sample(&mut random) as f64).ln()).collect();
        let (mean, variance) = mean_and_variance(&logs);
        assert!((mean - 200f64.ln()).abs() < 4.0 * 0.5 / 200.0, "{mean}");
        assert!((variance - 0.25).abs() < 4.0 * 0.25 * 2f64.sqrt() / 200.0, "{variance}");
        assert_eq!("7".parse::<LogNormal>().unwrap().sample(&mut random), 7);
        for wrong in ["", "0:1", "a:1", "5:-1", "5:x", "inf:1"] {
            assert!(wrong.parse::<LogNormal>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_seed_determines_the_load() {
        let line = "--rate 50 --seconds 20";
        let plan = |more: &str| options(&format!("{line} {more}")).plan(Some(512)).unwrap();
        let load = plan("--seed 3 --shared-prefix 0.5 --cancel 0.2");
        assert_eq!(load, plan("--seed 3 --shared-prefix 0.5 --cancel 0.2"));
        assert_ne!(load, plan("--seed 4 --shared-prefix 0.5 --cancel 0.2"));
        let share =
            |is: fn(&Planned) -> bool| load.iter().filter(|one| is(one)).count() as f64 / load.len() as f64;
        assert!((900..1100).contains(&load.len()), "{}", load.len());
        assert!((share(|one| one.has_prefix) - 0.5).abs() < 0.07);
        assert!((share(|one| one.cancel_after.is_some()) - 0.2).abs() < 0.06);
        assert!(load.iter().all(|one| one.prompt_tokens <= 224 - 128 && one.output_tokens <= 224));
        assert!(load.iter().all(|one| one.cancel_after.is_none_or(|after| after <= one.output_tokens)));
        // Other shares change neither arrivals nor lengths.
        let without = plan("--seed 3").into_iter().map(|one| (one.arrival, one.output_tokens));
        assert!(without.eq(load.iter().map(|one| (one.arrival, one.output_tokens))));
        for wrong in ["--cancel 1.5", "--shared-prefix nan", "--shared-prefix 1 --prefix-tokens 224"] {
            assert!(options(&format!("{line} {wrong}")).plan(Some(512)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_trace_replaces_lengths_and_times() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        let plan = |text: &str, line: &str| {
            fs::write(&path, text).unwrap();
            let trace = format!("{line} --trace {}", path.display());
            let plan = options(&trace).plan(None)?;
            let seen =
                plan.iter().map(|one| (one.arrival.as_secs_f64(), one.prompt_tokens, one.output_tokens));
            anyhow::Ok(seen.collect::<Vec<_>>())
        };
        let timed = plan("output_tokens,arrival_s,prompt_tokens\n3,0.5,9\n\n4, 2,8\n", "").unwrap();
        assert_eq!(timed, [(0.5, 9, 3), (2.0, 8, 4)]);
        let cycled = plan("prompt_tokens,output_tokens\n9,3\n8,4\n", "--rate 20").unwrap();
        assert!(cycled.len() > 1000 && cycled[2].1 == 9 && cycled[3].2 == 4);
        for wrong in
            ["", "prompt_tokens\n1", "prompt_tokens,output_tokens\n1,x\n", "prompt_tokens,output_tokens\n"]
        {
            assert!(plan(wrong, "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn prompts_have_the_words_of_their_lengths() {
        let count = WordCount::from_counts((32, 74.0), (96, 202.0)).unwrap();
        let mut planned = options("").plan(None).unwrap().remove(0);
        (planned.prompt_tokens, planned.has_prefix) = (50, false);
        // Ten tokens without words, and two for each word.
        let own = planned.prompt(count, 100, 1);
        assert_eq!(own.split(' ').count(), 20);
        planned.has_prefix = true;
        let long = planned.prompt(count, 100, 1);
        assert_eq!(long.split(' ').count(), 70);
        assert!(long.ends_with(&own) && long.starts_with(&text(1, 50)));
        assert!(WordCount::from_counts((32, 74.0), (96, 74.0)).is_err());
    }
}
