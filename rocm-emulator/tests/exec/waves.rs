//! Tests of operations across the lanes of a wave, for both wave sizes.
use super::code_object::{Arguments, CodeObject, Shape, WAVE_SIZES, readable, writable};

/// Returns pseudorandom numbers (xorshift).
fn numbers(count: usize) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| next()).collect()
}

/// Launches `kernel` of the fixture on `inputs` with `blocks` workgroups. Each work-item has `each` results.
fn run<T, U: Copy + Default>(
    lanes: u32,
    kernel: &str,
    (blocks, block): (u32, u32),
    inputs: &[&[T]],
    each: usize,
) -> Vec<U> {
    let code = CodeObject::for_waves("waves", lanes);
    let mut out = vec![U::default(); (blocks * block) as usize * each];
    let mut arguments = Arguments::default();
    let mut memory = vec![writable(&mut out)];
    for input in inputs {
        arguments = arguments.pointer(input);
        memory.push(readable(input));
    }
    code.launch(kernel, Shape::new(blocks, block), &arguments.pointer(&out), &memory).expect("no fault");
    out
}

#[test]
fn votes_and_single_lanes() {
    for lanes in WAVE_SIZES {
        let x: Vec<u32> = numbers(384).iter().map(|&n| n as u32).collect();
        let found = run::<_, u32>(lanes, "votes", (2, 192), &[&x], 6);
        let width = lanes as usize;
        for (wave, values) in x.chunks(width).enumerate() {
            let odd = |lane: usize| values[lane] & 1 != 0;
            let first = values.iter().copied().find(|value| value & 1 != 0).unwrap_or(0);
            for lane in 0..width {
                let expected = [
                    (0..width).filter(|&other| odd(other)).count() as u32,
                    (0..lane).filter(|&other| odd(other)).count() as u32,
                    values[width - 1],
                    if odd(lane) { first } else { 0 },
                    // With 32 lanes there is no other half, so the instruction has no effect.
                    if lanes == 64 { values[lane ^ 32] } else { found[6 * (wave * width + lane) + 4] },
                    if lane == width - 5 { 42 } else { values[lane] },
                ];
                let at = 6 * (wave * width + lane);
                assert_eq!(found[at..at + 6], expected, "{lanes} lanes: wave {wave}, lane {lane}");
            }
        }
    }
}

#[test]
fn moves_within_32_lanes_do_not_depend_on_the_wave() {
    for lanes in WAVE_SIZES {
        let x: Vec<u32> = (0..256).map(|i| 1000 + i).collect();
        let found = run::<_, u32>(lanes, "exchanges", (2, 128), &[&x], 12);
        for (i, found) in found.chunks(12).enumerate() {
            let (row, place, half) = (i & !15, i & 15, i & !31);
            let within = |place: usize, otherwise: u32| if place < 16 { x[row + place] } else { otherwise };
            // The lane that sends to this lane with ds_permute.
            let sender = (0..32).find(|&from| (from * 11 + 5) % 32 == i % 32).expect("11 is odd");
            let expected = [
                x[i ^ 1],
                within(place.wrapping_sub(1), 7),
                if row & 16 != 0 { within(place + 2, 0) } else { 7 },
                x[row + 15 - place],
                x[row + 3],
                x[row + (place ^ 5)],
                x[row + [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0][place]],
                x[(row ^ 16) + [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15][place]],
                x[i ^ 16],
                x[half + (i * 7 + 3) % 32],
                x[half + sender],
                x[(i & !7) + 7 - (i & 7)],
            ];
            assert_eq!(found, expected, "{lanes} lanes: work-item {i}");
        }
    }
}

#[test]
fn atomics_of_a_wave_run_in_lane_order() {
    for lanes in WAVE_SIZES {
        // The last wave is partial.
        let x: Vec<u32> = numbers(2 * 100).iter().map(|&n| n as u32 % 1000).collect();
        let found = run::<_, u32>(lanes, "ranks", (2, 100), &[&x], 1);
        for (x, found) in x.chunks(100).zip(found.chunks(100)) {
            let mut sum = 0;
            for (&x, &found) in x.iter().zip(found).filter(|(x, _)| **x % 3 != 0) {
                assert_eq!(found, sum, "{lanes} lanes");
                sum += x;
            }
        }
    }
}

#[test]
fn carries_conditions_and_division() {
    let special =
        [0, 1, u64::MAX, 1 << 63, 1 << 32, 0x7ff0_0000_0000_0000, 0x3ff0_0000_3f80_0000, 0x7f80_0000];
    let mut a = numbers(3 * 64);
    a.iter_mut().step_by(3).zip(special.iter().cycle()).for_each(|(a, &x)| *a = x);
    let mut b: Vec<u64> = numbers(3 * 64 + 5).split_off(5);
    b.iter_mut().step_by(2).zip(special.iter().rev().cycle()).for_each(|(b, &x)| *b = x);
    let results = WAVE_SIZES.map(|lanes| run::<_, u64>(lanes, "arithmetic", (3, 64), &[&a, &b], 6));
    assert_eq!(results[0], results[1]);
    for ((&a, &b), found) in a.iter().zip(&b).zip(results[0].chunks(6)) {
        let (double, single) =
            (f64::from_bits(a) / f64::from_bits(b), f32::from_bits(a as u32) / f32::from_bits(b as u32));
        let expected = [
            a.wrapping_add(b),
            a.wrapping_sub(b),
            if (a < b) != ((a as i64) < b as i64) { a.wrapping_mul(b) } else { a ^ b },
            a / (b | 1),
            if double.is_nan() { 0 } else { double.to_bits() },
            if single.is_nan() { 0 } else { single.to_bits().into() },
        ];
        assert_eq!(found, expected, "{a:#x}, {b:#x}");
    }
}

#[test]
fn lanes_take_different_branches() {
    let x: Vec<u32> = numbers(300).iter().map(|&n| (n >> 20) as u32).collect();
    let expected: Vec<u32> = x
        .iter()
        .map(|&v| {
            let mut result = 0u32;
            for k in 0..=v % 5 {
                if v & 1 != 0 {
                    if v & 2 != 0 {
                        result = result.wrapping_add(3 * k);
                    } else if k == 2 {
                        continue;
                    }
                    result = result.wrapping_add(v);
                } else if v % 7 == k {
                    break;
                }
                result = result.wrapping_mul(5).wrapping_add(k);
            }
            result
        })
        .collect();
    for lanes in WAVE_SIZES {
        assert_eq!(run::<_, u32>(lanes, "branches", (3, 100), &[&x], 1), expected, "{lanes} lanes");
    }
}
