//! Tests of profiles, with kernels whose counts can be computed by hand.
use super::code_object::{Arguments, CodeObject, Shape, WAVE_SIZES, readable, writable};
use rocm_emulator::exec::{Counters, Instrumentation, Profile};

/// A cache line of 128 bytes.
#[repr(align(128))]
struct Line([u32; 32]);

fn lines(count: u32) -> Vec<Line> {
    (0..count).map(|line| Line(std::array::from_fn(|word| 32 * line + word as u32))).collect()
}

fn profiled(shape: Shape) -> Shape {
    Shape { instrumentation: Instrumentation { profile: true, ..shape.instrumentation }, ..shape }
}

fn strided(lanes: u32, waves: u32, stride: u32, offset: usize) -> Counters {
    let code = CodeObject::for_waves("profile", lanes);
    let (x, mut y) = (lines(lanes * waves * stride / 32 + 1), lines(lanes * waves / 32));
    let arguments = Arguments::default().pointer(&x[0].0[offset..]).pointer(&y).u32(stride);
    let memory = [readable(&x), writable(&mut y)];
    let counters = code.launch("strided", profiled(Shape::new(1, lanes * waves)), &arguments, &memory);
    let expected = (0..lanes * waves).map(|t| t * stride + offset as u32);
    assert!(y.iter().flat_map(|line| line.0).eq(expected));
    counters.expect("no fault")
}

#[test]
fn strided_loads_touch_more_lines() {
    for lanes in WAVE_SIZES {
        for waves in [1, 4] {
            // All lanes execute six register instructions, a load and a store.
            let (per_wave, waves_64) = (u64::from(lanes), u64::from(waves));
            let all_lanes = 8 * per_wave * waves_64;
            let dense = per_wave * 4 / 128;
            let expect = |offset: usize, stride: u32, loaded_64: u64, loaded_128: u64| {
                let counters = strided(lanes, waves, stride, offset);
                let profile = counters.profile;
                let expected = Profile {
                    lanes: all_lanes,
                    active_lanes: all_lanes,
                    accesses: 2 * waves_64,
                    bytes: 8 * per_wave * waves_64,
                    lines_64: (loaded_64 + 2 * dense) * waves_64,
                    min_lines_64: 4 * dense * waves_64,
                    lines_128: (loaded_128 + dense) * waves_64,
                    min_lines_128: 2 * dense * waves_64,
                    // Lines that two waves access count once.
                    lines_loaded: ((per_wave * waves_64 - 1) * u64::from(stride) + offset as u64) / 32 + 1,
                    lines_stored: dense * waves_64,
                    // The multiplication by the stride.
                    quarter_rate: waves_64,
                    ..Profile::default()
                };
                assert_eq!(profile, expected, "{lanes} lanes, stride {stride}, offset {offset}");
                assert_eq!((counters.vector, counters.global_memory), (6 * waves_64, 2 * waves_64));
                // Scalar loads read the two pointers and the stride.
                assert_eq!(counters.bytes_loaded, (4 * per_wave + 20) * waves_64);
                assert_eq!(counters.bytes_stored, 4 * per_wave * waves_64);
            };
            expect(0, 1, 2 * dense, dense);
            expect(0, 2, 4 * dense, 2 * dense);
            expect(0, 32, per_wave, per_wave);
            // With an offset of one word, the last word is in an additional line.
            expect(1, 1, 2 * dense + 1, dense + 1);
        }
    }
}

#[test]
fn bank_conflicts_follow_the_stride() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("profile", lanes);
        for (stride, conflicts) in [(1, 0), (2, 1), (4, 3), (8, 7), (16, 15), (32, 31), (31, 0), (0, 0)] {
            if lanes * stride > 2048 {
                continue;
            }
            let mut y = lines(lanes / 32);
            let arguments = Arguments::default().pointer(&y).u32(stride);
            let shape = profiled(Shape::new(3, lanes));
            let counters = code.launch("banks", shape, &arguments, &[writable(&mut y)]).expect("no fault");
            let profile = counters.profile;
            // An access of a wave of 64 lanes takes two steps.
            let steps = u64::from(lanes / 32) * 3;
            assert_eq!((profile.lds_accesses, profile.lds_steps), (6, 2 * steps));
            assert_eq!(profile.bank_conflicts, conflicts * steps, "{lanes} lanes, stride {stride}");
            let bytes = u64::from(lanes) * 4 * 3;
            assert_eq!((profile.lds_bytes_loaded, profile.lds_bytes_stored), (bytes, bytes));
            assert_eq!((profile.barriers, profile.branches, profile.accesses), (3, 0, 3));
        }
    }
}

#[test]
fn inactive_lanes_are_counted() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("profile", lanes);
        let run = |limit: u32| {
            let mut y = lines(2 * lanes / 32);
            let arguments = Arguments::default().pointer(&y).u32(limit);
            let shape = profiled(Shape::new(1, lanes));
            let counters = code.launch("part_of_the_lanes", shape, &arguments, &[writable(&mut y)]);
            counters.expect("no fault").profile
        };
        let width = u64::from(lanes);
        // There are two instructions before the condition, three inside, and three after it.
        for (limit, executed, splits, accesses) in
            [(lanes / 2, 8, 1, 2), (1, 8, 1, 2), (0, 5, 0, 1), (lanes, 8, 0, 2)]
        {
            let profile = run(limit);
            assert_eq!(profile.lanes, executed * width);
            assert_eq!(profile.active_lanes, 5 * width + 3 * u64::from(limit), "{limit} of {lanes} lanes");
            assert_eq!((profile.branches, profile.splits), (1, splits));
            assert_eq!(profile.accesses, accesses);
        }
    }
}

#[test]
fn a_profile_depends_neither_on_threads_nor_on_seeds() {
    for lanes in WAVE_SIZES {
        let code = CodeObject::for_waves("lds", lanes);
        let x = vec![3u32; 256 * 40];
        let mut sums = vec![0u32; 40];
        let arguments = Arguments::default().pointer(&x).pointer(&sums);
        let mut run = |threads, instrumentation| {
            let shape = Shape { threads, instrumentation, ..Shape::new(40, 256) };
            code.launch("block_sum", shape, &arguments, &[readable(&x), writable(&mut sums)])
                .expect("no fault")
        };
        let profile = |seed| Instrumentation { seed, profile: true, ..Instrumentation::default() };
        let first = run(1, profile(None));
        assert_ne!(first.profile, Profile::default());
        assert!(first.profile.splits > 0 && first.profile.active_lanes < first.profile.lanes);
        assert_eq!(run(2, profile(None)), first);
        assert_eq!(run(1, profile(Some(1))), first);
        assert_eq!(run(1, profile(Some(2))), first);
        // Without instrumentation the profile is empty.
        let plain = run(2, Instrumentation::default());
        assert_eq!(plain, Counters { profile: Profile::default(), ..first });
    }
}
