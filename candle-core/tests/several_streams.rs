//! Several streams of one GPU, which share its memory and wait for each other without the host, and streams of two GPUs,
//! with copies between them. Each test runs in a separate process with its own options of the software GPU.
#![cfg(feature = "rocm-emulator")]

use candle_core::rocm::rocm_loader::{self, DRIVER_VARIABLE};
use candle_core::rocm::{Buffer, RocmDevice, RESERVE_VARIABLE};
use candle_core::{DType, Device, Result, Tensor};
use std::process::Command;
use std::sync::Barrier;

const MIB: usize = 1 << 20;
const RESERVE: usize = 8 * MIB;

/// Runs an ignored test of this file in a separate process with the given options and variables.
#[track_caller]
fn run_in_process(test: &str, devices: &str, options: &str, variables: &[(&str, &str)]) {
    let driver = format!("emulator:{devices}");
    let software = [(DRIVER_VARIABLE, driver.as_str()), ("CANDLE_ROCM_EMULATOR", options)];
    run(test, options, software.iter().chain(variables));
}

/// Returns true if the driver is not the software GPU.
fn is_hardware() -> bool {
    rocm_loader::driver().is_ok_and(|driver| !driver.is_software())
}

/// Runs an ignored test of this file on this machine's GPU, if there is one.
#[track_caller]
fn on_hardware(test: &str) {
    if is_hardware() {
        run(test, "this machine's GPU", [].iter());
    }
}

/// Prints a note that a test only ran on the software GPU.
fn note_software_only() {
    if is_hardware() {
        println!("not applicable: this was on software GPUs, with their options");
    }
}

