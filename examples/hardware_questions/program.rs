//! Questions about memory, streams and scheduling.
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::rocm::rocm_rs::hip::bindings;
use serde_json::json;

use crate::answer::{Answer, Question};
use crate::gpu::{Gpu, Grid, code_name};

/// Duration of the kernels that keep the GPU busy.
const BUSY: Duration = Duration::from_millis(40);
const WORDS: usize = 1 << 16;
/// Questions by the names of their functions.
const QUESTIONS: &str = include_str!("program.json");

fn question(asked_by: &str) -> Result<Question> {
    let questions: BTreeMap<&str, Question> = serde_json::from_str(QUESTIONS)?;
    questions.get(asked_by).copied().with_context(|| format!("program.json has no question {asked_by:?}"))
}

pub fn ask(gpu: &Gpu) -> Result<Vec<Answer>> {
    // Waits for the work of earlier questions.
    gpu.synchronize()?;
    let steps = gpu.steps_for(BUSY)?;
    Ok(vec![
        local_memory(gpu)?,
        hand_over(gpu)?,
        lane_order(gpu)?,
        float_order(gpu)?,
        query(gpu, steps)?,
        free(gpu, steps)?,
        upload(gpu, steps, false)?,
        upload(gpu, steps, true)?,
        alignment(gpu)?,
    ])
}

fn local_memory(gpu: &Gpu) -> Result<Answer> {
    const LEFT: u32 = 0xc0ff_ee11;
    let grid = Grid { groups: 512, lanes: 256 };
    let counts = gpu.device.alloc_zeros::<u32>(4)?;
    let fill = gpu.portable("fill_local")?.launch(grid.config());
    // SAFETY: fill_local(unsigned *out, unsigned word) writes at most one word.
    unsafe { fill.arg(&counts.ptr()).arg(&0xc0ff_ee11_u32).run()? };
    let read = gpu.portable("read_local")?.launch(grid.config());
    // SAFETY: read_local(unsigned *out, unsigned word, unsigned write) updates four words.
    unsafe { read.arg(&counts.ptr()).arg(&LEFT).arg(&0u32).run()? };
    let found = gpu.device.clone_dtoh(&counts)?;
    let [left, zeros, ones, others] = [found[0], found[1], found[2], found[3]];
    let text =
        format!("{left} words of the previous kernel, {zeros} zeros, {ones} of all ones, {others} others");
    Ok(question("local_memory")?.answer(zeros < (left + ones + others), text))
}

fn hand_over(gpu: &Gpu) -> Result<Answer> {
    const MOST: u32 = 100_000_000;
    let waited = gpu.device.alloc_zeros::<u32>(1)?;
    let launch = gpu.portable("hand_over")?.launch(Grid { groups: 1, lanes: 128 }.config());
    // SAFETY: hand_over(unsigned *out, unsigned most) writes one word.
    unsafe { launch.arg(&waited.ptr()).arg(&MOST).run()? };
    let waited = gpu.device.clone_dtoh(&waited)?[0];
    let text = if waited < MOST { format!("set after {waited} polls") } else { "never set".to_owned() };
    Ok(question("hand_over")?.answer(waited < MOST, text))
}

fn zeros(gpu: &Gpu, count: usize) -> Result<candle_core::rocm::Buffer<u32>> {
    Ok(gpu.device.alloc_zeros::<u32>(count)?)
}

fn lane_order(gpu: &Gpu) -> Result<Answer> {
    let lanes = gpu.lanes();
    let (counter, places, out) = (zeros(gpu, 1)?, zeros(gpu, lanes as usize)?, zeros(gpu, lanes as usize)?);
    let launch = gpu.portable("lane_order")?.launch(Grid { groups: 1, lanes }.config());
    // SAFETY: lane_order(unsigned *counter, const unsigned *places, unsigned *out) accesses one word per lane.
    unsafe { launch.arg(&counter.ptr()).arg(&places.ptr()).arg(&out.ptr()).run()? };
    let found = gpu.device.clone_dtoh(&out)?;
    let in_order = found.iter().zip(0..).all(|(old, lane)| *old == lane);
    Ok(question("lane_order")?
        .answer(in_order, if in_order { "by lane" } else { "another order" })
        .with(json!(found)))
}

fn float_order(gpu: &Gpu) -> Result<Answer> {
    const RUNS: usize = 20;
    let places = zeros(gpu, 256)?;
    let mut sums = Vec::new();
    for _ in 0..RUNS {
        let sum = gpu.device.alloc_zeros::<f32>(1)?;
        let launch = gpu.portable("float_order")?.launch(Grid { groups: 64, lanes: 256 }.config());
        // SAFETY: float_order(float *sum, const unsigned *places) accesses one sum and one word for each of 256 lanes.
        unsafe { launch.arg(&sum.ptr()).arg(&places.ptr()).run()? };
        sums.push(gpu.device.clone_dtoh(&sum)?[0].to_bits());
    }
    sums.sort_unstable();
    sums.dedup();
    Ok(question("float_order")?
        .measured(format!("{} different sums in {RUNS} runs", sums.len()), json!(sums.len())))
}

