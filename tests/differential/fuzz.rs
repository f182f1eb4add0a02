//! The fuzzer: random cases until the count is reached; each failure is shrunk and printed as a line that
//! replays it.
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

/// The fixed run of `cargo xtask test`.
const CASES: usize = 2000;
const SEED: u64 = 1;

/// Steps of shrinking after which a case counts as simple enough.
const MOST_STEPS: usize = 2000;

/// What a run has seen.
#[derive(Default)]
struct Coverage {
    cases: usize,
    special: usize,
    viewed: usize,
    ops: BTreeMap<String, usize>,
    dtypes: BTreeSet<&'static str>,
}

impl Coverage {
    fn add(&mut self, case: &Case) {
        self.cases += 1;
        self.special += usize::from(case.values == Values::Special);
        self.viewed += usize::from(case.operands.iter().any(|operand| !operand.views.is_empty()));
        *self.ops.entry(case.op.clone()).or_default() += 1;
        self.dtypes.insert(case.dtype.as_str());
    }
}

/// A case that failed, at its simplest.
struct Failure {
    case: Case,
    why: String,
}

/// Runs `count` random cases. After a failure its operation is left out for that dtype, so that a run shows
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
    let run = |case: &Case| check(ops::find(ops, &case.op).expect("an operation of the table"), case);

    let (mut coverage, mut failures) = (Coverage::default(), Vec::new());
    let mut known: HashSet<(String, DType)> = HashSet::new();
    for _ in 0..count {
        let mut tree = cases.new_tree(&mut runner).expect("no case is ever rejected");
        let case = tree.current();
        coverage.add(&case);
        if known.contains(&(case.op.clone(), case.dtype)) {
            continue;
        }
        if let Err(why) = run(&case) {
            known.insert((case.op.clone(), case.dtype));
            let mut simplest = Failure { case, why };
            let mut more = tree.simplify();
            for _ in 0..MOST_STEPS {
                if !more {
                    break;
                }
                let case = tree.current();
                more = match run(&case) {
                    Err(why) => {
                        simplest = Failure { case, why };
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

/// The line that replays a case.
fn reproduction(case: &Case) -> String {
    format!("cargo xtask fuzz --case '{case}'")
}

/// Replays the case of a line: the same check on the same data.
fn replay(ops: &[Op], line: &str, check: &dyn Fn(&Op, &Case) -> Result<(), String>) -> Result<(), String> {
    let case: Case = line.parse().map_err(|error| format!("{error:#}"))?;
    let op = ops::find(ops, &case.op).ok_or_else(|| format!("the table has no operation {}", case.op))?;
    check(op, &case)
}

/// What the fuzzer is told by the environment; `cargo xtask fuzz` sets it.
fn number(name: &str, otherwise: u64) -> u64 {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    }
}

#[test]
#[serial]
fn random_cases() {
    let device = common::device();
    let differences = Differences::of_readme();
    let check = |op: &Op, case: &Case| devices::check(op, case, &device, &differences);
    if let Ok(line) = env::var("CANDLE_FUZZ_CASE") {
        let outcome = replay(ops::table(), &line, &check);
        println!("fuzz: `{line}`: {}", outcome.as_ref().err().map_or("as on the CPU", String::as_str));
        assert_eq!(outcome, Ok(()), "{line}");
        return;
    }
    let (count, seed) =
        (number("CANDLE_FUZZ_CASES", CASES as u64) as usize, number("CANDLE_FUZZ_SEED", SEED));
    let ops = match env::var("CANDLE_FUZZ_OP") {
        Ok(list) => ops::chosen(&list),
        Err(_) => ops::table(),
    };
    let before = calls::reading();
    let (coverage, failures) = fuzz(ops, count, seed, &check);
    let after = calls::reading();
    let made = |name: &str| after[name] - before[name];
    println!(
        "fuzz: {} cases with seed {seed}: {} of {} operations, {} dtypes, {} cases through views, \
         {} with special values, {} launches, {} failed",
        coverage.cases,
        coverage.ops.len(),
        ops.len(),
        coverage.dtypes.len(),
        coverage.viewed,
        coverage.special,
        made("hipModuleLaunchKernel"),
        failures.len()
    );
    for failure in &failures {
        println!("  {}\n    {}", reproduction(&failure.case), failure.why);
    }
    assert!(
        failures.is_empty(),
        "{} operations differ from the CPU device; the lines above replay them",
        failures.len()
    );
    assert_eq!(made("hipDeviceSynchronize"), 0, "an operation waited for the whole device");
    // Enough of the cases are really computed: not all refused, nor all empty.
    let fixed = env::var_os("CANDLE_FUZZ_OP").is_none() && count >= CASES;
    assert!(!fixed || made("hipModuleLaunchKernel") >= count as u64 / 2, "few cases reached the device");
}

/// An operation that is wrong in one way: elements from the 5th on, of f32, if there are two dims.
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
        takes_more: false,
        reads_back: false,
    }]))
}

#[test]
#[serial]
fn a_wrong_operation_is_found_and_shrunk_and_its_line_replays() {
    let device: Device = common::device();
    let none = Differences::default();
    let check = |op: &Op, case: &Case| devices::check(op, case, &device, &none);
    let (coverage, failures) = fuzz(broken(), 200, 3, &check);
    assert_eq!(coverage.cases, 200);
    let failure = failures.iter().find(|f| f.case.dtype == DType::F32).expect("found in f32");
    // As simple as a case can be that shows it.
    let x = &failure.case.operands[0];
    assert_eq!((x.dims.len(), x.views.len(), failure.case.values), (2, 0, Values::Plain), "{}", failure.case);
    assert!((5..=7).contains(&x.dims.iter().product::<usize>()), "{}", failure.case);

    let line = reproduction(&failure.case);
    let case =
        line.strip_prefix("cargo xtask fuzz --case '").and_then(|rest| rest.strip_suffix('\'')).unwrap();
    assert_eq!(replay(broken(), case, &check), Err(failure.why.clone()));
    let (_, again) = fuzz(broken(), 200, 3, &check);
    let lines = |failures: &[Failure]| failures.iter().map(|f| f.case.to_string()).collect::<Vec<_>>();
    assert_eq!(lines(&again), lines(&failures), "the same seed finds the same");
    assert!(replay(broken(), "op=nothing seed=1", &check).unwrap_err().contains("no operation nothing"));
}
