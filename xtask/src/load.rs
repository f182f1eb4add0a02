//! `cargo xtask load`: measures the latencies of a language-model server under requests that arrive at random times.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::plot::{self, Chart};
use crate::process::{self, cargo, command, root};
use crate::software_gpu::{self, SoftwareGpu};
use crate::{serve, setup};

/// Height of a chart in pixels.
const HEIGHT: u32 = 320;
/// The charts end at this quantile, since a single request could be far from all others.
const LAST_QUANTILE: f64 = 0.99;

#[derive(clap::Args)]
pub struct Args {
    /// Address of a running OpenAI-compatible server; by default this command starts the tiny Llama on the software GPU.
    #[arg(long)]
    url: Option<String>,
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// For so many minutes, send requests of all kinds to models with adapters, pictures and experts, and check each answer.
    #[arg(long, value_name = "MINUTES", conflicts_with = "url")]
    mixed: Option<f64>,
    /// Folder for requests.csv and load.svg.
    #[arg(long, value_name = "FOLDER", default_value = "target/load")]
    out: PathBuf,
    /// Options of the load, after those above: --rate, --seconds, --seed, --prompt-tokens, --output-tokens, --trace,
    /// --shared-prefix, --prefix-tokens, --cancel, --ttft-bound, --itl-bound, --chat and others
    /// (docs/how-to/serve-a-model.md#measure-latencies).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    load: Vec<String>,
}

/// Runs the load, and writes the times of all requests and their distributions. With `--mixed`, runs the load of checked
/// requests.
///
/// # Errors
/// If the server cannot be reached, a request is lost, or none is completed. Also if an answer is not that of its request, or
/// memory is leaked.
pub fn run(args: &Args) -> Result<()> {
    let Some(url) = &args.url else {
        software_gpu::check_arch(&args.arch)?;
        setup::ensure(setup::SERVE)?;
        let mut build = cargo(&["build", "--quiet", "--bins", "--examples", "--package", "llm-worker"]);
        build.args(["--features", "llm-worker/rocm-emulator"]).env("CANDLE_ROCM_ARCHS", &args.arch);
        let program = process::build_programs(&mut build)?;
        if let Some(minutes) = args.mixed {
            return mixed(args, minutes, &program("llm-worker-rocm")?, &program("load")?);
        }
        let worker = serve::start_tiny_llama(&program("llm-worker-rocm")?, SoftwareGpu::new(&args.arch))?;
        measure(args, &program("load")?, &worker.url(""))?;
        return worker.stop();
    };
    let mut build = cargo(&["build", "--quiet", "--package", "llm-worker", "--example", "load"]);
    measure(args, &process::build_programs(&mut build)?("load")?, url)
}

/// Starts two workers, since a worker with several models has no adapters, and sends both requests.
fn mixed(args: &Args, minutes: f64, worker: &Path, load: &Path) -> Result<()> {
    let folder = root().join("target/load/models");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    process::run(command(load, &["models", "--out"]).arg(&folder))?;
    let named = |name: &str| format!("{name}={}", folder.join(name).display());
    let gpu = SoftwareGpu::new(&args.arch);
    let adapters = serve::start_tiny_llama_with(worker, gpu, &|command| {
        command.arg("--lora-modules").args(["adapter-1", "adapter-2"].map(named));
    })?;
    let several = serve::Worker::start(worker, gpu, &|command| {
        command.arg("--models").args(["pictures", "experts"].map(named)).args(["--models-max", "2"]);
        command.args(["--dtype", "f32", "--cache-memory", "64MiB", "--streams-per-client", "0"]);
    })?;
    let seconds = (minutes * 60.0).to_string();
    let mut load = command(load, &["mixed", "--seconds", &seconds]);
    load.args(["--address", adapters.address(), "--address", several.address()]);
    process::run(load.args(&args.load))?;
    adapters.stop()?;
    several.stop()
}

fn measure(args: &Args, load: &Path, url: &str) -> Result<()> {
    let folder = root().join(&args.out);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (csv, plot) = (folder.join("requests.csv"), folder.join("load.svg"));
    let mut load = command(load, &["open", "--url", url, "--csv"]);
    process::run(load.arg(&csv).args(&args.load))?;
    let text = fs::read_to_string(&csv).with_context(|| format!("cannot read {}", csv.display()))?;
    let names = [("time to first token", "ttft_ms"), ("time between tokens", "intervals_ms")];
    let charts = names.map(|(title, column)| {
        column_values(&text, column).map(|values| Chart {
            title,
            x: "milliseconds",
            lines: vec![("share of times that are at most as long", distribution(values))],
        })
    });
    plot::draw(&charts.into_iter().collect::<Result<Vec<_>>>()?, HEIGHT, &plot)?;
    eprintln!("wrote {} and {}", csv.display(), plot.display());
    Ok(())
}

/// Returns all numbers of a column, whose fields may contain several, separated by spaces.
fn column_values(csv: &str, name: &str) -> Result<Vec<f64>> {
    let mut lines = csv.lines();
    let column = lines.next().and_then(|names| names.split(',').position(|other| other == name));
    let column = column.with_context(|| format!("the file of the load has no column {name}"))?;
    let fields = lines.flat_map(|line| line.split(',').nth(column).unwrap_or_default().split_whitespace());
    fields.map(|field| field.parse().with_context(|| format!("{name} is {field}"))).collect()
}

/// Returns the cumulative distribution of values up to [`LAST_QUANTILE`].
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let points = values.into_iter().enumerate().map(|(rank, value)| (value, (rank + 1) as f64 / count));
    points.take_while(|point| point.1 <= LAST_QUANTILE).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn options_of_the_load_are_passed_on() {
        let args = Line::parse_from(["load", "--url", "http://a", "--rate", "2", "--chat"]).args;
        assert_eq!(
            (args.url.as_deref(), args.load),
            (Some("http://a"), vec!["--rate".into(), "2".into(), "--chat".into()])
        );
    }

    #[test]
    fn columns_contain_numbers_or_lists() {
        let csv = "a,ttft_ms,intervals_ms\n1,2.5,1 2\n1,,\n1,3,4\n";
        assert_eq!(column_values(csv, "ttft_ms").unwrap(), [2.5, 3.0]);
        assert_eq!(column_values(csv, "intervals_ms").unwrap(), [1.0, 2.0, 4.0]);
        assert!(column_values(csv, "b").is_err() && column_values("a\nx\n", "a").is_err());
    }

    #[test]
    fn a_distribution_is_drawn_without_its_last_values() {
        let points = distribution((1..=200).rev().map(f64::from).collect());
        assert_eq!((points.len(), points[99]), (198, (100.0, 0.5)));
        assert_eq!(distribution(Vec::new()), []);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("load.svg");
        let chart = Chart { title: "t", x: "milliseconds", lines: vec![("l", points), ("none", Vec::new())] };
        plot::draw(&[chart], HEIGHT, &file).unwrap();
        assert!(fs::read_to_string(file).unwrap().contains("milliseconds"));
    }
}
