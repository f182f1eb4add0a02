//! Tests of memory instructions on constructed waves.
mod buffer;
mod contiguous;
mod wave64;

use super::*;
use crate::exec::wave::Mode;
use crate::exec::{Access, AddressSpace, Range};
use crate::isa::{Encoding, Family, Inst, Mods, Operand};

const EMPTY_RANGE: Range = Range { base: 0, len: 0, writable: false };

fn wave<const W: usize>() -> Wave<W> {
    let mut wave =
        Wave { sgpr: [0; 128], scc: false, mode: Mode::from_bits(0xf0), vgpr: vec![Lanes::splat(0); 32] };
    wave.set_sgpr64(126, Wave::<W>::full());
    wave
}

fn inst(name: &'static str, encoding: Encoding, dst: Option<u16>, src: [Operand; 4], offset: i32) -> Inst {
    Inst {
        name,
        encoding,
        size: 8,
        dst: dst.map_or(Operand::None, Operand::Vgpr),
        dst2: Operand::None,
        src,
        imm: 0,
        offset0: offset,
        offset1: 0,
        mods: Mods::default(),
        dpp: None,
        sdwa: None,
        pair: None,
    }
}

const ADDRESS: Operand = Operand::Vgpr(2);
const DATA: Operand = Operand::Vgpr(8);
const DST: u16 = 16;

/// Runs instructions with LDS of 4096 bytes and 64 private bytes per lane, with and without wide vectors.
struct Harness<const W: usize> {
    wave: Wave<W>,
    lds: Lds,
    private: Private,
    ranges: Vec<Range>,
    wide: bool,
}

impl<const W: usize> Harness<W> {
    fn new(wide: bool) -> Self {
        let (mut lds, mut private) = (Lds::default(), Private::default());
        lds.reset(4096, None);
        private.reset(64, W);
        Self { wave: wave(), lds, private, ranges: Vec::new(), wide: wide && wide_vectors() }
    }

    fn run(&mut self, inst: &Inst) -> MemoryResult<Counters> {
        // SAFETY: the tests' ranges outlive the call, and nothing else accesses them during it.
        let space = unsafe { AddressSpace::from_ranges(self.ranges.clone()) };
        let mut memory = Memory {
            global: Global::new(&space, [EMPTY_RANGE; 2]),
            lds: std::mem::take(&mut self.lds),
            counters: Counters::default(),
            checker: None,
            wide_vectors: self.wide,
        };
        let result = prepare(inst, Family::Rdna3).expect(inst.name).run(
            &mut self.wave,
            &mut memory,
            &mut self.private,
        );
        self.lds = memory.lds;
        result.map(|()| memory.counters)
    }

    fn range<T>(&mut self, values: &mut [T]) {
        let (base, len) = (values.as_mut_ptr() as u64, size_of_val(values) as u64);
        self.ranges.push(Range { base, len, writable: true });
    }

    /// Sets the address registers to `base + lane * step`.
    fn addresses(&mut self, base: u64, step: u64) {
        for lane in 0..W {
            let address = base + step * lane as u64;
            self.wave.vgpr[2].0[lane] = address as u32;
            self.wave.vgpr[3].0[lane] = (address >> 32) as u32;
        }
    }
}

fn global(name: &'static str, offset: i32) -> Inst {
    let dst = (name.contains("load") || name.ends_with("_rtn")).then_some(DST);
    inst(name, Encoding::Global, dst, [ADDRESS, DATA, Operand::None, Operand::None], offset)
}

fn lds(name: &'static str) -> Inst {
    let dst = (name.contains("load") || name.contains("permute") || name.contains("swizzle")).then_some(DST);
    inst(name, Encoding::Ds, dst, [ADDRESS, DATA, Operand::Vgpr(12), Operand::None], 0)
}

#[test]
fn loads_of_every_format() {
    loads_of_every_format_of_a_wave::<32>();
    loads_of_every_format_of_a_wave::<64>();
}

