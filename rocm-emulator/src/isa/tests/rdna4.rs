//! Decoder tests of instructions and operands that only gfx12 has.
use super::super::{Encoding, Family, Inst, Operand, decode, sreg};
use super::round_trip::code;

fn inst(words: &str) -> Inst {
    decode(Family::Rdna4, &code(words), 0).expect("a valid instruction")
}

#[test]
fn undecodable_code_reports_the_reason() {
    for (words, reason) in [
        ("d0000000 00000000 00000000", "VIMAGE"),
        ("e4000000 00000000 00000000", "VSAMPLE"),
        ("f8000000 00000000", "VEXPORT"),
        ("c4200000 00000000 00000000", "typed buffer"),
        ("c4450000 00000000 00000000", "TFE"),
        ("ee0500fc 00000004 00000010", "non-volatile"),
        ("ef050000 00000000 00000000", "segment"),
        // s_barrier and s_waitcnt_vscnt exist only before gfx12.
        ("bfbd0000", "unknown opcode"),
        ("bc7c0000", "unknown opcode"),
    ] {
        let error = decode(Family::Rdna4, &code(words), 0).expect_err(words);
        assert!(error.reason.contains(reason), "{words}: {error}");
    }
}

#[test]
fn memory_operands_have_the_same_order_as_in_other_families() {
    // global_load_b32 v4, v16, s[4:5] offset:-16 th:TH_LOAD_NT scope:SCOPE_SYS
    let load = inst("ee050004 001c0004 fffff010");
    assert_eq!((load.name, load.encoding, load.size), ("global_load_b32", Encoding::Global, 12));
    assert_eq!(load.src, [Operand::Vgpr(16), Operand::None, Operand::Scalar(4), Operand::None]);
    assert_eq!((load.dst, load.offset0, load.mods.th, load.mods.scope), (Operand::Vgpr(4), -16, 1, 3));
    // scratch_store_b32 off, v8, off
    let store = inst("ed06807c 04000000 00000000");
    assert_eq!(
        (store.src, store.dst),
        ([Operand::None, Operand::Vgpr(8), Operand::None, Operand::None], Operand::None)
    );
    // A bit says whether scratch_load_b32 v4, v0, off has a vector address.
    assert_eq!(inst("ed05007c 00020004 00000000").src[0], Operand::Vgpr(0));
    // s_load_b64 s[4:5], s[8:9], s5 offset:0x10
    let scalar = inst("f4002104 0a000010");
    assert_eq!((scalar.src[1], scalar.offset0), (Operand::Scalar(5), 16));
    assert_eq!(inst("f4002104 f8000010").src[1], Operand::None);
}

#[test]
fn atomics_have_a_destination_only_if_the_hint_says_so() {
    // global_atomic_add_u32 v[16:17], v8, off, and the same with th:TH_ATOMIC_RETURN.
    assert_eq!(inst("ee0d407c 04000000 00000010").dst, Operand::None);
    assert_eq!(inst("ee0d407c 04100004 00000010").dst, Operand::Vgpr(4));
}

#[test]
fn a_literal_between_sources_has_no_field() {
    // s_fmamk_f32 s4, s5, 0x3f800000, s8
    let fmamk = inst("a3040805 3f800000");
    assert_eq!(fmamk.src[..3], [Operand::Scalar(5), Operand::Literal(0x3f80_0000), Operand::Scalar(8)]);
    // s_fmac_f32 s4, s5, null
    assert_eq!(inst("a3847c05").src[1], Operand::Scalar(sreg::NULL));
}
