//! Devices of a model that is divided among several GPUs (`--tensor-parallel`), and their metrics.
use std::fmt;

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use llm_engine::engine::Engine;
use worker_core::Metrics;
use worker_core::device::{self, DeviceKind, OpenDevice};
use worker_core::metrics::prometheus_client::collector::Collector;
use worker_core::metrics::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use worker_core::metrics::prometheus_client::metrics::MetricType;
use worker_core::metrics::prometheus_client::metrics::counter::ConstCounter;
use worker_core::metrics::prometheus_client::metrics::gauge::ConstGauge;
use worker_core::metrics::prometheus_client::registry::Unit;

/// Opens `ranks` devices, from `first` on if they are GPUs.
///
/// # Errors
/// Returns an error that names the GPU that cannot be opened, or if several devices are no AMD GPUs.
pub fn open(kind: DeviceKind, first: Option<usize>, ranks: usize) -> Result<Vec<OpenDevice>> {
    ensure!(
        ranks == 1 || kind == DeviceKind::Rocm,
        "--tensor-parallel {ranks} requires AMD GPUs; use llm-worker-rocm, or --tensor-parallel 1"
    );
    let mut devices = vec![device::open(kind, first).context("cannot open the device")?];
    let first = devices[0].ordinal.unwrap_or(0);
    for ordinal in first + 1..first + ranks {
        devices.push(device::open(kind, Some(ordinal)).with_context(|| {
            format!(
                "--tensor-parallel {ranks} uses GPUs {first} to {}, but GPU {ordinal} cannot be opened",
                first + ranks - 1
            )
        })?);
    }
    Ok(devices)
}

/// Registers the metrics of each rank under the label `model`, if there are several.
pub fn register(metrics: &Metrics, model: &str, engine: Engine, devices: Vec<Device>) {
    if devices.len() > 1 {
        metrics.register_model(model, RankFigures { engine, devices }, |_| ());
    }
}

/// Collector of the metrics of each rank.
struct RankFigures {
    engine: Engine,
    devices: Vec<Device>,
}

impl fmt::Debug for RankFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankFigures").field("devices", &self.devices).finish_non_exhaustive()
    }
}

impl Collector for RankFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let label = |rank: usize| [("rank", rank.to_string())];
        let help = "Allocated memory of each rank's device in bytes";
        let mut metric = encoder.encode_descriptor("llm_rank_vram_bytes", help, None, MetricType::Gauge)?;
        for (rank, device) in self.devices.iter().enumerate() {
            ConstGauge::new(device::vram_bytes(device)).encode(metric.encode_family(&label(rank))?)?;
        }
        let (name, help) = ("llm_rank_step", "Total time of each rank's steps since the model was loaded");
        let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        for (rank, time) in self.engine.status().rank_times.iter().enumerate() {
            ConstCounter::new(time.as_secs_f64()).encode(metric.encode_family(&label(rank))?)?;
        }
        Ok(())
    }
}
