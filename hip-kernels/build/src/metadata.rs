//! What a code object says of its kernels: the `NT_AMDGPU_METADATA` note, MessagePack inside ELF
//! (LLVM's AMDGPUUsage, "Code Object Metadata").

use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, elf};
use rmpv::Value;

/// Type of the note, under the name `AMDGPU`.
const NT_AMDGPU_METADATA: u32 = 32;

/// The compiler's figures for one kernel, as the note has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMetadata {
    /// Name by which it is launched.
    pub name: String,
    /// Vector registers per lane, accumulation registers included where they are a part of the same file.
    pub vgprs: u32,
    /// Accumulation registers per lane (CDNA).
    pub agprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Vector registers saved to memory for lack of room.
    pub vgpr_spills: u32,
    /// Scalar registers saved for lack of room.
    pub sgpr_spills: u32,
    /// LDS bytes per workgroup, dynamic ones not counted.
    pub lds: u32,
    /// Scratch bytes per lane.
    pub scratch: u32,
    /// Kernel argument bytes, hidden arguments included.
    pub arguments: u32,
    /// Lanes per wave.
    pub wave_size: u32,
    /// The most threads that a workgroup may have.
    pub max_workgroup: u32,
}

/// Reads the figures of every kernel in a code object, sorted by name.
///
/// The error is a message that says what is missing.
pub fn kernels(code_object: &[u8]) -> Result<Vec<KernelMetadata>, String> {
    let note = metadata_note(code_object)?;
    let document =
        rmpv::decode::read_value(&mut &note[..]).map_err(|error| format!("its metadata: {error}"))?;
    let kernels =
        field(&document, "amdhsa.kernels").and_then(Value::as_array).ok_or("its metadata has no kernels")?;
    let mut kernels: Vec<KernelMetadata> = kernels.iter().map(kernel).collect::<Result<_, _>>()?;
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(kernels)
}

fn metadata_note(code_object: &[u8]) -> Result<&[u8], String> {
    let elf_error = |error: object::Error| format!("is no ELF file: {error}");
    let header = elf::FileHeader64::<Endianness>::parse(code_object).map_err(elf_error)?;
    let endian = header.endian().map_err(elf_error)?;
    for section in header.sections(endian, code_object).map_err(elf_error)?.iter() {
        let Some(mut notes) = section.notes(endian, code_object).map_err(elf_error)? else { continue };
        while let Some(note) = notes.next().map_err(elf_error)? {
            if note.name() == b"AMDGPU" && note.n_type(endian) == NT_AMDGPU_METADATA {
                return Ok(note.desc());
            }
        }
    }
    Err("has no AMDGPU metadata note".to_owned())
}

fn kernel(kernel: &Value) -> Result<KernelMetadata, String> {
    let name = field(kernel, ".name").and_then(Value::as_str).ok_or("a kernel without a name")?;
    let number = |key: &str| -> Result<u32, String> {
        let value = field(kernel, key)
            .and_then(Value::as_u64)
            .ok_or_else(|| format!("kernel {name} has no {key}"))?;
        u32::try_from(value).map_err(|_| format!("kernel {name}: {key} is {value}"))
    };
    Ok(KernelMetadata {
        name: name.to_owned(),
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
    })
}

fn field<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_code_object_is_an_error() {
        assert!(kernels(b"").unwrap_err().contains("is no ELF file"));
        assert!(kernels(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]).unwrap_err().contains("is no ELF file"));
    }
}
