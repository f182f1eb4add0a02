//! Whether bytes hold all of a code object. `hipModuleLoadData` gets no length: it reads as far as the
//! headers say.

const ELF: &[u8] = b"\x7fELF\x02\x01";
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED: &[u8] = b"CCOB";

/// Bytes of an ELF file's header, and a section that takes no room in the file.
const ELF_HEADER: usize = 64;
const SHT_NOBITS: u64 = 8;

/// Checks that nothing HIP reads lies beyond the end.
///
/// # Errors
/// What is wrong, as a clause.
pub(super) fn check(bytes: &[u8]) -> Result<(), &'static str> {
    const CUT_OFF: &str = "it is cut off";
    if bytes.starts_with(ELF) && bytes.len() >= ELF_HEADER {
        elf_fits(bytes).filter(|fits| *fits).map(|_| ()).ok_or(CUT_OFF)
    } else if bytes.starts_with(BUNDLE) {
        bundle_fits(bytes).filter(|fits| *fits).map(|_| ()).ok_or(CUT_OFF)
    } else if bytes.starts_with(COMPRESSED) {
        Err("it is a compressed bundle; build it without --offload-compress")
    } else {
        Err("it is no AMD code object (a 64-bit ELF file) and no offload bundle of them")
    }
}

/// The little-endian number of `width` bytes at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn holds(bytes: &[u8], offset: u64, size: u64) -> bool {
    offset.checked_add(size).is_some_and(|end| end <= bytes.len() as u64)
}

/// Where entry `index` of the table of headers at `offset` begins.
fn entry(offset: u64, size: u64, index: u64) -> Option<usize> {
    usize::try_from(offset.checked_add(size.checked_mul(index)?)?).ok()
}

/// Segments and sections (System V ABI, "Elf64_Phdr" and "Elf64_Shdr").
fn elf_fits(bytes: &[u8]) -> Option<bool> {
    let (segments, segment_size, segment_count) =
        (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let (sections, section_size, section_count) =
        (number(bytes, 40, 8)?, number(bytes, 58, 2)?, number(bytes, 60, 2)?);
    if !holds(bytes, segments, segment_size * segment_count)
        || !holds(bytes, sections, section_size * section_count)
    {
        return Some(false);
    }
    for index in 0..segment_count {
        let at = entry(segments, segment_size, index)?;
        if !holds(bytes, number(bytes, at + 8, 8)?, number(bytes, at + 32, 8)?) {
            return Some(false);
        }
    }
    for index in 0..section_count {
        let at = entry(sections, section_size, index)?;
        let in_file = number(bytes, at + 4, 4)? != SHT_NOBITS;
        if in_file && !holds(bytes, number(bytes, at + 24, 8)?, number(bytes, at + 32, 8)?) {
            return Some(false);
        }
    }
    Some(true)
}

/// The entries of a bundle (clang's "Offload Bundler": offset, size and length of the target's name each),
/// which are code objects themselves; the host's is empty.
fn bundle_fits(bytes: &[u8]) -> Option<bool> {
    let mut at = BUNDLE.len() + 8;
    for _ in 0..number(bytes, BUNDLE.len(), 8)? {
        let (offset, size, name) =
            (number(bytes, at, 8)?, number(bytes, at + 8, 8)?, number(bytes, at + 16, 8)?);
        let (from, to) = (usize::try_from(offset).ok()?, usize::try_from(offset.checked_add(size)?).ok()?);
        let object = bytes.get(from..to)?;
        if object.starts_with(ELF) && (object.len() < ELF_HEADER || !elf_fits(object)?) {
            return Some(false);
        }
        at = at.checked_add(24)?.checked_add(usize::try_from(name).ok()?)?;
    }
    Some(at <= bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Vec<u8> {
        let target = hip_kernels::archs()[0];
        hip_kernels::code_object(hip_kernels::Module::Fill, target).unwrap().bytes
    }

    fn bundled(object: &[u8]) -> Vec<u8> {
        let name = b"hipv4-amdgcn-amd-amdhsa--gfx1100";
        let mut bytes = [BUNDLE, &1u64.to_le_bytes()].concat();
        let offset = bytes.len() + 24 + name.len();
        for word in [offset, object.len(), name.len()] {
            bytes.extend((word as u64).to_le_bytes());
        }
        [&bytes, &name[..], object].concat()
    }

    #[test]
    fn whole_objects_pass_and_every_beginning_of_them_does_not() {
        let object = shipped();
        let bundle = bundled(&object);
        for whole in [&object, &bundle] {
            assert_eq!(check(whole), Ok(()));
            for len in (0..200).chain((200..whole.len()).step_by(997)).chain([whole.len() - 1]) {
                assert!(check(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
            }
        }
    }

    #[test]
    fn headers_that_point_anywhere_are_refused() {
        let object = shipped();
        for field in [32, 40] {
            let mut damaged = object.clone();
            damaged[field..field + 8].fill(0xff);
            assert_eq!(check(&damaged), Err("it is cut off"));
        }
        let mut bundle = bundled(&object);
        bundle[40..48].fill(0xff);
        assert_eq!(check(&bundle), Err("it is cut off"));
    }

    #[test]
    fn other_files_are_named() {
        assert!(check(b"CCOB....").unwrap_err().contains("--offload-compress"));
        assert!(check(b"//\n// Generated by NVIDIA").unwrap_err().contains("no AMD code object"));
    }
}
