//! Operations between ranks on four devices of the software GPU, compared with sums computed on the CPU. If another driver
//! is selected by its variable, its devices are used; sums of more than two ranks have RCCL's order there.
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod layers;
mod processes;

use anyhow::{Context, Result};
use candle_core::rocm::collective::{Communicator, Id, ReduceOp, group};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use serial_test::serial;
use std::sync::LazyLock;

/// Number of devices of the software GPU.
const DEVICES: usize = 4;
const DTYPES: [DType; 8] =
    [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::U32, DType::I64, DType::F64];
/// The last one needs several steps.
const SIZES: [usize; 6] = [0, 1, 2, 3, 1021, 70_001];

/// Number of devices of the selected driver.
static SELECTED: LazyLock<usize> = LazyLock::new(|| common::select_devices(DEVICES));

/// Returns the numbers of ranks for which there are devices.
fn world_sizes() -> impl Iterator<Item = usize> {
    [1, 2, DEVICES].into_iter().filter(|size| *size <= *SELECTED)
}

fn device(rank: usize) -> Result<Device> {
    LazyLock::force(&SELECTED);
    Ok(Device::new_rocm(rank)?)
}

/// Runs `work` on a thread for each rank, and returns the results in the order of the ranks.
fn on_ranks<T: Send>(
    world_size: usize,
    work: impl Fn(&Communicator) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    LazyLock::force(&SELECTED);
    let id = Id::new()?;
    let run = |rank| -> Result<T> { work(&Communicator::new(&device(rank)?, rank, world_size, &id)?) };
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || run(rank))).collect();
        Ok(threads.into_iter().map(|thread| thread.join().expect("no panic")).collect())
    })
}

