//! Tests of scalar instructions against plain arithmetic.
use super::*;
use crate::exec::wave::{Lanes, Mode};
use crate::isa::InlineFloat;

const S: Operand = Operand::Scalar(10);

fn wave() -> Wave<32> {
    wave_of()
}

fn wave_of<const W: usize>() -> Wave<W> {
    Wave { sgpr: [0; 128], scc: false, mode: Mode::from_bits(0xf0), vgpr: vec![Lanes::splat(0); 4] }
}

fn inst(name: &'static str, encoding: Encoding, dst: Operand, src: &[Operand]) -> Inst {
    let mut sources = [Operand::None; 4];
    sources[..src.len()].copy_from_slice(src);
    Inst { size: 4, dst, src: sources, ..Inst::blank(name, encoding) }
}

/// Runs `name s[10:11], s[20:21], s[30:31]` and returns s[10:11] and SCC.
fn binary(name: &'static str, a: u64, b: u64, scc: bool) -> (u64, bool) {
    let mut wave = wave();
    wave.scc = scc;
    wave.set_sgpr64(20, a);
    wave.set_sgpr64(30, b);
    let encoding = if name.starts_with("s_cmp") || name.starts_with("s_bitcmp") {
        Encoding::Sopc
    } else {
        Encoding::Sop2
    };
    let step = prepare(&inst(name, encoding, S, &[Operand::Scalar(20), Operand::Scalar(30)]), 0).expect(name);
    step.run(&mut wave);
    (wave.sgpr64(10), wave.scc)
}

/// Runs `name s[10:11], s[20:21]` with an old destination.
fn unary(name: &'static str, a: u64, old: u64) -> (u64, bool) {
    let mut wave = wave();
    wave.set_sgpr64(10, old);
    wave.set_sgpr64(20, a);
    prepare(&inst(name, Encoding::Sop1, S, &[Operand::Scalar(20)]), 0).expect(name).run(&mut wave);
    (wave.sgpr64(10), wave.scc)
}

#[test]
fn additions_carry() {
    assert_eq!(binary("s_add_u32", 0xffff_ffff, 2, false), (1, true));
    assert_eq!(binary("s_add_u32", 5, 2, true), (7, false));
    assert_eq!(binary("s_addc_u32", 0xffff_ffff, 0, true), (0, true));
    assert_eq!(binary("s_addc_u32", 0xffff_fffe, 0, true), (0xffff_ffff, false));
    assert_eq!(binary("s_sub_u32", 1, 2, false), (0xffff_ffff, true));
    assert_eq!(binary("s_subb_u32", 5, 5, true), (0xffff_ffff, true));
    assert_eq!(binary("s_subb_u32", 6, 5, true), (0, false));
    // Signed overflow.
    assert_eq!(binary("s_add_i32", 0x7fff_ffff, 1, false), (0x8000_0000, true));
    assert_eq!(binary("s_add_i32", 0xffff_ffff, 1, false), (0, false));
    assert_eq!(binary("s_sub_i32", 0x8000_0000, 1, false), (0x7fff_ffff, true));
    assert_eq!(binary("s_lshl3_add_u32", 0x2000_0000, 7, false), (7, true));
    assert_eq!(binary("s_absdiff_i32", 3, 10, false), (7, true));
}

#[test]
fn products() {
    assert_eq!(binary("s_mul_i32", 0x10001, 0x10001, true), (0x20001, true));
    assert_eq!(binary("s_mul_hi_u32", 0xffff_ffff, 0xffff_ffff, false).0, 0xffff_fffe);
    assert_eq!(binary("s_mul_hi_i32", 0xffff_ffff, 0xffff_ffff, false).0, 0);
    assert_eq!(binary("s_mul_hi_i32", 0xffff_ffff, 3, false).0, 0xffff_ffff);
}

