//! Computes a convolution on the host, row by row of the result.
use super::descriptor::DataType;
use super::operand::Operand;
use super::problem::{Direction, INPUT, Problem, WEIGHTS};
use crate::exec::AddressSpace;
use crate::rocblas::{Rounded, require};
use crate::runtime::{ErrorCode, HipError, Result};
use half::{bf16, f16};
use rayon::prelude::*;

/// Maximum number of multiplications of a convolution that is computed by one thread.
const SERIAL_WORK: f64 = 262_144.0;

/// Byte that overwrites a workspace: NaN in every type.
pub const WORKSPACE_FILL: u8 = 0xff;

/// A convolution with the addresses of its tensors.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the C function, for error messages.
    pub function: &'static str,
    pub problem: Problem,
    /// Input, weights, output.
    pub addresses: [usize; 3],
    pub workspace: usize,
    /// Size of the workspace that the solution uses, in bytes.
    pub workspace_size: usize,
}

/// Computes a convolution.
///
/// # Errors
/// `IllegalAddress` if a tensor or the workspace is not inside live memory of the device; then nothing is written.
///
/// # Safety
/// The ranges of `memory` must stay mapped and unreferenced during the call.
pub unsafe fn run(job: &Job, memory: &AddressSpace, threads: usize) -> Result<()> {
    // SAFETY: the caller guarantees it for every arm.
    unsafe {
        match job.problem.kind {
            DataType::F16 => run_as::<f16>(job, memory, threads),
            DataType::F32 => run_as::<f32>(job, memory, threads),
            DataType::Bf16 => run_as::<bf16>(job, memory, threads),
            DataType::Other(code) => {
                let text = format!("{}: no convolution of element type {code}", job.function);
                Err(HipError::new(ErrorCode::NotSupported, text))
            }
        }
    }
}

/// # Safety
/// The conditions of [`run`].
unsafe fn run_as<T: Rounded<f64>>(job: &Job, memory: &AddressSpace, threads: usize) -> Result<()> {
    let Job { function, problem, addresses, .. } = job;
    let direction = problem.direction;
    let operand = |index: usize| Operand {
        function,
        name: direction.names()[index],
        layout: problem.layouts[index],
        address: addresses[index],
    };
    let [one, other, target] = direction.arguments().map(operand);
    one.check::<T>(memory, false)?;
    other.check::<T>(memory, false)?;
    target.check::<T>(memory, true)?;
    if job.workspace_size > 0 {
        let what = || format!("{function}: the workspace");
        require(memory, what, job.workspace, job.workspace_size, 1, true)?;
    }
    one.check_written::<T>(memory)?;
    other.check_written::<T>(memory)?;
    if job.workspace_size > 0 {
        let place = std::ptr::with_exposed_provenance_mut::<u8>(job.workspace);
        // SAFETY: these bytes are inside live, writable memory.
        unsafe { place.write_bytes(WORKSPACE_FILL, job.workspace_size) };
        memory.note_written(job.workspace as u64, job.workspace_size as u64);
    }
    // SAFETY: all three tensors were checked.
    unsafe {
        let values = convolve(problem, &one.read::<T>(), &other.read::<T>(), threads);
        target.write::<T>(memory, &values);
    }
    Ok(())
}

/// Computes a dense result tensor from the two others, in the order of [`Direction::arguments`].
fn convolve(problem: &Problem, one: &[f64], other: &[f64], threads: usize) -> Vec<f64> {
    let target = problem.layouts[problem.direction.target()];
    let mut values = vec![0.0; target.elements()];
    let sum = |(index, sums): (usize, &mut [f64])| sum_row(problem, one, other, index, sums);
    if threads > 1 && problem.work() >= SERIAL_WORK {
        values.par_chunks_mut(target.dims[3]).enumerate().for_each(sum);
    } else {
        values.chunks_mut(target.dims[3]).enumerate().for_each(sum);
    }
    values
}

/// Computes the `index`-th row of the result with one loop nest over matching rows of the three tensors. The direction
/// fixes three of the five loops.
fn sum_row(problem: &Problem, one: &[f64], other: &[f64], index: usize, sums: &mut [f64]) {
    let Problem { direction, layouts, convolution, axes: [rows, _], .. } = problem;
    let [filters, channels, ..] = layouts[WEIGHTS].dims;
    let filters = filters / convolution.groups;
    let [_, middle, last, _] = layouts[direction.target()].dims;
    let [a, b, c] = [index / (middle * last), index / last % middle, index % last];
    let only = |value: usize| value..value + 1;
    let (all_taps, all_images) = (0..rows.filter, 0..layouts[INPUT].dims[0]);
    // Images, filters, channels of the filter's group, output rows, filter rows.
    let (images, of_filters, of_channels, outputs, taps) = match direction {
        Direction::Forward => (only(a), only(b), 0..channels, only(c), all_taps),
        Direction::BackwardData => {
            let first = b / channels * filters;
            (only(a), first..first + filters, only(b % channels), rows.outputs_around(c), all_taps)
        }
        Direction::BackwardWeights => (all_images, only(a), only(b), 0..rows.output, only(c)),
    };
    for image in images {
        for filter in of_filters.clone() {
            for channel in of_channels.clone() {
                for output in outputs.clone() {
                    for tap in taps.clone() {
                        let Some(input) = rows.input_at(output, tap) else { continue };
                        if *direction == Direction::BackwardData && input != c {
                            continue;
                        }
                        let row = |tensor, values| {
                            let place = match tensor {
                                INPUT => [image, filter / filters * channels + channel, input],
                                WEIGHTS => [filter, channel, tap],
                                _ => [image, filter, output],
                            };
                            row(problem, tensor, values, place)
                        };
                        let [first, second, _] = direction.arguments();
                        add_row(problem, row(first, one), row(second, other), sums);
                    }
                }
            }
        }
    }
}

/// Adds the contribution of two rows to a row of the result.
fn add_row(problem: &Problem, one: &[f64], other: &[f64], sums: &mut [f64]) {
    let [_, columns] = &problem.axes;
    for column in 0..columns.filter {
        let (outputs, first) = columns.outputs(column);
        let inputs = other.iter().skip(first).step_by(columns.stride);
        match problem.direction {
            Direction::Forward => {
                sums[outputs].iter_mut().zip(inputs).for_each(|(sum, value)| *sum += one[column] * value);
            }
            Direction::BackwardData => {
                let sums = sums.iter_mut().skip(first).step_by(columns.stride);
                one[outputs].iter().zip(sums).for_each(|(value, sum)| *sum += other[column] * value);
            }
            Direction::BackwardWeights => {
                sums[column] += one[outputs].iter().zip(inputs).map(|(one, other)| one * other).sum::<f64>();
            }
        }
    }
}

/// Returns a row of a dense tensor.
fn row<'a>(
    problem: &Problem,
    tensor: usize,
    values: &'a [f64],
    [image, channel, row]: [usize; 3],
) -> &'a [f64] {
    let [_, channels, rows, columns] = problem.layouts[tensor].dims;
    &values[((image * channels + channel) * rows + row) * columns..][..columns]
}
