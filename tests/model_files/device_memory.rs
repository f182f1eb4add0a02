//! Tests loading a model that is larger than the GPU's memory: loaded tensors are freed, and the device stays
//! usable.
use std::io::Cursor;
use std::process::Command;

use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::rocm::{RESERVE_VARIABLE, RocmError};
use candle_core::{DType, Device, Error, Result, Tensor};
use candle_transformers::quantized_var_builder::VarBuilder;
use serial_test::serial;

use crate::common;

/// Memory of the software GPU, and the tensors of a model that does not fit into it.
const MEMORY: &str = "memory=32M";
const TENSORS: usize = 6;
const BLOCKS: (usize, usize) = (2048, 4096);

#[test]
fn a_model_that_does_not_fit_is_freed() -> Result<()> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "device_memory::too_large", "--nocapture"])
        .envs([("CANDLE_ROCM_DRIVER", "emulator:gfx1100"), ("CANDLE_ROCM_EMULATOR", MEMORY)])
        .env(RESERVE_VARIABLE, "1M")
        // Without a backtrace, so that the error is not wrapped.
        .env("RUST_BACKTRACE", "0")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
#[serial]
#[ignore = "runs in a process with little device memory"]
fn too_large() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let tensor = QTensor::quantize(&Tensor::ones(BLOCKS, DType::F32, &Device::Cpu)?, GgmlDType::Q8_0)?;
    let names: Vec<_> = (0..TENSORS).map(|number| format!("blk.{number}.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), &tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &[], &tensors)?;
    let file = file.into_inner();
    for _ in 0..3 {
        let error =
            VarBuilder::from_gguf_buffer(&file, &gpu.device()).err().expect("53 MB in 32 MB of memory");
        let Error::Rocm(source) = &error else { panic!("{error}") };
        let source = source.downcast_ref::<RocmError>();
        assert!(matches!(source, Some(RocmError::OutOfMemory { .. })), "{error}");
        gpu.assert_no_leak(0.0);
    }
    // A tensor that fits can still be loaded.
    let mut reader = Cursor::new(&file);
    let content = Content::read(&mut reader)?;
    let loaded = content.tensor(&mut reader, &names[0], &gpu.device())?;
    assert_eq!(*loaded.data()?, *tensor.data()?);
    Ok(())
}
