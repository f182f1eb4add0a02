//! Tests of `check=` and `max_instructions=`: each error is found with the check and not found without it.
use crate::result;

fn under(settings: &str, program: &str) -> String {
    result(program, &[("CANDLE_ROCM_EMULATOR", settings)])
}

#[track_caller]
fn assert_result_contains(settings: &str, program: &str, parts: &[&str]) {
    let text = under(settings, program);
    parts.iter().for_each(|part| assert!(text.contains(part), "{program}: {part}: {text}"));
}

/// Returns the settings with all checks except one, and with no checks.
fn without(check: &str) -> [String; 2] {
    let others: Vec<&str> = ["memory", "race", "init"].into_iter().filter(|name| *name != check).collect();
    [format!("check={}", others.join(",")), "threads=2".into()]
}

#[test]
fn reads_of_unwritten_memory_are_found() {
    assert_result_contains(
        "check=init",
        "kernel reads fresh memory",
        &[
            "719 ",
            "kernel append: uninitialised memory: load of 4 bytes",
            "lane 0",
            "byte 0 of an allocation of 4 bytes",
        ],
    );
    let cdna = [("CANDLE_ROCM_EMULATOR", "check=init"), ("HIP_VISIBLE_DEVICES", "2")];
    let text = result("kernel reads fresh memory", &cdna);
    assert!(text.contains("719 ") && text.contains("uninitialised memory: load of 4 bytes"), "{text}");
    assert_result_contains(
        "check=init",
        "host reads fresh memory",
        &["719 ", "a copy to the host of 8 bytes", "3 of which", "5 bytes after"],
    );
    for settings in without("init") {
        for program in ["kernel reads fresh memory", "host reads fresh memory"] {
            assert_eq!(under(&settings, program), "0 ", "{settings}");
        }
    }
}

#[test]
fn every_kind_of_write_is_recorded() {
    let found = under("check=init", "written memory");
    let ways: Vec<&str> = found.split_terminator(';').collect();
    assert_eq!(ways.len(), 11, "{found}");
    assert!(ways.iter().all(|way| way.ends_with(" 0")), "{found}");
    let gaps = under("check=init", "copied gaps");
    let (written, gap) = gaps.split_once(';').unwrap();
    assert!(written.starts_with("0 ") && gap.contains("719 ") && gap.contains("byte 4 of"), "{gaps}");
}

#[test]
fn reads_and_writes_of_products_are_recorded() {
    let found = under("check=init", "products");
    let [fine, sum, a, c] = found.split(" // ").collect::<Vec<_>>()[..] else { panic!("{found}") };
    assert_eq!((fine, sum), ("[2.0, 2.0, 2.0, 2.0]", "[3.0, 3.0, 3.0, 3.0]"));
    for (text, matrix) in [(a, "matrix A"), (c, "matrix C")] {
        for part in ["719 ", "uninitialised memory: rocblas_sgemm reads", matrix, "row 0 of column 0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn freed_memory_is_not_reused_immediately() {
    assert_result_contains(
        "check=memory",
        "freed memory in use again",
        &[
            "apart 700 ",
            "use after free: load of 4 bytes",
            "byte 0 of an allocation of 4096 bytes",
            "has been freed",
        ],
    );
    for settings in without("memory") {
        let text = under(&settings, "freed memory in use again");
        assert!(!text.starts_with("reused") || text.starts_with("reused 0 "), "{text}");
    }
}

#[test]
fn red_zones_are_wide() {
    assert_eq!(under("check=memory", "far overrun"), "7".repeat(64));
}

#[test]
fn a_reallocated_part_counts_as_never_written() {
    let found = under("check=init", "a part taken twice");
    let (first, second) = found.split_once(" // ").unwrap();
    assert_eq!(first, "0 ");
    for part in ["719 ", "uninitialised memory: load of 4 bytes", "byte 8 of an allocation of 64 bytes"] {
        assert!(second.contains(part), "{part}: {second}");
    }
    for settings in without("init") {
        assert_eq!(under(&settings, "a part taken twice"), "0  // 0 ", "{settings}");
    }
}

#[test]
fn poison_fills_suballocations() {
    assert_eq!(under("poison=0xab", "a part under poison"), "[abababab, abababab]");
    assert_eq!(under("", "a part under poison"), "[0, 0]");
}

#[test]
fn races_are_reported_by_the_next_wait() {
    assert_result_contains(
        "check=race",
        "lost updates",
        &[
            "719 ",
            "kernel lost_updates: data race",
            "workgroup [1, 0, 0]",
            "by workgroup [0, 0, 0], wave 0, lane 0",
        ],
    );
    assert_eq!(under("check=race", "counted updates"), "8");
    for settings in without("race") {
        assert_eq!(under(&settings, "counted updates"), "8");
        let text = under(&settings, "lost updates");
        assert!(text.parse::<u32>().is_ok_and(|count| (1..=8).contains(&count)), "{text}");
    }
}

#[test]
fn endless_kernels_are_stopped() {
    assert_result_contains(
        "max_instructions=100000",
        "endless",
        &["719 ", "kernel wait_for_flag: does not end", "max_instructions"],
    );
}
