//! Tests device memory in whole programs: reuse, limits and error messages.
mod common;

use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use candle_core::rocm::RocmDevice;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{AdamW, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss, ops};
use rocm_emulator::Injection;
use serial_test::serial;
use std::collections::HashMap;
use std::fs::File;

const MIB: usize = 1 << 20;

#[test]
#[serial(gpu)]
fn training_allocates_no_driver_memory_after_warmup() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let device = gpu.device();
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
    let (first, second) = (linear(64, 128, vb.pp("first"))?, linear(128, 10, vb.pp("second"))?);
    let mut optimizer = AdamW::new(vars.all_vars(), ParamsAdamW::default())?;
    let x = Tensor::randn(0f32, 1.0, (32, 64), &device)?;
    let classes = Tensor::arange(0u32, 32, &device)?.affine(1.0, 0.0)?.to_dtype(DType::F32)?;
    let classes = (classes.affine(0.3, 0.0)?.floor()?).to_dtype(DType::U32)?;
    let mut step = || -> Result<()> {
        let logits = second.forward(&first.forward(&x)?.gelu()?)?;
        optimizer.backward_step(&loss::cross_entropy(&logits, &classes)?)
    };
    for _ in 0..3 {
        step()?;
    }
    let warm = gpu.rocm().memory_stats();
    for _ in 0..20 {
        step()?;
    }
    let stats = gpu.rocm().memory_stats();
    assert_eq!((stats.driver_allocations, stats.driver_frees), (warm.driver_allocations, warm.driver_frees));
    assert!(stats.requests > warm.requests + 100 && stats.peak == warm.peak, "{stats:?}");
    Ok(())
}

/// Runs attention over a cache that grows by one token per step.
fn decode(device: &Device, from: usize, to: usize) -> Result<Tensor> {
    let token = |i: usize| Tensor::full(0.01 * (i % 7) as f32, (1, 4, 1, 32), device);
    let mut cache = Tensor::cat(&(0..from).map(token).collect::<Result<Vec<_>>>()?, 2)?;
    let mut out = token(0)?;
    for i in from..to {
        cache = Tensor::cat(&[&cache, &token(i)?], 2)?;
        let scores = out.matmul(&cache.transpose(D::Minus1, D::Minus2)?)?;
        out = ops::softmax(&scores, D::Minus1)?.matmul(&cache)?;
    }
    Ok(out)
}

#[test]
#[serial(gpu)]
fn a_growing_cache_reuses_memory_with_little_fragmentation() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let device = gpu.device();
    decode(&device, 4, 64)?;
    let warm = gpu.rocm().memory_stats();
    let out = decode(&device, 4, 64)?;
    let stats = gpu.rocm().memory_stats();
    assert_eq!(stats.driver_allocations, warm.driver_allocations, "{stats:?}");
    let expected = decode(&Device::Cpu, 4, 64)?;
    let difference = (out.to_device(&Device::Cpu)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "{difference}");
    // Free memory between tensors in use cannot be returned to the driver; it is limited to 15% of the total.
    let long = decode(&device, 4, 400)?;
    let stats = gpu.rocm().memory_stats();
    assert!(stats.fragmented * 100 < (stats.live + stats.cached) * 15, "{stats:?}");
    drop(long);
    Ok(())
}

#[test]
#[serial(gpu)]
fn dropped_memory_is_cached_and_freed_on_request() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let (rocm, device) = (gpu.rocm(), gpu.device());
    let live = rocm.memory_stats().live;
    let (free, _) = rocm.memory_info()?;
    let tensor = Tensor::zeros(40 * MIB / 4, DType::F32, &device)?;
    // Sizes are rounded up by at most an eighth.
    let taken = rocm.memory_stats().live - live;
    assert!((40 * MIB..=45 * MIB).contains(&taken), "{taken}");
    drop(tensor);
    let stats = rocm.memory_stats();
    assert_eq!((stats.live, stats.cached >= 40 * MIB), (live, true), "{stats:?}");
    let hits = stats.hits;
    drop(Tensor::zeros(40 * MIB / 4, DType::F32, &device)?);
    assert_eq!(rocm.memory_stats().hits, hits + 1);
    assert!(rocm.empty_cache()? >= 40 * MIB);
    assert_eq!((rocm.memory_stats().cached, rocm.memory_info()?.0), (0, free));
    Ok(())
}