#[test]
fn shifts_and_fields() {
    assert_eq!(binary("s_lshl_b32", 3, 33, false), (6, true));
    assert_eq!(binary("s_lshl_b32", 0x8000_0000, 1, true), (0, false));
    assert_eq!(binary("s_ashr_i32", 0x8000_0000, 31, false), (0xffff_ffff, true));
    assert_eq!(binary("s_lshl_b64", 1, 40, false), (1 << 40, true));
    assert_eq!(binary("s_ashr_i64", 1 << 63, 63, false).0, u64::MAX);
    // The field has offset 4 and width 8.
    assert_eq!(binary("s_bfe_u32", 0xabcd, 8 << 16 | 4, false), (0xbc, true));
    assert_eq!(binary("s_bfe_i32", 0xabcd, 8 << 16 | 4, false).0, 0xffff_ffbc);
    assert_eq!(binary("s_bfe_i32", 0xabcd, 0, true), (0, false));
    assert_eq!(binary("s_bfe_i32", 0x8000_0000, 32 << 16 | 4, false).0, 0xf800_0000);
    assert_eq!(binary("s_bfe_u64", 0xabcd_0000_0000, 16 << 16 | 32, false).0, 0xabcd);
    assert_eq!(binary("s_bfe_i64", 0xabcd_0000_0000, 16 << 16 | 32, false).0, 0xffff_ffff_ffff_abcd);
    assert_eq!(binary("s_bfm_b32", 5, 3, true), (0b1111_1000, true));
    assert_eq!(binary("s_pack_ll_b32_b16", 0x1111_2222, 0x3333_4444, false).0, 0x4444_2222);
    assert_eq!(binary("s_pack_lh_b32_b16", 0x1111_2222, 0x3333_4444, false).0, 0x3333_2222);
    assert_eq!(binary("s_pack_hh_b32_b16", 0x1111_2222, 0x3333_4444, false).0, 0x3333_1111);
    assert_eq!(binary("s_pack_hl_b32_b16", 0x1111_2222, 0x3333_4444, false).0, 0x4444_1111);
}

#[test]
fn counts_of_bits() {
    assert_eq!(unary("s_ctz_i32_b32", 0x50, 0).0, 4);
    assert_eq!(unary("s_ctz_i32_b32", 0, 0).0, 0xffff_ffff);
    assert_eq!(unary("s_clz_i32_u32", 0x50, 0).0, 25);
    assert_eq!(unary("s_clz_i32_u64", 1 << 40, 0).0, 23);
    assert_eq!(unary("s_cls_i32", 0xffff_ff00, 0).0, 24);
    assert_eq!(unary("s_cls_i32", 0, 0).0, 0xffff_ffff);
    assert_eq!(unary("s_bcnt1_i32_b64", u64::MAX, 0), (64, true));
    assert_eq!(unary("s_bcnt0_i32_b32", 0xffff_ffff, 0), (0, false));
    assert_eq!(unary("s_brev_b32", 1, 0).0, 0x8000_0000);
    assert_eq!(unary("s_bitset1_b32", 35, 1).0, 9);
    assert_eq!(unary("s_bitset0_b32", 3, 9).0, 1);
    assert_eq!(unary("s_bitset1_b64", 40, 1).0, 1 << 40 | 1);
    assert_eq!(unary("s_sext_i32_i8", 0x180, 0).0, 0xffff_ff80);
    assert_eq!(unary("s_sext_i32_i16", 0x7fff, 0).0, 0x7fff);
    assert_eq!(unary("s_quadmask_b32", 0x0100_0010, 0).0, 0b100_0010);
    assert_eq!(unary("s_wqm_b32", 0x0100_0010, 0).0, 0x0f00_00f0);
    assert_eq!(unary("s_bitreplicate_b64_b32", 0b101, 0).0, 0b11_0011);
}

#[test]
fn compares_and_selects() {
    assert!(binary("s_cmp_lt_i32", 0xffff_ffff, 0, false).1);
    assert!(!binary("s_cmp_lt_u32", 0xffff_ffff, 0, true).1);
    assert!(binary("s_cmp_lg_u64", 1 << 32, 0, false).1);
    assert!(binary("s_bitcmp1_b32", 4, 2, false).1);
    assert!(binary("s_bitcmp0_b64", 4, 40, false).1);
    assert_eq!(binary("s_cselect_b32", 1, 2, true).0, 1);
    assert_eq!(binary("s_cselect_b64", 1, 2 << 40, false).0, 2 << 40);
    assert_eq!(binary("s_min_i32", 0xffff_ffff, 1, false), (0xffff_ffff, true));
    assert_eq!(binary("s_max_u32", 0xffff_ffff, 1, false), (0xffff_ffff, true));
}

