//! Compares the compatibility headers on the software GPU with formulas on the host.
mod software_gpu;

use std::fmt::Debug;
use std::path::Path;
use std::sync::OnceLock;

use float8::F8E4M3;
use half::{bf16, f16};
use hip_kernels_build::{Target, pipeline};
use software_gpu::{ARCH, Buffer, Element, Module, WAVE, argument};

fn module() -> Module {
    static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    let object = OBJECT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/headers.cu");
        let work_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("headers");
        pipeline::compile_one("headers", &source, &Target::parse(ARCH).unwrap(), &work_dir)
            .unwrap_or_else(|error| panic!("{error}"))
    });
    Module::load(object)
}

fn convert<I: Element, O: Element>(kernel: &str, inputs: &[I]) -> Vec<O> {
    let count = inputs.len() as u32;
    let source = Buffer::new(inputs);
    let results = Buffer::<O>::zeroed(inputs.len());
    module().launch_linear(
        kernel,
        inputs.len(),
        &mut [argument(&count), source.argument(), results.argument()],
    );
    results.read()
}

/// Asserts that bits are equal; all NaNs count as equal.
fn same<I: Debug, B: PartialEq + Debug + Copy>(
    inputs: &[I],
    got: &[B],
    wanted: impl Fn(usize) -> B,
    is_nan: impl Fn(B) -> bool,
) {
    assert_eq!(inputs.len(), got.len());
    for (index, &got) in got.iter().enumerate() {
        let wanted = wanted(index);
        let equal = got == wanted || (is_nan(got) && is_nan(wanted));
        assert!(equal, "{:x?} gave {got:x?}, wanted {wanted:x?}", inputs[index]);
    }
}

fn f16_nan(bits: u16) -> bool {
    f16::from_bits(bits).is_nan()
}

fn bf16_nan(bits: u16) -> bool {
    bf16::from_bits(bits).is_nan()
}

fn e4m3_nan(bits: u8) -> bool {
    bits & 0x7f == 0x7f
}

fn f32_nan(bits: u32) -> bool {
    f32::from_bits(bits).is_nan()
}

/// Every upper half of an f32 with lower halves at and around the midpoints of rounding.
fn f32_samples() -> Vec<u32> {
    let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
    (0..=u16::MAX).flat_map(|upper| lower.map(|lower| (u32::from(upper) << 16) | lower)).collect()
}

/// f64 values on or one f64 bit next to an f32, for which rounding twice would be wrong.
fn f64_samples() -> Vec<u64> {
    let near = |bits: u32| {
        let exact = f64::from(f32::from_bits(bits)).to_bits();
        [exact, exact.wrapping_add(1), exact.wrapping_sub(1)]
    };
    let mut samples: Vec<u64> = (0..=u16::MAX)
        .flat_map(|upper| [0u32, 0x1000, 0x8000].map(|lower| (u32::from(upper) << 16) | lower))
        .flat_map(near)
        .collect();
    // Values above and below the range of f32.
    samples
        .extend([1e300f64, -1e300, 1e-300, -1e-300, f64::MAX, f64::MIN_POSITIVE, 5e-324].map(f64::to_bits));
    samples
}

/// Pairs of 16-bit values: all of `specials` with each other, and pseudo-random ones (a linear congruence).
fn pairs(specials: &[u16]) -> (Vec<u16>, Vec<u16>) {
    let mut pairs: Vec<(u16, u16)> =
        specials.iter().flat_map(|&a| specials.iter().map(move |&b| (a, b))).collect();
    let mut state = 1u32;
    pairs.extend((0..20_000).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16) as u16, state as u16)
    }));
    pairs.into_iter().unzip()
}

const F16_SPECIALS: [u16; 12] =
    [0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7e01];
const BF16_SPECIALS: [u16; 12] =
    [0, 0x8000, 1, 0x8001, 0x007f, 0x0080, 0x3f80, 0xbf80, 0x7f7f, 0x7f80, 0xff80, 0x7fc1];

