//! Computes a matrix product on the host: f64, f32 and i32 in place, f16, bf16 and i8 through widened copies, so that a
//! result is rounded once.
use super::element::{Accumulator, Element, F8, F8Fnuz, Input, Output, Rounded};
use super::problem::{Matrices, Place, Problem, Reads};
use super::types::{DataType, Operation};
use crate::exec::AddressSpace;
use crate::runtime::{ErrorCode, HipError, Result};
use half::{bf16, f16};
use rayon::prelude::*;

/// Maximum number of multiplications of a product that is computed by one thread.
const SERIAL_WORK: usize = 1 << 18;

/// Computes a problem that passed [`Problem::check`].
///
/// # Errors
/// `IllegalAddress` if a matrix is not inside live memory of the device; then nothing is written.
///
/// # Safety
/// The ranges of `memory` must stay mapped and unreferenced during the call.
pub unsafe fn run(problem: &Problem, memory: &AddressSpace, threads: usize) -> Result<()> {
    use DataType::{Bf16, F16, F32, F64, I8, I32};
    // SAFETY: the caller guarantees it for every arm.
    unsafe {
        match (problem.types.input, problem.types.output) {
            (F64, F64) => run_as::<f64, f64, f64>(problem, memory, threads),
            (F32, F32) => run_as::<f32, f32, f32>(problem, memory, threads),
            (F16, F16) => run_as::<f16, f16, f32>(problem, memory, threads),
            (F16, F32) => run_as::<f16, f32, f32>(problem, memory, threads),
            (Bf16, Bf16) => run_as::<bf16, bf16, f32>(problem, memory, threads),
            (Bf16, F32) => run_as::<bf16, f32, f32>(problem, memory, threads),
            (I8, I32) => run_as::<i8, i32, i32>(problem, memory, threads),
            (DataType::F8, F16) => run_as::<F8, f16, f32>(problem, memory, threads),
            (DataType::F8, Bf16) => run_as::<F8, bf16, f32>(problem, memory, threads),
            (DataType::F8, F32) => run_as::<F8, f32, f32>(problem, memory, threads),
            (DataType::F8Fnuz, F16) => run_as::<F8Fnuz, f16, f32>(problem, memory, threads),
            (DataType::F8Fnuz, Bf16) => run_as::<F8Fnuz, bf16, f32>(problem, memory, threads),
            (DataType::F8Fnuz, F32) => run_as::<F8Fnuz, f32, f32>(problem, memory, threads),
            (input, output) => {
                let text = format!("{}: no product of {input:?} to {output:?}", problem.function);
                Err(HipError::new(ErrorCode::NotSupported, text))
            }
        }
    }
}

/// # Safety
/// The conditions of [`run`].
unsafe fn run_as<In: Element<W>, Out: Rounded<W>, W: Accumulator>(
    problem: &Problem,
    memory: &AddressSpace,
    threads: usize,
) -> Result<()> {
    let alpha = W::from_scalar(problem.scalar(memory, problem.alpha)?);
    let beta = W::from_scalar(problem.scalar(memory, problem.beta)?);
    let reads = Reads { inputs: problem.k > 0 && alpha != W::ZERO, c: beta != W::ZERO };
    let bias = problem.bias(memory)?.map(|bias| bias.into_iter().map(W::from_scalar).collect());
    let batch = problem.matrices(memory, reads)?;

    // A matrix that is shared by all products is widened once.
    let shared = |place: Place| batch.len() > 1 && matches!(place, Place::Strided { stride: 0, .. });
    let mut product = Product::<In, W> {
        problem,
        alpha,
        beta,
        reads,
        bias,
        shared_a: None,
        shared_b: None,
        threads: 1,
        input: std::marker::PhantomData,
    };
    if let (true, false, Some(first)) = (reads.inputs, In::IS_ACCUMULATOR, batch.first()) {
        // SAFETY: both matrices were checked to be inside live memory.
        unsafe {
            product.shared_a = shared(problem.a.place).then(|| product.widened_a(first.a));
            product.shared_b = shared(problem.b.place).then(|| product.widened_b(first.b));
        }
    }

    let size = |n: i32| n as usize;
    let work = size(problem.m).saturating_mul(size(problem.n)).saturating_mul(size(problem.k).max(1));
    let threads = if work.saturating_mul(batch.len()) < SERIAL_WORK { 1 } else { threads };
    if threads > 1 && batch.len() >= threads && outputs_are_apart(problem) {
        // SAFETY: every matrix was checked, and no two products write the same element.
        batch.par_iter().for_each(|matrices| unsafe { product.run::<Out>(*matrices) });
    } else {
        product.threads = threads;
        // SAFETY: every matrix was checked.
        batch.iter().for_each(|matrices| unsafe { product.run::<Out>(*matrices) });
    }
    Ok(())
}

