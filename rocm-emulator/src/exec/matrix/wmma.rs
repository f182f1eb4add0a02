//! RDNA's matrix multiply-add (v_wmma): D = A * B + C on 16x16 matrices that are distributed over the
//! registers and lanes of a wave. Its sparse form (v_swmmac) computes D = A * B + D, with two of four columns
//! of A stored. EXEC has no effect. Layouts follow AMD's "RDNA3" and "RDNA4 Instruction Set Architecture".
//!
//! Sums are rounded to D's type, to nearest even, after every two products (gfx11) or four (gfx12), like the
//! hardware's. Its rounding within a group is unknown; groups are added in f64. Denormals are kept.
mod element;
mod shape;
#[cfg(test)]
mod tests;

use crate::exec::wave::{Lanes, Wave};
use crate::isa::{Family, Inst, Operand};
use element::{Element, Sum};
use shape::{Layout, SIDE, Shape};

/// Maximum number of result registers.
const MAX_RESULT_REGISTERS: usize = 8;
/// Maximum number of rows of B.
const MAX_B_ROWS: usize = 64;

/// A prepared matrix product.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct Product {
    shape: Shape,
    dst: u16,
    a: u16,
    b: u16,
    addend: Addend,
    /// Bits 0 and 1: A's and B's even columns and rows are negated, or their integers are signed.
    neg: u8,
    /// Bits 0 and 1: A's and B's odd columns and rows are negated.
    neg_hi: u8,
    clamp: bool,
    /// Set if a 16-bit result is in the high halves of gfx11's registers.
    high: bool,
}

#[derive(Clone, Copy, Debug)]
enum Addend {
    /// Registers from `first` on, with absolute value and negation modifiers.
    Registers { first: u16, abs: bool, neg: bool },
    /// Bits of one value for all elements.
    Constant(u32),
    /// The destination. Register `indices` holds two bits per column of A, from bit `shift` on.
    Sparse { indices: u16, shift: u8 },
}

/// Prepares a product. Returns `None` if the instruction or its modifiers are unsupported.
pub(super) fn prepare<const W: usize>(inst: &Inst, family: Family) -> Option<Product> {
    let shape = Shape::of(inst.name, family, W)?;
    let mods = &inst.mods;
    let register = |operand| match operand {
        Operand::Vgpr(n) => Some(n),
        _ => None,
    };
    let selects_half = shape.sum.is_packed() && shape.layout.is_copied();
    // Modifiers that have a meaning; the others must be off.
    let (neg, neg_hi) = match shape.a {
        Element::F16 | Element::Bf16 => (0b111, 0b111),
        Element::Fp8 | Element::Bf8 => (0b100, 0b100),
        Element::Int8 | Element::Int4 => (0b011, 0),
    };
    let signed = if shape.is_sparse { 0b011 } else { 0b111 };
    let op_sel = match shape.is_sparse {
        // The column indices fill the register, or half of it.
        true if shape.k == 2 * SIDE => 0,
        true => 0b001,
        false if selects_half => 0b100,
        false => 0,
    };
    let unknown = mods.neg & !(neg & signed) | mods.neg_hi & !(neg_hi & signed) | mods.op_sel & !op_sel;
    if unknown != 0 || mods.clamp && !shape.a.is_integer() {
        return None;
    }
    let addend = match (shape.is_sparse, inst.src[2]) {
        (true, Operand::Vgpr(indices)) => Addend::Sparse { indices, shift: 16 * mods.op_sel },
        (false, Operand::Vgpr(first)) => {
            Addend::Registers { first, abs: mods.neg_hi & 4 != 0, neg: mods.neg & 4 != 0 }
        }
        // Compilers fold the signs of constants.
        (false, _) if (mods.neg | mods.neg_hi) & 4 != 0 => return None,
        (false, Operand::Int(value)) if shape.sum.is_packed() => Addend::Constant(u32::from(value as u16)),
        (false, Operand::Int(value)) => Addend::Constant(value as u32),
        (false, Operand::Float(value)) if shape.sum == Sum::F16 => Addend::Constant(value.bits_16().into()),
        (false, Operand::Float(value)) if shape.sum == Sum::Bf16 => Addend::Constant(value.bits_32() >> 16),
        (false, Operand::Float(value)) => Addend::Constant(value.bits_32()),
        _ => return None,
    };
    Some(Product {
        shape,
        dst: register(inst.dst)?,
        a: register(inst.src[0])?,
        b: register(inst.src[1])?,
        addend,
        neg: mods.neg,
        neg_hi: mods.neg_hi,
        clamp: mods.clamp,
        high: selects_half && mods.op_sel & 4 != 0,
    })
}

