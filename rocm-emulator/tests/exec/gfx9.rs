//! Tests of instructions of gfx90a and gfx942 that the project's kernels do not use. Kernels are compiled
//! with and without optimisation, and compared with plain Rust.
use super::code_object::{Arguments, CodeObject, Shape, readable, writable};
use rocm_emulator::exec::Range;
use rocm_emulator::isa::Family;

/// Builds of the fixture.
const BUILDS: [(&str, Family); 4] = [
    ("gfx9.gfx90a", Family::Cdna2),
    ("gfx9.gfx90a.O0", Family::Cdna2),
    ("gfx9.gfx942", Family::Cdna3),
    ("gfx9.gfx942.O0", Family::Cdna3),
];
/// Number of work-items: two waves, in workgroups of one wave.
const ITEMS: usize = 128;

fn args() -> Arguments {
    Arguments::default()
}

fn launch(build: (&str, Family), kernel: &str, arguments: &Arguments, memory: &[Range]) {
    let code = CodeObject::for_chip(build.0, build.1);
    let shape = Shape::new(ITEMS as u32 / 64, 64);
    if let Err(fault) = code.launch(kernel, shape, arguments, memory) {
        panic!("{}: {fault}", build.0);
    }
}

/// Returns pseudorandom numbers.
fn numbers(count: usize) -> Vec<u32> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..count).map(|_| next()).collect()
}

/// Returns multiples of 1/4 between -32 and 32, whose sums and products are exact.
fn quarters(count: usize) -> Vec<f32> {
    numbers(count).iter().map(|n| (n % 257) as f32 / 4.0 - 32.0).collect()
}

#[test]
fn arrays_in_registers_and_scratch() {
    for build in BUILDS {
        let x = numbers(ITEMS);
        for at in [0u32, 5, 31, 1000] {
            let mut out = vec![0u32; ITEMS];
            let arguments = args().pointer(&x).u32(at).pointer(&out);
            launch(build, "arrays", &arguments, &[readable(&x), writable(&mut out)]);
            for (x, out) in x.iter().zip(out) {
                let mut registers: Vec<u32> = (0..32).map(|k| x.wrapping_mul(k) + 1).collect();
                registers[at as usize & 31] ^= 0xffff;
                let mut scratch: Vec<u32> = (0..40).map(|k| x.wrapping_add(k)).collect();
                scratch[x.wrapping_add(at) as usize % 40] = 7;
                let rotated = (0..40u32).map(|k| scratch[k.wrapping_add(*x) as usize % 40]);
                let terms = registers.iter().copied().chain(rotated);
                let first = registers[(at as usize + 3) & 31];
                let expected = terms.fold(first, |sum, term| sum.wrapping_mul(31).wrapping_add(term));
                assert_eq!(out, expected, "{}: {x} at {at}", build.0);
            }
        }
    }
}

#[test]
fn parts_of_registers() {
    for build in BUILDS {
        let (x, y) = (numbers(ITEMS), numbers(2 * ITEMS).split_off(ITEMS));
        let (mut out, mut sums) = (vec![0u32; ITEMS], vec![0f32; ITEMS]);
        let arguments = args().pointer(&x).pointer(&y).pointer(&out).pointer(&sums);
        let memory = [readable(&x), readable(&y), writable(&mut out), writable(&mut sums)];
        launch(build, "bytes", &arguments, &memory);
        for i in 0..ITEMS {
            let (a, b) = (x[i].to_le_bytes(), y[i].to_le_bytes());
            let each = |k: usize| a[k].wrapping_mul(b[k]).wrapping_add(b[k] >> 2).wrapping_sub(a[k]);
            assert_eq!(out[i].to_le_bytes(), [0, 1, 2, 3].map(each), "{}: {i}", build.0);
            let sum = a.iter().map(|&a| f32::from(a)).sum::<f32>() + f32::from(b[3] as i8);
            assert_eq!(sums[i], sum, "{}: {i}", build.0);
        }
    }
}

