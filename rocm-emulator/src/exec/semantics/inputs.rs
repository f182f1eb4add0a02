//! Initial states: edge values in the operands of an instruction, and random values everywhere else.
use super::formula::{Access, Formula, access, distances};
use super::kind::Kind;
use super::number::{F32, F64};
use super::operands::agpr_as_vgpr;
use super::state::{DEFAULT_MODE, GLOBAL_BYTES, LDS_BYTES, PRIVATE_BYTES, State};
use super::values::{Random, float, integer, value};
use crate::exec::vector::half;
use crate::exec::wave::{Mode, VGPRS, VGPRS_AND_AGPRS};
use crate::exec::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::{Encoding, Family, Inst, Operand, sreg};
use std::sync::LazyLock;

/// Returns the mask of active lanes of a case.
fn exec(random: &mut Random, case: u64) -> u64 {
    match case % 6 {
        0 | 1 => u64::MAX,
        2 => random.bits(),
        3 => random.bits() & random.bits(),
        4 => [1 << 63 | 1, 1 << 31, 0, 0xffff_0000_0000_ffff, 0x5555_5555_5555_5555][(case / 6 % 5) as usize],
        _ => random.bits() | random.bits(),
    }
}

/// Returns true for operations that the executor always rounds to nearest, keeping denormals. No shipped
/// kernel changes the mode.
fn ignores_mode(inst: &Inst) -> bool {
    let names = [
        "_fract_",
        "_ldexp_",
        "_div_scale_",
        "_div_fmas_",
        "_dx9_zero_",
        "_legacy_f32",
        "_fma_mix",
        "_cvt_pk",
    ];
    let one = |inst: &Inst| names.iter().any(|part| inst.name.contains(part));
    one(inst) || inst.pair.as_deref().is_some_and(one)
}

/// Returns the floating-point mode of a case, usually HIP's.
fn mode(case: u64) -> Mode {
    let default = DEFAULT_MODE;
    match case % 12 {
        3 => Mode { round_32: 1, round_16_64: 2, ..default },
        5 => Mode { round_32: 2, round_16_64: 3, ..default },
        7 => Mode { round_32: 3, round_16_64: 1, ..default },
        9 => Mode { denorm_32: 0, denorm_16_64: 0, ..default },
        10 => Mode { denorm_32: 1, denorm_16_64: 2, ..default },
        11 => Mode { ieee: false, dx10_clamp: false, ..default },
        _ => default,
    }
}

/// Returns a state of random values. It is the same for all cases, which only replace the operands.
pub fn noise(family: Family, lanes: usize) -> State {
    let mut random = Random::new(family as u64 * 1000 + lanes as u64);
    let registers = if family.is_gfx9() { VGPRS_AND_AGPRS } else { VGPRS };
    State {
        family,
        lanes,
        sgpr: std::array::from_fn(|n| if n == usize::from(sreg::NULL) { 0 } else { random.bits() as u32 }),
        scc: false,
        mode: DEFAULT_MODE,
        vgpr: (0..registers).map(|_| std::array::from_fn(|_| random.bits() as u32)).collect(),
        pc: 0,
        address: 0,
        global_base: 0,
        global: Vec::new(),
        lds: Vec::new(),
        private: Vec::new(),
    }
}

