//! Tests of all encodings of each target, and of the coverage that they must reach.
use super::coverage::{Coverage, Registry, base_names};
use super::formula::{self, Formula, apply};
use super::machine::{Buffer, Code};
use super::state::State;
use super::{inputs, operands, tolerance};
use crate::isa::{self, Family, Inst};
use std::collections::BTreeSet;

/// Number of states per encoding.
const CASES: u64 = 12;

/// A target, with an instruction of every shipped form and of every row of its family's table.
struct Target {
    name: &'static str,
    family: Family,
    shipped: &'static str,
    rows: &'static str,
}

macro_rules! targets {
    ($($test:ident $family:ident $rows:literal)*) => {
        $(
            #[test]
            fn $test() {
                check_target(&Target {
                    name: stringify!($test),
                    family: Family::$family,
                    shipped: include_str!(concat!("../../../tests/fixtures/shipped/", stringify!($test), ".txt")),
                    rows: include_str!(concat!("../../../tests/fixtures/", $rows, ".txt")),
                });
            }
        )*
    };
}
targets! {
    gfx906 Gcn5 "shipped/gfx906"
    gfx908 Cdna1 "gfx908"
    gfx90a Cdna2 "gfx90a"
    gfx942 Cdna3 "gfx942"
    gfx950 Cdna4 "gfx950"
    gfx1030 Rdna2 "gfx1030"
    gfx1100 Rdna3 "gfx1100"
    gfx1151 Rdna35 "gfx1151"
    gfx1201 Rdna4 "gfx1201"
}

/// Most of these instructions do not ship.
#[test]
fn instructions_that_gfx1100_lacks() {
    let list = include_str!("../../../tests/fixtures/gfx1151.txt");
    let report = run(Family::Rdna35, &[list], 400, |_| true);
    assert_eq!((report.wrong, report.unknown, report.without_formula), Default::default());
    let names: BTreeSet<&str> = lines(list).flat_map(|(_, text)| base_names(text)).collect();
    let scalar = names.iter().filter(|name| name.starts_with("s_"));
    assert_eq!(scalar.filter(|name| report.registry.is_tested(name)).count(), 58, "{} cases", report.cases);
}

/// Products of 32 rows are tested with the other matrix products; here they and the broadcasts of blocks have no formula.
#[test]
fn instructions_that_gfx942_lacks() {
    let list = include_str!("../../../tests/fixtures/gfx950.txt");
    let is_wanted = |text: &str| {
        let clamped = text.starts_with("v_cvt_pk_bf16") && text.contains(" clamp");
        !clamped && !["_32x32x", " cbsz:", " abid:"].iter().any(|part| text.contains(part))
    };
    let report = run(Family::Cdna4, &[list], 100, is_wanted);
    assert_eq!((report.wrong, report.unknown, report.without_formula), Default::default());
    let names: BTreeSet<&str> =
        lines(list).map(|(_, text)| text).filter(|text| is_wanted(text)).flat_map(base_names).collect();
    let untested: Vec<_> = names.iter().filter(|name| !report.registry.is_tested(name)).collect();
    assert!(untested.is_empty() && names.len() > 12, "{untested:?} of {}", names.len());
}

/// One encoding to test.
struct Encoded {
    code: Vec<u8>,
    text: String,
    inst: Inst,
}

/// Parses the lines of a list: code words, two blanks, text.
fn lines(list: &str) -> impl Iterator<Item = (Vec<u8>, &str)> {
    list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(|line| {
        let (words, text) = line.split_once("  ").expect("code, two blanks, text");
        let word = |word| u32::from_str_radix(word, 16).expect("hexadecimal").to_le_bytes();
        (words.split(' ').flat_map(word).collect(), text)
    })
}

fn encodings(family: Family, list: &str) -> impl Iterator<Item = Encoded> {
    lines(list).map(move |(code, text)| {
        let inst = isa::decode(family, &code, 0).unwrap_or_else(|error| panic!("{text}: {error}"));
        Encoded { code, text: text.to_string(), inst }
    })
}

/// Results of a target's encodings.
#[derive(Default)]
struct Report {
    registry: Registry,
    wrong: Vec<String>,
    unknown: BTreeSet<String>,
    without_formula: BTreeSet<String>,
    cases: u64,
}

/// Returns true for instructions that may branch.
fn jumps(name: &str) -> bool {
    name.starts_with("s_branch") || name.starts_with("s_cbranch") || name.starts_with("s_call")
}

