//! Clang's offload bundles: files with one code object per target.
use super::{CodeObjectError, corrupt};

const MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// Magic of a compressed bundle.
const COMPRESSED_MAGIC: &[u8] = b"CCOB";
/// Maximum number of entries and maximum length of a name.
const MAX_ENTRIES: u64 = 4096;

/// A code object in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleEntry {
    /// Identifier, such as `hipv4-amdgcn-amd-amdhsa--gfx1100`.
    pub id: String,
    /// Offset in bytes from the start of the bundle.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

impl BundleEntry {
    /// Returns the processor with its features, such as `gfx90a:xnack-`; `None` for the host's entry.
    pub fn target(&self) -> Option<&str> {
        let (kind, target) = self.id.split_once("-amdgcn-amd-amdhsa-")?;
        kind.starts_with("hip").then(|| target.trim_start_matches('-')).filter(|name| name.starts_with("gfx"))
    }
}

/// Returns true if the bytes begin like a bundle, compressed or not.
pub fn is_bundle(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) || bytes.starts_with(COMPRESSED_MAGIC)
}

/// Reads the table of an uncompressed bundle. `bytes` need not contain more than the table.
///
/// # Errors
/// `Unsupported` for a compressed bundle, `Corrupt` for a table that ends early.
pub fn entries(bytes: &[u8]) -> Result<Vec<BundleEntry>, CodeObjectError> {
    if bytes.starts_with(COMPRESSED_MAGIC) {
        return Err(CodeObjectError::Unsupported(
            "a compressed offload bundle; build it with -no-offload-compress, or unbundle it".into(),
        ));
    }
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        return Err(CodeObjectError::NotACodeObject("not an offload bundle".into()));
    };
    let count = match number(&mut rest) {
        Some(count) if count <= MAX_ENTRIES => count,
        _ => return corrupt("an offload bundle has an implausible number of entries"),
    };
    let mut entries = Vec::new();
    for _ in 0..count {
        match entry(&mut rest) {
            Some(entry) => entries.push(entry),
            None => return corrupt("the table of an offload bundle ends early"),
        }
    }
    Ok(entries)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (word, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_le_bytes(*word))
}

fn entry(rest: &mut &[u8]) -> Option<BundleEntry> {
    let (offset, size, length) = (number(rest)?, number(rest)?, number(rest)?);
    let id = rest.get(..usize::try_from(length).ok()?)?;
    *rest = &rest[id.len()..];
    Some(BundleEntry { id: String::from_utf8(id.to_vec()).ok()?, offset, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(entries: &[(&str, u64, u64)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u64).to_le_bytes());
        for (id, offset, size) in entries {
            for number in [*offset, *size, id.len() as u64] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(id.as_bytes());
        }
        bytes
    }

    #[test]
    fn entries_name_their_targets() {
        let bytes = bundle(&[
            ("host-x86_64-unknown-linux-gnu-", 0, 0),
            ("hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-", 4096, 10),
            ("hip-amdgcn-amd-amdhsa--gfx11-generic", 8192, 20),
        ]);
        assert!(is_bundle(&bytes));
        let entries = entries(&bytes).unwrap();
        let targets: Vec<_> = entries.iter().map(BundleEntry::target).collect();
        assert_eq!(targets, [None, Some("gfx90a:xnack-"), Some("gfx11-generic")]);
        assert_eq!((entries[2].offset, entries[2].size), (8192, 20));
    }

    #[test]
    fn truncated_tables_are_errors() {
        let bytes = bundle(&[("hipv4-amdgcn-amd-amdhsa--gfx1100", 4096, 10)]);
        for len in 0..bytes.len() {
            assert!(entries(&bytes[..len]).is_err());
        }
        assert!(entries(b"CCOB....").unwrap_err().to_string().contains("compressed"));
    }
}
