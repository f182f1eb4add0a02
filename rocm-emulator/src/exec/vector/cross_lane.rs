//! Instructions that move values between lanes or register files, or whose operand widths the operation
//! tables do not support.
use std::mem::MaybeUninit;

use super::kind::Format;
use super::operand::{Operands, Source, Target};
use super::operation::Action;
use super::{integer, register};
use crate::exec::wave::Wave;
use crate::isa::{Inst, sreg};

/// Returns the instruction's function and the formats of its sources.
pub fn select<const W: usize>(mnemonic: &str) -> Option<(Action<W>, &'static [Format])> {
    const ONE: &[Format] = &[Format::Bits32];
    const TWO: &[Format] = &[Format::Bits32; 2];
    const THREE: &[Format] = &[Format::Bits32; 3];
    Some(match mnemonic {
        "v_nop" | "v_pipeflush" => (nothing, &[]),
        "v_readfirstlane_b32" => (read_first_lane, ONE),
        "v_readlane_b32" => (read_lane, TWO),
        "v_writelane_b32" => (write_lane, TWO),
        "v_permlane16_b32" => (permute_row::<W, 0>, THREE),
        "v_permlanex16_b32" => (permute_row::<W, 16>, THREE),
        "v_permlane16_var_b32" => (permute_row_by_lane::<W, 0>, TWO),
        "v_permlanex16_var_b32" => (permute_row_by_lane::<W, 16>, TWO),
        "v_permlane64_b32" => (swap_halves, ONE),
        "v_mbcnt_lo_u32_b32" => (count_below::<W, 0>, TWO),
        "v_mbcnt_hi_u32_b32" => (count_below::<W, 32>, TWO),
        "v_mqsad_u32_u8" => (sad_into_four_registers, &[Format::Bits64, Format::Bits32, Format::Bits32]),
        "v_swap_b32" => (swap_registers, ONE),
        "v_swap_b16" => (swap_register_halves, ONE),
        "v_movreld_b32" => (move_to_relative, ONE),
        "v_movrels_b32" => (move_from_relative, ONE),
        "v_movrelsd_b32" => (move_relative, ONE),
        "v_mov_b32 gpr_idx:src" => (move_indexed::<W, true, false>, ONE),
        "v_mov_b32 gpr_idx:dst" => (move_indexed::<W, false, true>, ONE),
        "v_mov_b32 gpr_idx:both" => (move_indexed::<W, true, true>, ONE),
        _ => return None,
    })
}

/// Returns the value of [`Operands::flags`] for these instructions: the op_sel bits.
pub fn flags(inst: &Inst) -> u8 {
    inst.mods.op_sel
}

fn lanes<const W: usize>(wave: &Wave<W>, source: &Source) -> [u32; W] {
    *register::fetch32(wave, source, &mut MaybeUninit::uninit())
}

fn scalar<const W: usize>(wave: &Wave<W>, source: &Source) -> u32 {
    lanes(wave, source)[0]
}

fn set_scalar<const W: usize>(operands: &Operands, wave: &mut Wave<W>, value: u32) {
    if let Target::Scalar(n) = operands.dst {
        wave.set_sgpr(n, value);
    }
}

fn nothing<const W: usize>(_operands: &Operands, _wave: &mut Wave<W>) {}

/// Reads the lowest active lane, or lane 0 if none is active.
fn read_first_lane<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let lane = match wave.exec() {
        0 => 0,
        exec => exec.trailing_zeros() as usize,
    };
    let value = lanes(wave, &operands.src[0])[lane];
    set_scalar(operands, wave, value);
}

fn read_lane<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let lane = scalar(wave, &operands.src[1]) as usize % W;
    let value = lanes(wave, &operands.src[0])[lane];
    set_scalar(operands, wave, value);
}

/// Writes one lane whether it is active or not.
fn write_lane<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let Target::Vgpr(n) = operands.dst else { return };
    let value = scalar(wave, &operands.src[0]);
    let lane = scalar(wave, &operands.src[1]) as usize % W;
    if let Some(register) = wave.vgpr.get_mut(n as usize) {
        register.0[lane] = value;
    }
}

/// Permutes within each row of 16 lanes, or reads the neighbouring row if `OTHER` is 16. op_sel bit 0 fetches
/// from inactive lanes; otherwise such a source gives 0 if bit 1 is set, or leaves the destination unwritten.
fn permute_row<const W: usize, const OTHER: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let low = u64::from(scalar(wave, &operands.src[1]));
    let select = low | u64::from(scalar(wave, &operands.src[2])) << 32;
    fetch_in_row::<W, OTHER>(operands, wave, |lane| (select >> (4 * (lane & 15)) & 15) as usize);
}

/// Like [`permute_row`], with each lane's source in a vector register.
fn permute_row_by_lane<const W: usize, const OTHER: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let select = lanes(wave, &operands.src[1]);
    fetch_in_row::<W, OTHER>(operands, wave, |lane| (select[lane] & 15) as usize);
}

/// Reads source 0 of each lane from the lane of the row that `lane_in_row` returns.
fn fetch_in_row<const W: usize, const OTHER: usize>(
    operands: &Operands,
    wave: &mut Wave<W>,
    lane_in_row: impl Fn(usize) -> usize,
) {
    let Target::Vgpr(n) = operands.dst else { return };
    let values = lanes(wave, &operands.src[0]);
    let exec = wave.exec();
    let (mut out, mut mask) = ([0; W], exec);
    for (lane, value) in out.iter_mut().enumerate() {
        let source = ((lane & !15) ^ OTHER) + lane_in_row(lane);
        if operands.flags & 1 != 0 || exec >> source & 1 != 0 {
            *value = values[source];
        } else if operands.flags & 2 == 0 {
            mask &= !(1 << lane);
        }
    }
    register::write_register(wave, n, mask, &out);
}

