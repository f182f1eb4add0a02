//! Parser of the ELF file: segments, symbols, relocations, the metadata note and the kernel descriptors.
use super::metadata::{self, KernelMetadata};
use super::{CodeObjectError, KernelDescriptor, Target, corrupt};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use std::collections::BTreeMap;

/// EI_OSABI of code objects for the HSA runtime.
const ELFOSABI_AMDGPU_HSA: u8 = 64;
/// EI_ABIVERSION of code object versions 3 to 6.
const ABI_VERSIONS: std::ops::RangeInclusive<u8> = 1..=4;
/// Note type of the metadata, with the owner `AMDGPU`.
const NT_AMDGPU_METADATA: u32 = 32;
/// Maximum size of a loaded code object in bytes.
const MAX_LOADED_BYTES: u64 = 1 << 30;

/// A PT_LOAD segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address before loading.
    pub address: u64,
    /// Size in memory in bytes. Bytes after `data` are zero.
    pub size: u64,
    /// The contents in the file.
    pub data: Vec<u8>,
    /// True if kernels may write it.
    pub writable: bool,
    /// True if it contains code.
    pub executable: bool,
}

/// A defined global symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Address before loading.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// True if it is a variable, false if it is a function.
    pub is_object: bool,
}

/// Formula of a dynamic relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocationKind {
    /// base + addend, 64 bits.
    Relative64,
    /// symbol + addend, 64 bits.
    Absolute64,
    /// symbol + addend, 32 bits.
    Absolute32,
    /// The low half of symbol + addend.
    Absolute32Low,
    /// The high half of symbol + addend.
    Absolute32High,
    /// symbol + addend - place.
    Relative64ToPlace,
    /// symbol + addend - place, 32 bits.
    Relative32ToPlace,
}

/// A dynamic relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The relocated address, before loading.
    pub address: u64,
    /// The formula.
    pub kind: RelocationKind,
    /// The symbol's address before loading; 0 without a symbol.
    pub symbol: u64,
    /// The addend.
    pub addend: i64,
}

/// A kernel: its metadata and its descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel's entry in the metadata note.
    pub metadata: KernelMetadata,
    /// The kernel's descriptor.
    pub descriptor: KernelDescriptor,
    /// Address of the first instruction, before loading.
    pub entry: u64,
}

/// A parsed and validated code object that is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeObject {
    /// The target chip.
    pub target: Target,
    /// The segments to load.
    pub segments: Vec<Segment>,
    /// One past the last address.
    pub end: u64,
    /// Largest alignment of a segment.
    pub alignment: u64,
    /// The global symbols by name.
    pub symbols: BTreeMap<String, Symbol>,
    /// The relocations to apply when it is loaded.
    pub relocations: Vec<Relocation>,
    /// The kernels by name.
    pub kernels: BTreeMap<String, Kernel>,
}

fn read_error(error: object::read::Error) -> CodeObjectError {
    CodeObjectError::Corrupt(error.to_string())
}