#[test]
fn bf16_conversions() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    same(
        &all,
        &convert::<_, u32>("bf16_to_f32", &all),
        |i| bf16::from_bits(all[i]).to_f32().to_bits(),
        f32_nan,
    );
    let inputs = f32_samples();
    let wanted = |i: usize| bf16::from_f32(f32::from_bits(inputs[i])).to_bits();
    same(&inputs, &convert::<_, u16>("f32_to_bf16", &inputs), wanted, bf16_nan);
    let inputs = f64_samples();
    let value_of = |bits: u16| f64::from(bf16::from_bits(bits).to_f32());
    let wanted = |i: usize| nearest(f64::from_bits(inputs[i]), 0x7f80, value_of);
    same(&inputs, &convert::<_, u16>("f64_to_bf16", &inputs), wanted, bf16_nan);
}

/// The bits of the nearest number of a 16-bit float format, ties to even, found by comparing distances in
/// f64, where its numbers and their differences are exact. `infinity` is the bit pattern of infinity.
fn nearest(value: f64, infinity: u16, value_of: fn(u16) -> f64) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let magnitude = value.abs();
    // The largest number that is not above: bit patterns are ordered like their values.
    let (mut below, mut beyond) = (0, infinity);
    while beyond - below > 1 {
        let middle = below + (beyond - below) / 2;
        if value_of(middle) <= magnitude { below = middle } else { beyond = middle }
    }
    // Rounding treats the first number out of range as the neighbour of the largest.
    let above = if beyond == infinity {
        2.0 * value_of(infinity - 1) - value_of(infinity - 2)
    } else {
        value_of(beyond)
    };
    let (down, up) = (magnitude - value_of(below), above - magnitude);
    let rounded = if down < up || (down == up && below % 2 == 0) { below } else { beyond };
    rounded | if value.is_sign_negative() { 0x8000 } else { 0 }
}

#[test]
fn f16_conversions() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    same(
        &all,
        &convert::<_, u32>("f16_to_f32", &all),
        |i| f16::from_bits(all[i]).to_f32().to_bits(),
        f32_nan,
    );
    let inputs = f32_samples();
    let wanted = |i: usize| f16::from_f32(f32::from_bits(inputs[i])).to_bits();
    same(&inputs, &convert::<_, u16>("f32_to_f16", &inputs), wanted, f16_nan);
    let inputs = f64_samples();
    let value_of = |bits: u16| f64::from(f16::from_bits(bits).to_f32());
    let wanted = |i: usize| nearest(f64::from_bits(inputs[i]), 0x7c00, value_of);
    same(&inputs, &convert::<_, u16>("f64_to_f16", &inputs), wanted, f16_nan);
}

#[test]
fn e4m3_conversions() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let wanted = |i: usize| F8E4M3::from_bits(all[i]).to_f32().to_bits();
    same(&all, &convert::<_, u32>("e4m3_to_f32", &all), wanted, f32_nan);
    let wanted = |i: usize| f16::from_f32(F8E4M3::from_bits(all[i]).to_f32()).to_bits();
    same(&all, &convert::<_, u16>("e4m3_to_f16", &all), wanted, f16_nan);
    let inputs = f32_samples();
    let wanted = |i: usize| F8E4M3::from_f32(f32::from_bits(inputs[i])).to_bits();
    same(&inputs, &convert::<_, u8>("f32_to_e4m3", &inputs), wanted, e4m3_nan);
    let inputs = f64_samples();
    let wanted = |i: usize| F8E4M3::from_f64(f64::from_bits(inputs[i])).to_bits();
    same(&inputs, &convert::<_, u8>("f64_to_e4m3", &inputs), wanted, e4m3_nan);
}

/// Launches a kernel on pairs, with `per_pair` results for each.
fn on_pairs(kernel: &str, left: &[u16], right: &[u16], per_pair: usize) -> Vec<u16> {
    let count = left.len() as u32;
    let (a, b) = (Buffer::new(left), Buffer::new(right));
    let results = Buffer::<u16>::zeroed(per_pair * left.len());
    module().launch_linear(
        kernel,
        left.len(),
        &mut [argument(&count), a.argument(), b.argument(), results.argument()],
    );
    results.read()
}