/// Memory freed by a step is cached even if it is more than an eighth of the GPU's memory.
#[test]
#[serial(gpu)]
fn memory_freed_by_a_large_step_is_cached() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let (rocm, device) = (gpu.rocm(), gpu.device());
    let bytes = rocm.memory_info()?.1 / 64;
    // The memory is not written to, since the host may have less memory than the software GPU simulates.
    // SAFETY: the buffers are never read.
    let step = || (0..12).map(|_| unsafe { rocm.alloc::<u8>(bytes) }).collect::<Result<Vec<_>>>();
    for _ in 0..2 {
        drop(step()?);
    }
    let warm = rocm.memory_stats();
    assert!(warm.cached > rocm.memory_info()?.1 / 8, "{warm:?}");
    for _ in 0..5 {
        drop(step()?);
        let sum = Tensor::ones(1000, DType::F32, &device)?.sum_all()?.to_scalar::<f32>()?;
        assert_eq!(sum, 1000.0);
    }
    let stats = rocm.memory_stats();
    assert!(stats.driver_allocations <= warm.driver_allocations + 2, "{stats:?}, {warm:?}");
    assert_eq!(stats.driver_frees, warm.driver_frees);
    Ok(())
}

#[test]
#[serial(gpu)]
fn allocations_leave_the_reserve_free() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let rocm = gpu.rocm();
    let (free, total) = rocm.memory_info()?;
    let (by_default, reserve) = (rocm.memory_reserve(), free - 96 * MIB);
    assert!(by_default >= total / 100 && by_default >= 128 * MIB, "{by_default} of {total}");
    rocm.set_memory_reserve(reserve);
    // SAFETY: the buffers are never read.
    let allocate = |bytes: usize| unsafe { rocm.alloc::<u8>(bytes) };
    let held = [allocate(40 * MIB)?, allocate(40 * MIB)?];
    let error = allocate(40 * MIB).expect_err("the allocation would use the reserve").to_string();
    rocm.set_memory_reserve(by_default);
    for part in
        ["CANDLE_ROCM_MEMORY_RESERVE", &(40 * MIB).to_string(), &reserve.to_string(), &total.to_string()]
    {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert!(rocm.memory_info()?.0 >= reserve);
    drop((held, allocate(40 * MIB)?));
    Ok(())
}

#[test]
#[serial(gpu)]
fn the_safe_size_is_a_share_of_free_memory_and_not_a_limit() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let rocm = gpu.rocm();
    let (free, _) = rocm.memory_info()?;
    let safe = rocm.safe_alloc_size()?;
    assert_eq!(safe, (free as u128 * 70 / 100) as usize);
    assert!(rocm.can_allocate(safe)? && !rocm.can_allocate(safe + 1)?);
    assert!(rocm.set_memory_share(0).is_err() && rocm.set_memory_share(101).is_err());
    rocm.set_memory_share(1)?;
    assert!(rocm.safe_alloc_size()? <= free / 100);
    // SAFETY: the buffer is never read.
    let more = unsafe { rocm.alloc::<u8>(free / 50) };
    rocm.set_memory_share(70)?;
    assert!(more.is_ok());
    Ok(())
}

/// All streams of a GPU free their cached memory before an allocation on one of them fails.
#[test]
#[serial(gpu)]
fn other_streams_free_cached_memory_before_an_allocation_fails() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let rocm = gpu.rocm();
    let other_streams = [RocmDevice::new_with_stream(0)?, RocmDevice::new_with_stream(0)?];
    let (free, _) = rocm.memory_info()?;
    for stream in &other_streams {
        // SAFETY: the buffer is never read.
        drop(unsafe { stream.alloc::<u8>(free / 3)? });
        assert!(stream.memory_stats().cached >= free / 3);
    }
    // SAFETY: the buffer is never read.
    let most = unsafe { rocm.alloc::<u8>(free / 10 * 9)? };
    assert!(other_streams.iter().all(|stream| stream.memory_stats().cached == 0));
    drop(most);
    Ok(())
}

#[test]
#[serial(gpu)]
fn sizes_that_overflow_are_errors() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let device = gpu.device();
    for shape in [(usize::MAX / 4, 1), (1 << 40, 1 << 22), (usize::MAX, 1)] {
        assert!(Tensor::zeros(shape, DType::F32, &device).is_err(), "{shape:?}");
    }
    Ok(())
}

