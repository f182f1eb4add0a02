//! The metadata note: MessagePack with the arguments and resources of each kernel (AMDGPU usage guide, "Code Object V3
//! Metadata" and later).
use super::{CodeObjectError, corrupt};
use rmpv::ValueRef;

/// Value that the runtime writes to a hidden argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenArgument {
    /// Number of workgroups in x, y or z.
    BlockCount(u8),
    /// Number of work-items per workgroup in x, y or z.
    GroupSize(u8),
    /// Number of work-items of the last, partial workgroup in x, y or z.
    Remainder(u8),
    /// Offset of the global identifiers in x, y or z.
    GlobalOffset(u8),
    /// Number of dimensions of the grid, 1 to 3.
    GridDims,
    /// Size of dynamic LDS in bytes.
    DynamicLdsSize,
    /// High half of the flat address of private memory.
    PrivateBase,
    /// High half of the flat address of LDS.
    SharedBase,
    /// A value that stays zero: printf and hostcall buffers, the device heap, queues, padding.
    Zero,
}

/// Kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// The value itself.
    ByValue,
    /// A pointer to global memory.
    GlobalBuffer,
    /// A pointer to dynamic LDS, an image, a sampler, a pipe or a queue; also passed by the caller.
    Other,
    /// Filled in by the runtime.
    Hidden(HiddenArgument),
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Offset in bytes from the start of the kernel argument segment.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// The kind of the argument.
    pub kind: ValueKind,
}

/// Metadata of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMetadata {
    /// The kernel's name.
    pub name: String,
    /// Symbol of the kernel descriptor, `NAME.kd`.
    pub symbol: String,
    /// The arguments, sorted by offset, explicit ones first.
    pub arguments: Vec<Argument>,
    /// Size of the kernel argument segment in bytes.
    pub kernarg_bytes: u32,
    /// Static LDS per workgroup in bytes.
    pub lds_bytes: u32,
    /// Private memory per lane in bytes.
    pub private_bytes: u32,
    /// Number of lanes of a wave.
    pub wave_size: u32,
    /// Number of scalar registers of a wave.
    pub sgprs: u32,
    /// Number of vector registers of a lane.
    pub vgprs: u32,
    /// Number of accumulation registers of a lane.
    pub agprs: u32,
    /// Maximum number of work-items per workgroup for which the kernel was compiled.
    pub max_workgroup_size: u32,
    /// Workgroup size required by `__attribute__((reqd_work_group_size))`, if any.
    pub required_workgroup_size: Option<[u32; 3]>,
}

/// Maximum size of the kernel argument segment in bytes.
const MAX_KERNARG_BYTES: u32 = 1 << 20;

/// Parses the kernels of the note's MessagePack.
pub fn parse(mut note: &[u8]) -> Result<Vec<KernelMetadata>, CodeObjectError> {
    let root = match rmpv::decode::read_value_ref(&mut note) {
        Ok(root) => root,
        Err(error) => return corrupt(format!("the metadata is not valid MessagePack: {error}")),
    };
    let Some(kernels) = field(&root, "amdhsa.kernels") else {
        return Ok(Vec::new());
    };
    let ValueRef::Array(kernels) = kernels else {
        return corrupt("metadata: amdhsa.kernels is not a list");
    };
    kernels.iter().map(kernel).collect()
}

fn kernel(value: &ValueRef) -> Result<KernelMetadata, CodeObjectError> {
    let text = |key: &str| match field(value, key) {
        Some(ValueRef::String(text)) => text.as_str().map(str::to_string),
        _ => None,
    };
    let (Some(name), Some(symbol)) = (text(".name"), text(".symbol")) else {
        return corrupt("metadata: a kernel has no name or symbol");
    };
    let number = |key: &str, default: u32| match field(value, key) {
        None => Ok(default),
        Some(number) => match number.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(number) => Ok(number),
            None => corrupt(format!("metadata of {name}: {key} is not a 32-bit number")),
        },
    };
    let kernarg_bytes = number(".kernarg_segment_size", 0)?;
    if kernarg_bytes > MAX_KERNARG_BYTES {
        return corrupt(format!("metadata of {name}: {kernarg_bytes} bytes of arguments exceed the limit"));
    }
    let mut arguments = Vec::new();
    if let Some(list) = field(value, ".args") {
        let ValueRef::Array(list) = list else {
            return corrupt(format!("metadata of {name}: .args is not a list"));
        };
        for (index, value) in list.iter().enumerate() {
            let argument = match argument(value) {
                Some(argument) => argument,
                None => return corrupt(format!("metadata of {name}: argument {index} is incomplete")),
            };
            if u64::from(argument.offset) + u64::from(argument.size) > u64::from(kernarg_bytes) {
                return corrupt(format!(
                    "metadata of {name}: argument {index} ({} bytes at {}) is outside the {kernarg_bytes} bytes of arguments",
                    argument.size, argument.offset
                ));
            }
            arguments.push(argument);
        }
    }
    let required_workgroup_size = match field(value, ".reqd_workgroup_size") {
        Some(ValueRef::Array(sizes)) => {
            let sizes: Vec<u32> =
                sizes.iter().filter_map(|n| n.as_u64().and_then(|n| u32::try_from(n).ok())).collect();
            sizes.try_into().ok()
        }
        _ => None,
    };
    Ok(KernelMetadata {
        kernarg_bytes,
        arguments,
        lds_bytes: number(".group_segment_fixed_size", 0)?,
        private_bytes: number(".private_segment_fixed_size", 0)?,
        wave_size: number(".wavefront_size", 64)?,
        sgprs: number(".sgpr_count", 0)?,
        vgprs: number(".vgpr_count", 0)?,
        agprs: number(".agpr_count", 0)?,
        max_workgroup_size: number(".max_flat_workgroup_size", 1024)?,
        required_workgroup_size,
        name,
        symbol,
    })
}

