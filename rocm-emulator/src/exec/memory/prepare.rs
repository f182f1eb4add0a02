//! Conversion of decoded memory instructions to [`MemoryStep`]s.
use super::{Action, Exchange, LoadFormat, MemoryStep, Space, StoreFormat};
use super::{atomics, contiguous};
use crate::isa::{Encoding, Family, Inst, Operand};

/// Prepares an instruction. Returns `None` if it is unsupported.
pub(in crate::exec) fn prepare(inst: &Inst, family: Family) -> Option<MemoryStep> {
    let (space, prefix) = match inst.encoding {
        Encoding::Global => (Space::Global, "global_"),
        Encoding::Flat => (Space::Flat, "flat_"),
        Encoding::Scratch => (Space::Private, "scratch_"),
        Encoding::Ds if !inst.mods.gds => (Space::Lds, "ds_"),
        Encoding::Mubuf => return prepare_buffer(inst),
        _ => return None,
    };
    let name = inst.name.strip_prefix(prefix)?;
    let action = match (space, inst.mods.lds) {
        (Space::Lds, _) => lds_action(name, inst, family)?,
        (Space::Global, true) => to_lds(flat_action(name)?)?,
        (_, true) => return None,
        (_, false) => flat_action(name)?,
    };
    let register = |operand| match operand {
        Operand::Vgpr(n) => Some(n),
        _ => None,
    };
    let data0 = register(inst.src[1]).unwrap_or(0);
    // LDS instructions have a second data operand; elsewhere the compare value follows the new value.
    let data1 = match (space, action) {
        (Space::Lds, _) => register(inst.src[2]).unwrap_or(0),
        (_, Action::Atomic(operation)) => data0 + operation.registers(),
        _ => 0,
    };
    let base = match inst.src[2] {
        Operand::Scalar(n) if space != Space::Lds => Some(n),
        _ => None,
    };
    let is_pair = matches!(action, Action::LoadTwo(..) | Action::StoreTwo(..) | Action::AtomicTwo(..));
    Some(MemoryStep {
        space,
        is_compare: matches!(action, Action::Atomic(_) | Action::AtomicTwo(..)) && name.contains("cmp"),
        action,
        address: register(inst.src[0]),
        base,
        offset: if is_pair { 0 } else { inst.offset0 },
        data: [data0, data1],
        dst: register(inst.dst),
        is_atomic_load: matches!(action, Action::Load(_))
            && (inst.mods.glc || inst.mods.scc || inst.mods.scope != 0),
        access_shift: contiguous::access_shift(space, action),
        slot: 0,
    })
}

/// Prepares an untyped buffer access. Its descriptor decides at run time whether it is scratch memory.
fn prepare_buffer(inst: &Inst) -> Option<MemoryStep> {
    let Operand::Scalar(resource) = inst.src[2] else { return None };
    let base = match inst.src[3] {
        Operand::Scalar(n) => Some(n),
        Operand::Int(0) => None,
        _ => return None,
    };
    if inst.mods.idxen {
        return None;
    }
    let action = flat_action(inst.name.strip_prefix("buffer_")?)?;
    let action = if inst.mods.lds { to_lds(action)? } else { action };
    let data = match if inst.dst == Operand::None { inst.src[1] } else { inst.dst } {
        Operand::Vgpr(data) => data,
        Operand::None if inst.mods.lds => 0,
        _ => return None,
    };
    Some(MemoryStep {
        space: Space::Buffer { resource },
        is_compare: false,
        action,
        address: match inst.src[0] {
            Operand::Vgpr(n) => Some(n),
            _ => None,
        },
        base,
        offset: inst.offset0,
        data: [data, 0],
        dst: Some(data),
        is_atomic_load: false,
        access_shift: None,
        slot: 0,
    })
}

/// Returns the action of a FLAT, GLOBAL or SCRATCH instruction, by its name without the prefix.
fn flat_action(name: &str) -> Option<Action> {
    match name.strip_prefix("atomic_") {
        Some(operation) => atomics::find(operation).map(Action::Atomic),
        None => plain_action(name),
    }
}

/// Returns the action of a load or store with one address. LDS has other names for halves of registers.
fn plain_action(name: &str) -> Option<Action> {
    use LoadFormat::*;
    let load = match name {
        "load_u8" => U8,
        "load_i8" => I8,
        "load_u16" => U16,
        "load_i16" => I16,
        "load_d16_u8" | "load_u8_d16" => LowU8,
        "load_d16_i8" | "load_i8_d16" => LowI8,
        "load_d16_b16" | "load_u16_d16" => Low16,
        "load_d16_hi_u8" | "load_u8_d16_hi" => HighU8,
        "load_d16_hi_i8" | "load_i8_d16_hi" => HighI8,
        "load_d16_hi_b16" | "load_u16_d16_hi" => High16,
        "load_b32" => Dword1,
        "load_b64" => Dword2,
        "load_b96" => Dword3,
        "load_b128" => Dword4,
        _ => return plain_store(name).map(Action::Store),
    };
    Some(Action::Load(load))
}

