//! How much of what ships is decoded, executed and tested.
use super::formula;
use super::state::State;
use crate::exec::program::{Program, Step};
use crate::isa::{self, Family};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Different outcomes that make a mnemonic tested: both of a compare. One does where an instruction only moves control
/// or does nothing.
const OUTCOMES: usize = 2;
/// Percentage of the shipped mnemonics that must be tested; decoded and executed they must be all.
const LEAST_TESTED: usize = 95;

/// The mnemonics of an instruction's text, without the suffixes of their encodings.
pub fn base_names(text: &str) -> impl Iterator<Item = &str> {
    const SUFFIXES: [&str; 6] = ["_e64_dpp", "_dpp", "_sdwa", "_e64", "_e32", "_dpp8"];
    text.split(" :: ").map(|half| {
        let name = half.split(' ').next().unwrap_or_default();
        SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
    })
}

/// What really ran and came out right: the different outcomes of each mnemonic.
#[derive(Default)]
pub struct Registry(BTreeMap<String, HashSet<u64>>);

impl Registry {
    /// Notes one case of an instruction.
    pub fn add(&mut self, text: &str, before: &State, after: &State) {
        let outcome = fingerprint(before, after);
        for name in base_names(text) {
            match self.0.get_mut(name) {
                Some(outcomes) => outcomes.insert(outcome),
                None => self.0.entry(name.to_string()).or_default().insert(outcome),
            };
        }
    }

    fn is_tested(&self, name: &str) -> bool {
        let enough = if formula::is_flow(name) { 1 } else { OUTCOMES };
        self.0.get(name).is_some_and(|outcomes| outcomes.len() >= enough)
    }
}

/// A number for what a case changed.
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

/// The mnemonics of a target's shipped code by how far they come.
pub struct Coverage {
    shipped: BTreeSet<String>,
    not_decoded: BTreeSet<String>,
    not_executed: BTreeSet<String>,
    not_tested: BTreeSet<String>,
}

impl Coverage {
    /// `forms`: code and text of an instruction of every form that ships. A mnemonic is decoded and executed if all
    /// its forms are.
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

    /// Whether it is enough.
    pub fn suffices(&self) -> bool {
        let tested = self.shipped.len() - self.not_tested.len();
        self.not_decoded.is_empty()
            && self.not_executed.is_empty()
            && 100 * tested >= LEAST_TESTED * self.shipped.len()
    }

    /// One line for `cargo xtask isa-coverage`: the target, four counts, and what is missing of each.
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

/// Whether the executor has a step for it, in waves of every size that the family has.
fn is_executed(family: Family, code: &[u8]) -> bool {
    // What falls through finds nothing to decode, in a step of its own.
    let program = Program::load(family, [code, &[0xff; 16]].concat(), 0x1000);
    let (function, step) = program.function_at::<64>(0);
    let wide = !matches!(function.steps.get(step), Some(Step::Unknown) | None);
    let (function, step) = program.function_at::<32>(0);
    let narrow = !matches!(function.steps.get(step), Some(Step::Unknown) | None);
    wide && (narrow || family.is_gfx9())
}
