//! Translation to one set of mnemonics, gfx11's. An instruction that another family names or encodes
//! differently is rewritten once, after decoding. Faults print the family's own name.
mod gfx10;
mod gfx12;
mod gfx9;

pub(super) use gfx9::index_registers;

use crate::isa::{Family, Inst, expand};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Returns the instruction with gfx11's name and operands.
pub(super) fn canonical(family: Family, mut inst: Inst) -> Inst {
    match family {
        Family::Rdna2 => gfx10::rewrite(&mut inst),
        Family::Rdna3 | Family::Rdna35 => {}
        Family::Rdna4 => gfx12::rewrite(&mut inst),
        _ => gfx9::rewrite(family, &mut inst),
    }
    inst
}

/// Lookup from a family's names to gfx11's. A line of a table has both as patterns for [`expand`]; several
/// names may map to a single one. `*` stands for each of the prefixes of vector memory instructions.
struct Names(HashMap<String, &'static str>);

impl Names {
    fn new(tables: &[&str]) -> Self {
        let mut names = HashMap::new();
        for (old, new) in
            tables.iter().flat_map(|table| table.lines()).filter_map(|l| l.trim().split_once(' '))
        {
            let expanded = |pattern: &str| expand(&pattern.replace('*', "{flat,global,scratch,buffer}"));
            // Each table is built once and lives as long as the process.
            let new: Vec<&'static str> =
                expanded(new.trim_start()).into_iter().map(|name| &*name.leak()).collect();
            names.extend(expanded(old).into_iter().zip(new.into_iter().cycle()));
        }
        Self(names)
    }

    /// Renames the instruction if the tables contain its name.
    fn apply(&self, inst: &mut Inst) {
        if let Some(name) = self.0.get(inst.name) {
            inst.name = name;
        }
    }
}

/// Names that gfx9 and gfx10 share. Vector memory and scalar loads are named after data types.
const BEFORE_GFX11: &str = "
    *_load_{ubyte,sbyte,ushort,sshort}          *_load_{u8,i8,u16,i16}
    *_load_{ubyte,sbyte,short}_d16              *_load_d16_{u8,i8,b16}
    *_load_{ubyte,sbyte,short}_d16_hi           *_load_d16_hi_{u8,i8,b16}
    *_load_dword{,x2,x3,x4}                     *_load_b{32,64,96,128}
    *_store_{byte,short}{,_d16_hi}              *_store_{b8,d16_hi_b8,b16,d16_hi_b16}
    *_store_dword{,x2,x3,x4}                    *_store_b{32,64,96,128}
    *_atomic_{swap,cmpswap,and,or,xor}{,_x2}    *_atomic_{swap,cmpswap,and,or,xor}_b{32,64}
    *_atomic_{add,sub,inc,dec}{,_x2}            *_atomic_{add,sub,inc,dec}_u{32,64}
    *_atomic_s{min,max}{,_x2}                   *_atomic_{min,max}_i{32,64}
    *_atomic_u{min,max}{,_x2}                   *_atomic_{min,max}_u{32,64}
    *_atomic_f{cmpswap,min,max}{,_x2}           *_atomic_{cmpswap,min,max}_f{32,64}
    *_atomic_csub                               *_atomic_csub_u32

    ds_read_{u8,i8,u16,i16}                     ds_load_{u8,i8,u16,i16}
    ds_read_{u8,i8,u16}_d16{,_hi}               ds_load_{u8,i8,u16}_d16{,_hi}
    ds_write_b{8,16}{,_d16_hi}                  ds_store_b{8,16}{,_d16_hi}
    ds_{read,write}_b{32,64,96,128}             ds_{load,store}_b{32,64,96,128}
    ds_{read,write}2{,st64}_b{32,64}            ds_{load,store}_2addr{,_stride64}_b{32,64}
    ds_{read,write}_addtid_b32                  ds_{load,store}_addtid_b32
    ds_wrxchg_rtn_b{32,64}                      ds_storexchg_rtn_b{32,64}
    ds_wrxchg2{,st64}_rtn_b{32,64}              ds_storexchg_2addr{,_stride64}_rtn_b{32,64}

    s_{,buffer_}load_dword{,x2,x4,x8,x16}       s_{,buffer_}load_b{32,64,128,256,512}
    s_{and,or}n2_b{32,64}                       s_{and,or}_not1_b{32,64}
    s_{and,or}n{1,2}_saveexec_b{32,64}          s_{and,or}_not{0,1}_saveexec_b{32,64}
    s_andn{1,2}_wrexec_b{32,64}                 s_and_not{0,1}_wrexec_b{32,64}
    s_ff1_i32_b{32,64}                          s_ctz_i32_b{32,64}
    s_flbit_i32_b{32,64}                        s_clz_i32_u{32,64}
    s_flbit_i32{,_i64}                          s_cls_i32{,_i64}

    v_{ffbh_u32,ffbh_i32,ffbl_b32}              v_{clz_i32_u32,cls_i32,ctz_i32_b32}
    v_{mul,fma,fmac}_legacy_f32                 v_{mul,fma,fmac}_dx9_zero_f32
    v_cvt_{rpi,flr}_i32_f32                     v_cvt_{nearest,floor}_i32_f32
    v_cvt_pkrtz_f16_f32                         v_cvt_pk_rtz_f16_f32
    v_cvt_pknorm_{i16,u16}_f{32,16}             v_cvt_pk_norm_{i16,u16}_f{32,16}
    v_dot2c_f32_{f16,bf16}                      v_dot2acc_f32_{f16,bf16}
";

/// Cache operations, which become no-ops because the emulator's caches are coherent.
const CACHE_OPS: &str = "
    s_{dcache_wb,dcache_discard,dcache_discard_x2,gl1_inv}  s_nop
    buffer_{gl0,gl1}_inv                                    s_nop
";

/// Compare-and-store in LDS. Before gfx11, the compared value preceded the new value.
const LDS_COMPARE_AND_STORE: &str = "ds_cmpst{,_rtn}_{b,f}{32,64}  ds_cmpstore{,_rtn}_{b,f}{32,64}";

/// Rewrites a compare-and-store in LDS to gfx11's operand order and name.
fn swap_compare_operands(inst: &mut Inst) {
    static COMPARES: LazyLock<Names> = LazyLock::new(|| Names::new(&[LDS_COMPARE_AND_STORE]));
    if inst.name.starts_with("ds_cmpst_") {
        inst.src.swap(1, 2);
        COMPARES.apply(inst);
    }
}

#[cfg(test)]
mod tests;
