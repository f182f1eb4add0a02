//! `cargo xtask test`: runs everything that CI runs.
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{self, cargo};
use crate::software_gpu::{self, SoftwareGpu};
use crate::{demo, downstream, flash_attn, kernels, lines, serve, setup, stress, upstream_tests, validate};

/// Packages and features that all checks of the workspace share, so that they share artifacts: every driver is enabled.
const FEATURES: [&str; 3] = [
    "--workspace",
    "--features",
    "candle-rocm/rocm-emulator,candle-rocm/rocm-nvidia,llm-worker/rocm-emulator,sd-worker/rocm-emulator",
];

const WORKER_LOAD: serve::Load = serve::Load { streams: 64, seconds: 60 };

/// Software GPUs for upstream's tests: every family, and one on which calls that synchronize more than a
/// stream fail. Convolutions run in MIOpen, or in our own kernels where MIOpen is absent or has no solutions.
const SOFTWARE_GPUS: &[SoftwareGpu] = &[
    SoftwareGpu::new("gfx1100"),
    SoftwareGpu::with("gfx90a", "miopen=absent"),
    SoftwareGpu::with("gfx942", "miopen=absent"),
    SoftwareGpu::with("gfx1030", "miopen=absent"),
    SoftwareGpu::with("gfx1201", "miopen=none"),
    SoftwareGpu::with("gfx1100", "fail=hipDeviceSynchronize:1,hipMemcpy:1,hipMemset:1,hipStreamCreate:1"),
];

/// Software GPUs with a random execution order, for the fuzzer only: it finds more than upstream's tests do.
const SHUFFLED: &[SoftwareGpu] = &[
    SoftwareGpu::with("gfx1100", "seed=1;miopen=absent"),
    SoftwareGpu::with("gfx90a", "seed=2"),
    SoftwareGpu::with("gfx1201", "seed=3"),
];

/// Architectures for the hardware questions: one with waves of 32 lanes, one with 64.
const QUESTION_GPUS: [&str; 2] = ["gfx1100", "gfx90a"];

#[derive(clap::Args)]
pub struct Args {
    /// Run only our own tests, without format, lints, other targets, downstream crates, demo and upstream's
    /// tests.
    #[arg(long)]
    quick: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let archs = software_gpu::TESTED.join(",");
    let mut stages = Stages::default();
    setup::ensure(setup::TEST)?;
    if !args.quick {
        stages.run("format and lines", || {
            process::run(&mut cargo(&["fmt", "--all", "--", "--check"]))?;
            lines::run(&lines::Args::default())
        })?;
        stages.run("lints", || {
            let clippy = ["--all-targets", "--", "--deny", "warnings"];
            process::run(
                cargo(&["clippy", "--quiet"]).args(FEATURES).args(clippy).env("CANDLE_ROCM_ARCHS", &archs),
            )
        })?;
        stages.run("kernels", || kernels::build(kernels::EVERY_ARCH, true, false))?;
        stages.run("downstream", downstream::run)?;
        stages.run("demo", || demo::run_demo(software_gpu::DEFAULT, &archs))?;
        stages
            .run("questions", || QUESTION_GPUS.iter().try_for_each(|arch| validate::smoke(arch, &archs)))?;
        stages.run("stress", || stress::run_on_software(stress::SHORT_MINUTES, 1, &archs))?;
        stages.run("bench", || bench_on_software(&archs))?;
        if !stages.run("upstream's tests", || upstream_tests::run_suites(SOFTWARE_GPUS, &archs, &[]))? {
            bail!("results of upstream's tests differ from rocmify/src/suite_rules.rs, see above");
        }
        let gpu = SoftwareGpu::new(software_gpu::DEFAULT);
        stages.run("workers", || serve::run_on(gpu, &archs, &FEATURES, WORKER_LOAD, None))?;
    }
    let mut total = Summary::default();
    stages.run("our tests", || {
        // Some tests start the examples as programs.
        process::run(
            cargo(&["build", "--quiet", "--examples"]).args(FEATURES).env("CANDLE_ROCM_ARCHS", &archs),
        )?;
        // Doctests first, so that the last lines are those of the tests.
        let targets: [&[&str]; 2] = [&["--doc"], &["--lib", "--bins", "--tests", "--examples"]];
        for target in targets {
            let output =
                process::tee(cargo(&["test"]).args(FEATURES).args(target).env("CANDLE_ROCM_ARCHS", &archs))?;
            output.lines().for_each(|line| total.add(line));
        }
        Ok(())
    })?;
    // The first GPU is skipped, since the tests above ran on it.
    stages.run("random operations", || {
        for gpu in SOFTWARE_GPUS.iter().skip(1).chain(SHUFFLED).filter(|_| !args.quick) {
            println!("random operations on {gpu}:");
            let mut command = cargo(&["test", "--quiet"]);
            command.args(FEATURES).args(["--test", "differential"]).env("CANDLE_ROCM_ARCHS", &archs);
            gpu.apply_to(&mut command);
            process::tee(&mut command)?.lines().for_each(|line| total.add(line));
        }
        Ok(())
    })?;
    // The first GPU is skipped here, too.
    let run_attention = || flash_attn::run_on(&software_gpu::TESTED[1..], &archs, Vec::new());
    if !args.quick && !stages.run("attention", run_attention)? {
        bail!("candle-flash-attn's tests failed, see above");
    }
    println!("{stages}");
    println!("{total}");
    Ok(())
}

#[derive(Default)]
struct Stages(Vec<(&'static str, Duration)>);

impl Stages {
    fn run<R>(&mut self, name: &'static str, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let begin = Instant::now();
        let outcome = work()?;
        self.0.push((name, begin.elapsed()));
        Ok(outcome)
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seconds:")?;
        for (at, (name, time)) in self.0.iter().enumerate() {
            write!(f, "{} {name} {}", if at == 0 { "" } else { "," }, time.as_secs())?;
        }
        Ok(())
    }
}

/// Runs every case of the operations benchmark at reduced size, with `cargo test`, so that nothing is recompiled.
fn bench_on_software(archs: &str) -> Result<()> {
    let mut command = cargo(&["test", "--quiet"]);
    command.args(FEATURES).args(["--bench", "operations", "--", "--scale", "smoke"]);
    SoftwareGpu::new(software_gpu::DEFAULT).apply_to(&mut command);
    process::run(command.env("CANDLE_ROCM_ARCHS", archs))
}

#[derive(Default)]
struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Summary {
    /// Adds the counts of a line `test result: ok. 3 passed; 0 failed; 1 ignored; ...`; ignores other lines.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for (number, what) in counts.split("; ").filter_map(|count| count.split_once(' ')) {
            let number: u64 = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn results_of_several_binaries_add_up() {
        let mut total = Summary::default();
        total.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.09s",
        );
        total.add(
            "test result: FAILED. 20 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0s",
        );
        total.add("test names::passed ... ok");
        assert_eq!(total.to_string(), "23 passed, 2 failed, 1 skipped");
    }
}
