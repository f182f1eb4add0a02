//! Tests of which mnemonics are supported.
use super::super::prepare;
use super::inst;
use crate::isa::Operand;

/// All vector ALU mnemonics in the project's code objects for gfx1100.
const SHIPPED: &str = include_str!("gfx1100.txt");

#[test]
fn every_shipped_mnemonic_is_known() {
    let mut unknown = Vec::new();
    for name in SHIPPED.lines() {
        let mut inst = inst(name);
        if name.contains("readfirstlane") || name.contains("readlane") {
            inst.dst = Operand::Scalar(4);
        }
        if prepare::<32>(&inst).is_none() {
            unknown.push(name);
        }
    }
    assert_eq!(SHIPPED.lines().count(), 229);
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn unknown_instructions_and_operands_are_rejected() {
    assert!(prepare::<32>(&inst("v_no_such_thing")).is_none());
    let mut odd = inst("v_add_f32");
    odd.src[1] = Operand::HwReg { id: 1, offset: 0, size: 32 };
    assert!(prepare::<32>(&odd).is_none());
    let mut scalar_result = inst("v_add_f32");
    scalar_result.dst = Operand::Scalar(3);
    assert!(prepare::<32>(&scalar_result).is_none());
    // clamp is rejected for integer operations without a saturating form.
    let mut clamped = inst("v_mul_lo_u32");
    clamped.mods.clamp = true;
    assert!(prepare::<32>(&clamped).is_none());
}
