//! An open loop: requests are sent at their times, however many are still running.
use std::fs;
use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::report::{self, Bounds, Outcome, Record, Summary};
use crate::sse;
use crate::workload::{self, Options, Planned, WordCount};

/// Numbers of words of the two prompts that measure how the server counts tokens.
const MEASURED_WORDS: [usize; 2] = [32, 96];
/// Stack of the thread of a request, of which there may be thousands.
const STACK_BYTES: usize = 256 << 10;

#[derive(clap::Args)]
pub struct Arguments {
    /// Address of the server, for example http://127.0.0.1:8081
    #[arg(long)]
    url: String,
    /// Name of the model; by default the first that the server lists
    #[arg(long)]
    model: Option<String>,
    /// Bearer token of the server
    #[arg(long, env = "API_TOKEN", hide_env_values = true)]
    api_token: Option<String>,
    /// Send chats instead of completions
    #[arg(long)]
    chat: bool,
    /// Let the model end its texts, which are otherwise as long as planned (ignore_eos)
    #[arg(long)]
    stop_at_end: bool,
    /// Context of the model in tokens, if the server does not report it
    #[arg(long)]
    context: Option<usize>,
    /// Maximum duration of a request in seconds, after which it counts as lost
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// Maximum time to the first token of a good request, in milliseconds
    #[arg(long, value_name = "MS")]
    ttft_bound: Option<u64>,
    /// Maximum mean time between tokens of a good request, in milliseconds
    #[arg(long, value_name = "MS")]
    itl_bound: Option<u64>,
    /// CSV file for the times of each request
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    workload: Options,
}

/// Runs the load and prints its table. Returns false if a request was lost, or none was completed.
///
/// # Errors
/// If the server does not answer before the load begins.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let records = measure(arguments)?;
    if let Some(path) = &arguments.csv {
        fs::write(path, report::csv(&records)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let reasons = records.iter().filter_map(|record| match &record.outcome {
        Outcome::Failed(why) | Outcome::Lost(why) => Some(why),
        _ => None,
    });
    // The first failures are enough to show the cause.
    reasons.take(5).for_each(|why| eprintln!("a request failed: {why:.500}"));
    let milliseconds = |bound: Option<u64>| bound.map(Duration::from_millis);
    let bounds = Bounds { first: milliseconds(arguments.ttft_bound), gap: milliseconds(arguments.itl_bound) };
    let summary = Summary::new(&records, bounds);
    println!("{}", summary.table());
    Ok(summary.is_ok())
}

fn measure(arguments: &Arguments) -> Result<Vec<Record>> {
    let server = Server::connect(arguments)?;
    let plan = arguments.workload.plan(server.context)?;
    ensure!(
        !plan.is_empty(),
        "no request arrives in {} s; raise --rate or --seconds",
        arguments.workload.seconds
    );
    let [short, long] = MEASURED_WORDS;
    let [few, many] = MEASURED_WORDS.map(|words| server.count_tokens(words));
    let count = WordCount::from_counts((short, few?), (long, many?))?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let mut clients: Vec<ScopedJoinHandle<'_, Record>> = Vec::new();
        for planned in &plan {
            thread::sleep(planned.arrival.saturating_sub(begin.elapsed()));
            let (server, arrival) = (&server, begin + planned.arrival);
            let client = thread::Builder::new().stack_size(STACK_BYTES);
            clients.push(client.spawn_scoped(scope, move || server.follow(planned, count, arrival))?);
        }
        let joined = clients.into_iter().map(|client| match client.join() {
            Ok(record) => Ok(record),
            Err(_) => bail!("a client panicked"),
        });
        joined.collect()
    })
}

/// The server under test.
struct Server<'a> {
    arguments: &'a Arguments,
    model: String,
    context: Option<usize>,
}

