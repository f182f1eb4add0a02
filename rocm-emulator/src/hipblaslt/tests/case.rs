//! A product with its descriptors, its memory and the expected result.
use crate::hipblaslt::*;
use crate::runtime::Options;
use crate::{api, configure_with, last_fault};
use half::{bf16, f16};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

const ARCHS: [&str; 4] = ["gfx1100", "gfx942", "gfx1200", "gfx1030"];
pub const F32: u32 = 0;
pub const F64: u32 = 1;
pub const F16: u32 = 2;
pub const BF16: u32 = 14;
pub const F8: u32 = 28;
pub const F8_FNUZ: u32 = 1000;
pub const NONE: u32 = 111;
pub const TRANSPOSE: u32 = 112;
pub const DEFAULT: u32 = 1;
pub const RELU: u32 = 2;
pub const BIAS: u32 = 4;
pub const GELU: u32 = 32;
pub const GELU_BIAS: u32 = 36;
pub const SUCCESS: u32 = 0;
pub const NOT_INITIALIZED: u32 = 1;
pub const INVALID_VALUE: u32 = 3;
pub const INTERNAL_ERROR: u32 = 6;
pub const NOT_SUPPORTED: u32 = 7;

/// Locks the devices for one test at a time, because faults and injections apply to the whole process.
pub fn gpu(arch: &str) -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    configure_with(&ARCHS, Options { threads: 2, ..Options::default() }).unwrap();
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let device = ARCHS.iter().position(|name| *name == arch).unwrap();
    // SAFETY: takes an integer.
    assert_eq!(unsafe { api::hipSetDevice(device as i32) }, 0);
    guard
}

fn bytes_of(kind: u32) -> usize {
    match kind {
        F32 => 4,
        F16 | BF16 => 2,
        _ => 1,
    }
}

/// Returns the value of an e4m3 code by its definition; `None` for NaN.
pub fn small_float(kind: u32, code: u8) -> Option<f64> {
    let is_nan = if kind == F8 { code & 0x7f == 0x7f } else { code == 0x80 };
    let bias = if kind == F8 { 7 } else { 8 };
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    (!is_nan).then_some(if code & 0x80 == 0 { magnitude } else { -magnitude })
}

fn encode(kind: u32, value: f64) -> Vec<u8> {
    match kind {
        F32 => (value as f32).to_le_bytes().to_vec(),
        F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        _ => vec![(0..=255).find(|code| small_float(kind, *code) == Some(value)).unwrap()],
    }
}

fn decode(kind: u32, bytes: &[u8]) -> f64 {
    match kind {
        F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        _ => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
    }
}

/// Device memory with a copy of its contents on the host.
pub struct Buffer {
    pub place: *mut c_void,
    kind: u32,
    pub values: Vec<f64>,
}

impl Buffer {
    /// Allocates small multiples of 1/4, which every type represents exactly, like their products and short sums.
    pub fn new(kind: u32, elements: usize, seed: usize) -> Self {
        let sample = |i: usize| ((i + seed).wrapping_mul(2_654_435_761) >> 7) % 17;
        let values: Vec<f64> = (0..elements).map(|i| (sample(i) as f64 - 8.0) / 4.0).collect();
        let mut place = null_mut();
        let bytes: Vec<u8> = values.iter().flat_map(|value| encode(kind, *value)).collect();
        // SAFETY: the allocation has the size of the bytes.
        unsafe {
            assert_eq!(api::hipMalloc(&mut place, bytes.len()), 0);
            assert_eq!(api::hipMemcpy(place, bytes.as_ptr().cast(), bytes.len(), 1), 0);
        }
        Self { place, kind, values }
    }

    pub fn now(&self) -> Vec<f64> {
        let mut bytes = vec![0u8; self.values.len() * bytes_of(self.kind)];
        // SAFETY: the vector has the size of the allocation.
        assert_eq!(unsafe { api::hipMemcpy(bytes.as_mut_ptr().cast(), self.place, bytes.len(), 2) }, 0);
        bytes.chunks_exact(bytes_of(self.kind)).map(|bytes| decode(self.kind, bytes)).collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the allocation belongs to this test.
        unsafe { api::hipFree(self.place) };
    }
}

#[derive(Clone, Copy)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batch: usize,
    /// Added to leading dimensions.
    pub slack: usize,
    /// True if the whole batch shares B.
    pub broadcast: bool,
}

