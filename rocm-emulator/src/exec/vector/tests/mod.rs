//! Tests of the vector ALU: every mnemonic is compared with an independent formula.
mod compare;
mod convert;
mod division;
mod extrema;
mod float;
mod half;
mod integer;
mod lanes;
mod mnemonics;
mod mode;
mod packed;
mod transcendental;
mod wave64;

use super::operation::BASELINE;
use super::{VectorStep, prepare};
use crate::exec::wave::{Lanes, Mode, Wave};
use crate::isa::{Encoding, Inst, Mods, Operand};

/// Mode at the start of a HIP kernel.
pub const MODE: Mode =
    Mode { round_32: 0, round_16_64: 0, denorm_32: 3, denorm_16_64: 3, dx10_clamp: true, ieee: true };

/// Registers of [`inst`]'s instructions: sources, a scalar source, destinations.
pub const SOURCES: [u16; 3] = [2, 4, 6];
pub const CARRY_IN: u8 = 30;
pub const DST: u16 = 20;
pub const MASK: u8 = 40;

/// Returns a wave of 32 active lanes.
pub fn wave() -> Wave<32> {
    wave_of()
}

/// Returns a wave of `W` active lanes.
pub fn wave_of<const W: usize>() -> Wave<W> {
    let mut wave = Wave { sgpr: [0; 128], scc: false, mode: MODE, vgpr: vec![Lanes::splat(0xdead_beef); 32] };
    wave.set_sgpr64(126, Wave::<W>::full());
    wave
}

/// Returns an instruction on the registers above.
pub fn inst(name: &'static str) -> Inst {
    let compare = name.starts_with("v_cmp");
    let third = if name.contains("cndmask") || name.contains("_ci_") {
        Operand::Scalar(CARRY_IN)
    } else {
        Operand::Vgpr(SOURCES[2])
    };
    Inst {
        name,
        encoding: if name.starts_with("v_pk_") { Encoding::Vop3p } else { Encoding::Vop3 },
        size: 8,
        dst: if compare { Operand::Scalar(MASK) } else { Operand::Vgpr(DST) },
        dst2: Operand::Scalar(MASK),
        src: [Operand::Vgpr(SOURCES[0]), Operand::Vgpr(SOURCES[1]), third, Operand::None],
        imm: 0,
        offset0: 0,
        offset1: 0,
        mods: Mods {
            op_sel_hi: if name.starts_with("v_pk_") || name.contains("_dot") { 7 } else { 0 },
            ..Mods::default()
        },
        dpp: None,
        sdwa: None,
        pair: None,
    }
}

impl<const W: usize> VectorStep<W> {
    pub fn run(&self, wave: &mut Wave<W>) {
        match self {
            Self::Single(step) => step.run(wave),
            Self::Rare(step) => step.run(wave),
        }
    }
}

/// Prepares an instruction; panics if it is unsupported.
pub fn step<const W: usize>(inst: &Inst) -> VectorStep<W> {
    prepare(inst).unwrap_or_else(|| panic!("{} is unknown", inst.name))
}

/// Writes 64 bits to a register pair.
pub fn set<const W: usize>(wave: &mut Wave<W>, register: u16, lane: usize, bits: u64) {
    wave.vgpr[register as usize].0[lane] = bits as u32;
    wave.vgpr[register as usize + 1].0[lane] = (bits >> 32) as u32;
}

/// Reads 64 bits from a register pair.
pub fn get<const W: usize>(wave: &Wave<W>, register: u16, lane: usize) -> u64 {
    let half = |n: usize| u64::from(wave.vgpr[register as usize + n].0[lane]);
    half(0) | half(1) << 32
}

/// Result of an instruction in a lane: the destination pair and the mask bit.
pub type Outcome = (u64, bool);

/// Runs `inst` on all inputs in waves of 32 and 64 lanes, with and without wide vectors, and compares
/// `observe` of every lane's outcome. The lane's carry-in is the lowest bit of the third value.
pub fn check_inst<T: PartialEq + std::fmt::Debug>(
    inst: &Inst,
    inputs: &[[u64; 3]],
    observe: impl Fn(Outcome) -> T,
    expect: impl Fn([u64; 3]) -> T,
) {
    assert!(!inputs.is_empty());
    check_wave_size::<32, T>(inst, inputs, &observe, &expect);
    check_wave_size::<64, T>(inst, inputs, &observe, &expect);
}

fn check_wave_size<const W: usize, T: PartialEq + std::fmt::Debug>(
    inst: &Inst,
    inputs: &[[u64; 3]],
    observe: &dyn Fn(Outcome) -> T,
    expect: &dyn Fn([u64; 3]) -> T,
) {
    for baseline in [true, false] {
        BASELINE.set(baseline);
        let step = step(inst);
        for chunk in inputs.chunks(W) {
            let mut wave = wave_of::<W>();
            let mut carry_in = 0;
            for (lane, values) in chunk.iter().enumerate() {
                for (register, bits) in SOURCES.iter().zip(values) {
                    set(&mut wave, *register, lane, *bits);
                }
                carry_in |= (values[2] & 1) << lane;
            }
            wave.set_mask(CARRY_IN, carry_in);
            step.run(&mut wave);
            for (lane, values) in chunk.iter().enumerate() {
                let mask = wave.mask(MASK) >> lane & 1 != 0;
                let outcome = observe((get(&wave, DST, lane), mask));
                let expected = expect(*values);
                assert!(
                    outcome == expected,
                    "{} of {values:x?}: {outcome:x?}, expected {expected:x?} ({W} lanes, baseline: {baseline})",
                    inst.name
                );
            }
        }
    }
    BASELINE.set(false);
}