#[test]
fn pairs_of_floats() {
    for build in BUILDS {
        let (x, y) = (quarters(2 * ITEMS), quarters(4 * ITEMS).split_off(2 * ITEMS));
        let mut out = vec![0f32; 2 * ITEMS];
        let arguments = args().pointer(&x).pointer(&y).pointer(&out);
        launch(build, "pairs", &arguments, &[readable(&x), readable(&y), writable(&mut out)]);
        for i in 0..ITEMS {
            let (a, b) = ([x[2 * i], x[2 * i + 1]], [y[2 * i], y[2 * i + 1]]);
            let r = [0, 1].map(|k| (a[k] * b[k] + a[1 - k] + b[0]) * -a[k]);
            assert_eq!(out[2 * i..][..2], [r[0] + r[1] * 2.0, r[1] + r[0] * 2.0], "{}: {i}", build.0);
        }
    }
}

#[test]
fn accumulation_registers_hold_data() {
    for build in BUILDS {
        let x: Vec<f32> = (0..4 * ITEMS).map(|i| i as f32).collect();
        let mut out = vec![0f32; 4 * ITEMS];
        let arguments = args().pointer(&x).pointer(&out);
        launch(build, "accumulators", &arguments, &[readable(&x), writable(&mut out)]);
        for i in 0..ITEMS {
            let other = &x[4 * (i ^ 1)..][..4];
            assert_eq!(out[4 * i..][..4], [other[0], other[0], 2.0, other[3]], "{}: {i}", build.0);
        }
    }
}

#[test]
fn moves_across_a_wave() {
    for build in BUILDS {
        let x: Vec<f32> = (0..ITEMS).map(|i| (i * i % 97) as f32).collect();
        let (mut sums, mut moved) = (vec![0f32; ITEMS], vec![0f32; 4 * ITEMS]);
        launch(build, "wave_sums", &args().pointer(&x).pointer(&sums), &[readable(&x), writable(&mut sums)]);
        launch(
            build,
            "wave_moves",
            &args().pointer(&x).pointer(&moved),
            &[readable(&x), writable(&mut moved)],
        );
        for (wave, x) in x.chunks(64).enumerate() {
            for lane in 0..64 {
                let expected: f32 = x[..=lane].iter().sum();
                assert_eq!(sums[64 * wave + lane], expected, "{}: lane {lane}", build.0);
                let next = if lane < 63 { x[lane + 1] } else { -1.0 };
                let before = if lane > 0 { x[lane - 1] } else { -1.0 };
                let expected = [next, before, x[(lane + 1) % 64], x[(lane + 63) % 64]];
                assert_eq!(moved[4 * (64 * wave + lane)..][..4], expected, "{}: lane {lane}", build.0);
            }
        }
    }
}

#[test]
fn atomics_of_every_kind() {
    for build in BUILDS {
        let x: Vec<f64> = quarters(ITEMS).into_iter().map(f64::from).collect();
        let mut sums = vec![0.0, 1e300, -1e300];
        let mut extremes = vec![1e30f32, -1e30, 0.0];
        let mut counts = vec![0u32; 1 + ITEMS / 32];
        let arguments = args().pointer(&x).pointer(&sums).pointer(&extremes).pointer(&counts);
        let memory = [readable(&x), writable(&mut sums), writable(&mut extremes), writable(&mut counts)];
        launch(build, "atomics", &arguments, &memory);
        let least = x.iter().copied().fold(f64::INFINITY, f64::min);
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(sums, [x.iter().sum(), least, most], "{}", build.0);
        assert_eq!(extremes, [least as f32, most as f32, 1.0], "{}", build.0);
        // 64 increments from 0, wrapping after 9; 64 decrements from 5; one counter for both workgroups.
        let wrapped = [64 % 10, (5 + 640 - 64) % 10];
        assert_eq!(counts, [0, wrapped[0], wrapped[1], wrapped[0], wrapped[1]], "{}", build.0);
    }
}