pub const SMALL: Shape = Shape { m: 7, n: 5, k: 3, batch: 1, slack: 0, broadcast: false };
pub const LONG: Shape = Shape { m: 4, n: 3, k: 2048, batch: 2, slack: 0, broadcast: false };

/// A product with its descriptors and memory.
pub struct Case {
    pub shape: Shape,
    pub operations: [u32; 2],
    pub factors: [f32; 2],
    pub bias: Option<Buffer>,
    pub gelu: bool,
    pub buffers: [Buffer; 4],
    lds: [usize; 4],
    strides: [usize; 4],
    pub handle: *mut c_void,
    pub matmul: *mut c_void,
    pub layouts: [*mut c_void; 4],
    preference: *mut c_void,
    pub stream: *mut c_void,
}

impl Case {
    pub fn new(input: u32, output: u32, operations: [u32; 2], shape: Shape) -> Self {
        let Shape { m, n, k, batch, slack, broadcast } = shape;
        let stored = |op, rows, columns| if op == NONE { (rows, columns) } else { (columns, rows) };
        let shapes = [stored(operations[0], m, k), stored(operations[1], k, n), (m, n), (m, n)];
        let kinds = [input, input, output, output];
        let lds = shapes.map(|(rows, _)| rows + slack);
        let spans = [0, 1, 2, 3].map(|i| lds[i] * shapes[i].1 + slack);
        let buffers = [0, 1, 2, 3].map(|i| Buffer::new(kinds[i], spans[i] * batch, 100 * i));
        let strides = [spans[0], if broadcast { 0 } else { spans[1] }, spans[2], spans[3]];
        let null = null_mut();
        let mut case = Self {
            shape,
            operations,
            factors: [1.0, 0.0],
            bias: None,
            gelu: false,
            buffers,
            lds,
            strides,
            handle: null,
            matmul: null,
            layouts: [null; 4],
            preference: null,
            stream: null,
        };
        // SAFETY: the handles are written to live variables.
        unsafe {
            assert_eq!(api::hipStreamCreateWithFlags(&mut case.stream, 1), 0);
            assert_eq!(hipblasLtCreate(&mut case.handle), SUCCESS);
            assert_eq!(hipblasLtMatmulDescCreate(&mut case.matmul, 2, F32), SUCCESS);
            assert_eq!(hipblasLtMatmulPreferenceCreate(&mut case.preference), SUCCESS);
            for i in 0..4 {
                let (rows, columns) = shapes[i];
                let (layout, ld) = (&mut case.layouts[i], lds[i] as i64);
                assert_eq!(
                    hipblasLtMatrixLayoutCreate(layout, kinds[i], rows as u64, columns as u64, ld),
                    SUCCESS
                );
            }
        }
        for i in 0..4 {
            assert_eq!(case.set_layout(i, 0, batch as i32), SUCCESS);
            assert_eq!(case.set_layout(i, 1, case.strides[i] as i64), SUCCESS);
        }
        assert_eq!(case.set_matmul(0, operations[0]), SUCCESS);
        assert_eq!(case.set_matmul(1, operations[1]), SUCCESS);
        case
    }

    pub fn set_layout<T>(&self, matrix: usize, attribute: u32, value: T) -> u32 {
        let from = (&raw const value).cast();
        // SAFETY: the value has the given size.
        unsafe { hipblasLtMatrixLayoutSetAttribute(self.layouts[matrix], attribute, from, size_of::<T>()) }
    }

    pub fn set_matmul<T>(&self, attribute: u32, value: T) -> u32 {
        let from = (&raw const value).cast();
        // SAFETY: the value has the given size.
        unsafe { hipblasLtMatmulDescSetAttribute(self.matmul, attribute, from, size_of::<T>()) }
    }

    pub fn allow_workspace(&self, bytes: u64) {
        let from = (&raw const bytes).cast();
        // SAFETY: the value has the given size.
        let status = unsafe { hipblasLtMatmulPreferenceSetAttribute(self.preference, 1, from, 8) };
        assert_eq!(status, SUCCESS);
    }

    pub fn with_bias(mut self, kind: u32) -> Self {
        let bias = Buffer::new(kind, self.shape.m, 7);
        assert_eq!(self.set_matmul(2, BIAS), SUCCESS);
        assert_eq!(self.set_matmul(3, bias.place), SUCCESS);
        assert_eq!(self.set_matmul(4, kind), SUCCESS);
        self.bias = Some(bias);
        self
    }

