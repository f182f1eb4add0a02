//! Tests that an operation allocates no host heap memory once its kernel is loaded, neither for arguments and layouts nor
//! for its result. Allocations of the driver, here the software GPU, are not counted.
#![cfg(feature = "rocm-emulator")]

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "rocm_backend/fixture.rs"]
mod fixture;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::op::{Add, CmpOp, Exp, ReduceOp};
use candle_core::rocm::{RocmDevice, RocmStorage};
use candle_core::scalar::Scalar;
use candle_core::{DType, Device, Layout, Result, Shape, Storage};
use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

/// Allocator that records the backtraces of allocations on threads that enable it.
struct RecordingAllocator;

thread_local! {
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
    static RECORDED: RefCell<Vec<Backtrace>> = const { RefCell::new(Vec::new()) };
}

/// Records an allocation, without the allocations of recording.
fn record() {
    // Thread-local variables may already be destroyed at the end of a thread.
    if IS_RECORDING.try_with(|is_recording| is_recording.replace(false)).unwrap_or(false) {
        let _ = RECORDED.try_with(|recorded| recorded.borrow_mut().push(Backtrace::force_capture()));
        let _ = IS_RECORDING.try_with(|is_recording| is_recording.set(true));
    }
}

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        record();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(block) }
    }

    unsafe fn alloc_zeroed(&self, block: Block) -> *mut u8 {
        record();
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc_zeroed(block) }
    }

    unsafe fn realloc(&self, at: *mut u8, block: Block, size: usize) -> *mut u8 {
        record();
        // SAFETY: guaranteed by the caller.
        unsafe { System.realloc(at, block, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, block: Block) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

/// Returns the allocations of `work` on this thread outside the driver, as backtraces of the project's functions.
fn allocations<R>(work: impl FnOnce() -> R) -> (R, Vec<String>) {
    IS_RECORDING.with(|is_recording| is_recording.set(true));
    let result = work();
    IS_RECORDING.with(|is_recording| is_recording.set(false));
    let recorded = RECORDED.with(|recorded| std::mem::take(&mut *recorded.borrow_mut()));
    let traces = recorded.iter().map(Backtrace::to_string);
    let traces = traces.filter(|trace| !trace.contains("rocm_emulator::"));
    (result, traces.map(|trace| project_frames(&trace)).collect())
}

/// Returns the frames of the project's sources in a trace, innermost first.
fn project_frames(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().map(str::trim).collect();
    let is_ours = |place: &str| place.contains("rocm_backend") || place.contains("/upstream/");
    let frames = lines.windows(2).filter(|pair| pair[1].starts_with("at ") && is_ours(pair[1]));
    frames.take(4).map(|pair| format!("    {} {}", pair[0], pair[1])).collect::<Vec<_>>().join("\n")
}

const SIZES: (usize, usize) = (4, 6);

/// Operands of all operations.
struct Operands<'a> {
    device: &'a RocmDevice,
    x: &'a RocmStorage,
    bytes: &'a RocmStorage,
    ids: &'a RocmStorage,
    whole: Layout,
    transposed: Layout,
    narrowed: Layout,
    column: Layout,
    three: Layout,
    shape: Shape,
}

impl Operands<'_> {
    fn uninitialized(&self) -> Result<RocmStorage> {
        // SAFETY: callers only read elements that they have written.
        unsafe { self.device.alloc_uninit(&self.shape, DType::F32) }
    }

    fn add(&self, lhs: &Layout, rhs: &Layout) -> Result<RocmStorage> {
        self.x.binary_impl::<Add>(self.x, lhs, rhs)
    }

    fn copied(&self, layout: &Layout) -> Result<RocmStorage> {
        let mut to = self.uninitialized()?;
        self.x.copy_strided_src(&mut to, 0, layout)?;
        Ok(to)
    }

    fn filled(&self, value: f32, layout: &Layout) -> Result<RocmStorage> {
        let mut to = self.uninitialized()?;
        to.const_set(Scalar::F32(value), layout)?;
        Ok(to)
    }
}

type Op = fn(&Operands) -> Result<RocmStorage>;