/// A row of A: each element with the row of B that it is multiplied by.
type Left<T> = [(T, u8)];
/// The rows of B.
type Right<T> = [[T; SIDE]; MAX_B_ROWS];

impl Product {
    #[inline(never)]
    pub(super) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        let mut out = [Lanes::splat(0); MAX_RESULT_REGISTERS];
        if self.shape.a.is_integer() {
            self.integers(wave, &mut out);
        } else {
            self.floats(wave, &mut out);
        }
        let (mask, shift) = match (self.shape.sum.is_packed(), self.shape.layout.is_copied()) {
            (true, true) if self.high => (0xffff_0000, 16),
            (true, true) => (0xffff, 0),
            _ => (u32::MAX, 0),
        };
        for (n, lanes) in out.iter().enumerate().take(self.registers(W)) {
            if let Some(register) = wave.vgpr.get_mut(usize::from(self.dst) + n) {
                for (old, value) in register.0.iter_mut().zip(lanes.0) {
                    *old = *old & !mask | value << shift & mask;
                }
            }
        }
    }

    /// Returns the number of result registers.
    fn registers(&self, lanes: usize) -> usize {
        let elements = SIDE * SIDE / lanes;
        if self.shape.sum.is_packed() && !self.shape.layout.is_copied() { elements / 2 } else { elements }
    }

    fn floats<const W: usize>(&self, wave: &Wave<W>, out: &mut [Lanes<W>; MAX_RESULT_REGISTERS]) {
        let shape = &self.shape;
        // Negating B negates the product. A sparse A's columns are counted as stored.
        let negated = [self.neg, self.neg_hi].map(|bits| (bits & 3).count_ones() == 1);
        let a_value = |bits: u32, k: usize| {
            let value = shape.a.value(bits);
            if negated[k % 2] { -value } else { value }
        };
        self.for_each_row(
            wave,
            a_value,
            |bits| shape.b.value(bits),
            |i, row, right| {
                let mut sums: [f64; SIDE] =
                    std::array::from_fn(|j| shape.sum.value(self.addend_bits(wave, i, j)));
                for group in row.chunks(shape.step()) {
                    for &(a, k) in group {
                        for (sum, b) in sums.iter_mut().zip(right[usize::from(k)]) {
                            *sum += a * b;
                        }
                    }
                    sums.iter_mut().for_each(|sum| *sum = shape.sum.value(shape.sum.rounded(*sum)));
                }
                for (j, sum) in sums.into_iter().enumerate() {
                    self.put(out, i, j, shape.sum.rounded(sum));
                }
            },
        );
    }

    fn integers<const W: usize>(&self, wave: &Wave<W>, out: &mut [Lanes<W>; MAX_RESULT_REGISTERS]) {
        let shape = &self.shape;
        let a_value = |bits: u32, _| shape.a.integer(bits, self.neg & 1 != 0);
        let b_value = |bits: u32| shape.b.integer(bits, self.neg & 2 != 0);
        self.for_each_row(wave, a_value, b_value, |i, row, right| {
            let mut sums: [i64; SIDE] = std::array::from_fn(|j| (self.addend_bits(wave, i, j) as i32).into());
            for &(a, k) in row {
                for (sum, b) in sums.iter_mut().zip(right[usize::from(k)]) {
                    *sum += a * b;
                }
            }
            for (j, sum) in sums.into_iter().enumerate() {
                let clamped = sum.clamp(i32::MIN.into(), i32::MAX.into());
                self.put(out, i, j, if self.clamp { clamped } else { sum } as u32);
            }
        });
    }

    /// Calls `multiply` with the index of each row of the result, that row of A, and the copy of B that it uses.
    /// The other closures convert an element's bits; A's also receives its column.
    #[inline(always)]
    fn for_each_row<const W: usize, T: Copy + Default>(
        &self,
        wave: &Wave<W>,
        a_value: impl Fn(u32, usize) -> T,
        b_value: impl Fn(u32) -> T,
        mut multiply: impl FnMut(usize, &Left<T>, &Right<T>),
    ) {
        let shape = &self.shape;
        let mut left = [(T::default(), 0); MAX_B_ROWS / 2];
        let mut right = [[T::default(); SIDE]; MAX_B_ROWS];
        let b_rows = if shape.is_sparse { 2 * shape.k } else { shape.k };
        for copy in 0..shape.copies() {
            for (k, row) in right[..b_rows].iter_mut().enumerate() {
                for (j, value) in row.iter_mut().enumerate() {
                    let (lane, item) = shape.b_place(copy, j, k);
                    *value = b_value(element_bits(wave, self.b, shape.b, item, lane));
                }
            }
            for i in (copy..SIDE).step_by(shape.copies()) {
                for (k, (value, b_row)) in left[..shape.k].iter_mut().enumerate() {
                    let (lane, item) = shape.a_place(i, k);
                    *value = a_value(element_bits(wave, self.a, shape.a, item, lane), k);
                    *b_row = match self.addend {
                        Addend::Sparse { indices, shift } => {
                            let index = word(wave, indices, lane) >> shift >> (2 * item) & 3;
                            (4 * (k / 2)) as u8 + index as u8
                        }
                        _ => k as u8,
                    };
                }
                multiply(i, &left[..shape.k], &right);
            }
        }
    }

    /// Returns the bits of an element of C with its modifiers applied.
    #[inline(always)]
    fn addend_bits<const W: usize>(&self, wave: &Wave<W>, i: usize, j: usize) -> u32 {
        let (first, abs, neg) = match self.addend {
            Addend::Constant(bits) => return bits,
            Addend::Registers { first, abs, neg } => (first, abs, neg),
            Addend::Sparse { .. } => (self.dst, false, false),
        };
        let (lane, item) = self.shape.result_place(i, j);
        let (bits, sign) = match (self.shape.sum.is_packed(), self.shape.layout) {
            (false, _) => (word(wave, first + item as u16, lane), 1 << 31),
            (true, Layout::Copied { .. }) => {
                let both = word(wave, first + item as u16, lane);
                (if self.high { both >> 16 } else { both & 0xffff }, 1 << 15)
            }
            (true, Layout::Split { .. }) => {
                (word(wave, first + item as u16 / 2, lane) >> (16 * (item % 2)) & 0xffff, 1 << 15)
            }
        };
        (if abs { bits & !sign } else { bits }) ^ if neg { sign } else { 0 }
    }

    /// Stores an element of D.
    #[inline(always)]
    fn put<const W: usize>(&self, out: &mut [Lanes<W>; MAX_RESULT_REGISTERS], i: usize, j: usize, bits: u32) {
        let (lane, item) = self.shape.result_place(i, j);
        if self.shape.sum.is_packed() && !self.shape.layout.is_copied() {
            out[item / 2].0[lane] |= bits << (16 * (item % 2));
        } else {
            out[item].0[lane] = bits;
        }
    }
}

#[inline(always)]
fn word<const W: usize>(wave: &Wave<W>, register: u16, lane: usize) -> u32 {
    wave.vgpr.get(usize::from(register)).map_or(0, |register| register.0[lane])
}

/// Returns the bits of a lane's element `item` in the registers from `first` on.
#[inline(always)]
fn element_bits<const W: usize>(
    wave: &Wave<W>,
    first: u16,
    element: Element,
    item: usize,
    lane: usize,
) -> u32 {
    let at = item * element.bits();
    word(wave, first + (at / 32) as u16, lane) >> (at % 32) & ((1 << element.bits()) - 1)
}