/// Calls `ask` while the GPU is busy, and waits for the GPU. Returns the answer and true if the GPU was still busy after the
/// call. Otherwise it retries with more work, up to six times, since a busy host may have been too slow.
fn while_busy<R>(gpu: &Gpu, mut steps: u32, mut ask: impl FnMut() -> Result<R>) -> Result<(R, bool)> {
    let mut attempts = 6;
    loop {
        let begun = Instant::now();
        gpu.spin(steps)?;
        let answer = ask()?;
        let asked = begun.elapsed();
        gpu.synchronize()?;
        let in_time = asked < begun.elapsed() / 2;
        attempts -= 1;
        if in_time || attempts == 0 {
            return Ok((answer, in_time));
        }
        steps = steps.saturating_mul(2);
    }
}

fn query(gpu: &Gpu, steps: u32) -> Result<Answer> {
    // SAFETY: the stream belongs to the device.
    let ask = || unsafe { bindings::hipStreamQuery(gpu.stream()) };
    let ((busy, took), in_time) = while_busy(gpu, steps, || {
        let begun = Instant::now();
        Ok((ask(), begun.elapsed()))
    })?;
    let idle = ask();
    // SAFETY: the call has no parameters. It clears the error, which would affect later calls.
    unsafe { bindings::hipGetLastError() };
    let text = format!("{} after {took:.0?}, then {}", code_name(busy), code_name(idle));
    Ok(question("query")?.answer(busy == 600 && idle == 0 && in_time, text))
}

fn free(gpu: &Gpu, steps: u32) -> Result<Answer> {
    let mut memory: *mut c_void = std::ptr::null_mut();
    // SAFETY: `memory` is valid for writes.
    let code = unsafe { bindings::hipMalloc(&mut memory, 1 << 20) };
    ensure!(code == 0, "hipMalloc: {}", code_name(code));
    gpu.spin(steps)?;
    let begun = Instant::now();
    // SAFETY: the memory was allocated above and is not used.
    let code = unsafe { bindings::hipFree(memory) };
    let took = begun.elapsed();
    ensure!(code == 0, "hipFree: {}", code_name(code));
    // SAFETY: the stream belongs to the device.
    let after = unsafe { bindings::hipStreamQuery(gpu.stream()) };
    // SAFETY: the call has no parameters.
    unsafe { bindings::hipGetLastError() };
    gpu.synchronize()?;
    let text = format!("the call took {took:.0?}, then hipStreamQuery returned {}", code_name(after));
    Ok(question("free")?.answer(after == 0, text))
}

/// Tests whether a queued upload sees what the host writes after the call.
fn upload(gpu: &Gpu, steps: u32, pinned: bool) -> Result<Answer> {
    let bytes = 4 * WORDS;
    let mut pageable = vec![1u32; WORDS];
    let mut source = pageable.as_mut_ptr();
    if pinned {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: `memory` is valid for writes.
        let code = unsafe { bindings::hipHostMalloc(&mut memory, bytes, 0) };
        ensure!(code == 0, "hipHostMalloc: {}", code_name(code));
        source = memory.cast();
    }
    let target = gpu.device.alloc_zeros::<u32>(WORDS)?;
    let (took, _) = while_busy(gpu, steps, || {
        // SAFETY: the buffer has WORDS words, and all work that reads it has finished.
        unsafe { std::slice::from_raw_parts_mut(source, WORDS) }.fill(1);
        let begun = Instant::now();
        // SAFETY: both buffers have `bytes` bytes and outlive the copy.
        let code = unsafe {
            bindings::hipMemcpyAsync(
                target.ptr().0.cast(),
                source.cast(),
                bytes,
                bindings::hipMemcpyKind_hipMemcpyHostToDevice,
                gpu.stream(),
            )
        };
        let took = begun.elapsed();
        ensure!(code == 0, "hipMemcpyAsync: {}", code_name(code));
        // SAFETY: as above. The race with the copy is what the question tests.
        unsafe { std::slice::from_raw_parts_mut(source, WORDS) }.fill(2);
        Ok(took)
    })?;
    let found = gpu.device.clone_dtoh(&target)?;
    if pinned {
        // SAFETY: allocated above, and the stream has been synchronized.
        let code = unsafe { bindings::hipHostFree(source.cast()) };
        ensure!(code == 0, "hipHostFree: {}", code_name(code));
    }
    let early = found.iter().filter(|word| **word == 1).count();
    let text = format!("{early} of {WORDS} words have the value before the call, which took {took:.0?}");
    let (name, right) =
        if pinned { ("upload_pinned", early == 0) } else { ("upload_pageable", early == WORDS) };
    Ok(question(name)?.answer(right, text))
}

fn alignment(gpu: &Gpu) -> Result<Answer> {
    let mut all = Vec::new();
    gpu.device.bind_to_thread()?;
    for bytes in [1, 3, 100, 257, 5000, 1 << 20, (1 << 21) + 1] {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: `memory` is valid for writes.
        let code = unsafe { bindings::hipMalloc(&mut memory, bytes) };
        ensure!(code == 0, "hipMalloc: {}", code_name(code));
        all.push(memory);
    }
    let least = all.iter().map(|memory| memory.addr().trailing_zeros()).min().unwrap_or_default();
    for memory in all {
        // SAFETY: the memory was allocated above and is not used.
        let code = unsafe { bindings::hipFree(memory) };
        ensure!(code == 0, "hipFree: {}", code_name(code));
    }
    Ok(question("alignment")?.answer(least >= 8, format!("{} bytes", 1u64 << least)))
}
