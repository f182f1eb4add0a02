//! Runs a convolution on the host: a loop for each direction, over rows of what is computed.
use super::descriptor::DataType;
use super::operand::Operand;
use super::problem::{Direction, INPUT, OUTPUT, Problem, WEIGHTS};
use crate::exec::AddressSpace;
use crate::rocblas::{Rounded, require};
use crate::runtime::{ErrorCode, HipError, Result};
use half::{bf16, f16};
use rayon::prelude::*;

/// Multiplications below which a convolution is not worth a second thread.
const SERIAL_WORK: f64 = 262_144.0;

/// What a workspace holds after it was used: bytes that are NaN in every type.
pub const WORKSPACE_FILL: u8 = 0xff;

/// A convolution with the addresses of its tensors.
#[derive(Clone, Debug)]
pub struct Job {
    /// The C function, for messages.
    pub function: &'static str,
    pub problem: Problem,
    /// Input, weights, output.
    pub addresses: [usize; 3],
    pub workspace: usize,
    /// Bytes of it that the solution uses.
    pub workspace_size: usize,
}

/// Computes a convolution.
///
/// # Errors
/// `IllegalAddress` if a tensor or the workspace does not lie in live memory of the device; nothing is written then.
///
/// # Safety
/// The ranges of `memory` must stay mapped during the call, and nobody may hold references into them.
pub unsafe fn run(job: &Job, memory: &AddressSpace, threads: usize) -> Result<()> {
    // SAFETY: as the caller promises, in every arm.
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
/// As [`run`].
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
        // SAFETY: these bytes lie in live, writable memory.
        unsafe { place.write_bytes(WORKSPACE_FILL, job.workspace_size) };
        memory.note_written(job.workspace as u64, job.workspace_size as u64);
    }
    // SAFETY: all three were checked.
    unsafe {
        let values = convolve(problem, &one.read::<T>(), &other.read::<T>(), threads);
        target.write::<T>(memory, &values);
    }
    Ok(())
}

/// The tensor that is computed, dense, from the two others in the order of [`Direction::arguments`].
fn convolve(problem: &Problem, one: &[f64], other: &[f64], threads: usize) -> Vec<f64> {
    let target = problem.layouts[problem.direction.target()];
    let row = target.dims[3];
    let mut values = vec![0.0; target.elements()];
    let sum = |(index, sums): (usize, &mut [f64])| match problem.direction {
        Direction::Forward => forward(problem, one, other, index, sums),
        Direction::BackwardData => backward_data(problem, one, other, index, sums),
        Direction::BackwardWeights => backward_weights(problem, one, other, index, sums),
    };
    if threads > 1 && problem.work() >= SERIAL_WORK {
        values.par_chunks_mut(row).enumerate().for_each(sum);
    } else {
        values.chunks_mut(row).enumerate().for_each(sum);
    }
    values
}

/// The image, channel and row of a tensor that the `index`-th of all rows is.
fn row_of(problem: &Problem, tensor: usize, index: usize) -> [usize; 3] {
    let [_, channels, rows, _] = problem.layouts[tensor].dims;
    [index / (channels * rows), index / rows % channels, index % rows]
}

/// A row of a dense tensor.
fn row<'a>(
    problem: &Problem,
    tensor: usize,
    values: &'a [f64],
    [image, channel, row]: [usize; 3],
) -> &'a [f64] {
    let [_, channels, rows, columns] = problem.layouts[tensor].dims;
    &values[((image * channels + channel) * rows + row) * columns..][..columns]
}

/// Channels of the input, and filters, of one group.
fn group_sizes(problem: &Problem) -> [usize; 2] {
    [problem.layouts[WEIGHTS].dims[1], problem.layouts[WEIGHTS].dims[0] / problem.convolution.groups]
}

fn forward(problem: &Problem, weights: &[f64], input: &[f64], index: usize, sums: &mut [f64]) {
    let [image, filter, output_row] = row_of(problem, OUTPUT, index);
    let [channels, filters] = group_sizes(problem);
    let [rows, columns] = &problem.axes;
    for channel in 0..channels {
        for filter_row in 0..rows.filter {
            let Some(input_row) = rows.met(output_row, filter_row) else { continue };
            let from = [image, filter / filters * channels + channel, input_row];
            let from = row(problem, INPUT, input, from);
            for (column, weight) in
                row(problem, WEIGHTS, weights, [filter, channel, filter_row]).iter().enumerate()
            {
                let (outputs, first) = columns.outputs(column);
                let met = from.iter().skip(first).step_by(columns.stride);
                sums[outputs].iter_mut().zip(met).for_each(|(sum, value)| *sum += weight * value);
            }
        }
    }
}

fn backward_data(problem: &Problem, output: &[f64], weights: &[f64], index: usize, sums: &mut [f64]) {
    let [image, channel, input_row] = row_of(problem, INPUT, index);
    let [channels, filters] = group_sizes(problem);
    let [rows, columns] = &problem.axes;
    let group = channel / channels;
    for filter in group * filters..(group + 1) * filters {
        for filter_row in 0..rows.filter {
            let Some(output_row) = rows.output_at(input_row, filter_row) else { continue };
            let from = row(problem, OUTPUT, output, [image, filter, output_row]);
            let place = [filter, channel % channels, filter_row];
            for (column, weight) in row(problem, WEIGHTS, weights, place).iter().enumerate() {
                let (outputs, first) = columns.outputs(column);
                let met = sums.iter_mut().skip(first).step_by(columns.stride);
                from[outputs].iter().zip(met).for_each(|(value, sum)| *sum += weight * value);
            }
        }
    }
}

fn backward_weights(problem: &Problem, output: &[f64], input: &[f64], index: usize, sums: &mut [f64]) {
    let [filter, channel, filter_row] = row_of(problem, WEIGHTS, index);
    let [channels, filters] = group_sizes(problem);
    let [rows, columns] = &problem.axes;
    for image in 0..problem.layouts[INPUT].dims[0] {
        for output_row in 0..rows.output {
            let Some(input_row) = rows.met(output_row, filter_row) else { continue };
            let gradient = row(problem, OUTPUT, output, [image, filter, output_row]);
            let from = [image, filter / filters * channels + channel, input_row];
            let from = row(problem, INPUT, input, from);
            for (column, sum) in sums.iter_mut().enumerate() {
                let (outputs, first) = columns.outputs(column);
                let met = from.iter().skip(first).step_by(columns.stride);
                *sum += gradient[outputs].iter().zip(met).map(|(one, other)| one * other).sum::<f64>();
            }
        }
    }
}