impl<'a> Server<'a> {
    fn connect(arguments: &'a Arguments) -> Result<Self> {
        let mut request = ureq::get(&format!("{}/v1/models", arguments.url.trim_end_matches('/')));
        if let Some(token) = &arguments.api_token {
            request = request.set("Authorization", &format!("Bearer {token}"));
        }
        let models: Value = request.call()?.into_json()?;
        let listed = models["data"].as_array().into_iter().flatten();
        let mut named =
            listed.filter(|model| arguments.model.as_ref().is_none_or(|name| model["id"] == **name));
        let model = named.next().with_context(|| format!("the server does not list the model: {models}"))?;
        // vLLM and this worker report the context in the first field, llama.cpp in one of the others.
        let fields = [&model["max_model_len"], &model["meta"]["n_ctx"], &model["meta"]["n_ctx_train"]];
        let reported = fields.iter().find_map(|field| field.as_u64()).map(|context| context as usize);
        Ok(Self {
            arguments,
            model: model["id"].as_str().context("the model has no id")?.to_owned(),
            context: arguments.context.or(reported),
        })
    }

    fn url(&self) -> String {
        let path = if self.arguments.chat { "chat/completions" } else { "completions" };
        format!("{}/v1/{path}", self.arguments.url.trim_end_matches('/'))
    }

    fn body(&self, prompt: &str, tokens: usize) -> Value {
        let mut body = json!({
            "model": self.model, "max_tokens": tokens, "stream": true, "stream_options": {"include_usage": true},
        });
        match self.arguments.chat {
            true => body["messages"] = json!([{"role": "user", "content": prompt}]),
            false => body["prompt"] = prompt.into(),
        }
        if !self.arguments.stop_at_end {
            body["ignore_eos"] = true.into();
        }
        body
    }

    /// Returns the number of tokens that the server counts for a prompt of this many words.
    fn count_tokens(&self, words: usize) -> Result<f64> {
        let mut record = Record::new(Duration::ZERO);
        let body = self.body(&workload::text(0, words), 1);
        match self.exchange(&body, None, Instant::now(), &mut record) {
            Outcome::Completed if record.prompt_tokens > 0 => Ok(record.prompt_tokens as f64),
            Outcome::Completed => bail!("the server does not report usage.prompt_tokens"),
            Outcome::Failed(why) | Outcome::Lost(why) => bail!("the first request failed: {why}"),
            Outcome::Cancelled => bail!("the first request was cancelled"),
        }
    }

    fn follow(&self, planned: &Planned, count: WordCount, arrival: Instant) -> Record {
        let options = &self.arguments.workload;
        let prompt = planned.prompt(count, options.prefix_tokens, options.seed);
        let body = self.body(&prompt, planned.output_tokens);
        let mut record = Record::new(planned.arrival);
        record.late = arrival.elapsed();
        record.outcome = self.exchange(&body, planned.cancel_after, arrival, &mut record);
        record.end = arrival.elapsed();
        record
    }

    /// Sends a request and records the times of its response.
    fn exchange(
        &self,
        body: &Value,
        cancel_after: Option<usize>,
        arrival: Instant,
        record: &mut Record,
    ) -> Outcome {
        let timeout = Duration::from_secs(self.arguments.timeout);
        let stream = match sse::post(&self.url(), self.arguments.api_token.as_deref(), body, timeout) {
            Ok(stream) => stream,
            Err(error) => match *error {
                ureq::Error::Status(status, answer) => {
                    return Outcome::Failed(format!("{status} {}", answer.into_string().unwrap_or_default()));
                }
                other => return Outcome::Lost(other.to_string()),
            },
        };
        let (mut pieces, mut last, mut is_finished) = (0, arrival, false);
        for event in stream {
            let event = match event {
                Ok(event) if event.data == "[DONE]" => return Outcome::Completed,
                Ok(event) => event,
                Err(error) => return Outcome::Lost(error.to_string()),
            };
            let now = Instant::now();
            let Ok(chunk) = serde_json::from_str::<Value>(&event.data) else {
                return Outcome::Failed(format!("not JSON: {}", event.data));
            };
            if chunk.get("error").is_some_and(|error| !error.is_null()) {
                return Outcome::Failed(event.data);
            }
            let usage = &chunk["usage"];
            record.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(record.prompt_tokens);
            let choice = &chunk["choices"][0];
            is_finished |= choice["finish_reason"].is_string();
            if has_text(choice) {
                match record.first {
                    None => record.first = Some(now - arrival),
                    Some(_) => record.gaps.push(now - last),
                }
                (pieces, last) = (pieces + 1, now);
            }
            record.output_tokens =
                usage["completion_tokens"].as_u64().unwrap_or(record.output_tokens.max(pieces));
            if cancel_after.is_some_and(|after| pieces >= after as u64) && !is_finished {
                return Outcome::Cancelled;
            }
        }
        match is_finished {
            true => Outcome::Completed,
            false => Outcome::Lost("the stream ended early".into()),
        }
    }
}

