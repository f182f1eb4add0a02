//! Matrix products of a whole wave.
mod mfma;

use super::wave::Wave;
use crate::isa::{Family, Inst};

/// A prepared matrix product.
#[derive(Clone, Debug)]
pub(super) enum MatrixStep {
    Mfma(mfma::Product),
}

impl MatrixStep {
    /// Executes the product.
    pub(super) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        match self {
            Self::Mfma(product) => product.run(wave),
        }
    }
}

/// Whether the mnemonic is that of a matrix product.
pub(super) fn is_product(name: &str) -> bool {
    const PREFIXES: [&str; 2] = ["v_mfma_", "v_smfmac_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `None` if the instruction is unknown here.
pub(super) fn prepare<const W: usize>(inst: &Inst, family: Family) -> Option<MatrixStep> {
    mfma::prepare::<W>(inst, family).map(MatrixStep::Mfma)
}
