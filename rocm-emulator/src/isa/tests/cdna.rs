//! Decoder tests of instructions and operands that only gfx9 has.
use super::super::{
    DppControl, Family, InlineFloat, Inst, Operand, Sdwa, SdwaSelect, SdwaUnused, decode, format, sreg,
};
use super::round_trip::code;

fn inst_on(family: Family, words: &str) -> Inst {
    decode(family, &code(words), 0).expect("a valid instruction")
}

fn inst(words: &str) -> Inst {
    inst_on(Family::Cdna2, words)
}

#[test]
fn undecodable_code_reports_the_reason() {
    for (words, reason) in [
        ("e8000000 00000000", "MTBUF"),
        ("f0000000 00000000", "MIMG"),
        ("c4000000 00000000", "EXP"),
        ("d4000000", "VINTRP"),
        ("bfa00000", "unknown opcode"),
        ("be80007d", "scalar register code is reserved"),
        // 210 lies between the inline integers and the aperture bases.
        ("7e0002d2", "operand code is reserved"),
        ("7e0002fa ff014400", "DPP control"),
        ("7e0002f9 00070600", "SDWA selector"),
        ("7e0004f9 00060600", "no SDWA"),
        // v_readfirstlane_b32 of a scalar register.
        ("7e000401", "vector register"),
        // v_add_f32_e64 with a literal.
        ("d1010000 000002ff", "no literal"),
    ] {
        let error = decode(Family::Cdna2, &code(words), 0).expect_err(words);
        assert!(error.reason.contains(reason), "{words}: {error}");
        assert_eq!(error.family, Family::Cdna2);
    }
}

#[test]
fn opcodes_depend_on_the_family() {
    let name = |family, words| decode(family, &code(words), 0).map(|inst| inst.name);
    // Opcode 4 of VOP2, opcode 0x40 of VOP3P, opcode 0x38 of VOP1.
    for (words, names) in [
        ("08020502", [Some("v_mul_legacy_f32"), Some("v_fmac_f64"), Some("v_fmac_f64")]),
        (
            "d3c08000 1c020300",
            [Some("v_mfma_f32_32x32x1f32"), Some("v_mfma_f32_32x32x1f32"), Some("v_mfma_f32_32x32x1_2b_f32")],
        ),
        ("7e007102", [None, None, Some("v_mov_b64")]),
    ] {
        let found = [Family::Cdna1, Family::Cdna2, Family::Cdna3].map(|family| name(family, words).ok());
        assert_eq!(found, names, "{words}");
    }
}

#[test]
fn implicit_operands_are_decoded() {
    let vcc = Operand::Scalar(sreg::VCC_LO);
    // v_cndmask_b32_e32 v4, v8, v12, vcc
    let cndmask = inst("00081908");
    assert_eq!((cndmask.name, cndmask.src[2]), ("v_cndmask_b32", vcc));
    // v_addc_co_u32_e32 v4, vcc, v8, v12, vcc
    let add = inst("38081908");
    assert_eq!((add.name, add.dst2, add.src[2]), ("v_addc_co_u32", vcc, vcc));
    // v_cmp_lt_f32_e32 vcc, v8, v12
    assert_eq!(inst("7c821908").dst, vcc);
    // v_cmp_lt_f32_e64 s[4:5], v8, v12
    assert_eq!(inst("d0410004 00021908").dst, Operand::Scalar(4));
}

#[test]
fn scalar_registers_have_canonical_numbers() {
    // s_mov_b32 m0, flat_scratch_lo: M0 is code 124 here.
    let mov = inst("befc0066");
    assert_eq!((mov.dst, mov.src[0]), (Operand::Scalar(sreg::M0), Operand::Scalar(sreg::FLAT_SCRATCH_LO)));
    // s_mov_b32 s0, xnack_mask_lo
    assert_eq!(inst("be800068").src[0], Operand::Scalar(sreg::XNACK_MASK_LO));
    // s_mov_b32 s0, 1/(2 pi)
    assert_eq!(inst("be8000f8").src[0], Operand::Float(InlineFloat::InvTwoPi));
}

