//! Reads the kernels of an NVIDIA object. Each has a section `.nv.info.KERNEL` of entries (format, attribute, value or size,
//! payload), and one `.nv.info` contains the assembler's statistics. NVIDIA does not document this format; attributes and
//! layout are those that `cuobjdump -elf` prints.

use std::collections::HashMap;

use object::LittleEndian;
use object::elf::EM_CUDA;
use object::read::elf::{FileHeader, SectionHeader, Sym};

use crate::container::Header;
use crate::kernel::{ArgumentKind, ArgumentMetadata, KernelMetadata};

const OF_ALL: &[u8] = b".nv.info";
const OF_KERNEL: &str = ".nv.info.";
const STATIC_LDS: &str = ".nv.shared.";

/// Format of entries with a payload; other entries contain a value instead of the size.
const SIZED: u8 = 4;
/// Bytes of an entry before its payload.
const HEAD: usize = 4;

/// Attributes with a payload of (symbol, number).
const FRAME_SIZE: u8 = 0x11;
const REGISTERS: u8 = 0x2f;
/// Attributes of one kernel.
const MAX_THREADS: u8 = 0x05;
const ARGUMENT: u8 = 0x17;

const WAVE_SIZE: u32 = 32;
/// CUDA's limit for kernels without launch bounds.
const MAX_WORKGROUP: u32 = 1024;

/// Returns true if the file is an object for an NVIDIA GPU.
pub fn is_cubin(file: &[u8]) -> bool {
    Header::parse(file).is_ok_and(|header| header.e_machine(LittleEndian) == EM_CUDA)
}

/// Reads every kernel.
pub(crate) fn kernels(file: &[u8]) -> Result<Vec<KernelMetadata>, String> {
    read(file).map_err(|error| format!("its sections cannot be read: {error}"))?
}

fn read(file: &[u8]) -> Result<Result<Vec<KernelMetadata>, String>, object::Error> {
    let header = Header::parse(file)?;
    let sections = header.sections(LittleEndian, file)?;
    let symbols = sections.symbols(LittleEndian, file, object::elf::SHT_SYMTAB)?;
    let mut counted: HashMap<(u8, String), u32> = HashMap::new();
    let mut static_lds: HashMap<String, u32> = HashMap::new();
    let mut kernels = Vec::new();
    for section in sections.iter() {
        let name = sections.section_name(LittleEndian, section)?;
        let text = String::from_utf8_lossy(name);
        if name == OF_ALL {
            for (attribute, payload) in entries(section.data(LittleEndian, file)?) {
                let (Some(symbol), Some(number)) = (word(payload, 0), word(payload, 4)) else { continue };
                let symbol = symbols.symbol(object::SymbolIndex(symbol as usize))?;
                let kernel =
                    String::from_utf8_lossy(symbol.name(LittleEndian, symbols.strings())?).into_owned();
                counted.insert((attribute, kernel), number);
            }
        } else if let Some(kernel) = text.strip_prefix(OF_KERNEL) {
            match kernel_of(kernel, section.data(LittleEndian, file)?) {
                Ok(kernel) => kernels.push(kernel),
                Err(reason) => return Ok(Err(reason)),
            }
        } else if let Some(kernel) = text.strip_prefix(STATIC_LDS) {
            static_lds
                .insert(kernel.to_owned(), section.sh_size(LittleEndian).try_into().unwrap_or(u32::MAX));
        }
    }
    for kernel in &mut kernels {
        let number = |attribute| counted.get(&(attribute, kernel.name.clone())).copied().unwrap_or(0);
        (kernel.vgprs, kernel.scratch) = (number(REGISTERS), number(FRAME_SIZE));
        kernel.lds = static_lds.get(&kernel.name).copied().unwrap_or(0);
    }
    Ok(Ok(kernels))
}

fn kernel_of(name: &str, info: &[u8]) -> Result<KernelMetadata, String> {
    let mut arguments: Vec<(u32, ArgumentMetadata)> = Vec::new();
    let mut max_workgroup = MAX_WORKGROUP;
    for (attribute, payload) in entries(info) {
        let number = |at| word(payload, at).ok_or_else(|| format!("kernel {name}: an attribute is cut off"));
        match attribute {
            MAX_THREADS => max_workgroup = number(0)?.saturating_mul(number(4)?).saturating_mul(number(8)?),
            ARGUMENT => {
                // The index and the offset share a word. The size is in the upper bits of the description.
                let (place, description) = (number(4)?, number(8)?);
                let (offset, size) = (place >> 16, description >> 18);
                let kind = ArgumentKind::Unknown;
                arguments.push((place & 0xffff, ArgumentMetadata { name: None, offset, size, kind }));
            }
            _ => {}
        }
    }
    arguments.sort_by_key(|(number, _)| *number);
    let explicit: Vec<ArgumentMetadata> = arguments.into_iter().map(|(_, argument)| argument).collect();
    Ok(KernelMetadata {
        name: name.to_owned(),
        vgprs: 0,
        agprs: 0,
        sgprs: 0,
        vgpr_spills: 0,
        sgpr_spills: 0,
        lds: 0,
        scratch: 0,
        arguments: explicit.last().map_or(0, |last| last.offset + last.size),
        wave_size: WAVE_SIZE,
        max_workgroup,
        explicit,
    })
}

/// Returns the attribute and payload of each complete entry.
fn entries(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let [format, attribute, low, high] = *head;
        let size = if format == SIZED { usize::from(u16::from_le_bytes([low, high])) } else { 0 };
        let (payload, rest) = rest.split_at_checked(size)?;
        bytes = rest;
        Some((attribute, payload))
    })
}

