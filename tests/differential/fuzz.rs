//! Differential fuzzer: runs random cases, shrinks each failure and prints a command line that replays it.
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::env;

use candle_core::{DType, Device};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serial_test::serial;

use crate::case::{Case, Values};
use crate::ops::{self, Op};
use crate::support::Differences;
use crate::{calls, common, devices, strategy};

/// Number of cases and seed of the run in `cargo xtask test`.
const CASES: usize = 2000;
const SEED: u64 = 1;

/// Maximum number of shrinking steps per failure.
const MAX_SHRINK_STEPS: usize = 2000;

/// Statistics of the cases of a run.
#[derive(Default)]
struct Coverage {
    cases: usize,
    special: usize,
    strided: usize,
    ops: BTreeMap<String, usize>,
    dtypes: BTreeSet<&'static str>,
}

impl Coverage {
    fn add(&mut self, case: &Case) {
        self.cases += 1;
        self.special += usize::from(case.values == Values::Special);
        self.strided += usize::from(case.operands.iter().any(|operand| !operand.views.is_empty()));
        *self.ops.entry(case.op.clone()).or_default() += 1;
        self.dtypes.insert(case.dtype.as_str());
    }
}

/// Failed case, after shrinking.
struct Failure {
    case: Case,
    difference: String,
}

/// Runs `count` random cases. After a failure, its operation and dtype are skipped, so that a run shows
/// different failures.
fn fuzz(
    ops: &'static [Op],
    count: usize,
    seed: u64,
    check: &dyn Fn(&Op, &Case) -> Result<(), String>,
) -> (Coverage, Vec<Failure>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    let cases = strategy::cases(ops);
    let run = |case: &Case| check(ops::find(ops, &case.op).expect("operation in the table"), case);

    let (mut coverage, mut failures) = (Coverage::default(), Vec::new());
    let mut known: HashSet<(String, DType)> = HashSet::new();
    for _ in 0..count {
        let mut tree = cases.new_tree(&mut runner).expect("the strategy rejects no case");
        let case = tree.current();
        coverage.add(&case);
        if known.contains(&(case.op.clone(), case.dtype)) {
            continue;
        }
        if let Err(difference) = run(&case) {
            known.insert((case.op.clone(), case.dtype));
            let mut simplest = Failure { case, difference };
            let mut more = tree.simplify();
            for _ in 0..MAX_SHRINK_STEPS {
                if !more {
                    break;
                }
                let case = tree.current();
                more = match run(&case) {
                    Err(difference) => {
                        simplest = Failure { case, difference };
                        tree.simplify()
                    }
                    Ok(()) => tree.complicate(),
                };
            }
            failures.push(simplest);
        }
    }
    (coverage, failures)
}

/// Returns the command line that replays a case.
fn replay_command(case: &Case) -> String {
    format!("cargo xtask fuzz --case '{case}'")
}

/// Parses a case and checks it again on the same data.
fn replay(ops: &[Op], line: &str, check: &dyn Fn(&Op, &Case) -> Result<(), String>) -> Result<(), String> {
    let case: Case = line.parse().map_err(|error| format!("{error:#}"))?;
    let op = ops::find(ops, &case.op).ok_or_else(|| format!("unknown operation {}", case.op))?;
    check(op, &case)
}

