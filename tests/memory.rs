//! Device memory across whole paths: reuse, limits, messages.
mod common;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{AdamW, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss, ops};
use serial_test::serial;

const MIB: usize = 1 << 20;

#[test]
#[serial(gpu)]
fn training_asks_the_driver_for_nothing_after_its_first_steps() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
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

/// Attention over a cache that grows by a token a step.
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
fn a_cache_that_grows_settles_and_fragments_little() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
    let device = gpu.device();
    decode(&device, 4, 64)?;
    let warm = gpu.rocm().memory_stats();
    let out = decode(&device, 4, 64)?;
    let stats = gpu.rocm().memory_stats();
    assert_eq!(stats.driver_allocations, warm.driver_allocations, "{stats:?}");
    let expected = decode(&Device::Cpu, 4, 64)?;
    let difference = (out.to_device(&Device::Cpu)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "{difference}");
    // What lies between tensors in use and cannot be given back, of all that is got from the driver.
    let long = decode(&device, 4, 400)?;
    let stats = gpu.rocm().memory_stats();
    assert!(stats.fragmented * 100 < (stats.live + stats.parked) * 15, "{stats:?}");
    drop(long);
    Ok(())
}

#[test]
#[serial(gpu)]
fn dropped_memory_is_parked_and_given_back_on_request() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
    let (rocm, device) = (gpu.rocm(), gpu.device());
    let live = rocm.memory_stats().live;
    let (free, _) = rocm.memory_info()?;
    let tensor = Tensor::zeros(40 * MIB / 4, DType::F32, &device)?;
    assert_eq!(rocm.memory_stats().live, live + 40 * MIB);
    drop(tensor);
    let stats = rocm.memory_stats();
    assert_eq!((stats.live, stats.parked >= 40 * MIB), (live, true), "{stats:?}");
    let hits = stats.hits;
    drop(Tensor::zeros(40 * MIB / 4, DType::F32, &device)?);
    assert_eq!(rocm.memory_stats().hits, hits + 1);
    assert!(rocm.empty_cache()? >= 40 * MIB);
    assert_eq!((rocm.memory_stats().parked, rocm.memory_info()?.0), (0, free));
    Ok(())
}

#[test]
#[serial(gpu)]
fn one_request_may_not_take_all_that_is_free() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
    let (rocm, device) = (gpu.rocm(), gpu.device());
    let (free, total) = rocm.memory_info()?;
    let allowed = rocm.safe_alloc_size()?;
    assert_eq!(allowed, (free as u128 * 70 / 100) as usize);
    let wanted = allowed + MIB;
    assert!(!rocm.can_allocate(wanted)? && rocm.can_allocate(allowed)?);
    let error = Tensor::zeros(wanted, DType::U8, &device).expect_err("too much").to_string();
    for figure in [wanted, allowed, free, total] {
        assert!(error.contains(&figure.to_string()), "{figure} is not in: {error}");
    }
    assert!(error.contains("CANDLE_ROCM_MEMORY_SHARE"), "{error}");
    assert!(rocm.set_memory_share(0).is_err() && rocm.set_memory_share(101).is_err());
    rocm.set_memory_share(1)?;
    let refused = Tensor::zeros(wanted / 8, DType::U8, &device).is_err();
    rocm.set_memory_share(70)?;
    assert!(refused);
    drop(Tensor::zeros(1000, DType::U8, &device)?);
    Ok(())
}

#[test]
#[serial(gpu)]
fn sizes_that_overflow_are_errors() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
    let device = gpu.device();
    for shape in [(usize::MAX / 4, 1), (1 << 40, 1 << 22), (usize::MAX, 1)] {
        assert!(Tensor::zeros(shape, DType::F32, &device).is_err(), "{shape:?}");
    }
    Ok(())
}

#[test]
#[serial(gpu)]
fn memory_that_another_stream_uses_is_not_reused_too_early() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
    let device = gpu.device();
    let other = Device::Rocm(candle_core::rocm::RocmDevice::new_with_stream(gpu.rocm().ordinal())?);
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
fn without_parking_every_tensor_is_the_drivers() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    gpu.reuse_memory();
    let (rocm, device) = (gpu.rocm(), gpu.device());
    rocm.set_parked_memory(0)?;
    let before = rocm.memory_stats();
    let made = (0..5).map(|_| Tensor::zeros(1000, DType::F32, &device)).collect::<Result<Vec<_>>>();
    drop(made?);
    let stats = rocm.memory_stats();
    gpu.reuse_memory();
    assert_eq!(stats.driver_allocations - before.driver_allocations, 5);
    assert_eq!(stats.driver_frees - before.driver_frees, 5);
    assert_eq!(stats.parked, 0);
    Ok(())
}
