//! Measures one setting in one process: seconds on each software GPU and on the CPU device, alternately.
use anyhow::{Context, Result};
use candle_core::Device;
use std::time::Instant;

/// Settings of a child process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    pub threads: usize,
    pub check: Option<&'static str>,
}

impl Setting {
    /// Returns the value of `CANDLE_ROCM_EMULATOR`.
    pub fn variable(self) -> String {
        self.check.map_or_else(String::new, |check| format!("check={check}"))
    }
}

/// Measured time; lower is better.
#[derive(Clone, Debug)]
pub struct Figure {
    pub setting: Setting,
    pub name: String,
    pub arch: String,
    /// Seconds on the software GPU.
    pub seconds: f64,
    /// Seconds on the CPU device; if there is no comparison, the number of operations.
    pub reference: f64,
}

impl Figure {
    /// Prints the line that [`Figure::parse`] reads.
    fn emit(name: &str, arch: &str, seconds: f64, reference: f64) {
        println!("{name}\t{arch}\t{seconds:e}\t{reference:e}");
    }

    pub fn parse(line: &str, setting: Setting) -> Result<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, arch, seconds, reference] = fields[..] else {
            anyhow::bail!("expected four fields: {line:?}")
        };
        let number = |text: &str| text.parse().with_context(|| format!("not a number: {text:?}"));
        Ok(Self {
            setting,
            name: name.into(),
            arch: arch.into(),
            seconds: number(seconds)?,
            reference: number(reference)?,
        })
    }
}

/// Returns the minimum of each figure over all rounds.
pub fn best(figures: Vec<Figure>) -> Vec<Figure> {
    let mut best: Vec<Figure> = Vec::new();
    for figure in figures {
        let same = |known: &&mut Figure| {
            (known.setting, &known.name, &known.arch) == (figure.setting, &figure.name, &figure.arch)
        };
        match best.iter_mut().find(same) {
            None => best.push(figure),
            Some(known) => {
                known.seconds = known.seconds.min(figure.seconds);
                known.reference = known.reference.min(figure.reference);
            }
        }
    }
    best
}

/// Returns the architectures of the benchmark for which this program contains kernels.
pub fn embedded_archs() -> Vec<&'static str> {
    let targets = hip_kernels::archs();
    ["gfx1100", "gfx90a"]
        .into_iter()
        .filter(|arch| hip_kernels::best_target(arch, targets).is_some())
        .collect()
}

/// Splits an argument into a part and a filter for the names of its operations.
pub fn split(part: &str) -> (&str, &str) {
    part.split_once('=').unwrap_or((part, ""))
}

/// Measures a part and prints its figures.
pub fn run(part: &str) -> Result<()> {
    let (part, name) = split(part);
    let archs = rocm_loader::device_archs()?;
    let devices = (0..archs.len()).map(Device::new_rocm).collect::<Result<Vec<_>, _>>()?;
    match part {
        "operations" => super::operations::measure(&devices, name),
        "streams" => super::streams::measure(&devices),
        "launch" => super::streams::measure_launches(&devices),
        "model" => super::model::measure(&devices),
        _ => anyhow::bail!("unknown part '{part}'"),
    }
}

/// Returns an architecture without its target features.
pub fn without_features(arch: &str) -> &str {
    arch.split_once(':').map_or(arch, |(name, _)| name)
}

fn arch(device: &Device) -> &str {
    match device {
        Device::Rocm(rocm) => without_features(rocm.arch()),
        _ => "the CPU device",
    }
}

/// Returns the minimum seconds of `work` on each device over `rounds` rounds, after a warm-up round; the
/// devices alternate in each round. `prepare` creates the input of `work`.
fn min_seconds<T, R>(
    name: &str,
    devices: &[&Device],
    rounds: usize,
    prepare: impl Fn(&Device) -> Result<T>,
    work: impl Fn(&T) -> Result<R>,
) -> Result<Vec<f64>> {
    let inputs = devices.iter().map(|device| prepare(device)).collect::<Result<Vec<T>>>()?;
    let mut minimum = vec![f64::INFINITY; devices.len()];
    for round in 0..=rounds {
        for ((device, input), minimum) in devices.iter().zip(&inputs).zip(&mut minimum) {
            let start = Instant::now();
            let result = work(input).with_context(|| format!("{name} on {}", arch(device)))?;
            device.synchronize()?;
            if round > 0 {
                *minimum = minimum.min(start.elapsed().as_secs_f64());
            }
            drop(result);
        }
    }
    Ok(minimum)
}

/// Prints the time of `work` on each software GPU and on the CPU device.
pub fn compare<T, R>(
    name: &str,
    devices: &[Device],
    rounds: usize,
    prepare: impl Fn(&Device) -> Result<T>,
    work: impl Fn(&T) -> Result<R>,
) -> Result<()> {
    let all: Vec<&Device> = devices.iter().chain([&Device::Cpu]).collect();
    let seconds = min_seconds(name, &all, rounds, prepare, work)?;
    for (device, own) in devices.iter().zip(&seconds) {
        Figure::emit(name, arch(device), *own, seconds[devices.len()]);
    }
    Ok(())
}

/// Prints the time of `work`, which consists of `count` operations, on each software GPU.
pub fn time<T, R>(
    name: &str,
    devices: &[Device],
    rounds: usize,
    count: f64,
    prepare: impl Fn(&Device) -> Result<T>,
    work: impl Fn(&T) -> Result<R>,
) -> Result<()> {
    let all: Vec<&Device> = devices.iter().collect();
    for (device, seconds) in devices.iter().zip(min_seconds(name, &all, rounds, prepare, work)?) {
        Figure::emit(name, arch(device), seconds, count);
    }
    Ok(())
}
