//! Instruction names and operands of gfx12 (gfx1200 and gfx1201).
use super::Names;
use crate::isa::Inst;
use std::sync::LazyLock;

/// gfx12 marks additions and multiplications with a carry (`_co`), and minima and maxima of numbers (`_num`).
/// Waits and cache operations become no-ops: memory accesses complete immediately, and caches are coherent.
const GFX12_NAMES: &str = "
    s_{add,sub}_co_{u,i}32                          s_{add,sub}_{u,i}32
    s_{add,sub}_co_ci_u32                           s_{addc,subb}_u32
    s_addk_co_i32                                   s_addk_i32
    v_mad_co_{u64_u32,i64_i32}                      v_mad_{u64_u32,i64_i32}
    {flat,global}_atomic_{min,max}_num_f32          {flat,global}_atomic_{min,max}_f32
    {flat,global}_atomic_sub_clamp_u32              {flat,global}_atomic_csub_u32
    ds_{min,max}_num{,_rtn}_f{32,64}                ds_{min,max}{,_rtn}_f{32,64}
    s_wait_{alu,loadcnt,storecnt,samplecnt,bvhcnt}  s_nop
    s_wait_{expcnt,dscnt,kmcnt}                     s_nop
    s_wait_{loadcnt,storecnt}_dscnt                 s_nop
    s_sleep_var                                     s_nop
    s_{,buffer_}prefetch_data                       s_nop
    s_prefetch_{inst,inst_pc_rel,data_pc_rel}       s_nop
    global_{inv,wb,wbinv}                           s_nop
";

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[GFX12_NAMES]));

pub(super) fn rewrite(inst: &mut Inst) {
    NAMES.apply(inst);
}