impl CodeObject {
    /// Parses a code object.
    ///
    /// # Errors
    /// `NotACodeObject` for another kind of file, `Unsupported` for an unknown version or processor, `Corrupt` for
    /// inconsistent contents.
    pub fn parse(bytes: &[u8]) -> Result<Self, CodeObjectError> {
        let header = FileHeader64::<LE>::parse(bytes)
            .map_err(|error| CodeObjectError::NotACodeObject(error.to_string()))?;
        let endian = header.endian().map_err(|error| CodeObjectError::NotACodeObject(error.to_string()))?;
        if header.e_machine.get(endian) != elf::EM_AMDGPU {
            let amd = elf::EM_AMDGPU;
            return Err(CodeObjectError::NotACodeObject(match header.e_machine.get(endian) {
                elf::EM_CUDA => format!(
                    "an object for an NVIDIA GPU (ELF machine {}), and this is an AMD GPU ({amd})",
                    elf::EM_CUDA
                ),
                machine => format!("an ELF file for machine {machine}, not {amd}"),
            }));
        }
        let (abi, version) = (header.e_ident.os_abi, header.e_ident.abi_version);
        if abi != ELFOSABI_AMDGPU_HSA || !ABI_VERSIONS.contains(&version) {
            return Err(CodeObjectError::Unsupported(format!("OS ABI {abi}, ABI version {version}")));
        }
        if header.e_type.get(endian) != elf::ET_DYN {
            return Err(CodeObjectError::Unsupported("not linked (a relocatable object file)".into()));
        }
        let target = Target::from_flags(header.e_flags.get(endian))?;
        let file = File { bytes, header, endian };
        let segments = file.segments()?;
        let end = segments.iter().map(|s| s.address + s.size).max().unwrap_or(0);
        let (symbols, relocations) = file.dynamic()?;
        let mut object =
            Self { target, end, alignment: 4096, segments, symbols, relocations, kernels: BTreeMap::new() };
        for relocation in &object.relocations {
            let width = match relocation.kind {
                RelocationKind::Relative64
                | RelocationKind::Absolute64
                | RelocationKind::Relative64ToPlace => 8,
                _ => 4,
            };
            if object.loaded_range(relocation.address, width).is_none() {
                return corrupt(format!("the relocation at 0x{:x} is in no segment", relocation.address));
            }
        }
        for metadata in file.metadata()? {
            let kernel = object.kernel(metadata)?;
            object.kernels.insert(kernel.metadata.name.clone(), kernel);
        }
        Ok(object)
    }

    /// Returns the executable segment.
    pub fn text(&self) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.executable)
    }

    /// Returns the segment that contains `bytes` bytes at `address`.
    fn loaded_range(&self, address: u64, bytes: u64) -> Option<&Segment> {
        self.segments.iter().find(|segment| {
            address >= segment.address
                && address - segment.address <= segment.size
                && bytes <= segment.size - (address - segment.address)
        })
    }

    fn kernel(&self, metadata: KernelMetadata) -> Result<Kernel, CodeObjectError> {
        let Some(symbol) = self.symbols.get(&metadata.symbol) else {
            return corrupt(format!("kernel {} has no symbol {}", metadata.name, metadata.symbol));
        };
        let bytes = self.loaded_range(symbol.address, KernelDescriptor::SIZE as u64).and_then(|segment| {
            let start = (symbol.address - segment.address) as usize;
            segment.data.get(start..start + KernelDescriptor::SIZE)?.try_into().ok()
        });
        let Some(bytes) = bytes else {
            return corrupt(format!("the descriptor of kernel {} is in no segment", metadata.name));
        };
        let descriptor = KernelDescriptor::parse(bytes);
        let entry = symbol.address.wrapping_add(descriptor.entry_offset as u64);
        if !entry.is_multiple_of(4) || !self.loaded_range(entry, 4).is_some_and(|segment| segment.executable)
        {
            return corrupt(format!("kernel {} starts at 0x{entry:x}, which is not code", metadata.name));
        }
        Ok(Kernel { metadata, descriptor, entry })
    }
}

type Dynamics = (BTreeMap<String, Symbol>, Vec<Relocation>);

struct File<'a> {
    bytes: &'a [u8],
    header: &'a FileHeader64<LE>,
    endian: LE,
}