#[test]
fn immediates_of_sopk() {
    let mut wave = wave();
    wave.sgpr[10] = 7;
    let mut run = |name, dst, src: &[Operand], imm| {
        let step = prepare(&Inst { imm, ..inst(name, Encoding::Sopk, dst, src) }, 0).expect(name);
        step.run(&mut wave);
        (wave.sgpr[10], wave.scc)
    };
    assert_eq!(run("s_addk_i32", S, &[], -9), (-2i32 as u32, false));
    assert_eq!(run("s_mulk_i32", S, &[], -3), (6, false));
    assert_eq!(run("s_cmpk_eq_u32", Operand::None, &[S], 6), (6, true));
    assert_eq!(run("s_cmovk_i32", S, &[], 5), (5, true));
    assert_eq!(run("s_cmpk_gt_i32", Operand::None, &[S], 5), (5, false));
    assert_eq!(run("s_cmovk_i32", S, &[], 8), (5, false));
    assert_eq!(run("s_movk_i32", S, &[], -1), (u32::MAX, false));
}

/// Stem of a mnemonic, and EXEC after it for source 0b0011 and EXEC 0b0101.
const SAVING_EXEC: [(&str, u64); 10] = [
    ("s_and_saveexec", 0b0001),
    ("s_or_saveexec", 0b0111),
    ("s_xor_saveexec", 0b0110),
    ("s_nand_saveexec", 0b1110),
    ("s_nor_saveexec", 0b1000),
    ("s_xnor_saveexec", 0b1001),
    ("s_and_not0_saveexec", 0b0100),
    ("s_or_not0_saveexec", 0b1101),
    ("s_and_not1_saveexec", 0b0010),
    ("s_or_not1_saveexec", 0b1011),
];

#[test]
fn exec_is_saved_and_changed() {
    for (stem, expected) in SAVING_EXEC {
        // The 64-bit forms are tested on bits of the upper half.
        for (bits, at) in [(32, 0), (64, 40)] {
            let name: &'static str = format!("{stem}_b{bits}").leak();
            let mut wave: Wave<64> = wave_of();
            wave.set_sgpr64(20, 0b0011 << at);
            wave.set_sgpr64(126, 0b0101 << at);
            prepare(&inst(name, Encoding::Sop1, S, &[Operand::Scalar(20)]), 0).expect(name).run(&mut wave);
            assert_eq!(wave.exec() >> at & 15, expected, "{name}");
            assert_eq!(wave.sgpr64(10), 0b0101 << at, "{name}");
            assert!(wave.scc, "{name}");
        }
    }
    let mut wave = wave();
    wave.sgpr[20] = 0b0001;
    wave.sgpr[126] = 0b0001;
    let step = prepare(&inst("s_and_not1_wrexec_b32", Encoding::Sop1, S, &[Operand::Scalar(20)]), 0);
    step.expect("known").run(&mut wave);
    assert_eq!((wave.sgpr[126], wave.sgpr[10], wave.scc), (0, 0, false));
    // EXECZ and VCCZ test the low half in wave32 and both halves in wave64.
    let (mut narrow, mut wide) = (self::wave(), wave_of::<64>());
    (narrow.sgpr[127], wide.sgpr[127]) = (1, 1);
    (narrow.sgpr[107], wide.sgpr[107]) = (1, 1);
    let zero = |source: Source| (source.read64(&narrow), source.read64(&wide));
    assert_eq!(zero(Source::ExecZ), (1, 0));
    assert_eq!(zero(Source::VccZ), (1, 0));
}

#[test]
fn literals_and_special_sources() {
    let read =
        |operand, wide, signed| Source::new(operand, wide, signed).map(|source| source.read64(&wave()));
    assert_eq!(read(Operand::Int(-1), true, false), Some(u64::MAX));
    assert_eq!(read(Operand::Literal(0x8000_0000), true, false), Some(0x8000_0000));
    assert_eq!(read(Operand::Literal(0x8000_0000), true, true), Some(0xffff_ffff_8000_0000));
    assert_eq!(read(Operand::Float(InlineFloat::NegTwo), false, false), Some(0xc000_0000));
    assert_eq!(read(Operand::Float(InlineFloat::One), true, false), Some(1.0f64.to_bits()));
    assert_eq!(read(Operand::SharedBase, true, false), Some(SHARED_APERTURE));
    assert_eq!(read(Operand::VccZ, false, false), Some(1));
    assert_eq!(read(Operand::Vgpr(0), false, false), None);
}

