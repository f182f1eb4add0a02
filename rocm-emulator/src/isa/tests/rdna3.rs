//! Decoder tests of gfx11's instructions and operands.
use super::super::{DppControl, Encoding, Family, InlineFloat, Inst, Operand, decode, sreg};
use super::round_trip::code;

fn inst(words: &str) -> Inst {
    decode(Family::Rdna3, &code(words), 0).expect("a valid instruction")
}

#[test]
fn undecodable_code_reports_the_reason() {
    for (words, reason) in [
        ("e8000000 00000000", "MTBUF"),
        ("f0000000 00000000", "MIMG"),
        ("f8000000 00000000", "EXP"),
        ("bf860000", "unknown opcode"),
        ("7e0002e8", "reserved"),
        ("7e0202fa ff000000", ""),
        ("7e0202fa ff010000", "DPP control"),
    ] {
        match decode(Family::Rdna3, &code(words), 0) {
            Ok(inst) => assert_eq!(reason, "", "{words}: {inst:?}"),
            Err(error) => {
                assert!(!reason.is_empty() && error.reason.contains(reason), "{words}: {error}");
            }
        }
    }
}

#[test]
fn implicit_operands_are_decoded() {
    let vcc = Operand::Scalar(sreg::VCC_LO);
    // v_cndmask_b32_e32 v4, v8, v12, vcc_lo
    let cndmask = inst("02081908");
    assert_eq!((cndmask.name, cndmask.src[2]), ("v_cndmask_b32", vcc));
    // v_add_co_ci_u32_e32 v4, vcc_lo, v8, v12, vcc_lo
    let add = inst("40081908");
    assert_eq!((add.name, add.dst2, add.src[2]), ("v_add_co_ci_u32", vcc, vcc));
    // v_cmp_lt_f32_e32 vcc_lo, v8, v12 and v_cmpx_lt_f32_e32 v8, v12
    assert_eq!(inst("7c221908").dst, vcc);
    assert_eq!(inst("7d221908").dst, Operand::Scalar(sreg::EXEC_LO));
    // v_cmpx_lt_f32_e64 v8, v12
    assert_eq!(inst("d491007e 00021908").dst, Operand::Scalar(sreg::EXEC_LO));
}

#[test]
fn halves_are_folded_into_op_sel() {
    // v_add_f16_e32 v4.h, v8.h, v12.l: bit 7 of a register field is the half.
    let add = inst("65081988");
    assert_eq!((add.dst, add.src[0], add.src[1]), (Operand::Vgpr(4), Operand::Vgpr(8), Operand::Vgpr(12)));
    assert_eq!(add.mods.op_sel, 0b1001);
    // v_cvt_f32_f16_e32 v132, v8.h: the destination is a whole register.
    let convert = inst("7f081788");
    assert_eq!((convert.dst, convert.src[0]), (Operand::Vgpr(132), Operand::Vgpr(8)));
    assert_eq!(convert.mods.op_sel, 0b0001);
}

#[test]
fn all_references_share_one_literal() {
    // v_fmaak_f32 v4, lit, v12, K with the same dword as source 0 and as K.
    let fmaak = inst("5a0818ff 41280000");
    assert_eq!((fmaak.src[0], fmaak.src[2]), (Operand::Literal(0x4128_0000), Operand::Literal(0x4128_0000)));
    assert_eq!(fmaak.size, 8);
    // v_dual_mul_f32 with literals in both halves.
    let dual = inst("c8c818ff 04021aff 40490fdb");
    let pair = dual.pair.as_deref().expect("two halves");
    assert_eq!((dual.name, pair.name), ("v_mul_f32", "v_add_f32"));
    assert_eq!((dual.src[0], pair.src[0]), (Operand::Literal(0x4049_0fdb), Operand::Literal(0x4049_0fdb)));
    // X writes v4, so Y writes an odd register.
    assert_eq!((dual.dst, pair.dst, dual.size), (Operand::Vgpr(4), Operand::Vgpr(3), 12));
}

#[test]
fn branches_and_immediates_are_signed() {
    assert_eq!(inst("bfa0ffff").imm, -1);
    assert_eq!(inst("b004ffff").imm, -1, "s_movk_i32");
    assert_eq!(inst("b484ffff").imm, 0xffff, "s_cmpk_eq_u32");
    assert_eq!(inst("bc7cffff").imm, 0xffff, "s_waitcnt_vscnt");
    // global_load_b32 v20, v[8:9], off offset:-8
    assert_eq!(inst("dc521ff8 147c0008").offset0, -8);
    // s_load_b32 s16, s[8:9], -0x10
    let load = inst("f4000404 f81ffff0");
    assert_eq!((load.offset0, load.src[1]), (-16, Operand::None));
}

#[test]
fn atomics_have_a_destination_only_if_they_return() {
    // global_atomic_add_u32 v[8:9], v12, off and the same with glc.
    assert_eq!(inst("dcd60000 007c0c08").dst, Operand::None);
    assert_eq!(inst("dcd64000 147c0c08").dst, Operand::Vgpr(20));
}

#[test]
fn mixed_precision_has_whole_operand_modifiers() {
    // v_fma_mix_f32 v4, |v8|, -v12, v16 op_sel_hi:[1,1,1]
    let mix = inst("cc204104 5c421908");
    assert_eq!((mix.mods.abs, mix.mods.neg, mix.mods.neg_hi, mix.mods.op_sel_hi), (1, 2, 0, 7));
}

#[test]
fn dpp_controls() {
    // v_mov_b32_dpp v4, v8 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1
    let mov = inst("7e0802fa ff091108");
    let dpp = mov.dpp.expect("DPP");
    assert_eq!((mov.src[0], dpp.control), (Operand::Vgpr(8), DppControl::RowShr(1)));
    assert_eq!((dpp.row_mask, dpp.bank_mask, dpp.bound_ctrl, dpp.fetch_inactive), (15, 15, true, false));
    // dpp8:[7,6,5,4,3,2,1,0] fi:1
    let reversed = inst("7e0802ea 05397708").dpp.expect("DPP8");
    assert_eq!(reversed.control, DppControl::Dpp8([7, 6, 5, 4, 3, 2, 1, 0]));
    assert!(reversed.fetch_inactive);
}

#[test]
fn inline_floats_have_their_ieee_bits() {
    let values = [
        (InlineFloat::Half, 0.5),
        (InlineFloat::NegHalf, -0.5),
        (InlineFloat::One, 1.0),
        (InlineFloat::NegOne, -1.0),
        (InlineFloat::Two, 2.0),
        (InlineFloat::NegTwo, -2.0),
        (InlineFloat::Four, 4.0),
        (InlineFloat::NegFour, -4.0),
        // The hardware's 1/(2 pi) is truncated, not rounded, in f64.
        (InlineFloat::InvTwoPi, (std::f64::consts::FRAC_1_PI / 2.0).next_down()),
    ];
    for (float, value) in values {
        assert_eq!(f64::from_bits(float.bits_64()), value);
        assert_eq!(f32::from_bits(float.bits_32()), value as f32);
        assert_eq!(half::f16::from_bits(float.bits_16()), half::f16::from_f64(value));
    }
    assert_eq!(inst("7e0802f8").src[0], Operand::Float(InlineFloat::InvTwoPi));
    assert_eq!(inst("7e0802f8").encoding, Encoding::Vop1);
}
