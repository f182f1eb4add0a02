//! A worker as a process on the software GPU.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{self, command, run};
use crate::software_gpu::SoftwareGpu;

/// Until a worker is ready, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(300);

/// A worker that is ready; killed if it is not ended.
pub struct Worker {
    child: Child,
    address: String,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    /// Starts a program with the arguments that `arguments` adds, on a port of its own.
    ///
    /// # Errors
    /// When it ends before it is ready, or takes too long.
    pub fn start(program: &Path, gpu: SoftwareGpu, arguments: &dyn Fn(&mut Command)) -> Result<Self> {
        let name = program.file_name().unwrap_or_default();
        let file = process::cache_file(&name.to_string_lossy())?.with_extension("port");
        let _ = fs::remove_file(&file);
        let mut command = Command::new(program);
        arguments(&mut command);
        command.args(["--port", "0", "--log", "warn", "--port-file"]).arg(&file);
        gpu.choose_for(&mut command);
        eprintln!("+ {}", process::command_line(&command));
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut worker = Self { child, address: String::new() };
        worker.until("ready", |worker| {
            if worker.address.is_empty() {
                let port = fs::read_to_string(&file).unwrap_or_default();
                worker.address = port
                    .trim()
                    .parse::<u16>()
                    .map_or_else(|_| String::new(), |port| format!("127.0.0.1:{port}"));
                return Ok(false);
            }
            Ok(worker.curl(&["--output", "/dev/null", "--write-out", "%{http_code}"], "/ready")? == "200")
        })?;
        Ok(worker)
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns what curl prints.
    pub fn curl(&self, arguments: &[&str], path: &str) -> Result<String> {
        let mut command = command("curl", &["--silent", "--no-buffer", "--max-time", "600"]);
        let output = command.args(arguments).arg(self.url(path)).stderr(Stdio::inherit()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Asks for a job; gives back the path of its stream.
    pub fn job(&self, body: &Value) -> Result<String> {
        let json = ["--header", "Content-Type: application/json", "--data", &body.to_string()];
        let answer = self.curl(&json, "/v1/jobs")?;
        let answer: Value = serde_json::from_str(&answer).with_context(|| answer)?;
        Ok(answer["sse_url"].as_str().with_context(|| format!("no job: {answer}"))?.to_owned())
    }

    /// Cancels the job of a stream, and gives back what the stream tells.
    pub fn cancelled(&self, stream: &str) -> Result<String> {
        self.curl(&["--request", "DELETE"], stream.trim_end_matches("/stream"))?;
        self.curl(&[], stream)
    }

    /// Waits for what `is_so` says; an error if the worker ends before.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !is_so(self)? {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker ended before it was {what}: {status}");
            }
            ensure!(Instant::now() < end, "the worker is not {what} after {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Asks it to end, as a service manager does; it must end well.
    pub fn end(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        run(&mut command("kill", &["-TERM", &id]))?;
        let end = Instant::now() + PATIENCE;
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < end, "the worker did not end after SIGTERM");
            thread::sleep(Duration::from_millis(100));
        };
        ensure!(status.success(), "the worker ended with {status}");
        Ok(())
    }
}
