//! Comparison of kernels' results with formulas.
use super::code_object::{Arguments, BUILDS, CodeObject, Shape, readable, writable};
use rocm_emulator::isa::Family;

fn args() -> Arguments {
    Arguments::default()
}

#[test]
fn saxpy_with_a_partial_last_wave() {
    for build in BUILDS {
        let code = CodeObject::of("memory", build);
        for n in [1, 31, 32, 33, 1000] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 - 7.0).collect();
            let mut y: Vec<f32> = (0..n).map(|i| 100.0 - i as f32).collect();
            let expected: Vec<f32> = x.iter().zip(&y).map(|(&x, &y)| 3.5f32.mul_add(x, y)).collect();
            let arguments = args().u32(n).f32(3.5).pointer(&x).pointer(&y);
            let shape = Shape::new(n.div_ceil(256), 256);
            let counters =
                code.launch("saxpy", shape, &arguments, &[readable(&x), writable(&mut y)]).expect("no fault");
            assert_eq!(y, expected);
            assert_eq!(counters.launches, 1);
            assert_eq!(counters.waves, u64::from(n.div_ceil(256) * 256 / build.lanes));
            assert_eq!(counters.bytes_stored, u64::from(n) * 4);
        }
    }
}

#[test]
fn strided_bytes() {
    for build in BUILDS {
        let code = CodeObject::of("memory", build);
        let (n, stride) = (500, 7);
        let src: Vec<u8> = (0..n * stride).map(|i| (i * 13 % 251) as u8).collect();
        let mut dst = vec![0u8; n as usize];
        let arguments = args().u32(n).u32(stride).pointer(&src).pointer(&dst);
        let memory = [readable(&src), writable(&mut dst)];
        code.launch("strided_copy", Shape::new(8, 64), &arguments, &memory).expect("no fault");
        let expected: Vec<u8> = (0..n as usize).map(|i| src[i * stride as usize]).collect();
        assert_eq!(dst, expected);
    }
}

#[test]
fn atomics_of_several_workgroups() {
    for build in BUILDS {
        let code = CodeObject::of("memory", build);
        let n = 3000u32;
        let keys: Vec<u32> = (0..n).map(|i| i * i % 7).collect();
        let (mut count, mut sum) = (vec![0u32; 7], vec![0u64; 7]);
        let (mut highest, mut weight) = (vec![-1i32; 7], vec![0f32; 7]);
        let arguments =
            args().u32(n).pointer(&keys).pointer(&count).pointer(&sum).pointer(&highest).pointer(&weight);
        let memory = [
            readable(&keys),
            writable(&mut count),
            writable(&mut sum),
            writable(&mut highest),
            writable(&mut weight),
        ];
        code.launch("histogram", Shape::new(24, 128), &arguments, &memory).expect("no fault");
        for key in 0..7 {
            let of_key: Vec<u64> = (0..u64::from(n)).filter(|&i| keys[i as usize] == key).collect();
            let key = key as usize;
            assert_eq!(count[key], of_key.len() as u32);
            assert_eq!(sum[key], of_key.iter().map(|i| i << 20).sum::<u64>());
            assert_eq!(highest[key], of_key.last().map_or(-1, |&i| i as i32));
            assert_eq!(weight[key], of_key.len() as f32 * 0.5);
        }
    }
}

#[test]
fn private_arrays() {
    for build in BUILDS {
        let code = CodeObject::of("work_items", build);
        let n = 96usize;
        let x: Vec<u32> = (0..n * 8).map(|i| (i * 37 % 101) as u32).collect();
        let mut y = vec![0u32; n];
        let arguments = args().pointer(&x).pointer(&y);
        let counters = code
            .launch("private_array", Shape::new(3, 32), &arguments, &[readable(&x), writable(&mut y)])
            .expect("no fault");
        let expected: Vec<u32> = (0..n)
            .map(|i| {
                let mut own: Vec<u32> = (0..64).map(|k| k * i as u32).collect();
                for k in 0..8 {
                    let from = own[(x[i * 8 + 7 - k] & 63) as usize];
                    let to = &mut own[(x[i * 8 + k] & 63) as usize];
                    *to = to.wrapping_add(from);
                }
                own.iter().fold(0u32, |sum, &value| sum.wrapping_mul(3).wrapping_add(value))
            })
            .collect();
        assert_eq!(y, expected);
        assert!(counters.scratch > 0, "the array should have been in private memory");
    }
}

#[test]
fn coordinates_in_three_dimensions() {
    for build in BUILDS {
        let code = CodeObject::of("work_items", build);
        let (grid, block) = ([2, 2, 3], [5, 3, 4]);
        let mut x = vec![u32::MAX; 2 * 2 * 3 * 5 * 3 * 4];
        let arguments = args().pointer(&x);
        let shape = Shape { grid, block, ..Shape::new(1, 1) };
        code.launch("coordinates", shape, &arguments, &[writable(&mut x)]).expect("no fault");
        let mut expected = Vec::new();
        for (gz, gy, gx) in triples(grid) {
            for (tz, ty, tx) in triples(block) {
                expected.push(tx | ty << 4 | tz << 8 | gx << 12 | gy << 16 | gz << 20);
            }
        }
        assert_eq!(x, expected);
    }
}

