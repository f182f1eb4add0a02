//! Coverage of the shipped kernels' instructions: how many mnemonics are decoded, executed and tested.
use super::formula;
use super::state::State;
use crate::exec::program::{Program, Step};
use crate::isa::{self, Family};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Number of distinct outcomes required of a tested mnemonic, such as both results of a compare. Control flow
/// and no-ops require one.
const OUTCOMES: usize = 2;
/// Minimum percentage of the shipped mnemonics that are tested. All must be decoded and executed.
const MIN_TESTED_PERCENT: usize = 95;

/// Returns the mnemonics of an instruction's text, without encoding suffixes.
pub fn base_names(text: &str) -> impl Iterator<Item = &str> {
    const SUFFIXES: [&str; 6] = ["_e64_dpp", "_dpp", "_sdwa", "_e64", "_e32", "_dpp8"];
    text.split(" :: ").map(|half| {
        let name = half.split(' ').next().unwrap_or_default();
        SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
    })
}

/// Distinct outcomes of each mnemonic among the test cases that passed.
#[derive(Default)]
pub struct Registry(BTreeMap<String, HashSet<u64>>);

impl Registry {
    /// Adds one passed case of an instruction.
    pub fn add(&mut self, text: &str, before: &State, after: &State) {
        let outcome = fingerprint(before, after);
        for name in base_names(text) {
            match self.0.get_mut(name) {
                Some(outcomes) => outcomes.insert(outcome),
                None => self.0.entry(name.to_string()).or_default().insert(outcome),
            };
        }
    }

    /// Returns true if the cases of a mnemonic had enough distinct outcomes.
    pub fn is_tested(&self, name: &str) -> bool {
        let enough = if formula::is_flow(name) { 1 } else { OUTCOMES };
        self.0.get(name).is_some_and(|outcomes| outcomes.len() >= enough)
    }
}

/// Returns a hash of the state changes of a case.
fn fingerprint(before: &State, after: &State) -> u64 {
    let mut sum = u64::from(after.scc) ^ (after.pc as u64) << 1 ^ u64::from(after.mode.bits()) << 40;
    let mut add = |at: usize, value: u64| {
        sum = (sum ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ value;
    };
    for at in (0..before.sgpr.len()).filter(|at| before.sgpr[*at] != after.sgpr[*at]) {
        add(at, after.sgpr[at].into());
    }
    for at in (0..before.vgpr.len()).filter(|at| before.vgpr[*at] != after.vgpr[*at]) {
        after.vgpr[at].iter().for_each(|value| add(at, (*value).into()));
    }
    let memories = [(&before.global, &after.global), (&before.lds, &after.lds)];
    for (old, new) in memories.into_iter().chain(before.private.iter().zip(&after.private)) {
        if old != new {
            new.iter().zip(old).enumerate().for_each(|(at, (new, old))| {
                if new != old {
                    add(at, (*new).into());
                }
            });
        }
    }
    sum
}

/// Mnemonics of a target's shipped code, and those that are not covered.
pub struct Coverage {
    shipped: BTreeSet<String>,
    not_decoded: BTreeSet<String>,
    not_executed: BTreeSet<String>,
    not_tested: BTreeSet<String>,
}

impl Coverage {
    /// Computes the coverage of `forms`, which has the code and text of every shipped instruction form. A
    /// mnemonic counts as decoded or executed if all its forms are.
    pub fn new<'a>(
        family: Family,
        forms: impl Iterator<Item = (Vec<u8>, &'a str)>,
        registry: &Registry,
    ) -> Self {
        let mut coverage = Self {
            shipped: BTreeSet::new(),
            not_decoded: BTreeSet::new(),
            not_executed: BTreeSet::new(),
            not_tested: BTreeSet::new(),
        };
        for (code, text) in forms {
            let names = || base_names(text).map(str::to_string);
            coverage.shipped.extend(names());
            if !is_decoded(family, &code, text) {
                coverage.not_decoded.extend(names());
            }
            if !is_executed(family, &code) {
                coverage.not_executed.extend(names());
            }
        }
        coverage.not_tested =
            coverage.shipped.iter().filter(|name| !registry.is_tested(name)).cloned().collect();
        coverage
    }

    /// Returns true if the coverage is sufficient.
    pub fn suffices(&self) -> bool {
        let tested = self.shipped.len() - self.not_tested.len();
        self.not_decoded.is_empty()
            && self.not_executed.is_empty()
            && 100 * tested >= MIN_TESTED_PERCENT * self.shipped.len()
    }

    /// Returns the line that `cargo xtask isa-coverage` parses: target, counts, and uncovered mnemonics.
    pub fn summary(&self, target: &str) -> String {
        let total = self.shipped.len();
        let mut line = format!("isa-coverage {target} shipped={total}");
        for (what, missing) in
            [("decoded", &self.not_decoded), ("executed", &self.not_executed), ("tested", &self.not_tested)]
        {
            let names: Vec<&str> = missing.iter().map(String::as_str).collect();
            line += &format!(" {what}={} without={}", total - names.len(), names.join(","));
        }
        line
    }
}

fn is_decoded(family: Family, code: &[u8], text: &str) -> bool {
    isa::decode(family, code, 0)
        .is_ok_and(|inst| usize::from(inst.size) == code.len() && isa::format(family, &inst) == text)
}

/// Returns true if the executor supports the code in waves of every size that the family has.
fn is_executed(family: Family, code: &[u8]) -> bool {
    // The bytes after the code do not decode and become a separate step.
    let program = Program::load(family, [code, &[0xff; 16]].concat(), 0x1000);
    let (function, step) = program.function_at::<64>(0);
    let wide = !matches!(function.steps.get(step), Some(Step::Unknown) | None);
    let (function, step) = program.function_at::<32>(0);
    let narrow = !matches!(function.steps.get(step), Some(Step::Unknown) | None);
    wide && (narrow || family.is_gfx9())
}
