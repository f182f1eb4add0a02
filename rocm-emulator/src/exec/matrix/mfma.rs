//! gfx9's matrix multiply-add (v_mfma, v_smfmac): D = A * B + C on blocks of matrices that are distributed
//! over the registers and lanes of a wave of 64, independently of EXEC and MODE. Layouts follow AMD's matrix
//! instruction calculator; [`arithmetic`] describes how floating-point products are added.
mod arithmetic;
mod element;
mod shape;
#[cfg(test)]
mod tests;

use crate::exec::wave::{FIRST_AGPR, Lanes, Wave};
use crate::isa::{Family, Inst, Operand};
use arithmetic::Arithmetic;
use element::Element;
use shape::{LANES, Shape};

/// Maximum number of result registers.
const MAX_RESULT_REGISTERS: usize = 32;
/// Maximum number of elements in a block of A or B.
const MAX_BLOCK_ELEMENTS: usize = 1024;
/// Maximum number of products per sum.
const MAX_PRODUCTS: usize = 64;

/// A prepared matrix product.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct Product {
    shape: Shape,
    arithmetic: Arithmetic,
    dst: u16,
    a: u16,
    b: u16,
    addend: Addend,
    /// Register with the column indices of a sparse A; `None` if A is dense.
    indices: Option<u16>,
    /// Broadcast of A: each group of 2^cbsz blocks uses block `abid` of the group.
    cbsz: u8,
    abid: u8,
    /// Permutation of B's lanes; for gfx942's and gfx950's f64 the signs of A, B and C.
    blgp: u8,
}

#[derive(Clone, Copy, Debug)]
enum Addend {
    Registers(u16),
    /// Bits of one value for all elements.
    Constant(u64),
}

/// Prepares a product. Returns `None` if it is unsupported here or the waves don't have 64 lanes.
pub(super) fn prepare<const W: usize>(inst: &Inst, family: Family) -> Option<Product> {
    if W != LANES {
        return None;
    }
    let shape = Shape::of(inst.name, family)?;
    let mods = &inst.mods;
    if !shape.sparse && (1 << mods.cbsz > shape.blocks() || 1 << mods.cbsz <= mods.abid) {
        return None;
    }
    // gfx90a supports neither signs nor permutations for f64.
    if shape.a == Element::F64 && !family.is_gfx94() && mods.blgp != 0 {
        return None;
    }
    let [a, b, last] = [inst.src[0], inst.src[1], inst.src[2]];
    let results = shape.result_registers();
    let dst = registers(inst.dst, results)?;
    let (addend, indices) = match (last, shape.a) {
        _ if shape.sparse => (Addend::Registers(dst), Some(registers(last, 1)?)),
        (Operand::Int(value), Element::F64) => (Addend::Constant(i64::from(value) as u64), None),
        (Operand::Int(value), _) => (Addend::Constant(u64::from(value as u32)), None),
        (Operand::Float(value), Element::F64) => (Addend::Constant(value.bits_64()), None),
        (Operand::Float(value), _) => (Addend::Constant(value.bits_32().into()), None),
        (register, _) => (Addend::Registers(registers(register, results)?), None),
    };
    Some(Product {
        shape,
        arithmetic: Arithmetic::of(family, &shape),
        dst,
        a: registers(a, shape.a_registers())?,
        b: registers(b, shape.b_registers())?,
        addend,
        indices,
        cbsz: mods.cbsz,
        abid: mods.abid,
        blgp: mods.blgp,
    })
}

/// Returns the first of `count` registers if the operand is a vector register and all of them exist.
fn registers(operand: Operand, count: usize) -> Option<u16> {
    let Operand::Vgpr(first) = operand else { return None };
    let last = usize::from(first % FIRST_AGPR) + count - 1;
    (last < 256).then_some(first)
}