#[test]
fn loads_past_the_registers() {
    for build in BUILDS {
        let x = numbers(ITEMS);
        let mut out = vec![0u32; 3 * ITEMS];
        let arguments = args().pointer(&x).pointer(&out);
        launch(build, "loads_to_lds", &arguments, &[readable(&x), writable(&mut out)]);
        for i in 0..ITEMS {
            let value = x[i ^ 1 ^ 3];
            assert_eq!(out[3 * i..][..3], [value, value & 0xffff, value & 0xff], "{}: {i}", build.0);
        }
    }
}

#[test]
fn functions_that_call() {
    fn fibonacci(n: u32) -> u32 {
        if n < 2 { n } else { fibonacci(n - 1) + fibonacci(n - 2) }
    }
    for build in BUILDS {
        let x = numbers(ITEMS);
        for which in [0, 1] {
            let mut out = vec![0u32; ITEMS];
            let arguments = args().pointer(&x).u32(which).pointer(&out);
            launch(build, "calls", &arguments, &[readable(&x), writable(&mut out)]);
            for (x, out) in x.iter().zip(out) {
                let chosen = if which == 1 { x.wrapping_mul(2) } else { x.wrapping_mul(*x) };
                assert_eq!(out, fibonacci(x % 9).wrapping_add(chosen), "{}: {x}", build.0);
            }
        }
    }
}

#[test]
fn wide_arithmetic() {
    for build in BUILDS {
        let n = numbers(4 * ITEMS);
        let x: Vec<f64> = n.iter().take(2 * ITEMS).map(|&n| f64::from(n as i32) / 65536.0).collect();
        let y: Vec<i64> =
            n.chunks(2).map(|n| (u64::from(n[0]) << 32 | u64::from(n[1])) as i64 >> (n[1] & 40)).collect();
        let (mut quotients, mut integers) = (vec![0f64; 4 * ITEMS], vec![0i64; 4 * ITEMS]);
        let arguments = args().pointer(&x).pointer(&y).pointer(&quotients).pointer(&integers);
        let memory = [readable(&x), readable(&y), writable(&mut quotients), writable(&mut integers)];
        launch(build, "wide", &arguments, &memory);
        for i in 0..ITEMS {
            let (a, b) = (x[2 * i], x[2 * i + 1]);
            let sum = a.trunc() + b.abs().trunc();
            let expected = [a / b, a.abs().sqrt(), a.round_ties_even() + b.floor() * 3.0, sum];
            assert_eq!(quotients[4 * i..][..4], expected, "{}: {a} {b}", build.0);
            let (m, n) = (y[2 * i], y[2 * i + 1]);
            let high = ((i128::from(m) * i128::from(n)) >> 64) as i64;
            let expected = [
                m / n,
                m % n,
                m.wrapping_mul(n) ^ m >> (n & 63),
                high + i64::from(m.count_ones()) + i64::from(n.leading_zeros()),
            ];
            assert_eq!(integers[4 * i..][..4], expected, "{}: {m} {n}", build.0);
        }
    }
}

/// Returns the sum of absolute differences of four bytes, without zero bytes of `b` if `masked`.
fn differences(a: u32, b: u32, masked: bool) -> u32 {
    let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    bytes.filter(|(_, b)| !masked || *b != 0).map(|(a, b)| u32::from(a.abs_diff(b))).sum()
}