    pub fn with_gelu(mut self) -> Self {
        let epilogue = if self.bias.is_some() { GELU_BIAS } else { GELU };
        assert_eq!(self.set_matmul(2, epilogue), SUCCESS);
        self.gelu = true;
        self
    }

    /// Returns the heuristic's status and its results.
    pub fn heuristic(&self, wanted: i32) -> (u32, Vec<MatmulHeuristicResult>) {
        let none = MatmulHeuristicResult {
            algo: MatmulAlgo::default(),
            workspaceSize: 0,
            state: 99,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut results, mut count) = (vec![none; 4], -1);
        let [a, b, c, d] = self.layouts;
        // SAFETY: the count is live, and the array holds as many results as requested.
        let status = unsafe {
            hipblasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.matmul,
                a,
                b,
                c,
                d,
                self.preference,
                wanted,
                results.as_mut_ptr(),
                &mut count,
            )
        };
        results.truncate(count.max(0) as usize);
        (status, results)
    }

    pub fn run_with(&self, algo: *const MatmulAlgo, workspace: *mut c_void, bytes: usize) -> u32 {
        let [a, b, c, d] = &self.buffers;
        let [a_layout, b_layout, c_layout, d_layout] = self.layouts;
        let [alpha, beta] = &self.factors;
        let (alpha, beta) = (&raw const *alpha, &raw const *beta);
        // SAFETY: the factors are live; handles, descriptors and addresses may have any value.
        unsafe {
            hipblasLtMatmul(
                self.handle,
                self.matmul,
                alpha.cast(),
                a.place,
                a_layout,
                b.place,
                b_layout,
                beta.cast(),
                c.place,
                c_layout,
                d.place,
                d_layout,
                algo,
                workspace,
                bytes,
                self.stream,
            )
        }
    }

    pub fn run(&self) -> u32 {
        self.run_with(null(), null_mut(), 0)
    }

    pub fn synchronize(&self) -> u32 {
        // SAFETY: the stream belongs to this case.
        unsafe { api::hipStreamSynchronize(self.stream) }
    }

    /// Returns the expected contents of D's whole buffer, including gaps.
    pub fn expected(&self) -> Vec<f64> {
        let [a, b, c, d] = &self.buffers;
        let Shape { m, n, k, batch, .. } = self.shape;
        let [lda, ldb, ldc, ldd] = self.lds;
        let mut all = d.values.clone();
        for index in 0..batch {
            let [at_a, at_b, at_c, at_d] = self.strides.map(|stride| index * stride);
            for (column, row) in (0..n).flat_map(|column| (0..m).map(move |row| (column, row))) {
                let left = |depth| match self.operations[0] {
                    NONE => a.values[at_a + depth * lda + row],
                    _ => a.values[at_a + row * lda + depth],
                };
                let right = |depth| match self.operations[1] {
                    NONE => b.values[at_b + column * ldb + depth],
                    _ => b.values[at_b + depth * ldb + column],
                };
                let sum: f64 = (0..k).map(|depth| left(depth) * right(depth)).sum();
                let [alpha, beta] = self.factors.map(f64::from);
                let before = c.values[at_c + column * ldc + row];
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias.values[row]);
                let mut value = alpha * sum + beta * before + bias;
                if self.gelu {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (value + 0.044715 * value.powi(3));
                    value = 0.5 * value * (1.0 + inner.tanh());
                }
                all[at_d + column * ldd + row] = decode(d.kind, &encode(d.kind, value));
            }
        }
        all
    }

    #[track_caller]
    pub fn agrees(&self, what: &str) {
        assert_eq!(self.synchronize(), 0, "{what}: {:?}", last_fault());
        assert_eq!(self.buffers[3].now(), self.expected(), "{what}");
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        // SAFETY: handles may be anything.
        unsafe {
            api::hipStreamSynchronize(self.stream);
            hipblasLtMatmulPreferenceDestroy(self.preference);
            for layout in self.layouts {
                hipblasLtMatrixLayoutDestroy(layout);
            }
            hipblasLtMatmulDescDestroy(self.matmul);
            hipblasLtDestroy(self.handle);
            api::hipStreamDestroy(self.stream);
        }
    }
}
