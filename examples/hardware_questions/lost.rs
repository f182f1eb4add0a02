//! What is said of a GPU that is lost: a kernel of another process writes where it must not. Only when asked for, since a
//! driver may reset the GPU, and a desktop with it.
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use candle_core::rocm::rocm_rs::hip::bindings;

use crate::answer::{Answer, Question};
use crate::gpu::{Gpu, Grid, code_name};

/// No memory of anybody's.
const NOWHERE: usize = 0x1000;

const QUESTION: Question = Question {
    name: "a kernel that writes where no memory is",
    guess: "hipErrorIllegalAddress from the next call that waits; the process goes on",
    why: "what is told of a lost GPU, and whether a process survives it",
    place: "rocm-emulator/src/runtime/stream.rs, candle-core/src/rocm_backend/error.rs",
};

pub fn ask(gpu: &Gpu, risky: bool, objects: &Path) -> Result<Answer> {
    if !risky {
        return Ok(QUESTION.not_applicable("not asked without --risky"));
    }
    let own = std::env::current_exe().context("this program cannot be found")?;
    let output = Command::new(own).arg("--lose").arg("--objects").arg(objects).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or("nothing");
    let text = format!("it said: {last}; its process ended with {}", output.status);
    let works = gpu.synchronize().is_ok();
    let right = output.status.success() && last.starts_with(&code_name(700)) && works;
    Ok(QUESTION.answer(right, text))
}

/// Loses the GPU, and says what it says.
pub fn lose(gpu: &Gpu) -> Result<()> {
    let scratch = gpu.device.alloc_zeros::<u32>(1)?;
    let launch = gpu.portable("write_nowhere")?.launch(Grid { groups: 1, lanes: 1 }.config());
    // SAFETY: none: the kernel writes where nothing is, in a process that does nothing else.
    unsafe { launch.arg(&scratch.ptr()).arg(&NOWHERE).run()? };
    // SAFETY: the stream is the device's.
    let (first, second) = unsafe {
        (bindings::hipStreamSynchronize(gpu.stream()), bindings::hipStreamSynchronize(gpu.stream()))
    };
    println!("{}, then {}", code_name(first), code_name(second));
    Ok(())
}
