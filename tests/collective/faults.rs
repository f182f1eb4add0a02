//! Injected faults: every rank returns an error, none hangs, and the devices stay usable.
use super::{DEVICES, SELECTED, device, on_ranks};
use crate::common::{Injected, on_software_gpu};
use anyhow::Result;
use candle_core::rocm::collective::{Communicator, Id, ReduceOp};
use candle_core::{DType, Tensor};
use rocm_emulator::{CollectiveFault, Injection};
use serial_test::serial;
use std::sync::{Barrier, LazyLock};
use std::time::Duration;

/// Deadline where a rank does not take part. Other failures are noticed at once.
const SHORT: Duration = Duration::from_secs(1);
/// Deadline that no test reaches.
const LONG: Duration = Duration::from_secs(600);

/// Makes three collective operations and reads the result of each.
fn work(rank: &Communicator, deadline: Duration) -> Result<f32> {
    rank.set_deadline(deadline);
    let x = Tensor::ones(5, DType::F32, rank.device())?;
    let sum = rank.all_reduce(&x, ReduceOp::Sum)?;
    let gathered = rank.all_gather(&sum)?;
    // Read before the last operation, so that the error may be returned by different calls.
    gathered.to_vec1::<f32>()?;
    let blocks = rank.reduce_scatter(&gathered, ReduceOp::Sum)?;
    Ok(blocks.sum_all()?.to_scalar::<f32>()?)
}

/// Checks that all devices compute, alone and together.
fn assert_usable(world_size: usize) -> Result<()> {
    for result in on_ranks(world_size, |rank| work(rank, LONG))? {
        let expected = 5 * world_size * world_size;
        assert_eq!(result?, expected as f32);
    }
    Ok(())
}

#[test]
#[serial]
fn every_fault_of_a_rank_is_an_error_on_every_rank() -> Result<()> {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("only the software GPU injects failures") {
        return Ok(());
    }
    assert_usable(DEVICES)?;
    let objects = rocm_loader::symbols::open_objects();
    for world_size in [2, DEVICES] {
        for (fault, deadline) in [
            (CollectiveFault::Dies, LONG),
            (CollectiveFault::Count, LONG),
            (CollectiveFault::Async, LONG),
            (CollectiveFault::Late, SHORT),
        ] {
            for (faulty, call) in
                [0, world_size - 1].into_iter().flat_map(|rank| [1, 2, 3].map(|call| (rank, call)))
            {
                let injection = Injection { collective: Some((fault, faulty, call)), ..Default::default() };
                let injected = Injected::new(injection);
                let results = on_ranks(world_size, |rank| work(rank, deadline))?;
                drop(injected);
                let texts: Vec<String> = results
                    .into_iter()
                    .enumerate()
                    .map(|(rank, result)| match result {
                        Ok(value) => {
                            panic!("rank {rank} returned {value} in spite of {fault:?} of rank {faulty}")
                        }
                        Err(error) => format!("{error:#}"),
                    })
                    .collect();
                let case =
                    format!("{fault:?} of rank {faulty} in call {call} of {world_size} ranks: {texts:#?}");
                assert!(texts.iter().all(|text| text.contains(&format!("of {world_size} (rocm:"))), "{case}");
                let name = format!("rank {faulty}");
                let named = texts.iter().filter(|text| text.contains(&name)).count();
                assert_eq!(named, world_size, "the faulty rank is named everywhere: {case}");
            }
        }
        assert_usable(world_size)?;
    }
    assert_eq!(rocm_loader::symbols::open_objects(), objects, "objects are left");
    Ok(())
}

#[test]
#[serial]
fn a_rank_that_is_late_within_the_deadline_is_no_error() -> Result<()> {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("only the software GPU injects failures") {
        return Ok(());
    }
    let collective = Some((CollectiveFault::Late, 1, 2));
    let _injected = Injected::new(Injection { collective, ..Default::default() });
    let results = on_ranks(2, |rank| {
        if rank.rank() == 0 {
            rocm_emulator::release_stalled();
        }
        work(rank, LONG)
    })?;
    for result in results {
        assert_eq!(result?, 20.);
    }
    Ok(())
}

