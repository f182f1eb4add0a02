//! Corpus of broken kernels. Each is detected by the intended check and by no other, and its corrected
//! version passes all checks.
use super::code_object::{Arguments, CodeObject, Shape, WAVE_SIZES, readable, writable};
use rocm_emulator::exec::{
    Access, Checks, Fault, FaultKind, Instrumentation, Location, RangeHistories, RangeHistory, Written,
};
use std::sync::Arc;

/// Check that is expected to detect the defect of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum DetectedBy {
    Never,
    ByRace,
    ByInit,
    Always,
}
use DetectedBy::{Always, ByInit, ByRace, Never};

/// Call of a kernel, whose arguments are x, y and a number, in this order.
#[derive(Clone, Copy)]
struct Call {
    groups: u32,
    x: bool,
    number: Option<u32>,
    /// Says whether the host has written x and y.
    written: [bool; 2],
    /// Number of elements of y.
    len: usize,
}

const CALL: Call = Call { groups: 1, x: true, number: None, written: [true, true], len: 1024 };
const Y_ONLY: Call = Call { x: false, ..CALL };
const FOUR_GROUPS: Call = Call { groups: 4, ..Y_ONLY };
const Y_UNWRITTEN: Call = Call { written: [true, false], ..CALL };

fn numbered(number: u32) -> Call {
    Call { number: Some(number), ..Y_ONLY }
}

/// Returns the kernels of tests/fixtures/broken.cu, for waves of `w` lanes.
fn corpus(w: u32) -> Vec<(&'static str, Call, DetectedBy)> {
    vec![
        ("missing_barrier", CALL, ByRace),
        ("missing_barrier_mended", CALL, Never),
        ("stored_too_soon", CALL, ByRace),
        ("stored_too_soon_mended", CALL, Never),
        ("plain_counter", Y_ONLY, ByRace),
        ("plain_counter_mended", Y_ONLY, Never),
        ("neighbouring_bytes", numbered(1), Never),
        ("neighbouring_bytes", numbered(w), Never),
        ("neighbouring_bytes", numbered(2 * w), ByRace),
        ("last_workgroup", FOUR_GROUPS, ByRace),
        ("last_workgroup_mended", FOUR_GROUPS, Never),
        ("same_value", FOUR_GROUPS, Never),
        ("same_value_in_lds", Y_ONLY, Never),
        ("cleared_by_one", FOUR_GROUPS, ByRace),
        ("cleared_by_one_mended", FOUR_GROUPS, Never),
        ("neighbour_workgroup", FOUR_GROUPS, ByRace),
        ("peeked_counter", FOUR_GROUPS, ByRace),
        ("peeked_counter_mended", FOUR_GROUPS, Never),
        ("swapped_maximum", FOUR_GROUPS, Never),
        ("swapped_lds_maximum", Y_ONLY, Never),
        ("lds_flag", Y_ONLY, ByRace),
        ("lds_flag_mended", Y_ONLY, Never),
        ("half_initialised_lds", CALL, ByInit),
        ("half_initialised_lds_mended", CALL, Never),
        ("accumulate", Y_UNWRITTEN, ByInit),
        ("accumulate", CALL, Never),
        ("accumulate_atomically", Call { written: [true, false], ..Y_ONLY }, ByInit),
        ("accumulate_atomically", Y_ONLY, Never),
        ("store_only", Y_UNWRITTEN, Never),
        ("uniform_value", Call { written: [false, true], ..CALL }, ByInit),
        ("uniform_value", CALL, Never),
        ("one_too_many", Call { len: 5, ..numbered(5) }, Always),
        ("one_too_many_mended", Call { len: 5, ..numbered(5) }, Never),
        ("behind_the_arguments", numbered(2), Never),
        ("behind_the_arguments", numbered(40), Always),
        ("odd_atomic", numbered(4), Never),
        ("odd_atomic", numbered(6), Always),
        ("odd_lds_atomic", numbered(4), Never),
        ("odd_lds_atomic", numbered(5), Always),
        ("odd_scalar_load", Call { x: true, ..numbered(8) }, Never),
        ("odd_scalar_load", Call { x: true, ..numbered(9) }, Always),
        ("private_overrun", numbered(7), Never),
        ("private_overrun", numbered(8 * 4), Always),
    ]
}