impl Product {
    #[inline(never)]
    pub(super) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        let mut out = [Lanes::splat(0); MAX_RESULT_REGISTERS];
        match self.shape.a {
            Element::I8 => {
                let value = |bits: u64| i32::from(bits as i8);
                self.multiply(wave, &mut out, value, value, |addend, a, b| {
                    let products = a.iter().zip(b).map(|(a, b)| a * b);
                    u64::from(products.fold(addend as u32, |sum, product| sum.wrapping_add(product as u32)))
                });
            }
            Element::F64 => {
                let sign = |bit: u8| if self.blgp >> bit & 1 != 0 { 1u64 << 63 } else { 0 };
                let [a_sign, b_sign, c_sign] = [0, 1, 2].map(sign);
                let signed = |sign: u64| move |bits: u64| f64::from_bits(bits ^ sign);
                let (a, b) = (signed(a_sign), signed(b_sign));
                self.multiply(wave, &mut out, a, b, |addend, a, b| {
                    let addend = f64::from_bits(addend ^ c_sign);
                    a.iter().zip(b).fold(addend, |sum, (a, b)| a.mul_add(*b, sum)).to_bits()
                });
            }
            _ => {
                let value = |element: Element| move |bits: u64| element.value(bits as u32);
                let (a, b) = (value(self.shape.a), value(self.shape.b));
                self.multiply(wave, &mut out, a, b, |addend, a, b| {
                    let sum = self.arithmetic.add_products(f32::from_bits(addend as u32), a, b);
                    u64::from(sum.to_bits())
                });
            }
        }
        let first = usize::from(self.dst);
        let results = first..first + self.shape.result_registers();
        if let Some(registers) = wave.vgpr.get_mut(results) {
            registers.iter_mut().zip(&out).for_each(|(register, lanes)| *register = *lanes);
        }
    }

    /// Computes all elements of the result. `dot` receives an addend's bits, a row of A and a column of B.
    fn multiply<const W: usize, T: Copy + Default>(
        &self,
        wave: &Wave<W>,
        out: &mut [Lanes<W>; MAX_RESULT_REGISTERS],
        a_value: impl Fn(u64) -> T,
        b_value: impl Fn(u64) -> T,
        dot: impl Fn(u64, &[T], &[T]) -> u64,
    ) {
        let shape = &self.shape;
        let (a_k, b_k) = (shape.a_k(), shape.k);
        let (mut a, mut b) = ([T::default(); MAX_BLOCK_ELEMENTS], [T::default(); MAX_BLOCK_ELEMENTS]);
        let mut indices = [0u8; MAX_BLOCK_ELEMENTS];
        for block in 0..shape.blocks() {
            for row in 0..shape.side {
                for k in 0..a_k {
                    let (item, lane) = shape.input_place(self.a_block(block), row, k, shape.a_per_lane());
                    a[row * a_k + k] = a_value(shape.a.bits(wave, self.a, item, lane));
                    indices[row * a_k + k] = self.b_row(wave, k, item, lane);
                }
                for k in 0..b_k {
                    let (item, lane) = shape.input_place(block, row, k, shape.per_lane);
                    b[row * b_k + k] = b_value(shape.b.bits(wave, self.b, item, self.b_lane(lane)));
                }
            }
            for i in 0..shape.side {
                let (row, indices) = (&a[i * a_k..][..a_k], &indices[i * a_k..][..a_k]);
                for j in 0..shape.side {
                    let column = &b[j * b_k..][..b_k];
                    let mut selected = [T::default(); MAX_PRODUCTS];
                    let column = match self.indices {
                        None => column,
                        Some(_) => {
                            let values = indices.iter().map(|b_row| column[usize::from(*b_row)]);
                            selected.iter_mut().zip(values).for_each(|(selected, value)| *selected = value);
                            &selected[..a_k]
                        }
                    };
                    let (item, lane) = shape.result_place(block, i, j);
                    let addend = match self.addend {
                        Addend::Constant(bits) => bits,
                        Addend::Registers(n) => shape.a.result_bits(wave, n, item, lane),
                    };
                    let bits = dot(addend, row, column);
                    if shape.a == Element::F64 {
                        out[2 * item].0[lane] = bits as u32;
                        out[2 * item + 1].0[lane] = (bits >> 32) as u32;
                    } else {
                        out[item].0[lane] = bits as u32;
                    }
                }
            }
        }
    }

    /// Returns the block of A that a block's product uses.
    fn a_block(&self, block: usize) -> usize {
        match self.cbsz {
            0 => block,
            _ if self.shape.sparse => block,
            cbsz => (block >> cbsz << cbsz) + usize::from(self.abid),
        }
    }

    /// Returns the row of B that is multiplied by A's `k`th stored element of a row.
    fn b_row<const W: usize>(&self, wave: &Wave<W>, k: usize, item: usize, lane: usize) -> u8 {
        let Some(register) = self.indices else { return k as u8 };
        // Each of a lane's elements has two bits. The register holds several such sets: abid selects one, or
        // the first is used if cbsz is set.
        let set_bits = 2 * self.shape.a_per_lane();
        let set = if self.cbsz & 3 == 0 { usize::from(self.abid) % (32 / set_bits) } else { 0 };
        let bits = Element::F32.bits(wave, register, 0, lane) >> (set * set_bits + 2 * item);
        // Two of four elements are stored.
        (k / 2 * 4) as u8 + (bits & 3) as u8
    }

    /// Returns the lane whose value of B is used in place of `lane`'s.
    fn b_lane(&self, lane: usize) -> usize {
        match self.blgp {
            _ if self.shape.a == Element::F64 => lane,
            0 => lane,
            // Broadcast the lower or upper half; rotate by 16 lanes; broadcast one of four quarters.
            1 => lane % 32,
            2 => lane % 32 + 32,
            3 => (lane + 16) % LANES,
            quarter => lane % 16 + 16 * usize::from(quarter - 4),
        }
    }
}
