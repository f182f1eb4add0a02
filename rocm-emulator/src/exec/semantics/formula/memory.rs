//! Loads, stores and atomics in all memories, by their operation at the address.
use super::{Eval, Formula, Whole};
use crate::exec::semantics::kind::Signature;
use crate::exec::semantics::number::{BF16, F16, F32, F64, Format, Rounding};
use crate::exec::semantics::state::State;
use crate::exec::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::{Encoding, Inst, Operand, sreg};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Part of a register that a load writes or a store reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole register, zero- or sign-extended.
    Whole,
    Low,
    High,
}

/// Operation of a memory instruction at a lane's address.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Load {
        bytes: u64,
        signed: bool,
        part: Part,
    },
    Store {
        bytes: u64,
        part: Part,
    },
    /// `operation` maps the old value, the source and the second operand to the new value.
    Atomic {
        bytes: u64,
        operation: fn(u64, u64, u64) -> u64,
    },
    /// A scalar load.
    ScalarLoad {
        bytes: u64,
        signed: bool,
    },
}

use Access::{Atomic, Load, ScalarLoad, Store};

const fn load(bytes: u64) -> Access {
    Load { bytes, signed: false, part: Part::Whole }
}

const fn store(bytes: u64) -> Access {
    Store { bytes, part: Part::Whole }
}

const fn atomic(bytes: u64, operation: fn(u64, u64, u64) -> u64) -> Access {
    Atomic { bytes, operation }
}

