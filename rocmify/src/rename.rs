//! The renaming itself: what a CUDA name is called on the ROCm side.

/// Whether text names CUDA in any of its spellings.
pub fn names_cuda(text: &str) -> bool {
    text.contains("cuda") || text.contains("Cuda") || text.contains("CUDA")
}

/// Whether text names ROCm as the renaming spells it: then it was renamed before.
pub fn names_rocm(text: &str) -> bool {
    text.contains("rocm") || text.contains("Rocm")
}

/// Renames every mention of CUDA: `Cuda` to `Rocm`, `cuda` to `rocm`, and `CUDA` to `ROCm` in prose
/// but to `ROCM` inside an identifier. All else stays byte for byte.
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
    fn every_spelling_has_its_own_twin() {
        assert_eq!(to_rocm("CudaDevice::new_cuda // on CUDA"), "RocmDevice::new_rocm // on ROCm");
        assert_eq!(to_rocm("HAS_CUDA CUDA_OK"), "HAS_ROCM ROCM_OK");
        assert_eq!(to_rocm("no device"), "no device");
    }

    #[test]
    fn text_around_the_name_stays_as_it_is() {
        assert_eq!(to_rocm("é Cuda\t\"ü\"\r\n"), "é Rocm\t\"ü\"\r\n");
        assert_eq!(to_rocm("cUDA"), "cUDA");
    }

    #[test]
    fn renaming_twice_changes_nothing_more() {
        let once = to_rocm("use crate::{CudaStorage}; // CUDA, cuda");
        assert_eq!(to_rocm(&once), once);
    }
}