fn word(payload: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*payload.get(at..)?.first_chunk::<4>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sorted_by_index() {
        // Entries that the assembler wrote for k(size_t, struct of 96 bytes, float *) in workgroups of 256.
        let mut info = Vec::new();
        for (number, offset, description) in
            [(2u16, 0x68u16, 0x0021_f500u32), (1, 8, 0x0181_f000), (0, 0, 0x0021_f000)]
        {
            info.extend([4, ARGUMENT, 12, 0, 0, 0, 0, 0]);
            info.extend(number.to_le_bytes());
            info.extend(offset.to_le_bytes());
            info.extend(description.to_le_bytes());
        }
        info.extend([3, 0x1b, 0xff, 0]);
        info.extend([4, MAX_THREADS, 12, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        let kernel = kernel_of("k", &info).unwrap();
        let read: Vec<_> = kernel.explicit.iter().map(|argument| (argument.offset, argument.size)).collect();
        assert_eq!(read, [(0, 8), (8, 96), (0x68, 8)]);
        assert_eq!((kernel.max_workgroup, kernel.arguments), (256, 0x70));
    }

    #[test]
    fn truncated_entries_end_the_list() {
        assert_eq!(entries(&[4, ARGUMENT, 12, 0, 1, 2]).count(), 0);
        assert_eq!(entries(&[3, 1]).count(), 0);
        assert!(kernel_of("k", &[4, MAX_THREADS, 4, 0, 1, 0, 0, 0]).unwrap_err().contains("kernel k"));
    }

    /// Returns an object with these sections (name, contents) and the symbol `k`, whose index is 1.
    fn object_with(sections: &[(&str, &[u8])]) -> Vec<u8> {
        const SECTION: usize = 64;
        const SYMBOL: usize = 24;
        const HEADER: usize = 64;
        let mut symbols = [0; 2 * SYMBOL];
        symbols[SYMBOL] = 1;
        let mut names = b"\0".to_vec();
        let mut table = vec![0; SECTION];
        let mut contents = Vec::new();
        let named = sections.iter().map(|(name, bytes)| (*name, object::elf::SHT_PROGBITS, *bytes));
        let strings = sections.len() as u32 + 2;
        let symbols = [
            (".symtab", object::elf::SHT_SYMTAB, &symbols[..]),
            (".strtab", object::elf::SHT_STRTAB, b"\0k\0"),
        ];
        let mut add = |name: &str, kind: u32, bytes: &[u8], names_before: usize| {
            table.extend((names_before as u32).to_le_bytes());
            table.extend(kind.to_le_bytes());
            table.extend([0; 16]);
            table.extend(((HEADER + contents.len()) as u64).to_le_bytes());
            table.extend((bytes.len() as u64).to_le_bytes());
            table.extend(strings.to_le_bytes());
            table.extend([0; 12]);
            table.extend((if name == ".symtab" { SYMBOL as u64 } else { 0 }).to_le_bytes());
            contents.extend(bytes);
        };
        for (name, kind, bytes) in named.chain(symbols) {
            add(name, kind, bytes, names.len());
            names.extend(name.bytes().chain([0]));
        }
        let own = names.len();
        names.extend(b".shstrtab\0");
        add(".shstrtab", object::elf::SHT_STRTAB, &names, own);
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend(2u16.to_le_bytes());
        file.extend(EM_CUDA.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend([0; 16]);
        file.extend(((HEADER + contents.len()) as u64).to_le_bytes());
        file.extend([0; 4]);
        for number in [HEADER, 0, 0, SECTION, table.len() / SECTION, table.len() / SECTION - 1] {
            file.extend((number as u16).to_le_bytes());
        }
        [file, contents, table].concat()
    }

    #[test]
    fn kernels_have_the_assemblers_statistics() {
        let statistics =
            [[4, REGISTERS, 8, 0, 1, 0, 0, 0, 40, 0, 0, 0], [4, FRAME_SIZE, 8, 0, 1, 0, 0, 0, 16, 0, 0, 0]];
        let threads = [4, MAX_THREADS, 12, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
        let file = object_with(&[
            (".nv.info", statistics.as_flattened()),
            (".nv.info.k", &threads),
            (".nv.shared.k", &[0; 12]),
        ]);
        assert!(is_cubin(&file));
        let kernels = kernels(&file).unwrap();
        let [kernel] = &kernels[..] else { panic!("{kernels:?}") };
        assert_eq!((kernel.name.as_str(), kernel.vgprs, kernel.scratch, kernel.lds), ("k", 40, 16, 12));
        assert_eq!((kernel.max_workgroup, kernel.wave_size), (256, 32));
    }

    #[test]
    fn damaged_objects_are_errors() {
        let cut_off = object_with(&[(".nv.info.k", &[4, MAX_THREADS, 4, 0, 1, 0, 0, 0])]);
        assert!(kernels(&cut_off).unwrap_err().contains("kernel k"));
        let unknown_symbol = object_with(&[(".nv.info", &[4, REGISTERS, 8, 0, 9, 0, 0, 0, 40, 0, 0, 0])]);
        assert!(kernels(&unknown_symbol).unwrap_err().contains("cannot be read"));
        let whole = object_with(&[]);
        assert!(kernels(&whole[..whole.len() - 1]).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn amd_objects_are_not_cubins() {
        assert!(!is_cubin(b"\x7fELF"));
    }
}
