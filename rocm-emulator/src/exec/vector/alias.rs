//! Mnemonics that are equivalent to another operation with swapped sources, an inverted result, or the
//! destination as addend.

/// Implementation of an instruction by another operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub mnemonic: String,
    /// Swaps sources 0 and 1.
    pub swap: bool,
    /// Inverts a compare's condition.
    pub invert: bool,
    /// Uses the destination as source 2.
    pub accumulate: bool,
}

const SWAPPED: &[(&str, &str)] = &[
    ("v_subrev_f32", "v_sub_f32"),
    ("v_subrev_f16", "v_sub_f16"),
    ("v_subrev_nc_u32", "v_sub_nc_u32"),
    ("v_subrev_nc_u16", "v_sub_nc_u16"),
    ("v_subrev_co_u32", "v_sub_co_u32"),
    ("v_subrev_co_ci_u32", "v_sub_co_ci_u32"),
];

const ACCUMULATING: &[(&str, &str)] = &[
    ("v_fmac_f16", "v_fma_f16"),
    ("v_fmac_f32", "v_fma_f32"),
    ("v_fmac_dx9_zero_f32", "v_fma_dx9_zero_f32"),
    ("v_pk_fmac_f16", "v_pk_fma_f16"),
    ("v_fmac_f64", "v_fma_f64"),
    ("v_mac_f16", "v_mad_f16"),
    ("v_mac_f32", "v_mad_f32"),
    ("v_mac_legacy_f32", "v_mad_legacy_f32"),
    ("v_dot4c_i32_i8", "v_dot4_i32_iu8 neg:3"),
    ("v_dot8c_i32_i4", "v_dot8_i32_iu4 neg:3"),
    ("v_dot2c_i32_i16", "v_dot2_i32_i16"),
    ("v_dot2acc_f32_f16", "v_dot2_f32_f16"),
    ("v_dot2acc_f32_bf16", "v_dot2_f32_bf16"),
];

const RENAMED: &[(&str, &str)] = &[
    ("v_fmamk_f16", "v_fma_f16"),
    ("v_fmamk_f32", "v_fma_f32"),
    ("v_fmaak_f16", "v_fma_f16"),
    ("v_fmaak_f32", "v_fma_f32"),
    ("v_madmk_f16", "v_mad_f16"),
    ("v_madmk_f32", "v_mad_f32"),
    ("v_madak_f16", "v_mad_f16"),
    ("v_madak_f32", "v_mad_f32"),
    ("v_dot4_i32_i8", "v_dot4_i32_iu8 neg:3"),
    ("v_dot8_i32_i4", "v_dot8_i32_iu4 neg:3"),
    ("v_exp_legacy_f32", "v_exp_f32"),
    ("v_log_legacy_f32", "v_log_f32"),
    ("v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32"),
];

/// Returns the operation that implements `mnemonic`.
pub fn rewrite(mnemonic: &str) -> Rewrite {
    let find = |table: &[(&str, &str)]| {
        table.iter().find(|(name, _)| *name == mnemonic).map(|(_, base)| (*base).to_string())
    };
    if let Some(compare) = rewrite_compare(mnemonic) {
        compare
    } else if let Some(mnemonic) = find(SWAPPED) {
        Rewrite { mnemonic, swap: true, ..Default::default() }
    } else if let Some(mnemonic) = find(ACCUMULATING) {
        Rewrite { mnemonic, accumulate: true, ..Default::default() }
    } else {
        Rewrite { mnemonic: find(RENAMED).unwrap_or_else(|| mnemonic.to_string()), ..Default::default() }
    }
}

fn rewrite_compare(mnemonic: &str) -> Option<Rewrite> {
    let rest = mnemonic.strip_prefix("v_cmp_").or_else(|| mnemonic.strip_prefix("v_cmpx_"))?;
    let (relation, format) = rest.rsplit_once('_')?;
    if let "f" | "t" | "tru" = relation {
        let invert = relation != "f";
        return Some(Rewrite { mnemonic: "v_cmp_f_u32".to_string(), invert, ..Default::default() });
    }
    // The implemented relation, and whether its sources are swapped and its result inverted.
    let (base, swap, invert) = match relation {
        "lt" | "le" | "eq" | "lg" | "o" | "class" => (relation, false, false),
        "gt" => ("lt", true, false),
        "ge" => ("le", true, false),
        "u" => ("o", false, true),
        "nlt" => ("lt", false, true),
        "nle" => ("le", false, true),
        "neq" | "ne" => ("eq", false, true),
        "nlg" => ("lg", false, true),
        "ngt" => ("lt", true, true),
        "nge" => ("le", true, true),
        _ => return None,
    };
    // Equality of 16-bit and 32-bit integers does not depend on the sign.
    let format = match (base, format) {
        ("eq", "i16") => "u16",
        ("eq", "i32") => "u32",
        (_, format) => format,
    };
    let mnemonic = format!("v_cmp_{base}_{format}");
    Some(Rewrite { mnemonic, swap, invert, accumulate: false })
}
