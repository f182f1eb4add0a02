//! Convolutions with MIOpen's functions, compared with the definition.
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use rocm_loader::{hip, last_error, miopen};
use rocm_rs::miopen::ffi::{
    miopenConvSolution_t, miopenConvolutionDescriptor_t, miopenHandle_t, miopenTensorDescriptor_t,
};

pub type Tensor = miopenTensorDescriptor_t;
pub type Convolution = miopenConvolutionDescriptor_t;

/// MIOpen's functions for a direction.
pub struct Direction {
    /// Positions of input, weights and output in MIOpen's parameters.
    pub order: [usize; 3],
    pub count: unsafe extern "C" fn(miopenHandle_t, Tensor, Tensor, Convolution, Tensor, *mut usize) -> u32,
    pub solutions: unsafe extern "C" fn(
        miopenHandle_t,
        Tensor,
        Tensor,
        Convolution,
        Tensor,
        usize,
        *mut usize,
        *mut miopenConvSolution_t,
    ) -> u32,
    pub workspace:
        unsafe extern "C" fn(miopenHandle_t, Tensor, Tensor, Convolution, Tensor, u64, *mut usize) -> u32,
    pub compile: unsafe extern "C" fn(miopenHandle_t, Tensor, Tensor, Convolution, Tensor, u64) -> u32,
    pub immediate: unsafe extern "C" fn(
        miopenHandle_t,
        Tensor,
        *const c_void,
        Tensor,
        *const c_void,
        Convolution,
        Tensor,
        *mut c_void,
        *mut c_void,
        usize,
        u64,
    ) -> u32,
}

pub const DIRECTIONS: [Direction; 3] = [
    Direction {
        order: [1, 0, 2],
        count: miopen::miopenConvolutionForwardGetSolutionCount,
        solutions: miopen::miopenConvolutionForwardGetSolution,
        workspace: miopen::miopenConvolutionForwardGetSolutionWorkspaceSize,
        compile: miopen::miopenConvolutionForwardCompileSolution,
        immediate: miopen::miopenConvolutionForwardImmediate,
    },
    Direction {
        order: [2, 1, 0],
        count: miopen::miopenConvolutionBackwardDataGetSolutionCount,
        solutions: miopen::miopenConvolutionBackwardDataGetSolution,
        workspace: miopen::miopenConvolutionBackwardDataGetSolutionWorkspaceSize,
        compile: miopen::miopenConvolutionBackwardDataCompileSolution,
        immediate: miopen::miopenConvolutionBackwardDataImmediate,
    },
    Direction {
        order: [1, 2, 0],
        count: miopen::miopenConvolutionBackwardWeightsGetSolutionCount,
        solutions: miopen::miopenConvolutionBackwardWeightsGetSolution,
        workspace: miopen::miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize,
        compile: miopen::miopenConvolutionBackwardWeightsCompileSolution,
        immediate: miopen::miopenConvolutionBackwardWeightsImmediate,
    },
];
pub const FORWARD: &Direction = &DIRECTIONS[0];

pub fn handle() -> miopenHandle_t {
    let mut handle = null_mut();
    // SAFETY: the handle is written to a live variable.
    assert_eq!(unsafe { miopen::miopenCreate(&mut handle) }, 0, "{:?}", last_error());
    handle
}

pub fn tensor() -> Tensor {
    let mut tensor = null_mut();
    // SAFETY: the descriptor is written to a live variable.
    assert_eq!(unsafe { miopen::miopenCreateTensorDescriptor(&mut tensor) }, 0);
    tensor
}

/// Sets the descriptor of a packed tensor.
pub fn set(tensor: Tensor, data_type: u32, sizes: &[c_int]) -> u32 {
    // SAFETY: a live descriptor, and a list of the given length.
    unsafe {
        miopen::miopenSetTensorDescriptor(
            tensor,
            data_type,
            sizes.len() as c_int,
            sizes.as_ptr(),
            std::ptr::null(),
        )
    }
}

/// A handle and the descriptors of a convolution.
pub struct Case {
    pub handle: miopenHandle_t,
    /// Input, weights, output.
    pub tensors: [Tensor; 3],
    pub convolution: Convolution,
}

