//! How many calls of HIP each operation makes, counted in the loader.
use std::collections::{HashMap, HashSet};

use candle_core::{DType, Device};
use serial_test::serial;

use crate::case::{Case, Operand, View};
use crate::devices::{Outcome, attempt};
use crate::ops::{self, Launches, Op};
use crate::strategy::{DTYPES, typical};
use crate::{common, devices};

/// How often each symbol of the loader has been called in this process.
pub fn reading() -> HashMap<&'static str, u64> {
    rocm_loader::symbols::calls().collect()
}

const LAUNCHES: [&str; 6] = [
    "hipModuleLaunchKernel",
    "rocblas_gemm_ex",
    "rocblas_gemm_strided_batched_ex",
    "miopenConvolutionForwardImmediate",
    "miopenConvolutionBackwardDataImmediate",
    "miopenConvolutionBackwardWeightsImmediate",
];

/// Copies and fills that stay on the device if no wait is among the calls: what comes from or goes to the
/// host in the backend waits, or is a copy that none of these operations may make.
const COPIES: [&str; 5] =
    ["hipMemcpyAsync", "hipMemsetAsync", "hipMemsetD8Async", "hipMemsetD32Async", "hipMemcpyPeerAsync"];

/// Calls that wait for the device, or move data to or from the host at once.
const WAITS: [&str; 7] = [
    "hipMemcpy",
    "hipMemcpyHtoD",
    "hipMemcpyDtoH",
    "hipMemset",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
];

/// The calls between two readings.
struct Made(HashMap<&'static str, u64>);

impl Made {
    /// Runs a case twice on the device: the first time kernels are loaded; the calls of the second are
    /// counted.
    fn by(op: &Op, case: &Case, device: &Device) -> candle_core::Result<Self> {
        let warm = devices::operands(op, case, device)?;
        (op.run)(case, &warm)?;
        let operands = devices::operands(op, case, device)?;
        device.synchronize()?;
        let before = reading();
        let result = (op.run)(case, &operands)?;
        let after = reading();
        drop(result);
        Ok(Self(after.into_iter().map(|(name, count)| (name, count - before[name])).collect()))
    }

    fn of(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.0.get(name).copied().unwrap_or(0)).sum()
    }
}

/// The example dense, and with its operands laid out otherwise.
fn layouts(op: &Op, dtype: DType) -> Vec<Case> {
    let dense = typical(op, dtype);
    let offset = |operand: &Operand| {
        let mut operand = operand.clone();
        if !operand.dims.is_empty() && operand.dtype.is_none() {
            operand.views.push(View::Narrowed { dim: 0, before: 1, after: 1 });
        }
        operand
    };
    let turned = |operand: &Operand| {
        let mut operand = operand.clone();
        if operand.dims.len() > 1 && operand.views.is_empty() {
            operand.views.push(View::Transposed(0, 1));
        }
        operand
    };
    let with = |f: &dyn Fn(&Operand) -> Operand| Case {
        operands: dense.operands.iter().map(f).collect(),
        ..dense.clone()
    };
    vec![with(&offset), with(&turned), dense]
}

#[test]
#[serial]
fn operations_make_the_calls_that_their_entries_say() {
    let device = common::device();
    let (mut counted, mut wrong, mut names) = (0, Vec::new(), HashSet::new());
    for op in ops::table() {
        for dtype in DTYPES {
            if op.name == format!("to_dtype/{}", dtype.as_str()) {
                // Nothing to cast: the tensor itself.
                continue;
            }
            for case in layouts(op, dtype) {
                // What is refused, for its dtype or its layout, is the subject of other tests.
                let Ok(made) = Made::by(op, &case, &device) else { continue };
                counted += 1;
                names.insert(op.name.as_str());
                let (launches, copies, waits) = (made.of(&LAUNCHES), made.of(&COPIES), made.of(&WAITS));
                let fine = match op.calls.launches {
                    Launches::Exactly(count) => launches == count,
                    Launches::AtMost(most) => launches <= most,
                };
                let waits = if op.reads_back { 0 } else { waits };
                if !fine || copies > op.calls.copies || waits > 0 {
                    wrong.push(format!(
                        "{case}: {launches} launches, {copies} copies, {waits} waits or transfers, not {:?}",
                        op.calls
                    ));
                }
            }
        }
    }
    println!(
        "calls: {counted} cases of {} operations counted, {} make other calls",
        ops::table().len(),
        wrong.len()
    );
    wrong.iter().for_each(|line| println!("  {line}"));
    // Each operation that the CPU device computes on some dtype has been counted.
    let computes =
        |op: &Op, dtype| matches!(attempt(op, &typical(op, dtype), &Device::Cpu), Outcome::Computed(_));
    let left_out: Vec<&str> = ops::table()
        .iter()
        .filter(|op| !names.contains(op.name.as_str()) && DTYPES.iter().any(|dtype| computes(op, *dtype)))
        .map(|op| op.name.as_str())
        .collect();
    assert!(left_out.is_empty(), "no case is counted of {left_out:?}");
    assert!(wrong.is_empty(), "{} cases make other calls than their entries say", wrong.len());
}

#[test]
#[serial]
fn the_counters_count() {
    let device = common::device();
    let op = ops::find(ops::table(), "neg").expect("neg");
    let made = Made::by(op, &typical(op, DType::F32), &device).unwrap();
    assert_eq!((made.of(&LAUNCHES), made.of(&["hipMalloc"]) <= 1, made.of(&WAITS)), (1, true, 0));
    let before = reading();
    device.synchronize().unwrap();
    assert_eq!(reading()["hipStreamSynchronize"], before["hipStreamSynchronize"] + 1);
}
