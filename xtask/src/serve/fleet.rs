//! Tests several LLM workers behind SGLang's gateway, which routes prompts to the worker that has computed their prefix.
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::clients::run_and_parse_count;
use super::language;
use super::worker::Worker;
use crate::process::{self, command};
use crate::pypi::packages;
use crate::software_gpu::SoftwareGpu;

/// SGLang's gateway; a wheel of 30 MB with a router in Rust.
const GATEWAY: &[&str] = &["sglang-router==0.3.2"];
/// Packages of the client that reads cache events.
const EVENTS: &[&str] = &["pyzmq==27.3.0", "msgspec==0.22.0"];
/// Maximum time until the gateway has found all workers.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Prefix of the scenario's last line on success.
const FLEET_OK: &str = "fleet: ok";

/// Starts `count` workers with the tiny Llama behind a gateway, and drains, kills and aborts one each under load.
///
/// # Errors
/// If the gateway or a client fails.
pub fn test(program: &Path, gpu: SoftwareGpu, count: usize) -> Result<()> {
    ensure!(
        count >= 3,
        "--workers is {count}, but the test drains, kills and aborts one each, so it needs 3"
    );
    let [events, replay] = [free_port()?, free_port()?].map(|port| format!("tcp://127.0.0.1:{port}"));
    let start = |index: usize| {
        language::start_with(program, gpu, &|command| {
            command.args([
                "--worker-id",
                &format!("worker-{index}"),
                "--drain-grace",
                "5",
                "--drain-seconds",
                "600",
            ]);
            if index == 0 {
                command.args(["--kv-events", &format!("@{events}")]);
                command.args([
                    "--kv-events-replay",
                    &format!("@{replay}"),
                    "--kv-events-topic",
                    "kv@worker@tiny",
                ]);
            }
        })
    };
    let workers: Vec<Worker> = (0..count).map(start).collect::<Result<_>>()?;
    let mut client = command("python3", &["workers/clients/kv_events.py", &workers[0].url("")]);
    client.args([&events, &replay]).env("PYTHONPATH", packages(EVENTS)?);
    run_and_parse_count(&mut client, "kv_events")?;

    let gateway = Gateway::start(&workers)?;
    let mut scenario = command("python3", &["workers/clients/fleet.py", &gateway.url]);
    scenario.args(workers.iter().map(|worker| format!("{}={}", worker.url(""), worker.id())));
    let output = process::tee(&mut scenario)?;
    let last = output.lines().last().unwrap_or_default();
    ensure!(last.starts_with(FLEET_OK), "the last line of the scenario is {last:?}");
    Ok(())
}

/// Returns a port that is free on the loopback interface.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Gateway process; dropping it kills the process.
struct Gateway {
    child: Child,
    url: String,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    fn start(workers: &[Worker]) -> Result<Self> {
        let [port, metrics_port] = [free_port()?.to_string(), free_port()?.to_string()];
        let mut gateway = command("python3", &["-m", "sglang_router.launch_router", "--host", "127.0.0.1"]);
        gateway.args(["--port", &port, "--prometheus-port", &metrics_port, "--policy", "cache_aware"]);
        // A single failed probe of readiness takes a worker that drains out of the pool.
        gateway.args(["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"]);
        // The circuit breaker takes invalid requests for failures of the worker.
        gateway.arg("--disable-circuit-breaker");
        // Retries outlast the time until a probe finds that a worker is gone.
        gateway.args(["--retry-initial-backoff-ms", "250", "--retry-max-retries", "10"]);
        gateway.args([
            "--health-failure-threshold",
            "1",
            "--health-success-threshold",
            "1",
            "--log-level",
            "warn",
        ]);
        gateway.arg("--worker-urls").args(workers.iter().map(|worker| worker.url("")));
        gateway.env("PYTHONPATH", packages(GATEWAY)?).stdout(Stdio::null());
        eprintln!("+ {}", process::command_line(&gateway));
        let child = gateway.spawn().context("cannot start the gateway")?;
        let mut gateway = Self { child, url: format!("http://127.0.0.1:{port}") };
        let end = Instant::now() + TIMEOUT;
        while gateway.healthy_workers() < workers.len() as u64 {
            if let Some(status) = gateway.child.try_wait()? {
                bail!("the gateway exited: {status}");
            }
            ensure!(Instant::now() < end, "the gateway did not find the workers within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(gateway)
    }

    /// Returns the number of workers that the gateway uses; 0 if it does not answer.
    fn healthy_workers(&self) -> u64 {
        let mut curl = command("curl", &["--silent", "--max-time", "10", &format!("{}/workers", self.url)]);
        let output = curl.output().map(|output| output.stdout).unwrap_or_default();
        let answer: Value = serde_json::from_slice(&output).unwrap_or_default();
        let workers = answer["workers"].as_array().map(Vec::as_slice).unwrap_or_default();
        workers.iter().filter(|worker| worker["is_healthy"] == true).count() as u64
    }
}