impl Case {
    pub fn of(data_type: u32, sizes: [&[c_int]; 3]) -> Self {
        let tensors = sizes.map(|sizes| {
            let tensor = tensor();
            assert_eq!(set(tensor, data_type, sizes), 0, "{:?}", last_error());
            tensor
        });
        let mut convolution = null_mut();
        // SAFETY: the descriptor is written to a live variable.
        assert_eq!(unsafe { miopen::miopenCreateConvolutionDescriptor(&mut convolution) }, 0);
        Self { handle: handle(), tensors, convolution }
    }

    /// Returns three values in the order of a direction's parameters.
    pub fn in_order<T: Copy>(direction: &Direction, things: [T; 3]) -> [T; 3] {
        let mut ordered = things;
        for (thing, at) in things.into_iter().zip(direction.order) {
            ordered[at] = thing;
        }
        ordered
    }

    pub fn count(&self, direction: &Direction) -> (u32, usize) {
        let ([a, b, c], mut count) = (Self::in_order(direction, self.tensors), 0);
        // SAFETY: descriptors; the number is written to a live variable.
        (unsafe { (direction.count)(self.handle, a, b, self.convolution, c, &mut count) }, count)
    }

    pub fn solutions(&self, direction: &Direction, most: usize) -> Vec<miopenConvSolution_t> {
        let none = miopenConvSolution_t { time: 0.0, workspace_size: 0, solution_id: 0, algorithm: 0 };
        let ([a, b, c], mut found, mut count) =
            (Self::in_order(direction, self.tensors), vec![none; most], 0);
        // SAFETY: descriptors, and the array holds as many results as requested.
        let status = unsafe {
            let to = found.as_mut_ptr();
            (direction.solutions)(self.handle, a, b, self.convolution, c, most, &mut count, to)
        };
        assert_eq!(status, 0, "{:?}", last_error());
        found.truncate(count);
        found
    }

    pub fn compile(&self, direction: &Direction, id: u64) -> u32 {
        let [a, b, c] = Self::in_order(direction, self.tensors);
        // SAFETY: descriptors.
        unsafe { (direction.compile)(self.handle, a, b, self.convolution, c, id) }
    }

    /// Runs a solution. `data` has the addresses of input, weights and output; `size` is the workspace's.
    pub fn run(
        &self,
        direction: &Direction,
        data: [*mut c_void; 3],
        solution: &miopenConvSolution_t,
        size: usize,
    ) -> u32 {
        let [a, b, c] = Self::in_order(direction, self.tensors);
        let [a_data, b_data, c_data] = Self::in_order(direction, data);
        let (conv, id, mut workspace) = (self.convolution, solution.solution_id, null_mut());
        // SAFETY: live descriptors, tensors of their sizes, and a workspace of the given size.
        unsafe {
            assert_eq!(hip::hipMalloc(&mut workspace, size), 0);
            let status = (direction.immediate)(
                self.handle,
                a,
                a_data,
                b,
                b_data,
                conv,
                c,
                c_data,
                workspace,
                size,
                id,
            );
            assert_eq!((hip::hipDeviceSynchronize(), hip::hipFree(workspace)), (0, 0));
            status
        }
    }
}

/// An array of numbers on the device.
pub struct Data {
    pub address: *mut c_void,
    len: usize,
}

impl Data {
    pub fn of<T: Copy>(numbers: &[T]) -> Self {
        let mut address = null_mut();
        let bytes = size_of_val(numbers);
        // SAFETY: the allocation has the size of the copy.
        unsafe {
            assert_eq!(hip::hipMalloc(&mut address, bytes), 0);
            assert_eq!(hip::hipMemcpy(address, numbers.as_ptr().cast(), bytes, 1), 0);
        }
        Self { address, len: numbers.len() }
    }

    pub fn read<T: Copy + Default>(&self) -> Vec<T> {
        let mut numbers = vec![T::default(); self.len];
        // SAFETY: the allocation and the vector have the size of the copy.
        unsafe {
            let bytes = size_of_val(numbers.as_slice());
            assert_eq!(hip::hipMemcpy(numbers.as_mut_ptr().cast(), self.address, bytes, 2), 0);
        }
        numbers
    }
}

/// Returns pseudo-random whole numbers from -8 to 7.
fn noise(len: c_int, seed: u32) -> Vec<f64> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 28) - 8.0
        })
        .collect()
}

