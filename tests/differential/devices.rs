//! One case on both devices.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Error, Result, Tensor};

use crate::case::Case;
use crate::compare::{self, Compare};
use crate::ops::{Op, Run};
use crate::strategy::typical;
use crate::support::Differences;

/// What a device made of a case.
pub enum Outcome {
    Computed(Tensor),
    Refused(Error),
    Panicked(String),
}

impl Outcome {
    pub fn describe(&self) -> String {
        match self {
            Outcome::Computed(t) => format!("a result of shape {:?}", t.dims()),
            Outcome::Refused(error) => format!("the error `{}`", first_line(error)),
            Outcome::Panicked(message) => format!("a panic: {message}"),
        }
    }
}

/// Computes a case on a device, down to the result's arrival on the CPU.
pub fn attempt(op: &Op, case: &Case, device: &Device) -> Outcome {
    let outcome = guarded(|| {
        let operands = operands(op, case, device)?;
        let result = (op.run)(case, &operands)?;
        // A wrong index comes before what was left unwritten because of it.
        device.synchronize()?;
        result.to_device(&Device::Cpu)
    });
    if matches!(outcome, Outcome::Refused(_)) {
        // What a kernel finds wrong after its first finding was reported is of this case, not of the next.
        drop(device.synchronize());
    }
    outcome
}

/// The operands on a device, as the case looks at them.
pub fn operands(op: &Op, case: &Case, device: &Device) -> Result<Vec<Tensor>> {
    let stored = case.stored(|i| (op.domain)(case, i))?;
    let looked = stored.iter().zip(&case.operands).map(|(t, operand)| operand.look(&t.to_device(device)?));
    looked.collect()
}

fn guarded(compute: impl FnOnce() -> Result<Tensor>) -> Outcome {
    let _quiet = Quiet::new();
    match catch_unwind(AssertUnwindSafe(compute)) {
        Ok(Ok(tensor)) => Outcome::Computed(tensor),
        Ok(Err(error)) => Outcome::Refused(error),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or(payload.downcast_ref::<&str>().copied());
            Outcome::Panicked(text.unwrap_or("without a message").to_string())
        }
    }
}

/// While one lives, panics print nothing: the CPU device panics where it lacks a function, in threads of its
/// own too.
struct Quiet;

static QUIET: AtomicUsize = AtomicUsize::new(0);

impl Quiet {
    fn new() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if QUIET.load(Ordering::Relaxed) == 0 {
                    usual(info);
                }
            }));
        });
        QUIET.fetch_add(1, Ordering::Relaxed);
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Below the context and the backtrace.
pub fn innermost(error: &Error) -> &Error {
    match error {
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            innermost(inner)
        }
        error => error,
    }
}

pub fn first_line(error: &Error) -> String {
    innermost(error).to_string().lines().next().unwrap_or_default().to_string()
}

fn same_kind(a: &Error, b: &Error) -> bool {
    let (a, b) = (innermost(a), innermost(b));
    // An index that the device has found out of range surfaces as an error of ROCm that names it; of quantized
    // tables the CPU device says so in words.
    let of_table = matches!(b, Error::Msg(text) if text.contains("is out of range"));
    let index = (of_table || matches!(b, Error::InvalidIndex { .. })) && is_index_error(a);
    index || std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn is_index_error(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Rocm(_)) && text.contains("index") && text.contains("out of range")
}

/// Whether ROCm does with a case what the CPU device does; else what it did.
pub fn check(
    op: &Op,
    case: &Case,
    device: &Device,
    differences: &Differences,
) -> std::result::Result<(), String> {
    let cpu = attempt(op, case, &Device::Cpu);
    let rocm = attempt(op, case, device);
    if let Outcome::Panicked(message) = &rocm {
        return Err(format!("ROCm panicked: {message}"));
    }
    if differences.is_missing(&op.name, case.dtype) {
        return match rocm {
            Outcome::Refused(_) => Ok(()),
            _ if matches!(cpu, Outcome::Refused(_) | Outcome::Panicked(_)) => Ok(()),
            // Only some shapes of it are missing.
            Outcome::Computed(got) => compared(op, case, &got, &cpu),
            Outcome::Panicked(_) => unreachable!("reported above"),
        };
    }
    let beyond = differences.is_beyond(&op.name, case.dtype);
    match (&cpu, &rocm) {
        (Outcome::Computed(_), Outcome::Computed(got)) => compared(op, case, got, &cpu),
        (Outcome::Refused(expected), Outcome::Refused(got)) if same_kind(got, expected) => Ok(()),
        // An index out of range, of nothing: the CPU looks at it, and no element is read or written.
        (Outcome::Refused(error), Outcome::Computed(got))
            if got.elem_count() == 0 && matches!(innermost(error), Error::InvalidIndex { .. }) =>
        {
            Ok(())
        }
        (Outcome::Refused(error), Outcome::Computed(got)) => {
            let layout = matches!(
                innermost(error),
                Error::MatMulUnexpectedStriding(_) | Error::RequiresContiguous { .. }
            );
            let parameters =
                matches!(innermost(error), Error::UnsupportedDTypeForOp(..)) && on_cpu(op, case.dtype);
            if beyond || (op.takes_more && (layout || parameters)) {
                compared(op, case, got, &cpu)
            } else {
                Err(format!("ROCm gives {}, the CPU {}", rocm.describe(), cpu.describe()))
            }
        }
        // The CPU device comes to the dtype only where there is something to compute.
        (Outcome::Computed(nothing), Outcome::Refused(error))
            if nothing.elem_count() == 0
                && matches!(innermost(error), Error::UnsupportedDTypeForOp(dtype, _) if *dtype == case.dtype)
                && !on_cpu(op, case.dtype) =>
        {
            Ok(())
        }
        (Outcome::Refused(_), Outcome::Refused(_)) if beyond => Ok(()),
        (Outcome::Panicked(_), Outcome::Computed(got)) if beyond => compared(op, case, got, &cpu),
        // The reference in f64 needs no result of the CPU device in the dtype.
        (Outcome::Panicked(_), Outcome::Computed(got))
            if matches!(op.compare, Compare::Close(_)) && case.dtype.is_float() && on_cpu(op, case.dtype) =>
        {
            compared(op, case, got, &cpu)
        }
        (Outcome::Panicked(_), _) => Ok(()),
        _ => Err(format!("ROCm gives {}, the CPU {}", rocm.describe(), cpu.describe())),
    }
}