fn plain_store(name: &str) -> Option<StoreFormat> {
    Some(match name {
        "store_b8" => StoreFormat::Byte,
        "store_b16" => StoreFormat::Short,
        "store_d16_hi_b8" | "store_b8_d16_hi" => StoreFormat::HighByte,
        "store_d16_hi_b16" | "store_b16_d16_hi" => StoreFormat::HighShort,
        "store_b32" => StoreFormat::Dword1,
        "store_b64" => StoreFormat::Dword2,
        "store_b96" => StoreFormat::Dword3,
        "store_b128" => StoreFormat::Dword4,
        _ => return None,
    })
}

/// Converts a load to a load to LDS. These have at most one dword, and no forms for register halves.
fn to_lds(action: Action) -> Option<Action> {
    use LoadFormat::{Dword1, I8, I16, U8, U16};
    match action {
        Action::Load(format @ (U8 | I8 | U16 | I16 | Dword1)) => Some(Action::LoadToLds(format)),
        _ => None,
    }
}

/// Returns the action of a DS instruction.
fn lds_action(name: &str, inst: &Inst, family: Family) -> Option<Action> {
    // Permutations stay within groups of 32 lanes on gfx10 and gfx11; elsewhere they span the wave.
    let group_size = match family {
        Family::Rdna2 | Family::Rdna3 | Family::Rdna35 => 32,
        _ => 64,
    };
    // Offsets of two-address forms are in units of one element, or of 64 elements.
    let distances = |bytes: u32| {
        let unit = if name.contains("_stride64") { 64 * bytes } else { bytes };
        [inst.offset0 as u32 * unit, inst.offset1 as u32 * unit]
    };
    Some(match name.replace("_stride64", "").as_str() {
        "load_2addr_b32" => Action::LoadTwo(LoadFormat::Dword1, distances(4)),
        "load_2addr_b64" => Action::LoadTwo(LoadFormat::Dword2, distances(8)),
        "store_2addr_b32" => Action::StoreTwo(StoreFormat::Dword1, distances(4)),
        "store_2addr_b64" => Action::StoreTwo(StoreFormat::Dword2, distances(8)),
        "storexchg_2addr_rtn_b32" => Action::AtomicTwo(atomics::find("storexchg_b32")?, distances(4)),
        "storexchg_2addr_rtn_b64" => Action::AtomicTwo(atomics::find("storexchg_b64")?, distances(8)),
        "permute_b32" => Action::Exchange(Exchange::Permute { group_size }),
        "bpermute_b32" => Action::Exchange(Exchange::BackwardPermute { group_size }),
        "swizzle_b32" => Action::Exchange(Exchange::Swizzle),
        "append" => Action::Exchange(Exchange::Append),
        "consume" => Action::Exchange(Exchange::Consume),
        _ => match plain_action(name) {
            Some(action) => action,
            None => Action::Atomic(atomics::find(&name.replacen("_rtn", "", 1))?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::canonical::canonical;
    use crate::isa;

    #[test]
    fn loads_beyond_the_workgroup_are_atomic() {
        let cases: [(Family, &[u32], bool); 9] = [
            // global_load_b32, without and with glc
            (Family::Rdna3, &[0xdc52_0000, 0x0102_0000], false),
            (Family::Rdna3, &[0xdc52_4000, 0x0102_0000], true),
            // global_load_dword, without, with sc0 and with sc1
            (Family::Cdna3, &[0xdc50_8000, 0x0102_0000], false),
            (Family::Cdna3, &[0xdc51_8000, 0x0102_0000], true),
            (Family::Cdna3, &[0xde50_8000, 0x0102_0000], true),
            // global_load_b32, and with scope:SCOPE_DEV
            (Family::Rdna4, &[0xee05_0002, 0x0000_0001, 0], false),
            (Family::Rdna4, &[0xee05_0002, 0x0008_0001, 0], true),
            // flat_load_b64 with scope:SCOPE_SE; global_store_b32 with scope:SCOPE_DEV
            (Family::Rdna4, &[0xec05_407c, 0x0004_0002, 0], true),
            (Family::Rdna4, &[0xee06_8002, 0x0088_0000, 0], false),
        ];
        for (family, words, expected) in cases {
            let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let inst = canonical(family, isa::decode(family, &text, 0).expect("a valid instruction"));
            let step = prepare(&inst, family).expect("a known instruction");
            assert_eq!(step.is_atomic_load, expected, "{family:?} {words:08x?}");
        }
    }
}