fn loads_of_every_format_of_a_wave<const W: usize>() {
    let bytes: Vec<u8> = (0..1024u32).map(|i| (i * 89 + 130) as u8).collect();
    // (mnemonic, bytes, register value as a function of the bytes if the old value is 0x1234_5678)
    type Value = fn(u32) -> u32;
    let formats: [(&str, usize, Value); 10] = [
        ("global_load_u8", 1, |v| v),
        ("global_load_i8", 1, |v| v as i8 as u32),
        ("global_load_u16", 2, |v| v),
        ("global_load_i16", 2, |v| v as i16 as u32),
        ("global_load_d16_u8", 1, |v| 0x1234_0000 | v),
        ("global_load_d16_i8", 1, |v| 0x1234_0000 | (v as i8 as u32 & 0xffff)),
        ("global_load_d16_b16", 2, |v| 0x1234_0000 | v),
        ("global_load_d16_hi_u8", 1, |v| v << 16 | 0x5678),
        ("global_load_d16_hi_i8", 1, |v| (v as i8 as u32) << 16 | 0x5678),
        ("global_load_d16_hi_b16", 2, |v| v << 16 | 0x5678),
    ];
    for wide in [false, true] {
        for (name, size, value) in formats {
            // Contiguous, strided, and the same address in all lanes.
            for step in [size, 9, 0] {
                let mut harness = Harness::<W>::new(wide);
                let mut memory = bytes.clone();
                harness.range(&mut memory);
                harness.addresses(harness.ranges[0].base, step as u64);
                harness.wave.vgpr[usize::from(DST)] = Lanes::splat(0x1234_5678);
                let counters = harness.run(&global(name, 5)).expect("in bounds");
                assert_eq!(counters.bytes_loaded, (W * size) as u64);
                for lane in 0..W {
                    let at = lane * step + 5;
                    let raw = (0..size).map(|k| u32::from(bytes[at + k]) << (8 * k)).sum();
                    assert_eq!(harness.wave.vgpr[usize::from(DST)].0[lane], value(raw), "{name} step {step}");
                }
            }
        }
    }
}

#[test]
fn dwords_round_trip_in_every_space() {
    dwords_round_trip_in_every_space_of_a_wave::<32>();
    dwords_round_trip_in_every_space_of_a_wave::<64>();
}

