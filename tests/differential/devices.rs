//! Runs a case on the CPU device and on ROCm and compares the outcomes.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Error, Result, Tensor};

use crate::case::Case;
use crate::compare::{self, Compare};
use crate::ops::{Op, Run};
use crate::strategy::typical;
use crate::support::Differences;

/// Outcome of a case on a device.
pub enum Outcome {
    Computed(Tensor),
    Failed(Error),
    Panicked(String),
}

impl Outcome {
    pub fn describe(&self) -> String {
        match self {
            Outcome::Computed(t) => format!("a result of shape {:?}", t.dims()),
            Outcome::Failed(error) => format!("the error `{}`", first_line(error)),
            Outcome::Panicked(message) => format!("a panic: {message}"),
        }
    }
}

/// Computes a case on a device and copies the result to the CPU.
pub fn run_case(op: &Op, case: &Case, device: &Device) -> Outcome {
    let outcome = catch_panic(|| {
        let operands = operands(op, case, device)?;
        let result = (op.run)(case, &operands)?;
        // Reports an index error before unwritten results are read.
        device.synchronize()?;
        result.to_device(&Device::Cpu)
    });
    if matches!(outcome, Outcome::Failed(_)) {
        // Clears further errors that kernels of this case report later.
        drop(device.synchronize());
    }
    outcome
}

/// Creates the operands on a device, with their views applied.
pub fn operands(op: &Op, case: &Case, device: &Device) -> Result<Vec<Tensor>> {
    let stored = case.stored(|i| (op.domain)(case, i))?;
    let viewed =
        stored.iter().zip(&case.operands).map(|(t, operand)| operand.apply_views(&t.to_device(device)?));
    viewed.collect()
}

fn catch_panic(compute: impl FnOnce() -> Result<Tensor>) -> Outcome {
    let _guard = SilencePanics::new();
    match catch_unwind(AssertUnwindSafe(compute)) {
        Ok(Ok(tensor)) => Outcome::Computed(tensor),
        Ok(Err(error)) => Outcome::Failed(error),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or(payload.downcast_ref::<&str>().copied());
            Outcome::Panicked(text.unwrap_or("no message").to_string())
        }
    }
}

/// Guard that suppresses panic messages of all threads: the CPU device panics for functions that it lacks.
struct SilencePanics;

static SILENCED: AtomicUsize = AtomicUsize::new(0);

impl SilencePanics {
    fn new() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let default_hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if SILENCED.load(Ordering::Relaxed) == 0 {
                    default_hook(info);
                }
            }));
        });
        SILENCED.fetch_add(1, Ordering::Relaxed);
        SilencePanics
    }
}

