//! Compares softmax, norms and rotary embeddings with formulas in f64, on the software GPU with both wave sizes.
mod software_gpu;

use half::{bf16, f16};
use hip_kernels::contract::{DevicePtr, Element, LayerNorm, RmsNorm, Rope, RopePairs, Softmax, SoftmaxOp};
use software_gpu::Buffer;
use software_gpu::numbers::{Dtype, Numbers, launch, noise, on_each_device};

/// Asserts an error of at most 16 ulps of the dtype, at the magnitude of the expected number or of `least`.
fn assert_close<T: Dtype>(got: &[f64], wanted: &[f64], least: f64, what: &str) {
    assert_eq!(got.len(), wanted.len());
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let bound = 16.0 * T::EPSILON * wanted.abs().max(least);
        assert!((got - wanted).abs() <= bound, "{what}, element {index}: {got}, wanted {wanted}");
    }
}

/// Returns two cases: random numbers, and a large mean with a small variance.
fn cases(columns: usize) -> [Vec<f64>; 2] {
    let any: Vec<f64> = noise(ROWS * columns, 1).iter().map(|x| 4.0 * x).collect();
    let far: Vec<f64> = noise(ROWS * columns, 2).iter().map(|x| 1e4 + x).collect();
    [any, far]
}

const ROWS: usize = 3;
const COLUMNS: [usize; 5] = [1, 2, 31, 1000, 5000];
const EPS: f32 = 1e-5;

/// Distribution of rows over the threads of a launch.
#[derive(Clone, Copy, Debug)]
struct Shares {
    rows: u32,
    columns: u32,
    part: u32,
    width: u32,
    block: u32,
}

impl Shares {
    fn grid(&self) -> [u32; 3] {
        [self.rows.div_ceil(self.block / self.width), self.columns.div_ceil(self.part), 1]
    }
}

/// Runs rows of every length with several workgroup sizes, with one or more rows per workgroup, and split into parts.
/// `run` receives a source, a result and the statistics of parts.
fn check_rows<T: Dtype>(
    arch: &str,
    what: &str,
    run: impl Fn([DevicePtr; 3], Shares),
    wanted: impl Fn(&[f64]) -> Vec<f64>,
    least: f64,
) {
    for columns in COLUMNS {
        for values in cases(columns) {
            let source = Numbers::<T>::new(&values);
            let wanted: Vec<f64> = source.read().chunks(columns).flat_map(&wanted).collect();
            // Width, workgroup size and number of parts.
            let sizes: &[[u32; 3]] = match columns {
                1000 => &[[32, 32, 1], [64, 64, 1], [16, 64, 1], [64, 128, 1], [1024, 1024, 1]],
                5000 => &[[256, 256, 1], [16, 32, 4], [128, 128, 3]],
                _ => &[[256, 256, 1], [16, 32, 1]],
            };
            for &[width, block, parts] in sizes {
                let (rows, columns) = (ROWS as u32, columns as u32);
                let shares = Shares { rows, columns, part: columns.div_ceil(parts), width, block };
                let result = Numbers::<T>::new(&vec![0.0; values.len()]);
                let mut partials = DevicePtr::NULL;
                // Three numbers of at most 8 bytes for each part.
                let memory = Buffer::<u64>::zeroed(3 * ROWS * parts as usize);
                if parts > 1 {
                    partials = DevicePtr(memory.address());
                    run([source.pointer(), DevicePtr::NULL, partials], shares);
                }
                run([source.pointer(), result.pointer(), partials], shares);
                let what = format!("{what} {:?} {shares:?} on {arch}", T::ELEMENT);
                assert_close::<T>(&result.read(), &wanted, least, &what);
            }
        }
    }
}

