//! Tests of `seed=`: a program that lacks a wait fails with some seeds, and a seed always gives the same result.
use crate::result;
use std::collections::BTreeSet;

/// The seeds used by continuous integration.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Returns the program's result with each seed, which must be reproducible.
fn results(program: &str) -> Vec<String> {
    let of_seed = |seed| {
        let settings = format!("seed={seed};threads=2");
        let run = || result(program, &[("CANDLE_ROCM_EMULATOR", &settings)]);
        let first = run();
        assert_eq!(run(), first, "{program}: seed {seed} gives the same result again");
        first
    };
    SEEDS.map(of_seed).to_vec()
}

/// Checks that at least one seed reveals the error of a program.
#[track_caller]
fn fails_with_some_seed(program: &str, right: &str) {
    let results = results(program);
    assert!(results.iter().any(|result| result != right), "{program}: {results:?}");
}

#[track_caller]
fn succeeds_with_all_seeds(program: &str, right: &str) {
    assert_eq!(results(program), [right; SEEDS.len()], "{program}");
}

#[test]
fn a_missing_wait_between_streams_is_found() {
    fails_with_some_seed("streams without an event", "12");
    succeeds_with_all_seeds("streams with an event", "12");
}

#[test]
fn a_kernel_that_depends_on_the_order_of_workgroups_is_found() {
    let total = (0..8).fold(0, |total, group| total * 3 + group);
    fails_with_some_seed("chained workgroups", &format!("[{total}]"));
    succeeds_with_all_seeds("counted updates", "8");
}

#[test]
fn reading_pinned_memory_too_early_is_found() {
    fails_with_some_seed("pinned memory read at once", "7");
    succeeds_with_all_seeds("pinned memory read after waiting", "7");
}

#[test]
fn changing_the_pinned_source_of_a_copy_is_found() {
    fails_with_some_seed("pinned source changed", "1");
    succeeds_with_all_seeds("pinned source changed after waiting", "1");
}

#[test]
fn pageable_sources_may_change() {
    succeeds_with_all_seeds("pageable source changed", "1");
}

#[test]
fn the_null_stream_orders_blocking_streams() {
    succeeds_with_all_seeds("null stream", "123");
    fails_with_some_seed("null stream and a non-blocking one", "12");
}

#[test]
fn repeated_queries_complete_the_work() {
    succeeds_with_all_seeds("queries of a stream", "123456789");
    succeeds_with_all_seeds("queries of an event", "123456789");
}

#[test]
fn callbacks_may_enqueue() {
    succeeds_with_all_seeds("callback", "12");
}

#[test]
fn a_fault_is_reported_by_the_next_wait() {
    succeeds_with_all_seeds("fault", "700 0");
}

#[test]
fn many_commands_and_threads_finish() {
    succeeds_with_all_seeds("many commands", "1000");
    succeeds_with_all_seeds("many threads", "8000");
}

#[test]
fn suballocations_are_made_and_freed_in_order() {
    succeeds_with_all_seeds("parts in order", "0 ");
}

#[test]
fn schedules_differ_between_seeds_only() {
    let schedules: BTreeSet<String> = results("schedule").into_iter().collect();
    assert_eq!(schedules.len(), SEEDS.len(), "{schedules:?}");
}
