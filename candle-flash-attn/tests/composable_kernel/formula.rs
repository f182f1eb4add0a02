//! Compares Composable Kernel's code objects with the formula in f64.
use candle::rocm::{Buffer, DeviceElement, RocmDevice};
use candle::{Result, WithDType};
use candle_flash_attn::ck::{Element, Instance, Library, LogSumExp, Operand, Problem, SequenceStarts};
use half::{bf16, f16};
use serial_test::serial;

use crate::built;

/// 16-bit float types and their rounding errors.
pub trait Float: DeviceElement + WithDType {
    const ELEMENT: Element;
    /// Maximum relative error of a probability, which the kernels round to this type before the second product. f16 is
    /// truncated.
    const OF_PROBABILITIES: f64;
    /// Maximum relative rounding error of a result.
    const OF_RESULTS: f64;
    /// Smallest normal number. gfx90a's matrix instructions flush smaller numbers to zero.
    const SMALLEST: f64;
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

impl Float for f16 {
    const ELEMENT: Element = Element::F16;
    const OF_PROBABILITIES: f64 = 1.0 / 1024.0;
    const OF_RESULTS: f64 = 1.0 / 2048.0;
    const SMALLEST: f64 = 1.0 / 16384.0;
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
}

impl Float for bf16 {
    const ELEMENT: Element = Element::Bf16;
    const OF_PROBABILITIES: f64 = 1.0 / 256.0;
    const OF_RESULTS: f64 = 1.0 / 256.0;
    const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
}

/// A test case: queries and keys of each sequence, heads, widths, and window.
#[derive(Clone, Debug)]
pub struct Case {
    pub lengths: Vec<(usize, usize)>,
    pub heads: usize,
    pub key_heads: usize,
    pub width: usize,
    pub value_width: usize,
    pub left: Option<usize>,
    pub right: Option<usize>,
    /// True if heads are an outer dimension of dense operands, as after Candle's `transpose`.
    pub heads_first: bool,
    pub varlen: bool,
}

/// One operand on the host: `heads` times `width` values for each row of each sequence.
pub struct Values<T> {
    pub values: Vec<T>,
    starts: Vec<usize>,
    varlen: bool,
    place: Operand,
}

impl<T: Float> Values<T> {
    pub fn new(lengths: &[usize], heads: usize, width: usize, case: &Case, seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::of((state >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
        };
        let rows: usize = lengths.iter().sum();
        let starts = lengths.iter().scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        let values = (0..rows * heads * width).map(|_| next()).collect();
        let batch = lengths[0] * heads * width;
        let place = if case.heads_first {
            Operand { address: 0, row: width, head: lengths[0] * width, batch }
        } else {
            Operand { address: 0, row: heads * width, head: width, batch }
        };
        Self { values, starts, varlen: case.varlen, place }
    }

    /// Returns the index of the first value of a row of a head of a sequence.
    pub fn at(&self, sequence: usize, head: usize, row: usize) -> usize {
        let place = self.place;
        let before = if self.varlen { self.starts[sequence] * place.row } else { sequence * place.batch };
        before + row * place.row + head * place.head
    }
}

/// Returns the values and tolerances of a query's result, and the logarithm of its sum of exponentials.
pub fn reference<T: Float>(
    case: &Case,
    [q, k, v]: [&Values<T>; 3],
    sequence: usize,
    head: usize,
    query: usize,
) -> (Vec<(f64, f64)>, f64) {
    let (queries, keys) = case.lengths[sequence];
    let key_head = head / (case.heads / case.key_heads);
    let diagonal = query as i64 + keys as i64 - queries as i64;
    let sees = |key: usize| {
        let distance = key as i64 - diagonal;
        case.left.is_none_or(|left| -distance <= left as i64)
            && case.right.is_none_or(|right| distance <= right as i64)
    };
    let seen: Vec<usize> = (0..keys).filter(|key| sees(*key)).collect();
    let from = q.at(sequence, head, query);
    let scores: Vec<f64> = seen
        .iter()
        .map(|key| {
            let to = k.at(sequence, key_head, *key);
            (0..case.width).map(|d| q.values[from + d].value() * k.values[to + d].value()).sum::<f64>()
                * SCALE
        })
        .collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    let result = (0..case.value_width).map(|d| {
        let (mut value, mut size, mut lost) = (0.0, 0.0, 0.0);
        for (score, key) in scores.iter().zip(&seen) {
            let probability = (score - most).exp();
            let term = probability / sum * v.values[v.at(sequence, key_head, *key) + d].value();
            value += term;
            size += term.abs();
            if probability <= T::SMALLEST {
                lost += term.abs();
            }
        }
        // Half an ulp of the result, plus the errors of the probabilities and of the f32 steps, plus values and results
        // that are flushed to zero.
        let half = T::OF_RESULTS * f64::abs(value).log2().floor().exp2();
        (value, 1.05 * T::OF_PROBABILITIES * size + half + lost + 2.0 * T::SMALLEST + 1e-5)
    });
    (result.collect(), most + sum.ln())
}

pub const SCALE: f64 = 0.3;

/// Runs the case. Returns the number of compared values, or `None` if its instance was not built.
fn run<T: Float>(device: &RocmDevice, library: &Library, case: &Case) -> Result<Option<usize>> {
    let Case { lengths, heads, key_heads, width, value_width, varlen, .. } = case.clone();
    let queries: Vec<usize> = lengths.iter().map(|(queries, _)| *queries).collect();
    let keys: Vec<usize> = lengths.iter().map(|(_, keys)| *keys).collect();
    let q = Values::<T>::new(&queries, heads, width, case, 1);
    let k = Values::<T>::new(&keys, key_heads, width, case, 2);
    let v = Values::<T>::new(&keys, key_heads, value_width, case, 3);
    let mut o = Values::<T>::new(&queries, heads, value_width, case, 4);
    let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    let total: usize = queries.iter().sum();

    let address = |buffer: &Buffer<T>| buffer.ptr().0 as u64;
    let [on_q, on_k, on_v, on_o] = [&q, &k, &v, &o].map(|operand| device.clone_htod(&operand.values));
    let (on_q, on_k, on_v, on_o) = (on_q?, on_k?, on_v?, on_o?);
    let log_sums = device.clone_htod(&vec![f32::NAN; heads * total])?;
    let starts = |lengths: &[usize]| {
        let ends = lengths.iter().scan(0, |sum, n| {
            *sum += *n as i32;
            Some(*sum)
        });
        device.clone_htod(&std::iter::once(0).chain(ends).collect::<Vec<i32>>())
    };
    let (query_starts, key_starts) = (starts(&queries)?, starts(&keys)?);
    let dense_heads = if varlen { total } else { queries[0] };
    let problem = Problem {
        element: T::ELEMENT,
        batch: lengths.len(),
        heads,
        key_heads,
        queries: longest(&queries),
        keys: longest(&keys),
        width,
        value_width,
        scale: SCALE as f32,
        left: case.left,
        right: case.right,
        q: Operand { address: address(&on_q), ..q.place },
        k: Operand { address: address(&on_k), ..k.place },
        v: Operand { address: address(&on_v), ..v.place },
        o: Operand { address: address(&on_o), ..o.place },
        log_sums: LogSumExp {
            address: log_sums.ptr().0 as u64,
            head: dense_heads,
            batch: heads * queries[0],
        },
        starts: varlen.then(|| SequenceStarts {
            queries: query_starts.ptr().0 as u64,
            keys: key_starts.ptr().0 as u64,
        }),
    };
    let call = problem.call().map_err(candle::Error::wrap)?;
    if library.code_object(call.instance).is_none() {
        return Ok(None);
    }
    // SAFETY: the buffers cover all sequences.
    unsafe { call.run(device, library)? };
    o.values = device.clone_dtoh(&on_o)?;
    let log_sums = device.clone_dtoh(&log_sums)?;
    let mut compared = 0;
    for (sequence, queries) in queries.iter().enumerate() {
        for head in 0..heads {
            for query in 0..*queries {
                let (expected, log_sum) = reference(case, [&q, &k, &v], sequence, head, query);
                let from = o.at(sequence, head, query);
                let place = format!(
                    "{} {case:?}: sequence {sequence}, head {head}, query {query}",
                    call.instance.name()
                );
                for (d, (expected, tolerance)) in expected.into_iter().enumerate() {
                    let got = o.values[from + d].value();
                    assert!((got - expected).abs() <= tolerance, "{place}, {d}: {got}, expected {expected}");
                }
                let at = if varlen {
                    head * total + o.starts[sequence]
                } else {
                    (sequence * heads + head) * queries
                };
                let got = f64::from(log_sums[at + query]);
                let is_near = got == log_sum || (got - log_sum).abs() <= 1e-4;
                assert!(is_near, "{place}: log-sum {got}, expected {log_sum}");
                compared += value_width + 1;
            }
        }
    }
    Ok(Some(compared))
}

/// Numbers of queries and keys around the edges of tiles.
const LENGTHS: [(usize, usize); 9] =
    [(1, 1), (1, 129), (63, 64), (65, 63), (127, 128), (128, 127), (129, 129), (130, 257), (200, 5)];

/// Returns cases for an instance, in the order of [`LENGTHS`].
pub fn cases(instance: Instance) -> impl Iterator<Item = Case> {
    let Instance { width, varlen, masked, .. } = instance;
    let windows: &[_] = match masked {
        true => &[(None, Some(0)), (Some(20), Some(3)), (Some(0), None)],
        false => &[(None, None)],
    };
    LENGTHS.into_iter().enumerate().map(move |(n, (queries, keys))| {
        let (left, right) = windows[n % windows.len()];
        let lengths = if varlen {
            vec![(queries, keys), (0, 7), (3, 0), LENGTHS[(n + 4) % LENGTHS.len()]]
        } else {
            vec![(queries, keys); 2]
        };
        Case {
            lengths,
            heads: 4,
            key_heads: [1, 2, 4][n % 3],
            // Heads of the instance's full width, and narrower ones.
            width: width - [0, 8, 24][n % 3],
            value_width: width - [0, 40, 8][n / 3],
            left,
            right,
            heads_first: n % 2 == 1 && !varlen,
            varlen,
        }
    })
}

/// Runs the cases of all instances of a width, and prints the number of compared values.
fn run_all<T: Float>(width: usize, varlen: bool) -> Result<()> {
    let (device, library) = built()?;
    for masked in [false, true] {
        let instance = Instance { element: T::ELEMENT, width, varlen, masked };
        let mut compared = Some(0);
        for case in cases(instance) {
            let here = run::<T>(&device, library, &case)?;
            compared = compared.zip(here).map(|(sum, here)| sum + here);
        }
        match compared {
            Some(compared) => println!("{}: {compared} numbers compared", instance.name()),
            None => println!("{}: not built", instance.name()),
        }
    }
    Ok(())
}

macro_rules! widths {
    ($($test:ident: $element:ty, $width:literal, $varlen:literal;)*) => {$(
        #[test]
        #[serial]
        #[ignore = "needs code objects that `cargo xtask ck` builds"]
        fn $test() -> Result<()> {
            run_all::<$element>($width, $varlen)
        }
    )*};
}
widths! {
    f16_heads_of_64: f16, 64, false;
    f16_heads_of_128: f16, 128, false;
    f16_heads_of_256: f16, 256, false;
    bf16_heads_of_64: bf16, 64, false;
    bf16_heads_of_128: bf16, 128, false;
    bf16_heads_of_256: bf16, 256, false;
    f16_sequences_with_heads_of_64: f16, 64, true;
    f16_sequences_with_heads_of_128: f16, 128, true;
    f16_sequences_with_heads_of_256: f16, 256, true;
    bf16_sequences_with_heads_of_64: bf16, 64, true;
    bf16_sequences_with_heads_of_128: bf16, 128, true;
    bf16_sequences_with_heads_of_256: bf16, 256, true;
}