impl Drop for SilencePanics {
    fn drop(&mut self) {
        SILENCED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the error without context, path and backtrace.
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
    // ROCm reports an index out of range as a ROCm error; the CPU device reports it as a message for
    // quantized tables.
    let of_table = matches!(b, Error::Msg(text) if text.contains("is out of range"));
    let index = (of_table || matches!(b, Error::InvalidIndex { .. })) && is_index_error(a);
    index || std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn is_index_error(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Rocm(_)) && text.contains("index") && text.contains("out of range")
}

/// Compares ROCm with the CPU device on a case; returns a description of the difference as an error.
pub fn check(
    op: &Op,
    case: &Case,
    device: &Device,
    differences: &Differences,
) -> std::result::Result<(), String> {
    let cpu = run_case(op, case, &Device::Cpu);
    let rocm = run_case(op, case, device);
    if let Outcome::Panicked(message) = &rocm {
        return Err(format!("ROCm panicked: {message}"));
    }
    if differences.is_missing(&op.name, case.dtype) {
        return match rocm {
            Outcome::Failed(_) => Ok(()),
            _ if matches!(cpu, Outcome::Failed(_) | Outcome::Panicked(_)) => Ok(()),
            // Other shapes of this operation and dtype are supported.
            Outcome::Computed(got) => compare_result(op, case, &got, &cpu),
            Outcome::Panicked(_) => unreachable!("reported above"),
        };
    }
    let rocm_only = differences.is_rocm_only(&op.name, case.dtype);
    match (&cpu, &rocm) {
        (Outcome::Computed(_), Outcome::Computed(got)) => compare_result(op, case, got, &cpu),
        (Outcome::Failed(expected), Outcome::Failed(got)) if same_kind(got, expected) => Ok(()),
        // The CPU reports an index out of range even if no element is read or written.
        (Outcome::Failed(error), Outcome::Computed(got))
            if got.elem_count() == 0 && matches!(innermost(error), Error::InvalidIndex { .. }) =>
        {
            Ok(())
        }
        (Outcome::Failed(error), Outcome::Computed(got)) => {
            let layout = matches!(
                innermost(error),
                Error::MatMulUnexpectedStriding(_) | Error::RequiresContiguous { .. }
            );
            let parameters =
                matches!(innermost(error), Error::UnsupportedDTypeForOp(..)) && cpu_supports(op, case.dtype);
            if rocm_only || (op.accepts_more && (layout || parameters)) {
                compare_result(op, case, got, &cpu)
            } else {
                Err(format!("ROCm returned {}, the CPU {}", rocm.describe(), cpu.describe()))
            }
        }
        // The CPU device checks the dtype only if there are elements to compute.
        (Outcome::Computed(nothing), Outcome::Failed(error))
            if nothing.elem_count() == 0
                && matches!(innermost(error), Error::UnsupportedDTypeForOp(dtype, _) if *dtype == case.dtype)
                && !cpu_supports(op, case.dtype) =>
        {
            Ok(())
        }
        (Outcome::Failed(_), Outcome::Failed(_)) if rocm_only => Ok(()),
        (Outcome::Panicked(_), Outcome::Computed(got)) if rocm_only => compare_result(op, case, got, &cpu),
        // The f64 reference suffices; the CPU device's result in the dtype is not needed.
        (Outcome::Panicked(_), Outcome::Computed(got))
            if matches!(op.compare, Compare::Close(_))
                && case.dtype.is_float()
                && cpu_supports(op, case.dtype) =>
        {
            compare_result(op, case, got, &cpu)
        }
        (Outcome::Panicked(_), _) => Ok(()),
        _ => Err(format!("ROCm returned {}, the CPU {}", rocm.describe(), cpu.describe())),
    }
}

/// Returns true if the CPU device supports a dtype, at least with typical parameters.
fn cpu_supports(op: &Op, dtype: DType) -> bool {
    matches!(run_case(op, &typical(op, dtype), &Device::Cpu), Outcome::Computed(_))
}

/// Compares ROCm's result as the operation's table entry requires.
fn compare_result(op: &Op, case: &Case, got: &Tensor, cpu: &Outcome) -> std::result::Result<(), String> {
    let text = |e: Error| format!("the reference failed: {}", first_line(&e));
    let expected = match cpu {
        Outcome::Computed(expected) => Some(expected),
        _ => None,
    };
    match (&op.compare, expected) {
        (_, Some(expected)) if expected.elem_count() == 0 => compare::equal(got, expected, false),
        (_, None) if got.elem_count() == 0 => Ok(()),
        (Compare::Bits, Some(expected)) => compare::equal(got, expected, false),
        (Compare::Values, Some(expected)) => compare::equal(got, expected, true),
        (Compare::Sorted { ascending }, Some(_)) if case.dtype.is_float() => {
            let x = operands(op, case, &Device::Cpu).map_err(text)?;
            compare::sorted(got, &x[0], *ascending)
        }
        (Compare::Sorted { .. }, Some(expected)) => compare::equal(got, expected, false),
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
            let reference = match catch_panic(|| run(case, &operands)) {
                Outcome::Computed(reference) => reference,
                // The CPU device panics in f64 as well, or only in f64 for dense operands without elements.
                Outcome::Panicked(_) if expected.is_none() => return Ok(()),
                Outcome::Panicked(_) if case.operands.iter().any(|operand| operand.dims.contains(&0)) => {
                    return expected.map_or(Ok(()), |expected| compare::equal(got, expected, true));
                }
                other => return Err(format!("the reference returned {}", other.describe())),
            };
            let numbers = compare::to_f64(&reference).map_err(text)?;
            let bound = bound.of(case, &run, &operands, &numbers).map_err(text)?;
            if let (Some(own), DType::F64) = (expected, case.dtype) {
                // The CPU device must give the same result for strided as for dense operands.
                compare::close(own, reference.dims(), case.dtype, &numbers, &bound, None)
                    .map_err(|why| format!("the CPU device with strided operands: {why}"))?;
            }
            compare::close(got, reference.dims(), case.dtype, &numbers, &bound, expected)
        }
        (Compare::Close(_), _) => {
            // Integers are compared with the CPU device on dense operands.
            let expected = catch_panic(|| {
                let dense: Vec<Tensor> = operands(op, case, &Device::Cpu)?
                    .iter()
                    .map(Tensor::force_contiguous)
                    .collect::<Result<_>>()?;
                (op.run)(case, &dense)
            });
            match expected {
                Outcome::Computed(expected) => compare::equal(got, &expected, false),
                // The CPU rejects these parameters; f64 is exact for the integers in use.
                _ => {
                    let run: &Run = op.reference.as_ref().unwrap_or(&op.run);
                    let exact = run(case, &dense_f64(op, case).map_err(text)?).map_err(text)?;
                    compare::equal_wrapped(got, &exact)
                }
            }
        }
        (_, None) => Ok(()),
    }
}

/// Returns dense copies of the operands in f64.
fn dense_f64(op: &Op, case: &Case) -> Result<Vec<Tensor>> {
    let dense = operands(op, case, &Device::Cpu)?.into_iter().zip(&case.operands).map(|(t, operand)| {
        let t = t.force_contiguous()?;
        match operand.dtype {
            None => t.to_dtype(DType::F64),
            // Indexes and masks keep their dtype.
            Some(_) => Ok(t),
        }
    });
    dense.collect()
}