#[test]
fn sdwa_selects_parts() {
    // v_add_f32_sdwa v0, -v1, |s2| clamp mul:2 dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:WORD_1 src1_sel:DWORD
    let add = inst("020004f9 a6156901");
    let sdwa = add.sdwa.expect("SDWA");
    let expected = Sdwa {
        dst: Some((SdwaSelect::Byte1, SdwaUnused::SignExtend)),
        src: [SdwaSelect::Word1, SdwaSelect::Dword],
        sext: 0,
    };
    assert_eq!(sdwa, expected);
    assert_eq!((add.src[0], add.src[1]), (Operand::Vgpr(1), Operand::Scalar(2)));
    assert_eq!((add.mods.neg, add.mods.abs, add.mods.clamp, add.mods.omod), (1, 2, true, 1));
    assert_eq!(add.size, 8);
    // v_cmp_eq_u32_sdwa s[4:5], sext(v1), v2 src0_sel:BYTE_0 src1_sel:WORD_0
    let compare = inst("7d9404f9 04088401");
    assert_eq!(compare.dst, Operand::Scalar(4));
    assert_eq!(compare.sdwa.map(|sdwa| (sdwa.dst, sdwa.sext)), Some((None, 1)));
}

#[test]
fn dpp_controls_of_the_wave() {
    for (words, control) in [
        ("7e0002fa ff013001", DppControl::WaveShl),
        ("7e0002fa ff014201", DppControl::RowBcast15),
        ("7e0002fa ff014301", DppControl::RowBcast31),
        ("7e0002fa ff015301", DppControl::RowShare(3)),
    ] {
        assert_eq!(inst(words).dpp.map(|dpp| dpp.control), Some(control), "{words}");
    }
    // gfx908 has no row_newbcast.
    assert!(decode(Family::Cdna1, &code("7e0002fa ff015301"), 0).is_err());
}

#[test]
fn matrices_are_in_vector_or_accumulation_registers() {
    // v_mfma_f32_32x32x1f32 a[0:31], v1, a2, 1.0 cbsz:1 abid:2 blgp:3
    let product = inst("d3c09100 73ca0501");
    assert_eq!(product.dst, Operand::Agpr(0));
    let sources = [Operand::Vgpr(1), Operand::Agpr(2), Operand::Float(InlineFloat::One), Operand::None];
    assert_eq!(product.src, sources);
    assert_eq!((product.mods.cbsz, product.mods.abid, product.mods.blgp), (1, 2, 3));
    // Without the bits, the operands are vector registers, but accumulation registers on gfx908.
    let words = "d3c00000 040a0300";
    assert_eq!((inst(words).dst, inst(words).src[2]), (Operand::Vgpr(0), Operand::Vgpr(2)));
    let on_gfx908 = inst_on(Family::Cdna1, words);
    assert_eq!((on_gfx908.dst, on_gfx908.src[2]), (Operand::Agpr(0), Operand::Agpr(2)));
    assert_eq!((on_gfx908.src[0], on_gfx908.src[1]), (Operand::Vgpr(0), Operand::Vgpr(1)));
    // v_smfmac_f32_16x16x32_f16 a[0:3], v[2:3], a[4:7], v9 cbsz:1
    let sparse = inst_on(Family::Cdna3, "d3e28100 14260902");
    assert_eq!(sparse.src, [Operand::Vgpr(2), Operand::Agpr(4), Operand::Vgpr(9), Operand::None]);
}

#[test]
fn accumulation_registers_hold_data() {
    // v_accvgpr_read_b32 v4, a8 and v_accvgpr_write_b32 a4, v8
    let read = inst("d3d84004 18000108");
    assert_eq!((read.dst, read.src[0]), (Operand::Vgpr(4), Operand::Agpr(8)));
    let write = inst("d3d94004 18000108");
    assert_eq!((write.dst, write.src[0]), (Operand::Agpr(4), Operand::Vgpr(8)));
    // global_load_dword a4, v[8:9], off offset:-8 glc scc
    let load = inst("de519ff8 04ff0008");
    assert_eq!((load.dst, load.src[0], load.offset0), (Operand::Agpr(4), Operand::Vgpr(8), -8));
    assert!(load.mods.glc && load.mods.scc && !load.mods.slc);
    // ds_write2_b32 v4, a8, a12 offset0:1 offset1:2
    let store = inst("da1c0201 000c0804");
    let sources = [Operand::Vgpr(4), Operand::Agpr(8), Operand::Agpr(12), Operand::None];
    assert_eq!((store.src, store.offset0, store.offset1), (sources, 1, 2));
    // buffer_load_dword a4, v[8:9], s[12:15], s3 idxen offen offset:4 glc
    let buffer = inst("e0507004 03830408");
    assert_eq!(
        (buffer.dst, buffer.src[2], buffer.src[3]),
        (Operand::Agpr(4), Operand::Scalar(12), Operand::Scalar(3))
    );
    // gfx908 has no accumulation registers in memory accesses.
    assert!(decode(Family::Cdna1, &code("da1c0201 000c0804"), 0).is_err());
}