/// Returns the initial state of a case, or `None` if the operands admit no valid address.
pub fn state(
    noise: &State,
    formula: &Formula,
    inst: &Inst,
    case: u64,
    global_base: u64,
    address: u64,
) -> Option<State> {
    let mut random = Random::new(case.wrapping_mul(0x1234_5677) ^ seed(inst));
    let mut state = State { global_base, address, scc: case & 1 != 0, ..noise.clone() };
    for register in &mut state.sgpr[..124] {
        *register ^= random.bits() as u32;
    }
    state.set_scalar(sreg::M0, integer(&mut random) as u32);
    if case % 5 == 2 {
        state.set_pair(sreg::VCC_LO, 0);
    }
    state.set_pair(sreg::EXEC_LO, exec(&mut random, case) & state.full());
    fill(&mut state, formula, inst, &mut random);
    if let Some(second) = &inst.pair {
        let second_formula = super::formula::find(second.name)?;
        fill(&mut state, second_formula, second, &mut random);
    }
    if inst.name.contains("_f32_16x16x") {
        whole_floats(&mut state, inst, &mut random);
    }
    if inst.name.starts_with("v_wmma") && noise.family.is_gfx11() {
        repeat_inputs(&mut state, inst);
    }
    let mut signatures = formula.signature.iter();
    if signatures.any(|signature| {
        signature.sources.iter().any(|(kind, _)| kind.is_flushed()) || signature.result.is_flushed()
    }) {
        state.mode = match inst.mods.omod {
            _ if ignores_mode(inst) => DEFAULT_MODE,
            // Output modifiers have an effect only if denormals are flushed.
            1.. if !case.is_multiple_of(4) => {
                Mode { ieee: false, denorm_32: 0, denorm_16_64: 0, ..DEFAULT_MODE }
            }
            _ => mode(case),
        };
    }
    if let Some(access) = access(inst.name) {
        set_memory(&mut state, inst, access, case, &mut random)?;
    }
    Some(state)
}

/// Fills A, B and C with integers whose products and sums are exact in f32 in any order. Each matrix has up
/// to eight registers; matrices that share registers are zero.
fn whole_floats(state: &mut State, inst: &Inst, random: &mut Random) {
    let mut number = |limit: i32| (random.bits() % (2 * limit as u64 + 1)) as i32 - limit;
    let firsts = inst.src.map(|operand| match agpr_as_vgpr(operand) {
        Operand::Vgpr(first) => Some(first),
        _ => None,
    });
    let apart = |a: u16, b: Option<u16>| b.is_none_or(|b| a.abs_diff(b) >= 8);
    let (bfloats, singles) = (inst.name.contains("bf16"), inst.name.ends_with("f32"));
    let narrow = |number: i32| match bfloats {
        true => (number as f32).to_bits() >> 16,
        false => half::narrow(number as f32),
    };
    for (at, limit) in [if bfloats { 255 } else { 2032 }, 63, 1 << 22].into_iter().enumerate() {
        let Some(first) = firsts[at] else { continue };
        let alone = (0..3).all(|other| other == at || apart(first, firsts[other]));
        let limit = if alone { limit } else { 0 };
        for register in state.vgpr.iter_mut().skip(first.into()).take(8) {
            for lane in register {
                *lane = match at {
                    0 | 1 if !singles => narrow(number(limit)) | narrow(number(limit)) << 16,
                    _ => (number(limit) as f32).to_bits(),
                };
            }
        }
    }
}

/// Repeats A and B, of up to eight registers each, in every group of 16 lanes, as gfx11 requires.
fn repeat_inputs(state: &mut State, inst: &Inst) {
    for operand in &inst.src[..2] {
        let Operand::Vgpr(first) = *operand else { continue };
        for register in state.vgpr.iter_mut().skip(first.into()).take(8) {
            for lane in 16..64 {
                register[lane] = register[lane % 16];
            }
        }
    }
}

