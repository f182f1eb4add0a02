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

/// Beginnings of mnemonics, and those of the operation with swapped sources.
const SWAPPED: &[(&str, &str)] = &[("v_subrev_", "v_sub_")];

/// Beginnings of mnemonics, and those of the operation that adds the destination.
const ACCUMULATING: &[(&str, &str)] = &[
    ("v_fmac_", "v_fma_"),
    ("v_pk_fmac_", "v_pk_fma_"),
    ("v_mac_", "v_mad_"),
    ("v_dot4c_i32_i8", "v_dot4_i32_iu8 neg:3"),
    ("v_dot8c_i32_i4", "v_dot8_i32_iu4 neg:3"),
    ("v_dot2c_i32_i16", "v_dot2_i32_i16"),
    ("v_dot2acc_", "v_dot2_"),
];

/// Beginnings of mnemonics, and those of the same operation.
const RENAMED: &[(&str, &str)] = &[
    ("v_fmamk_", "v_fma_"),
    ("v_fmaak_", "v_fma_"),
    ("v_madmk_", "v_mad_"),
    ("v_madak_", "v_mad_"),
    ("v_dot4_i32_i8", "v_dot4_i32_iu8 neg:3"),
    ("v_dot8_i32_i4", "v_dot8_i32_iu4 neg:3"),
    ("v_exp_legacy_", "v_exp_"),
    ("v_log_legacy_", "v_log_"),
    ("v_cvt_pkrtz_", "v_cvt_pk_rtz_"),
];

/// Returns the operation that implements `mnemonic`.
pub fn rewrite(mnemonic: &str) -> Rewrite {
    let find = |table: &[(&str, &str)]| {
        let base = |(prefix, base): &(&str, &str)| Some(format!("{base}{}", mnemonic.strip_prefix(prefix)?));
        table.iter().find_map(base)
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