/// Accesses by all families' names without the unit (`global_`, `ds_` ...).
const ACCESSES: &[(&str, Access)] = &[
    ("load_u8 load_ubyte read_u8", load(1)),
    ("load_u16 load_ushort read_u16", load(2)),
    ("load_i8 load_sbyte read_i8", Load { bytes: 1, signed: true, part: Part::Whole }),
    ("load_i16 load_sshort read_i16", Load { bytes: 2, signed: true, part: Part::Whole }),
    ("load_b32 load_dword read_b32", load(4)),
    ("load_b64 load_dwordx2 read_b64", load(8)),
    ("load_b96 load_dwordx3 read_b96", load(12)),
    ("load_b128 load_dwordx4 read_b128", load(16)),
    ("load_d16_u8 load_ubyte_d16 load_u8_d16 read_u8_d16", Load { bytes: 1, signed: false, part: Part::Low }),
    ("load_d16_i8 load_sbyte_d16 load_i8_d16 read_i8_d16", Load { bytes: 1, signed: true, part: Part::Low }),
    (
        "load_d16_b16 load_short_d16 load_u16_d16 read_u16_d16",
        Load { bytes: 2, signed: false, part: Part::Low },
    ),
    (
        "load_d16_hi_u8 load_ubyte_d16_hi load_u8_d16_hi read_u8_d16_hi",
        Load { bytes: 1, signed: false, part: Part::High },
    ),
    (
        "load_d16_hi_i8 load_sbyte_d16_hi load_i8_d16_hi read_i8_d16_hi",
        Load { bytes: 1, signed: true, part: Part::High },
    ),
    (
        "load_d16_hi_b16 load_short_d16_hi load_u16_d16_hi read_u16_d16_hi",
        Load { bytes: 2, signed: false, part: Part::High },
    ),
    ("store_b8 store_byte write_b8", store(1)),
    ("store_b16 store_short write_b16", store(2)),
    (
        "store_d16_hi_b8 store_byte_d16_hi store_b8_d16_hi write_b8_d16_hi",
        Store { bytes: 1, part: Part::High },
    ),
    (
        "store_d16_hi_b16 store_short_d16_hi store_b16_d16_hi write_b16_d16_hi",
        Store { bytes: 2, part: Part::High },
    ),
    ("store_b32 store_dword write_b32", store(4)),
    ("store_b64 store_dwordx2 write_b64", store(8)),
    ("store_b96 store_dwordx3 write_b96", store(12)),
    ("store_b128 store_dwordx4 write_b128", store(16)),
    ("load_2addr_b32 read2_b32 load_2addr_stride64_b32 read2st64_b32", load(4)),
    ("load_2addr_b64 read2_b64 load_2addr_stride64_b64 read2st64_b64", load(8)),
    ("store_2addr_b32 write2_b32 store_2addr_stride64_b32 write2st64_b32", store(4)),
    ("store_2addr_b64 write2_b64 store_2addr_stride64_b64 write2st64_b64", store(8)),
    ("atomic_swap_b32 atomic_swap storexchg_rtn_b32 wrxchg_rtn_b32", atomic(4, |_, s, _| s)),
    ("atomic_swap_b64 atomic_swap_x2 storexchg_rtn_b64 wrxchg_rtn_b64", atomic(8, |_, s, _| s)),
    (
        "atomic_cmpswap_b32 atomic_cmpswap cmpstore_b32 cmpstore_rtn_b32 cmpst_b32 cmpst_rtn_b32",
        atomic(4, |old, s, compared| if old == compared { s } else { old }),
    ),
    (
        "atomic_cmpswap_b64 atomic_cmpswap_x2 cmpstore_b64 cmpstore_rtn_b64 cmpst_b64 cmpst_rtn_b64",
        atomic(8, |old, s, compared| if old == compared { s } else { old }),
    ),
    ("atomic_add_u32 atomic_add add_u32 add_rtn_u32", atomic(4, |old, s, _| old + s)),
    ("atomic_add_u64 atomic_add_x2 add_u64 add_rtn_u64", atomic(8, |old, s, _| old.wrapping_add(s))),
    ("atomic_sub_u32 atomic_sub sub_u32 sub_rtn_u32", atomic(4, |old, s, _| old.wrapping_sub(s))),
    ("atomic_sub_u64 atomic_sub_x2 sub_u64 sub_rtn_u64", atomic(8, |old, s, _| old.wrapping_sub(s))),
    ("rsub_u32 rsub_rtn_u32", atomic(4, |old, s, _| s.wrapping_sub(old))),
    ("rsub_u64 rsub_rtn_u64", atomic(8, |old, s, _| s.wrapping_sub(old))),
    ("atomic_csub_u32 atomic_csub", atomic(4, |old, s, _| old.saturating_sub(s))),
    (
        "atomic_min_i32 atomic_smin min_i32 min_rtn_i32",
        atomic(4, |old, s, _| if (s as i32) < old as i32 { s } else { old }),
    ),
    (
        "atomic_max_i32 atomic_smax max_i32 max_rtn_i32",
        atomic(4, |old, s, _| if s as i32 > old as i32 { s } else { old }),
    ),
    ("atomic_min_u32 atomic_umin min_u32 min_rtn_u32", atomic(4, |old, s, _| if s < old { s } else { old })),
    ("atomic_max_u32 atomic_umax max_u32 max_rtn_u32", atomic(4, |old, s, _| if s > old { s } else { old })),
    (
        "atomic_min_i64 atomic_smin_x2 min_i64 min_rtn_i64",
        atomic(8, |old, s, _| if (s as i64) < old as i64 { s } else { old }),
    ),
    (
        "atomic_max_i64 atomic_smax_x2 max_i64 max_rtn_i64",
        atomic(8, |old, s, _| if s as i64 > old as i64 { s } else { old }),
    ),
    (
        "atomic_min_u64 atomic_umin_x2 min_u64 min_rtn_u64",
        atomic(8, |old, s, _| if s < old { s } else { old }),
    ),
    (
        "atomic_max_u64 atomic_umax_x2 max_u64 max_rtn_u64",
        atomic(8, |old, s, _| if s > old { s } else { old }),
    ),
    ("atomic_and_b32 atomic_and and_b32 and_rtn_b32", atomic(4, |old, s, _| old & s)),
    ("atomic_or_b32 atomic_or or_b32 or_rtn_b32", atomic(4, |old, s, _| old | s)),
    ("atomic_xor_b32 atomic_xor xor_b32 xor_rtn_b32", atomic(4, |old, s, _| old ^ s)),
    ("atomic_and_b64 atomic_and_x2 and_b64 and_rtn_b64", atomic(8, |old, s, _| old & s)),
    ("atomic_or_b64 atomic_or_x2 or_b64 or_rtn_b64", atomic(8, |old, s, _| old | s)),
    ("atomic_xor_b64 atomic_xor_x2 xor_b64 xor_rtn_b64", atomic(8, |old, s, _| old ^ s)),
    (
        "atomic_inc_u32 atomic_inc inc_u32 inc_rtn_u32",
        atomic(4, |old, s, _| if old >= s { 0 } else { old + 1 }),
    ),
    (
        "atomic_dec_u32 atomic_dec dec_u32 dec_rtn_u32",
        atomic(4, |old, s, _| if old == 0 || old > s { s } else { old - 1 }),
    ),
    (
        "atomic_inc_u64 atomic_inc_x2 inc_u64 inc_rtn_u64",
        atomic(8, |old, s, _| if old >= s { 0 } else { old + 1 }),
    ),
    (
        "atomic_dec_u64 atomic_dec_x2 dec_u64 dec_rtn_u64",
        atomic(8, |old, s, _| if old == 0 || old > s { s } else { old - 1 }),
    ),
    ("mskor_b32 mskor_rtn_b32", atomic(4, |old, mask, bits| old & !mask | bits)),
    ("mskor_b64 mskor_rtn_b64", atomic(8, |old, mask, bits| old & !mask | bits)),
    ("atomic_add_f32 add_f32 add_rtn_f32", atomic(4, |old, s, _| sum(F32, old, s))),
    ("atomic_add_f64 add_f64 add_rtn_f64", atomic(8, |old, s, _| sum(F64, old, s))),
    ("atomic_pk_add_f16 pk_add_f16 pk_add_rtn_f16", atomic(4, |old, s, _| pair_sum(F16, old, s))),
    ("atomic_pk_add_bf16 pk_add_bf16 pk_add_rtn_bf16", atomic(4, |old, s, _| pair_sum(BF16, old, s))),
];

