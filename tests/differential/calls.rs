//! Counts the HIP calls of each operation and compares them with the operation table.
use std::collections::{HashMap, HashSet};

use candle_core::{DType, Device};
use serial_test::serial;

use crate::case::{Case, Operand, View};
use crate::devices::{Outcome, run_case};
use crate::ops::{self, Launches, Op};
use crate::strategy::{DTYPES, typical};
use crate::{common, devices};

/// Returns the number of calls of each driver function since the process started.
pub fn call_counts() -> HashMap<&'static str, u64> {
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

/// Asynchronous copies and fills. If no synchronizing call accompanies them, they stay on the device, since
/// the backend synchronizes after transfers to or from the host.
const COPIES: [&str; 5] =
    ["hipMemcpyAsync", "hipMemsetAsync", "hipMemsetD8Async", "hipMemsetD32Async", "hipMemcpyPeerAsync"];

/// Calls that wait for the device, or transfer data to or from the host synchronously.
const SYNCHRONIZING: [&str; 7] = [
    "hipMemcpy",
    "hipMemcpyHtoD",
    "hipMemcpyDtoH",
    "hipMemset",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
];

/// Number of calls of each function during one operation.
struct CallsMade(HashMap<&'static str, u64>);

impl CallsMade {
    /// Runs a case twice on the device and counts the calls of the second run; the first one loads kernels.
    fn count(op: &Op, case: &Case, device: &Device) -> candle_core::Result<Self> {
        let warm = devices::operands(op, case, device)?;
        (op.run)(case, &warm)?;
        let operands = devices::operands(op, case, device)?;
        device.synchronize()?;
        let before = call_counts();
        let result = (op.run)(case, &operands)?;
        let after = call_counts();
        drop(result);
        Ok(Self(after.into_iter().map(|(name, count)| (name, count - before[name])).collect()))
    }

    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().map(|name| self.0.get(name).copied().unwrap_or(0)).sum()
    }
}

/// Returns the example with operands at an offset, with transposed operands, and with dense operands.
fn layout_variants(op: &Op, dtype: DType) -> Vec<Case> {
    let dense = typical(op, dtype);
    let offset = |operand: &Operand| {
        let mut operand = operand.clone();
        if !operand.dims.is_empty() && operand.dtype.is_none() {
            operand.views.push(View::Narrowed { dim: 0, before: 1, after: 1 });
        }
        operand
    };
    let transposed = |operand: &Operand| {
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
    vec![with(&offset), with(&transposed), dense]
}

#[test]
#[serial]
fn operations_make_the_calls_of_the_table() {
    let device = common::device();
    let (mut counted, mut wrong, mut names) = (0, Vec::new(), HashSet::new());
    for op in ops::table() {
        for dtype in DTYPES {
            if op.name == format!("to_dtype/{}", dtype.as_str()) {
                // A cast to the same dtype makes no calls.
                continue;
            }
            for case in layout_variants(op, dtype) {
                // Other tests cover dtypes and layouts that are rejected.
                let Ok(made) = CallsMade::count(op, &case, &device) else { continue };
                counted += 1;
                names.insert(op.name.as_str());
                let (launches, copies, waits) =
                    (made.sum(&LAUNCHES), made.sum(&COPIES), made.sum(&SYNCHRONIZING));
                let fine = match op.calls.launches {
                    Launches::Exactly(count) => launches == count,
                    Launches::AtMost(most) => launches <= most,
                };
                let waits = if op.reads_back { 0 } else { waits };
                if !fine || copies > op.calls.copies || waits > 0 {
                    wrong.push(format!(
                        "{case}: {launches} launches, {copies} copies, {waits} waits or transfers, expected {:?}",
                        op.calls
                    ));
                }
            }
        }
    }
    println!(
        "calls: {counted} cases of {} operations counted, {} differ from the table",
        ops::table().len(),
        wrong.len()
    );
    wrong.iter().for_each(|line| println!("  {line}"));
    // Each operation that the CPU device supports for some dtype must have been counted.
    let computes =
        |op: &Op, dtype| matches!(run_case(op, &typical(op, dtype), &Device::Cpu), Outcome::Computed(_));
    let uncounted: Vec<&str> = ops::table()
        .iter()
        .filter(|op| !names.contains(op.name.as_str()) && DTYPES.iter().any(|dtype| computes(op, *dtype)))
        .map(|op| op.name.as_str())
        .collect();
    assert!(uncounted.is_empty(), "no case was counted for {uncounted:?}");
    assert!(wrong.is_empty(), "{} cases make other calls than the table says", wrong.len());
}

#[test]
#[serial]
fn call_counters_increase() {
    let device = common::device();
    let op = ops::find(ops::table(), "neg").expect("neg");
    let made = CallsMade::count(op, &typical(op, DType::F32), &device).unwrap();
    assert_eq!((made.sum(&LAUNCHES), made.sum(&["hipMalloc"]) <= 1, made.sum(&SYNCHRONIZING)), (1, true, 0));
    let before = call_counts();
    device.synchronize().unwrap();
    assert_eq!(call_counts()["hipStreamSynchronize"], before["hipStreamSynchronize"] + 1);
}