/// HIP receives no pointer to a mapped file or to large pageable memory.
#[test]
#[serial(gpu)]
fn weights_and_results_are_copied_through_pinned_memory() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    if gpu.rocm().driver_name() != "emulator" {
        println!("not applicable: only the software GPU refuses pointers");
        return Ok(());
    }
    let device = gpu.device();
    let folder = tempfile::tempdir()?;
    let [weights, quantized] = ["weights.safetensors", "weights.gguf"].map(|name| folder.path().join(name));
    // More than one chunk of pinned memory.
    let (rows, columns) = (1200, 1024);
    let values = Tensor::rand(-1f32, 1.0, (rows, columns), &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("w", values.clone())]), &weights)?;
    let blocks = QTensor::quantize(&values, GgmlDType::Q8_0)?;
    gguf_file::write(&mut File::create(&quantized)?, &[], &[("w", &blocks)])?;

    let pageable = Some(64 << 10);
    let _injected = common::Injected::new(Injection { pageable, ..Injection::default() });
    // SAFETY: nothing modifies the file.
    let mapped = unsafe { VarBuilder::from_mmaped_safetensors(&[&weights], DType::F32, &device)? };
    let loaded = mapped.get((rows, columns), "w")?;
    assert_eq!(loaded.to_vec2::<f32>()?, values.to_vec2::<f32>()?);
    let mut file = File::open(&quantized)?;
    let loaded = gguf_file::Content::read(&mut file)?.tensor(&mut file, "w", &device)?;
    let expected = blocks.dequantize(&Device::Cpu)?;
    assert_eq!(loaded.dequantize(&device)?.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
    Ok(())
}

/// Keys of an encoded cache that are decoded in advance use the memory of the layer before, without a query of free memory.
#[test]
#[serial(gpu)]
fn decoded_keys_of_the_next_layer_need_no_driver() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let device = gpu.device();
    let (rows, page, heads, width) = (256, 16, 1, 64);
    let q = Tensor::zeros((rows, heads, width), DType::F16, &device)?;
    let pages = Tensor::zeros((rows / page, page, heads, width), DType::U8, &device)?;
    let scales = Tensor::zeros((rows / page, page, heads, 2), DType::BF16, &device)?;
    let starts = Tensor::new(&[0u32, rows as u32], &device)?;
    let table = Tensor::arange(0u32, (rows / page) as u32, &device)?.reshape((1, ()))?;
    let attend = || {
        let (left, right) = (None, Some(0));
        let out = candle_flash_attn::flash_attn_varlen_encoded(
            &q, &pages, &pages, &scales, None, &starts, &starts, &table, rows, rows, 1.0, left, right, page,
            None,
        );
        out.map(drop)
    };
    attend()?;
    let (result, calls) = common::count_calls(attend);
    assert!(calls.contains_key("hipModuleLaunchKernel"), "{calls:?}");
    assert!(!calls.contains_key("hipMemGetInfo") && !calls.contains_key("hipMalloc"), "{calls:?}");
    result
}

/// A device uses one stream, and without work no thread calls the driver.
#[test]
#[serial(gpu)]
fn an_idle_device_is_neither_used_nor_polled() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let ordinal = gpu.rocm().ordinal();
    let work = || -> Result<Device> {
        let device = Device::Rocm(RocmDevice::new_with_stream(ordinal)?);
        let x = Tensor::ones((64, 64), DType::F32, &device)?;
        assert_eq!(x.matmul(&x.exp()?)?.argmax(1)?.to_vec1::<u32>()?, vec![0; 64]);
        Ok(device)
    };
    let (device, made) = common::count_calls(work);
    let (device, launched) = (device?, rocm_emulator::launch_count());
    assert_eq!(made.get("hipStreamCreateWithFlags"), Some(&1), "{made:?}");
    let on_host = || {
        Tensor::rand(-1f32, 1.0, (500, 500), &Device::Cpu)?.matmul(&Tensor::eye(
            500,
            DType::F32,
            &Device::Cpu,
        )?)
    };
    let (product, made) = common::count_calls(on_host);
    product?;
    assert!(made.is_empty(), "{made:?}");
    assert_eq!(rocm_emulator::launch_count(), launched);
    device.synchronize()
}

