//! Starts, queries and stops a worker process on the software GPU.
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{self, command, run};
use crate::software_gpu::SoftwareGpu;

/// Maximum time until a worker is ready, and until it exits after SIGTERM.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Worker process that is ready for requests; dropping it kills the process.
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
    /// Starts a program with the arguments that `arguments` adds, on a free port.
    ///
    /// # Errors
    /// If the worker exits before it is ready, or is not ready within [`TIMEOUT`].
    pub fn start(program: &Path, gpu: SoftwareGpu, arguments: &dyn Fn(&mut Command)) -> Result<Self> {
        Self::start_native(program, &|command| {
            arguments(command);
            gpu.apply_to(command);
        })
    }

    /// Like [`Worker::start`], on the GPU that the environment selects.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub fn start_native(program: &Path, arguments: &dyn Fn(&mut Command)) -> Result<Self> {
        let name = program.file_name().unwrap_or_default();
        let file = process::cache_file(&name.to_string_lossy())?.with_extension("port");
        let _ = fs::remove_file(&file);
        let mut command = Command::new(program);
        arguments(&mut command);
        command.args(["--port", "0", "--log", "warn", "--port-file"]).arg(&file);
        eprintln!("+ {}", process::command_line(&command));
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut worker = Self { child, address: String::new() };
        worker.wait_until("ready", |worker| {
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

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Runs curl on a path of the worker and returns its standard output.
    pub fn curl(&self, arguments: &[&str], path: &str) -> Result<String> {
        let mut command = command("curl", &["--silent", "--no-buffer", "--max-time", "600"]);
        let output = command.args(arguments).arg(self.url(path)).stderr(Stdio::inherit()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a job and returns the path of its event stream.
    pub fn start_job(&self, body: &Value) -> Result<String> {
        let json = ["--header", "Content-Type: application/json", "--data", &body.to_string()];
        let answer = self.curl(&json, "/v1/jobs")?;
        let answer: Value = serde_json::from_str(&answer).with_context(|| answer)?;
        Ok(answer["sse_url"].as_str().with_context(|| format!("no sse_url: {answer}"))?.to_owned())
    }

    /// Cancels the job of a stream and returns the stream's events.
    pub fn cancel_job(&self, stream: &str) -> Result<String> {
        self.curl(&["--request", "DELETE"], stream.trim_end_matches("/stream"))?;
        self.curl(&[], stream)
    }

    /// Waits until `is_met` returns true; returns an error if the worker exits first or after [`TIMEOUT`].
    fn wait_until(&mut self, state: &str, mut is_met: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while !is_met(self)? {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker exited before it was {state}: {status}");
            }
            ensure!(Instant::now() < end, "the worker is not {state} after {} s", TIMEOUT.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Stops the worker with SIGTERM, as a service manager does, and checks that it exits successfully.
    pub fn stop(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        run(&mut command("kill", &["-TERM", &id]))?;
        let end = Instant::now() + TIMEOUT;
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < end, "the worker did not exit after SIGTERM: timeout {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(100));
        };
        ensure!(status.success(), "the worker exited with {status}");
        Ok(())
    }
}
