//! Lanes that lie one after another, and those that only nearly do.
use super::*;

/// A scalar base in s4 and the lanes' 32-bit offsets.
fn based(name: &'static str, offset: i32) -> Inst {
    let mut inst = global(name, offset);
    inst.src[2] = Operand::Scalar(4);
    inst
}

fn tuples_of_a_wave<const W: usize>() {
    let names = [
        ("global_load_b32", "global_store_b32", 1),
        ("global_load_b64", "global_store_b64", 2),
        ("global_load_b128", "global_store_b128", 4),
    ];
    let words: Vec<u32> = (0..5 * W as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    for (wide, (load, store, dwords)) in [false, true].into_iter().flat_map(|wide| names.map(|n| (wide, n))) {
        let mut bench = Bench::<W>::new(wide);
        let (mut from, mut to) = (words.clone(), vec![7u32; 5 * W]);
        bench.range(&mut from);
        bench.range(&mut to);
        // One dword behind the base, by the instruction's offset less the lanes'.
        bench.addresses(64, 4 * dwords as u64);
        bench.wave.set_sgpr64(4, bench.ranges[0].base);
        let counters = bench.run(&based(load, 4 - 64)).expect("in bounds");
        assert_eq!(counters.bytes_loaded, (4 * dwords * W) as u64);
        for (lane, n) in (0..W).flat_map(|lane| (0..dwords).map(move |n| (lane, n))) {
            let register = bench.wave.vgpr[usize::from(DST) + n].0[lane];
            assert_eq!(register, words[1 + lane * dwords + n], "{load} lane {lane}");
            bench.wave.vgpr[8 + n].0[lane] = register;
        }
        bench.wave.set_sgpr64(4, bench.ranges[1].base);
        let counters = bench.run(&based(store, 4 - 64)).expect("in bounds");
        assert_eq!(counters.bytes_stored, (4 * dwords * W) as u64);
        let end = 1 + dwords * W;
        assert_eq!((to[0], &to[1..end]), (7, &words[1..end]), "{store}");
        assert!(to[end..].iter().all(|word| *word == 7), "{store}");
    }
}

#[test]
fn tuples_of_all_lanes() {
    tuples_of_a_wave::<32>();
    tuples_of_a_wave::<64>();
}

#[test]
fn offsets_that_wrap_are_not_one_piece() {
    for wide in [false, true] {
        let mut bench = Bench::<32>::new(wide);
        let mut words = vec![1u32; 64];
        bench.range(&mut words);
        let base = bench.ranges[0].base;
        // Offsets are unsigned: from lane 16 on, the address is 4 GiB lower.
        let low = |lane: usize| (-64i32 + 4 * lane as i32) as u32;
        (0..32).for_each(|lane| bench.wave.vgpr[2].0[lane] = low(lane));
        bench.wave.set_sgpr64(4, base.wrapping_sub(u64::from(low(0))));
        let fault = bench.run(&based("global_load_b32", 0)).expect_err("16 lanes are outside");
        let FaultKind::OutOfBounds { lane, address, .. } = *fault else { panic!("{fault:?}") };
        assert_eq!((lane, address), (16, base.wrapping_sub(u64::from(low(0)))));
        assert_eq!(bench.wave.vgpr[usize::from(DST)].0, [0; 32]);
    }
}

#[test]
fn a_piece_that_leaves_its_range_faults_where_it_leaves() {
    for wide in [false, true] {
        let mut bench = Bench::<32>::new(wide);
        let mut words = vec![1u32; 20];
        bench.range(&mut words);
        let base = bench.ranges[0].base;
        bench.addresses(base, 4);
        let fault = bench.run(&global("global_store_b32", 0)).expect_err("12 lanes are outside");
        let FaultKind::OutOfBounds { lane, address, .. } = *fault else { panic!("{fault:?}") };
        assert_eq!((lane, address), (20, base + 80));
        // LDS ends after 4096 bytes.
        bench.addresses(4096 - 4 * 8, 4);
        let fault = bench.run(&lds("ds_load_b32")).expect_err("24 lanes are outside");
        let FaultKind::LdsOutOfBounds { lane, address, .. } = *fault else { panic!("{fault:?}") };
        assert_eq!((lane, address), (8, 4096));
    }
}

#[test]
fn upper_halves_must_agree() {
    let mut bench = Bench::<32>::new(true);
    let mut words = vec![9u32; 64];
    bench.range(&mut words);
    let base = bench.ranges[0].base;
    bench.addresses(base, 4);
    bench.wave.vgpr[3].0[31] ^= 1;
    let fault = bench.run(&global("global_load_b32", 0)).expect_err("one lane is elsewhere");
    let FaultKind::OutOfBounds { lane, .. } = *fault else { panic!("{fault:?}") };
    assert_eq!(lane, 31);
}
