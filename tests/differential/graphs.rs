//! Captures every operation of the table into a graph, replays it on new inputs, and compares the results with those of
//! the operation itself.
use std::collections::HashSet;

use candle_core::rocm::{copy_to_tensor, deterministic, set_deterministic};
use candle_core::{DType, Device, Result, Tensor, WithDType};
use half::{bf16, f16};
use serial_test::serial;

use crate::case::Case;
use crate::common;
use crate::compare::{self, Compare};
use crate::ops::{self, Op};
use crate::strategy::{DTYPES, typical};

/// Number of replays, each with other inputs.
const REPLAYS: u64 = 3;

/// Copies the values of a tensor on the CPU into a tensor of the device.
fn copy(from: &Tensor, to: &Tensor) -> Result<()> {
    fn copy<T: WithDType>(from: &Tensor, to: &Tensor) -> Result<()> {
        copy_to_tensor(&from.flatten_all()?.to_vec1::<T>()?, to)
    }
    match from.dtype() {
        DType::U8 => copy::<u8>(from, to),
        DType::U32 => copy::<u32>(from, to),
        DType::I16 => copy::<i16>(from, to),
        DType::I32 => copy::<i32>(from, to),
        DType::I64 => copy::<i64>(from, to),
        DType::BF16 => copy::<bf16>(from, to),
        DType::F16 => copy::<f16>(from, to),
        DType::F32 => copy::<f32>(from, to),
        DType::F64 => copy::<f64>(from, to),
        DType::F8E4M3 => copy::<float8::F8E4M3>(from, to),
        dtype => candle_core::bail!("no case has operands of {dtype:?}"),
    }
}

/// Outcome of a capture and its replays.
enum Captured {
    /// Differences between replays and the operation.
    Compared(Vec<String>),
    /// The operation does something that cannot be captured.
    Refused,
    /// The operation rejects the case.
    Rejected,
}

/// Operations that copy from or to the host: quantization does by definition, gradients in the table's code.
const REFUSED: [&str; 3] = ["quantize/", "quantize_imatrix/", "_gradient"];

fn capture(op: &Op, case: &Case, device: &Device) -> Result<Captured> {
    let on_device =
        |values: &[Tensor]| values.iter().map(|t| t.to_device(device)).collect::<Result<Vec<_>>>();
    let viewed = |stored: &[Tensor]| {
        let viewed = stored.iter().zip(&case.operands).map(|(t, operand)| operand.apply_views(t));
        viewed.collect::<Result<Vec<_>>>()
    };
    let stored = on_device(&case.stored(|i| (op.domain)(case, i))?)?;
    let operands = viewed(&stored)?;
    // Other tests cover rejected cases. This run loads the kernels.
    if (op.run)(case, &operands).is_err() {
        return Ok(Captured::Rejected);
    }
    device.synchronize()?;
    let (graph, out) = match device.as_rocm_device()?.capture(|| (op.run)(case, &operands)) {
        Ok(captured) => captured,
        Err(error) if error.to_string().contains("is not possible while a graph is captured") => {
            return Ok(Captured::Refused);
        }
        Err(error) => return Err(error),
    };
    let mut wrong = Vec::new();
    for replay in 0..REPLAYS {
        let next = Case { seed: case.seed + replay, ..case.clone() };
        let values = next.stored(|i| (op.domain)(&next, i))?;
        for (from, to) in values.iter().zip(&stored) {
            copy(from, to)?;
        }
        graph.replay()?;
        let got = out.to_device(&Device::Cpu)?;
        // Quantized weights are cached by case, so they are those of the capture.
        let expected = (op.run)(case, &viewed(&on_device(&values)?)?)?.to_device(&Device::Cpu)?;
        if let Err(why) = compare::equal(&got, &expected, false) {
            wrong.push(format!("replay {replay} of {next}: {why}"));
        }
    }
    Ok(Captured::Compared(wrong))
}

#[test]
#[serial]
fn replays_of_every_operation_equal_the_operation() {
    let device = common::device();
    // The software GPU may run threads in a random order, in which sums at repeated indices would differ.
    let was_deterministic = deterministic();
    set_deterministic(true);
    let (mut captured, mut refused, mut wrong) = (HashSet::new(), HashSet::new(), Vec::new());
    // Random numbers are those of the capture.
    for op in ops::table().iter().filter(|op| !matches!(op.compare, Compare::Is(_))) {
        for dtype in DTYPES {
            match capture(op, &typical(op, dtype), &device) {
                Ok(Captured::Compared(differences)) => {
                    captured.insert(op.name.as_str());
                    wrong.extend(differences);
                }
                Ok(Captured::Refused) => drop(refused.insert(op.name.as_str())),
                Ok(Captured::Rejected) => {}
                Err(error) => wrong.push(format!("{} {dtype:?}: {error}", op.name)),
            }
        }
    }
    set_deterministic(was_deterministic);
    println!("{} operations were captured", captured.len());
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    refused.retain(|name| !REFUSED.iter().any(|part| name.contains(part)));
    assert!(refused.is_empty() && captured.len() > 200, "not captured: {refused:?}");
}