/// Returns a number from an environment variable, which `cargo xtask fuzz` sets, or the default.
fn number(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

#[test]
#[serial]
fn random_cases() {
    let device = common::device();
    let differences = Differences::from_docs();
    let check = |op: &Op, case: &Case| devices::check(op, case, &device, &differences);
    if let Ok(line) = env::var("CANDLE_FUZZ_CASE") {
        let outcome = replay(ops::table(), &line, &check);
        println!("fuzz: `{line}`: {}", outcome.as_ref().err().map_or("equal to the CPU", String::as_str));
        assert_eq!(outcome, Ok(()), "{line}");
        return;
    }
    let (count, seed) =
        (number("CANDLE_FUZZ_CASES", CASES as u64) as usize, number("CANDLE_FUZZ_SEED", SEED));
    let ops = match env::var("CANDLE_FUZZ_OP") {
        Ok(list) => ops::select(&list),
        Err(_) => ops::table(),
    };
    let before = calls::call_counts();
    let (coverage, failures) = fuzz(ops, count, seed, &check);
    let after = calls::call_counts();
    let made = |name: &str| after[name] - before[name];
    println!(
        "fuzz: {} cases with seed {seed}: {} of {} operations, {} dtypes, {} cases with strided operands, \
         {} with special values, {} launches, {} failed",
        coverage.cases,
        coverage.ops.len(),
        ops.len(),
        coverage.dtypes.len(),
        coverage.strided,
        coverage.special,
        made("hipModuleLaunchKernel"),
        failures.len()
    );
    for failure in &failures {
        println!("  {}\n    {}", replay_command(&failure.case), failure.difference);
    }
    assert!(
        failures.is_empty(),
        "{} operations differ from the CPU device; replay them with the commands above",
        failures.len()
    );
    assert_eq!(made("hipDeviceSynchronize"), 0, "an operation waited for the whole device");
    // A large part of the cases must reach the device: not all may be rejected or empty.
    let is_standard_run = env::var_os("CANDLE_FUZZ_OP").is_none() && count >= CASES;
    assert!(
        !is_standard_run || made("hipModuleLaunchKernel") >= count as u64 / 2,
        "few cases reached the device"
    );
}

/// Returns an operation that is wrong on ROCm for tensors with two dims and more than 4 elements.
fn broken() -> &'static [Op] {
    let good = ops::find(ops::table(), "neg").expect("neg");
    Box::leak(Box::new([Op {
        name: "broken_neg".into(),
        example: good.example.clone(),
        plan: Box::new(|c| (ops::find(ops::table(), "neg").expect("neg").plan)(c)),
        run: Box::new(|_, t| {
            let wrong = t[0].device().is_rocm() && t[0].rank() == 2 && t[0].elem_count() > 4;
            if wrong { t[0].abs() } else { t[0].neg() }
        }),
        reference: None,
        domain: Box::new(|_, _| crate::values::Domain::Any),
        compare: crate::compare::Compare::Bits,
        calls: ops::ONE_LAUNCH,
        accepts_more: false,
        reads_back: false,
    }]))
}

#[test]
#[serial]
fn a_wrong_operation_is_found_shrunk_and_replayed() {
    let device: Device = common::device();
    let no_differences = Differences::default();
    let check = |op: &Op, case: &Case| devices::check(op, case, &device, &no_differences);
    let (coverage, failures) = fuzz(broken(), 200, 3, &check);
    assert_eq!(coverage.cases, 200);
    let failure = failures.iter().find(|f| f.case.dtype == DType::F32).expect("found in f32");
    // The shrunk case is minimal.
    let x = &failure.case.operands[0];
    assert_eq!((x.dims.len(), x.views.len(), failure.case.values), (2, 0, Values::Plain), "{}", failure.case);
    assert!((5..=7).contains(&x.dims.iter().product::<usize>()), "{}", failure.case);

    let line = replay_command(&failure.case);
    let case =
        line.strip_prefix("cargo xtask fuzz --case '").and_then(|rest| rest.strip_suffix('\'')).unwrap();
    assert_eq!(replay(broken(), case, &check), Err(failure.difference.clone()));
    let (_, again) = fuzz(broken(), 200, 3, &check);
    let lines = |failures: &[Failure]| failures.iter().map(|f| f.case.to_string()).collect::<Vec<_>>();
    assert_eq!(lines(&again), lines(&failures), "the same seed must find the same failures");
    assert!(replay(broken(), "op=nothing seed=1", &check).unwrap_err().contains("unknown operation nothing"));
}
