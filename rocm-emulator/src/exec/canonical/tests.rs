//! Tests of the translation of names and operands to gfx11's.
use super::*;
use crate::isa::{Encoding, Operand, SdwaSelect, SdwaUnused};

fn inst(name: &'static str) -> Inst {
    let register = Operand::Vgpr;
    let src = [register(2), register(3), register(4), Operand::None];
    Inst { size: 8, dst: register(1), src, ..Inst::blank(name, Encoding::Ds) }
}

#[test]
fn gfx9_names_become_gfx11_names() {
    for (own, expected) in [
        ("global_load_dwordx3", "global_load_b96"),
        ("scratch_store_short_d16_hi", "scratch_store_d16_hi_b16"),
        ("flat_atomic_smax_x2", "flat_atomic_max_i64"),
        ("global_atomic_add_f32", "global_atomic_add_f32"),
        ("ds_read2st64_b64", "ds_load_2addr_stride64_b64"),
        ("ds_wrxchg_rtn_b32", "ds_storexchg_rtn_b32"),
        ("ds_bpermute_b32", "ds_bpermute_b32"),
        ("s_load_dwordx16", "s_load_b512"),
        ("s_andn2_saveexec_b64", "s_and_not1_saveexec_b64"),
        ("v_subbrev_co_u32", "v_subrev_co_ci_u32"),
        ("v_ffbl_b32", "v_ctz_i32_b32"),
        ("v_accvgpr_read_b32", "v_mov_b32"),
        ("buffer_wbinvl1_vol", "s_nop"),
        ("v_add_f32", "v_add_f32"),
    ] {
        assert_eq!(canonical(Family::Cdna2, inst(own)).name, expected, "{own}");
    }
}

#[test]
fn gfx10_names_become_gfx11_names() {
    for (own, expected) in [
        ("global_load_sbyte_d16_hi", "global_load_d16_hi_i8"),
        ("ds_write2st64_b64", "ds_store_2addr_stride64_b64"),
        ("s_orn2_b32", "s_or_not1_b32"),
        ("s_inst_prefetch", "s_set_inst_prefetch_distance"),
        ("buffer_gl0_inv", "s_nop"),
        ("v_cmpx_tru_f64", "v_cmpx_t_f64"),
        ("v_ffbh_i32", "v_cls_i32"),
        // gfx10's addition without a carry keeps its name.
        ("v_add_nc_u32", "v_add_nc_u32"),
    ] {
        assert_eq!(canonical(Family::Rdna2, inst(own)).name, expected, "{own}");
    }
}

#[test]
fn gfx12_names_become_gfx11_names() {
    for (own, expected) in [
        ("s_add_co_ci_u32", "s_addc_u32"),
        ("v_mad_co_u64_u32", "v_mad_u64_u32"),
        ("s_wait_loadcnt_dscnt", "s_nop"),
        ("global_inv", "s_nop"),
        ("global_atomic_max_num_f32", "global_atomic_max_f32"),
        ("flat_atomic_sub_clamp_u32", "flat_atomic_csub_u32"),
        ("ds_min_num_rtn_f64", "ds_min_rtn_f64"),
        // It has no counterpart on gfx11: it quiets signalling NaNs.
        ("v_min_num_f32", "v_min_num_f32"),
    ] {
        assert_eq!(canonical(Family::Rdna4, inst(own)).name, expected, "{own}");
    }
}

#[test]
fn gfx11_instructions_are_unchanged() {
    assert_eq!(canonical(Family::Rdna3, inst("v_add_u32")), inst("v_add_u32"));
}

#[test]
fn compared_and_new_value_are_swapped() {
    let stored = canonical(Family::Cdna1, inst("ds_cmpst_rtn_b64"));
    assert_eq!(stored.name, "ds_cmpstore_rtn_b64");
    assert_eq!(
        stored.src,
        [2, 4, 3].map(Operand::Vgpr).into_iter().chain([Operand::None]).collect::<Vec<_>>()[..]
    );
}

#[test]
fn accumulation_registers_follow_vector_registers() {
    let mut load = inst("global_load_dwordx4");
    load.dst = Operand::Agpr(255);
    let Operand::Vgpr(register) = canonical(Family::Cdna2, load).dst else { panic!("no register") };
    assert!(register > 255 + 4);
}

/// Returns the names after `index_registers`; each instruction is given with its size in bytes.
fn indexed(names: &[(&'static str, i32)]) -> Vec<&'static str> {
    let insts = names
        .iter()
        .enumerate()
        .map(|(at, (name, imm))| (8 * at, Ok(Inst { imm: *imm, encoding: Encoding::Vop1, ..inst(name) })));
    let mut found = insts.collect();
    index_registers(&mut found);
    found.into_values().filter_map(|inst| inst.ok().map(|inst| inst.name)).collect()
}

#[test]
fn moves_between_on_and_off_are_indexed() {
    for (mode, expected) in [
        (1, "v_mov_b32 gpr_idx:src"),
        (8, "v_mov_b32 gpr_idx:dst"),
        (9, "v_mov_b32 gpr_idx:both"),
        // Moves have no second source.
        (2, "v_unknown gpr_idx"),
    ] {
        let code = [
            ("v_mov_b32", 0),
            ("s_set_gpr_idx_on", mode),
            ("s_nop", 0),
            ("v_mov_b32", 0),
            ("s_set_gpr_idx_off", 0),
            ("v_mov_b32", 0),
        ];
        let names = indexed(&code);
        assert_eq!([names[0], names[3], names[5]], ["v_mov_b32", expected, "v_mov_b32"]);
    }
}

#[test]
fn other_indexed_instructions_are_unknown() {
    let code = [("s_set_gpr_idx_on", 1), ("v_add_f32", 0), ("s_branch", 0), ("v_add_f32", 0)];
    assert_eq!(indexed(&code)[1..], ["v_unknown gpr_idx", "s_branch", "v_add_f32"]);
}

#[test]
fn random_rounding_writes_a_byte() {
    let mut convert = inst("v_cvt_sr_fp8_f32");
    convert.mods.op_sel = 0b1000;
    let convert = canonical(Family::Cdna3, convert);
    let expected = Some((SdwaSelect::Byte2, SdwaUnused::Preserve));
    assert_eq!((convert.name, convert.sdwa.map(|sdwa| sdwa.dst)), ("v_cvt_sr_fp8_f32 fnuz", Some(expected)));
}

#[test]
fn the_family_selects_the_encoding_of_8_bit_floats() {
    for name in [
        "v_cvt_f32_fp8",
        "v_cvt_f32_bf8",
        "v_cvt_pk_f32_fp8",
        "v_cvt_pk_f32_bf8",
        "v_cvt_pk_fp8_f32",
        "v_cvt_pk_bf8_f32",
        "v_cvt_sr_fp8_f32",
        "v_cvt_sr_bf8_f32",
    ] {
        for (family, encoding) in [(Family::Cdna3, "fnuz"), (Family::Cdna4, "ocp")] {
            assert_eq!(canonical(family, inst(name)).name, format!("{name} {encoding}"));
        }
    }
}