fn dwords_round_trip_in_every_space_of_a_wave<const W: usize>() {
    let names = [
        ("load_b32", "store_b32", 1),
        ("load_b64", "store_b64", 2),
        ("load_b96", "store_b96", 3),
        ("load_b128", "store_b128", 4),
    ];
    for wide in [false, true] {
        for (load, store, registers) in names {
            for exec in [u64::MAX, 0x8001_00f0_8001_00f0].map(|exec| exec & Wave::<W>::full()) {
                for (prefix, encoding) in
                    [("global_", Encoding::Global), ("ds_", Encoding::Ds), ("scratch_", Encoding::Scratch)]
                {
                    let mut harness = Harness::<W>::new(wide);
                    let mut memory = vec![0u32; 512];
                    harness.range(&mut memory);
                    harness.wave.set_sgpr64(126, exec);
                    for k in 0..4 {
                        harness.wave.vgpr[8 + k].0 =
                            std::array::from_fn(|lane| (lane * 10 + k) as u32 + 1000);
                    }
                    let (base, step) = match encoding {
                        Encoding::Global => (harness.ranges[0].base, 4 * registers),
                        Encoding::Ds => (0, 4 * registers),
                        // Every lane accesses the same offset of its private memory.
                        _ => (16, 0),
                    };
                    harness.addresses(base, step);
                    let name = |suffix: &str| -> &'static str { format!("{prefix}{suffix}").leak() };
                    let operands = [ADDRESS, DATA, Operand::None, Operand::None];
                    harness.run(&inst(name(store), encoding, None, operands, 8)).expect("in bounds");
                    harness.run(&inst(name(load), encoding, Some(DST), operands, 8)).expect("in bounds");
                    for k in 0..4 {
                        for lane in 0..W {
                            let written = exec >> lane & 1 != 0 && k < registers as usize;
                            let expected = if written { (lane * 10 + k) as u32 + 1000 } else { 0 };
                            let got = harness.wave.vgpr[usize::from(DST) + k].0[lane];
                            assert_eq!(got, expected, "{prefix}{load} lane {lane} register {k}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn scalar_base_and_32_bit_offsets() {
    let mut harness = Harness::<32>::new(true);
    let mut memory: Vec<u32> = (0..64).map(|i| i * 3).collect();
    harness.range(&mut memory);
    harness.wave.set_sgpr64(4, harness.ranges[0].base);
    harness.addresses(0, 4);
    // The high register is not part of a 32-bit offset.
    harness.wave.vgpr[3] = Lanes::splat(77);
    let load = inst(
        "global_load_b32",
        Encoding::Global,
        Some(DST),
        [ADDRESS, Operand::None, Operand::Scalar(4), Operand::None],
        16,
    );
    harness.run(&load).expect("in bounds");
    assert_eq!(harness.wave.vgpr[16].0, std::array::from_fn(|lane| (lane as u32 + 4) * 3));
}

#[test]
fn stores_of_bytes_and_halves() {
    for (name, size, shift) in [
        ("global_store_b8", 1, 0),
        ("global_store_b16", 2, 0),
        ("global_store_d16_hi_b8", 1, 16),
        ("global_store_d16_hi_b16", 2, 16),
    ] {
        let mut harness = Harness::<32>::new(true);
        let mut memory = vec![0xeeu8; 160];
        harness.range(&mut memory);
        harness.addresses(harness.ranges[0].base, 4);
        harness.wave.vgpr[8].0 = std::array::from_fn(|lane| 0x0302_0100u32.wrapping_mul(lane as u32 + 1));
        let values = harness.wave.vgpr[8].0;
        harness.run(&global(name, 1)).expect("in bounds");
        let mut expected = vec![0xeeu8; 160];
        for (lane, value) in values.iter().enumerate() {
            for k in 0..size {
                expected[4 * lane + 1 + k] = (value >> (shift + 8 * k)) as u8;
            }
        }
        assert_eq!(memory, expected, "{name}");
    }
}

#[test]
fn faults_name_the_first_bad_lane() {
    let mut harness = Harness::<32>::new(true);
    let mut memory = vec![0u32; 40];
    harness.range(&mut memory);
    let base = harness.ranges[0].base;
    harness.addresses(base, 4);
    // Lanes 28 and higher are outside.
    let fault = harness.run(&global("global_load_b32", 48)).expect_err("out of bounds");
    let FaultKind::OutOfBounds { access: Access::Load, lane: 28, address, bytes: 4, .. } = *fault else {
        panic!("{fault}");
    };
    assert_eq!(address, base + 160);
    // Inactive lanes may point anywhere.
    harness.wave.set_sgpr64(126, (1 << 28) - 1);
    harness.run(&global("global_load_b32", 48)).expect("in bounds");
    let fault = harness.run(&lds_at(5000)).expect_err("out of bounds");
    assert!(
        matches!(*fault, FaultKind::LdsOutOfBounds { lane: 0, address: 5000, size: 4096, .. }),
        "{fault}"
    );
    let far = inst("scratch_load_b64", Encoding::Scratch, Some(DST), [Operand::None; 4], 60);
    let fault = harness.run(&far).expect_err("out of bounds");
    assert!(
        matches!(*fault, FaultKind::PrivateOutOfBounds { lane: 0, address: 60, size: 64, .. }),
        "{fault}"
    );
    harness.addresses(base + 2, 4);
    let fault = harness.run(&global("global_atomic_add_u32", 0)).expect_err("misaligned");
    assert!(matches!(*fault, FaultKind::Misaligned { access: Access::Atomic, lane: 0, .. }), "{fault}");
}

fn lds_at(offset: i32) -> Inst {
    inst(
        "ds_load_b32",
        Encoding::Ds,
        Some(DST),
        [Operand::Vgpr(30), Operand::None, Operand::None, Operand::None],
        offset,
    )
}

#[test]
fn atomics_of_32_bits() {
    let f = f32::to_bits;
    // (mnemonic, old, source, compare or second, new)
    for (name, old, source, second, new) in [
        ("global_atomic_add_u32", 5, 0xffff_ffff, 0, 4),
        ("global_atomic_sub_u32", 5, 6, 0, 0xffff_ffff),
        ("global_atomic_csub_u32", 5, 6, 0, 0),
        ("global_atomic_inc_u32", 5, 5, 0, 0),
        ("global_atomic_inc_u32", 4, 5, 0, 5),
        ("global_atomic_dec_u32", 0, 5, 0, 5),
        ("global_atomic_dec_u32", 9, 5, 0, 5),
        ("global_atomic_dec_u32", 3, 5, 0, 2),
        ("global_atomic_min_i32", 5, 0xffff_ffff, 0, 0xffff_ffff),
        ("global_atomic_max_i32", 5, 0xffff_ffff, 0, 5),
        ("global_atomic_min_u32", 5, 0xffff_ffff, 0, 5),
        ("global_atomic_max_u32", 5, 0xffff_ffff, 0, 0xffff_ffff),
        ("global_atomic_and_b32", 6, 3, 0, 2),
        ("global_atomic_or_b32", 6, 3, 0, 7),
        ("global_atomic_xor_b32", 6, 3, 0, 5),
        ("global_atomic_swap_b32", 6, 3, 0, 3),
        ("global_atomic_cmpswap_b32", 6, 3, 6, 3),
        ("global_atomic_cmpswap_b32", 6, 3, 7, 6),
        ("global_atomic_add_f32", f(1.5), f(0.25), 0, f(1.75)),
        ("global_atomic_min_f32", f(1.5), f(-2.0), 0, f(-2.0)),
        ("global_atomic_max_f32", f(1.5), f(f32::NAN), 0, f(1.5)),
        ("global_atomic_cmpswap_f32", f(0.0), f(3.0), f(-0.0), f(3.0)),
    ] {
        let mut harness = Harness::<32>::new(true);
        let mut memory = vec![old; 32];
        harness.range(&mut memory);
        harness.addresses(harness.ranges[0].base, 4);
        harness.wave.vgpr[8] = Lanes::splat(source);
        harness.wave.vgpr[9] = Lanes::splat(second);
        let returning = Inst { dst: Operand::Vgpr(DST), ..global(name, 0) };
        harness.wave.set_sgpr64(126, 0xffff);
        harness.run(&returning).expect("in bounds");
        assert_eq!(memory[..16], [new; 16], "{name}");
        assert_eq!(memory[16..], [old; 16], "{name}");
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0[..16], [old; 16], "{name}");
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0[16..], [0; 16], "{name}");
    }
}

#[test]
fn atomics_of_64_bits() {
    for (name, old, source, second, new) in [
        ("global_atomic_add_u64", u64::MAX, 3, 0, 2),
        ("global_atomic_min_i64", 1, u64::MAX, 0, u64::MAX),
        ("global_atomic_max_u64", 1, 1 << 40, 0, 1 << 40),
        ("global_atomic_cmpswap_b64", 1 << 40, 7, 1 << 40, 7),
        ("global_atomic_cmpswap_b64", 1 << 40, 7, 1 << 41, 1 << 40),
        ("global_atomic_swap_b64", 1, 1 << 50, 0, 1 << 50),
    ] {
        let mut harness = Harness::<32>::new(true);
        let mut memory = vec![old; 32];
        harness.range(&mut memory);
        harness.addresses(harness.ranges[0].base, 8);
        for (register, value) in [(8, source), (10, second)] {
            harness.wave.vgpr[register] = Lanes::splat(value as u32);
            harness.wave.vgpr[register + 1] = Lanes::splat((value >> 32) as u32);
        }
        harness.run(&Inst { dst: Operand::Vgpr(DST), ..global(name, 0) }).expect("in bounds");
        assert_eq!(memory, vec![new; 32], "{name}");
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0, [old as u32; 32], "{name}");
        assert_eq!(harness.wave.vgpr[usize::from(DST) + 1].0, [(old >> 32) as u32; 32], "{name}");
    }
}

#[test]
fn lanes_increment_one_counter_in_order() {
    let mut harness = Harness::<32>::new(true);
    let mut memory = vec![100u32];
    harness.range(&mut memory);
    harness.addresses(harness.ranges[0].base, 0);
    harness.wave.vgpr[8] = Lanes::splat(2);
    harness.run(&Inst { dst: Operand::Vgpr(DST), ..global("global_atomic_add_u32", 0) }).expect("in bounds");
    assert_eq!(memory, [164]);
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0, std::array::from_fn(|lane| 100 + 2 * lane as u32));
}

#[test]
fn lds_atomics_have_a_separate_second_operand() {
    for (name, old, source, second, new) in [
        ("ds_cmpstore_b32", 6, 3, 6, 3),
        ("ds_cmpstore_rtn_b32", 6, 3, 7, 6),
        ("ds_mskor_b32", 0xff, 0x0f, 0x100, 0x1f0),
        ("ds_wrap_rtn_b32", 5, 7, 10, 15),
        ("ds_wrap_rtn_b32", 9, 7, 10, 2),
        ("ds_rsub_u32", 5, 7, 0, 2),
        ("ds_add_rtn_f32", 1.0f32.to_bits(), 2.0f32.to_bits(), 0, 3.0f32.to_bits()),
        ("ds_storexchg_rtn_b32", 5, 7, 0, 7),
    ] {
        let mut harness = Harness::<32>::new(true);
        harness.addresses(64, 4);
        harness.wave.vgpr[8] = Lanes::splat(old);
        harness.run(&lds("ds_store_b32")).expect("in bounds");
        harness.wave.vgpr[8] = Lanes::splat(source);
        harness.wave.vgpr[12] = Lanes::splat(second);
        harness.run(&lds(name)).expect("in bounds");
        harness.run(&lds("ds_load_b32")).expect("in bounds");
        assert_eq!(harness.wave.vgpr[usize::from(DST)].0, [new; 32], "{name}");
    }
}

#[test]
fn two_address_instructions() {
    for (suffix, unit) in [("2addr_b32", 4), ("2addr_stride64_b32", 256)] {
        let mut harness = Harness::<32>::new(true);
        harness.addresses(0, 4);
        harness.wave.vgpr[8].0 = std::array::from_fn(|lane| lane as u32 + 500);
        harness.wave.vgpr[12].0 = std::array::from_fn(|lane| lane as u32 + 900);
        let name = |verb: &str| -> &'static str { format!("ds_{verb}_{suffix}").leak() };
        let offsets = |inst: Inst| Inst { offset0: 1, offset1: 3, ..inst };
        // The second store overlaps the first in the narrow form, and takes effect after it.
        harness.run(&offsets(lds(name("store")))).expect("in bounds");
        harness.run(&offsets(lds(name("load")))).expect("in bounds");
        let mut memory = [u32::MAX; 1024];
        for lane in 0..32 {
            memory[unit / 4 + lane] = lane as u32 + 500;
        }
        for lane in 0..32 {
            memory[3 * unit / 4 + lane] = lane as u32 + 900;
        }
        for lane in 0..32 {
            assert_eq!(harness.wave.vgpr[16].0[lane], memory[unit / 4 + lane], "{suffix}");
            assert_eq!(harness.wave.vgpr[17].0[lane], memory[3 * unit / 4 + lane], "{suffix}");
        }
    }
}

#[test]
fn permutations_and_swizzles() {
    let run = |name, pattern: i32, address: fn(u32) -> u32, exec: u64| {
        let mut harness = Harness::<32>::new(true);
        harness.wave.set_sgpr64(126, exec);
        harness.wave.vgpr[2].0 = std::array::from_fn(|lane| address(lane as u32));
        harness.wave.vgpr[8].0 = std::array::from_fn(|lane| lane as u32 + 100);
        harness.run(&Inst { offset0: pattern, ..lds(name) }).expect("no memory involved");
        harness.wave.vgpr[usize::from(DST)].0
    };
    let full = u64::from(u32::MAX);
    let reversed: [u32; 32] = std::array::from_fn(|lane| 131 - lane as u32);
    assert_eq!(run("ds_bpermute_b32", 0, |lane| 4 * (31 - lane), full), reversed);
    assert_eq!(run("ds_permute_b32", 0, |lane| 4 * (31 - lane), full), reversed);
    // Addresses wrap, and inactive sources give 0.
    let got = run("ds_bpermute_b32", 4, |lane| 4 * lane, 0x7fff_ffff);
    assert_eq!((got[0], got[29], got[30], got[31]), (101, 130, 0, 0));
    // If two lanes send to lane 0, the higher lane's value remains.
    assert_eq!(run("ds_permute_b32", 0, |_| 0, 0b111)[..3], [102, 0, 0]);
    // Swizzle reads its data from the address operand.
    let swizzle = |pattern| run("ds_swizzle_b32", pattern, |lane| lane, full);
    assert_eq!(swizzle(0x1f | 1 << 10), std::array::from_fn(|lane| lane as u32 ^ 1));
    assert_eq!(swizzle(0x10 << 10 | 0x1f), std::array::from_fn(|lane| lane as u32 ^ 16));
    assert_eq!(swizzle(0), [0; 32]);
    // Quads reversed: selectors 3, 2, 1, 0.
    assert_eq!(swizzle(0x801b), std::array::from_fn(|lane| lane as u32 ^ 3));
    // Rotation by one lane.
    assert_eq!(swizzle(0xc000 | 1 << 5), std::array::from_fn(|lane| (lane as u32 + 1) % 32));
}

#[test]
fn append_counts_active_lanes() {
    let mut harness = Harness::<32>::new(true);
    harness.addresses(256, 0);
    harness.wave.vgpr[8] = Lanes::splat(10);
    harness.run(&lds("ds_store_b32")).expect("in bounds");
    harness.wave.sgpr[125] = 252;
    harness.wave.set_sgpr64(126, 0b1011);
    let append = inst("ds_append", Encoding::Ds, Some(DST), [Operand::None; 4], 4);
    harness.run(&append).expect("in bounds");
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0[..4], [10, 10, 0, 10]);
    harness.run(&append).expect("in bounds");
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0[0], 13);
    let consume = Inst { name: "ds_consume", ..append };
    harness.run(&consume).expect("in bounds");
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0[0], 16);
}

