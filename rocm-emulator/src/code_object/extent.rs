//! Determines the length of a code object from its address, and copies it.
//!
//! hipModuleLoadData receives no length, so it is derived from the headers of the ELF file or offload bundle. They may be
//! wrong; reading unmapped memory therefore returns an error instead of crashing.
use super::{CodeObjectError, bundle, corrupt};
use object::LittleEndian as LE;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

/// Maximum size of an image in bytes.
const MAX_IMAGE_BYTES: u64 = 1 << 30;

/// Source of bytes: memory of unknown length at an address.
trait Source {
    /// Returns `len` bytes at `offset`; `None` if they are not all readable.
    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>>;
}

/// This process's memory, beginning at an address.
struct OwnMemory {
    start: *const u8,
    /// /proc/self/mem, which returns an error where a load would crash. Without it, bytes are loaded directly.
    memory: Option<std::fs::File>,
}

impl Source for OwnMemory {
    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        match &self.memory {
            Some(memory) => {
                use std::os::unix::fs::FileExt;
                memory.read_exact_at(&mut bytes, (self.start.addr() as u64).checked_add(offset)?).ok()?;
            }
            None => {
                // SAFETY: the caller of `copy_image` guarantees the image that its headers describe.
                unsafe {
                    let from = self.start.add(usize::try_from(offset).ok()?);
                    std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
                }
            }
        }
        Some(bytes)
    }
}

impl Source for &[u8] {
    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let start = usize::try_from(offset).ok()?;
        self.get(start..start.checked_add(len)?).map(<[u8]>::to_vec)
    }
}