/// Returns a seed that depends on the instruction.
fn seed(inst: &Inst) -> u64 {
    inst.name
        .bytes()
        .fold(u64::from(inst.mods.neg), |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn fill(state: &mut State, formula: &Formula, inst: &Inst, random: &mut Random) {
    let default = [(Kind::U32, false); 3];
    let sources = formula.signature.as_ref().map_or(&default[..], |signature| &signature.sources);
    let mut next = 0;
    for (kind, accumulates) in sources {
        let operand = if *accumulates {
            inst.dst
        } else {
            next += 1;
            inst.src[next - 1]
        };
        fill_operand(state, operand, *kind, random);
    }
    if let (true, Operand::Scalar(n)) =
        (inst.name.starts_with("s_cmpk_") && random.below(3) == 0, inst.src[0])
    {
        state.set_scalar(n, inst.imm as u32);
    }
    if let (0, [Operand::Scalar(a), Operand::Scalar(b), ..]) = (random.below(4), inst.src)
        && a.max(b) < sreg::NULL - 1
    {
        state.set_pair(b, state.pair(a));
    }
    // Sometimes two operands are equal.
    if random.below(3) == 0
        && let [Operand::Vgpr(a), Operand::Vgpr(b), ..] = inst.src
    {
        for lane in (0..state.lanes).filter(|_| random.below(2) == 0) {
            let same = state.vector_pair(a, lane);
            state.set_vector(b, lane, same as u32);
            if sources.iter().any(|(kind, _)| kind.is_wide()) {
                state.set_vector(b + 1, lane, (same >> 32) as u32);
            }
        }
    }
}

fn fill_operand(state: &mut State, operand: Operand, kind: Kind, random: &mut Random) {
    match agpr_as_vgpr(operand) {
        Operand::Vgpr(n) => {
            for lane in 0..state.lanes {
                let bits = value(random, kind);
                state.set_vector(n, lane, bits as u32);
                if kind.is_wide() {
                    state.set_vector(n + 1, lane, (bits >> 32) as u32);
                }
            }
        }
        Operand::Scalar(n) if n < sreg::NULL => {
            let bits = value(random, kind);
            state.set_scalar(n, bits as u32);
            if kind.is_wide() || kind == Kind::Mask && state.lanes == 64 {
                state.set_scalar(n + 1, (bits >> 32) as u32);
            }
        }
        _ => {}
    }
}

/// Returns memory with edge values, cut from a pool that is generated once.
fn contents(bytes: usize, random: &mut Random) -> Vec<u8> {
    static POOL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Random::new(1);
        let mut word = || match random.below(3) {
            0 => float(&mut random, F32) | float(&mut random, F32) << 32,
            1 => float(&mut random, F64),
            _ => integer(&mut random),
        };
        (0..LDS_BYTES / 4).flat_map(|_| word().to_le_bytes()).collect()
    });
    let first = random.below((POOL.len() - bytes) as u64 / 8) as usize * 8;
    POOL[first..first + bytes].to_vec()
}

