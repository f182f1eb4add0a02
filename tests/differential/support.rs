//! Compares the dtypes that each operation supports on ROCm and on the CPU device with the list in docs/reference/support.md.
use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Device, Error};
use serial_test::serial;

use crate::devices::{Outcome, first_line, innermost, run_case};
use crate::strategy::{DTYPES, typical};
use crate::{common, ops};

const BEGIN: &str = "<!-- support: begin -->";
const END: &str = "<!-- support: end -->";
const MISSING: &str = "Computed by the CPU device and not by ROCm: ";
const ROCM_ONLY: &str = "Computed by ROCm and not by the CPU device: ";

/// Operations and dtypes that only one of the two devices computes.
#[derive(Default, Debug, PartialEq)]
pub struct Differences {
    missing: BTreeSet<(String, &'static str)>,
    rocm_only: BTreeSet<(String, &'static str)>,
}

impl Differences {
    /// Reads the lists in docs/reference/support.md.
    pub fn from_docs() -> Self {
        let page = include_str!("../../docs/reference/support.md");
        let block = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
        Self::read(block.expect("markers of the support table in docs/reference/support.md").0)
    }

    /// Parses the two lines, each of the form `op (dtype, dtype); op (dtype)` or `none`.
    fn read(block: &str) -> Self {
        let list = |start: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
            let mut set = BTreeSet::new();
            for entry in line.trim_end_matches('.').split("; ").filter(|entry| *entry != "none") {
                let (op, dtypes) = entry.trim_end_matches(')').split_once(" (").unwrap_or((entry, ""));
                let dtypes = DTYPES
                    .map(|d| d.as_str())
                    .into_iter()
                    .filter(|d| dtypes.split(", ").any(|name| name == *d));
                set.extend(dtypes.map(|dtype| (op.trim_matches('`').to_string(), dtype)));
            }
            set
        };
        Self { missing: list(MISSING), rocm_only: list(ROCM_ONLY) }
    }

    /// Formats the lines that [`Self::read`] parses.
    fn write(&self) -> String {
        let list = |set: &BTreeSet<(String, &'static str)>| {
            let mut by_op: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (op, dtype) in set {
                by_op.entry(op).or_default().push(dtype);
            }
            let entries: Vec<String> =
                by_op.iter().map(|(op, dtypes)| format!("`{op}` ({})", dtypes.join(", "))).collect();
            if entries.is_empty() { "none".to_string() } else { entries.join("; ") }
        };
        format!("{MISSING}{}.\n\n{ROCM_ONLY}{}.", list(&self.missing), list(&self.rocm_only))
    }

    pub fn is_missing(&self, op: &str, dtype: DType) -> bool {
        self.missing.contains(&(op.to_string(), dtype.as_str()))
    }

    pub fn is_rocm_only(&self, op: &str, dtype: DType) -> bool {
        self.rocm_only.contains(&(op.to_string(), dtype.as_str()))
    }
}

#[test]
#[serial]
fn supported_dtypes_match_the_readme() {
    let device = common::device();
    let mut found = Differences::default();
    let (mut supported, mut wrong) = (0, Vec::new());
    for op in ops::table() {
        for dtype in DTYPES {
            let case = typical(op, dtype);
            let (cpu, rocm) = (run_case(op, &case, &Device::Cpu), run_case(op, &case, &device));
            let entry = (op.name.clone(), dtype.as_str());
            match (&cpu, &rocm) {
                (Outcome::Computed(_), Outcome::Computed(_)) => supported += 1,
                (Outcome::Computed(_), _) => {
                    found.missing.insert(entry);
                }
                (_, Outcome::Computed(_)) => {
                    found.rocm_only.insert(entry);
                }
                _ => {}
            }
            // An error must name a dtype of the case, or be of the same kind as the CPU's error.
            let named = |dtype: DType| {
                dtype == case.dtype || case.operands.iter().any(|operand| operand.dtype == Some(dtype))
            };
            let fine = match (&cpu, &rocm) {
                (_, Outcome::Computed(_)) => true,
                (cpu, Outcome::Failed(error)) => match (innermost(error), cpu) {
                    (Error::UnsupportedDTypeForOp(dtype, _), _) => named(*dtype),
                    (error, Outcome::Failed(expected)) => {
                        std::mem::discriminant(innermost(expected)) == std::mem::discriminant(error)
                    }
                    _ => false,
                },
                _ => false,
            };
            if !fine {
                wrong.push(format!("{case}: {}, the CPU: {}", describe(&rocm), describe(&cpu)));
            }
        }
    }
    println!(
        "support: {} operations, {} dtypes: {supported} combinations on both, {} missing on ROCm, {} only on ROCm",
        ops::table().len(),
        DTYPES.len(),
        found.missing.len(),
        found.rocm_only.len()
    );
    wrong.iter().for_each(|line| println!("  {line}"));
    let written = found.write();
    assert!(
        found == Differences::from_docs(),
        "update docs/reference/support.md between the markers of the support table to:\n\n{written}\n"
    );
    assert!(wrong.is_empty(), "{} errors have the wrong kind", wrong.len());
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed(error) => first_line(error),
        other => other.describe(),
    }
}

#[test]
fn the_list_is_parsed_from_its_text_form() {
    let entry = |op: &str, dtype| (op.to_string(), dtype);
    let some = Differences {
        missing: [entry("sum", "u8"), entry("sum", "f8e4m3"), entry("to_dtype/f16", "i16")].into(),
        rocm_only: [].into(),
    };
    assert_eq!(Differences::read(&some.write()), some);
    assert!(some.is_missing("sum", DType::U8) && !some.is_missing("sum", DType::F16));
    assert_eq!(Differences::read(&Differences::default().write()), Differences::default());
}