fn check(
    family: Family,
    encoded: &Encoded,
    formula: &Formula,
    noises: &[State],
    cases: u64,
    report: &mut Report,
) {
    let Encoded { code, text, inst } = encoded;
    let mut buffer = Buffer::new();
    let code = Code::new(family, code, jumps(inst.name));
    for case in 0..cases {
        let noise = &noises[case as usize / 2 % noises.len()];
        let Some(before) = inputs::state(noise, formula, inst, case, buffer.base(), code.address()) else {
            continue;
        };
        let (mut expected, approx) = apply(formula, inst, &before);
        let Some(outcome) = code.execute(&before, &mut buffer) else {
            report.unknown.insert(text.clone());
            return;
        };
        report.cases += 1;
        let found = match outcome {
            Ok(found) => found,
            Err(fault) => {
                report.wrong.push(format!("{text} (case {case}): {fault}"));
                return;
            }
        };
        tolerance::reconcile(&found, &mut expected, &approx);
        tolerance::reconcile_memory(inst, &found, &mut expected);
        if let Some(difference) = found.difference(&expected) {
            report.wrong.push(format!(
                "{text} (case {case}, {} lanes, mode {:x}): {difference}{}",
                before.lanes,
                before.mode.bits(),
                inputs_of(inst, &before, &difference)
            ));
            return;
        }
        report.registry.add(text, &before, &found);
    }
}

/// Describes the sources of the lane in which a difference was found.
fn inputs_of(inst: &Inst, before: &State, difference: &str) -> String {
    let lane = difference
        .split_once("lane ")
        .and_then(|(_, rest)| rest.split(':').next()?.parse().ok())
        .unwrap_or(0);
    let show = |operand: &isa::Operand| match operands::agpr_as_vgpr(*operand) {
        isa::Operand::Vgpr(n) => format!(" v{n}={:#x}", before.vector_pair(n, lane)),
        isa::Operand::Scalar(n) => format!(" s{n}={:#x}", before.pair(n)),
        _ => String::new(),
    };
    inst.src.iter().chain([&inst.dst]).map(show).collect()
}

/// Returns false for encodings without a meaning (masks in vector registers, buffers that are not scratch)
/// and for loads to LDS, which do not ship and are tested with kernels.
fn is_meaningful(inst: &Inst) -> bool {
    let mask = inst.name.contains("_cndmask_") && matches!(inst.src[2], isa::Operand::Vgpr(_));
    let buffer = inst.encoding == isa::Encoding::Mubuf && formula::access(inst.name).is_some();
    let scratch = matches!(inst.src[2], isa::Operand::Scalar(n) if n < 100) && !inst.mods.idxen;
    let to_lds = inst.mods.lds && inst.encoding != isa::Encoding::Ds;
    !mask && !to_lds && (!buffer || scratch)
}

/// Runs the cases of every encoding whose text satisfies `is_wanted`.
fn run(family: Family, lists: &[&str], cases: u64, is_wanted: impl Fn(&str) -> bool) -> Report {
    let sizes: &[usize] = if family.is_gfx9() { &[64] } else { &[32, 64] };
    let noises: Vec<State> = sizes.iter().map(|lanes| inputs::noise(family, *lanes)).collect();
    let mut report = Report::default();
    for encoded in lists.iter().flat_map(|list| encodings(family, list)) {
        if !is_wanted(&encoded.text) || !is_meaningful(&encoded.inst) {
            continue;
        }
        let halves = [Some(&encoded.inst), encoded.inst.pair.as_deref()];
        let missing = halves.into_iter().flatten().find(|inst| formula::find(inst.name).is_none());
        if let Some(inst) = missing {
            report.without_formula.insert(inst.name.to_string());
            continue;
        }
        let formula = formula::find(encoded.inst.name).expect("a formula");
        check(family, &encoded, formula, &noises, cases, &mut report);
    }
    report
}

fn check_target(target: &Target) {
    let shipped: BTreeSet<&str> = lines(target.shipped).flat_map(|(_, text)| base_names(text)).collect();
    let ships = |text: &str| base_names(text).all(|name| shipped.contains(name));
    let report = run(target.family, &[target.shipped, target.rows], CASES, ships);
    let coverage = Coverage::new(target.family, lines(target.shipped), &report.registry);
    println!("{}", coverage.summary(target.name));
    println!("{}: {} cases, {} forms not executed", target.name, report.cases, report.unknown.len());
    for name in &report.without_formula {
        println!("{}: no formula: {name}", target.name);
    }
    for wrong in &report.wrong {
        println!("{}: {wrong}", target.name);
    }
    assert!(
        report.wrong.is_empty(),
        "{}: {} encodings are executed wrongly",
        target.name,
        report.wrong.len()
    );
    assert!(coverage.suffices(), "{}: {}", target.name, coverage.summary(target.name));
}
