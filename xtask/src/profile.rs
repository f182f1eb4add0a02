//! `cargo xtask profile EXAMPLE`: counts the instructions of each kernel of an example on the software GPU.
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, root};
use crate::software_gpu::{self, SoftwareGpu};
use crate::{example, setup, weights};

const OPTIONS: &str = "CANDLE_ROCM_EMULATOR";

#[derive(clap::Args)]
pub struct Args {
    /// Example of the root package, such as sentence_embeddings or custom_kernel.
    example: String,
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Number of kernels to show.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
    /// Arguments of the example.
    #[arg(last = true)]
    args: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    software_gpu::check_arch(&args.arch)?;
    setup::ensure(setup::DEMO)?;
    let file = process::cache_file("profile.json")?;
    let mut command = example::command(&args.example, &args.arch, None)?;
    add_arguments(&mut command, args)?;
    let user_options = std::env::var(OPTIONS).ok();
    let options = options(&file.to_string_lossy(), user_options.as_deref());
    SoftwareGpu::with(&args.arch, &options).apply_to(&mut command);
    process::run(&mut command)?;
    println!("{}", table(&process::read_json(&file)?, args.top.into())?);
    println!("profile: ok arch={} example={} file={}", args.arch, args.example, file.display());
    Ok(())
}

/// Adds the user's arguments, or if there are none, the weights and sentences that `sentence_embeddings` needs.
fn add_arguments(command: &mut Command, args: &Args) -> Result<()> {
    if args.example != example::EMBEDDINGS || !args.args.is_empty() {
        command.args(&args.args);
        return Ok(());
    }
    command.args(["--device", "rocm:0", "--model"]).arg(weights::MINILM.ensure()?);
    command.arg("--file").arg(root().join("examples/data/sentences.txt"));
    Ok(())
}

/// Returns the software GPU's options: those that the user has set, and the profile.
fn options(file: &str, user_options: Option<&str>) -> String {
    match user_options.map(str::trim).filter(|text| !text.is_empty()) {
        Some(user_options) => format!("{user_options};profile={file}"),
        None => format!("profile={file}"),
    }
}

#[derive(Default)]
struct Row {
    name: String,
    launches: u64,
    instructions: u64,
    bytes: u64,
    /// 64-byte lines that accesses touched, and the minimum possible.
    lines: [u64; 2],
    conflicts: u64,
    active: u64,
    lanes: u64,
}

impl Row {
    fn of(kernel: &Value) -> Result<Self> {
        let number = |path: &str| {
            kernel.pointer(path).and_then(Value::as_u64).with_context(|| format!("a kernel has no {path}"))
        };
        Ok(Self {
            name: kernel["name"].as_str().context("a kernel has no name")?.to_owned(),
            launches: number("/launches")?,
            instructions: number("/instructions/total")?,
            bytes: number("/bytes/loaded")? + number("/bytes/stored")?,
            lines: [number("/coalescing/lines_64")?, number("/coalescing/min_lines_64")?],
            conflicts: number("/lds/bank_conflicts")?,
            active: number("/divergence/active_lanes")?,
            lanes: number("/divergence/lanes")?,
        })
    }

    fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.instructions += other.instructions;
        self.bytes += other.bytes;
        self.lines = [self.lines[0] + other.lines[0], self.lines[1] + other.lines[1]];
        self.conflicts += other.conflicts;
        self.active += other.active;
        self.lanes += other.lanes;
    }

    fn cells(&self) -> [String; 7] {
        let quotient = |a: u64, b: u64, scale: f64, digits: usize| match b {
            0 => "-".to_owned(),
            _ => format!("{:.digits$}", a as f64 / b as f64 * scale),
        };
        [
            self.name.clone(),
            self.launches.to_string(),
            self.instructions.to_string(),
            self.bytes.to_string(),
            quotient(self.lines[0], self.lines[1], 1.0, 2),
            self.conflicts.to_string(),
            quotient(self.active, self.lanes, 100.0, 1),
        ]
    }
}

const HEADER: [&str; 7] =
    ["kernel", "launches", "instructions", "bytes", "lines/ideal", "bank conflicts", "active lanes %"];

/// Returns a table of the kernels with the most instructions, and the sum of all kernels.
fn table(profile: &Value, top: usize) -> Result<String> {
    let kernels = profile["kernels"].as_array().context("the profile has no kernels")?;
    let mut rows = kernels.iter().map(Row::of).collect::<Result<Vec<_>>>()?;
    if rows.is_empty() {
        bail!("no kernel was launched: the example did not run on the device");
    }
    rows.sort_by(|a, b| b.instructions.cmp(&a.instructions).then_with(|| a.name.cmp(&b.name)));
    let mut sum = Row { name: format!("all {} kernels", rows.len()), ..Row::default() };
    rows.iter().for_each(|row| sum.add(row));
    let mut lines = vec![HEADER.map(str::to_owned)];
    lines.extend(rows.iter().take(top).map(Row::cells));
    lines.push(sum.cells());
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let texts = lines.iter().map(|line| {
        let mut text = format!("{:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter().zip(widths).skip(1) {
            text += &format!("  {cell:>width$}");
        }
        text
    });
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{options, table};

    fn kernel(name: &str, instructions: u64, lines: [u64; 2], lanes: [u64; 2]) -> Value {
        json!({
            "name": name,
            "launches": 3,
            "instructions": {"total": instructions},
            "bytes": {"loaded": 1000, "stored": 24},
            "coalescing": {"lines_64": lines[0], "min_lines_64": lines[1]},
            "lds": {"bank_conflicts": 7},
            "divergence": {"active_lanes": lanes[0], "lanes": lanes[1]},
        })
    }

    #[test]
    fn the_busiest_kernels_come_first() {
        let profile = json!({"kernels": [
            kernel("small", 10, [4, 4], [32, 32]),
            kernel("idle", 0, [0, 0], [0, 0]),
            kernel("large", 2000, [12, 4], [16, 64]),
        ]});
        let expected = "\
kernel         launches  instructions  bytes  lines/ideal  bank conflicts  active lanes %
large                 3          2000   1024         3.00               7            25.0
small                 3            10   1024         1.00               7           100.0
all 3 kernels         9          2010   3072         2.00              21            50.0";
        assert_eq!(table(&profile, 2).unwrap(), expected);
        let all = table(&profile, 9).unwrap();
        assert!(all.lines().nth(3).unwrap().starts_with("idle"), "{all}");
        assert!(all.lines().nth(3).unwrap().split_whitespace().filter(|cell| *cell == "-").count() == 2);
    }

    #[test]
    fn an_empty_or_damaged_profile_is_an_error() {
        assert!(table(&json!({"kernels": []}), 5).unwrap_err().to_string().contains("no kernel"));
        let error = table(&json!({"kernels": [{"name": "a"}]}), 5).unwrap_err().to_string();
        assert!(error.contains("launches"), "{error}");
        assert!(table(&json!({}), 5).is_err());
    }

    #[test]
    fn user_options_are_kept() {
        assert_eq!(options("f.json", None), "profile=f.json");
        assert_eq!(options("f.json", Some(" ")), "profile=f.json");
        assert_eq!(options("f.json", Some("seed=3")), "seed=3;profile=f.json");
    }
}
