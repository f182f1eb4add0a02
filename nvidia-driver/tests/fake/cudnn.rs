//! A fake libcudnn that logs the calls and computes convolutions of f32 and f64 by their definition. It fails for batches
//! of 98 and 99.
#![allow(non_snake_case)]
#[macro_use]
mod log;

use std::ffi::{c_char, c_int, c_void};
use std::slice::from_raw_parts;

use log::log;

const SUBLIBRARY_LOADING_FAILED: u32 = 1008;
const BAD_PARAM: u32 = 2000;
const SIZE_INSUFFICIENT: u32 = 2006;
const NOT_SUPPORTED: u32 = 3000;

#[derive(Default)]
pub struct Handle {
    stream: usize,
}

/// A tensor or a filter.
#[derive(Default)]
pub struct Operand {
    is_filter: bool,
    data_type: u32,
    sizes: Vec<c_int>,
    strides: Vec<c_int>,
}

impl Operand {
    fn offset(&self, position: &[c_int]) -> usize {
        position.iter().zip(&self.strides).map(|(at, stride)| (at * stride) as usize).sum()
    }

    /// Returns every position; the last dimension varies fastest.
    fn positions(&self) -> impl Iterator<Item = Vec<c_int>> + '_ {
        (0..self.sizes.iter().product()).map(|mut number| {
            let mut position = vec![0; self.sizes.len()];
            for (at, size) in position.iter_mut().zip(&self.sizes).rev() {
                (*at, number) = (number % size, number / size);
            }
            position
        })
    }
}

#[derive(Default)]
pub struct Convolution {
    pads: Vec<c_int>,
    strides: Vec<c_int>,
    dilations: Vec<c_int>,
    compute: u32,
    groups: c_int,
    math: u32,
}