fn argument(value: &ValueRef) -> Option<Argument> {
    let number = |key: &str| u32::try_from(field(value, key)?.as_u64()?).ok();
    let ValueRef::String(kind) = field(value, ".value_kind")? else { return None };
    Some(Argument { offset: number(".offset")?, size: number(".size")?, kind: value_kind(kind.as_str()?) })
}

fn value_kind(name: &str) -> ValueKind {
    use HiddenArgument as Hidden;
    let Some(hidden) = name.strip_prefix("hidden_") else {
        return match name {
            "by_value" => ValueKind::ByValue,
            "global_buffer" => ValueKind::GlobalBuffer,
            _ => ValueKind::Other,
        };
    };
    let axis = match hidden.as_bytes().last() {
        Some(b'y') => 1,
        Some(b'z') => 2,
        _ => 0,
    };
    ValueKind::Hidden(match hidden {
        "block_count_x" | "block_count_y" | "block_count_z" => Hidden::BlockCount(axis),
        "group_size_x" | "group_size_y" | "group_size_z" => Hidden::GroupSize(axis),
        "remainder_x" | "remainder_y" | "remainder_z" => Hidden::Remainder(axis),
        "global_offset_x" | "global_offset_y" | "global_offset_z" => Hidden::GlobalOffset(axis),
        "grid_dims" => Hidden::GridDims,
        "dynamic_lds_size" => Hidden::DynamicLdsSize,
        "private_base" => Hidden::PrivateBase,
        "shared_base" => Hidden::SharedBase,
        _ => Hidden::Zero,
    })
}

fn field<'a, 'b>(map: &'a ValueRef<'b>, key: &str) -> Option<&'a ValueRef<'b>> {
    let ValueRef::Map(entries) = map else { return None };
    entries
        .iter()
        .find(|(name, _)| matches!(name, ValueRef::String(name) if name.as_str() == Some(key)))
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmpv::Value;

    fn encode(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    }

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(key, value)| (Value::from(*key), value.clone())).collect())
    }

    fn one_argument(offset: u32, size: u32, kind: &str) -> Vec<u8> {
        let argument =
            map(&[(".offset", offset.into()), (".size", size.into()), (".value_kind", kind.into())]);
        let kernel = map(&[
            (".name", "k".into()),
            (".symbol", "k.kd".into()),
            (".kernarg_segment_size", 16.into()),
            (".wavefront_size", 32.into()),
            (".args", Value::Array(vec![argument])),
        ]);
        encode(&map(&[("amdhsa.kernels", Value::Array(vec![kernel]))]))
    }

    #[test]
    fn reads_arguments() {
        let kernels = parse(&one_argument(8, 2, "hidden_group_size_y")).unwrap();
        assert_eq!(kernels.len(), 1);
        assert_eq!((kernels[0].name.as_str(), kernels[0].wave_size), ("k", 32));
        let kind = ValueKind::Hidden(HiddenArgument::GroupSize(1));
        assert_eq!(kernels[0].arguments, [Argument { offset: 8, size: 2, kind }]);
        assert_eq!(value_kind("hidden_hostcall_buffer"), ValueKind::Hidden(HiddenArgument::Zero));
        assert_eq!(value_kind("hidden_block_count_z"), ValueKind::Hidden(HiddenArgument::BlockCount(2)));
        assert_eq!(value_kind("global_buffer"), ValueKind::GlobalBuffer);
    }

    #[test]
    fn arguments_outside_of_the_segment_are_corrupt() {
        assert!(parse(&one_argument(12, 4, "by_value")).is_ok());
        assert!(parse(&one_argument(13, 4, "by_value")).is_err());
        assert!(parse(&one_argument(u32::MAX, 4, "by_value")).is_err());
    }

    #[test]
    fn every_truncation_is_an_error() {
        let note = one_argument(0, 8, "by_value");
        for len in 0..note.len() {
            assert!(parse(&note[..len]).is_err(), "{len} of {} bytes", note.len());
        }
    }

    #[test]
    fn a_note_without_kernels_is_valid() {
        assert_eq!(parse(&encode(&map(&[]))), Ok(Vec::new()));
        assert!(parse(&encode(&map(&[("amdhsa.kernels", 3.into())]))).is_err());
    }
}