/// Fills memory with edge values, and points the address registers of all active lanes into it.
fn set_memory(state: &mut State, inst: &Inst, access: Access, case: u64, random: &mut Random) -> Option<()> {
    let (bytes, is_atomic) = match access {
        Access::Load { bytes, .. } | Access::Store { bytes, .. } | Access::ScalarLoad { bytes, .. } => {
            (bytes, false)
        }
        Access::Atomic { bytes, .. } => (bytes, true),
    };
    if let Access::ScalarLoad { .. } = access {
        state.global = contents(GLOBAL_BYTES, random);
        return set_scalar_address(state, inst, bytes, random);
    }
    let flat = inst.encoding == Encoding::Flat;
    let space = match inst.encoding {
        Encoding::Ds => 1,
        Encoding::Scratch | Encoding::Mubuf => 2,
        Encoding::Flat => case % 3,
        _ => 0,
    };
    let size = match space {
        0 => {
            state.global = contents(GLOBAL_BYTES, random);
            GLOBAL_BYTES
        }
        1 => {
            state.lds = contents(LDS_BYTES, random);
            LDS_BYTES
        }
        _ => {
            // Offsets without a register need more memory, because the instruction determines them.
            let by_register = [inst.src[0], inst.src[2]].iter().any(|operand| *operand != Operand::None);
            let bytes = if by_register { PRIVATE_BYTES / 16 } else { PRIVATE_BYTES };
            state.private = (0..state.lanes).map(|_| contents(bytes, random)).collect();
            bytes
        }
    } as u64;
    // LDS offsets are added to the address and must stay within it; others wrap.
    let farthest = if inst.encoding == Encoding::Ds { distances(inst, bytes).into_iter().max()? } else { 0 };
    let span = size.checked_sub(farthest + bytes + 16)?;
    let natural = bytes.next_power_of_two();
    let step = if is_atomic || inst.encoding == Encoding::Ds || case % 4 != 3 { natural.min(16) } else { 1 };
    let contiguous = case.is_multiple_of(2);
    let inst_offset = if inst.encoding == Encoding::Ds { distances(inst, bytes)[0] } else { 0 };
    let first = random.below(span / 4);
    let lanes: Vec<u64> = (0..state.lanes as u64)
        .map(|lane| if contiguous { (first + lane * bytes) % (span + 1) } else { random.below(span + 1) })
        // The resulting address is aligned, not the register value.
        .map(|at| at / step * step + (step - inst_offset % step) % step)
        .collect();
    let offset = if inst.encoding == Encoding::Ds { 0 } else { i64::from(inst.offset0) as u64 };
    let base = match (space, flat) {
        (0, _) => state.global_base,
        (1, true) => SHARED_APERTURE,
        (_, true) => PRIVATE_APERTURE,
        _ => 0,
    };
    let address = match agpr_as_vgpr(inst.src[0]) {
        Operand::Vgpr(n) => Some(n),
        _ => None,
    };
    if inst.encoding == Encoding::Mubuf {
        let Operand::Scalar(resource) = inst.src[2] else { return None };
        // Set ADD_TID_ENABLE, which marks a scratch buffer.
        state.set_scalar(resource + 3, state.scalar(resource + 3) | 1 << 23);
    }
    let scalar = match inst.src[if inst.encoding == Encoding::Mubuf { 3 } else { 2 }] {
        Operand::Scalar(n) if n < sreg::NULL => Some(n),
        Operand::Scalar(_) => return None,
        _ => None,
    };
    let wide = matches!(inst.encoding, Encoding::Global | Encoding::Flat);
    // The vector register's offset to the scalar one is unsigned.
    let lane_offset = random.choose(&[0, 1000, 0x8000_0000, 0xffff_0000]);
    match (address, scalar) {
        (Some(v), None) if wide => {
            for lane in state.active() {
                let address = base.wrapping_add(lanes[lane]).wrapping_sub(offset);
                state.vgpr[usize::from(v)][lane] = address as u32;
                state.vgpr[usize::from(v) + 1][lane] = (address >> 32) as u32;
            }
        }
        (Some(v), Some(s)) if wide => {
            state.set_pair(s, base.wrapping_sub(offset).wrapping_sub(lane_offset));
            for lane in state.active() {
                state.set_vector(v, lane, (lanes[lane] + lane_offset) as u32);
            }
        }
        (None, Some(s)) if wide => state.set_pair(s, base.wrapping_add(lanes[0]).wrapping_sub(offset)),
        // The scalar offset of a buffer stays zero.
        (v, Some(s)) if inst.encoding == Encoding::Mubuf => {
            state.set_scalar(s, 0);
            for lane in state.active() {
                if let Some(v) = v {
                    state.set_vector(v, lane, (lanes[lane] as u32).wrapping_sub(offset as u32));
                }
            }
            (v.is_some() || offset <= size - bytes).then_some(())?;
        }
        (Some(v), s) => {
            let lane_offset = if let Some(s) = s {
                state.set_scalar(s, lane_offset as u32);
                lane_offset as u32
            } else {
                0
            };
            for lane in state.active() {
                let at = (lanes[lane] as u32).wrapping_sub(lane_offset).wrapping_sub(offset as u32);
                state.set_vector(v, lane, at);
            }
        }
        (None, Some(s)) => state.set_scalar(s, (lanes[0] as u32).wrapping_sub(offset as u32)),
        // The address consists of the offset only.
        (None, None) if wide => return None,
        (None, None) => {
            let at = offset.wrapping_add(farthest);
            (at <= size - bytes && at.is_multiple_of(if is_atomic { bytes } else { 1 })).then_some(())?;
        }
    }
    Some(())
}

fn set_scalar_address(state: &mut State, inst: &Inst, bytes: u64, random: &mut Random) -> Option<()> {
    let Operand::Scalar(base) = inst.src[0] else { return None };
    if base >= sreg::NULL - 1 {
        return None;
    }
    let register = match inst.src[1] {
        Operand::Scalar(n) if n == base || n == base + 1 || n >= sreg::M0 => return None,
        Operand::Scalar(n) => Some(n).filter(|n| *n != sreg::NULL),
        _ => None,
    };
    let more = random.choose(&[0, 4, 64, 0x8000_0000u64]);
    let more = match register {
        Some(n) => {
            state.set_scalar(n, more as u32);
            more
        }
        None => 0,
    };
    let at = random.below(GLOBAL_BYTES as u64 - bytes);
    let at = at / bytes.min(4) * bytes.min(4);
    let offset = i64::from(inst.offset0) as u64;
    state.set_pair(base, state.global_base.wrapping_add(at).wrapping_sub(more).wrapping_sub(offset));
    Some(())
}
