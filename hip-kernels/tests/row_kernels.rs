//! Softmax, norms, rotary embeddings and products, on the software GPU in both wave sizes, against formulas in f64.
mod software_gpu;

use half::{bf16, f16};
use hip_kernels::contract::{
    DevicePtr, Element, KernelFamily, KernelOf, LayerNorm, PRODUCT_TILE, Product, RmsNorm, Rope, RopePairs,
    Softmax,
};
use hip_kernels::{archs, code_object};
use software_gpu::{Buffer, DEVICES, Module, select};

/// A dtype of these kernels.
trait Dtype {
    const ELEMENT: Element;
    /// The distance from 1 to the next number.
    const EPSILON: f64;
    type Bits: software_gpu::Element;
    fn bits(value: f64) -> Self::Bits;
    fn value(bits: Self::Bits) -> f64;
}

macro_rules! dtype {
    ($type:ty, $element:ident, $bits:ty, $from:expr, $epsilon:expr) => {
        impl Dtype for $type {
            const ELEMENT: Element = Element::$element;
            const EPSILON: f64 = $epsilon;
            type Bits = $bits;
            fn bits(value: f64) -> $bits {
                $from(value).to_bits()
            }
            fn value(bits: $bits) -> f64 {
                f64::from(<$type>::from_bits(bits))
            }
        }
    };
}
dtype!(f64, F64, u64, |value| value, f64::EPSILON);
dtype!(f32, F32, u32, |value| value as f32, f32::EPSILON as f64);
dtype!(f16, F16, u16, f16::from_f64, 1.0 / 1024.0);
dtype!(bf16, Bf16, u16, bf16::from_f64, 1.0 / 128.0);

/// The numbers of a device buffer.
struct Numbers<T: Dtype>(Buffer<T::Bits>);

impl<T: Dtype> Numbers<T> {
    fn new(values: &[f64]) -> Self {
        Self(Buffer::new(&values.iter().map(|value| T::bits(*value)).collect::<Vec<_>>()))
    }

    /// What the values are after rounding to the dtype.
    fn read(&self) -> Vec<f64> {
        self.0.read().into_iter().map(T::value).collect()
    }

    fn pointer(&self) -> DevicePtr {
        DevicePtr(self.0.address())
    }
}

fn launch<F: KernelFamily>(
    kernel: Option<KernelOf<F>>,
    arguments: &F,
    arch: &str,
    grid: [u32; 3],
    block: [u32; 3],
) {
    let id = kernel.unwrap().id();
    assert!(block.iter().product::<u32>() <= F::BLOCK);
    let module = Module::load(&code_object(id.module(), arch).unwrap().bytes);
    let mut addresses: Vec<_> =
        arguments.arguments().as_ref().iter().map(|address| address.cast_mut()).collect();
    module.launch(id.name(), grid, block, &mut addresses);
}

/// Calls `check` with each architecture that there are kernels for, selected on this thread.
fn on_each_device(check: impl Fn(&'static str)) {
    let held: Vec<_> = DEVICES.into_iter().filter(|arch| archs().contains(arch)).collect();
    assert!(!held.is_empty(), "none of {DEVICES:?} was built");
    for arch in held {
        select(arch);
        check(arch);
    }
}

/// Numbers from -1 to 1 without a pattern.
fn noise(count: usize, seed: u32) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Within 16 of the dtype's steps, at the size of the wanted number or of `least`.
fn assert_close<T: Dtype>(got: &[f64], wanted: &[f64], least: f64, what: &str) {
    assert_eq!(got.len(), wanted.len());
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let bound = 16.0 * T::EPSILON * wanted.abs().max(least);
        assert!((got - wanted).abs() <= bound, "{what}, element {index}: {got}, wanted {wanted}");
    }
}

/// Rows that strain: any numbers, and a large mean with a small variance.
fn cases(columns: usize) -> [Vec<f64>; 2] {
    let any: Vec<f64> = noise(ROWS * columns, 1).iter().map(|x| 4.0 * x).collect();
    let far: Vec<f64> = noise(ROWS * columns, 2).iter().map(|x| 1e4 + x).collect();
    [any, far]
}