/// Compares five results per pair with a reference that rounds the exact f32 result.
fn check_arithmetic(kernel: &str, specials: &[u16], to_f32: fn(u16) -> f32, from_f32: fn(f32) -> u16) {
    let (left, right) = pairs(specials);
    let results = on_pairs(kernel, &left, &right, 5);
    let inputs: Vec<_> = left.iter().zip(&right).flat_map(|pair| [pair; 5]).collect();
    let wanted = |index: usize| {
        let (a, b) = (to_f32(left[index / 5]), to_f32(right[index / 5]));
        match index % 5 {
            0 => from_f32(a + b),
            1 => from_f32(a - b),
            2 => from_f32(a * b),
            3 => from_f32(a / b),
            _ => u16::from(a < b),
        }
    };
    same(&inputs, &results, wanted, |bits| to_f32(bits).is_nan());
}

#[test]
fn bf16_arithmetic_rounds_once() {
    check_arithmetic(
        "arithmetic_bf16",
        &BF16_SPECIALS,
        |bits| bf16::from_bits(bits).to_f32(),
        |value| bf16::from_f32(value).to_bits(),
    );
}

// f32 has more than twice the bits of f16 plus two, so rounding its rounded result again is correct.
#[test]
fn f16_arithmetic_rounds_once() {
    check_arithmetic(
        "arithmetic_f16",
        &F16_SPECIALS,
        |bits| f16::from_bits(bits).to_f32(),
        |value| f16::from_f32(value).to_bits(),
    );
}

/// max and min return the other operand if one is NaN; the `_nan` variants return NaN. Only quiet NaNs are tested: for a
/// signalling one, which no operation produces, IEEE 754-2008 allows maxNum to return NaN.
fn check_extrema(kernel: &str, specials: &[u16], to_f32: fn(u16) -> f32, quiet: u16) {
    let (mut left, mut right) = pairs(specials);
    for bits in left.iter_mut().chain(&mut right).filter(|bits| to_f32(**bits).is_nan()) {
        *bits |= quiet;
    }
    let results = on_pairs(kernel, &left, &right, 4);
    for (index, &bits) in results.iter().enumerate() {
        let (a, b) = (to_f32(left[index / 4]), to_f32(right[index / 4]));
        let got = to_f32(bits);
        let nan_wins = index % 4 >= 2 && (a.is_nan() || b.is_nan());
        let wanted = match index % 2 {
            _ if nan_wins => f32::NAN,
            0 => a.max(b),
            _ => a.min(b),
        };
        // Zeros of either sign count as equal here.
        let equal = got == wanted || (got.is_nan() && wanted.is_nan());
        assert!(equal, "form {} of {a} and {b} gave {got}, wanted {wanted}", index % 4);
    }
}

#[test]
fn extrema_treat_nan_as_cuda_does() {
    check_extrema("extrema_f16", &F16_SPECIALS, |bits| f16::from_bits(bits).to_f32(), 0x0200);
    check_extrema("extrema_bf16", &BF16_SPECIALS, |bits| bf16::from_bits(bits).to_f32(), 0x0040);
}

/// Many threads add small integers to a few cells; the cells between them must not change.
fn check_atomic_add(kernel: &str, to_bits: fn(f32) -> u16) {
    // Odd and even cells, a pair in one 32-bit word, and one in the last word.
    let used = [1usize, 4, 5, 10];
    let untouched = 0xabcd;
    let mut memory = vec![untouched; 12];
    let mut sums = [0f32; 4];
    used.iter().for_each(|&cell| memory[cell] = 0);
    let count = 1000;
    let mut cells = Vec::new();
    let mut values = Vec::new();
    for thread in 0..count {
        // Sums stay below 128, so that they are exact in bf16 too.
        let value = if thread % 10 == 0 { 1.0 } else { 0.0 };
        cells.push(used[thread % 4] as u32);
        values.push(to_bits(value));
        sums[thread % 4] += value;
    }
    let (cell_buffer, value_buffer, device) =
        (Buffer::new(&cells), Buffer::new(&values), Buffer::new(&memory));
    module().launch_linear(
        kernel,
        count,
        &mut [argument(&(count as u32)), cell_buffer.argument(), value_buffer.argument(), device.argument()],
    );
    used.iter().zip(sums).for_each(|(&cell, sum)| memory[cell] = to_bits(sum));
    assert_eq!(device.read(), memory);
}