#[test]
fn the_mode_register_has_fields() {
    let mut wave = wave();
    let field = |offset, size| Operand::HwReg { id: 1, offset, size };
    // Flush f32 denormals.
    let set = inst("s_setreg_imm32_b32", Encoding::Sopk, field(4, 2), &[Operand::Literal(0)]);
    prepare(&set, 0).expect("known").run(&mut wave);
    assert_eq!((wave.mode.denorm_32, wave.mode.denorm_16_64), (0, 3));
    prepare(&inst("s_getreg_b32", Encoding::Sopk, S, &[field(6, 2)]), 0).expect("known").run(&mut wave);
    assert_eq!(wave.sgpr[10], 3);
    let round = Inst { imm: 0b0110, ..inst("s_round_mode", Encoding::Sopp, Operand::None, &[]) };
    prepare(&round, 0).expect("known").run(&mut wave);
    assert_eq!((wave.mode.round_32, wave.mode.round_16_64), (2, 1));
    assert!(
        prepare(
            &inst("s_getreg_b32", Encoding::Sopk, S, &[Operand::HwReg { id: 40, offset: 0, size: 1 }]),
            0
        )
        .is_none()
    );
}

#[test]
fn flat_scratch_reads_as_zero() {
    let mut wave = wave();
    for id in [20, 21] {
        let half = Operand::HwReg { id, offset: 0, size: 32 };
        wave.sgpr[20] = 0x1234;
        let set = inst("s_setreg_b32", Encoding::Sopk, half, &[Operand::Scalar(20)]);
        prepare(&set, 0).expect("known").run(&mut wave);
        wave.sgpr[10] = 7;
        prepare(&inst("s_getreg_b32", Encoding::Sopk, S, &[half]), 0).expect("known").run(&mut wave);
        assert_eq!(wave.sgpr[10], 0, "{id}");
    }
}

#[test]
fn null_discards_writes_and_unknown_names_are_rejected() {
    let mut wave = wave();
    let null = Operand::Scalar(sreg::NULL);
    prepare(&inst("s_mov_b64", Encoding::Sop1, null, &[Operand::Int(5)]), 0).expect("known").run(&mut wave);
    assert_eq!(wave.sgpr[124], 0);
    assert_eq!(wave.sgpr[125], 0);
    // The register after NULL is M0, which a pair must not read.
    wave.sgpr[125] = 7;
    prepare(&inst("s_mov_b64", Encoding::Sop1, S, &[null]), 0).expect("known").run(&mut wave);
    assert_eq!(wave.sgpr64(10), 0);
    assert!(prepare(&inst("s_rfe_b64", Encoding::Sop1, S, &[S]), 0).is_none());
    let step = prepare(&inst("s_getpc_b64", Encoding::Sop1, S, &[]), 0x1_2345_6788);
    step.expect("known").run(&mut wave);
    assert_eq!(wave.sgpr64(10), 0x1_2345_6788);
}

/// Runs a scalar float instruction on s20, s30 and the old s10; returns s10 and SCC.
fn float(name: &'static str, encoding: Encoding, [a, b, old]: [u32; 3]) -> (u32, bool) {
    let mut wave = wave();
    (wave.sgpr[20], wave.sgpr[30], wave.sgpr[10]) = (a, b, old);
    let step =
        prepare_float(&inst(name, encoding, S, &[Operand::Scalar(20), Operand::Scalar(30)])).expect(name);
    step.run(&mut wave);
    (wave.sgpr[10], wave.scc)
}

const FLOATS: [f32; 11] =
    [0.0, -0.0, 1.0, -1.5, 3.25e7, -2.75, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, f32::MAX];

type Float = fn(f32, f32, f32) -> f32;

#[test]
fn scalar_floats_are_ieee() {
    let cases: [(&str, Float); 4] = [
        ("s_add_f32", |a, b, _| a + b),
        ("s_sub_f32", |a, b, _| a - b),
        ("s_mul_f32", |a, b, _| a * b),
        ("s_fmac_f32", |a, b, old| a.mul_add(b, old)),
    ];
    for (name, expected) in cases {
        for a in FLOATS {
            for b in FLOATS {
                let found = float(name, Encoding::Sop2, [a, b, 2.5].map(f32::to_bits)).0;
                let (found, expected) = (f32::from_bits(found), expected(a, b, 2.5));
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{name} {a} {b}: {found} {expected}");
            }
        }
    }
}

#[test]
fn scalar_minima_handle_nan_and_the_sign_of_zero() {
    let below = |a: f32, b: f32| a < b || a == b && a.is_sign_negative() && !b.is_sign_negative();
    for a in FLOATS {
        for b in FLOATS {
            let least = if below(a, b) { a } else { b };
            let number = if a.is_nan() { b } else { if b.is_nan() { a } else { least } };
            let or_nan = if a.is_nan() || b.is_nan() { f32::NAN } else { least };
            for (name, expected) in [("s_min_num_f32", number), ("s_minimum_f32", or_nan)] {
                let found = f32::from_bits(float(name, Encoding::Sop2, [a.to_bits(), b.to_bits(), 0]).0);
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{name} {a} {b}: {found} {expected}");
            }
        }
    }
}