#[test]
fn differences_dot_products_and_cubes() {
    for build in BUILDS {
        let (x, directions) = (numbers(3 * ITEMS), quarters(3 * ITEMS));
        let (mut quarters, mut sums) = (vec![0u64; 2 * ITEMS], vec![0u32; 7 * ITEMS]);
        let mut faces = vec![0f32; 4 * ITEMS];
        let arguments =
            args().pointer(&x).pointer(&directions).pointer(&quarters).pointer(&sums).pointer(&faces);
        let memory = [
            readable(&x),
            readable(&directions),
            writable(&mut quarters),
            writable(&mut sums),
            writable(&mut faces),
        ];
        launch(build, "special", &arguments, &memory);
        for i in 0..ITEMS {
            let [a, b, c] = [x[3 * i], x[3 * i + 1], x[3 * i + 2]];
            let wide = u64::from(b) << 32 | u64::from(a);
            let window = |k: usize| (wide >> (8 * k)) as u32;
            let four = |c: u32, addend: u64, masked: bool| {
                let part = |k: usize| differences(window(k), c, masked) as u16;
                let sum = |k: usize| part(k).wrapping_add((addend >> (16 * k)) as u16);
                (0..4).map(|k| u64::from(sum(k)) << (16 * k)).sum::<u64>()
            };
            assert_eq!(quarters[2 * i], four(c, wide.wrapping_mul(3), false), "{}: {i}", build.0);
            assert_eq!(
                quarters[2 * i + 1],
                four(c & 0xff_00ff, wide.wrapping_mul(5), true),
                "{}: {i}",
                build.0
            );
            let masked = [a, b, c, a ^ b];
            for (k, addend) in masked.into_iter().enumerate() {
                let expected = differences(window(k), c & 0xff_ff00, true).wrapping_add(addend);
                assert_eq!(sums[7 * i + k], expected, "{}: {i}", build.0);
            }
            let signed =
                |v: u32, k: u32, bits: u32| i64::from((v << (32 - bits - k * bits)) as i32 >> (32 - bits));
            let dot = |count: u32, bits: u32| -> i64 {
                (0..count).map(|k| signed(a, k, bits) * signed(b, k, bits)).sum()
            };
            let saturated = |sum: i64| sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32;
            assert_eq!(sums[7 * i + 4], saturated(dot(4, 8) + i64::from(c as i32)), "{}: {i}", build.0);
            let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            let unsigned: u32 = bytes.map(|(a, b)| u32::from(a) * u32::from(b)).sum();
            assert_eq!(sums[7 * i + 5], unsigned + (!c & 0xff), "{}: {i}", build.0);
            assert_eq!(sums[7 * i + 6], saturated(dot(8, 4) + 0x7fff_ff00), "{}: {i}", build.0);

            let [u, v, w] = [directions[3 * i], directions[3 * i + 1], directions[3 * i + 2]];
            let largest = u.abs().max(v.abs()).max(w.abs());
            // The expected values are face, s, t, and twice the largest coordinate.
            let expected = if w.abs() == largest {
                if w < 0.0 { [5.0, -u, -v, 2.0 * w] } else { [4.0, u, -v, 2.0 * w] }
            } else if v.abs() == largest {
                if v < 0.0 { [3.0, u, -w, 2.0 * v] } else { [2.0, u, w, 2.0 * v] }
            } else if u < 0.0 {
                [1.0, w, -v, 2.0 * u]
            } else {
                [0.0, -w, -v, 2.0 * u]
            };
            assert_eq!(faces[4 * i..][..4], expected, "{}: {u} {v} {w}", build.0);
        }
    }
}

/// Returns all values of an 8-bit float format of gfx942 by code, without NaN.
fn small_floats(fraction_bits: i32) -> Vec<(u32, f64)> {
    let bias = 1 << (6 - fraction_bits);
    let of = |code: u32| {
        let (exponent, fraction) = ((code & 0x7f) >> fraction_bits, code & ((1 << fraction_bits) - 1));
        let leading = if exponent == 0 { 0.0 } else { 1.0 };
        let magnitude = (leading + f64::from(fraction) / f64::from(1 << fraction_bits))
            * 2f64.powi(exponent.max(1) as i32 - bias);
        (code, if code < 128 { magnitude } else { -magnitude })
    };
    (0..256).filter(|code| *code != 128).map(of).collect()
}