#[test]
fn atomic_addition_of_16_bits_leaves_the_neighbours() {
    check_atomic_add("atomic_add_f16", |value| f16::from_f32(value).to_bits());
    check_atomic_add("atomic_add_bf16", |value| bf16::from_f32(value).to_bits());
}

#[test]
fn a_16_bit_compare_and_swap_has_one_winner() {
    let free = 0xffffu16;
    let count = 512;
    // Threads compete for cells 1 to 7, of which cell 3 is not free; cells 0 and 8 must not change.
    let mut memory = vec![free; 9];
    memory[3] = 0x1234;
    let cells: Vec<u32> = (0..count).map(|thread| 1 + thread % 7).collect();
    let (cell_buffer, device) = (Buffer::new(&cells), Buffer::new(&memory));
    let seen = Buffer::<u16>::zeroed(count as usize);
    module().launch_linear(
        "atomic_claim",
        count as usize,
        &mut [
            argument(&count),
            cell_buffer.argument(),
            argument(&u32::from(free)),
            device.argument(),
            seen.argument(),
        ],
    );
    let (after, seen) = (device.read(), seen.read());
    assert_eq!([after[0], after[3], after[8]], [free, 0x1234, free]);
    for cell in [1u32, 2, 4, 5, 6, 7] {
        let winner = after[cell as usize];
        assert_ne!(winner, free, "no thread claimed cell {cell}");
        assert_eq!(cells[usize::from(winner) - 1], cell, "cell {cell} holds another's mark");
        for (thread, _) in cells.iter().enumerate().filter(|(_, taken)| **taken == cell) {
            let wanted = if thread + 1 == usize::from(winner) { free } else { winner };
            assert_eq!(seen[thread], wanted, "thread {thread} on cell {cell}");
        }
    }
}

/// The lane that a shuffle reads from, by CUDA's definition, for waves of [`WAVE`] lanes.
fn source_lane(kind: i32, amount: usize, width: usize, lane: usize) -> usize {
    let width = width.min(WAVE);
    let (base, within) = (lane / width * width, lane % width);
    match kind {
        0 => base + amount % width,
        1 if (lane ^ amount) < base + width => lane ^ amount,
        2 if within >= amount => lane - amount,
        3 if within + amount < width => lane + amount,
        _ => lane,
    }
}

fn check_shuffles<T: Element + PartialEq + Debug>(kernel: &str, value: fn(usize) -> T) {
    let module = module();
    let threads = 2 * WAVE;
    let inputs: Vec<T> = (0..threads).map(value).collect();
    let source = Buffer::new(&inputs);
    let results = Buffer::<T>::zeroed(threads);
    for kind in 0..4i32 {
        for width in [8i32, 16, 32, 64] {
            for amount in [0i32, 1, 2, 5, 7, 8, 15, 16, 31] {
                module.launch(
                    kernel,
                    [1, 1, 1],
                    [threads as u32, 1, 1],
                    &mut [
                        argument(&kind),
                        argument(&amount),
                        argument(&width),
                        source.argument(),
                        results.argument(),
                    ],
                );
                let wanted: Vec<T> = (0..threads)
                    .map(|thread| {
                        let (wave, lane) = (thread / WAVE * WAVE, thread % WAVE);
                        inputs[wave + source_lane(kind, amount as usize, width as usize, lane)]
                    })
                    .collect();
                assert_eq!(results.read(), wanted, "{kernel}: kind {kind}, amount {amount}, width {width}");
            }
        }
    }
}

#[test]
fn shuffles_of_every_width_and_size() {
    check_shuffles::<u8>("shuffle_u8", |thread| 3 * thread as u8 + 1);
    // Bit patterns of finite numbers.
    check_shuffles::<u16>("shuffle_u16", |thread| 0x3c00 + 7 * thread as u16);
    check_shuffles::<u32>("shuffle_u32", |thread| 0x3f80_0000 + 0x1_0001 * thread as u32);
    check_shuffles::<u64>("shuffle_u64", |thread| 0x3ff0_0000_0000_0001 + 0x1_0000_0001 * thread as u64);
}

