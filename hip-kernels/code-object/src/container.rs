//! File formats of code objects: ELF, and clang's offload bundles of ELF files.

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_DYNSYM, SHT_SYMTAB};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};

pub(crate) type Header = FileHeader64<LittleEndian>;

const ELF: &[u8] = b"\x7fELF\x02\x01";
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED: &[u8] = b"CCOB";

const CUT_OFF: &str = "it is cut off";

/// Checks that every segment and section lies within the bytes. `hipModuleLoadData` receives no length and relies on the
/// headers.
///
/// # Errors
/// A description of the defect, as a clause.
pub fn check(bytes: &[u8]) -> Result<(), &'static str> {
    elf_files(bytes).map(|_| ())
}

/// Returns true if a code object has a symbol of this name: a kernel, or a global that the host can write to.
pub fn has_symbol(bytes: &[u8], name: &str) -> bool {
    let has = |file, kind| -> Option<bool> {
        let sections = Header::parse(file).ok()?.sections(LittleEndian, file).ok()?;
        let symbols = sections.symbols(LittleEndian, file, kind).ok()?;
        let mut names = symbols.iter().map(|symbol| symbol.name(LittleEndian, symbols.strings()));
        Some(names.any(|known| known == Ok(name.as_bytes())))
    };
    let files = elf_files(bytes).unwrap_or_default();
    files.into_iter().any(|file| [SHT_DYNSYM, SHT_SYMTAB].iter().any(|kind| has(file, *kind) == Some(true)))
}

/// Returns the complete ELF files within the bytes: the bytes themselves, or the entries of a bundle.
pub(crate) fn elf_files(bytes: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    let files = if bytes.starts_with(ELF) {
        vec![bytes]
    } else if bytes.starts_with(BUNDLE) {
        entries(bytes).ok_or(CUT_OFF)?
    } else if bytes.starts_with(COMPRESSED) {
        return Err("it is a compressed bundle; build it without --offload-compress");
    } else {
        return Err("it is no AMD code object (a 64-bit ELF file) and no offload bundle of them");
    };
    files.iter().all(|file| is_whole(file) == Some(true)).then_some(files).ok_or(CUT_OFF)
}

/// Returns true if the file is complete; `None` if headers cannot be read.
fn is_whole(file: &[u8]) -> Option<bool> {
    let header = Header::parse(file).ok()?;
    let segments = header.program_headers(LittleEndian, file).ok()?;
    let sections = header.sections(LittleEndian, file).ok()?;
    Some(
        segments.iter().all(|segment| segment.data(LittleEndian, file).is_ok())
            && sections.iter().all(|section| section.data(LittleEndian, file).is_ok()),
    )
}

/// Returns the entries of a bundle that are ELF files. Each entry of the table holds an offset, a size, and the length of the
/// target's name, which follows (clang's "Offload Bundler"). The host's entry is empty.
fn entries(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let number = |at: usize| -> Option<usize> {
        let word = bytes.get(at..at.checked_add(8)?)?.first_chunk::<8>()?;
        usize::try_from(u64::from_le_bytes(*word)).ok()
    };
    let mut files = Vec::new();
    let mut at = BUNDLE.len() + 8;
    for _ in 0..number(BUNDLE.len())? {
        let (offset, size, name) = (number(at)?, number(at + 8)?, number(at + 16)?);
        let entry = bytes.get(offset..offset.checked_add(size)?)?;
        files.extend(entry.starts_with(ELF).then_some(entry));
        at = at.checked_add(24)?.checked_add(name).filter(|end| *end <= bytes.len())?;
    }
    Some(files)
}