/// Returns the code nearest to a value, ties to even. Values that overflow become NaN, 0x80.
fn nearest(value: f32, fraction_bits: i32) -> u32 {
    let value = f64::from(value);
    let all = small_floats(fraction_bits);
    let largest = all[127].1;
    // Overflow begins half a step above the largest value.
    let half_place = (largest - all[126].1) / 2.0;
    if value.is_nan() || value.abs() >= largest + half_place {
        return 0x80;
    }
    let distance = |code: &&(u32, f64)| ((code.1 - value).abs(), code.0 & 1);
    let best = all.iter().min_by(|a, b| distance(a).partial_cmp(&distance(b)).expect("no NaN"));
    best.map_or(0x80, |(code, _)| *code)
}

#[test]
fn eight_bit_floats() {
    for build in [BUILDS[2], BUILDS[3]] {
        let codes: Vec<u32> =
            (0..ITEMS as u32).map(|i| (2 * i) | (2 * i + 1) << 8 | (255 - i) << 16 | i << 24).collect();
        let edges =
            [0.0, -0.0, 240.0, 247.9, 248.0, -248.0, 57344.0, 61440.0, 1e9, f32::INFINITY, f32::NAN, 1e-9];
        let ties =
            [1.0625, 1.1875, 2f32.powi(-11), 3.0 * 2f32.powi(-11), 2f32.powi(-18), -3.0 * 2f32.powi(-18)];
        let spread = numbers(2 * ITEMS).into_iter().map(|n| f32::from_bits(n & 0x9fff_ffff | 0x2800_0000));
        let values: Vec<f32> = edges.into_iter().chain(ties).chain(spread).take(2 * ITEMS).collect();
        let (mut from, mut to) = (vec![0f32; 8 * ITEMS], vec![0u32; 4 * ITEMS]);
        let arguments = args().pointer(&codes).pointer(&values).pointer(&from).pointer(&to);
        let memory = [readable(&codes), readable(&values), writable(&mut from), writable(&mut to)];
        launch(build, "small_floats", &arguments, &memory);
        let tables = [small_floats(3), small_floats(2)];
        for i in 0..ITEMS {
            let code = codes[i].to_le_bytes();
            for (k, (table, byte)) in
                [(0, 0), (0, 3), (1, 1), (1, 2), (0, 0), (0, 1), (1, 2), (1, 3)].into_iter().enumerate()
            {
                let found = from[8 * i + k];
                match tables[table].iter().find(|(each, _)| *each == code[byte].into()) {
                    Some((_, value)) => assert_eq!(f64::from(found), *value, "{}: {i} {k}", build.0),
                    None => assert!(found.is_nan(), "{}: {i} {k}", build.0),
                }
            }
            let (a, b, c) = (values[2 * i], values[2 * i + 1], codes[i]);
            let pair = |bits| nearest(a, bits) | nearest(b, bits) << 8;
            assert_eq!(to[4 * i], c & 0xffff | pair(3) << 16, "{}: {a} {b}", build.0);
            assert_eq!(to[4 * i + 1], c & 0xffff_0000 | pair(2), "{}: {a} {b}", build.0);
            // The result is one of the two neighbours, and the other bytes are preserved.
            for (k, value, shift, table) in [(2, a, 8, &tables[0]), (3, b, 24, &tables[1])] {
                let word = to[4 * i + k];
                assert_eq!(word & !(0xff << shift), c & !(0xff << shift), "{}: {value}", build.0);
                let found = table.iter().find(|(code, _)| *code == word >> shift & 0xff);
                let exact = f64::from(value);
                let largest = table[127].1;
                match found {
                    None => assert!(exact.is_nan() || exact.abs() > largest, "{}: {value}", build.0),
                    Some((_, near)) => {
                        let between = table.iter().filter(|(_, other)| {
                            (*other > exact && other < near) || (*other < exact && other > near)
                        });
                        assert_eq!(between.count(), 0, "{}: {value} became {near}", build.0);
                    }
                }
            }
        }
    }
}