impl File<'_> {
    fn segments(&self) -> Result<Vec<Segment>, CodeObjectError> {
        let headers = self.header.program_headers(self.endian, self.bytes).map_err(read_error)?;
        let mut segments: Vec<Segment> = Vec::new();
        for header in headers.iter().filter(|header| header.p_type(self.endian) == elf::PT_LOAD) {
            let (address, size) = (header.p_vaddr(self.endian), header.p_memsz(self.endian));
            let index = segments.len();
            let Ok(data) = header.data(self.endian, self.bytes) else {
                return corrupt(format!("segment {index} extends beyond the file"));
            };
            if data.len() as u64 > size {
                return corrupt(format!("segment {index} is larger in the file than in memory"));
            }
            if address.checked_add(size).is_none_or(|end| end > MAX_LOADED_BYTES) {
                return corrupt(format!("segment {index}: {size} bytes at 0x{address:x} exceed the limit"));
            }
            if size == 0 {
                continue;
            }
            if segments.iter().any(|s| address < s.address + s.size && s.address < address + size) {
                return corrupt(format!("segment {index} overlaps another"));
            }
            let flags = header.p_flags(self.endian);
            segments.push(Segment {
                address,
                size,
                data: data.to_vec(),
                writable: flags & elf::PF_W != 0,
                executable: flags & elf::PF_X != 0,
            });
        }
        match segments.iter().filter(|segment| segment.executable).count() {
            0 | 1 => Ok(segments),
            count => Err(CodeObjectError::Unsupported(format!("{count} executable segments"))),
        }
    }

    /// Reads the symbols and relocations of the dynamic tables.
    fn dynamic(&self) -> Result<Dynamics, CodeObjectError> {
        let sections = self.header.sections(self.endian, self.bytes).map_err(read_error)?;
        let table = sections.symbols(self.endian, self.bytes, elf::SHT_DYNSYM).map_err(read_error)?;
        let mut symbols = BTreeMap::new();
        for symbol in table.iter() {
            if symbol.is_undefined(self.endian) || symbol.st_name(self.endian) == 0 {
                continue;
            }
            let name = table.symbol_name(self.endian, symbol).map_err(read_error)?;
            let Ok(name) = std::str::from_utf8(name) else {
                return corrupt("a symbol's name is not valid UTF-8");
            };
            symbols.insert(
                name.to_string(),
                Symbol {
                    address: symbol.st_value(self.endian),
                    size: symbol.st_size(self.endian),
                    is_object: symbol.st_type() == elf::STT_OBJECT,
                },
            );
        }
        let mut relocations = Vec::new();
        for section in
            sections.iter().filter(|section| section.sh_flags(self.endian) & u64::from(elf::SHF_ALLOC) != 0)
        {
            let Some((list, _)) = section.rela(self.endian, self.bytes).map_err(read_error)? else {
                continue;
            };
            for entry in list {
                let (kind, needs_symbol) = match relocation_kind(entry.r_type(self.endian, false)) {
                    Some(Some(known)) => known,
                    Some(None) => continue,
                    None => {
                        let number = entry.r_type(self.endian, false);
                        return Err(CodeObjectError::Unsupported(format!("relocation type {number}")));
                    }
                };
                let symbol = if needs_symbol {
                    let index = object::SymbolIndex(entry.r_sym(self.endian, false) as usize);
                    let symbol = table.symbol(index).map_err(read_error)?;
                    if symbol.is_undefined(self.endian) {
                        let name = table.symbol_name(self.endian, symbol).unwrap_or_default();
                        let name = String::from_utf8_lossy(name).into_owned();
                        return corrupt(format!("undefined symbol {name}"));
                    }
                    symbol.st_value(self.endian)
                } else {
                    0
                };
                let (address, addend) = (entry.r_offset(self.endian), entry.r_addend(self.endian));
                relocations.push(Relocation { address, kind, symbol, addend });
            }
        }
        Ok((symbols, relocations))
    }

    /// Reads the kernels of the metadata note, which every code object has.
    fn metadata(&self) -> Result<Vec<KernelMetadata>, CodeObjectError> {
        let headers = self.header.program_headers(self.endian, self.bytes).map_err(read_error)?;
        for header in headers {
            let Some(mut notes) = header.notes(self.endian, self.bytes).map_err(read_error)? else {
                continue;
            };
            while let Some(note) = notes.next().map_err(read_error)? {
                if note.n_type(self.endian) == NT_AMDGPU_METADATA && note.name() == b"AMDGPU" {
                    return metadata::parse(note.desc());
                }
            }
        }
        corrupt("the metadata note is missing")
    }
}

/// Returns the formula of a relocation type of the AMDGPU usage guide, and whether it uses a symbol. `Some(None)` is a
/// type without effect, `None` an unknown type.
fn relocation_kind(number: u32) -> Option<Option<(RelocationKind, bool)>> {
    Some(match number {
        0 => None,
        1 => Some((RelocationKind::Absolute32Low, true)),
        2 => Some((RelocationKind::Absolute32High, true)),
        3 => Some((RelocationKind::Absolute64, true)),
        4 => Some((RelocationKind::Relative32ToPlace, true)),
        5 => Some((RelocationKind::Relative64ToPlace, true)),
        6 => Some((RelocationKind::Absolute32, true)),
        13 => Some((RelocationKind::Relative64, false)),
        _ => return None,
    })
}