/// Swaps lanes 0..32 and 32..64. Waves of 32 lanes keep their register.
fn swap_halves<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    if W != 64 {
        return;
    }
    let mut values = lanes(wave, &operands.src[0]);
    values.rotate_left(W / 2);
    register::store32(operands, wave, &values);
}

/// Counts the mask bits of lanes below each lane, in the low or high word.
fn count_below<const W: usize, const FIRST: u32>(operands: &Operands, wave: &mut Wave<W>) {
    let mut out = lanes(wave, &operands.src[1]);
    let masks = lanes(wave, &operands.src[0]);
    for (lane, value) in out.iter_mut().enumerate() {
        let below = ((1u64 << lane) - 1) >> FIRST;
        *value = value.wrapping_add((masks[lane] & below as u32).count_ones());
    }
    register::store32(operands, wave, &out);
}

fn swap_registers<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let (Target::Vgpr(a), Source::Vgpr(b)) = (operands.dst, &operands.src[0]) else { return };
    let (first, second, exec) = (*register::vgpr(wave, a), *register::vgpr(wave, *b), wave.exec());
    register::write_register(wave, a, exec, &second);
    register::write_register(wave, *b, exec, &first);
}

/// Swaps 16-bit halves. op_sel selects them: bit 0 of the source, bit 3 of the destination.
fn swap_register_halves<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let (Target::Vgpr(a), Source::Vgpr(b)) = (operands.dst, &operands.src[0]) else { return };
    let (a, b) = (a as usize, *b as usize);
    let shift = |high: bool| if high { 16 } else { 0 };
    let (to, from) = (shift(operands.flags & 8 != 0), shift(operands.flags & 1 != 0));
    if a.max(b) >= wave.vgpr.len() {
        return;
    }
    let exec = wave.exec();
    for lane in (0..W).filter(|lane| exec >> lane & 1 != 0) {
        let first = wave.vgpr[a].0[lane] >> to & 0xffff;
        let second = wave.vgpr[b].0[lane] >> from & 0xffff;
        let first_register = &mut wave.vgpr[a].0[lane];
        *first_register = *first_register & !(0xffff << to) | second << to;
        let second_register = &mut wave.vgpr[b].0[lane];
        *second_register = *second_register & !(0xffff << from) | first << from;
    }
}

/// Returns a register's number plus M0. Registers out of range read as 0 and discard writes.
fn relative<const W: usize>(wave: &Wave<W>, n: u16) -> u16 {
    let n = u32::from(n).saturating_add(wave.sgpr[sreg::M0 as usize]);
    u16::try_from(n).unwrap_or(u16::MAX)
}

fn move_to_relative<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let Target::Vgpr(n) = operands.dst else { return };
    let (values, mask) = (lanes(wave, &operands.src[0]), operands.write_mask(wave));
    register::write_register(wave, relative(wave, n), mask, &values);
}

fn move_from_relative<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let Source::Vgpr(n) = &operands.src[0] else { return };
    let values = *register::vgpr(wave, relative(wave, *n));
    register::store32(operands, wave, &values);
}

fn move_relative<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let (Target::Vgpr(to), Source::Vgpr(from)) = (operands.dst, &operands.src[0]) else { return };
    let (values, mask) = (*register::vgpr(wave, relative(wave, *from)), operands.write_mask(wave));
    register::write_register(wave, relative(wave, to), mask, &values);
}

/// Moves with gfx9's register indexing: the low 8 bits of M0 are added to vector register numbers.
fn move_indexed<const W: usize, const SRC: bool, const DST: bool>(operands: &Operands, wave: &mut Wave<W>) {
    let index = (wave.sgpr[sreg::M0 as usize] & 0xff) as u16;
    let (values, mask) = match &operands.src[0] {
        Source::Vgpr(n) if SRC => (*register::vgpr(wave, n + index), operands.write_mask(wave)),
        source => (lanes(wave, source), operands.write_mask(wave)),
    };
    let Target::Vgpr(n) = operands.dst else { return };
    register::write_register(wave, if DST { n + index } else { n }, mask, &values);
}

/// Adds sums of absolute byte differences to four registers. The sums use source 0 shifted by 0 to 3 bytes,
/// and skip zero bytes of source 1.
fn sad_into_four_registers<const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let (Target::Vgpr(to), Source::Vgpr(addends)) = (operands.dst, &operands.src[2]) else { return };
    let bytes = *register::fetch64(wave, &operands.src[0], &mut MaybeUninit::uninit());
    let (masks, exec) = (lanes(wave, &operands.src[1]), wave.exec());
    let sums: [[u32; W]; 4] = std::array::from_fn(|i| {
        let addend = register::vgpr(wave, addends + i as u16);
        std::array::from_fn(|lane| {
            let sum = integer::sad((bytes[lane] >> (8 * i)) as u32, masks[lane], 8, |byte| byte != 0);
            sum.wrapping_add(addend[lane])
        })
    });
    for (i, sums) in sums.iter().enumerate() {
        register::write_register(wave, to + i as u16, exec, sums);
    }
}
