//! The worker as a process: from its command line to its end.
mod tiny_model;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tiny_model::{Kind, Outcome};

const PATIENCE: Duration = Duration::from_secs(600);

/// A process that is killed if the test ends first.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(folder: &Path, more: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sd-worker-cpu"));
        command.arg("--model-path").arg(folder.join("model")).args(["--port", "0", "--port-file"]);
        command.arg(folder.join("port")).args(more).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// What it says last, and how it ends.
    fn end(mut self) -> Outcome<(Option<i32>, String)> {
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut said)?;
        }
        Ok((self.0.wait()?.code(), said))
    }
}

fn model() -> Outcome<TempDir> {
    let folder = tempfile::tempdir()?;
    tiny_model::write(&folder.path().join("model"), Kind::Plain)?;
    Ok(folder)
}

/// Asks until there is an answer to be had.
fn until<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(begin.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_worker_loads_paints_and_ends_when_told() -> Outcome {
    let folder = model()?;
    let worker =
        Process::start(folder.path(), &["--worker-id", "w", "--sd-version", "auto", "--use-f16", "false"])?;
    let port = until("port", || std::fs::read_to_string(folder.path().join("port")).ok());
    let url = format!("http://127.0.0.1:{}", port.trim());
    until("readiness", || ureq::get(&format!("{url}/ready")).call().ok());
    let models: Value = ureq::get(&format!("{url}/v1/models")).call()?.into_json()?;
    assert_eq!(models["data"][0]["id"], "model");
    let path = folder.path().join("model").display().to_string();
    let body = json!({"prompt": "a red circle", "steps": 2, "seed": 1, "model": path, "worker_id": "w"});
    let job: Value = ureq::post(&format!("{url}/v1/jobs")).send_json(body)?.into_json()?;
    let events =
        ureq::get(&format!("{url}{}", job["sse_url"].as_str().unwrap_or_default())).call()?.into_string()?;
    assert!(events.contains("event: complete"), "{events}");
    let ended = Command::new("kill").arg(worker.0.id().to_string()).status()?;
    assert!(ended.success());
    let (code, said) = worker.end()?;
    assert_eq!(code, Some(0), "{said}");
    Ok(())
}

/// The next request, head and body, which gets `status`.
fn heard(listener: &TcpListener, status: &str) -> Outcome<String> {
    listener.set_nonblocking(true)?;
    let (mut stream, _) = until("request", || listener.accept().ok());
    stream.set_nonblocking(false)?;
    let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut bytes)?;
        request.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            length.is_some_and(|length| length.trim().parse() == Ok(body.len()))
        });
        if whole {
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
            return Ok(text);
        }
        assert!(count > 0, "cut: {text}");
    }
}

#[test]
fn the_callback_hears_of_a_job_that_the_workers_end_cuts() -> Outcome {
    let folder = model()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/done", listener.local_addr()?);
    let tokens = ["--callback-token", "theirs", "--api-token", "ours"];
    // The step that is cut may take as long as it needs.
    let times = ["--drain-seconds", "0", "--shutdown-seconds", "600"];
    let more = [&["--callback-url", &url], &tokens[..], &times].concat();
    let worker = Process::start(folder.path(), &more)?;
    let port = until("port", || std::fs::read_to_string(folder.path().join("port")).ok());
    let url = format!("http://127.0.0.1:{}", port.trim());
    until("readiness", || ureq::get(&format!("{url}/ready")).call().ok());
    // More than is done before the signal comes.
    let body = json!({"prompt": "a red circle", "steps": 150, "n": 4, "width": 96, "height": 96});
    let asked = ureq::post(&format!("{url}/v1/jobs")).set("Authorization", "Bearer ours").send_json(body)?;
    let job: Value = asked.into_json()?;
    let ended = Command::new("kill").arg(worker.0.id().to_string()).status()?;
    assert!(ended.success());
    // The second try comes after a pause that the end of the worker waits for.
    heard(&listener, "503 Service Unavailable")?;
    let told = heard(&listener, "200 OK")?;
    let (head, body) = told.split_once("\r\n\r\n").ok_or("no body")?;
    assert!(head.contains("Bearer theirs") && !told.contains("ours"), "{told}");
    let body: Value = serde_json::from_str(body)?;
    assert_eq!((&body["job_id"], &body["code"]), (&job["job_id"], &json!("worker_ended")), "{body}");
    let (code, said) = worker.end()?;
    assert_eq!(code, Some(0), "{said}");
    Ok(())
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() -> Outcome {
    let folder = model()?;
    for (more, words) in [
        (&["--sd-version", "xl"][..], "--sd-version"),
        (&["--max-pixels", "4096", "--max-side", "64", "--model-ref", "main"], "--model-ref"),
        (&["--callback-url", "nothing"], "--callback-url"),
        (&["--host", "192.0.2.1"], "--host"),
    ] {
        let (code, said) = Process::start(folder.path(), more)?.end()?;
        assert!(code.is_some_and(|code| code != 0), "{more:?}: {code:?} {said}");
        assert!(
            said.lines().any(|line| line.starts_with("error:") && line.contains(words)),
            "{more:?}: {said}"
        );
    }
    std::fs::remove_dir_all(folder.path().join("model/vae"))?;
    let (code, said) = Process::start(folder.path(), &[])?.end()?;
    let last = said.lines().last().unwrap_or_default();
    assert!(code == Some(1) && last.starts_with("error:") && last.contains("vae"), "{code:?} {said}");
    Ok(())
}