/// Compensated summation: adds the rounding errors at the end.
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
    let softmax = |row: &[f64]| {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = sum(row.iter().map(|x| (x - top).exp()));
        row.iter().map(|x| (x - top).exp() / sum).collect()
    };
    let run = |[src, dst, partials]: [DevicePtr; 3], shares: Shares| {
        let Shares { rows, columns, part, width, block } = shares;
        let arguments = Softmax { src, dst, partials, rows, columns, part, width };
        let kernel = Softmax::kernel(SoftmaxOp::Softmax, T::ELEMENT);
        launch(kernel, &arguments, arch, shares.grid(), [block, 1, 1]);
    };
    // f16 is less precise below 6e-5.
    check_rows::<T>(arch, "softmax", run, softmax, 1e-4);

    let longest = COLUMNS[COLUMNS.len() - 1];
    let alpha = Numbers::<T>::new(&noise(longest, 3));
    let beta = Numbers::<T>::new(&noise(longest, 4));
    let (factors, summands) = (alpha.read(), beta.read());
    let run = |[src, dst, partials]: [DevicePtr; 3], shares: Shares| {
        let Shares { rows, columns, part, width, block } = shares;
        let alpha = alpha.pointer();
        let arguments = RmsNorm { src, dst, alpha, partials, rows, columns, part, width, eps: EPS };
        launch(RmsNorm::kernel(T::ELEMENT), &arguments, arch, shares.grid(), [block, 1, 1]);
    };
    let wanted = |row: &[f64]| {
        let root = (mean(row.iter().map(|x| x * x)) + f64::from(EPS)).sqrt();
        row.iter().zip(&factors).map(|(x, alpha)| x / root * alpha).collect()
    };
    check_rows::<T>(arch, "rmsnorm", run, wanted, 1e-4);

    let run = |[src, dst, partials]: [DevicePtr; 3], shares: Shares| {
        let Shares { rows, columns, part, width, block } = shares;
        let (alpha, beta) = (alpha.pointer(), beta.pointer());
        let arguments = LayerNorm { src, dst, alpha, beta, partials, rows, columns, part, width, eps: EPS };
        launch(LayerNorm::kernel(T::ELEMENT), &arguments, arch, shares.grid(), [block, 1, 1]);
    };
    let wanted = |row: &[f64]| {
        // Relative to the first element, to avoid rounding of the mean.
        let row: Vec<f64> = row.iter().map(|x| x - row[0]).collect();
        let mean = self::mean(row.iter().copied());
        let root = (self::mean(row.iter().map(|x| (x - mean).powi(2))) + f64::from(EPS)).sqrt();
        let affine = |((x, alpha), beta): ((&f64, &f64), &f64)| (x - mean) / root * alpha + beta;
        row.iter().zip(&factors).zip(&summands).map(affine).collect()
    };
    // Adding beta may cancel.
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
fn rows_of_narrow_floats_match_the_formulas() {
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
        let (rows, width) = (values.len() as u32 / columns, 32);
        let (src, dst, partials) = (source.pointer(), result.pointer(), DevicePtr::NULL);
        let arguments = Softmax { src, dst, partials, rows, columns, part: columns, width };
        let kernel = Softmax::kernel(SoftmaxOp::Softmax, Element::F32);
        launch(kernel, &arguments, arch, [rows, 1, 1], [width, 1, 1]);
        result.read()
    };
    on_each_device(|arch| {
        assert_eq!(run(arch, &[3.0, -1e30, 1e30], 1), [1.0; 3]);
        assert_eq!(run(arch, &[LOW, 2.0, LOW, 2.0], 4), [0.0, 0.5, 0.0, 0.5]);
        assert!(run(arch, &[LOW; 4], 4).iter().all(|x| x.is_nan()));
        assert!(run(arch, &[1.0, f64::NAN, 2.0, 3.0], 4).iter().all(|x| x.is_nan()));
    });
}

/// Returns the indices of both elements of pair `column` of a row.
fn places(pairs: RopePairs, half: usize, row: usize, column: usize) -> (usize, usize) {
    let start = row * 2 * half;
    match pairs {
        RopePairs::Neighbours => (start + 2 * column, start + 2 * column + 1),
        RopePairs::Halves => (start + column, start + half + column),
    }
}

fn check_rotary<T: Dtype>(arch: &str, turn: impl Fn(f64, f64, f64, f64) -> (f64, f64)) {
    let (batches, heads, positions, half) = (2, 3, 5, 8);
    let rows = heads * positions;
    let numel = batches * rows * half;
    let source = Numbers::<T>::new(&noise(2 * numel, 5));
    let angles = noise(batches * positions * half, 6);
    let cos = Numbers::<T>::new(&angles.iter().map(|angle| angle.cos()).collect::<Vec<_>>());
    let sin = Numbers::<T>::new(&angles.iter().map(|angle| angle.sin()).collect::<Vec<_>>());
    let (values, cosines, sines) = (source.read(), cos.read(), sin.read());
    // Heads before or after positions; angles per batch, or shared by all batches.
    let strides = [(1, positions), (heads, 1)].map(|rows| [0, positions * half].map(|angles| (rows, angles)));
    for (pairs, in_packs) in RopePairs::ALL.into_iter().flat_map(|pairs| [(pairs, false), (pairs, true)]) {
        for ((position_rows, head_rows), batch_angles) in strides.into_iter().flatten() {
            let result = Numbers::<T>::new(&vec![0.0; 2 * numel]);
            let arguments = Rope {
                half: half as u32,
                positions: positions as u32,
                heads: heads as u32,
                batches: batches as u32,
                position_rows: position_rows as u32,
                head_rows: head_rows as u32,
                batch_angles: batch_angles as u32,
                in_packs,
                src: source.pointer(),
                cos: cos.pointer(),
                sin: sin.pointer(),
                dst: result.pointer(),
            };
            // Fewer workgroups than heads and batches, so each processes several.
            launch(Rope::kernel(pairs, T::ELEMENT), &arguments, arch, [1, 2, 1], [64, 1, 1]);
            let mut wanted = vec![0.0; 2 * numel];
            for batch in 0..batches {
                for (head, position) in (0..rows).map(|row| (row / positions, row % positions)) {
                    let row = batch * rows + head * head_rows + position * position_rows;
                    for column in 0..half {
                        let angle = batch * batch_angles + position * half + column;
                        let (first, second) = places(pairs, half, row, column);
                        (wanted[first], wanted[second]) =
                            turn(values[first], values[second], cosines[angle], sines[angle]);
                    }
                }
            }
            assert_eq!(result.read(), wanted, "{pairs:?} {:?} in packs: {in_packs}, on {arch}", T::ELEMENT);
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
