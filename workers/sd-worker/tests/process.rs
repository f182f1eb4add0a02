//! The worker as a process: command line, startup and shutdown.
mod tiny_model;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tiny_model::{Kind, Outcome};

const TEST_TIMEOUT: Duration = Duration::from_secs(600);

/// A process that is killed when dropped.
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

    /// Waits for the end of the process; returns its exit code and standard error.
    fn end(mut self) -> Outcome<(Option<i32>, String)> {
        let mut stderr_text = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut stderr_text)?;
        }
        Ok((self.0.wait()?.code(), stderr_text))
    }
}

fn model() -> Outcome<TempDir> {
    let folder = tempfile::tempdir()?;
    tiny_model::write(&folder.path().join("model"), Kind::Plain)?;
    Ok(folder)
}

/// Polls `get` until it returns a value.
fn until<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(begin.elapsed() < TEST_TIMEOUT, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_worker_loads_generates_and_shuts_down() -> Outcome {
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
    let (code, stderr_text) = worker.end()?;
    assert_eq!(code, Some(0), "{stderr_text}");
    Ok(())
}

/// Receives the next request, returns `status` to the client, and returns head and body.
fn receive_request(listener: &TcpListener, status: &str) -> Outcome<String> {
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
fn aborted_jobs_are_reported_to_the_callback_url() -> Outcome {
    let folder = model()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/done", listener.local_addr()?);
    let tokens = ["--callback-token", "theirs", "--api-token", "ours"];
    // The aborted step may take long on a slow machine.
    let times = ["--drain-seconds", "0", "--shutdown-seconds", "600"];
    let more = [&["--callback-url", &url], &tokens[..], &times].concat();
    let worker = Process::start(folder.path(), &more)?;
    let port = until("port", || std::fs::read_to_string(folder.path().join("port")).ok());
    let url = format!("http://127.0.0.1:{}", port.trim());
    until("readiness", || ureq::get(&format!("{url}/ready")).call().ok());
    // A job that cannot finish before the signal.
    let body = json!({"prompt": "a red circle", "steps": 150, "n": 4, "width": 96, "height": 96});
    let asked = ureq::post(&format!("{url}/v1/jobs")).set("Authorization", "Bearer ours").send_json(body)?;
    let job: Value = asked.into_json()?;
    let ended = Command::new("kill").arg(worker.0.id().to_string()).status()?;
    assert!(ended.success());
    // Shutdown waits for the pause before the second attempt.
    receive_request(&listener, "503 Service Unavailable")?;
    let received = receive_request(&listener, "200 OK")?;
    let (head, body) = received.split_once("\r\n\r\n").ok_or("no body")?;
    assert!(head.contains("Bearer theirs") && !received.contains("ours"), "{received}");
    let body: Value = serde_json::from_str(body)?;
    assert_eq!((&body["job_id"], &body["code"]), (&job["job_id"], &json!("worker_ended")), "{body}");
    let (code, stderr_text) = worker.end()?;
    assert_eq!(code, Some(0), "{stderr_text}");
    Ok(())
}

#[test]
fn startup_errors_are_printed_in_one_line() -> Outcome {
    let folder = model()?;
    for (more, words) in [
        (&["--sd-version", "xl"][..], "--sd-version"),
        (&["--max-pixels", "4096", "--max-side", "64", "--model-ref", "main"], "--model-ref"),
        (&["--callback-url", "nothing"], "--callback-url"),
        (&["--host", "192.0.2.1"], "--host"),
    ] {
        let (code, stderr_text) = Process::start(folder.path(), more)?.end()?;
        assert!(code.is_some_and(|code| code != 0), "{more:?}: {code:?} {stderr_text}");
        assert!(
            stderr_text.lines().any(|line| line.starts_with("error:") && line.contains(words)),
            "{more:?}: {stderr_text}"
        );
    }
    std::fs::remove_dir_all(folder.path().join("model/vae"))?;
    let (code, stderr_text) = Process::start(folder.path(), &[])?.end()?;
    let last = stderr_text.lines().last().unwrap_or_default();
    assert!(code == Some(1) && last.starts_with("error:") && last.contains("vae"), "{code:?} {stderr_text}");
    Ok(())
}
