//! Benchmark of device memory: compares the ROCm device's allocator with plain hipMalloc and hipFree.
//!
//! ```text
//! cargo bench --features rocm --bench memory
//! ```
//!
//! On a machine without an AMD GPU, set `CANDLE_ROCM_DRIVER=emulator` and enable the feature `rocm-emulator`. Its hipFree
//! waits for the device like ROCm's, but involves no page tables or system calls: its times do not predict hardware.
use candle_core::rocm::RocmDevice;
use candle_core::rocm::rocm_rs::hip::DeviceMemory;
use candle_core::{DType, Device, Result, Tensor};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;

const SIZES: [(usize, &str); 4] =
    [(4 << 10, "4 KiB"), (256 << 10, "256 KiB"), (4 << 20, "4 MiB"), (64 << 20, "64 MiB")];
/// Additions per iteration.
const ADDITIONS: usize = 16;

fn open() -> Result<RocmDevice> {
    let device = RocmDevice::new_checked(RocmDevice::default_ordinal()?)?;
    println!(
        "rocm:{} {}, {}, {} driver",
        device.ordinal(),
        device.name(),
        device.arch(),
        device.driver_name()
    );
    Ok(device)
}

/// Measures an allocation that is freed immediately.
fn allocations(criterion: &mut Criterion, device: &RocmDevice) {
    let mut group = criterion.benchmark_group("allocate and free");
    for (bytes, label) in SIZES {
        group.bench_function(BenchmarkId::new("hipMalloc and hipFree", label), |bencher| {
            device.bind_to_thread().expect("bind the device");
            bencher.iter(|| black_box(DeviceMemory::<u8>::new(bytes).expect("memory")));
        });
        group.bench_function(BenchmarkId::new("allocator", label), |bencher| {
            // SAFETY: the buffer is never read.
            bencher.iter(|| black_box(unsafe { device.alloc::<u8>(bytes) }.expect("memory")));
        });
    }
    group.finish();
}

/// Measures a chain of additions whose intermediate results are dropped, with and without reuse of memory.
fn temporaries(criterion: &mut Criterion, device: &RocmDevice) {
    let mut group = criterion.benchmark_group("chain of additions");
    let x = Tensor::ones(16 << 10, DType::F32, &Device::Rocm(device.clone())).expect("a tensor");
    for (label, limit) in [("hipMalloc and hipFree", Some(0)), ("allocator", None)] {
        device.set_memory_cache_limit(limit).expect("free cached memory");
        group.bench_function(label, |bencher| {
            bencher.iter(|| {
                let sum = (0..ADDITIONS).try_fold(x.clone(), |sum, _| sum + &x).expect("sums");
                sum.device().synchronize().expect("synchronize");
            });
        });
    }
    group.finish();
}

fn benches(criterion: &mut Criterion) {
    match open() {
        Ok(device) => {
            allocations(criterion, &device);
            temporaries(criterion, &device);
            println!("{:?}", device.memory_stats());
        }
        Err(error) => println!("skipped: {error}"),
    }
}

criterion_group!(memory, benches);
criterion_main!(memory);