/// Returns true if the strides show that no two products of the batch write the same element.
fn outputs_are_apart(problem: &Problem) -> bool {
    match problem.d.place {
        Place::Strided { stride, .. } => stride.unsigned_abs() >= problem.n as u64 * problem.d.ld as u64,
        Place::Pointers { .. } => false,
    }
}

/// The data shared by all products of a batch.
struct Product<'a, In, W> {
    problem: &'a Problem,
    alpha: W,
    beta: W,
    reads: Reads,
    bias: Option<Vec<W>>,
    shared_a: Option<Vec<W>>,
    shared_b: Option<Vec<W>>,
    /// Number of threads for one product.
    threads: usize,
    input: std::marker::PhantomData<In>,
}

impl<In: Element<W>, W: Accumulator> Product<'_, In, W> {
    /// Computes one product.
    ///
    /// # Safety
    /// The matrices must be live for their sizes, and D writable and disjoint from A and B.
    unsafe fn run<Out: Rounded<W>>(&self, at: Matrices) {
        let problem = self.problem;
        let (rows, columns) = (problem.m as usize, problem.n as usize);
        let d = Output {
            data: std::ptr::with_exposed_provenance_mut::<Out>(at.d),
            rows,
            columns,
            ld: problem.d.ld as usize,
        };
        if Out::IS_ACCUMULATOR {
            let d = Output { data: d.data.cast::<W>(), rows, columns, ld: d.ld };
            // SAFETY: the caller guarantees the matrices, which include `d`.
            unsafe {
                if self.reads.c && at.c != at.d {
                    self.load_c::<Out>(at.c, d);
                }
                self.multiply_into(d, at);
                self.apply_epilogue(d);
            }
        } else {
            let mut sums = vec![W::ZERO; rows * columns];
            let wide = Output { data: sums.as_mut_ptr(), rows, columns, ld: rows };
            // SAFETY: the caller guarantees the matrices; `sums` has as many elements as `wide`.
            unsafe {
                if self.reads.c {
                    self.load_c::<Out>(at.c, wide);
                }
                self.multiply_into(wide, at);
                self.apply_epilogue(wide);
            }
            for (column, sums) in sums.chunks_exact(rows).enumerate() {
                for (row, sum) in sums.iter().enumerate() {
                    // SAFETY: the caller guarantees the matrix; row and column are inside it.
                    unsafe { d.data.add(column * d.ld + row).write(Out::narrow(*sum)) };
                }
            }
        }
    }

    /// Copies C to the location of the result.
    unsafe fn load_c<Out: Element<W>>(&self, c: usize, into: Output<W>) {
        let c = std::ptr::with_exposed_provenance::<Out>(c);
        for column in 0..into.columns {
            for row in 0..into.rows {
                // SAFETY: the caller guarantees both matrices.
                unsafe {
                    let value = c.add(column * self.problem.c.ld as usize + row).read().widen();
                    into.data.add(column * into.ld + row).write(value);
                }
            }
        }
    }

    /// Adds the bias, if any, to every column, and applies the activation.
    unsafe fn apply_epilogue(&self, to: Output<W>) {
        if self.bias.is_none() && !self.problem.gelu {
            return;
        }
        for column in 0..to.columns {
            for row in 0..to.rows {
                // SAFETY: the caller guarantees the matrix, which has as many rows as the bias has elements.
                unsafe {
                    let place = to.data.add(column * to.ld + row);
                    let sum = match &self.bias {
                        Some(bias) => place.read().add(bias[row]),
                        None => place.read(),
                    };
                    place.write(if self.problem.gelu { sum.gelu() } else { sum });
                }
            }
        }
    }

    /// Computes dst = beta * dst + alpha * op(A) * op(B). Does not read dst if beta is zero, nor A and B if alpha is zero.
    unsafe fn multiply_into(&self, dst: Output<W>, at: Matrices) {
        if !self.reads.inputs {
            for column in 0..dst.columns {
                for row in 0..dst.rows {
                    // SAFETY: the caller guarantees dst.
                    unsafe {
                        let place = dst.data.add(column * dst.ld + row);
                        let value = if self.reads.c { place.read().multiply(self.beta) } else { W::ZERO };
                        place.write(value);
                    }
                }
            }
            return;
        }
        let problem = self.problem;
        // SAFETY: the caller guarantees A and B; widened copies have the sizes of the originals.
        unsafe {
            let own_a = (!In::IS_ACCUMULATOR && self.shared_a.is_none()).then(|| self.widened_a(at.a));
            let own_b = (!In::IS_ACCUMULATOR && self.shared_b.is_none()).then(|| self.widened_b(at.b));
            let a = input(&own_a, &self.shared_a, at.a, problem.op_a, problem.stored_a().0, problem.a.ld);
            let b = input(&own_b, &self.shared_b, at.b, problem.op_b, problem.stored_b().0, problem.b.ld);
            W::gemm(dst, a, b, self.alpha, self.beta, problem.k as usize, self.threads);
        }
    }

    unsafe fn widened_a(&self, address: usize) -> Vec<W> {
        // SAFETY: the caller guarantees the matrix.
        unsafe { widened::<In, W>(address, self.problem.stored_a(), self.problem.a.ld as usize) }
    }

    unsafe fn widened_b(&self, address: usize) -> Vec<W> {
        // SAFETY: the caller guarantees the matrix.
        unsafe { widened::<In, W>(address, self.problem.stored_b(), self.problem.b.ld as usize) }
    }
}

