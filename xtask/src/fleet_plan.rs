//! `cargo xtask fleet-plan`: simulates many cards that serve chats, with and without prefix-aware routing.
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use anyhow::{Result, ensure};

/// Measured time of a step by its number of decoding texts, in milliseconds: Llama 3.1 8B in Q4_K on an NVIDIA H200
/// (docs/explanation/performance.md, llm-worker over HTTP). AMD cards are not measured.
const STEPS: [(f64, f64); 4] = [(1.0, 2.30), (4.0, 3.09), (16.0, 4.87), (64.0, 12.7)];
/// Measured time of a prompt's token in milliseconds: 512 take 20.6 ms.
const PROMPT_TOKEN: f64 = 20.6 / 512.0;
/// Default limits of `llm-worker`: rows of a step, and texts in a batch.
const STEP_TOKENS: usize = 512;
const MAX_RUNNING: usize = 64;
/// A prefix-aware router prefers a card with less load if the other has more than this many open requests in addition.
const MAX_IMBALANCE: usize = 32;
/// Largest number of cards that is tried.
const MAX_CARDS: usize = 4096;

#[derive(clap::Args)]
pub struct Args {
    /// Numbers of cards, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 1000])]
    cards: Vec<usize>,
    /// Requests per second and card.
    #[arg(long, default_value_t = 8.0)]
    rate: f64,
    /// Simulated seconds during which requests arrive; the first half is not counted.
    #[arg(long, default_value_t = 40.0)]
    seconds: f64,
    /// Bound of the time to the first token that 95% of requests keep, in milliseconds.
    #[arg(long, default_value_t = 500.0)]
    ttft_bound: f64,
    /// Tokens that the key-value cache of a card holds.
    #[arg(long, default_value_t = 500_000)]
    cache_tokens: usize,
    /// Seed of the arrivals.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Prints the latencies of each number of cards, and the number of cards that each rate needs.
///
/// # Errors
/// If an argument is out of range.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        args.rate > 0.0 && args.rate <= 1e4,
        "--rate is {}, but must be above 0 and at most 10000",
        args.rate
    );
    ensure!((1.0..=3600.0).contains(&args.seconds), "--seconds is {}, but must be 1 to 3600", args.seconds);
    ensure!(args.ttft_bound > 0.0, "--ttft-bound is {}, but must be above 0", args.ttft_bound);
    let in_range = args.cards.iter().all(|cards| (1..=MAX_CARDS).contains(cards));
    ensure!(in_range, "--cards is {:?}, but each number must be 1 to {MAX_CARDS}", args.cards);
    println!("step times: Llama 3.1 8B Q4_K on an NVIDIA H200; no AMD figure");
    println!(
        "| cards | requests per second | routing | TTFT median, ms | TTFT p95, ms | tokens per second | cached |"
    );
    println!("|---:|---:|---|---:|---:|---:|---:|");
    for &cards in &args.cards {
        let trace = trace(args.rate * cards as f64, args.seconds, args.seed);
        for (name, aware) in [("least load", false), ("prefix-aware", true)] {
            let Outcome { ttft, tokens_per_second, cached } = simulate(&trace, cards, aware, args);
            println!(
                "| {cards} | {:.0} | {name} | {:.0} | {:.0} | {tokens_per_second:.0} | {:.0}% |",
                args.rate * cards as f64,
                quantile(&ttft, 0.5),
                quantile(&ttft, 0.95),
                cached * 100.0,
            );
        }
    }
    println!("\ncards needed for a TTFT of {:.0} ms at p95:", args.ttft_bound);
    println!("| requests per second | least load | prefix-aware |\n|---:|---:|---:|");
    for &cards in &args.cards {
        let rate = args.rate * cards as f64;
        let trace = trace(rate, args.seconds, args.seed);
        let [plain, aware] = [false, true].map(|aware| cards_needed(&trace, aware, args));
        let text =
            |cards: Option<usize>| cards.map_or(format!("over {MAX_CARDS}"), |cards| cards.to_string());
        println!("| {rate:.0} | {} | {} |", text(plain), text(aware));
    }
    println!("fleet-plan: ok cards={:?} seed={}", args.cards, args.seed);
    Ok(())
}

/// Pseudo-random numbers that are the same on every machine (SplitMix64).
struct Random(u64);