/// [`check_inst`] for a 32-bit result.
pub fn check32(name: &'static str, inputs: &[[u64; 3]], expect: impl Fn([u32; 3]) -> u32) {
    check_inst(&inst(name), inputs, |(bits, _)| bits as u32, |v| expect(v.map(|x| x as u32)));
}

/// [`check_inst`] for an f32 result; all NaNs are equal.
pub fn check_f32(name: &'static str, inputs: &[[u64; 3]], expect: impl Fn([f32; 3]) -> f32) {
    let float = |v: [u64; 3]| v.map(|x| f32::from_bits(x as u32));
    check_inst(
        &inst(name),
        inputs,
        |(bits, _)| canonical_nan32(bits as u32),
        |v| canonical_nan32(expect(float(v)).to_bits()),
    );
}

/// [`check_inst`] for an f64 result; all NaNs are equal.
pub fn check_f64(name: &'static str, inputs: &[[u64; 3]], expect: impl Fn([f64; 3]) -> f64) {
    check_inst(
        &inst(name),
        inputs,
        |(bits, _)| canonical_nan64(bits),
        |v| canonical_nan64(expect(v.map(f64::from_bits)).to_bits()),
    );
}

/// Replaces every NaN by the same one.
pub fn canonical_nan32(bits: u32) -> u32 {
    if f32::from_bits(bits).is_nan() { 0x7fc0_0000 } else { bits }
}

pub fn canonical_nan64(bits: u64) -> u64 {
    if f64::from_bits(bits).is_nan() { 0x7ff8 << 48 } else { bits }
}

/// Reproducible pseudorandom generator (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// f32 edge cases: all classes, signs and neighbours of special values.
pub const EDGES_F32: &[u32] = &[
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x7f_ffff,
    0x80_0000,
    0x80_0001,
    0x8080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f7f_ffff,
    0x3f80_0001,
    0x3f00_0000,
    0xbf00_0000,
    0x3fc0_0000,
    0x4020_0000,
    0xc020_0000,
    0x4b00_0000,
    0x4b7f_ffff,
    0xcb00_0001,
    0x4eff_ffff,
    0x4f00_0000,
    0xcf00_0000,
    0x4f80_0000,
    0x7e80_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0xffc1_2345,
];

pub const EDGES_F64: &[u64] = &[
    0,
    1 << 63,
    1,
    0x8000_0000_0000_0001,
    0xf_ffff_ffff_ffff,
    0x10_0000_0000_0000,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0000,
    0x3fef_ffff_ffff_ffff,
    0x3ff0_0000_0000_0001,
    0x3fe0_0000_0000_0000,
    0x3ff8_0000_0000_0000,
    0x4004_0000_0000_0000,
    0xc004_0000_0000_0000,
    0x41df_ffff_ffc0_0000,
    0x41e0_0000_0000_0000,
    0xc1e0_0000_0020_0000,
    0x41ef_ffff_ffe0_0000,
    0x41f0_0000_0000_0000,
    0x4330_0000_0000_0000,
    0x47ef_ffff_e000_0000,
    0x47ef_ffff_f000_0000,
    0x3690_0000_0000_0000,
    0x7fe0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0x7ff0_0000_0000_0001,
];

pub const EDGES_U32: &[u32] = &[
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7f_ffff,
    0x80_0000,
    0xff_ffff,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ff80,
    0xffff_fffe,
    0xffff_ffff,
];

/// Returns all triples of edges, then random triples, whose third value may be an edge.
pub fn inputs_of(edges: &[u64], random_bits: impl Fn(&mut Random) -> u64) -> Vec<[u64; 3]> {
    let mut inputs = Vec::new();
    for a in edges {
        for b in edges {
            for c in edges {
                inputs.push([*a, *b, *c]);
            }
        }
    }
    let mut random = Random::new(edges.len() as u64 * 77);
    for _ in 0..20_000 {
        inputs.push([random_bits(&mut random), random_bits(&mut random), random_bits(&mut random)]);
    }
    inputs
}

pub fn inputs_f32() -> Vec<[u64; 3]> {
    let edges: Vec<u64> = EDGES_F32.iter().map(|x| u64::from(*x)).collect();
    inputs_of(&edges, |random| {
        let bits = random.bits();
        // Half of the values are close to 1, so that sums and products interact.
        if bits >> 40 & 1 == 0 { bits & 0xffff_ffff } else { bits & 0x81ff_ffff | 0x3e00_0000 }
    })
}

pub fn inputs_f64() -> Vec<[u64; 3]> {
    inputs_of(EDGES_F64, |random| {
        let (bits, kind) = (random.bits(), random.bits());
        if kind & 1 == 0 { bits } else { bits & 0x803f_ffff_ffff_ffff | 0x3fc0_0000_0000_0000 }
    })
}

pub fn inputs_u32() -> Vec<[u64; 3]> {
    let edges: Vec<u64> = EDGES_U32.iter().map(|x| u64::from(*x)).collect();
    inputs_of(&edges, |random| random.bits() & 0xffff_ffff)
}

pub fn inputs_u64() -> Vec<[u64; 3]> {
    let mut edges: Vec<u64> = EDGES_U32.iter().map(|x| i64::from(*x as i32) as u64).collect();
    edges.extend([1 << 32, (1 << 32) - 1, 1 << 63, (1 << 63) - 1, (1 << 63) + 1]);
    inputs_of(&edges, Random::bits)
}
