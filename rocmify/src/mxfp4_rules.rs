//! Rules that add MXFP4 to upstream's block formats, from `candle-core/src/mxfp4.rs`.

use crate::rules::{Rule, after, before};

const QUANTIZED: &str = "quantized/mod.rs";
const METAL: &str = "quantized/metal.rs";

/// All rules for MXFP4.
pub const MXFP4_RULES: &[Rule] = &[
    after("mxfp4-block", QUANTIZED, "pub use k_quants::GgmlType;\n", "pub use crate::mxfp4::BlockMxfp4;\n"),
    after("mxfp4-type", QUANTIZED, "    Q6K,\n    Q8K,\n", "    MXFP4,\n"),
    after("mxfp4-from-number", QUANTIZED, "15 => Self::Q8K,\n", "            39 => Self::MXFP4,\n"),
    after("mxfp4-to-number", QUANTIZED, "Self::Q8K => 15,\n", "            Self::MXFP4 => 39,\n"),
    after(
        "mxfp4-zeros",
        QUANTIZED,
        "Self::Q8K => Box::new(vec![BlockQ8K::zeros(); elem_count / BlockQ8K::BLCK_SIZE]),\n",
        "            Self::MXFP4 => Box::new(vec![BlockMxfp4::zeros(); elem_count / BlockMxfp4::BLCK_SIZE]),\n",
    ),
    after(
        "mxfp4-from-data",
        QUANTIZED,
        "Self::Q8K => Box::new(as_t_slice::<BlockQ8K>(data).to_vec()),\n",
        "            Self::MXFP4 => Box::new(as_t_slice::<BlockMxfp4>(data).to_vec()),\n",
    ),
    after(
        "mxfp4-bytes",
        QUANTIZED,
        "Self::Q8K => std::mem::size_of::<BlockQ8K>(),\n",
        "            Self::MXFP4 => std::mem::size_of::<BlockMxfp4>(),\n",
    ),
    after(
        "mxfp4-elements",
        QUANTIZED,
        "Self::Q8_1 => k_quants::QK8_1,\n",
        "            Self::MXFP4 => crate::mxfp4::QK_MXFP4,\n",
    ),
    after(
        "mxfp4-on-metal",
        QUANTIZED,
        "GgmlDType::Q8K => metal::load_quantized(d, as_t_slice::<BlockQ8K>(data)),\n",
        "                GgmlDType::MXFP4 => crate::bail!(\"Metal has no kernels for MXFP4\"),\n",
    ),
    after(
        "mxfp4-on-cuda",
        QUANTIZED,
        "GgmlDType::Q8K => cuda::load_quantized(d, as_t_slice::<BlockQ8K>(data)),\n",
        "                GgmlDType::MXFP4 => cuda::load_quantized(d, as_t_slice::<BlockMxfp4>(data)),\n",
    ),
    after(
        "mxfp4-on-rocm",
        QUANTIZED,
        "GgmlDType::Q8K => rocm::load_quantized(d, as_t_slice::<BlockQ8K>(data)),\n",
        "                GgmlDType::MXFP4 => rocm::load_quantized(d, as_t_slice::<BlockMxfp4>(data)),\n",
    ),
    before(
        "mxfp4-of-files",
        "quantized/ggml_file.rs",
        "        _ => crate::bail!(\"quantized type",
        "        GgmlDType::MXFP4 => from_raw_data::<super::BlockMxfp4>(raw_data, size_in_bytes, dims, device),\n",
    ),
    after(
        "mxfp4-dequantized-for-cuda",
        "quantized/cuda.rs",
        "GgmlDType::Q8K => deq::<crate::quantized::BlockQ8K>(&buffer, block_len, &mut out),\n",
        "            GgmlDType::MXFP4 => deq::<crate::quantized::BlockMxfp4>(&buffer, block_len, &mut out),\n",
    ),
    after(
        "mxfp4-dequantized-for-metal",
        METAL,
        "                crate::quantized::BlockQ8K::to_float(&vec, &mut out);\n            }\n",
        "            GgmlDType::MXFP4 => crate::bail!(\"Metal has no kernels for MXFP4\"),\n",
    ),
    // Metal's storage is never MXFP4, because loading and allocating it fail.
    after(
        "mxfp4-kernels-of-metal",
        METAL,
        "GgmlDType::Q8K => candle_metal_kernels::GgmlDType::Q8K,\n",
        "            GgmlDType::MXFP4 => unreachable!(\"Metal has no kernels for MXFP4\"),\n",
    ),
    after(
        "mxfp4-zeros-on-metal",
        METAL,
        "    pub fn zeros(device: &MetalDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {\n",
        "        if dtype == GgmlDType::MXFP4 {\n            crate::bail!(\"Metal has no kernels for MXFP4\")\n        }\n",
    ),
];
