//! Scalar unit: SOP1, SOP2, SOPC, SOPK and the arithmetic part of SOPP.
//!
//! [`prepare`] resolves mnemonic and operands once. [`ScalarStep::run`] reads two sources, calls the
//! operation and writes the destination.
mod float;
mod hardware_registers;
mod operations;

use super::wave::Wave;
use super::{PRIVATE_APERTURE, SHARED_APERTURE};
use crate::isa::{Encoding, Inst, Operand, sreg};
pub(super) use float::{FloatStep, prepare as prepare_float};
pub(super) use hardware_registers::HardwareRegister;
use operations::Operation;

/// Source operand of a scalar instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    Register(u8),
    Constant(u64),
    Scc,
    VccZ,
    ExecZ,
}

impl Source {
    /// Resolves an operand. `wide` operations have 64-bit values; `signed` ones sign-extend literals.
    pub(super) fn new(operand: Operand, wide: bool, signed: bool) -> Option<Self> {
        Some(match operand {
            // NULL reads as zero. As a pair it would include M0, the next register.
            Operand::Scalar(sreg::NULL) => Self::Constant(0),
            Operand::Scalar(n) => Self::Register(n),
            Operand::Int(value) => Self::Constant(i64::from(value) as u64),
            Operand::Literal(value) if wide && signed => Self::Constant(i64::from(value as i32) as u64),
            Operand::Literal(value) => Self::Constant(u64::from(value)),
            Operand::Float(value) if wide => Self::Constant(value.bits_64()),
            Operand::Float(value) => Self::Constant(value.bits_32().into()),
            Operand::Scc => Self::Scc,
            Operand::VccZ => Self::VccZ,
            Operand::ExecZ => Self::ExecZ,
            Operand::SharedBase => Self::Constant(SHARED_APERTURE),
            Operand::SharedLimit => Self::Constant(SHARED_APERTURE + u64::from(u32::MAX)),
            Operand::PrivateBase => Self::Constant(PRIVATE_APERTURE),
            Operand::PrivateLimit => Self::Constant(PRIVATE_APERTURE + u64::from(u32::MAX)),
            Operand::None | Operand::Vgpr(_) | Operand::Agpr(_) | Operand::HwReg { .. } => return None,
        })
    }

    #[inline(always)]
    pub(super) fn read32<const W: usize>(self, wave: &Wave<W>) -> u32 {
        match self {
            Self::Register(n) => wave.sgpr[usize::from(n & 127)],
            Self::Constant(value) => value as u32,
            status => status.read_status(wave) as u32,
        }
    }

    #[inline(always)]
    pub(super) fn read64<const W: usize>(self, wave: &Wave<W>) -> u64 {
        match self {
            Self::Register(n) => wave.sgpr64(n),
            Self::Constant(value) => value,
            status => status.read_status(wave),
        }
    }

    #[cold]
    fn read_status<const W: usize>(self, wave: &Wave<W>) -> u64 {
        match self {
            Self::Register(_) | Self::Constant(_) => 0,
            Self::Scc => u64::from(wave.scc),
            Self::VccZ => u64::from(wave.mask(sreg::VCC_LO) == 0),
            Self::ExecZ => u64::from(wave.exec() == 0),
        }
    }
}

/// A prepared scalar instruction.
#[derive(Clone, Copy)]
pub(super) struct ScalarStep {
    operation: Operation,
    dst: u8,
    sources: [Source; 2],
}

/// Prepares a scalar ALU instruction. Returns `None` if it is unsupported.
/// `next_address` is the absolute address of the instruction after it (s_getpc).
pub(super) fn prepare(inst: &Inst, next_address: u64) -> Option<ScalarStep> {
    let dst = match inst.dst {
        Operand::Scalar(n) => n,
        _ => sreg::NULL,
    };
    let constant = Source::Constant(i64::from(inst.imm) as u64);
    let step = |operation, sources| Some(ScalarStep { operation, dst, sources });
    let none = Source::Constant(0);
    match inst.name {
        "s_getpc_b64" => return step(Operation::Plain64(|a, _| a), [Source::Constant(next_address), none]),
        "s_round_mode" => return step(Operation::RoundMode, [constant, none]),
        "s_denorm_mode" => return step(Operation::DenormMode, [constant, none]),
        // Messages that request a value return 0, because no host state is visible to a kernel.
        "s_sendmsg_rtn_b32" => return step(Operation::Plain32(|a, _| a), [none, none]),
        "s_sendmsg_rtn_b64" => return step(Operation::Plain64(|a, _| a), [none, none]),
        "s_set_gpr_idx_on" => {
            return step(
                Operation::SetIndex { mode: true },
                [Source::new(inst.src[0], false, false)?, constant],
            );
        }
        "s_set_gpr_idx_idx" => {
            return step(
                Operation::SetIndex { mode: false },
                [Source::new(inst.src[0], false, false)?, none],
            );
        }
        "s_getreg_b32" => {
            let register = HardwareRegister::new(inst.src[0])?;
            return step(Operation::GetRegister(register), [none, none]);
        }
        "s_setreg_b32" | "s_setreg_imm32_b32" => {
            let register = HardwareRegister::new(inst.dst)?;
            return step(Operation::SetRegister(register), [Source::new(inst.src[0], false, false)?, none]);
        }
        _ => {}
    }
    let operation = operations::find(inst.name)?;
    let (wide, signed) = (operation.is_wide(), inst.name.ends_with("_i64"));
    let source = |operand| Source::new(operand, wide, signed);
    let old = Source::Register(dst);
    let sources = match inst.encoding {
        // Compares read the register that is encoded as destination.
        Encoding::Sopk if inst.name.starts_with("s_cmpk") => [source(inst.src[0])?, constant],
        Encoding::Sopk => [constant, old],
        Encoding::Sop1 => [source(inst.src[0])?, old],
        _ if has_count(inst.name) => [source(inst.src[0])?, Source::new(inst.src[1], false, false)?],
        _ => [source(inst.src[0])?, source(inst.src[1])?],
    };
    step(operation, sources)
}

