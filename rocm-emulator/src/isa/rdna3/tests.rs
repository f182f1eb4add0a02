//! Decoding against llvm-mc: `tests/fixtures/gfx1100.txt` holds code words and the text that llvm-mc prints for them.
use super::super::{DppControl, Encoding, InlineFloat, Inst, Operand, sreg};
use super::{decode, format, table};
use std::collections::HashSet;

/// (code, text) of every line of the fixture.
fn fixture() -> Vec<(Vec<u8>, &'static str)> {
    include_str!("../../../tests/fixtures/gfx1100.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (words, text) = line.split_once("  ").expect("code, two blanks, text");
            (code(words), text)
        })
        .collect()
}

fn code(words: &str) -> Vec<u8> {
    let word = |word| u32::from_str_radix(word, 16).expect("a hexadecimal word");
    words.split(' ').flat_map(|w| word(w).to_le_bytes()).collect()
}

fn inst(words: &str) -> Inst {
    decode(&code(words), 0).expect("a valid instruction")
}

#[test]
fn every_fixture_line_decodes_to_its_text() {
    let lines = fixture();
    assert!(lines.len() > 4000, "only {} lines", lines.len());
    for (code, text) in lines {
        let inst = decode(&code, 0).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(format(&inst, 0), text, "{code:02x?}");
        assert_eq!(usize::from(inst.size), code.len(), "{text}");
    }
}

#[test]
fn the_fixture_covers_every_row() {
    let mut seen = HashSet::new();
    for (code, text) in fixture() {
        let inst = decode(&code, 0).unwrap_or_else(|error| panic!("{text}: {error}"));
        seen.extend(inst.pair.as_deref().map(|pair| (pair.encoding, pair.name)));
        seen.insert((inst.encoding, inst.name));
    }
    // A row of VOP1, VOP2 or VOPC is covered in its own encoding; VOP3 repeats it.
    let missing: Vec<_> =
        table::all().filter(|(encoding, row)| !seen.contains(&(*encoding, row.name))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A generator of well-mixed words (SplitMix64).
fn words(mut state: u64) -> impl Iterator<Item = u32> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    })
}

#[test]
fn any_bytes_decode_or_give_an_error() {
    let mut source = words(1);
    let mut decoded = 0;
    for _ in 0..300_000 {
        let text: Vec<u8> = source.by_ref().take(4).flat_map(u32::to_le_bytes).collect();
        match decode(&text, 0) {
            Ok(inst) => {
                decoded += 1;
                assert!([4, 8, 12].contains(&inst.size), "{inst:?}");
                let printed = format(&inst, 0);
                assert!(!printed.contains("not a gfx11 instruction"), "{inst:?}");
            }
            Err(error) => assert_eq!(error.offset, 0),
        }
        // A text that ends within the instruction must not be read beyond its end.
        for length in 0..text.len() {
            if let Ok(inst) = decode(&text[..length], 0) {
                assert!(usize::from(inst.size) <= length);
            }
        }
    }
    assert!(decoded > 100_000, "{decoded}");
}

#[test]
fn offsets_outside_the_text_are_errors() {
    let text = code("bf800000");
    for offset in [1, 4, 5, usize::MAX - 3, usize::MAX] {
        let error = decode(&text, offset).expect_err("outside");
        assert_eq!(error.offset, offset);
    }
}

#[test]
fn what_is_not_decoded_says_so() {
    for (words, reason) in [
        ("e8000000 00000000", "MTBUF"),
        ("f0000000 00000000", "MIMG"),
        ("f8000000 00000000", "EXP"),
        ("bf860000", "unknown opcode"),
        ("7e0002e8", "reserved"),
        ("7e0202fa ff000000", ""),
        ("7e0202fa ff010000", "DPP control"),
    ] {
        match decode(&code(words), 0) {
            Ok(inst) => assert_eq!(reason, "", "{words}: {inst:?}"),
            Err(error) => {
                assert!(!reason.is_empty() && error.reason.contains(reason), "{words}: {error}");
            }
        }
    }
}

#[test]
fn implicit_operands_are_filled_in() {
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
fn the_literal_stands_once_for_all_that_name_it() {
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
fn branches_and_immediates_have_their_sign() {
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
        // The hardware's 1/(2 pi) is cut off, not rounded, in f64.
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