/// Adds two floats, rounding to nearest and keeping denormals, as the memory's adders do.
fn sum(format: Format, a: u64, b: u64) -> u64 {
    format.read(a).plus(&format.read(b), Rounding::Even).rounded(format, Rounding::Even)
}

fn pair_sum(format: Format, a: u64, b: u64) -> u64 {
    sum(format, a & 0xffff, b & 0xffff) | sum(format, a >> 16, b >> 16) << 16
}

const UNITS: [&str; 5] = ["global_", "flat_", "scratch_", "buffer_", "ds_"];

const SCALAR_LOADS: &[(&str, Access)] = &[
    ("s_load_b32 s_load_dword", ScalarLoad { bytes: 4, signed: false }),
    ("s_load_b64 s_load_dwordx2", ScalarLoad { bytes: 8, signed: false }),
    ("s_load_b96", ScalarLoad { bytes: 12, signed: false }),
    ("s_load_b128 s_load_dwordx4", ScalarLoad { bytes: 16, signed: false }),
    ("s_load_b256 s_load_dwordx8", ScalarLoad { bytes: 32, signed: false }),
    ("s_load_b512 s_load_dwordx16", ScalarLoad { bytes: 64, signed: false }),
    ("s_load_u8", ScalarLoad { bytes: 1, signed: false }),
    ("s_load_i8", ScalarLoad { bytes: 1, signed: true }),
    ("s_load_u16", ScalarLoad { bytes: 2, signed: false }),
    ("s_load_i16", ScalarLoad { bytes: 2, signed: true }),
];