#[test]
fn scratch_addresses() {
    let addresses = |family, words| {
        let inst = inst_on(family, words);
        (inst.src[0], inst.src[2])
    };
    let (vector, scalar) = (Operand::Vgpr(8), Operand::Scalar(8));
    // Up to gfx90a there is one of the two addresses; on gfx942 either, both or none.
    assert_eq!(addresses(Family::Cdna2, "dc504000 047f0008"), (vector, Operand::None));
    assert_eq!(addresses(Family::Cdna2, "dc504000 04080000"), (Operand::None, scalar));
    assert_eq!(addresses(Family::Cdna3, "dc506004 04080008"), (vector, scalar));
    assert_eq!(addresses(Family::Cdna3, "dc504000 047f0000"), (Operand::None, Operand::None));
}

#[test]
fn loads_to_lds_have_no_destination() {
    // global_load_dword v[8:9], off lds
    let load = inst("dc50a000 007f0008");
    assert_eq!((load.dst, load.mods.lds), (Operand::None, true));
}

#[test]
fn atomics_have_a_destination_only_if_they_return() {
    // global_atomic_add v[8:9], v12, off
    assert_eq!(inst("dd088000 007f0c08").dst, Operand::None);
    // global_atomic_add v4, v[8:9], v12, off offset:8 sc0 sc1
    let add = inst_on(Family::Cdna3, "df098008 047f0c08");
    assert_eq!((add.dst, add.src[1]), (Operand::Vgpr(4), Operand::Vgpr(12)));
    // s_atomic_add s4, s[8:9], 0x10 glc
    let scalar = inst("c20b0104 00000010");
    assert_eq!((scalar.dst, scalar.src[2]), (Operand::Scalar(4), Operand::Scalar(4)));
}

#[test]
fn scalar_loads_have_a_constant_or_a_register_or_both() {
    let offsets = |words| {
        let load = inst(words);
        assert_eq!((load.dst, load.src[0]), (Operand::Scalar(4), Operand::Scalar(8)));
        (load.src[1], load.offset0)
    };
    // s_load_dword s4, s[8:9] with -0x10, s12, and s12 offset:0x10 glc
    assert_eq!(offsets("c0020104 001ffff0"), (Operand::None, -16));
    assert_eq!(offsets("c0000104 0000000c"), (Operand::Scalar(12), 0));
    // A register with a constant of 0 has a separate encoding.
    let text = |words| format(Family::Cdna2, &inst(words));
    assert_eq!(text("c0000104 0000000c"), "s_load_dword s4, s[8:9], s12");
    assert_eq!(text("c0024104 18000000"), "s_load_dword s4, s[8:9], s12 offset:0x0");
    assert_eq!(offsets("c0034104 18000010"), (Operand::Scalar(12), 16));
}

#[test]
fn branches_and_immediates_are_signed() {
    assert_eq!(inst("bf82ffff").imm, -1);
    assert_eq!(inst("b004ffff").imm, -1, "s_movk_i32");
    assert_eq!(inst("b404ffff").imm, 0xffff, "s_cmpk_eq_u32");
    // s_set_gpr_idx_on s4, gpr_idx(SRC0,DST)
    let index = inst("bf110904");
    assert_eq!((index.src[0], index.imm), (Operand::Scalar(4), 9));
}

#[test]
fn packed_words_select_and_negate() {
    // v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7] op_sel:[1,0,0] op_sel_hi:[0,1,1] neg_lo:[1,0,0] neg_hi:[0,1,0]
    let fma = inst("d3b04a00 341a0902");
    let mods = fma.mods;
    assert_eq!((mods.op_sel, mods.op_sel_hi, mods.neg, mods.neg_hi), (1, 6, 1, 2));
    // v_fma_mix_f32 v4, |v8|, -v12, v16 op_sel_hi:[1,1,1]: signs of whole operands.
    let mix = inst("d3a04104 5c421908");
    assert_eq!((mix.mods.abs, mix.mods.neg, mix.mods.neg_hi, mix.mods.op_sel_hi), (1, 2, 0, 7));
}

#[test]
fn names_of_cache_bits_depend_on_the_family() {
    // A load with glc, slc and scc.
    let words = "de538000 047f0008";
    let text = |family| format(family, &inst_on(family, words));
    assert_eq!(text(Family::Cdna2), "global_load_dword v4, v[8:9], off glc slc scc");
    assert_eq!(text(Family::Cdna3), "global_load_dword v4, v[8:9], off sc0 nt sc1");
    // gfx90a's compiler sets the bits in cache operations, but the text does not contain them.
    let words = "e0a0c000 00000000";
    let text = |family| format(family, &inst_on(family, words));
    assert_eq!(text(Family::Cdna2), "buffer_wbl2");
    assert_eq!(text(Family::Cdna3), "buffer_wbl2 sc0 sc1");
}
