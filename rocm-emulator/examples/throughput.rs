//! Measures the speed of the executor on this host with the test fixtures: `cargo run -p rocm-emulator --example
//! throughput`. The numbers say nothing about AMD hardware.
#[allow(dead_code)]
#[path = "../tests/exec/code_object.rs"]
mod code_object;

use code_object::{Arguments, CodeObject, Shape, WAVE_SIZES, readable, writable};
use rocm_emulator::exec::Counters;
use std::time::{Duration, Instant};

/// Returns the CPU time of this process in seconds, which a busy host does not distort.
fn cpu_seconds() -> f64 {
    // utime and stime, in hundredths of a second, are fields 14 and 15.
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let ticks: f64 = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<f64>().expect("a number"))
        .sum();
    ticks / 100.0
}

/// Repeats a launch for about a second and prints the time per launch and per instruction.
fn measure(name: &str, mut launch: impl FnMut() -> Counters) {
    let first = launch();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut counters = Counters::default();
    while start.elapsed() < Duration::from_millis(1000) {
        counters += launch();
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{name:24} {:9.1} us/launch {:6.1} CPU ns/instruction {:7.2} GB/s ({} instructions: {} vector, {} global, {} LDS)",
        seconds * 1e6 / counters.launches as f64,
        cpu * 1e9 / counters.instructions() as f64,
        (counters.bytes_loaded + counters.bytes_stored) as f64 / seconds / 1e9,
        first.instructions(),
        first.vector,
        first.global_memory,
        first.lds,
    );
}

fn main() {
    for (threads, lanes) in [1, 2].into_iter().flat_map(|threads| WAVE_SIZES.map(|lanes| (threads, lanes))) {
        println!("threads: {threads}, lanes of a wave: {lanes}");
        let shape = |grid, block| Shape { threads, ..Shape::new(grid, block) };
        let memory = CodeObject::for_waves("memory", lanes);
        for n in [1usize, 1 << 10, 1 << 18] {
            let (x, mut y) = (vec![1f32; n], vec![2f32; n]);
            let arguments = Arguments::default().u32(n as u32).f32(0.5).pointer(&x).pointer(&y);
            let ranges = [readable(&x), writable(&mut y)];
            measure(&format!("saxpy {n}"), || {
                let shape = shape((n as u32).div_ceil(256), 256);
                memory.launch("saxpy", shape, &arguments, &ranges).expect("no fault")
            });
        }
        let n = 1usize << 18;
        let (x, mut y) = (vec![1u8; n * 5], vec![2u8; n]);
        let arguments = Arguments::default().u32(n as u32).u32(5).pointer(&x).pointer(&y);
        let ranges = [readable(&x), writable(&mut y)];
        measure("strided bytes", || {
            memory.launch("strided_copy", shape(n as u32 / 256, 256), &arguments, &ranges).expect("no fault")
        });
        let lds = CodeObject::for_waves("lds", lanes);
        let (x, mut sums) = (vec![1u32; 1 << 16], vec![0u32; 256]);
        let arguments = Arguments::default().pointer(&x).pointer(&sums);
        let ranges = [readable(&x), writable(&mut sums)];
        measure("block sum", || {
            lds.launch("block_sum", shape(256, 256), &arguments, &ranges).expect("no fault")
        });
        let control = CodeObject::for_waves("control", lanes);
        let n = 1usize << 12;
        let mut steps = vec![0u32; n];
        let arguments = Arguments::default().u32(n as u32).pointer(&steps);
        let ranges = [writable(&mut steps)];
        measure("collatz", || {
            control.launch("collatz", shape(n as u32 / 64, 64), &arguments, &ranges).expect("no fault")
        });
    }
}
