//! Tensor-parallel layers, compared with the whole layer on one device.
use super::{device, on_all_ranks, world_sizes};
use anyhow::Result;
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_nn::tensor_parallel::{
    ColumnParallelLinear, Communicator, ParallelExperts, RowParallelLinear, VocabParallelEmbedding, Weight,
    shard_quantized,
};
use candle_nn::var_builder::{Shard, ShardedSafeTensors};
use candle_nn::{Linear, Module, moe, ops};
use serial_test::serial;
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of activations: a decode step, a few, and a prompt.
const ROWS: [usize; 3] = [1, 3, 17];
const QUANTIZED: [GgmlDType; 4] = [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q6K];

/// Returns the numbers of ranks that divide a layer.
fn several_ranks() -> impl Iterator<Item = usize> {
    world_sizes().filter(|size| *size > 1)
}

/// Returns values between -1 and 1 that look random and are the same in every run.
fn values(seed: usize, dims: &[usize]) -> candle_core::Result<Tensor> {
    let count: usize = dims.iter().product();
    let value = |index: usize| (((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.) - 1.;
    Tensor::from_iter((0..count).map(value), &Device::Cpu)?.reshape(dims)
}

/// Asserts that the largest difference is at most `tolerance` times the largest value.
#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32, what: &str) -> Result<()> {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let on_cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all();
    let (found, expected) = (on_cpu(found)?, on_cpu(expected)?);
    let largest = expected.abs()?.max(0)?.to_scalar::<f32>()?;
    let difference = (found - expected)?.abs()?.max(0)?.to_scalar::<f32>()?;
    assert!(difference <= tolerance * largest, "{what}: {difference} of {largest}");
    Ok(())
}

/// Returns this rank's share of the last dimension.
fn own_features(x: &Tensor, rank: &Communicator) -> candle_core::Result<Tensor> {
    let dim = x.rank() - 1;
    let len = x.dim(dim)? / rank.world_size();
    x.narrow(dim, rank.rank() * len, len)
}

#[test]
#[serial]
fn linear_layers_equal_the_whole_layer() -> Result<()> {
    let (n, k) = (24, 40);
    let (weight, bias) = (values(1, &[n, k])?, values(2, &[n])?);
    for (world_size, dtype) in several_ranks().flat_map(|size| [(size, DType::F32), (size, DType::BF16)]) {
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
        on_all_ranks(world_size, |rank| {
            let to_rank = |tensor: &Tensor| tensor.to_dtype(dtype)?.to_device(rank.device());
            let (weight, bias) = (to_rank(&weight)?, to_rank(&bias)?);
            let whole = Linear::new(weight.clone(), Some(bias.clone()));
            let weight = Weight::Dense(weight);
            let column = ColumnParallelLinear::new(&weight, Some(&bias), true, rank)?;
            let divided = ColumnParallelLinear::new(&weight, Some(&bias), false, rank)?;
            let row = RowParallelLinear::new(&weight, Some(&bias), rank)?;
            for rows in ROWS {
                let x = to_rank(&values(3, &[2, rows, k])?)?;
                let (y, what) =
                    (whole.forward(&x)?, format!("{rows} rows of {dtype:?} on {world_size} ranks"));
                assert_close(&column.forward(&x)?, &y, tolerance, &what)?;
                assert_close(&divided.forward(&x)?, &own_features(&y, rank)?, tolerance, &what)?;
                assert_close(&row.forward(&own_features(&x, rank)?)?, &y, tolerance, &what)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn quantized_linear_layers_equal_the_whole_layer() -> Result<()> {
    // Four blocks of 256 in each row.
    let (n, k) = (16, 1024);
    for (world_size, dtype) in several_ranks().flat_map(|size| QUANTIZED.map(|dtype| (size, dtype))) {
        let weight = Arc::new(QTensor::quantize(&values(4, &[n, k])?, dtype)?);
        on_all_ranks(world_size, |rank| {
            let bytes = weight.data()?.into_owned();
            let storage = candle_core::quantized::QStorage::from_data(bytes.into(), rank.device(), dtype)?;
            let whole = QMatMul::from_qtensor(QTensor::new(storage, (n, k))?)?;
            let weight = Weight::Quantized(weight.clone());
            let column = ColumnParallelLinear::new(&weight, None, true, rank)?;
            let row = RowParallelLinear::new(&weight, None, rank)?;
            for rows in ROWS {
                let x = values(5, &[rows, k])?.to_device(rank.device())?;
                let (y, what) =
                    (whole.forward(&x)?, format!("{rows} rows of {dtype:?} on {world_size} ranks"));
                assert_close(&column.forward(&x)?, &y, 1e-5, &what)?;
                assert_close(&row.forward(&own_features(&x, rank)?)?, &y, 1e-4, &what)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn an_embedding_has_exactly_the_rows_of_the_whole_table() -> Result<()> {
    let table = values(6, &[32, 5])?;
    let ids = Tensor::new(&[[0u32, 31, 7, 8], [15, 16, 24, 1]], &Device::Cpu)?;
    let expected = table.index_select(&ids.flatten_all()?, 0)?.reshape((2, 4, 5))?;
    for world_size in several_ranks() {
        on_all_ranks(world_size, |rank| {
            let embedding = VocabParallelEmbedding::new(&table, rank)?;
            let rows = embedding.forward(&ids.to_device(rank.device())?)?;
            assert_close(&rows, &expected, 0., "embedding")
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn experts_equal_the_whole_experts() -> Result<()> {
    let (experts, hidden, features, topk) = (4, 1024, 256, 2);
    let stacks = [
        (7, [experts, hidden, features]),
        (8, [experts, hidden, features]),
        (9, [experts, features, hidden]),
    ];
    let stacks = stacks.map(|(seed, dims)| values(seed, &dims));
    let [gate, up, down] = stacks.map(|stack| stack.and_then(|stack| stack / 16.).expect("values"));
    let chosen = Tensor::new(&[[0u32, 3], [1, 2], [3, 1]], &Device::Cpu)?;
    let factors = Tensor::new(&[[0.75f32, 0.25], [0.5, 0.5], [0.9, 0.1]], &Device::Cpu)?;
    for (world_size, dtype) in
        several_ranks().flat_map(|size| [None, Some(GgmlDType::Q8_0)].map(|d| (size, d)))
    {
        on_all_ranks(world_size, |rank| {
            let on_rank = |stack: &Tensor| -> Result<[Weight; 2]> {
                Ok(match dtype {
                    None => {
                        let stack = Weight::Dense(stack.to_dtype(DType::BF16)?.to_device(rank.device())?);
                        [stack.clone(), stack]
                    }
                    Some(dtype) => {
                        let stack = QTensor::quantize(stack, dtype)?;
                        let none = Shard::default();
                        let whole = shard_quantized(&stack, none, rank.device())?;
                        [Weight::Quantized(Arc::new(stack)), Weight::Quantized(Arc::new(whole))]
                    }
                })
            };
            let [gate, up, down] = [on_rank(&gate)?, on_rank(&up)?, on_rank(&down)?];
            let parallel = ParallelExperts::new(&gate[0], &up[0], &down[0], rank)?;
            let x = values(10, &[3, features])?.to_device(rank.device())?;
            let x = if dtype.is_none() { x.to_dtype(DType::BF16)? } else { x };
            let (chosen, factors) = (chosen.to_device(rank.device())?, factors.to_device(rank.device())?);
            let found = parallel.forward(&x, &chosen, &factors)?;

            let (sorted, order) = chosen.flatten_all()?.sort_last_dim(true)?;
            let product = |x: &Tensor, stack: &Weight, factors: &Option<Tensor>| match stack {
                Weight::Dense(stack) => moe::moe_gemm(x, stack, factors, &order, &sorted, topk, true),
                Weight::Quantized(stack) => {
                    moe::moe_gemm_gguf(x, stack, factors, &order, &sorted, topk, true, DType::F32)
                }
            };
            let gated = (ops::silu(&product(&x, &gate[1], &None)?)? * product(&x, &up[1], &None)?)?;
            let weighted = product(&gated, &down[1], &Some(factors.flatten_all()?))?;
            let expected = weighted.reshape((3, topk, features))?.sum(1)?;
            assert_close(&found, &expected, 2e-2, &format!("{dtype:?} on {world_size} ranks"))
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn layers_are_read_by_the_rank_that_needs_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.safetensors");
    let (up, down) = (values(11, &[8, 12])?, values(12, &[12, 8])?);
    let (up_bias, down_bias, table) = (values(13, &[8])?, values(14, &[12])?, values(15, &[16, 12])?);
    let tensors = [
        ("up.weight", &up),
        ("up.bias", &up_bias),
        ("down.weight", &down),
        ("down.bias", &down_bias),
        ("table.weight", &table),
    ];
    let tensors = tensors.map(|(name, tensor)| (name.to_string(), tensor.clone()));
    candle_core::safetensors::save(&HashMap::from(tensors), &file)?;
    let ids = Tensor::new(&[3u32, 14, 0], &Device::Cpu)?;
    let x = table.index_select(&ids, 0)?;
    let hidden = Linear::new(up, Some(up_bias)).forward(&x)?.relu()?;
    let expected = Linear::new(down, Some(down_bias)).forward(&hidden)?;
    for world_size in several_ranks() {
        on_all_ranks(world_size, |rank| {
            // SAFETY: the file does not change while it is mapped.
            let vb = unsafe { ShardedSafeTensors::var_builder(&[&file], DType::F32, rank.device())? };
            let embedding = VocabParallelEmbedding::load(vb.pp("table"), rank)?;
            let up = ColumnParallelLinear::load(vb.pp("up"), false, rank)?;
            let down = RowParallelLinear::load(vb.pp("down"), rank)?;
            let x = embedding.forward(&ids.to_device(rank.device())?)?;
            assert_close(&down.forward(&up.forward(&x)?.relu()?)?, &expected, 1e-5, "feed-forward block")
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn sizes_that_do_not_divide_are_named() -> Result<()> {
    on_all_ranks(2, |rank| {
        let dense = Weight::Dense(values(1, &[5, 7])?);
        let text = |error: candle_core::Error| error.to_string();
        let column =
            ColumnParallelLinear::new(&dense, None, false, rank).map_err(text).err().unwrap_or_default();
        assert!(column.contains("dimension 0 has 5 elements, which 2 ranks cannot divide"), "{column}");
        let row = RowParallelLinear::new(&dense, None, rank).map_err(text).err().unwrap_or_default();
        assert!(row.contains("dimension 1 has 7 elements"), "{row}");
        // 96 elements could be divided, but their three blocks cannot.
        let quantized =
            Weight::Quantized(Arc::new(QTensor::quantize(&values(1, &[4, 96])?, GgmlDType::Q4_0)?));
        let row = RowParallelLinear::new(&quantized, None, rank).map_err(text).err().unwrap_or_default();
        let expected =
            "a weight in Q4_0: dimension 1 has 96 elements in 3 blocks of 32, which 2 ranks cannot divide";
        assert!(row.contains(expected) && row.contains("that divides 3"), "{row}");
        assert!(ColumnParallelLinear::new(&quantized, None, false, rank).is_ok());
        Ok(())
    })?;
    drop(device(0)?);
    Ok(())
}
