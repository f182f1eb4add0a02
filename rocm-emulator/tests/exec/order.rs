//! Tests of seeds: kernels that depend on the order of waves or workgroups fail, reproducibly, with some.
use super::code_object::{Arguments, CodeObject, Shape, WAVE_SIZES, readable, writable};
use rocm_emulator::exec::Instrumentation;
use std::collections::BTreeSet;

/// Seeds that continuous integration would use.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

fn seeded(shape: Shape, seed: u64) -> Shape {
    Shape { instrumentation: Instrumentation { seed: Some(seed), ..Instrumentation::default() }, ..shape }
}

/// Runs a kernel whose last argument is `out`, without a seed and under each seed twice.
fn results(lanes: u32, kernel: &str, shape: Shape, before: &[&[u32]], out: usize) -> Vec<Vec<u32>> {
    let code = CodeObject::for_waves("order", lanes);
    let run = |shape| {
        let mut first: Vec<Vec<u32>> = before.iter().map(|values| values.to_vec()).collect();
        let mut out = vec![0u32; out];
        let mut arguments = Arguments::default();
        let mut memory = vec![writable(&mut out)];
        for values in &mut first {
            arguments = arguments.pointer(values);
            memory.push(writable(values));
        }
        if !out.is_empty() {
            arguments = arguments.pointer(&out);
        }
        code.launch(kernel, shape, &arguments, &memory).expect("no fault");
        first.into_iter().flatten().chain(out).collect::<Vec<u32>>()
    };
    let plain = run(Shape { threads: 1, ..shape });
    let mut all = vec![plain];
    for seed in SEEDS {
        let found = run(seeded(shape, seed));
        assert_eq!(found, run(seeded(shape, seed)), "seed {seed} is not reproducible");
        all.push(found);
    }
    all
}

#[test]
fn a_kernel_that_needs_the_order_of_workgroups_fails() {
    for lanes in WAVE_SIZES {
        let [plain, seeds @ ..] = &results(lanes, "chained_workgroups", Shape::new(8, 1), &[&[0]], 8)[..]
        else {
            unreachable!()
        };
        let mut total = 0u32;
        let mut expected = vec![0];
        for group in 0..8 {
            total = total * 3 + group;
            expected.push(total);
        }
        expected[0] = total;
        assert_eq!(plain, &expected, "correct in ascending order");
        assert!(seeds.iter().all(|found| found != plain), "{seeds:?}");
        assert_ne!(seeds[0], seeds[1], "seeds differ");
    }
}

#[test]
fn non_atomic_updates_are_lost() {
    for lanes in WAVE_SIZES {
        let shape = Shape::new(64, 1);
        let [plain, seeds @ ..] = &results(lanes, "lost_updates", shape, &[&[0]], 0)[..] else {
            unreachable!()
        };
        assert_eq!(plain, &[64]);
        assert!(seeds.iter().any(|found| found[0] < 64), "{seeds:?}");
        for found in results(lanes, "counted_updates", shape, &[&[0]], 0) {
            assert_eq!(found, [64]);
        }
    }
}

#[test]
fn a_missing_barrier_changes_results() {
    for lanes in WAVE_SIZES {
        let shape = Shape::new(1, 256);
        let expected: Vec<u32> = (0..256).map(|t: u32| t.checked_sub(lanes).unwrap_or(t)).collect();
        let [plain, seeds @ ..] = &results(lanes, "missing_barrier", shape, &[], 256)[..] else {
            unreachable!()
        };
        assert_eq!(plain, &expected, "correct if waves run one after another");
        assert!(seeds.iter().any(|found| found != plain), "{lanes} lanes");
        for found in results(lanes, "with_barrier", shape, &[], 256) {
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn float_atomics_depend_only_on_the_seed() {
    let code = CodeObject::for_waves("order", 32);
    let x: Vec<f32> = (0..4096).map(|i| 1.0 / (1 + i * i % 97) as f32).collect();
    let run = |seed| {
        let mut sum = [0f32];
        let arguments = Arguments::default().pointer(&x).pointer(&sum);
        let memory = [readable(&x), writable(&mut sum)];
        code.launch("float_sum", seeded(Shape::new(128, 32), seed), &arguments, &memory).expect("no fault");
        sum[0].to_bits()
    };
    let sums: Vec<u32> = (1..=20).map(run).collect();
    assert_eq!(sums, (1..=20).map(run).collect::<Vec<_>>());
    assert!(sums.iter().collect::<BTreeSet<_>>().len() > 1, "{sums:?}");
    let exact: f64 = x.iter().map(|&value| f64::from(value)).sum();
    for bits in sums {
        assert!((f64::from(f32::from_bits(bits)) - exact).abs() < 1e-3 * exact);
    }
}

#[test]
fn correct_kernels_do_not_depend_on_the_seed() {
    for lanes in WAVE_SIZES {
        let lds = CodeObject::for_waves("lds", lanes);
        let x: Vec<u32> = (0..256 * 9).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let expected: Vec<u32> =
            x.chunks(256).map(|part| part.iter().fold(0u32, |sum, &value| sum.wrapping_add(value))).collect();
        let launch = |shape| {
            let mut sums = vec![0u32; 9];
            let arguments = Arguments::default().pointer(&x).pointer(&sums);
            let memory = [readable(&x), writable(&mut sums)];
            let counters = lds.launch("block_sum", shape, &arguments, &memory).expect("no fault");
            assert_eq!(sums, expected);
            counters
        };
        let plain = launch(Shape::new(9, 256));
        for seed in SEEDS {
            // The counters don't depend on the order, either.
            assert_eq!(launch(seeded(Shape::new(9, 256), seed)), plain);
            // Waves that poll each other's progress are scheduled in turn.
            let mut x = vec![0u32; 128];
            let arguments = Arguments::default().pointer(&x);
            let shape = seeded(Shape::new(1, 128), seed);
            lds.launch("wave_handshake", shape, &arguments, &[writable(&mut x)]).expect("no fault");
            assert_eq!(x, vec![42; 128]);
            let fault = lds
                .launch("divergent_barrier", shape, &Arguments::default().pointer(&x), &[])
                .expect_err("the waves diverge at the barrier");
            assert!(fault.to_string().contains("barrier divergence"), "{fault}");
        }
    }
}