#[track_caller]
fn run<'a>(test: &str, options: &str, variables: impl Iterator<Item = &'a (&'a str, &'a str)>) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .envs(variables.copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test} with {options}: {text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the number of calls of a driver function so far.
fn calls(name: &str) -> u64 {
    rocm_loader::symbols::calls().find(|(called, _)| *called == name).map_or(0, |(_, count)| count)
}

/// Opens a separate stream on the first GPU.
fn stream() -> Device {
    Device::new_rocm_with_stream(0).unwrap()
}

#[track_caller]
fn assert_contains(error: &candle_core::Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn threads_and_streams_share_a_gpu_that_is_out_of_memory() {
    for options in ["memory=96M", "memory=96M;seed=3"] {
        run_in_process("out_of_memory", "gfx1100", options, &[(RESERVE_VARIABLE, &RESERVE.to_string())]);
    }
    note_software_only();
}

/// Allocates memory on each of `streams` in turn until an allocation fails, and releases it. Returns the number of failures.
fn fill(streams: &[RocmDevice], thread: usize) -> Result<usize> {
    let mut refusals = 0;
    let mut taken: Vec<Buffer<u8>> = Vec::new();
    for round in 0..60 {
        let stream = &streams[(round + thread) % streams.len()];
        match stream.alloc_zeros::<u8>((1 + (round * 7 + thread) % 13) * MIB) {
            Ok(buffer) => {
                taken.push(buffer);
                // The reserve stays free, whatever both threads allocate.
                let free = stream.memory_info()?.0;
                assert!(free >= RESERVE, "{free} bytes are left");
            }
            Err(error) => {
                refusals += 1;
                assert_contains(&error, &["bytes requested", "rocm:0 (gfx1100)", "free"]);
                // Half of it is released, in an order that leaves gaps.
                let mut number = 0;
                taken.retain(|_| {
                    number += 1;
                    number % 2 == 0
                });
            }
        }
        // The stream still computes, if there is enough memory.
        if let Ok(t) = Tensor::full(round as f32, 1000, &Device::Rocm(stream.clone())) {
            assert_eq!(t.to_vec1::<f32>()?, [round as f32; 1000]);
        }
    }
    for buffer in taken.iter().take(3) {
        let stream = streams.iter().find(|stream| stream.clone_dtoh(buffer).is_ok());
        assert!(stream.is_some_and(|s| s.clone_dtoh(buffer).is_ok_and(|bytes| bytes.iter().all(|b| *b == 0))));
    }
    Ok(refusals)
}

#[test]
#[ignore = "run by threads_and_streams_share_a_gpu_that_is_out_of_memory"]
fn out_of_memory() {
    let streams: Vec<RocmDevice> = (0..3).map(|_| RocmDevice::new_with_stream(0).unwrap()).collect();
    // Loads the kernel, since code uses GPU memory too.
    for stream in &streams {
        let t = Tensor::full(1f32, 1000, &Device::Rocm(stream.clone())).unwrap();
        assert_eq!(t.to_vec1::<f32>().unwrap(), [1.0; 1000]);
    }
    let refusals: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn({
                    let streams = &streams;
                    move || fill(streams, thread)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).sum()
    });
    assert!(refusals > 0, "there was memory for everything");
    for stream in &streams {
        let stats = stream.memory_stats();
        assert_eq!(stats.live, 0, "{stats:?}");
    }
    // Each in turn allocates nearly all memory of the GPU, for which the other streams release their cache.
    for stream in &streams {
        drop(stream.alloc_zeros::<u8>(72 * MIB).unwrap());
    }
}

#[test]
fn the_reserve_stays_free_over_all_streams() {
    run_in_process("concurrent_requests", "gfx1100", "memory=64M", &[(RESERVE_VARIABLE, "32M")]);
    note_software_only();
}

/// Streams allocate concurrently, with enough memory for only one of them.
#[test]
#[ignore = "run by the_reserve_stays_free_over_all_streams"]
fn concurrent_requests() {
    const STREAMS: usize = 6;
    let streams = [(); STREAMS].map(|()| RocmDevice::new_with_stream(0).unwrap());
    let at_once = Barrier::new(STREAMS);
    for round in 0..300 {
        let taken: Vec<Result<Buffer<u8>>> = std::thread::scope(|scope| {
            let ask = |stream| {
                let at_once = &at_once;
                move || {
                    at_once.wait();
                    RocmDevice::alloc_zeros::<u8>(stream, 18 * MIB)
                }
            };
            let threads: Vec<_> = streams.iter().map(|stream| scope.spawn(ask(stream))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let free = streams[0].memory_info().unwrap().0;
        let granted = taken.iter().filter(|taken| taken.is_ok()).count();
        assert_eq!(granted, 1, "round {round}: {free} bytes are left");
        assert!(free >= 32 * MIB, "round {round}: {free} bytes are left");
        drop(taken);
        for stream in &streams {
            stream.empty_cache().unwrap();
        }
    }
}

/// Runs an ignored test with `options` on a machine for which Linux reports the given memory in MiB: the total and used
/// VRAM, the total and used GTT, and the available RAM.
fn run_on_machine(
    test: &str,
    devices: &str,
    options: &str,
    [vram, vram_used, gtt, gtt_used, ram]: [usize; 5],
) {
    let folder = std::env::temp_dir().join(format!("candle-rocm-{test}-{}", std::process::id()));
    let gpu = folder.join("sys/bus/pci/devices/ffff:00:00.0");
    std::fs::create_dir_all(&gpu).unwrap();
    std::fs::create_dir_all(folder.join("proc")).unwrap();
    for (name, mib) in
        [("vram_total", vram), ("vram_used", vram_used), ("gtt_total", gtt), ("gtt_used", gtt_used)]
    {
        std::fs::write(gpu.join(format!("mem_info_{name}")), format!("{}\n", mib * MIB)).unwrap();
    }
    let meminfo = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 2 * ram * 1024, ram * 1024);
    std::fs::write(folder.join("proc/meminfo"), meminfo).unwrap();
    let options = format!("{options};system={}", folder.display());
    run_in_process(test, devices, &options, &[(RESERVE_VARIABLE, "8M")]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn free_memory_is_the_least_of_what_hip_and_linux_report() {
    // A desktop uses 400 of 512 MiB, which hipMemGetInfo ignores.
    run_on_machine("a_desktops_share", "gfx1100", "memory=512M", [512, 400, 1024, 0, 2048]);
    // HIP reports 512 MiB free for an integrated GPU; the GTT has 300 and the RAM 200 MiB.
    run_on_machine("memory_of_an_apu", "gfx1151", "memory=512M", [64, 0, 512, 212, 200]);
    note_software_only();
}

/// Allocates until `free` MiB minus the reserve are used, and checks the refusal that follows.
fn fills(free: usize) {
    let device = RocmDevice::new_with_stream(0).unwrap();
    assert_eq!(device.memory_info().unwrap(), (free * MIB, 512 * MIB));
    assert!(device.safe_alloc_size().unwrap() < free * MIB);
    let error = device.alloc_zeros::<u8>(free * MIB - RESERVE / 2).unwrap_err();
    assert_contains(&error, &[&format!("{} of {} bytes are free", free * MIB, 512 * MIB)]);
    let error = device.alloc_zeros::<u8>((free + 1) * MIB).unwrap_err();
    assert_contains(
        &error,
        &["out of device memory", &format!("{} of {} bytes free", free * MIB, 512 * MIB)],
    );
    drop(device.alloc_zeros::<u8>((free - 16) * MIB).unwrap());
}

#[test]
#[ignore = "run by free_memory_is_the_least_of_what_hip_and_linux_report"]
fn a_desktops_share() {
    fills(112);
}

#[test]
#[ignore = "run by free_memory_is_the_least_of_what_hip_and_linux_report"]
fn memory_of_an_apu() {
    fills(200);
    let pools = RocmDevice::new_with_stream(0).unwrap().memory_pools();
    let sizes =
        [pools.vram, pools.gtt, pools.ram].map(|pool| pool.map(|pool| (pool.free / MIB, pool.total / MIB)));
    assert_eq!(sizes, [Some((64, 64)), Some((300, 512)), Some((200, 400))]);
}

#[test]
fn uploads_of_every_size_are_correct_without_waiting() {
    on_hardware("uploads");
    // With `pageable`, pointers to large pageable memory are refused.
    for options in ["pageable=64K", "seed=1", "seed=2", "seed=5"] {
        run_in_process("uploads", "gfx1100", options, &[]);
    }
}

/// Returns bytes that differ from those of other uploads at the same offset.
fn pattern(upload: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + i / 251 + upload * 97) % 256) as u8).collect()
}

/// The uploads wrap around the ring of 16 MiB several times.
#[test]
#[ignore = "run by uploads_of_every_size_are_correct_without_waiting"]
fn uploads() {
    let device = stream();
    let staged = [1, 3, 63, 64, 65, 4096, MIB - 1, MIB, 2 * MIB + 1, 4 * MIB - 64, 4 * MIB - 1, 4 * MIB, 5];
    let waits = calls("hipStreamSynchronize");
    let mut uploaded = Vec::new();
    for (number, len) in staged.into_iter().cycle().take(4 * staged.len()).enumerate() {
        // The data is freed before the upload is executed; the ring has a copy.
        let data = pattern(number, len);
        uploaded.push((len, Tensor::from_slice(&data, len, &device).unwrap()));
    }
    assert_eq!(calls("hipStreamSynchronize"), waits, "an upload through the ring has waited");
    for len in [4 * MIB + 1, 9 * MIB] {
        let number = uploaded.len();
        uploaded.push((len, Tensor::from_slice(&pattern(number, len), len, &device).unwrap()));
    }
    let last = uploaded.len();
    uploaded.push((7, Tensor::from_slice(&pattern(last, 7), 7, &device).unwrap()));
    for (number, (len, t)) in uploaded.iter().enumerate() {
        let right = t.to_vec1::<u8>().unwrap() == pattern(number, *len);
        assert!(right, "upload {number} of {len} bytes");
    }
}

#[test]
fn streams_of_one_gpu_are_ordered_without_the_host() {
    on_hardware("chains_and_diamonds");
    for options in ["", "seed=1", "seed=2", "seed=3", "seed=4", "seed=5", "seed=6"] {
        run_in_process("chains_and_diamonds", "gfx1100", options, &[]);
    }
}

const ELEMENTS: usize = 3000;

/// Computes a chain over all streams, each of which adds to the result of the previous one.
fn chain(streams: &[Device], first: f32) -> Result<Tensor> {
    let mut x = Tensor::full(first, ELEMENTS, &streams[0])?;
    for step in 1..=6 {
        let here = Tensor::full(step as f32, ELEMENTS, &streams[step % streams.len()])?;
        x = (here + x.affine(2.0, 0.0)?)?;
    }
    Ok(x)
}

fn chain_of_numbers(first: f32) -> f32 {
    (1..=6).fold(first, |x, step| 2.0 * x + step as f32)
}

/// Two streams use the result of the first one, which then combines their results.
fn diamond([top, left, right]: &[Device; 3], first: f32) -> Result<Tensor> {
    let x = Tensor::full(first, ELEMENTS, top)?.affine(3.0, 1.0)?;
    let on_left = (Tensor::full(10f32, ELEMENTS, left)? + &x)?.affine(2.0, 0.0)?;
    let on_right = (Tensor::full(5f32, ELEMENTS, right)? * &x)?.affine(1.0, 2.0)?;
    drop(x);
    // Would reuse the memory of x too early if its readers were not waited for.
    let other = Tensor::full(-1e6f32, ELEMENTS, top)?;
    let joined = (other.affine(0.0, 1.0)? + on_left)?;
    joined + on_right
}

fn diamond_of_numbers(first: f32) -> f32 {
    let x = 3.0 * first + 1.0;
    1.0 + 2.0 * (10.0 + x) + (5.0 * x + 2.0)
}

#[test]
#[ignore = "run by streams_of_one_gpu_are_ordered_without_the_host"]
fn chains_and_diamonds() {
    // hipFree waits for the device too.
    const WAITS: [&str; 4] =
        ["hipStreamSynchronize", "hipEventSynchronize", "hipDeviceSynchronize", "hipFree"];
    let streams = [stream(), stream(), stream()];
    // A first run loads the kernels and allocates the upload ring.
    diamond(&streams, 0.0).unwrap().to_vec1::<f32>().unwrap();
    chain(&streams, 0.0).unwrap().to_vec1::<f32>().unwrap();
    let before = WAITS.map(calls);
    let results: Vec<_> = (0..20u8)
        .map(f32::from)
        .map(|first| (first, chain(&streams, first).unwrap(), diamond(&streams, first).unwrap()))
        .collect();
    assert_eq!(before, WAITS.map(calls), "the host has waited: {WAITS:?}");
    for (first, chain, diamond) in results {
        assert_eq!(chain.to_vec1::<f32>().unwrap(), [chain_of_numbers(first); ELEMENTS], "chain {first}");
        assert_eq!(
            diamond.to_vec1::<f32>().unwrap(),
            [diamond_of_numbers(first); ELEMENTS],
            "diamond {first}"
        );
    }
}

#[test]
fn a_failing_copy_between_gpus_is_reported() {
    run_in_process("failing_copies", "gfx1100,gfx1100", "fail=hipMemcpyPeerAsync:2", &[]);
    run_in_process("a_lost_gpu", "gfx1100,gfx1100", "lose=hipMemcpyPeerAsync:2", &[]);
    run_in_process("out_of_memory_on_the_destination", "gfx1100,gfx1100", "largest=4M", &[]);
    note_software_only();
}

/// Returns devices on the first and the second GPU.
fn two_gpus() -> (Device, Device) {
    (stream(), Device::new_rocm_with_stream(1).unwrap())
}

/// The second copy fails. Data is only copied through the host if the GPUs have no peer access.
#[test]
#[ignore = "run by a_failing_copy_between_gpus_is_reported"]
fn failing_copies() {
    let (here, there) = two_gpus();
    let x = Tensor::arange(0f32, 1000.0, &here).unwrap();
    let expected = x.to_vec1::<f32>().unwrap();
    assert_eq!(x.to_device(&there).unwrap().to_vec1::<f32>().unwrap(), expected);
    let through_host = calls("hipMemcpyAsync");
    let live = there.as_rocm_device().unwrap().memory_stats().live;
    let error = x.to_device(&there).unwrap_err();
    assert_contains(&error, &["hipMemcpyPeerAsync(4000 B", "rocm:0", "rocm:1", "hipErrorUnknown"]);
    assert_eq!(calls("hipMemcpyAsync"), through_host, "the data went through the host");
    assert_eq!(there.as_rocm_device().unwrap().memory_stats().live, live, "the copy's memory is lost");
    // Both devices stay usable, and the source is unchanged.
    for _ in 0..3 {
        assert_eq!(x.to_device(&there).unwrap().to_vec1::<f32>().unwrap(), expected);
    }
    assert_eq!(x.to_vec1::<f32>().unwrap(), expected);
}

#[test]
#[ignore = "run by a_failing_copy_between_gpus_is_reported"]
fn a_lost_gpu() {
    let (here, there) = two_gpus();
    let x = Tensor::ones(1000, DType::F32, &here).unwrap();
    x.to_device(&there).unwrap();
    let error = x.to_device(&there).unwrap_err();
    assert_contains(&error, &["hipMemcpyPeerAsync(4000 B", "hipErrorLaunchFailure"]);
    assert!(x.to_vec1::<f32>().is_err() && there.synchronize().is_err());
}

/// The destination has not enough memory: the error names it, and the source is unchanged.
#[test]
#[ignore = "run by a_failing_copy_between_gpus_is_reported"]
fn out_of_memory_on_the_destination() {
    let (here, there) = two_gpus();
    let target = there.as_rocm_device().unwrap();
    target.set_memory_reserve(target.memory_info().unwrap().0);
    let x = Tensor::ones(MIB / 2, DType::F32, &here).unwrap();
    let copies = calls("hipMemcpyPeerAsync");
    assert_contains(&x.to_device(&there).unwrap_err(), &["2097152 bytes requested on rocm:1"]);
    assert_eq!(calls("hipMemcpyPeerAsync"), copies);
    target.set_memory_reserve(0);
    let sum = x.to_device(&there).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
    assert_eq!(sum, (MIB / 2) as f32);
}