/// Whether the CPU device supports a dtype, if not with all parameters.
fn on_cpu(op: &Op, dtype: DType) -> bool {
    matches!(attempt(op, &typical(op, dtype), &Device::Cpu), Outcome::Computed(_))
}

/// Compares ROCm's result with what the operation's entry asks for.
fn compared(op: &Op, case: &Case, got: &Tensor, cpu: &Outcome) -> std::result::Result<(), String> {
    let text = |e: Error| format!("the reference fails: {}", first_line(&e));
    let expected = match cpu {
        Outcome::Computed(expected) => Some(expected),
        _ => None,
    };
    match (&op.compare, expected) {
        (_, Some(expected)) if expected.elem_count() == 0 => compare::same(got, expected, false),
        (_, None) if got.elem_count() == 0 => Ok(()),
        (Compare::Bits, Some(expected)) => compare::same(got, expected, false),
        (Compare::Values, Some(expected)) => compare::same(got, expected, true),
        (Compare::Sorted { ascending }, Some(_)) if case.dtype.is_float() => {
            let x = operands(op, case, &Device::Cpu).map_err(text)?;
            compare::sorted(got, &x[0], *ascending)
        }
        (Compare::Sorted { .. }, Some(expected)) => compare::same(got, expected, false),
        (Compare::Is(property), Some(expected)) => {
            if (got.dims(), got.dtype()) != (expected.dims(), expected.dtype()) {
                return Err(format!(
                    "{:?} {:?}, the CPU's is {:?} {:?}",
                    got.dims(),
                    got.dtype(),
                    expected.dims(),
                    expected.dtype()
                ));
            }
            property(case, &compare::to_f64(got).map_err(text)?)
        }
        (Compare::Close(bound), _) if case.dtype.is_float() => {
            let run: &Run = op.reference.as_ref().unwrap_or(&op.run);
            let operands = dense_f64(op, case).map_err(text)?;
            let run = |case: &Case, t: &[Tensor]| run(case, t)?.contiguous();
            let reference = match guarded(|| run(case, &operands)) {
                Outcome::Computed(reference) => reference,
                // The CPU device panics in f64 as well; or in f64 alone, on dense operands without elements.
                Outcome::Panicked(_) if expected.is_none() => return Ok(()),
                Outcome::Panicked(_) if case.operands.iter().any(|operand| operand.dims.contains(&0)) => {
                    return expected.map_or(Ok(()), |expected| compare::same(got, expected, true));
                }
                other => return Err(format!("the reference gives {}", other.describe())),
            };
            let numbers = compare::to_f64(&reference).map_err(text)?;
            let bound = bound.of(case, &run, &operands, &numbers).map_err(text)?;
            if let (Some(own), DType::F64) = (expected, case.dtype) {
                // The CPU device reads views where their elements are, as it reads dense operands.
                compare::close(own, reference.dims(), case.dtype, &numbers, &bound, None)
                    .map_err(|why| format!("the CPU device, through the views: {why}"))?;
            }
            compare::close(got, reference.dims(), case.dtype, &numbers, &bound, expected)
        }
        (Compare::Close(_), _) => {
            // Integers: the CPU device on dense operands.
            let expected = guarded(|| {
                let dense: Vec<Tensor> = operands(op, case, &Device::Cpu)?
                    .iter()
                    .map(Tensor::force_contiguous)
                    .collect::<Result<_>>()?;
                (op.run)(case, &dense)
            });
            match expected {
                Outcome::Computed(expected) => compare::same(got, &expected, false),
                // Refused with some parameters only: f64 is exact on whole numbers of the table's size.
                _ => {
                    let run: &Run = op.reference.as_ref().unwrap_or(&op.run);
                    let exact = run(case, &dense_f64(op, case).map_err(text)?).map_err(text)?;
                    compare::wrapped(got, &exact)
                }
            }
        }
        (_, None) => Ok(()),
    }
}

/// Dense copies of the operands in f64.
fn dense_f64(op: &Op, case: &Case) -> Result<Vec<Tensor>> {
    let dense = operands(op, case, &Device::Cpu)?.into_iter().zip(&case.operands).map(|(t, operand)| {
        let t = t.force_contiguous()?;
        match operand.dtype {
            None => t.to_dtype(DType::F64),
            // Indexes and masks stay what they are.
            Some(_) => Ok(t),
        }
    });
    dense.collect()
}
