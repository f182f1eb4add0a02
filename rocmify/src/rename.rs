//! Renames CUDA identifiers and text to ROCm.

/// Returns true if the text contains CUDA in any spelling.
pub fn names_cuda(text: &str) -> bool {
    text.contains("cuda") || text.contains("Cuda") || text.contains("CUDA")
}

/// Returns true if the text contains ROCm as spelled by the renaming, which means that it was renamed before.
pub fn names_rocm(text: &str) -> bool {
    text.contains("rocm") || text.contains("Rocm")
}

/// Renames every mention of CUDA: `Cuda` to `Rocm`, `cuda` to `rocm`, and `CUDA` to `ROCm` in prose
/// but to `ROCM` inside an identifier. The rest is unchanged, byte for byte.
pub fn to_rocm(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.to_ascii_lowercase().find("cuda") {
        out.push_str(&rest[..at]);
        let word = &rest[at..at + 4];
        let after = &rest[at + 4..];
        match word {
            "cuda" => out.push_str("rocm"),
            "Cuda" => out.push_str("Rocm"),
            "CUDA" => {
                let in_identifier = out.ends_with(is_identifier) || after.starts_with(is_identifier);
                out.push_str(if in_identifier { "ROCM" } else { "ROCm" });
            }
            other => out.push_str(other),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_renamed() {
        assert_eq!(to_rocm("CudaDevice::new_cuda // on CUDA"), "RocmDevice::new_rocm // on ROCm");
        assert_eq!(to_rocm("HAS_CUDA CUDA_OK"), "HAS_ROCM ROCM_OK");
        assert_eq!(to_rocm("no device"), "no device");
    }

    #[test]
    fn surrounding_text_is_unchanged() {
        assert_eq!(to_rocm("é Cuda\t\"ü\"\r\n"), "é Rocm\t\"ü\"\r\n");
        assert_eq!(to_rocm("cUDA"), "cUDA");
    }

    #[test]
    fn renaming_twice_changes_nothing_more() {
        let once = to_rocm("use crate::{CudaStorage}; // CUDA, cuda");
        assert_eq!(to_rocm(&once), once);
    }
}