/// Like [`on_ranks`], for work that must succeed.
fn on_all_ranks<T: Send>(
    world_size: usize,
    work: impl Fn(&Communicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    on_ranks(world_size, work)?
        .into_iter()
        .enumerate()
        .map(|(rank, result)| result.with_context(|| format!("rank {rank}")))
        .collect()
}

/// Returns a rank's values: numbers that differ between elements and ranks, with fractions for floating-point types.
fn values(rank: usize, count: usize, dtype: DType) -> candle_core::Result<Tensor> {
    let value =
        |index: usize| ((index * 7 + rank * 13) % 61) as f64 + if dtype.is_float() { 0.3 } else { 0. };
    Tensor::from_iter((0..count).map(value), &Device::Cpu)?.to_dtype(dtype)
}

/// Reduces values in the order of the ranks, 16-bit floats in f32 and rounded once.
fn reduced(parts: &[Tensor], op: ReduceOp) -> candle_core::Result<Tensor> {
    let dtype = parts[0].dtype();
    let work = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let mut sum = parts[0].to_dtype(work)?;
    for part in &parts[1..] {
        let part = part.to_dtype(work)?;
        sum = match op {
            ReduceOp::Sum => (sum + part)?,
            ReduceOp::Max => sum.maximum(&part)?,
        };
    }
    sum.to_dtype(dtype)
}

/// Asserts that all bits are equal.
#[track_caller]
fn assert_same(found: &Tensor, expected: &Tensor, what: &str) {
    fn numbers(tensor: &Tensor) -> candle_core::Result<Vec<u64>> {
        let flat = tensor.flatten_all()?.to_device(&Device::Cpu)?;
        Ok(match flat.dtype() {
            DType::F32 => flat.to_vec1::<f32>()?.into_iter().map(|x| x.to_bits().into()).collect(),
            DType::F64 => flat.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect(),
            DType::F16 => flat.to_vec1::<f16>()?.into_iter().map(|x| x.to_bits().into()).collect(),
            DType::BF16 => flat.to_vec1::<bf16>()?.into_iter().map(|x| x.to_bits().into()).collect(),
            _ => flat.to_dtype(DType::I64)?.to_vec1::<i64>()?.into_iter().map(|x| x as u64).collect(),
        })
    }
    assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{what}");
    let (found, expected) = (numbers(found).expect("read"), numbers(expected).expect("read"));
    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{what}: an element differs");
}

#[test]
#[serial]
fn reductions_equal_those_of_the_cpu() -> Result<()> {
    for world_size in world_sizes() {
        on_all_ranks(world_size, |rank| {
            for (dtype, count) in DTYPES.iter().flat_map(|dtype| SIZES.map(|count| (*dtype, count))) {
                let parts = (0..world_size).map(|rank| values(rank, count, dtype));
                let parts = parts.collect::<candle_core::Result<Vec<_>>>()?;
                let x = parts[rank.rank()].to_device(rank.device())?;
                for op in [ReduceOp::Sum, ReduceOp::Max] {
                    let what = format!("{op:?} of {count} {dtype:?} on {world_size} ranks");
                    assert_same(&rank.all_reduce(&x, op)?, &reduced(&parts, op)?, &what);
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn gathered_and_scattered_blocks_have_the_order_of_the_ranks() -> Result<()> {
    for world_size in world_sizes() {
        on_all_ranks(world_size, |rank| {
            for (dtype, rows) in DTYPES.iter().flat_map(|dtype| [0, 1, 3, 23_001].map(|rows| (*dtype, rows)))
            {
                let what = format!("{rows} rows of {dtype:?} on {world_size} ranks");
                let part = |rank, rows: usize| values(rank, rows * 3, dtype)?.reshape((rows, 3));
                let parts =
                    (0..world_size).map(|rank| part(rank, rows)).collect::<candle_core::Result<Vec<_>>>()?;
                let own = parts[rank.rank()].to_device(rank.device())?;
                assert_same(&rank.all_gather(&own)?, &Tensor::cat(&parts, 0)?, &what);

                let whole = (0..world_size).map(|rank| part(rank, rows * world_size));
                let whole = whole.collect::<candle_core::Result<Vec<_>>>()?;
                let x = whole[rank.rank()].to_device(rank.device())?;
                let expected = reduced(&whole, ReduceOp::Sum)?.narrow(0, rank.rank() * rows, rows)?;
                assert_same(&rank.reduce_scatter(&x, ReduceOp::Sum)?, &expected, &what);

                let root = world_size - 1;
                assert_same(&rank.broadcast(&own, root)?, &parts[root], &what);
            }
            let scalar = Tensor::new(rank.rank() as f32, rank.device())?;
            let gathered = rank.all_gather(&scalar)?.to_vec1::<f32>()?;
            assert_eq!(gathered, (0..world_size).map(|rank| rank as f32).collect::<Vec<_>>());
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn operands_need_not_be_contiguous() -> Result<()> {
    on_all_ranks(2, |rank| {
        let parts = [0, 1].map(|rank| values(rank, 35, DType::F32)?.reshape((5, 7))?.t()?.narrow(0, 1, 5));
        let parts = parts.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
        let whole = values(rank.rank(), 35, DType::F32)?.reshape((5, 7))?.to_device(rank.device())?;
        let x = whole.t()?.narrow(0, 1, 5)?;
        assert!(!x.is_contiguous());
        assert_same(&rank.all_reduce(&x, ReduceOp::Sum)?, &reduced(&parts, ReduceOp::Sum)?, "transposed");
        assert_same(&rank.all_gather(&x)?, &Tensor::cat(&parts, 0)?, "transposed");
        // A part of a buffer, which does not begin at its start.
        let x = whole.narrow(0, 3, 2)?;
        let expected = values(1, 35, DType::F32)?.reshape((5, 7))?.narrow(0, 3, 2)?;
        assert_same(&rank.broadcast(&x, 1)?, &expected, "offset");
        Ok(())
    })?;
    Ok(())
}

#[test]
#[serial]
fn one_thread_calls_several_ranks_in_a_group() -> Result<()> {
    for world_size in world_sizes() {
        let devices = (0..world_size).map(device).collect::<Result<Vec<_>>>()?;
        let ranks = Communicator::for_devices(&devices)?;
        let parts = (0..world_size).map(|rank| values(rank, 1021, DType::F32));
        let parts = parts.collect::<candle_core::Result<Vec<_>>>()?;
        let expected = reduced(&parts, ReduceOp::Sum)?;
        let results = group(|| {
            let call = |rank: &Communicator| {
                let x = parts[rank.rank()].to_device(rank.device())?;
                // Operands may be dropped before the group ends. Two operations are in one group.
                let sum = rank.all_reduce(&(x * 1.)?, ReduceOp::Sum)?;
                Ok((sum, rank.all_gather(&Tensor::new(&[rank.rank() as u32], rank.device())?)?))
            };
            ranks.iter().map(call).collect::<candle_core::Result<Vec<_>>>()
        })?;
        for (sum, gathered) in results {
            assert_same(&sum, &expected, "sum in a group");
            assert_eq!(gathered.to_vec1::<u32>()?, (0..world_size as u32).collect::<Vec<_>>());
        }
    }
    Ok(())
}

#[test]
#[serial]
fn ranks_send_to_each_other() -> Result<()> {
    for world_size in world_sizes().filter(|size| *size > 1) {
        on_all_ranks(world_size, |rank| {
            for (dtype, count) in
                DTYPES.iter().flat_map(|dtype| [0, 1, 3, 50_001].map(|count| (*dtype, count)))
            {
                let (next, previous) =
                    ((rank.rank() + 1) % world_size, (rank.rank() + world_size - 1) % world_size);
                let x = values(rank.rank(), count, dtype)?.to_device(rank.device())?;
                let received = group(|| {
                    rank.send(&x, next)?;
                    rank.receive(count, dtype, previous)
                })?;
                assert_same(
                    &received,
                    &values(previous, count, dtype)?,
                    &format!("{count} {dtype:?} in a ring"),
                );
            }
            // Without a group, in one direction.
            let x = values(0, 5, DType::F32)?.to_device(rank.device())?;
            match rank.rank() {
                0 => rank.send(&x, 1)?,
                1 => assert_same(&rank.receive(5, DType::F32, 0)?, &x, "from rank 0"),
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
#[serial]
fn graphs_contain_operations() -> Result<()> {
    on_all_ranks(2, |rank| {
        let x = Tensor::zeros(1021, DType::F32, rank.device())?;
        let step = || rank.all_reduce(&(&x + 1.)?, ReduceOp::Sum)? * 2.;
        step()?;
        let (graph, y) = rank.device().as_rocm_device()?.capture(step)?;
        for seed in 1..4 {
            let parts = [0, 1].map(|rank| values(rank * seed, 1021, DType::F32));
            let parts = parts.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
            candle_core::rocm::copy_to_tensor(&parts[rank.rank()].to_vec1::<f32>()?, &x)?;
            graph.replay()?;
            let sum = reduced(&[(&parts[0] + 1.)?, (&parts[1] + 1.)?], ReduceOp::Sum)?;
            assert_same(&y, &(sum * 2.)?, "replayed");
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
#[serial]
fn invalid_calls_are_refused_without_the_other_ranks() -> Result<()> {
    on_all_ranks(2, |rank| {
        let x = Tensor::ones(3, DType::F32, rank.device())?;
        let message = |result: candle_core::Result<Tensor>| result.expect_err("refused").to_string();
        assert!(message(rank.reduce_scatter(&x, ReduceOp::Sum)).contains("not divisible by 2 ranks"));
        assert!(message(rank.broadcast(&x, 2)).contains("no rank 2: the ranks are 0..2"));
        assert!(message(rank.receive(1, DType::F32, 7)).contains("no rank 7"));
        let elsewhere = Tensor::ones(3, DType::F32, &device(1 - rank.rank())?)?;
        assert!(message(rank.all_gather(&elsewhere)).contains("on another GPU"));
        let on_cpu = Tensor::ones(3, DType::F32, &Device::Cpu)?;
        assert!(message(rank.all_gather(&on_cpu)).contains("not on a ROCm device"));
        let unsupported = x.to_dtype(DType::F8E4M3)?;
        assert!(
            message(rank.all_gather(&unsupported)).contains("unsupported dtype F8E4M3 for op all_gather")
        );
        let variable = candle_core::Var::from_tensor(&x)?;
        assert!(message(rank.all_reduce(&variable, ReduceOp::Sum)).contains("gradients"));
        assert_eq!(rank.all_reduce(&x, ReduceOp::Sum)?.to_vec1::<f32>()?, [2., 2., 2.]);
        Ok(())
    })?;
    Ok(())
}