impl Random {
    /// Returns a number in the range from 0 (exclusive) to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 11).saturating_add(1) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.uniform().ln() * mean
    }

    /// Returns a log-normal number of tokens, at least 1.
    fn tokens(&mut self, median: f64, sigma: f64) -> usize {
        let normal = (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        (median * (sigma * normal).exp()).clamp(1.0, 4096.0) as usize
    }
}

/// A turn of a chat.
#[derive(Clone, Debug, PartialEq)]
struct Request {
    /// Arrival in milliseconds.
    at: f64,
    chat: usize,
    /// Number of the system prompt, with which other chats begin too, and its length.
    system: (usize, usize),
    /// Tokens of the whole prompt, with the earlier turns.
    prompt: usize,
    output: usize,
}

/// Returns an open-loop trace: chats begin as a Poisson process. They have 4 turns on average, about 10 s apart, and
/// begin with one of 50 system prompts of 400 to 2,000 tokens. Turns have medians of 60 tokens read and 200 written.
fn trace(rate: f64, seconds: f64, seed: u64) -> Vec<Request> {
    let mut random = Random(seed);
    let (mut requests, mut begin, mut chat) = (Vec::new(), 0.0, 0);
    let mean_turns = 4.0;
    loop {
        begin += random.exponential(1000.0 * mean_turns / rate);
        if begin >= seconds * 1000.0 {
            break;
        }
        let system = (random.uniform() * 50.0) as usize % 50;
        let system = (system, 400 + system * 1600 / 49);
        let (mut at, mut prompt) = (begin, system.1);
        loop {
            prompt += random.tokens(60.0, 0.8);
            let output = random.tokens(200.0, 0.6);
            requests.push(Request { at, chat, system, prompt, output });
            prompt += output;
            at += random.exponential(10_000.0);
            if random.uniform() < 1.0 / mean_turns || at >= seconds * 1000.0 {
                break;
            }
        }
        chat += 1;
    }
    requests.sort_by(|a, b| a.at.total_cmp(&b.at));
    requests
}

/// A request on a card.
struct Open {
    request: usize,
    /// Prompt tokens that are not computed, and tokens to write.
    unread: usize,
    unwritten: usize,
}