#[test]
#[serial]
fn a_failing_function_is_an_error_and_no_hang() -> Result<()> {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("only the software GPU injects failures") {
        return Ok(());
    }
    for function in [
        "ncclGetUniqueId",
        "ncclCommInitRankConfig",
        "ncclCommGetAsyncError",
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclCommFinalize",
        "ncclCommDestroy",
    ] {
        for nth in [1, 2] {
            let failing = vec![(function.to_string(), nth)];
            let injected = Injected::new(Injection { failing, ..Default::default() });
            let results = on_ranks(2, |rank| work(rank, LONG));
            drop(injected);
            let texts: Vec<String> = match results {
                Ok(results) => {
                    results.into_iter().filter_map(|r| r.err().map(|e| format!("{e:#}"))).collect()
                }
                Err(error) => vec![format!("{error:#}")],
            };
            match function {
                // The result was read before.
                "ncclCommFinalize" | "ncclCommDestroy" => assert!(texts.is_empty(), "{function}: {texts:?}"),
                // Only one is created.
                "ncclGetUniqueId" if nth == 2 => assert!(texts.is_empty(), "{texts:?}"),
                _ => {
                    let injected = texts.iter().any(|text| text.contains("injected fault"));
                    assert!(injected, "call {nth} of {function}: {texts:?}")
                }
            }
            assert_usable(2)?;
        }
    }
    Ok(())
}

#[test]
#[serial]
fn a_failed_communicator_reports_its_failure_until_it_is_dropped() -> Result<()> {
    let both_have_read = Barrier::new(2);
    let results = on_ranks(2, |rank| {
        let x = Tensor::ones(2, DType::F32, rank.device())?;
        let sum = rank.all_reduce(&x, ReduceOp::Sum).and_then(|sum| sum.to_vec1::<f32>());
        both_have_read.wait();
        assert_eq!(sum?, [2., 2.]);
        if rank.rank() == 1 {
            rank.abort();
            return Ok(vec![rank.all_reduce(&x, ReduceOp::Sum).expect_err("aborted").to_string()]);
        }
        rank.set_deadline(LONG);
        let waited = rank.all_reduce(&x, ReduceOp::Sum).and_then(|sum| sum.to_vec1::<f32>().map(drop));
        let results = [waited, rank.device().synchronize(), rank.all_reduce(&x, ReduceOp::Sum).map(drop)];
        Ok(results.into_iter().map(|result| result.expect_err("rank 1 has aborted").to_string()).collect())
    })?;
    let [first, second] = <[_; 2]>::try_from(results).map_err(|_| anyhow::anyhow!("two ranks"))?;
    let (first, second) = (first?, second?);
    assert!(first[0].contains("rank 1") && first[0].contains("aborted"), "{first:?}");
    for text in &first[1..] {
        assert!(text.contains("has failed before") && text.contains("create another one"), "{first:?}");
    }
    assert!(second[0].contains("the communicator was aborted"), "{second:?}");
    assert_eq!(Tensor::ones(2, DType::F32, &device(0)?)?.to_vec1::<f32>()?, [1., 1.]);
    Ok(())
}

#[test]
#[serial]
fn ranks_that_do_not_fit_are_refused() -> Result<()> {
    let text = |result: candle_core::Result<Communicator>| result.expect_err("refused").to_string();
    let (first, second, id) = (device(0)?, device(1)?, Id::new()?);
    assert!(text(Communicator::new(&first, 2, 2, &id)).contains("there is no rank 2 of 2"));
    if on_software_gpu("other libraries do not recognize their own ids") {
        assert!(text(Communicator::new(&first, 0, 2, &Id::from_bytes([7; 128]))).contains("not created by"));
    }
    let cpu = candle_core::Device::Cpu;
    assert!(Communicator::new(&cpu, 0, 1, &id).is_err());

    // A rank that is taken, and ranks that were started with different numbers of ranks.
    let ranks = on_ranks(2, |rank| Ok(rank.clone()))?.into_iter().collect::<Result<Vec<_>>>()?;
    let id = ranks[0].id();
    assert!(
        text(Communicator::new(&second, 1, 2, &id)).contains("rank 1 has already joined in this process")
    );
    let id = Id::new()?;
    let texts = std::thread::scope(|scope| {
        let other = scope.spawn(|| text(Communicator::new(&first, 0, 2, &id)));
        [text(Communicator::new(&second, 1, 3, &id)), other.join().expect("no panic")]
    });
    assert!(texts.iter().all(|text| text.contains("was started with")), "{texts:?}");
    Ok(())
}