const ROWS: usize = 3;
const COLUMNS: [usize; 5] = [1, 2, 31, 1000, 5000];
const EPS: f32 = 1e-5;

/// Runs rows of every length with several sizes of workgroup.
fn check_rows<T: Dtype>(
    arch: &str,
    what: &str,
    run: impl Fn(&Numbers<T>, &Numbers<T>, u32, u32),
    wanted: impl Fn(&[f64]) -> Vec<f64>,
    least: f64,
) {
    for columns in COLUMNS {
        for values in cases(columns) {
            let source = Numbers::<T>::new(&values);
            let result = Numbers::<T>::new(&vec![0.0; values.len()]);
            let wanted: Vec<f64> = source.read().chunks(columns).flat_map(&wanted).collect();
            let blocks: &[u32] = if columns == 1000 { &[32, 64, 256, 1024] } else { &[256] };
            for &block in blocks {
                run(&source, &result, columns as u32, block);
                let what = format!("{what} {:?} of {columns} columns by {block} on {arch}", T::ELEMENT);
                assert_close::<T>(&result.read(), &wanted, least, &what);
            }
        }
    }
}

/// What each addition rounds off is added at the end: as exact as if the sum were rounded once.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (total, rest) = values.fold((0.0f64, 0.0), |(total, rest), x| {
        let next = total + x;
        let lost = if total.abs() > x.abs() { total - next + x } else { x - next + total };
        (next, rest + lost)
    });
    total + rest
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    sum(values) / count
}

fn check_all_rows<T: Dtype>(arch: &str) {
    let grid = [ROWS as u32, 1, 1];
    let softmax = |row: &[f64]| {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = sum(row.iter().map(|x| (x - top).exp()));
        row.iter().map(|x| (x - top).exp() / sum).collect()
    };
    let run = |src: &Numbers<T>, dst: &Numbers<T>, columns: u32, block: u32| {
        let arguments = Softmax { src: src.pointer(), dst: dst.pointer(), columns };
        launch(Softmax::kernel(T::ELEMENT), &arguments, arch, grid, [block, 1, 1]);
    };
    // f16 has fewer digits below 6e-5.
    check_rows::<T>(arch, "softmax", run, softmax, 1e-4);

    let longest = COLUMNS[COLUMNS.len() - 1];
    let alpha = Numbers::<T>::new(&noise(longest, 3));
    let beta = Numbers::<T>::new(&noise(longest, 4));
    let (factors, summands) = (alpha.read(), beta.read());
    let run = |src: &Numbers<T>, dst: &Numbers<T>, columns: u32, block: u32| {
        let (src, dst) = (src.pointer(), dst.pointer());
        let arguments = RmsNorm { src, dst, alpha: alpha.pointer(), columns, eps: EPS };
        launch(RmsNorm::kernel(T::ELEMENT), &arguments, arch, grid, [block, 1, 1]);
    };
    let wanted = |row: &[f64]| {
        let root = (mean(row.iter().map(|x| x * x)) + f64::from(EPS)).sqrt();
        row.iter().zip(&factors).map(|(x, alpha)| x / root * alpha).collect()
    };
    check_rows::<T>(arch, "rmsnorm", run, wanted, 1e-4);

    let run = |src: &Numbers<T>, dst: &Numbers<T>, columns: u32, block: u32| {
        let (src, dst) = (src.pointer(), dst.pointer());
        let (alpha, beta) = (alpha.pointer(), beta.pointer());
        let arguments = LayerNorm { src, dst, alpha, beta, columns, eps: EPS };
        launch(LayerNorm::kernel(T::ELEMENT), &arguments, arch, grid, [block, 1, 1]);
    };
    let wanted = |row: &[f64]| {
        // Seen from the first element, so that the mean's own rounding does not count.
        let row: Vec<f64> = row.iter().map(|x| x - row[0]).collect();
        let mean = self::mean(row.iter().copied());
        let root = (self::mean(row.iter().map(|x| (x - mean).powi(2))) + f64::from(EPS)).sqrt();
        let affine = |((x, alpha), beta): ((&f64, &f64), &f64)| (x - mean) / root * alpha + beta;
        row.iter().zip(&factors).zip(&summands).map(affine).collect()
    };
    // The sum with beta may cancel.
    check_rows::<T>(arch, "layernorm", run, wanted, 1.0);
}