#[repr(C)]
pub struct Suggestion {
    algorithm: u32,
    status: u32,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

succeed! {
    fn cudnnCreate(to: *mut *mut Handle) { *to = Box::into_raw(Box::default()); }
    fn cudnnDestroy(handle: *mut Handle) { drop(Box::from_raw(handle)); }
    fn cudnnSetStream(handle: *mut Handle, stream: usize) { (*handle).stream = stream; }
    fn cudnnGetStream(handle: *mut Handle, to: *mut usize) { *to = (*handle).stream; }
    fn cudnnGetProperty(number: u32, to: *mut c_int) { *to = [9, 12, 3][number as usize]; }

    fn cudnnCreateTensorDescriptor(to: *mut *mut Operand) { *to = Box::into_raw(Box::default()); }
    fn cudnnDestroyTensorDescriptor(operand: *mut Operand) {
        drop(Box::from_raw(operand));
        log("destroyed tensor".to_owned());
    }
    fn cudnnSetTensorNdDescriptor(
        operand: *mut Operand, data_type: u32, rank: c_int, sizes: *const c_int, strides: *const c_int
    ) {
        let [sizes, strides] = [sizes, strides].map(|list| from_raw_parts(list, rank as usize).to_vec());
        log(format!("tensor {data_type} {sizes:?} by {strides:?}"));
        *operand = Operand { is_filter: false, data_type, sizes, strides };
    }
    fn cudnnCreateFilterDescriptor(to: *mut *mut Operand) { *to = Box::into_raw(Box::default()); }
    fn cudnnDestroyFilterDescriptor(operand: *mut Operand) {
        drop(Box::from_raw(operand));
        log("destroyed filter".to_owned());
    }
    fn cudnnSetFilterNdDescriptor(
        operand: *mut Operand, data_type: u32, format: u32, rank: c_int, sizes: *const c_int
    ) {
        let sizes = from_raw_parts(sizes, rank as usize).to_vec();
        log(format!("filter {data_type} format {format} {sizes:?}"));
        let strides = (1..=sizes.len()).map(|from| sizes[from..].iter().product()).collect();
        *operand = Operand { is_filter: true, data_type, sizes, strides };
    }
    fn cudnnCreateConvolutionDescriptor(to: *mut *mut Convolution) { *to = Box::into_raw(Box::default()); }
    fn cudnnDestroyConvolutionDescriptor(convolution: *mut Convolution) {
        drop(Box::from_raw(convolution));
        log("destroyed convolution".to_owned());
    }
    fn cudnnSetConvolutionNdDescriptor(
        convolution: *mut Convolution, rank: c_int, pads: *const c_int, strides: *const c_int,
        dilations: *const c_int, mode: u32, compute: u32
    ) {
        let [pads, strides, dilations] =
            [pads, strides, dilations].map(|list| from_raw_parts(list, rank as usize).to_vec());
        log(format!("convolution {pads:?} {strides:?} {dilations:?} mode {mode} in {compute}"));
        *convolution = Convolution { pads, strides, dilations, compute, groups: 1, math: 0 };
    }
    fn cudnnSetConvolutionGroupCount(convolution: *mut Convolution, groups: c_int) { (*convolution).groups = groups; }
    fn cudnnSetConvolutionMathType(convolution: *mut Convolution, math: u32) { (*convolution).math = math; }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Data,
    Weights,
}
use Direction::{Data, Forward, Weights};

/// Returns cuDNN's three operands in the order input, weights, output.
fn in_order<T: Copy>(direction: Direction, [a, b, c]: [T; 3]) -> [T; 3] {
    match direction {
        Forward => [a, b, c],
        Data => [c, a, b],
        Weights => [a, c, b],
    }
}

fn check(direction: Direction, handle: *mut Handle, operands: [&Operand; 3]) -> u32 {
    let [x, w, y] = in_order(direction, operands);
    match handle.is_null() || [x, w, y].map(|operand| operand.is_filter) != [false, true, false] {
        true => BAD_PARAM,
        false if x.sizes[0] == 98 => SUBLIBRARY_LOADING_FAILED,
        false => 0,
    }
}

fn memory_of(algorithm: u32) -> usize {
    [64, 512, 0, 0, 0, 128][algorithm as usize]
}

fn suggest(
    direction: Direction, name: &str, handle: *mut Handle, operands: [&Operand; 3], convolution: &Convolution,
    most: c_int, count: *mut c_int, to: *mut Suggestion,
) -> u32 {
    let math = convolution.math;
    log(format!("suggest {name} math {math} groups {}", convolution.groups));
    // One algorithm that fails, one with an unknown number, and three that work.
    let found = [(4, NOT_SUPPORTED, math), (40, 0, math), (1, 0, math), (0, 0, 1), (5, 0, 0)];
    let found = &found[..found.len().min(most as usize)];
    for (at, (algorithm, status, math)) in found.iter().copied().enumerate() {
        let memory = if algorithm == 40 { 0 } else { memory_of(algorithm) };
        let suggestion =
            Suggestion { algorithm, status, time: -1.0, memory, determinism: 1, math, reserved: [0; 3] };
        unsafe { to.add(at).write(suggestion) };
    }
    unsafe { *count = found.len() as c_int };
    check(direction, handle, operands)
}

fn read(data_type: u32, from: *const c_void, at: usize) -> f64 {
    unsafe { if data_type == 1 { from.cast::<f64>().add(at).read() } else { from.cast::<f32>().add(at).read().into() } }
}

fn write(data_type: u32, to: *const c_void, at: usize, value: f64) {
    unsafe {
        match data_type {
            1 => to.cast_mut().cast::<f64>().add(at).write(value),
            _ => to.cast_mut().cast::<f32>().add(at).write(value as f32),
        }
    }
}

/// Adds the product of every pair of matching elements to the operand that is computed.
fn compute(
    direction: Direction, factors: [f64; 2], convolution: &Convolution, [x, w, y]: [&Operand; 3],
    data: [*const c_void; 3],
) {
    let target = match direction {
        Data => 0,
        Weights => 1,
        Forward => 2,
    };
    let operand = [x, w, y][target];
    let mut sums = vec![0f64; operand.positions().map(|at| operand.offset(&at)).max().unwrap_or(0) + 1];
    for out in y.positions() {
        for tap in w.positions().filter(|tap| tap[0] == out[1]) {
            let group = out[1] / (y.sizes[1] / convolution.groups);
            let mut position = vec![out[0], group * w.sizes[1] + tap[1]];
            for axis in 0..convolution.pads.len() {
                let step = out[axis + 2] * convolution.strides[axis] - convolution.pads[axis];
                position.push(step + tap[axis + 2] * convolution.dilations[axis]);
            }
            if position.iter().zip(&x.sizes).any(|(at, size)| !(0..*size).contains(at)) {
                continue;
            }
            let offsets = [x.offset(&position), w.offset(&tap), y.offset(&out)];
            let product: f64 = (0..3)
                .filter(|side| *side != target)
                .map(|side| read(operand.data_type, data[side], offsets[side]))
                .product();
            sums[offsets[target]] += product;
        }
    }
    let [alpha, beta] = factors;
    for at in operand.positions().map(|at| operand.offset(&at)) {
        let old = if beta == 0.0 { 0.0 } else { beta * read(operand.data_type, data[target], at) };
        write(operand.data_type, data[target], at, alpha * sums[at] + old);
    }
}

macro_rules! directions {
    ($($direction:ident: $suggest:ident $workspace:ident $run:ident;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $suggest(
            handle: *mut Handle, a: &Operand, b: &Operand, convolution: &Convolution, c: &Operand, most: c_int,
            count: *mut c_int, to: *mut Suggestion,
        ) -> u32 {
            suggest($direction, stringify!($direction), handle, [a, b, c], convolution, most, count, to)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $workspace(
            handle: *mut Handle, a: &Operand, b: &Operand, _: &Convolution, c: &Operand, algorithm: u32,
            to: *mut usize,
        ) -> u32 {
            unsafe { *to = memory_of(algorithm) };
            check($direction, handle, [a, b, c])
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $run(
            handle: *mut Handle, alpha: *const c_void, a: &Operand, a_data: *const c_void, b: &Operand,
            b_data: *const c_void, convolution: &Convolution, algorithm: u32, workspace: usize, size: usize,
            beta: *const c_void, c: &Operand, c_data: *const c_void,
        ) -> u32 {
            match check($direction, handle, [a, b, c]) {
                0 if a.sizes[0] == 99 => return NOT_SUPPORTED,
                0 if size < memory_of(algorithm) => return SIZE_INSUFFICIENT,
                0 => {}
                status => return status,
            }
            let (Convolution { math, groups, .. }, stream) = (convolution, unsafe { (*handle).stream });
            let name = stringify!($direction);
            log(format!("{name} by {algorithm} math {math} groups {groups} in {workspace}+{size} on {stream}"));
            if a.data_type < 2 {
                let factors = [alpha, beta].map(|factor| read(convolution.compute, factor, 0));
                let operands = in_order($direction, [a, b, c]);
                compute($direction, factors, convolution, operands, in_order($direction, [a_data, b_data, c_data]));
            }
            0
        }
    )* };
}

directions! {
    Forward: cudnnGetConvolutionForwardAlgorithm_v7 cudnnGetConvolutionForwardWorkspaceSize cudnnConvolutionForward;
    Data: cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnGetConvolutionBackwardDataWorkspaceSize
        cudnnConvolutionBackwardData;
    Weights: cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnGetConvolutionBackwardFilterWorkspaceSize
        cudnnConvolutionBackwardFilter;
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetErrorString(status: u32) -> *const c_char {
    let text = match status {
        SUBLIBRARY_LOADING_FAILED => c"CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",
        SIZE_INSUFFICIENT => c"CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        _ => c"CUDNN_STATUS_BAD_PARAM",
    };
    text.as_ptr()
}
