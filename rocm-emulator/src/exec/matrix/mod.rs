//! Matrix instructions, which a whole wave executes together.
mod mfma;
mod wmma;

use super::wave::Wave;
use crate::isa::{Family, Inst};

/// A prepared matrix product.
#[derive(Clone, Debug)]
pub(super) enum MatrixStep {
    Mfma(mfma::Product),
    Wmma(wmma::Product),
}

impl MatrixStep {
    pub(super) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        match self {
            Self::Mfma(product) => product.run(wave),
            Self::Wmma(product) => product.run(wave),
        }
    }
}

/// Returns true if the mnemonic is a matrix product.
pub(super) fn is_product(name: &str) -> bool {
    const PREFIXES: [&str; 4] = ["v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Prepares a matrix product. Returns `None` if the instruction is unsupported.
pub(super) fn prepare<const W: usize>(inst: &Inst, family: Family) -> Option<MatrixStep> {
    let wmma = || wmma::prepare::<W>(inst, family).map(MatrixStep::Wmma);
    mfma::prepare::<W>(inst, family).map(MatrixStep::Mfma).or_else(wmma)
}