#[test]
fn flat_addresses_are_split_by_aperture() {
    let mut harness = Harness::<32>::new(true);
    let mut memory = vec![7u32; 32];
    harness.range(&mut memory);
    let base = harness.ranges[0].base;
    for lane in 0..32u64 {
        let address = [base + 4 * lane, SHARED_APERTURE + 4 * lane, PRIVATE_APERTURE + 8][lane as usize % 3];
        harness.wave.vgpr[2].0[lane as usize] = address as u32;
        harness.wave.vgpr[3].0[lane as usize] = (address >> 32) as u32;
    }
    let flat = |name: &'static str, dst| {
        inst(name, Encoding::Flat, dst, [ADDRESS, DATA, Operand::None, Operand::None], 0)
    };
    harness.run(&flat("flat_load_b32", Some(DST))).expect("in bounds");
    // LDS is initialized to ones, private memory to zeros.
    let initial = |lane: usize| [7, u32::MAX, 0][lane % 3];
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0, std::array::from_fn(initial));
    harness.wave.vgpr[8].0 = std::array::from_fn(|lane| lane as u32 + 50);
    let counters = harness.run(&flat("flat_store_b32", None)).expect("in bounds");
    assert_eq!(counters.bytes_stored, 11 * 4);
    harness.run(&flat("flat_load_b32", Some(DST))).expect("in bounds");
    assert_eq!(harness.wave.vgpr[usize::from(DST)].0, harness.wave.vgpr[8].0);
}

