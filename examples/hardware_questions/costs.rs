//! Measures the cost of driver calls and the bandwidth of copies.
use std::ffi::c_void;
use std::time::Instant;

use anyhow::{Result, ensure};
use candle_core::rocm::rocm_rs::hip::bindings;
use candle_core::rocm::{Buffer, RocmKernel};
use serde_json::{Value, json};

use crate::answer::{Answer, Question};
use crate::gpu::{Gpu, Grid, code_name};

/// Number of calls per measurement, of which the median is reported.
const CALLS: usize = 1000;
/// Number of copies per measurement, of which the fastest is reported.
const COPIES: usize = 8;

const fn figure(name: &'static str, why: &'static str) -> Question {
    Question {
        name,
        guess: "none: the software GPU cannot predict times",
        why,
        place: "docs/explanation/performance.md",
    }
}

/// Measures loading a module and the first launch. Must run first, since both happen only once.
pub fn loading(gpu: &Gpu) -> Result<Vec<Answer>> {
    let question = figure("loading a module, and the first launch", "the first token");
    let begun = Instant::now();
    gpu.portable("nothing")?;
    let loaded = begun.elapsed();
    launch(gpu)?;
    gpu.synchronize()?;
    let text = format!("{loaded:.1?} to load, {:.1?} with the first launch", begun.elapsed());
    let figures =
        json!({"load_us": loaded.as_secs_f64() * 1e6, "with_launch_us": begun.elapsed().as_secs_f64() * 1e6});
    Ok(vec![question.measured(text, figures)])
}

fn launch(gpu: &Gpu) -> Result<()> {
    let scratch = gpu.device.alloc_zeros::<u32>(1)?;
    launch_with(gpu, &gpu.portable("nothing")?, &scratch)
}

fn launch_with(gpu: &Gpu, nothing: &RocmKernel<'_>, scratch: &Buffer<u32>) -> Result<()> {
    let launch = nothing.launch(Grid { groups: 1, lanes: gpu.lanes() }.config());
    // SAFETY: the kernel only checks that its pointer is not null.
    unsafe { launch.arg(&scratch.ptr()).run()? };
    Ok(())
}

pub fn ask(gpu: &Gpu) -> Result<Vec<Answer>> {
    let mut answers = calls(gpu)?;
    answers.push(sustained(gpu)?);
    answers.extend(copies(gpu)?);
    answers.push(clock(gpu)?);
    Ok(answers)
}

/// Returns the median of the call's duration in microseconds.
fn median(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = Instant::now();
        call()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[CALLS / 2])
}

fn check(code: bindings::hipError_t, call: &str) -> Result<()> {
    ensure!(code == 0, "{call}: {}", code_name(code));
    Ok(())
}

fn calls(gpu: &Gpu) -> Result<Vec<Answer>> {
    gpu.device.bind_to_thread()?;
    let (ordinal, stream) = (gpu.device.ordinal() as i32, gpu.stream());
    let nothing = gpu.portable("nothing")?;
    let mut event: bindings::hipEvent_t = std::ptr::null_mut();
    // SAFETY: `event` is valid for writes; flag 2 disables timing.
    check(unsafe { bindings::hipEventCreateWithFlags(&mut event, 2) }, "hipEventCreateWithFlags")?;
    let scratch = gpu.device.alloc_zeros::<u32>(1)?;
    gpu.synchronize()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: stream and event are valid, and so are all pointers to results.
    let times = unsafe {
        [
            ("hipSetDevice", median(|| check(bindings::hipSetDevice(ordinal), "hipSetDevice"))?),
            ("hipStreamQuery, idle", median(|| check(bindings::hipStreamQuery(stream), "hipStreamQuery"))?),
            (
                "hipStreamSynchronize, idle",
                median(|| check(bindings::hipStreamSynchronize(stream), "hipStreamSynchronize"))?,
            ),
            ("hipEventRecord", median(|| check(bindings::hipEventRecord(event, stream), "hipEventRecord"))?),
            (
                "hipStreamWaitEvent",
                median(|| check(bindings::hipStreamWaitEvent(stream, event, 0), "hipStreamWaitEvent"))?,
            ),
            (
                "hipMemGetInfo",
                median(|| check(bindings::hipMemGetInfo(&mut free, &mut total), "hipMemGetInfo"))?,
            ),
            (
                "hipMalloc and hipFree of 1 MiB",
                median(|| {
                    let mut memory: *mut c_void = std::ptr::null_mut();
                    check(bindings::hipMalloc(&mut memory, 1 << 20), "hipMalloc")?;
                    check(bindings::hipFree(memory), "hipFree")
                })?,
            ),
            (
                "a launch with a wait",
                median(|| {
                    launch_with(gpu, &nothing, &scratch)?;
                    check(bindings::hipStreamSynchronize(stream), "hipStreamSynchronize")
                })?,
            ),
        ]
    };
    // SAFETY: the event is not used any more.
    check(unsafe { bindings::hipEventDestroy(event) }, "hipEventDestroy")?;
    let answer = |(name, us): (&'static str, f64)| {
        figure(name, "the host's cost of an operation").measured(format!("{us:.2} us"), json!({"us": us}))
    };
    Ok(times.into_iter().map(answer).collect())
}