/// Sizes and parameters of a two-dimensional convolution.
pub const X: [c_int; 4] = [2, 4, 7, 6];
pub const W: [c_int; 4] = [6, 2, 3, 2];
pub const PADS: [c_int; 2] = [2, 1];
pub const STRIDES: [c_int; 2] = [2, 1];
pub const DILATIONS: [c_int; 2] = [1, 2];
pub const GROUPS: c_int = 2;
pub const Y: [c_int; 4] = [2, 6, 5, 6];

/// Computes the convolution by its definition: each output is the weighted sum over its window.
fn expected(x: &[f64], w: &[f64]) -> Vec<f64> {
    let index = |sizes: [c_int; 4], at: [c_int; 4]| {
        sizes.iter().zip(at).fold(0, |sum, (size, at)| sum * size + at) as usize
    };
    let mut y = Vec::new();
    for (n, k, h, v) in (0..Y[0]).flat_map(|n| {
        (0..Y[1]).flat_map(move |k| (0..Y[2]).flat_map(move |h| (0..Y[3]).map(move |v| (n, k, h, v))))
    }) {
        let mut sum = 0.0;
        for c in 0..W[1] {
            let from = k / (W[0] / GROUPS) * W[1] + c;
            for (i, j) in (0..W[2]).flat_map(|i| (0..W[3]).map(move |j| (i, j))) {
                let (row, column) = (
                    h * STRIDES[0] + i * DILATIONS[0] - PADS[0],
                    v * STRIDES[1] + j * DILATIONS[1] - PADS[1],
                );
                if (0..X[2]).contains(&row) && (0..X[3]).contains(&column) {
                    sum += x[index(X, [n, from, row, column])] * w[index(W, [k, c, i, j])];
                }
            }
        }
        y.push(sum);
    }
    y
}

/// Returns a convolution with padding, strides, dilations and groups.
pub fn full_case(data_type: u32) -> Case {
    let case = Case::of(data_type, [&X, &W, &Y]);
    // SAFETY: descriptors.
    unsafe {
        let ([p, q], [s, t], [d, e]) = (PADS, STRIDES, DILATIONS);
        assert_eq!(miopen::miopenInitConvolutionDescriptor(case.convolution, 0, p, q, s, t, d, e), 0);
        assert_eq!(miopen::miopenSetConvolutionGroupCount(case.convolution, GROUPS), 0);
    }
    case
}

/// Runs every solution of every direction and compares it with the definition. All numbers are whole, hence exact.
pub fn compute<T: Copy + Default + PartialEq + std::fmt::Debug>(
    data_type: u32,
    cast: fn(f64) -> T,
    back: fn(T) -> f64,
) {
    let case = full_case(data_type);
    let numbers = [(X, 1), (W, 2), (Y, 3)].map(|(sizes, seed)| noise(sizes.iter().product(), seed));
    let y = expected(&numbers[0], &numbers[1]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for (direction, target) in DIRECTIONS.iter().zip([2, 0, 1]) {
        // The output is linear in each number, so the gradient is the output for a unit vector.
        let slope = |at: usize| {
            let mut alone = numbers.clone();
            alone[target] = vec![0.0; numbers[target].len()];
            alone[target][at] = 1.0;
            dot(&expected(&alone[0], &alone[1]), &numbers[2])
        };
        let wanted = if target == 2 { y.clone() } else { (0..numbers[target].len()).map(slope).collect() };
        let solutions = case.solutions(direction, 16);
        assert_eq!(case.count(direction), (0, solutions.len()));
        assert!(!solutions.is_empty());
        for solution in &solutions {
            let data = [0, 1, 2].map(|side| {
                // The previous content of the output must not matter.
                let before =
                    numbers[side].iter().map(|number| if side == target { f64::NAN } else { *number });
                Data::of(&before.map(cast).collect::<Vec<_>>())
            });
            let addresses = [0, 1, 2].map(|side| data[side].address);
            assert_eq!(case.compile(direction, solution.solution_id), 0);
            let status = case.run(direction, addresses, solution, solution.workspace_size);
            assert_eq!(status, 0, "{:?}", last_error());
            let result: Vec<f64> = data[target].read::<T>().into_iter().map(back).collect();
            assert_eq!(result, wanted);
        }
    }
}