/// Returns true if a choice of a chunk has text, reasoning or a part of a call.
fn has_text(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
    texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
        || delta["tool_calls"].is_array()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Barrier};

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Number of tokens of a text that the server refuses, and of one that it does not complete.
    const REFUSED: u64 = 4;
    const BROKEN: u64 = 5;

    /// Reads a request and returns its first line and its body.
    fn read(connection: &TcpStream) -> (String, Value) {
        let mut reader = BufReader::new(connection);
        let (mut lines, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            lines.push(line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        (lines.swap_remove(0), serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Answers a request. Texts of more than one token begin when all of `barrier` have arrived.
    fn answer(mut connection: TcpStream, barrier: &Barrier) -> std::io::Result<()> {
        let (line, body) = read(&connection);
        let mut send = |text: &str| connection.write_all(text.as_bytes());
        if line.starts_with("GET /v1/models ") {
            let models = json!({"data": [{"id": "other"}, {"id": "m", "max_model_len": 1000}]}).to_string();
            return send(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{models}", models.len()));
        }
        assert!(
            line.starts_with("POST /v1/completions ") && body["model"] == "m" && body["ignore_eos"] == true
        );
        let tokens = body["max_tokens"].as_u64().unwrap();
        if tokens > 1 {
            barrier.wait();
        }
        if tokens == REFUSED {
            return send("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nbusy");
        }
        send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")?;
        for _ in 0..tokens {
            send(&format!("data: {}\n\n", json!({"choices": [{"text": "x", "finish_reason": null}]})))?;
        }
        if tokens == BROKEN {
            return Ok(());
        }
        send(&format!("data: {}\n\n", json!({"choices": [{"text": "", "finish_reason": "length"}]})))?;
        let words = body["prompt"].as_str().unwrap().split(' ').count();
        let usage = json!({"prompt_tokens": 1 + 2 * words, "completion_tokens": tokens});
        send(&format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage})))
    }

    #[test]
    fn requests_do_not_wait_for_answers_and_every_end_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.csv");
        let outputs = [2, 3, REFUSED, BROKEN, 6, 7];
        let rows = outputs.map(|output| format!("0.001,41,{output}\n")).concat();
        fs::write(&trace, format!("arrival_s,prompt_tokens,output_tokens\n{rows}")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        // No answer begins before all requests have been sent, so a closed loop would never end.
        let barrier = Arc::new(Barrier::new(outputs.len()));
        thread::spawn(move || {
            for connection in listener.incoming() {
                let barrier = barrier.clone();
                thread::spawn(move || answer(connection.unwrap(), &barrier));
            }
        });
        let line = ["load", "--model", "m", "--url", &url, "--trace", trace.to_str().unwrap()];
        let records = measure(&Line::parse_from(line).arguments).unwrap();
        assert_eq!(records.len(), outputs.len());
        for (record, output) in records.iter().zip(outputs) {
            match (&record.outcome, output) {
                (Outcome::Failed(why), REFUSED) => assert_eq!(why, "429 busy"),
                (Outcome::Lost(_), BROKEN) => assert_eq!(record.gaps.len() as u64, BROKEN - 1),
                (Outcome::Completed, _) => {
                    // Each word counts two tokens, and the prompt one more.
                    assert_eq!((record.prompt_tokens, record.output_tokens), (41, output));
                    assert_eq!(record.gaps.len() as u64, output - 1);
                    let gaps: Duration = record.gaps.iter().sum();
                    assert!(
                        record.late <= record.first.unwrap() && record.first.unwrap() + gaps <= record.end
                    );
                }
                (other, _) => panic!("{output}: {other:?}"),
            }
        }
        // Each request is sent again, and now disconnects within its text.
        let line = [&line[..], &["--cancel", "1"]].concat();
        let records = measure(&Line::parse_from(line).arguments).unwrap();
        let cancelled = records.iter().filter(|record| record.outcome == Outcome::Cancelled);
        assert_eq!(cancelled.count(), outputs.len() - 1);
    }
}