fn run(lanes: u32, kernel: &str, call: Call, instrumentation: Instrumentation) -> Result<(), Fault> {
    let code = CodeObject::for_waves("broken", lanes);
    let (x, mut y) = (vec![1u32; 256], vec![0u32; call.len]);
    let mut arguments = Arguments::default();
    if call.x {
        arguments = arguments.pointer(&x);
    }
    arguments = arguments.pointer(&y);
    if let Some(number) = call.number {
        arguments = arguments.u32(number);
    }
    let ranges = [readable(&x), writable(&mut y)];
    let history = |index: usize| {
        let written = Written::new(ranges[index].len);
        if call.written[index] {
            written.set(0, ranges[index].len);
        }
        let history = RangeHistory { written: Some(Arc::new(written)), ..RangeHistory::default() };
        (ranges[index].base, history)
    };
    let histories: RangeHistories = [history(0), history(1)].into_iter().collect();
    let shape = Shape { instrumentation, ..Shape::new(call.groups, 2 * lanes) };
    code.launch_with_histories(kernel, shape, &arguments, &ranges, histories).map(drop)
}

fn checks(race: bool, init: bool) -> Instrumentation {
    Instrumentation { checks: Checks { race, init, memory: false }, ..Instrumentation::default() }
}

#[test]
fn each_kernel_is_detected_by_the_intended_check() {
    for lanes in WAVE_SIZES {
        for (kernel, call, detected_by) in corpus(lanes) {
            for (race, init) in [(false, false), (true, false), (false, true), (true, true)] {
                let outcome = run(lanes, kernel, call, checks(race, init));
                let what = format!("{kernel}, waves of {lanes}, race {race}, init {init}: {outcome:?}");
                let expected = match detected_by {
                    Never => false,
                    ByRace => race,
                    ByInit => init,
                    Always => true,
                };
                assert_eq!(outcome.is_err(), expected, "{what}");
                let Err(fault) = outcome else { continue };
                let by = match &fault.kind {
                    FaultKind::Race { .. } => ByRace,
                    FaultKind::Uninitialised { .. } => ByInit,
                    _ => Always,
                };
                assert_eq!(by, detected_by, "{what}");
                assert_eq!(fault.kernel, kernel);
                assert!(!fault.site.instruction.is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn races_are_found_in_any_order() {
    for lanes in WAVE_SIZES {
        for (kernel, call, detected_by) in
            corpus(lanes).into_iter().filter(|(_, _, detected_by)| *detected_by != Always)
        {
            for seed in 1..=5 {
                let instrumentation =
                    Instrumentation { seed: Some(seed), ..checks(true, detected_by != ByInit) };
                let outcome = run(lanes, kernel, call, instrumentation);
                assert_eq!(outcome.is_err(), detected_by == ByRace, "{kernel}, seed {seed}: {outcome:?}");
            }
        }
    }
}

/// Returns the fault of a kernel with all checks enabled.
fn fault(lanes: u32, kernel: &str, call: Call) -> Fault {
    run(lanes, kernel, call, checks(true, true)).expect_err(kernel)
}

fn assert_parts(fault: &Fault, parts: &[&str]) {
    let text = fault.to_string();
    parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
}

#[test]
fn a_race_in_lds_names_both_accesses() {
    for lanes in WAVE_SIZES {
        // The second wave stores to an element that the first wave has loaded.
        let fault = fault(lanes, "missing_barrier", CALL);
        let FaultKind::Race { access: Access::Store, lane: 0, bytes: 4, location, earlier } = &fault.kind
        else {
            panic!("{fault}");
        };
        let offset = u64::from(4 * lanes);
        assert_eq!(*location, Location::Lds { offset, size: 8 * lanes });
        assert_eq!((fault.wave, earlier.wave, earlier.lane, earlier.access), (1, 0, 0, Access::Load));
        assert!(fault.site.instruction.starts_with("ds_store_b32"), "{fault}");
        assert!(earlier.instruction.starts_with("ds_load_b32") && earlier.pc > fault.pc, "{fault}");
        assert_parts(
            &fault,
            &[
                "data race",
                "missing_barrier",
                &format!("LDS offset {offset}"),
                "load at `ds_load_b32",
                "by workgroup [0, 0, 0], wave 0, lane 0",
            ],
        );
    }
}

#[test]
fn a_race_between_workgroups_names_both_and_the_allocation() {
    let fault = fault(32, "last_workgroup", FOUR_GROUPS);
    let FaultKind::Race { access: Access::Store, lane: 0, earlier, location, .. } = &fault.kind else {
        panic!("{fault}");
    };
    assert_eq!((fault.workgroup, earlier.workgroup), ([1, 0, 0], [0; 3]));
    assert_eq!(earlier.pc, fault.pc);
    let Location::Global { address, nearest: Some(range) } = *location else { panic!("{fault}") };
    assert_eq!((address, range.len), (range.base, 4096));
    assert_parts(
        &fault,
        &[
            "nothing orders it with the store of another workgroup",
            "by workgroup [0, 0, 0], wave 0, lane 0, work-item [0, 0, 0]",
            "global_store_b32",
            "byte 0 of an allocation of 4096 bytes",
        ],
    );
}

#[test]
fn an_uninitialised_load_names_the_first_missing_byte() {
    // Lane 1 of wave 0 is the first lane that loads an element that no lane has stored.
    let lds = fault(32, "half_initialised_lds", CALL);
    let location = Location::Lds { offset: 4, size: 256 };
    let expected =
        FaultKind::Uninitialised { access: Access::Load, lane: 1, bytes: 4, first: 0, unset: 4, location };
    assert_eq!((lds.kind.clone(), lds.wave), (expected, 0));
    assert_parts(&lds, &["uninitialised", "ds_load_b32", "LDS offset 4", "256 bytes of LDS"]);
    let global = fault(32, "accumulate", Y_UNWRITTEN);
    assert_parts(
        &global,
        &["uninitialised", "global_load_b32", "lane 0", "which nothing has written", "4096 bytes"],
    );
    let atomic = fault(32, "accumulate_atomically", Call { written: [true, false], ..Y_ONLY });
    assert_parts(&atomic, &["uninitialised", "atomic of 4 bytes", "global_atomic_add_u32"]);
    let uniform = fault(32, "uniform_value", Call { written: [false, true], ..CALL });
    assert_parts(&uniform, &["uninitialised", "s_load_b32", "byte 12 of an allocation of 1024 bytes"]);
}

#[test]
fn faults_that_are_always_checked_name_their_location() {
    let arguments = fault(32, "behind_the_arguments", numbered(40));
    assert!(
        matches!(arguments.kind, FaultKind::KernargOutOfBounds { offset: 160, bytes: 4, .. }),
        "{arguments}"
    );
    assert_parts(&arguments, &["offset 160 of the kernel argument segment", "flat_load_b32"]);
    let atomic = fault(32, "odd_atomic", numbered(6));
    assert_parts(&atomic, &["atomic of 4 bytes", "misaligned: ", "4096 bytes", "atomic_add_u32"]);
    let lds = fault(32, "odd_lds_atomic", numbered(5));
    assert_parts(&lds, &["LDS offset 5", "misaligned: ", "32 bytes of LDS"]);
    let scalar = fault(32, "odd_scalar_load", Call { x: true, ..numbered(9) });
    assert_parts(&scalar, &["load of 4 bytes", "misaligned: ", "s_load_b32", "byte 9 of"]);
    let private = fault(32, "private_overrun", numbered(32));
    assert!(matches!(private.kind, FaultKind::PrivateOutOfBounds { .. }), "{private}");
    let global = fault(32, "one_too_many", Call { len: 5, ..numbered(5) });
    assert!(matches!(global.kind, FaultKind::OutOfBounds { lane: 5, .. }), "{global}");
}

#[test]
fn every_report_has_all_sections() {
    for lanes in WAVE_SIZES {
        for (kernel, call, detected_by) in
            corpus(lanes).into_iter().filter(|(_, _, detected_by)| *detected_by != Never)
        {
            let text = fault(lanes, kernel, call).to_string();
            println!("{text}\n");
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with(&format!("kernel {kernel}: ")), "{text}");
            assert!(
                lines[1].starts_with("  at      `") && lines[1].contains(&format!(", {kernel} + 0x")),
                "{text}"
            );
            let parts = ["  by      workgroup [", ", wave ", ", lane ", ", work-item ["];
            assert!(parts.iter().all(|part| lines[2].contains(part)), "{text}");
            assert!(lines.iter().any(|line| line.starts_with("  memory  ")), "{text}");
            assert_eq!(detected_by == ByRace, text.contains("\n  races   with the "), "{text}");
            // The listing marks the instruction that the report's second line names.
            let (_, marked) =
                text.split_once("\n        > 0x").or(text.split_once("\n  code  > 0x")).expect("a listing");
            let marked =
                marked.lines().next().and_then(|line| line.split_once("  ")).expect("offset and text");
            assert!(lines[1].contains(&format!("`{}` (pc 0x{},", marked.1, marked.0)), "{text}");
        }
    }
}