/// Words whose bytes are at and around the limits, and pseudo-random ones.
fn byte_words() -> (Vec<i32>, Vec<i32>) {
    let bytes = [0u8, 1, 2, 0x7e, 0x7f, 0x80, 0x81, 0xfe, 0xff];
    let mut words: Vec<(i32, i32)> = bytes
        .iter()
        .flat_map(|&a| bytes.iter().map(move |&b| (a, b)))
        .map(|(a, b)| (i32::from_le_bytes([a, b, b, a]), i32::from_le_bytes([b, a, b, a])))
        .collect();
    let mut state = 7u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state ^ (state >> 15)) as i32
    };
    words.extend((0..5000).map(|_| (random(), random())));
    words.into_iter().unzip()
}

#[test]
fn dot_product_of_bytes() {
    let (a, b) = byte_words();
    let c: Vec<i32> = (0..a.len() as i32).map(|i| i.wrapping_mul(0x1234_5677)).collect();
    let count = a.len() as u32;
    let (a_buffer, b_buffer, c_buffer) = (Buffer::new(&a), Buffer::new(&b), Buffer::new(&c));
    let results = Buffer::<i32>::zeroed(a.len());
    module().launch_linear(
        "dot_bytes",
        a.len(),
        &mut [
            argument(&count),
            a_buffer.argument(),
            b_buffer.argument(),
            c_buffer.argument(),
            results.argument(),
        ],
    );
    for (index, got) in results.read().into_iter().enumerate() {
        let (left, right) = (a[index].to_le_bytes(), b[index].to_le_bytes());
        let dot = left.iter().zip(right).map(|(&left, right)| i32::from(left as i8) * i32::from(right as i8));
        assert_eq!(got, c[index].wrapping_add(dot.sum()), "{:x} . {:x}", a[index], b[index]);
    }
}

#[test]
fn saturated_difference_of_bytes() {
    let (a, b) = byte_words();
    let count = a.len() as u32;
    let (a_buffer, b_buffer) = (Buffer::new(&a), Buffer::new(&b));
    let results = Buffer::<i32>::zeroed(a.len());
    module().launch_linear(
        "subtract_bytes",
        a.len(),
        &mut [argument(&count), a_buffer.argument(), b_buffer.argument(), results.argument()],
    );
    for (index, got) in results.read().into_iter().enumerate() {
        let (a, b) = (a[index].to_le_bytes(), b[index].to_le_bytes());
        let wanted = std::array::from_fn(|byte| (a[byte] as i8).saturating_sub(b[byte] as i8) as u8);
        assert_eq!(got.to_le_bytes(), wanted, "{a:?} - {b:?}");
    }
}

#[test]
fn thread_indices_and_by_value_layouts_are_correct() {
    let (grid, block) = ([3u32, 2, 2], [5u32, 4, 3]);
    let threads = (grid.iter().product::<u32>() * block.iter().product::<u32>()) as usize;
    let layout: [usize; 32] = std::array::from_fn(|i| 1000 + i);
    let places = Buffer::<u32>::zeroed(12 * threads);
    let sum = Buffer::<u64>::zeroed(1);
    module().launch(
        "where_am_i",
        grid,
        block,
        &mut [argument(&layout), argument(&32u32), places.argument(), sum.argument()],
    );
    let mut wanted = Vec::new();
    for (z, y, x) in coordinates(grid) {
        for (tz, ty, tx) in coordinates(block) {
            wanted.extend([tx, ty, tz, x, y, z]);
            wanted.extend(block);
            wanted.extend(grid);
        }
    }
    assert_eq!(places.read(), wanted);
    assert_eq!(sum.read(), [(0..32).map(|i| (i + 1) * (1000 + i)).sum::<u64>()]);
}

/// Returns all (z, y, x) below `size`, with x varying fastest.
fn coordinates(size: [u32; 3]) -> impl Iterator<Item = (u32, u32, u32)> {
    (0..size[2]).flat_map(move |z| (0..size[1]).flat_map(move |y| (0..size[0]).map(move |x| (z, y, x))))
}