#[test]
fn rows_in_f32_are_the_formulas() {
    on_each_device(check_all_rows::<f32>);
}

#[test]
fn rows_in_f64_are_the_formulas() {
    on_each_device(check_all_rows::<f64>);
}

#[test]
fn rows_in_narrow_floats_are_the_formulas() {
    on_each_device(|arch| {
        check_all_rows::<f16>(arch);
        check_all_rows::<bf16>(arch);
    });
}

#[test]
fn softmax_of_infinities_and_of_single_elements() {
    const LOW: f64 = f64::NEG_INFINITY;
    let run = |arch: &str, values: &[f64], columns: u32| {
        let (source, result) = (Numbers::<f32>::new(values), Numbers::<f32>::new(values));
        let arguments = Softmax { src: source.pointer(), dst: result.pointer(), columns };
        let rows = values.len() as u32 / columns;
        launch(Softmax::kernel(Element::F32), &arguments, arch, [rows, 1, 1], [32, 1, 1]);
        result.read()
    };
    on_each_device(|arch| {
        assert_eq!(run(arch, &[3.0, -1e30, 1e30], 1), [1.0; 3]);
        assert_eq!(run(arch, &[LOW, 2.0, LOW, 2.0], 4), [0.0, 0.5, 0.0, 0.5]);
        assert!(run(arch, &[LOW; 4], 4).iter().all(|x| x.is_nan()));
        assert!(run(arch, &[1.0, f64::NAN, 2.0, 3.0], 4).iter().all(|x| x.is_nan()));
    });
}

/// What `pairs` of rows become: the places of both elements of pair `column` of a row.
fn places(pairs: RopePairs, half: usize, row: usize, column: usize) -> (usize, usize) {
    let start = row * 2 * half;
    match pairs {
        RopePairs::Neighbours => (start + 2 * column, start + 2 * column + 1),
        RopePairs::Halves => (start + column, start + half + column),
    }
}

fn check_rotary<T: Dtype>(arch: &str, turn: impl Fn(f64, f64, f64, f64) -> (f64, f64)) {
    let (batches, heads, positions, half) = (2, 3, 5, 4);
    let rows = heads * positions;
    let numel = batches * rows * half;
    let source = Numbers::<T>::new(&noise(2 * numel, 5));
    let angles = noise(batches * positions * half, 6);
    let cos = Numbers::<T>::new(&angles.iter().map(|angle| angle.cos()).collect::<Vec<_>>());
    let sin = Numbers::<T>::new(&angles.iter().map(|angle| angle.sin()).collect::<Vec<_>>());
    let (values, cosines, sines) = (source.read(), cos.read(), sin.read());
    for pairs in RopePairs::ALL {
        // Heads before positions, or after them; angles for each batch, or shared by all.
        for (inner, batch_stride) in [(1, 0), (heads, 0), (1, positions * half), (heads, positions * half)] {
            let result = Numbers::<T>::new(&vec![0.0; 2 * numel]);
            let arguments = Rope {
                numel,
                half: half as u32,
                rows: rows as u32,
                inner: inner as u32,
                positions: positions as u32,
                batch_stride: batch_stride as u32,
                src: source.pointer(),
                cos: cos.pointer(),
                sin: sin.pointer(),
                dst: result.pointer(),
            };
            // Fewer threads than pairs: each takes several.
            launch(Rope::kernel(pairs, T::ELEMENT), &arguments, arch, [1, 1, 1], [64, 1, 1]);
            let mut wanted = vec![0.0; 2 * numel];
            for batch in 0..batches {
                for row in 0..rows {
                    let position = if inner == 1 { row % positions } else { row / heads };
                    for column in 0..half {
                        let angle = batch * batch_stride + position * half + column;
                        let (first, second) = places(pairs, half, batch * rows + row, column);
                        (wanted[first], wanted[second]) =
                            turn(values[first], values[second], cosines[angle], sines[angle]);
                    }
                }
            }
            assert_eq!(result.read(), wanted, "{pairs:?} {:?} on {arch}", T::ELEMENT);
        }
    }
}