#[derive(Default)]
struct Card {
    /// Time until which the current step runs.
    busy_until: f64,
    running: Vec<Open>,
    waiting: VecDeque<Open>,
    /// Cached prefixes, with their tokens and the time of their last use.
    cached: HashMap<Prefix, (usize, f64)>,
    cached_tokens: usize,
    /// Tokens written in the counted time.
    written: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Prefix {
    System(usize),
    Chat(usize),
}

impl Card {
    fn open(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Returns the number of cached tokens of a prompt, of which the last one is always computed.
    fn cached(&self, request: &Request) -> usize {
        let of = |prefix| self.cached.get(&prefix).map_or(0, |entry| entry.0);
        of(Prefix::Chat(request.chat)).max(of(Prefix::System(request.system.0))).min(request.prompt - 1)
    }

    /// Stores a prefix, and evicts the least recently used ones above the limit.
    fn keep(&mut self, prefix: Prefix, tokens: usize, now: f64, limit: usize) {
        let before = self.cached.insert(prefix, (tokens, now));
        self.cached_tokens = self.cached_tokens + tokens - before.map_or(0, |entry| entry.0);
        while self.cached_tokens > limit && self.cached.len() > 1 {
            let oldest = self.cached.iter().min_by(|a, b| a.1.1.total_cmp(&b.1.1)).map(|entry| *entry.0);
            let dropped = oldest.and_then(|oldest| self.cached.remove(&oldest));
            self.cached_tokens -= dropped.map_or(0, |entry| entry.0);
        }
    }

    /// Computes steps until a time. Calls `first` with the request and the time of each first token.
    fn advance(&mut self, until: f64, counted: &Range<f64>, mut first: impl FnMut(usize, f64)) {
        while self.open() > 0 && self.busy_until < until {
            let decoding = self.running.iter().filter(|open| open.unread == 0).count();
            if self.waiting.is_empty() && decoding == self.running.len() {
                self.decode(until, counted);
                continue;
            }
            for request in self.step(decoding) {
                first(request, self.busy_until);
            }
            self.count(decoding, counted);
        }
    }

    /// Computes equal steps at once, until a text ends.
    fn decode(&mut self, until: f64, counted: &Range<f64>) {
        let time = step_time(self.running.len());
        let shortest = self.running.iter().map(|open| open.unwritten).min().unwrap_or(0);
        let steps = (((until - self.busy_until) / time).ceil().max(1.0) as usize).min(shortest);
        self.busy_until += steps as f64 * time;
        self.count(steps * self.running.len(), counted);
        self.running.iter_mut().for_each(|open| open.unwritten -= steps);
        self.running.retain(|open| open.unwritten > 0);
    }

    fn count(&mut self, tokens: usize, counted: &Range<f64>) {
        self.written += if counted.contains(&self.busy_until) { tokens } else { 0 };
    }

    /// Computes a step and returns the requests whose first token it writes.
    fn step(&mut self, decoding: usize) -> Vec<usize> {
        while self.running.len() < MAX_RUNNING {
            let Some(open) = self.waiting.pop_front() else { break };
            self.running.push(open);
        }
        let (mut rows, mut first) = (STEP_TOKENS - decoding, Vec::new());
        for open in &mut self.running {
            if open.unread == 0 {
                open.unwritten -= 1;
                continue;
            }
            let read = open.unread.min(rows);
            (open.unread, rows) = (open.unread - read, rows - read);
            if open.unread == 0 {
                first.push(open.request);
                open.unwritten -= 1;
            }
        }
        self.running.retain(|open| open.unwritten > 0);
        let read = STEP_TOKENS - decoding - rows;
        self.busy_until += step_time(decoding) + read as f64 * PROMPT_TOKEN;
        first
    }
}

/// Returns the time of a step of decoding texts, interpolated between measured ones.
fn step_time(texts: usize) -> f64 {
    let texts = texts as f64;
    let [mut below, ..] = STEPS;
    for above in STEPS {
        if texts <= above.0 {
            let share = if above.0 > below.0 { (texts - below.0) / (above.0 - below.0) } else { 0.0 };
            return if texts == 0.0 { 0.0 } else { below.1 + share * (above.1 - below.1) };
        }
        below = above;
    }
    below.1 * texts / below.0
}

struct Outcome {
    /// Sorted times to the first token of the requests of the second half, in milliseconds.
    ttft: Vec<f64>,
    /// Tokens written per second of the second half.
    tokens_per_second: f64,
    /// Share of prompt tokens that were cached.
    cached: f64,
}

/// Simulates a trace. A request goes to the less loaded of two random cards. With `aware`, it goes to the card that has
/// cached most of its prompt instead, unless that one has many more open requests.
fn simulate(trace: &[Request], cards: usize, aware: bool, args: &Args) -> Outcome {
    let mut fleet: Vec<Card> = (0..cards).map(|_| Card::default()).collect();
    let counted = args.seconds * 500.0..args.seconds * 1000.0;
    let (mut ttft, mut cached, mut prompts) = (Vec::new(), 0, 0);
    let mut record = |request: usize, time: f64| {
        if counted.contains(&trace[request].at) {
            ttft.push(time - trace[request].at);
        }
    };
    let mut random = Random(args.seed ^ 1);
    // The last card of each chat, and two cards with each system prompt.
    let mut holders: HashMap<Prefix, [usize; 2]> = HashMap::new();
    for (number, request) in trace.iter().enumerate() {
        let [chat, system] = [Prefix::Chat(request.chat), Prefix::System(request.system.0)];
        let mut pick = || (random.uniform() * cards as f64) as usize % cards;
        let picked = [pick(), pick()];
        let mut candidates = picked.to_vec();
        candidates.extend([chat, system].iter().filter_map(|prefix| holders.get(prefix)).flatten());
        candidates.truncate(if aware { candidates.len() } else { picked.len() });
        candidates.iter().for_each(|&card| fleet[card].advance(request.at, &counted, &mut record));
        let load = |card: usize| fleet[card].open();
        let least = if load(picked[1]) < load(picked[0]) { picked[1] } else { picked[0] };
        let near = candidates.iter().copied().filter(|&card| load(card) <= load(least) + MAX_IMBALANCE);
        let best = near.max_by_key(|&card| (fleet[card].cached(request), usize::MAX - load(card)));
        let chosen = best.filter(|_| aware).unwrap_or(least);
        let card = &mut fleet[chosen];
        let found = card.cached(request);
        if counted.contains(&request.at) {
            (cached, prompts) = (cached + found, prompts + request.prompt);
        }
        card.keep(system, request.system.1, request.at, args.cache_tokens);
        card.keep(chat, request.prompt + request.output, request.at, args.cache_tokens);
        holders.insert(chat, [chosen; 2]);
        let of_system = holders.entry(system).or_insert([chosen; 2]);
        *of_system = [of_system[1], chosen];
        if card.open() == 0 {
            card.busy_until = card.busy_until.max(request.at);
        }
        let unread = request.prompt - found;
        card.waiting.push_back(Open { request: number, unread, unwritten: request.output });
    }
    fleet.iter_mut().for_each(|card| card.advance(f64::INFINITY, &counted, &mut record));
    ttft.sort_by(f64::total_cmp);
    let written: usize = fleet.iter().map(|card| card.written).sum();
    let tokens_per_second = written as f64 / (args.seconds / 2.0);
    Outcome { ttft, tokens_per_second, cached: cached as f64 / prompts.max(1) as f64 }
}

/// Returns a number of cards with which the trace meets the latency bound, at most 5% above the minimum.
fn cards_needed(trace: &[Request], aware: bool, args: &Args) -> Option<usize> {
    let keeps = |cards: usize| quantile(&simulate(trace, cards, aware, args).ttft, 0.95) <= args.ttft_bound;
    let mut enough = 1;
    while !keeps(enough) {
        enough *= 2;
        if enough > MAX_CARDS {
            return None;
        }
    }
    let mut few = enough / 2;
    while enough - few > 1.max(enough / 20) {
        let middle = (few + enough) / 2;
        if keeps(middle) { enough = middle } else { few = middle }
    }
    Some(enough)
}

/// Returns a quantile of sorted values; 0 if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share) as usize;
    sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        let cards = vec![4];
        Args { cards, rate: 8.0, seconds: 20.0, ttft_bound: 500.0, cache_tokens: 500_000, seed: 3 }
    }

