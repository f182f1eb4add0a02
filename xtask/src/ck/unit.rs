//! Generates the C++ source that instantiates exactly one kernel.
use std::fmt::Write;

use super::interface::{Element, Instance, KERNEL, THREADS};

/// Headers in dependency order. CK's umbrella header would take longer to parse.
const HEADERS: &[&str] = &[
    "core.hpp",
    "ops/common.hpp",
    "ops/epilogue/default_2d_epilogue.hpp",
    "ops/fmha/block/block_dropout.hpp",
    "ops/fmha/block/block_masking.hpp",
    "ops/fmha/block/block_position_encoding.hpp",
    "ops/fmha/block/block_rotary_embedding.hpp",
    "ops/fmha/block/variants.hpp",
    "ops/fmha/pipeline/tile_fmha_shape.hpp",
    "ops/fmha/pipeline/tile_fmha_traits.hpp",
    "ops/fmha/pipeline/block_fmha_pipeline_problem.hpp",
    "ops/fmha/pipeline/block_fmha_pipeline_qr_ks_vs_async.hpp",
    "ops/fmha/kernel/fmha_fwd_kernel.hpp",
];

/// Returns the source of one instance: the forward kernel with asynchronous copies of keys, padded lengths and widths
/// and stored log-sum-exp, without bias and dropout. Static assertions check the argument layout that we compute.
pub fn text(instance: &Instance) -> String {
    let mut text = String::new();
    for header in HEADERS {
        let _ = writeln!(text, "#include \"ck_tile/{header}\"");
    }
    let element = match instance.element {
        Element::F16 => "half_t",
        Element::Bf16 => "bf16_t",
    };
    let (tile, width) = (instance.tile(), instance.width);
    let (queries, keys, step, key_step) = (tile.queries, tile.keys, tile.width_step, tile.key_step);
    let (varlen, masked) = (instance.varlen, instance.masked);
    let _ = write!(
        text,
        "
using namespace ck_tile;
using E = {element};
using Waves = sequence<4, 1, 1>;
using WaveTile = sequence<32, 32, 16>;
using Shape = TileFmhaShape<sequence<{queries}, {keys}, {step}, {width}, {key_step}, {width}>, Waves, WaveTile, Waves,
                            WaveTile, true>;
using Traits = TileFmhaTraits<true, true, true, true, false, BlockAttentionBiasEnum::NO_BIAS, false, true, false, false>;
using Problem = BlockFmhaPipelineProblem<E, E, E, float, float, E, uint8_t, float, E, float, E, Shape, {varlen},
                                         ComposedAttention<0, CK_TILE_FMHA_FWD_FAST_EXP2>,
                                         SimplifiedGenericAttentionMask<{masked}>, Traits>;
using Kernel = FmhaFwdKernel<BlockFmhaPipelineQRKSVSAsync<Problem>,
                             Default2DEpilogue<Default2DEpilogueProblem<float, E, true, true>>>;

static_assert(Kernel::kBlockSize == {THREADS});
"
    );
    let layout = instance.layout();
    let _ = writeln!(text, "static_assert(sizeof(Kernel::Kargs) == {});", layout.bytes);
    for (field, offset) in &layout.fields {
        let _ = writeln!(text, "static_assert(offsetof(Kernel::Kargs, {field}) == {offset});");
    }
    let _ = write!(
        text,
        "
extern \"C\" __global__ __attribute__((amdgpu_flat_work_group_size(1, {THREADS}),
                                     amdgpu_waves_per_eu(Kernel::kBlockPerCu))) void {KERNEL}(Kernel::Kargs arguments) {{
    Kernel{{}}(arguments);
}}
"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_its_instance_and_asserts_its_argument() {
        let instance = Instance { element: Element::Bf16, width: 256, varlen: true, masked: false };
        let text = text(&instance);
        for part in [
            "using E = bf16_t;",
            "sequence<128, 128, 32, 256, 32, 256>",
            "Shape, true,",
            "SimplifiedGenericAttentionMask<false>",
            "static_assert(sizeof(Kernel::Kargs) == 136);",
            "static_assert(offsetof(Kernel::Kargs, nhead_stride_o) == 88);",
            "static_assert(offsetof(Kernel::Kargs, lse_ptr) == 96);",
            "static_assert(offsetof(Kernel::Kargs, seqlen_k_ptr) == 128);",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}