#[test]
fn rotary_embeddings_round_every_product_and_sum() {
    macro_rules! turn {
        ($type:ty, $round:expr) => {
            |x: f64, y: f64, cos: f64, sin: f64| {
                let [x, y, cos, sin]: [$type; 4] = [x, y, cos, sin].map($round);
                (f64::from(x * cos - y * sin), f64::from(x * sin + y * cos))
            }
        };
    }
    on_each_device(|arch| {
        check_rotary::<f32>(arch, turn!(f32, |x| x as f32));
        check_rotary::<f64>(arch, turn!(f64, |x| x));
        check_rotary::<f16>(arch, turn!(f16, f16::from_f64));
        check_rotary::<bf16>(arch, turn!(bf16, bf16::from_f64));
    });
}

/// A product of `(batches, m, k)` stored by columns with one `(k, n)` for all batches, into rows apart by `c_row`.
fn check_product<T: Dtype>(arch: &str, [batches, m, n, k]: [usize; 4], grid: [u32; 3]) {
    let (c_row, gap) = (n + 3, 7.0);
    let (a, b) =
        (Numbers::<T>::new(&noise(batches * m * k.max(1), 7)), Numbers::<T>::new(&noise(k.max(1) * n, 8)));
    let c = Numbers::<T>::new(&vec![gap; batches * m * c_row]);
    let arguments = Product {
        a: a.pointer(),
        b: b.pointer(),
        c: c.pointer(),
        m: m as u32,
        n: n as u32,
        k: k as u32,
        batches: batches as u32,
        a_row: 1,
        a_column: m,
        a_batch: m * k,
        b_row: n,
        b_column: 1,
        b_batch: 0,
        c_row,
        c_batch: m * c_row,
    };
    let tile = PRODUCT_TILE as u32;
    launch(Product::kernel(T::ELEMENT), &arguments, arch, grid, [tile, tile, 1]);
    let (left, right, got) = (a.read(), b.read(), c.read());
    for batch in 0..batches {
        for row in 0..m {
            for column in 0..c_row {
                let value = got[(batch * m + row) * c_row + column];
                let terms = |i: usize| left[batch * m * k + i * m + row] * right[i * n + column];
                let wanted = if column < n { (0..k).map(terms).sum() } else { gap };
                let bound = T::EPSILON * (1.0 + wanted.abs());
                let what = format!("{:?} on {arch}, {batch} {row} {column}", T::ELEMENT);
                assert!((value - wanted).abs() <= 4.0 * bound, "{what}: {value}, wanted {wanted}");
            }
        }
    }
}

#[test]
fn products_of_any_strides() {
    on_each_device(|arch| {
        check_product::<f32>(arch, [3, 17, 33, 20], [3, 2, 3]);
        check_product::<f64>(arch, [1, 16, 16, 16], [1, 1, 1]);
        check_product::<f16>(arch, [2, 5, 40, 70], [3, 1, 2]);
        check_product::<bf16>(arch, [1, 1, 1, 33], [1, 1, 1]);
        // Fewer workgroups than tiles of rows and batches: each takes several.
        check_product::<f32>(arch, [5, 50, 20, 9], [2, 2, 2]);
        // An empty sum is 0.
        check_product::<f32>(arch, [1, 4, 4, 0], [1, 1, 1]);
    });
}