    #[test]
    fn steps_take_the_measured_times() {
        assert_eq!([0, 1, 16, 64].map(step_time), [0.0, 2.30, 4.87, 12.7]);
        assert!((step_time(10) - 3.98).abs() < 1e-9);
    }

    #[test]
    fn a_lonely_request_takes_the_time_of_its_prompt() {
        let request = Request { at: 15_000.0, chat: 0, system: (0, 400), prompt: 1000, output: 3 };
        let Outcome { ttft, tokens_per_second, cached } = simulate(&[request], 1, false, &args());
        assert!((ttft[0] - 1000.0 * PROMPT_TOKEN).abs() < 1e-6, "{ttft:?}");
        assert_eq!((ttft.len(), cached), (1, 0.0));
        // The step that computes the last part of the prompt writes the first token.
        assert!((tokens_per_second - 0.2).abs() < 0.11, "{tokens_per_second}");
    }

    #[test]
    fn prefix_aware_routing_finds_more_and_needs_no_more_cards() {
        let args = args();
        let trace = trace(64.0, args.seconds, args.seed);
        assert_eq!(trace, super::trace(64.0, args.seconds, args.seed));
        let [plain, aware] = [false, true].map(|aware| simulate(&trace, 8, aware, &args));
        assert!(aware.cached > plain.cached + 0.1, "{} {}", aware.cached, plain.cached);
        assert!(quantile(&aware.ttft, 0.95) < quantile(&plain.ttft, 0.95));
        assert!(cards_needed(&trace, true, &args).unwrap() <= cards_needed(&trace, false, &args).unwrap());
    }

    #[test]
    fn arguments_out_of_range_are_refused() {
        let wrong: [fn(&mut Args); 4] = [
            |args| args.rate = 0.0,
            |args| args.cards = vec![0],
            |args| args.seconds = f64::NAN,
            |args| args.ttft_bound = 0.0,
        ];
        for change in wrong {
            let mut args = args();
            change(&mut args);
            assert!(run(&args).unwrap_err().to_string().starts_with("--"));
        }
    }
}