/// Returns all (z, y, x), where x varies fastest.
fn triples([x, y, z]: [u32; 3]) -> impl Iterator<Item = (u32, u32, u32)> {
    (0..z).flat_map(move |c| (0..y).flat_map(move |b| (0..x).map(move |a| (c, b, a))))
}

#[test]
fn block_reduction_through_lds() {
    for build in BUILDS {
        let code = CodeObject::of("lds", build);
        let x: Vec<u32> = (0..256 * 9).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let mut sums = vec![0u32; 9];
        let arguments = args().pointer(&x).pointer(&sums);
        code.launch("block_sum", Shape::new(9, 256), &arguments, &[readable(&x), writable(&mut sums)])
            .expect("no fault");
        let expected: Vec<u32> =
            x.chunks(256).map(|part| part.iter().fold(0u32, |sum, &value| sum.wrapping_add(value))).collect();
        assert_eq!(sums, expected);
    }
}

#[test]
fn dynamic_lds() {
    for build in BUILDS {
        let code = CodeObject::of("lds", build);
        let mut x: Vec<u32> = (0..3 * 96).collect();
        let mut expected = x.clone();
        expected.chunks_mut(96).for_each(<[u32]>::reverse);
        let arguments = args().pointer(&x);
        // A workgroup of gfx950 has 160 KiB.
        let dynamic_lds = if build.family == Family::Cdna4 { 160 << 10 } else { 96 * 4 };
        let shape = Shape { dynamic_lds, ..Shape::new(3, 96) };
        code.launch("reverse", shape, &arguments, &[writable(&mut x)]).expect("no fault");
        assert_eq!(x, expected);
    }
}

#[test]
fn flat_pointers_reach_all_three_memories() {
    for build in BUILDS {
        let code = CodeObject::of("lds", build);
        for which in 0..3 {
            let mut x: Vec<u32> = (0..64).map(|t| t * 1000).collect();
            let arguments = args().u32(which).pointer(&x);
            code.launch("flat_pointer", Shape::new(1, 64), &arguments, &[writable(&mut x)])
                .expect("no fault");
            let expected: Vec<u32> = (0..64)
                .map(|t| match which {
                    0 => t * 1000 + 7,
                    1 => (63 - t) * 100 + 7,
                    _ => t * 10 + (t & 3) + 7,
                })
                .collect();
            assert_eq!(x, expected, "pointer kind {which}");
        }
    }
}

#[test]
fn waves_that_wait_for_each_other_take_turns() {
    for build in BUILDS {
        let code = CodeObject::of("lds", build);
        let mut x = vec![0u32; 128];
        let arguments = args().pointer(&x);
        code.launch("wave_handshake", Shape::new(1, 128), &arguments, &[writable(&mut x)]).expect("no fault");
        assert_eq!(x, vec![42; 128]);
    }
}

#[test]
fn lanes_leave_a_loop_one_by_one() {
    for build in BUILDS {
        let code = CodeObject::of("control", build);
        let n = 200u32;
        let mut steps = vec![0u32; n as usize];
        let arguments = args().u32(n).pointer(&steps);
        code.launch("collatz", Shape::new(4, 64), &arguments, &[writable(&mut steps)]).expect("no fault");
        let expected: Vec<u32> = (1..=n)
            .map(|start| {
                let (mut value, mut count) = (start, 0);
                while value != 1 {
                    value = if value % 2 == 1 { 3 * value + 1 } else { value / 2 };
                    count += 1;
                }
                count
            })
            .collect();
        assert_eq!(steps, expected);
    }
}

#[test]
fn recursive_calls() {
    for build in BUILDS {
        let code = CodeObject::of("control", build);
        let mut x = vec![0u32; 64];
        let arguments = args().pointer(&x);
        code.launch("recursion", Shape::new(2, 32), &arguments, &[writable(&mut x)]).expect("no fault");
        let fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89];
        let expected: Vec<u32> = (0..64).map(|i| fibonacci[i % 12]).collect();
        assert_eq!(x, expected);
    }
}

#[test]
fn counters_do_not_depend_on_threads() {
    for build in BUILDS {
        let code = CodeObject::of("lds", build);
        let x = vec![3u32; 256 * 40];
        let mut sums = vec![0u32; 40];
        let arguments = args().pointer(&x).pointer(&sums);
        let mut run = |threads| {
            let shape = Shape { threads, ..Shape::new(40, 256) };
            code.launch("block_sum", shape, &arguments, &[readable(&x), writable(&mut sums)])
                .expect("no fault")
        };
        assert_eq!(run(1), run(2));
    }
}
