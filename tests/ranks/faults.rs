//! Faults of a rank: every request ends with an error that names the rank, and nothing hangs or stays allocated.
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use candle_core::DType;
use llm_engine::engine::Stream;
use llm_engine::request::{Event, RequestError};
use rocm_emulator::{CollectiveFault, Injection};
use serial_test::serial;

use super::common::{Injected, on_software_gpu};
use super::texts::{request, start};
use super::{SELECTED, load, models, options};

/// Deadline where a rank does not take part. Other failures are noticed at once.
const SHORT: Duration = Duration::from_secs(1);
/// Deadline that no test reaches.
const LONG: Duration = Duration::from_secs(600);
/// Operations of a step: the embedding, two sums for each of two layers, and the logits.
const PER_STEP: u64 = 6;

/// Returns the message of the error that ends a request. A request is refused if the engine has failed before it.
fn error(submitted: Result<Stream, RequestError>) -> Option<String> {
    let mut stream = match submitted {
        Ok(stream) => stream,
        Err(refused) => return Some(refused.to_string()),
    };
    let mut error = None;
    while let Some(event) = stream.blocking_next() {
        if let Event::Error { message, .. } = event {
            error = Some(message);
        }
    }
    error
}

/// Runs two requests with an injected failure, and returns their errors and that of the engine.
fn run(path: &Path, ranks: usize, deadline: Duration, injection: Injection) -> Vec<Option<String>> {
    let model = load(path, ranks, options(Some(DType::F32))).unwrap();
    model.set_deadline(deadline);
    let _injected = Injected::new(injection);
    let engine = start(Box::new(model));
    let submitted = ["Once upon", "The queen"].map(|prompt| engine.submit(request(&engine, prompt, 5)));
    let mut errors: Vec<_> = submitted.into_iter().map(error).collect();
    errors.push(engine.status().failed);
    engine.stop();
    errors
}

#[test]
#[serial]
fn every_fault_of_a_rank_ends_all_requests_with_its_name() {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("only the software GPU injects failures") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &models::llama_config(), &models::weights(false, models::KEY_HEADS));
    let sound = || run(folder.path(), 2, LONG, Injection::default());
    assert_eq!(sound(), [None, None, None]);
    let objects = rocm_loader::symbols::open_objects();
    // All operations of the prompts' step, and some of decoding steps, of which later ones are replayed.
    let calls = (1..=PER_STEP).chain([2 * PER_STEP - 3, 2 * PER_STEP + 1, 3 * PER_STEP - 1, 4 * PER_STEP]);
    let calls: Vec<u64> = calls.collect();
    for (fault, deadline, every) in [
        (CollectiveFault::Dies, LONG, 1),
        (CollectiveFault::Count, LONG, 3),
        (CollectiveFault::Async, LONG, 3),
        (CollectiveFault::Late, SHORT, 3),
    ] {
        let calls = calls.iter().step_by(every);
        for (faulty, call) in calls.flat_map(|call| [0, 1].map(|rank| (rank, *call))) {
            let injection = Injection { collective: Some((fault, faulty, call)), ..Default::default() };
            let errors = run(folder.path(), 2, deadline, injection);
            let name = format!("rank {faulty}");
            let is_named = |error: &Option<String>| error.as_ref().is_some_and(|text| text.contains(&name));
            assert!(errors.iter().all(is_named), "{fault:?} of rank {faulty} in call {call}: {errors:#?}");
            assert_eq!(
                rocm_loader::symbols::open_objects(),
                objects,
                "{fault:?} of rank {faulty} in call {call}"
            );
        }
    }
    assert_eq!(sound(), [None, None, None]);
}

#[test]
#[serial]
fn a_lost_rank_of_four_ends_all_requests() {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("only the software GPU injects failures") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &models::mixtral_config(), &models::weights(true, models::KEY_HEADS));
    for faulty in [1, 3] {
        let collective = Some((CollectiveFault::Dies, faulty, PER_STEP + 2));
        let errors = run(folder.path(), 4, LONG, Injection { collective, ..Default::default() });
        let name = format!("rank {faulty}");
        assert!(errors.iter().flatten().filter(|text| text.contains(&name)).count() == 3, "{errors:#?}");
    }
}

/// Launches of all ranks are counted together, so that a failing call is one of either rank.
#[test]
#[serial]
fn a_failing_launch_ends_all_requests_with_one_reason() {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("only the software GPU injects failures") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &models::llama_config(), &models::weights(false, models::KEY_HEADS));
    for nth in [1, 20, 50] {
        let failing = vec![("hipModuleLaunchKernel".to_owned(), nth)];
        let errors = run(folder.path(), 2, LONG, Injection { failing, ..Default::default() });
        let has_reason = |text: &String| text.contains("rank ") && text.contains("injected fault");
        assert!(
            errors.iter().flatten().filter(|text| has_reason(text)).count() >= 2,
            "call {nth}: {errors:#?}"
        );
    }
    let lost = Some(("hipModuleLaunchKernel".to_owned(), 40));
    let errors = run(folder.path(), 2, LONG, Injection { lost, ..Default::default() });
    // The first device is also used after the ranks' steps, to sample tokens.
    let names_place = |text: &String| text.contains("rank ") || text.contains("rocm:0");
    assert!(errors.iter().flatten().all(names_place), "{errors:#?}");
    assert_eq!(run(folder.path(), 2, LONG, Injection::default()), [None, None, None]);
}
