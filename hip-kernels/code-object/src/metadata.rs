//! Reads the kernel metadata of a code object: the ELF note `NT_AMDGPU_METADATA`, encoded as MessagePack (LLVM's AMDGPUUsage,
//! "Code Object Metadata").

use object::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader};
use rmpv::ValueRef;

use crate::container::{Header, elf_files};
use crate::cubin;
use crate::kernel::{ArgumentKind, ArgumentMetadata, KernelMetadata};

/// Type of the note with the name `AMDGPU`.
const NT_AMDGPU_METADATA: u32 = 32;

/// Reads the kernels of a code object, sorted by name. A kernel that a bundle contains for several targets is listed once.
///
/// # Errors
/// A description of what is missing or invalid, as a clause; also the errors of [`check`](crate::check).
pub fn kernels(code_object: &[u8]) -> Result<Vec<KernelMetadata>, String> {
    let mut kernels = Vec::new();
    for file in elf_files(code_object)? {
        kernels.extend(kernels_of(file)?);
    }
    // The sort is stable, so the first kernel of each name is kept.
    kernels.sort_by(|a: &KernelMetadata, b| a.name.cmp(&b.name));
    kernels.dedup_by(|a, b| a.name == b.name);
    Ok(kernels)
}

fn kernels_of(file: &[u8]) -> Result<Vec<KernelMetadata>, String> {
    if cubin::is_cubin(file) {
        return cubin::kernels(file);
    }
    let note = metadata_note(file)
        .map_err(|error| format!("its notes cannot be read: {error}"))?
        .ok_or("it has no AMDGPU metadata note")?;
    let document =
        rmpv::decode::read_value_ref(&mut &note[..]).map_err(|error| format!("its metadata: {error}"))?;
    let kernels = list(&document, "amdhsa.kernels").ok_or("its metadata has no kernels")?;
    kernels.iter().map(kernel).collect()
}

fn metadata_note(file: &[u8]) -> Result<Option<&[u8]>, object::Error> {
    let header = Header::parse(file)?;
    for segment in header.program_headers(LittleEndian, file)? {
        let Some(mut notes) = segment.notes(LittleEndian, file)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"AMDGPU" && note.n_type(LittleEndian) == NT_AMDGPU_METADATA {
                return Ok(Some(note.desc()));
            }
        }
    }
    Ok(None)
}

fn kernel(kernel: &ValueRef<'_>) -> Result<KernelMetadata, String> {
    let name = text(kernel, ".name").ok_or("its metadata has a kernel without a name")?;
    let number = |key: &str| {
        number(kernel, key).ok_or_else(|| format!("the metadata of kernel {name} has no number {key}"))
    };
    let mut explicit = Vec::new();
    // A kernel without arguments has no list of them.
    for (index, entry) in list(kernel, ".args").unwrap_or_default().iter().enumerate() {
        let argument =
            argument(entry).ok_or_else(|| format!("the metadata of kernel {name}: argument {index}"))?;
        explicit.extend(argument);
    }
    Ok(KernelMetadata {
        vgprs: number(".vgpr_count")?,
        // Only CDNA has the field.
        agprs: number(".agpr_count").unwrap_or(0),
        sgprs: number(".sgpr_count")?,
        vgpr_spills: number(".vgpr_spill_count")?,
        sgpr_spills: number(".sgpr_spill_count")?,
        lds: number(".group_segment_fixed_size")?,
        scratch: number(".private_segment_fixed_size")?,
        arguments: number(".kernarg_segment_size")?,
        wave_size: number(".wavefront_size")?,
        max_workgroup: number(".max_flat_workgroup_size")?,
        explicit,
        name: name.to_owned(),
    })
}

/// Returns `Some(None)` for a hidden argument, which the runtime sets.
fn argument(entry: &ValueRef<'_>) -> Option<Option<ArgumentMetadata>> {
    let kind = match text(entry, ".value_kind")? {
        kind if kind.starts_with("hidden_") => return Some(None),
        "by_value" => ArgumentKind::ByValue,
        "global_buffer" => ArgumentKind::Pointer,
        _ => ArgumentKind::Other,
    };
    let name = text(entry, ".name").map(str::to_owned);
    Some(Some(ArgumentMetadata {
        name,
        offset: number(entry, ".offset")?,
        size: number(entry, ".size")?,
        kind,
    }))
}

fn field<'a>(map: &'a ValueRef<'_>, key: &str) -> Option<&'a ValueRef<'a>> {
    let ValueRef::Map(entries) = map else { return None };
    entries
        .iter()
        .find(|(name, _)| matches!(name, ValueRef::String(name) if name.as_str() == Some(key)))
        .map(|(_, value)| value)
}

fn text<'a>(map: &'a ValueRef<'_>, key: &str) -> Option<&'a str> {
    match field(map, key)? {
        ValueRef::String(text) => text.as_str(),
        _ => None,
    }
}

fn number(map: &ValueRef<'_>, key: &str) -> Option<u32> {
    match field(map, key)? {
        ValueRef::Integer(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        _ => None,
    }
}

fn list<'a>(map: &'a ValueRef<'_>, key: &str) -> Option<&'a [ValueRef<'a>]> {
    match field(map, key)? {
        ValueRef::Array(list) => Some(list),
        _ => None,
    }
}