/// Measures back-to-back launches: host time per launch, and time until all have run.
fn sustained(gpu: &Gpu) -> Result<Answer> {
    let (nothing, scratch) = (gpu.portable("nothing")?, gpu.device.alloc_zeros::<u32>(1)?);
    gpu.synchronize()?;
    let begun = Instant::now();
    for _ in 0..CALLS {
        launch_with(gpu, &nothing, &scratch)?;
    }
    let host = begun.elapsed().as_secs_f64() * 1e6 / CALLS as f64;
    gpu.synchronize()?;
    let device = begun.elapsed().as_secs_f64() * 1e6 / CALLS as f64;
    let question = figure("back-to-back launches", "decoding");
    let text = format!("{host:.2} us host time each, {device:.2} us each until all have run");
    Ok(question.measured(text, json!({"host_us": host, "us": device})))
}

fn copies(gpu: &Gpu) -> Result<Vec<Answer>> {
    let bytes: usize = if gpu.is_software() { 1 << 20 } else { 64 << 20 };
    let [first, second] = [gpu.device.alloc_zeros::<u8>(bytes)?, gpu.device.alloc_zeros::<u8>(bytes)?];
    let [first, second] = [first.ptr().0, second.ptr().0];
    let mut pageable = vec![1u8; bytes];
    let mut pinned: *mut c_void = std::ptr::null_mut();
    let stream = gpu.stream();
    // SAFETY: `pinned` is valid for writes.
    check(unsafe { bindings::hipHostMalloc(&mut pinned, bytes, 0) }, "hipHostMalloc")?;
    let host = pageable.as_mut_ptr().cast::<c_void>();
    let (up, down, across) = (
        bindings::hipMemcpyKind_hipMemcpyHostToDevice,
        bindings::hipMemcpyKind_hipMemcpyDeviceToHost,
        bindings::hipMemcpyKind_hipMemcpyDeviceToDevice,
    );
    let cases = [
        ("pinned memory to the GPU", first.cast::<c_void>(), pinned, up),
        ("the GPU to pinned memory", pinned, first.cast(), down),
        ("pageable memory to the GPU", first.cast(), host, up),
        ("the GPU to pageable memory", host, first.cast(), down),
        ("the GPU to itself", second.cast(), first.cast(), across),
    ];
    let mut answers = Vec::new();
    for (name, to, from, kind) in cases {
        let mut best = f64::INFINITY;
        for _ in 0..COPIES {
            gpu.synchronize()?;
            let begun = Instant::now();
            // SAFETY: both buffers have `bytes` bytes and outlive the copy, which is waited for below.
            check(unsafe { bindings::hipMemcpyAsync(to, from, bytes, kind, stream) }, "hipMemcpyAsync")?;
            gpu.synchronize()?;
            best = best.min(begun.elapsed().as_secs_f64());
        }
        let rate = bytes as f64 / best / 1e9;
        let figures = json!({"bytes": bytes, "us": best * 1e6, "gb_per_s": rate});
        answers.push(
            figure(name, "loading weights")
                .measured(format!("{rate:.2} GB/s ({} MiB)", bytes >> 20), figures),
        );
    }
    // SAFETY: allocated above, and the stream has been synchronized.
    check(unsafe { bindings::hipHostFree(pinned) }, "hipHostFree")?;
    Ok(answers)
}

/// Measures a step of the spinning kernel, from which the clock can be derived.
fn clock(gpu: &Gpu) -> Result<Answer> {
    let question = figure("one step of a computing wave", "the clock under a light load");
    if gpu.is_software() {
        return Ok(question.not_applicable("the software GPU has no clock"));
    }
    let steps = gpu.steps_for(std::time::Duration::from_millis(20))?;
    let begun = Instant::now();
    gpu.spin(steps)?;
    gpu.synchronize()?;
    let ns = begun.elapsed().as_secs_f64() * 1e9 / f64::from(steps);
    Ok(question.measured(format!("{ns:.2} ns"), Value::from(ns)))
}