#[test]
fn scalar_loads() {
    let memory: Vec<u32> = (100..164).collect();
    let base = memory.as_ptr() as u64;
    let range = Range { base, len: 256, writable: false };
    // SAFETY: `memory` outlives the space and is only read.
    let space = unsafe { AddressSpace::from_ranges(vec![range]) };
    let mut memory = Memory {
        global: Global::new(&space, [EMPTY_RANGE; 2]),
        lds: Lds::default(),
        counters: Counters::default(),
        checker: None,
        wide_vectors: false,
    };
    let mut wave = wave::<32>();
    wave.set_sgpr64(2, base);
    wave.sgpr[4] = 8;
    let load = |name, offset, register| Inst {
        dst: Operand::Scalar(40),
        ..inst(
            name,
            Encoding::Smem,
            None,
            [Operand::Scalar(2), register, Operand::None, Operand::None],
            offset,
        )
    };
    for (name, count) in
        [("s_load_b32", 1), ("s_load_b64", 2), ("s_load_b128", 4), ("s_load_b256", 8), ("s_load_b512", 16)]
    {
        wave.sgpr[40..60].fill(0);
        let step = prepare_scalar(&load(name, 16, Operand::Scalar(4))).expect(name);
        step.run(&mut wave, &mut memory).expect("in bounds");
        let expected: Vec<u32> = (0..20).map(|i| if i < count { 106 + i } else { 0 }).collect();
        assert_eq!(wave.sgpr[40..60], expected, "{name}");
    }
    let past = prepare_scalar(&load("s_load_b64", 252, Operand::None)).expect("known");
    let fault = past.run(&mut wave, &mut memory).expect_err("out of bounds");
    assert!(matches!(*fault, FaultKind::OutOfBounds { bytes: 8, .. }), "{fault}");
    let before = prepare_scalar(&load("s_load_b32", -4, Operand::None)).expect("known");
    before.run(&mut wave, &mut memory).expect_err("out of bounds");
}

#[test]
fn unknown_instructions_are_rejected() {
    for name in ["ds_gws_init", "ds_bvh_stack_rtn_b32", "ds_ordered_count"] {
        assert!(prepare(&lds(name), Family::Rdna3).is_none(), "{name}");
    }
    assert!(prepare(&global("global_load_lds_b32", 0), Family::Rdna3).is_none());
    let gds = Inst { mods: Mods { gds: true, ..Mods::default() }, ..lds("ds_add_u32") };
    assert!(prepare(&gds, Family::Rdna3).is_none());
}