/// Like [`copy_image`], from bytes of known length.
///
/// # Errors
/// The errors of [`copy_image`]; `Corrupt` if the headers describe more bytes.
pub fn extract(bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, CodeObjectError> {
    copy(&bytes, wanted)
}

/// Copies the ELF file that starts at `start`. From an offload bundle, only the code object of the first entry that
/// `wanted` accepts is copied.
///
/// # Errors
/// `NotACodeObject` for bytes that begin differently, `Corrupt` if the headers describe unmapped memory.
///
/// # Safety
/// `start` must point to an image as long as its headers describe.
pub unsafe fn copy_image(
    start: *const u8,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<u8>, CodeObjectError> {
    copy(&OwnMemory { start, memory: std::fs::File::open("/proc/self/mem").ok() }, wanted)
}

fn copy(source: &impl Source, wanted: impl Fn(&str) -> bool) -> Result<Vec<u8>, CodeObjectError> {
    let unreadable = || CodeObjectError::Corrupt("it extends into unmapped memory".into());
    let magic = source.read(0, 4).ok_or_else(unreadable)?;
    if magic != b"\x7fELF" && !bundle::is_bundle(&magic) && !b"__CLANG_OFFLOAD_BUNDLE__".starts_with(&magic) {
        return Err(CodeObjectError::NotACodeObject(format!("it starts with the bytes {magic:02x?}")));
    }
    if magic == b"\x7fELF" {
        let len = elf_len(source, 0)?;
        return source.read(0, len).ok_or_else(unreadable);
    }
    // A bundle's first code object is page-aligned, and the table is before it.
    let table = source.read(0, 4096).or_else(|| source.read(0, 512)).ok_or_else(unreadable)?;
    let entries = bundle::entries(&table)?;
    let Some(entry) = entries.iter().find(|entry| entry.target().is_some_and(&wanted)) else {
        let held: Vec<&str> = entries.iter().filter_map(|entry| entry.target()).collect();
        return Err(CodeObjectError::WrongTarget {
            object: format!("[{}]", held.join(", ")),
            device: "none of them".into(),
        });
    };
    if entry.size > MAX_IMAGE_BYTES || entry.offset > MAX_IMAGE_BYTES {
        return corrupt(format!("a bundle entry of {} bytes at {} is too large", entry.size, entry.offset));
    }
    source.read(entry.offset, entry.size as usize).ok_or_else(unreadable)
}

/// Returns the size in bytes of the ELF file at `at`, up to the end of the last table, section or segment.
fn elf_len(source: &impl Source, at: u64) -> Result<usize, CodeObjectError> {
    let unreadable = || CodeObjectError::Corrupt("its headers extend into unmapped memory".into());
    let bytes = source.read(at, size_of::<FileHeader64<LE>>()).ok_or_else(unreadable)?;
    let header = FileHeader64::<LE>::parse(bytes.as_slice())
        .map_err(|error| CodeObjectError::NotACodeObject(error.to_string()))?;
    let endian = LE;
    // (table offset, number of entries, entry size in bytes, positions of file offset and size in an entry)
    let tables = [
        (header.e_phoff.get(endian), header.e_phnum.get(endian), header.e_phentsize.get(endian), 56, 8, 32),
        (header.e_shoff.get(endian), header.e_shnum.get(endian), header.e_shentsize.get(endian), 64, 24, 32),
    ];
    let mut end = bytes.len() as u64;
    for (offset, count, size, wanted_size, offset_at, size_at) in tables {
        if count == 0 {
            continue;
        }
        if size != wanted_size {
            return corrupt(format!("a header table has entries of {size} bytes instead of {wanted_size}"));
        }
        let table_bytes = usize::from(count) * usize::from(size);
        if offset > MAX_IMAGE_BYTES {
            return corrupt(format!("a header table has the invalid offset {offset}"));
        }
        let table = source.read(at + offset, table_bytes).ok_or_else(unreadable)?;
        end = end.max(offset + table_bytes as u64);
        for entry in table.chunks_exact(usize::from(size)) {
            let word = |place: usize| {
                entry[place..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
            };
            // SHT_NOBITS sections have a size but no bytes in the file.
            let is_section = wanted_size == 64;
            if is_section && entry[4..8] == 8u32.to_le_bytes() {
                continue;
            }
            end = end.max(word(offset_at).saturating_add(word(size_at)));
        }
    }
    if end > MAX_IMAGE_BYTES {
        return corrupt(format!("its size of {end} bytes exceeds the limit"));
    }
    Ok(end as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/runtime.hsaco");

    #[test]
    fn the_length_is_derived_from_the_headers() {
        let mut longer = FIXTURE.to_vec();
        longer.extend([0xee; 1000]);
        assert_eq!(extract(&longer, |_| true).unwrap(), FIXTURE);
        // SAFETY: the fixture is complete.
        assert_eq!(unsafe { copy_image(FIXTURE.as_ptr(), |_| true) }.unwrap(), FIXTURE);
    }

    #[test]
    fn truncated_images_are_errors() {
        for len in 0..FIXTURE.len() {
            assert!(extract(&FIXTURE[..len], |_| true).is_err(), "{len} of {} bytes", FIXTURE.len());
        }
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        if std::fs::File::open("/proc/self/mem").is_ok() {
            // SAFETY: page 1 is never mapped; with /proc, the read fails instead of crashing.
            let error = unsafe { copy_image(std::ptr::without_provenance(4096), |_| true) }.unwrap_err();
            assert!(matches!(error, CodeObjectError::Corrupt(_)), "{error}");
        }
    }

    #[test]
    fn the_wanted_object_is_copied_from_a_bundle() {
        let id = b"hipv4-amdgcn-amd-amdhsa--gfx1100";
        let mut bytes = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
        for number in [1u64, 4096, FIXTURE.len() as u64, id.len() as u64] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(id);
        bytes.resize(4096, 0);
        bytes.extend(FIXTURE);
        assert_eq!(extract(&bytes, |target| target == "gfx1100").unwrap(), FIXTURE);
        let error = extract(&bytes, |target| target == "gfx90a").unwrap_err();
        assert!(error.to_string().contains("gfx1100"), "{error}");
        assert!(extract(&bytes[..5000], |_| true).is_err());
    }
}