/// Returns a dense copy of a matrix in the compute type.
///
/// # Safety
/// `rows` x `columns` elements with that leading dimension must be live at `address`.
unsafe fn widened<In: Element<W>, W: Accumulator>(
    address: usize,
    (rows, columns): (usize, usize),
    ld: usize,
) -> Vec<W> {
    let source = std::ptr::with_exposed_provenance::<In>(address);
    let mut copy = Vec::with_capacity(rows * columns);
    for column in 0..columns {
        // SAFETY: the caller guarantees the matrix.
        copy.extend((0..rows).map(|row| unsafe { source.add(column * ld + row).read() }.widen()));
    }
    copy
}

/// Returns an operand of the product: its widened copy, the batch's shared copy, or the matrix itself.
fn input<W>(
    own: &Option<Vec<W>>,
    shared: &Option<Vec<W>>,
    address: usize,
    operation: Operation,
    rows: usize,
    ld: i32,
) -> Input<W> {
    let (data, ld) = match own.as_ref().or(shared.as_ref()) {
        Some(copy) => (copy.as_ptr(), rows),
        None => (std::ptr::with_exposed_provenance::<W>(address), ld as usize),
    };
    match operation {
        Operation::None => Input { data, row_step: 1, column_step: ld },
        Operation::Transpose => Input { data, row_step: ld, column_step: 1 },
    }
}
