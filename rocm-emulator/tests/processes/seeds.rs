//! Seeds between streams and against the host: programs that forget to wait fail under some, always in the same way.
use crate::result;
use std::collections::BTreeSet;

/// What continuous integration uses.
const SEEDS: [u64; 3] = [1, 2, 3];

/// The program's result under each seed; the same twice.
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

/// A program with a mistake is found out by one of the seeds.
#[track_caller]
fn found_out(program: &str, right: &str) {
    let results = results(program);
    assert!(results.iter().any(|result| result != right), "{program}: {results:?}");
}

#[track_caller]
fn always(program: &str, right: &str) {
    assert_eq!(results(program), [right; SEEDS.len()], "{program}");
}

#[test]
fn a_missing_wait_between_streams_shows() {
    found_out("streams without an event", "12");
    always("streams with an event", "12");
}

#[test]
fn a_kernel_that_needs_the_order_of_workgroups_shows() {
    let total = (0..8).fold(0, |total, group| total * 3 + group);
    found_out("chained workgroups", &format!("[{total}]"));
    always("counted updates", "8");
}

#[test]
fn reading_pinned_memory_too_early_shows() {
    found_out("pinned memory read at once", "7");
    always("pinned memory read after waiting", "7");
}

#[test]
fn changing_the_pinned_source_of_a_copy_shows() {
    found_out("pinned source changed", "1");
    always("pinned source changed after waiting", "1");
}

#[test]
fn pageable_sources_may_change() {
    always("pageable source changed", "1");
}

#[test]
fn the_null_stream_orders_blocking_streams() {
    always("null stream", "123");
    found_out("null stream and a non-blocking one", "12");
}

#[test]
fn asking_often_enough_is_waiting() {
    always("queries of a stream", "123456789");
    always("queries of an event", "123456789");
}

#[test]
fn callbacks_may_enqueue() {
    always("callback", "12");
}

#[test]
fn a_fault_surfaces_where_it_is_waited_for() {
    always("fault", "700 0");
}

#[test]
fn many_commands_and_threads_come_to_an_end() {
    always("many commands", "1000");
    always("many threads", "8000");
}

#[test]
fn parts_are_taken_and_given_back_in_order() {
    always("parts in order", "0 ");
}

#[test]
fn schedules_differ_between_seeds_only() {
    let schedules: BTreeSet<String> = results("schedule").into_iter().collect();
    assert_eq!(schedules.len(), SEEDS.len(), "{schedules:?}");
}