/// Returns the access of an instruction, if it is a memory instruction.
pub fn access(name: &str) -> Option<Access> {
    fn words(table: &'static [(&str, Access)]) -> HashMap<&'static str, Access> {
        table
            .iter()
            .flat_map(|(names, access)| names.split_whitespace().map(|name| (name, *access)))
            .collect()
    }
    static BY_STEM: LazyLock<[HashMap<&str, Access>; 2]> =
        LazyLock::new(|| [words(ACCESSES), words(SCALAR_LOADS)]);
    match UNITS.iter().find_map(|unit| name.strip_prefix(unit)) {
        Some(stem) => BY_STEM[0].get(stem).copied(),
        None => BY_STEM[1].get(name).copied(),
    }
}

pub fn add(formulas: &mut HashMap<&'static str, Formula>) {
    let mut insert = |name: String, operation: Whole| {
        let formula = Formula { is_flow: false, eval: Eval::Whole(operation), signature: None::<Signature> };
        let name: &'static str = name.leak();
        assert!(formulas.insert(name, formula).is_none(), "two formulas for {name}");
    };
    for (names, _) in ACCESSES {
        for stem in names.split_whitespace() {
            for unit in UNITS {
                insert(format!("{unit}{stem}"), vector);
            }
        }
    }
    for (names, _) in SCALAR_LOADS {
        for name in names.split_whitespace() {
            insert(name.to_string(), scalar);
        }
    }
    insert("ds_bpermute_b32".into(), backward_permute);
    insert("ds_permute_b32".into(), permute);
    insert("ds_swizzle_b32".into(), swizzle);
}

/// Location of an access in one of the memories.
#[derive(Clone, Copy, Debug)]
enum Site {
    Global(usize),
    Lds(usize),
    Private(usize, usize),
}

fn bytes_at(state: &mut State, site: Site, bytes: u64) -> &mut [u8] {
    let (memory, at) = match site {
        Site::Global(at) => (&mut state.global, at),
        Site::Lds(at) => (&mut state.lds, at),
        Site::Private(lane, at) => (&mut state.private[lane], at),
    };
    &mut memory[at..at + bytes as usize]
}

fn vgpr(operand: Operand) -> Option<u16> {
    match crate::exec::semantics::operands::agpr_as_vgpr(operand) {
        Operand::Vgpr(n) => Some(n),
        _ => None,
    }
}

fn sgpr(operand: Operand) -> Option<u8> {
    match operand {
        Operand::Scalar(n) => Some(n),
        _ => None,
    }
}

/// Returns the location of a lane's access, according to the instruction's encoding.
fn site(inst: &Inst, before: &State, lane: usize, distance: u64) -> Site {
    let (address, base) = (vgpr(inst.src[0]), sgpr(inst.src[2]));
    let offset = inst.offset0 as i64 as u64;
    match inst.encoding {
        Encoding::Ds => {
            let address = u64::from(address.map_or(0, |n| before.vector(n, lane)));
            Site::Lds((address + distance) as usize)
        }
        Encoding::Scratch => {
            let address = address.map_or(0, |n| before.vector(n, lane));
            let base = base.map_or(0, |n| before.scalar(n));
            Site::Private(lane, address.wrapping_add(base).wrapping_add(offset as u32) as usize)
        }
        // The scalar offset of a scratch buffer counts the bytes of all lanes.
        Encoding::Mubuf => {
            let address = address.map_or(0, |n| before.vector(n, lane));
            let base = sgpr(inst.src[3]).map_or(0, |n| before.scalar(n)) / before.lanes as u32;
            Site::Private(lane, address.wrapping_add(base).wrapping_add(offset as u32) as usize)
        }
        _ => {
            let address = match (address, base) {
                (Some(v), Some(s)) => before.pair(s).wrapping_add(before.vector(v, lane).into()),
                (None, Some(s)) => before.pair(s),
                (Some(v), None) => before.vector_pair(v, lane),
                (None, None) => 0,
            };
            let address = address.wrapping_add(offset);
            match address & !u64::from(u32::MAX) {
                SHARED_APERTURE if inst.encoding == Encoding::Flat => Site::Lds((address as u32) as usize),
                PRIVATE_APERTURE if inst.encoding == Encoding::Flat => {
                    Site::Private(lane, (address as u32) as usize)
                }
                _ => Site::Global((address - before.global_base) as usize),
            }
        }
    }
}

/// Returns the distances from the address: one, or two in units of the element for two-address forms.
pub fn distances(inst: &Inst, bytes: u64) -> Vec<u64> {
    let unit = if inst.name.contains("stride64") || inst.name.contains("st64") { 64 * bytes } else { bytes };
    let two = inst.name.contains("2addr") || inst.name.contains("read2") || inst.name.contains("write2");
    if two { vec![inst.offset0 as u64 * unit, inst.offset1 as u64 * unit] } else { vec![inst.offset0 as u64] }
}

fn value_at(state: &mut State, site: Site, bytes: u64) -> Vec<u8> {
    bytes_at(state, site, bytes).to_vec()
}

fn integer(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn extended(bytes: &[u8], signed: bool) -> u32 {
    let value = integer(bytes);
    let shift = 64 - 8 * bytes.len() as u32;
    if signed { ((value << shift) as i64 >> shift) as u32 } else { value as u32 }
}

fn vector(inst: &Inst, before: &State, after: &mut State) {
    let access = access(inst.name).expect("a memory instruction");
    let mut memory = before.clone();
    match access {
        Load { bytes, signed, part } => {
            let Some(dst) = vgpr(inst.dst) else { return };
            for lane in before.active() {
                let mut register = dst;
                for distance in distances(inst, bytes) {
                    let value = value_at(&mut memory, site(inst, before, lane, distance), bytes);
                    for dword in value.chunks(4) {
                        let old = before.vector(register, lane);
                        let value = extended(dword, signed);
                        after.set_vector(
                            register,
                            lane,
                            match part {
                                Part::Whole => value,
                                Part::Low => old & 0xffff_0000 | value & 0xffff,
                                Part::High => old & 0xffff | value << 16,
                            },
                        );
                        register += 1;
                    }
                }
            }
        }
        Store { bytes, part } => {
            for distance_at in 0..2 {
                for lane in before.active() {
                    let Some(distance) = distances(inst, bytes).get(distance_at).copied() else { continue };
                    let data = vgpr(inst.src[1 + distance_at]).expect("data");
                    let shift = if part == Part::High { 16 } else { 0 };
                    let words = (0..bytes.div_ceil(4)).map(|i| before.vector(data + i as u16, lane) >> shift);
                    let value: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
                    let at = site(inst, before, lane, distance);
                    bytes_at(after, at, bytes).copy_from_slice(&value[..bytes as usize]);
                }
            }
        }
        Atomic { bytes, operation } => {
            let registers = (bytes / 4) as u16;
            let value = |register: u16, lane: usize| match bytes {
                4 => before.vector(register, lane).into(),
                _ => before.vector_pair(register, lane),
            };
            for lane in before.active() {
                let data = vgpr(inst.src[1]).expect("data");
                let source = value(data, lane);
                // LDS instructions have a second operand; elsewhere the compared value follows the new one.
                let second = match (inst.encoding, vgpr(inst.src[2])) {
                    (Encoding::Ds, Some(second)) => value(second, lane),
                    (Encoding::Ds, None) => 0,
                    _ => value(data + registers, lane),
                };
                // On gfx9 and gfx10 the compared value comes first in LDS instructions.
                let compared_first = inst.name.starts_with("ds_cmpst_");
                let (source, second) = if compared_first { (second, source) } else { (source, second) };
                let at = site(inst, before, lane, inst.offset0 as u64);
                let old = integer(bytes_at(after, at, bytes));
                let new = operation(old, source, second);
                bytes_at(after, at, bytes).copy_from_slice(&new.to_le_bytes()[..bytes as usize]);
                if let Some(dst) = vgpr(inst.dst) {
                    after.set_vector(dst, lane, old as u32);
                    if bytes == 8 {
                        after.set_vector(dst + 1, lane, (old >> 32) as u32);
                    }
                }
            }
        }
        ScalarLoad { .. } => {}
    }
}

fn scalar(inst: &Inst, before: &State, after: &mut State) {
    let Some(ScalarLoad { bytes, signed }) = access(inst.name) else { return };
    let (Some(dst), Some(base)) = (sgpr(inst.dst), sgpr(inst.src[0])) else { return };
    let register = match inst.src[1] {
        Operand::Scalar(n) => u64::from(before.scalar(n)),
        _ => 0,
    };
    let address = before.pair(base).wrapping_add(register).wrapping_add(inst.offset0 as i64 as u64);
    // The low two bits of a dword's address are ignored.
    let address = if bytes >= 4 { address & !3 } else { address };
    let at = (address - before.global_base) as usize;
    let value = before.global[at..at + bytes as usize].to_vec();
    for (n, dword) in value.chunks(4).enumerate() {
        after.set_scalar(if dst == sreg::NULL { dst } else { dst + n as u8 }, extended(dword, signed));
    }
}

/// Returns the number of lanes in a permutation's group: 32 on gfx10 and gfx11, otherwise 64.
fn group_size(before: &State) -> usize {
    use crate::isa::Family;
    match before.family {
        Family::Rdna2 | Family::Rdna3 | Family::Rdna35 => 32,
        _ => 64,
    }
}

fn selected_lane(inst: &Inst, before: &State, lane: usize) -> usize {
    let address = vgpr(inst.src[0]).map_or(0, |n| before.vector(n, lane));
    let group_size = group_size(before).min(before.lanes);
    lane / group_size * group_size + (address.wrapping_add(inst.offset0 as u32) / 4) as usize % group_size
}

/// Reads from the lane that each lane's address selects; inactive lanes give 0.
fn backward_permute(inst: &Inst, before: &State, after: &mut State) {
    let (Some(dst), Some(data)) = (vgpr(inst.dst), vgpr(inst.src[1])) else { return };
    for lane in before.active() {
        let from = selected_lane(inst, before, lane);
        let value = if before.is_active(from) { before.vector(data, from) } else { 0 };
        after.set_vector(dst, lane, value);
    }
}

/// Sends to the lane that each lane's address selects; of several sources the highest lane's remains.
fn permute(inst: &Inst, before: &State, after: &mut State) {
    let (Some(dst), Some(data)) = (vgpr(inst.dst), vgpr(inst.src[1])) else { return };
    for lane in before.active() {
        after.set_vector(dst, lane, 0);
    }
    for lane in before.active() {
        let to = selected_lane(inst, before, lane);
        if before.is_active(to) {
            after.set_vector(dst, to, before.vector(data, lane));
        }
    }
}

/// Permutes lanes in a pattern from the offset: any of four lanes, or and, or and xor masks for 32 lanes.
fn swizzle(inst: &Inst, before: &State, after: &mut State) {
    let (Some(dst), Some(data)) = (vgpr(inst.dst), vgpr(inst.src[0])) else { return };
    let pattern = inst.offset0 as usize;
    for lane in before.active() {
        let from = match pattern >> 15 {
            1 if pattern >> 13 & 3 == 0 => lane / 4 * 4 + (pattern >> (2 * (lane % 4)) & 3),
            0 => lane / 32 * 32 + (((lane & pattern & 31) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31)),
            _ => continue,
        };
        let value = if before.is_active(from) { before.vector(data, from) } else { 0 };
        after.set_vector(dst, lane, value);
    }
}