#[test]
fn scalar_floats_compare() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    // Orders of the operands for which the condition holds; `None` stands for unordered (NaN).
    let cases = [
        ("s_cmp_lt_f32", vec![Some(Less)]),
        ("s_cmp_ge_f32", vec![Some(Greater), Some(Equal)]),
        ("s_cmp_lg_f32", vec![Some(Less), Some(Greater)]),
        ("s_cmp_neq_f32", vec![Some(Less), Some(Greater), None]),
        ("s_cmp_ngt_f32", vec![Some(Less), Some(Equal), None]),
        ("s_cmp_nlg_f32", vec![Some(Equal), None]),
        ("s_cmp_o_f32", vec![Some(Less), Some(Equal), Some(Greater)]),
        ("s_cmp_u_f32", vec![None]),
    ];
    for (name, orders) in cases {
        for a in FLOATS {
            for b in FLOATS {
                let (old, found) = float(name, Encoding::Sopc, [a.to_bits(), b.to_bits(), 77]);
                assert_eq!((old, found), (77, orders.contains(&a.partial_cmp(&b))), "{name} {a} {b}");
            }
        }
    }
}

#[test]
fn scalar_conversions() {
    let convert = |name, a: u32| float(name, Encoding::Sop1, [a, 0, 0]).0;
    assert_eq!(convert("s_cvt_f32_i32", -3i32 as u32), (-3.0f32).to_bits());
    assert_eq!(convert("s_cvt_f32_u32", u32::MAX), 4_294_967_296.0f32.to_bits());
    assert_eq!(convert("s_cvt_u32_f32", (-1.0f32).to_bits()), 0);
    assert_eq!(convert("s_cvt_i32_f32", 1e20f32.to_bits()), i32::MAX as u32);
    assert_eq!(convert("s_trunc_f32", (-2.75f32).to_bits()), (-2.0f32).to_bits());
    assert_eq!(convert("s_rndne_f32", 2.5f32.to_bits()), 2.0f32.to_bits());
    // f16: 1.0 is 0x3c00, -2.0 is 0xc000.
    assert_eq!(convert("s_cvt_f16_f32", 1.0f32.to_bits()), 0x3c00);
    assert_eq!(convert("s_cvt_f32_f16", 0xc000_3c00), 1.0f32.to_bits());
    assert_eq!(convert("s_cvt_hi_f32_f16", 0xc000_3c00), (-2.0f32).to_bits());
    assert_eq!(float("s_add_f16", Encoding::Sop2, [0xffff_3c00, 0x3c00, 0]).0, 0x4000);
    assert!(float("s_cmp_lt_f16", Encoding::Sopc, [0xc000, 0x3c00, 0]).1);
}

#[test]
fn inline_floats_have_the_width_of_the_operation() {
    let one = Operand::Float(InlineFloat::One);
    for (name, expected) in [("s_add_f16", 0x4000), ("s_add_f32", 2.0f32.to_bits())] {
        let mut wave = wave();
        prepare_float(&inst(name, Encoding::Sop2, S, &[one, one])).expect(name).run(&mut wave);
        assert_eq!(wave.sgpr[10], expected, "{name}");
    }
}

#[test]
fn scalar_transcendentals_apply_sign_modifiers() {
    let mut reciprocal = inst("v_s_rcp_f32", Encoding::Vop3, S, &[Operand::Scalar(20)]);
    (reciprocal.mods.abs, reciprocal.mods.neg) = (1, 1);
    let mut wave = wave();
    wave.sgpr[20] = (-4.0f32).to_bits();
    prepare_float(&reciprocal).expect("known").run(&mut wave);
    assert_eq!(f32::from_bits(wave.sgpr[10]), -0.25);
    reciprocal.mods.clamp = true;
    assert!(prepare_float(&reciprocal).is_none(), "not implemented");
}

#[test]
fn sums_and_products_of_64_bits() {
    let (a, b) = (0xfedc_ba98_7654_3210, 0x0123_4567_89ab_cdef_u64);
    for (name, expected) in [
        ("s_add_nc_u64", b.wrapping_add(a)),
        ("s_sub_nc_u64", a.wrapping_sub(b)),
        ("s_mul_u64", b.wrapping_mul(a)),
    ] {
        assert_eq!(binary(name, a, b, true), (expected, true), "{name}");
    }
}