const OPS: [(&str, Op); 27] = [
    ("unary", |o| o.x.unary_impl::<Exp>(&o.whole)),
    ("unary of a view", |o| o.x.unary_impl::<Exp>(&o.transposed)),
    ("affine", |o| o.x.affine(&o.whole, 2.0, 1.0)),
    ("powf of a view", |o| o.x.powf(&o.narrowed, 2.0)),
    ("elu", |o| o.x.elu(&o.whole, 0.5)),
    ("binary", |o| o.add(&o.whole, &o.whole)),
    ("binary of a view", |o| o.add(&o.whole, &o.column)),
    ("cmp", |o| o.x.cmp(CmpOp::Lt, o.x, &o.whole, &o.whole)),
    ("cmp of a view", |o| o.x.cmp(CmpOp::Ge, o.x, &o.whole, &o.column)),
    ("cast", |o| o.x.to_dtype(&o.whole, DType::F16)),
    ("cast of a view", |o| o.x.to_dtype(&o.transposed, DType::U8)),
    ("cast to the same", |o| o.x.to_dtype(&o.transposed, DType::F32)),
    ("where", |o| o.bytes.where_cond(&o.whole, o.x, &o.whole, o.x, &o.column)),
    ("sum", |o| o.x.reduce_op(ReduceOp::Sum, &o.whole, &[1])),
    ("sum of all of a view", |o| o.x.reduce_op(ReduceOp::Sum, &o.transposed, &[0, 1])),
    ("max", |o| o.x.reduce_op(ReduceOp::Max, &o.transposed, &[0])),
    ("argmin", |o| o.x.reduce_op(ReduceOp::ArgMin, &o.whole, &[1])),
    ("index_select", |o| o.x.index_select(o.ids, &o.whole, &o.three, 0)),
    ("index_add", |o| o.x.index_add(&o.whole, o.ids, &o.three, o.x, &o.narrowed, 0)),
    ("matmul", |o| o.x.matmul(o.x, (1, 4, 4, 6), &o.whole, &o.transposed)),
    ("contiguous copy", |o| o.copied(&o.whole)),
    ("strided copy", |o| o.copied(&o.transposed)),
    ("copy2d", |o| {
        let mut to = o.uninitialized()?;
        o.x.copy2d(&mut to, 4, 3, 6, 6, 0, 2)?;
        Ok(to)
    }),
    ("whole copy", |o| o.x.try_clone(&o.whole)),
    ("const_set", |o| o.filled(2.0, &o.whole)),
    ("const_set of a view", |o| o.filled(2.0, &o.narrowed)),
    ("zeros", |o| o.device.zeros_impl(&o.shape, DType::F32)),
];

#[test]
fn operations_allocate_nothing_on_the_heap() {
    fixture::rocm();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let x = fixture::tensor(&[SIZES.0, SIZES.1], DType::F32, 2.0).to_device(&device).unwrap();
    let bytes = x.ge(&x.zeros_like().unwrap()).unwrap();
    let ids = candle_core::Tensor::new(&[2u32, 0, 1], &device).unwrap();
    let guards = [&x, &bytes, &ids].map(|t| t.storage_and_layout().0);
    let storages: Vec<&RocmStorage> = guards
        .iter()
        .map(|guard| match &**guard {
            Storage::Rocm(storage) => storage,
            _ => panic!("not on the device"),
        })
        .collect();
    let whole = Layout::contiguous(SIZES);
    let operands = Operands {
        device: device.as_rocm_device().unwrap(),
        x: storages[0],
        bytes: storages[1],
        ids: storages[2],
        transposed: whole.transpose(0, 1).unwrap(),
        narrowed: whole.narrow(0, 0, 3).unwrap(),
        column: Layout::new(SIZES.into(), vec![6, 0], 0),
        three: Layout::contiguous(3),
        shape: SIZES.into(),
        whole,
    };
    // A known allocation is recorded.
    assert_eq!(allocations(|| std::hint::black_box(vec![1u8])).1.len(), 1);
    let mut found = Vec::new();
    for (name, op) in OPS {
        // The first calls load the kernel and allocate memory from the driver.
        for _ in 0..3 {
            drop(op(&operands).unwrap_or_else(|e| panic!("{name}: {e}")));
        }
        let (result, allocations) = allocations(|| op(&operands).map(drop));
        result.unwrap();
        if !allocations.is_empty() {
            found.push(format!(
                "{name}: {} allocations\n{}",
                allocations.len(),
                allocations.join("\n    and\n")
            ));
        }
    }
    assert!(found.is_empty(), "{} of {} operations allocate:\n{}", found.len(), OPS.len(), found.join("\n"));
}
