//! Issue rates of vector instructions, as AMD's peak figures distinguish them.

/// Issue rate of a vector instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) enum Rate {
    #[default]
    Full,
    /// A quarter of the full rate: transcendental functions and multiplications of 32-bit integers.
    Quarter,
    /// The rate of f64, which depends on the GPU.
    Double,
    /// The rate of matrix products and dot products, which depends on the GPU.
    Product,
}

const TRANSCENDENTAL: [&str; 7] = ["v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"];
const MULTIPLICATIONS: [&str; 5] =
    ["v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32", "v_mad_u64_u32", "v_mad_i64_i32"];
const PRODUCTS: [&str; 6] = ["v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_", "v_dot", "v_dual_dot"];

impl Rate {
    /// Returns the rate of a mnemonic. Pairs (v_dual) have the full rate unless the first half is a product.
    pub(in crate::exec) fn of(mnemonic: &str) -> Self {
        if mnemonic.starts_with("v_") && mnemonic.contains("f64") {
            Self::Double
        } else if TRANSCENDENTAL.iter().any(|start| mnemonic.starts_with(start))
            || MULTIPLICATIONS.contains(&mnemonic)
        {
            Self::Quarter
        } else if PRODUCTS.iter().any(|start| mnemonic.starts_with(start)) {
            Self::Product
        } else {
            Self::Full
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn rates_of_mnemonics() {
        for (mnemonic, rate) in [
            ("v_add_f32", Rate::Full),
            ("v_exp_f32", Rate::Quarter),
            ("v_rcp_iflag_f32", Rate::Quarter),
            ("v_rsq_f16", Rate::Quarter),
            ("v_mul_lo_u32", Rate::Quarter),
            ("v_mul_u32_u24", Rate::Full),
            ("v_mad_u64_u32", Rate::Quarter),
            ("v_fma_f64", Rate::Double),
            ("v_cvt_f32_f64", Rate::Double),
            ("v_log_f64", Rate::Double),
            ("v_cos_f32", Rate::Quarter),
            ("s_mul_i32", Rate::Full),
            ("v_mfma_f32_16x16x16f16", Rate::Product),
            ("v_mfma_f64_16x16x4f64", Rate::Double),
            ("v_wmma_f32_16x16x16_f16", Rate::Product),
            ("v_dot2c_f32_f16", Rate::Product),
        ] {
            assert_eq!(Rate::of(mnemonic), rate, "{mnemonic}");
        }
    }
}
