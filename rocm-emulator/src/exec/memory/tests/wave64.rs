//! Tests of memory instructions that depend on the wave size, with waves of 64 lanes.
use super::*;

/// Returns the destination register of an exchange in which lane i's data is 100 + i.
fn exchange(inst: &Inst, action: Option<Action>, address: fn(u32) -> u32, exec: u64) -> [u32; 64] {
    let mut harness = Harness::<64>::new(true);
    harness.wave.set_sgpr64(126, exec);
    harness.wave.vgpr[2].0 = std::array::from_fn(|lane| address(lane as u32));
    harness.wave.vgpr[8].0 = std::array::from_fn(|lane| lane as u32 + 100);
    let mut step = prepare(inst, Family::Rdna3).expect(inst.name);
    step.action = action.unwrap_or(step.action);
    let space = AddressSpace::default();
    let mut memory = Memory {
        global: Global::new(&space, [EMPTY_RANGE; 2]),
        lds: Lds::default(),
        counters: Counters::default(),
        checker: None,
        wide_vectors: wide_vectors(),
    };
    step.run(&mut harness.wave, &mut memory, &mut harness.private).expect("no memory involved");
    harness.wave.vgpr[usize::from(DST)].0
}

#[test]
fn permutations_stay_within_a_half() {
    let half = |lane: usize| lane & 32;
    for name in ["ds_bpermute_b32", "ds_permute_b32"] {
        let found = exchange(&lds(name), None, |lane| 4 * (63 - lane), u64::MAX);
        let expected: [u32; 64] = std::array::from_fn(|lane| (half(lane) + 31 - lane % 32 + 100) as u32);
        assert_eq!(found, expected, "{name}");
    }
    // A source lane that is inactive gives 0, in its half only.
    let found = exchange(&lds("ds_bpermute_b32"), None, |_| 4 * 3, !(1 << 35));
    assert_eq!((found[0], found[31], found[32], found[63]), (103, 103, 0, 0));
    // If two lanes of a half send to one, the higher lane's value remains. Halves are independent.
    let found = exchange(&lds("ds_permute_b32"), None, |_| 0, 1 << 63 | 1 << 40 | 1 << 32 | 0b11);
    assert_eq!((found[0], found[1], found[32], found[40]), (101, 0, 163, 0));
}

#[test]
fn permutations_span_the_wave_on_other_families() {
    for (name, exchange_of) in [
        ("ds_bpermute_b32", Exchange::BackwardPermute { group_size: 64 }),
        ("ds_permute_b32", Exchange::Permute { group_size: 64 }),
    ] {
        let action = Some(Action::Exchange(exchange_of));
        let found = exchange(&lds(name), action, |lane| 4 * (63 - lane), u64::MAX);
        assert_eq!(found, std::array::from_fn(|lane| 163 - lane as u32), "{name}");
    }
}

#[test]
fn swizzles_stay_within_a_half() {
    let swizzle =
        |pattern| exchange(&Inst { offset0: pattern, ..lds("ds_swizzle_b32") }, None, |lane| lane, u64::MAX);
    assert_eq!(swizzle(0x1f | 16 << 10), std::array::from_fn(|lane| lane as u32 ^ 16));
    assert_eq!(swizzle(0), std::array::from_fn(|lane| lane as u32 & 32));
    assert_eq!(swizzle(0x801b), std::array::from_fn(|lane| lane as u32 ^ 3));
    let rotated = |lane: usize| (lane as u32 & 32) + (lane as u32 + 1) % 32;
    assert_eq!(swizzle(0xc000 | 1 << 5), std::array::from_fn(rotated));
}

#[test]
fn lanes_increment_one_counter_in_order() {
    let mut harness = Harness::<64>::new(true);
    let mut counter = [1000u32];
    harness.range(&mut counter);
    harness.addresses(harness.ranges[0].base, 0);
    harness.wave.vgpr[8].0 = std::array::from_fn(|lane| lane as u32);
    harness.wave.set_sgpr64(126, u64::MAX << 1);
    harness.run(&Inst { dst: Operand::Vgpr(DST), ..global("global_atomic_add_u32", 0) }).expect("in bounds");
    let found = harness.wave.vgpr[usize::from(DST)].0;
    // The old values are triangular numbers; lane 0 is inactive.
    let expected = |lane: u32| if lane == 0 { 0 } else { 1000 + lane * (lane - 1) / 2 };
    assert_eq!(found, std::array::from_fn(|lane| expected(lane as u32)));
    assert_eq!(counter, [1000 + 63 * 64 / 2]);
    // The append counter increases by the number of active lanes of both halves.
    harness.addresses(0, 0);
    harness.wave.vgpr[8] = Lanes::splat(5);
    harness.run(&lds("ds_store_b32")).expect("in bounds");
    let append = inst("ds_append", Encoding::Ds, Some(DST), [Operand::None; 4], 0);
    for expected in [5, 5 + 63] {
        harness.run(&append).expect("in bounds");
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0[63], expected);
    }
}

#[test]
fn a_fault_names_a_lane_of_the_upper_half() {
    let mut harness = Harness::<64>::new(true);
    let mut memory = vec![0u32; 50];
    harness.range(&mut memory);
    harness.addresses(harness.ranges[0].base, 4);
    let fault = harness.run(&global("global_load_b32", 0)).expect_err("out of bounds");
    assert!(matches!(*fault, FaultKind::OutOfBounds { lane: 50, .. }), "{fault}");
    let far = inst("scratch_load_b32", Encoding::Scratch, Some(DST), [Operand::None; 4], 64);
    harness.wave.set_sgpr64(126, 1 << 63);
    let fault = harness.run(&far).expect_err("out of bounds");
    assert!(matches!(*fault, FaultKind::PrivateOutOfBounds { lane: 63, size: 64, .. }), "{fault}");
}
