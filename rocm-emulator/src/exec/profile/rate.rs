//! Which vector instructions take longer than others, as AMD's peaks tell them apart.

/// How a vector instruction is issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) enum Rate {
    #[default]
    Full,
    /// Four times as long: transcendental functions and multiplications of 32-bit integers.
    Quarter,
    /// On f64, whatever the chip takes for it.
    Double,
    /// A product of matrices or of short vectors, as long as its unit takes.
    Product,
}

const TRANSCENDENTAL: [&str; 7] = ["v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"];
const MULTIPLICATIONS: [&str; 5] =
    ["v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32", "v_mad_u64_u32", "v_mad_i64_i32"];
const PRODUCTS: [&str; 6] = ["v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_", "v_dot", "v_dual_dot"];

impl Rate {
    /// That of a mnemonic. A pair (v_dual) is of full rate, or a product if its first half is one.
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
    fn slow_instructions_are_told_apart() {
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
