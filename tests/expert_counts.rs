//! Compares the bytes that the products of a row with its experts load, counted by the software GPU, with the size of the
//! chosen experts' matrices.
#![cfg(feature = "rocm-emulator")]
mod common;

use anyhow::{Context, Result};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::rocm::{FusedExperts, GateActivation, ProductWeight};
use candle_core::{DType, Device, Tensor};
use hip_kernels::Module;
use serde_json::Value;

const ARCHS: [&str; 3] = ["gfx90a", "gfx942", "gfx1100"];
const WIDTH: usize = 512;
const EXPERTS: usize = 32;
/// Experts of a row.
const CHOSEN: [u32; 4] = [30, 2, 17, 9];
/// Bytes of the cache lines in which loads are counted.
const LINE: u64 = 128;

/// A stack (experts, rows, WIDTH), and the bytes of the chosen matrices.
enum Stack {
    Floats(Tensor),
    Blocks(Box<QTensor>),
}

impl Stack {
    fn new(kind: GgmlDType, experts: usize, rows: usize, device: &Device) -> Result<(Self, u64)> {
        let count = experts * rows * WIDTH;
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * 12.9898).sin()).collect();
        let cpu = Tensor::from_vec(values, (experts * rows, WIDTH), &Device::Cpu)?;
        let bytes = count / kind.block_size() * kind.type_size() / experts * CHOSEN.len();
        let dims = (experts, rows, WIDTH);
        let stack = match kind {
            GgmlDType::F16 => Self::Floats(cpu.to_dtype(DType::F16)?.reshape(dims)?.to_device(device)?),
            _ => {
                let data = QTensor::quantize(&cpu, kind)?.data()?.into_owned();
                let blocks = QTensor::new(QStorage::from_data(data.into(), device, kind)?, dims)?;
                Self::Blocks(Box::new(blocks))
            }
        };
        Ok((stack, bytes as u64))
    }

    fn weight(&self) -> ProductWeight<'_> {
        match self {
            Self::Floats(stack) => stack.into(),
            Self::Blocks(stack) => (&**stack).into(),
        }
    }
}

/// Returns the bytes of the lines that the only kernel of `compute` loads.
fn loaded(device: &Device, compute: impl FnOnce() -> candle_core::Result<Option<Tensor>>) -> Result<u64> {
    device.synchronize()?;
    rocm_emulator::take_profile();
    compute()?.context("no kernel")?;
    device.synchronize()?;
    let profile: Value = serde_json::from_str(&rocm_emulator::take_profile().context("no profile")?)?;
    let kernels = profile["kernels"].as_array().context("the profile has no kernels")?;
    assert_eq!(kernels.len(), 1, "{profile}");
    Ok(kernels[0]["coalescing"]["lines_loaded"].as_u64().context("no lines")? * LINE)
}

#[test]
#[ignore = "run by the test below in a separate process with profiling enabled"]
fn layers() -> Result<()> {
    let built = ARCHS.iter().filter(|arch| hip_kernels::code_object(Module::ExpertRows, arch).is_ok());
    for (ordinal, arch) in built.enumerate() {
        let device = Device::new_rocm(ordinal)?;
        let experts = Tensor::new(&[CHOSEN], &device)?;
        let weights = Tensor::ones((1, CHOSEN.len()), DType::F32, &device)?;
        for kind in [GgmlDType::F16, GgmlDType::Q4K, GgmlDType::Q8_0] {
            let dtype = if kind == GgmlDType::F16 { DType::F16 } else { DType::F32 };
            let x = Tensor::ones((1, WIDTH), dtype, &device)?;
            let hidden = Tensor::ones((CHOSEN.len(), WIDTH), dtype, &device)?;
            let (gate_up, gate_up_bytes) = Stack::new(kind, EXPERTS, 2 * WIDTH, &device)?;
            let (down, down_bytes) = Stack::new(kind, EXPERTS, WIDTH, &device)?;
            let gate_up = FusedExperts::new(&x, gate_up.weight(), &experts);
            let down = FusedExperts::new(&hidden, down.weight(), &experts);
            let counts = [
                (loaded(&device, || gate_up.gated(GateActivation::Silu))?, gate_up_bytes),
                (loaded(&device, || down.sum(&weights, None))?, down_bytes),
            ];
            for (count, bytes) in counts {
                println!("{arch} {kind:?}: {count} bytes loaded, {bytes} of matrices");
                // All of the chosen matrices, and little besides: rows, numbers of experts, and parts of lines.
                assert!(
                    (bytes..bytes + bytes / 16 + 20_000).contains(&count),
                    "{arch} {kind:?}: {count}, {bytes}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_row_loads_only_the_matrices_of_its_experts() -> Result<()> {
    let built: Vec<&str> =
        ARCHS.into_iter().filter(|arch| hip_kernels::code_object(Module::ExpertRows, arch).is_ok()).collect();
    Ok(common::run_profiled("layers", &built)?)
}