#[test]
#[serial(gpu)]
fn memory_that_another_stream_uses_is_not_reused_too_early() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let device = gpu.device();
    let other = Device::Rocm(RocmDevice::new_with_stream(gpu.rocm().ordinal())?);
    for round in 0..20 {
        let value = round as f32;
        let here = Tensor::full(value, 100_000, &device)?;
        let there = here.to_device(&other)?;
        drop(here);
        let next = Tensor::full(-1f32, 100_000, &device)?;
        let sums = (there.sum_all()?.to_scalar::<f32>()?, next.sum_all()?.to_scalar::<f32>()?);
        assert_eq!(sums, (value * 100_000.0, -100_000.0));
    }
    Ok(())
}

#[test]
#[serial(gpu)]
fn without_caching_every_tensor_is_a_driver_allocation() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let (rocm, device) = (gpu.rocm(), gpu.device());
    rocm.set_memory_cache_limit(0)?;
    let before = rocm.memory_stats();
    let made = (0..5).map(|_| Tensor::zeros(1000, DType::F32, &device)).collect::<Result<Vec<_>>>();
    drop(made?);
    let stats = rocm.memory_stats();
    rocm.set_memory_cache_limit(None)?;
    assert_eq!(stats.driver_allocations - before.driver_allocations, 5);
    assert_eq!(stats.driver_frees - before.driver_frees, 5);
    assert_eq!(stats.cached, 0);
    Ok(())
}

/// Returns the peak memory in excess of the inputs, measured on a new stream.
fn peak_beyond_inputs(
    gpu: &common::Gpu,
    run: impl FnOnce(&Device) -> Result<(usize, Tensor)>,
) -> Result<usize> {
    let rocm = RocmDevice::new_with_stream(gpu.rocm().ordinal())?;
    let device = Device::Rocm(rocm.clone());
    let (inputs, out) = run(&device)?;
    device.synchronize()?;
    drop(out);
    Ok(rocm.memory_stats().peak - inputs)
}

/// Returns a tensor for q, k and v of shape (1, rows, heads, 128) in f16, and the bytes in use.
fn operands(rows: usize, heads: usize, device: &Device) -> Result<(Tensor, usize)> {
    let x = Tensor::zeros((1, rows, heads, 128), DType::F16, device)?;
    device.synchronize()?;
    Ok((x, device.as_rocm_device()?.memory_stats().live))
}

/// The plain formula stores every score twice, before and after the softmax. The software GPU is too slow for
/// 32 heads of 4096 queries and keys, so both are compared at a small size. At the large size, attention runs
/// with sequences without keys, which allocates the same tensors, and is compared with the size of one tensor
/// of scores.
#[test]
#[serial(gpu)]
fn flash_attention_uses_at_most_a_quarter_of_the_plain_formulas_memory() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let (rows, heads) = (384, 2);
    let flash = peak_beyond_inputs(&gpu, |device| {
        let (x, inputs) = operands(rows, heads, device)?;
        Ok((inputs, candle_flash_attn::flash_attn(&x, &x, &x, 0.1, false)?))
    })?;
    let plain = peak_beyond_inputs(&gpu, |device| {
        let (x, inputs) = operands(rows, heads, device)?;
        let x = x.transpose(1, 2)?;
        let weights = ops::softmax_last_dim(&(x.matmul(&x.t()?)? * 0.1)?)?;
        Ok((inputs, weights.matmul(&x)?))
    })?;
    assert!(4 * flash <= plain, "{flash} and {plain} bytes");

    let (rows, heads) = (4096, 32);
    let flash = peak_beyond_inputs(&gpu, |device| {
        let (x, _) = operands(rows, heads, device)?;
        let x = x.squeeze(0)?;
        let (starts, none) = (Tensor::new(&[0u32, rows as u32], device)?, Tensor::new(&[0u32, 0], device)?);
        let inputs = device.as_rocm_device()?.memory_stats().live;
        let attend = candle_flash_attn::flash_attn_varlen;
        Ok((inputs, attend(&x, &x, &x, &starts, &none, rows, rows, 0.1, true)?))
    })?;
    let (out, scores) = (rows * heads * 128 * 2, heads * rows * rows * 2);
    // Sizes are rounded up by at most an eighth.
    assert!((out..=out + out / 8).contains(&flash), "{flash} bytes for a result of {out}");
    assert!(4 * flash <= scores, "{flash} and {scores} bytes");
    Ok(())
}
