//! Question about the error of an invalid write, in a child process. Runs only with --risky, since the driver
//! may reset the GPU and the desktop.
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use candle_core::rocm::rocm_rs::hip::bindings;

use crate::answer::{Answer, Question};
use crate::gpu::{Gpu, Grid, code_name};

/// Address without memory.
const INVALID_ADDRESS: usize = 0x1000;

const QUESTION: Question = Question {
    name: "a kernel that writes to an invalid address",
    guess: "hipErrorIllegalAddress from the next synchronizing call; the process continues",
    why: "error reports of a lost GPU, and whether the process survives",
    place: "rocm-emulator/src/runtime/stream.rs, candle-core/src/rocm_backend/error.rs",
};

pub fn ask(gpu: &Gpu, risky: bool, objects: &Path) -> Result<Answer> {
    if !risky {
        return Ok(QUESTION.not_applicable("not asked without --risky"));
    }
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let output = Command::new(own).arg("--lose").arg("--objects").arg(objects).output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or("nothing");
    let text = format!("the child process printed {last} and ended with {}", output.status);
    let works = gpu.synchronize().is_ok();
    let right = output.status.success() && last.starts_with(&code_name(700)) && works;
    Ok(QUESTION.answer(right, text))
}

/// Writes to an invalid address and prints the errors of the next two synchronizing calls.
pub fn write_to_invalid_address(gpu: &Gpu) -> Result<()> {
    let scratch = gpu.device.alloc_zeros::<u32>(1)?;
    let launch = gpu.portable("write_nowhere")?.launch(Grid { groups: 1, lanes: 1 }.config());
    // SAFETY: the invalid write is intended; this process does nothing else.
    unsafe { launch.arg(&scratch.ptr()).arg(&INVALID_ADDRESS).run()? };
    // SAFETY: the stream belongs to the device.
    let (first, second) = unsafe {
        (bindings::hipStreamSynchronize(gpu.stream()), bindings::hipStreamSynchronize(gpu.stream()))
    };
    println!("{}, then {}", code_name(first), code_name(second));
    Ok(())
}
