//! One setting in one process: seconds on each software device and on the CPU device, in turns.
use anyhow::{Context, Result};
use candle_core::Device;
use std::time::Instant;

/// What a process is started with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    pub threads: usize,
    pub check: Option<&'static str>,
}

impl Setting {
    /// The value of CANDLE_ROCM_EMULATOR.
    pub fn variable(self) -> String {
        self.check.map_or_else(String::new, |check| format!("check={check}"))
    }
}

/// A measured figure, lower is better.
#[derive(Clone, Debug)]
pub struct Figure {
    pub setting: Setting,
    pub what: String,
    pub arch: String,
    /// Seconds on the software device.
    pub seconds: f64,
    /// Seconds on the CPU device; or, where there is nothing to compare with, how many things were done.
    pub reference: f64,
}

impl Figure {
    /// Writes the line that [`Figure::parse`] reads.
    fn emit(what: &str, arch: &str, seconds: f64, reference: f64) {
        println!("{what}\t{arch}\t{seconds:e}\t{reference:e}");
    }

    pub fn parse(line: &str, setting: Setting) -> Result<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [what, arch, seconds, reference] = fields[..] else {
            anyhow::bail!("a figure has four fields: {line:?}")
        };
        let number = |text: &str| text.parse().with_context(|| format!("no number: {text:?}"));
        Ok(Self {
            setting,
            what: what.into(),
            arch: arch.into(),
            seconds: number(seconds)?,
            reference: number(reference)?,
        })
    }
}

/// The least seconds of each figure over all rounds.
pub fn best(figures: Vec<Figure>) -> Vec<Figure> {
    let mut best: Vec<Figure> = Vec::new();
    for figure in figures {
        let same = |known: &&mut Figure| {
            (known.setting, &known.what, &known.arch) == (figure.setting, &figure.what, &figure.arch)
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

/// Architectures of the bench for which this program holds kernels.
pub fn embedded_archs() -> Vec<&'static str> {
    let held = hip_kernels::archs();
    ["gfx1100", "gfx90a"].into_iter().filter(|arch| hip_kernels::best_target(arch, held).is_some()).collect()
}

/// A part, and what the names of its figures must contain.
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
        _ => anyhow::bail!("no part '{part}'"),
    }
}

/// An architecture without its target features.
pub fn without_features(arch: &str) -> &str {
    arch.split_once(':').map_or(arch, |(name, _)| name)
}

/// The device's architecture.
fn arch(device: &Device) -> &str {
    match device {
        Device::Rocm(rocm) => without_features(rocm.arch()),
        _ => "the CPU device",
    }
}

/// The least seconds of `work` on each device, of `rounds` rounds in which the devices take turns after one that
/// does not count. `prepare` makes what `work` takes.
fn least_seconds<T, R>(
    what: &str,
    devices: &[&Device],
    rounds: usize,
    prepare: impl Fn(&Device) -> Result<T>,
    work: impl Fn(&T) -> Result<R>,
) -> Result<Vec<f64>> {
    let inputs = devices.iter().map(|device| prepare(device)).collect::<Result<Vec<T>>>()?;
    let mut least = vec![f64::INFINITY; devices.len()];
    for round in 0..=rounds {
        for ((device, input), least) in devices.iter().zip(&inputs).zip(&mut least) {
            let start = Instant::now();
            let result = work(input).with_context(|| format!("{what} on {}", arch(device)))?;
            device.synchronize()?;
            if round > 0 {
                *least = least.min(start.elapsed().as_secs_f64());
            }
            drop(result);
        }
    }
    Ok(least)
}

/// Prints how long `work` takes on each software device and on the CPU device.
pub fn compare<T, R>(
    what: &str,
    devices: &[Device],
    rounds: usize,
    prepare: impl Fn(&Device) -> Result<T>,
    work: impl Fn(&T) -> Result<R>,
) -> Result<()> {
    let all: Vec<&Device> = devices.iter().chain([&Device::Cpu]).collect();
    let seconds = least_seconds(what, &all, rounds, prepare, work)?;
    for (device, own) in devices.iter().zip(&seconds) {
        Figure::emit(what, arch(device), *own, seconds[devices.len()]);
    }
    Ok(())
}

/// Prints how long `work`, which does `count` things, takes on each software device.
pub fn time<T, R>(
    what: &str,
    devices: &[Device],
    rounds: usize,
    count: f64,
    prepare: impl Fn(&Device) -> Result<T>,
    work: impl Fn(&T) -> Result<R>,
) -> Result<()> {
    let all: Vec<&Device> = devices.iter().collect();
    for (device, seconds) in devices.iter().zip(least_seconds(what, &all, rounds, prepare, work)?) {
        Figure::emit(what, arch(device), seconds, count);
    }
    Ok(())
}
