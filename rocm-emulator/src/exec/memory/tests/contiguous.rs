//! Tests of contiguous accesses, and of accesses that are nearly contiguous.
use super::*;

/// Returns an instruction with a scalar base in s4 and 32-bit offsets per lane.
fn with_scalar_base(name: &'static str, offset: i32) -> Inst {
    let mut inst = global(name, offset);
    inst.src[2] = Operand::Scalar(4);
    inst
}

/// Loads and stores with the first `count` lanes; the other lanes have no valid address.
fn first_lanes<const W: usize>(
    wide: bool,
    count: usize,
    load: &'static str,
    store: &'static str,
    dwords: usize,
) {
    let words: Vec<u32> = (0..5 * W as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    let mut harness = Harness::<W>::new(wide);
    harness.wave.set_sgpr64(126, Wave::<W>::full() >> (W - count));
    let (mut from, mut to) = (words.clone(), vec![7u32; 5 * W]);
    harness.range(&mut from);
    harness.range(&mut to);
    // The access begins one dword after the base: the instruction's offset less the lanes'.
    harness.addresses(64, 4 * dwords as u64);
    harness.wave.vgpr[2].0[count..].fill(0x7777_7777);
    harness.wave.vgpr[usize::from(DST)..][..dwords].fill(Lanes::splat(99));
    harness.wave.set_sgpr64(4, harness.ranges[0].base);
    let counters = harness.run(&with_scalar_base(load, 4 - 64)).expect("in bounds");
    assert_eq!(counters.bytes_loaded, (4 * dwords * count) as u64);
    for (lane, n) in (0..W).flat_map(|lane| (0..dwords).map(move |n| (lane, n))) {
        let register = harness.wave.vgpr[usize::from(DST) + n].0[lane];
        let expected = if lane < count { words[1 + lane * dwords + n] } else { 99 };
        assert_eq!(register, expected, "{load} lane {lane} of {count}");
        harness.wave.vgpr[8 + n].0[lane] = register;
    }
    harness.wave.set_sgpr64(4, harness.ranges[1].base);
    let counters = harness.run(&with_scalar_base(store, 4 - 64)).expect("in bounds");
    assert_eq!(counters.bytes_stored, (4 * dwords * count) as u64);
    let end = 1 + dwords * count;
    assert_eq!((to[0], &to[1..end]), (7, &words[1..end]), "{store} of {count}");
    assert!(to[end..].iter().all(|word| *word == 7), "{store} of {count}");
}

#[test]
fn tuples_of_the_first_lanes() {
    let names = [
        ("global_load_b32", "global_store_b32", 1),
        ("global_load_b64", "global_store_b64", 2),
        ("global_load_b128", "global_store_b128", 4),
    ];
    for (wide, (load, store, dwords)) in [false, true].into_iter().flat_map(|wide| names.map(|n| (wide, n))) {
        [1, 5, 31, 32].iter().for_each(|count| first_lanes::<32>(wide, *count, load, store, dwords));
        [1, 32, 33, 64].iter().for_each(|count| first_lanes::<64>(wide, *count, load, store, dwords));
    }
}

#[test]
fn bytes_and_halves_of_the_first_lanes_in_lds() {
    for (store, load, size) in [("ds_store_b8", "ds_load_u8", 1usize), ("ds_store_b16", "ds_load_u16", 2)] {
        let mut harness = Harness::<64>::new(true);
        harness.wave.set_sgpr64(126, (1 << 40) - 1);
        harness.addresses(100, size as u64);
        harness.wave.vgpr[8].0 = std::array::from_fn(|lane| lane as u32 * 0x0101_0101);
        harness.wave.vgpr[usize::from(DST)] = Lanes::splat(5);
        harness.run(&lds(store)).expect("in bounds");
        harness.run(&lds(load)).expect("in bounds");
        for (lane, value) in harness.wave.vgpr[usize::from(DST)].0.into_iter().enumerate() {
            let expected = if size == 1 { lane as u32 } else { lane as u32 * 0x0101 };
            assert_eq!(value, if lane < 40 { expected } else { 5 }, "{load} lane {lane}");
        }
        // Memory after the last lane's is unchanged: all ones.
        harness.addresses(100 + 40 * size as u64, size as u64);
        harness.run(&lds(load)).expect("in bounds");
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0[0], u32::MAX >> (32 - 8 * size));
    }
}

#[test]
fn offsets_that_wrap_are_not_contiguous() {
    for wide in [false, true] {
        let mut harness = Harness::<32>::new(wide);
        let mut words = vec![1u32; 64];
        harness.range(&mut words);
        let base = harness.ranges[0].base;
        // Offsets are unsigned, so the addresses of lane 16 and higher are 4 GiB lower.
        let low = |lane: usize| (-64i32 + 4 * lane as i32) as u32;
        (0..32).for_each(|lane| harness.wave.vgpr[2].0[lane] = low(lane));
        harness.wave.set_sgpr64(4, base.wrapping_sub(u64::from(low(0))));
        let fault = harness.run(&with_scalar_base("global_load_b32", 0)).expect_err("16 lanes are outside");
        let FaultKind::OutOfBounds { lane, address, .. } = *fault else { panic!("{fault:?}") };
        assert_eq!((lane, address), (16, base.wrapping_sub(u64::from(low(0)))));
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0, [0; 32]);
    }
}

#[test]
fn a_block_faults_at_the_first_lane_outside_its_range() {
    for wide in [false, true] {
        let mut harness = Harness::<32>::new(wide);
        let mut words = vec![1u32; 20];
        harness.range(&mut words);
        let base = harness.ranges[0].base;
        harness.addresses(base, 4);
        let fault = harness.run(&global("global_store_b32", 0)).expect_err("12 lanes are outside");
        let FaultKind::OutOfBounds { lane, address, .. } = *fault else { panic!("{fault:?}") };
        assert_eq!((lane, address), (20, base + 80));
        // LDS ends after 4096 bytes.
        harness.addresses(4096 - 4 * 8, 4);
        let fault = harness.run(&lds("ds_load_b32")).expect_err("24 lanes are outside");
        let FaultKind::LdsOutOfBounds { lane, address, .. } = *fault else { panic!("{fault:?}") };
        assert_eq!((lane, address), (8, 4096));
    }
}

#[test]
fn upper_address_halves_must_be_equal() {
    let mut harness = Harness::<32>::new(true);
    let mut words = vec![9u32; 64];
    harness.range(&mut words);
    let base = harness.ranges[0].base;
    harness.addresses(base, 4);
    harness.wave.vgpr[3].0[31] ^= 1;
    let fault = harness.run(&global("global_load_b32", 0)).expect_err("one lane is outside");
    let FaultKind::OutOfBounds { lane, .. } = *fault else { panic!("{fault:?}") };
    assert_eq!(lane, 31);
}