/// Returns true for 64-bit operations with a 32-bit second source, which affects float constants.
fn has_count(name: &str) -> bool {
    ["s_lshl_", "s_lshr_", "s_ashr_", "s_bfe_", "s_bitcmp"].iter().any(|stem| name.starts_with(stem))
}

impl ScalarStep {
    #[inline]
    pub(super) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        let [first, second] = self.sources;
        let dst = self.dst;
        match self.operation {
            Operation::Plain32(op) => {
                let value = op(first.read32(wave), second.read32(wave));
                wave.set_sgpr(dst, value);
            }
            Operation::NonZero32(op) => {
                let value = op(first.read32(wave), second.read32(wave));
                wave.scc = value != 0;
                wave.set_sgpr(dst, value);
            }
            Operation::Carry32(op) => {
                let (value, scc) = op(first.read32(wave), second.read32(wave), wave.scc);
                wave.scc = scc;
                wave.set_sgpr(dst, value);
            }
            Operation::Select32(op) => {
                let value = op(first.read32(wave), second.read32(wave), wave.scc);
                wave.set_sgpr(dst, value);
            }
            Operation::Plain64(op) => {
                let value = op(first.read64(wave), second.read64(wave));
                wave.set_sgpr64(dst, value);
            }
            Operation::NonZero64(op) => {
                let value = op(first.read64(wave), second.read64(wave));
                wave.scc = value != 0;
                wave.set_sgpr64(dst, value);
            }
            Operation::Select64(op) => {
                let value = op(first.read64(wave), second.read64(wave), wave.scc);
                wave.set_sgpr64(dst, value);
            }
            Operation::Count64(op) => {
                let value = op(first.read64(wave));
                wave.set_sgpr(dst, value);
            }
            Operation::CountNonZero64(op) => {
                let value = op(first.read64(wave));
                wave.scc = value != 0;
                wave.set_sgpr(dst, value);
            }
            Operation::Compare32(op) => wave.scc = op(first.read32(wave), second.read32(wave)),
            Operation::Compare64(op) => wave.scc = op(first.read64(wave), second.read64(wave)),
            Operation::SaveExec32(op) => {
                let exec = wave.sgpr[usize::from(sreg::EXEC_LO)];
                let value = op(u64::from(first.read32(wave)), u64::from(exec)) as u32;
                wave.set_sgpr(dst, exec);
                wave.set_sgpr(sreg::EXEC_LO, value);
                wave.scc = value != 0;
            }
            Operation::SaveExec64(op) => {
                let exec = wave.sgpr64(sreg::EXEC_LO);
                let value = op(first.read64(wave), exec);
                wave.set_sgpr64(dst, exec);
                wave.set_sgpr64(sreg::EXEC_LO, value);
                wave.scc = value != 0;
            }
            Operation::WriteExec32(op) => {
                let exec = wave.sgpr[usize::from(sreg::EXEC_LO)];
                let value = op(u64::from(first.read32(wave)), u64::from(exec)) as u32;
                wave.set_sgpr(dst, value);
                wave.set_sgpr(sreg::EXEC_LO, value);
                wave.scc = value != 0;
            }
            Operation::WriteExec64(op) => {
                let value = op(first.read64(wave), wave.sgpr64(sreg::EXEC_LO));
                wave.set_sgpr64(dst, value);
                wave.set_sgpr64(sreg::EXEC_LO, value);
                wave.scc = value != 0;
            }
            Operation::RoundMode => {
                let bits = first.read32(wave) as u8;
                wave.mode.round_32 = bits & 3;
                wave.mode.round_16_64 = (bits >> 2) & 3;
            }
            Operation::DenormMode => {
                let bits = first.read32(wave) as u8;
                wave.mode.denorm_32 = bits & 3;
                wave.mode.denorm_16_64 = (bits >> 2) & 3;
            }
            Operation::SetIndex { mode } => {
                let fields = first.read32(wave) & 0xff | (second.read32(wave) & 15) << 12;
                let kept = if mode { !0xf0ff } else { !0xff };
                let m0 = &mut wave.sgpr[usize::from(sreg::M0)];
                *m0 = *m0 & kept | fields;
            }
            Operation::GetRegister(register) => {
                let value = register.read(wave);
                wave.set_sgpr(dst, value);
            }
            Operation::SetRegister(register) => {
                let value = first.read32(wave);
                register.write(wave, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
