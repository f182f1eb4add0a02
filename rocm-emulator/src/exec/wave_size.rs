//! What is kept apart for waves of 32 and of 64 lanes: a kernel's descriptor says which it wants, and one code
//! object may hold kernels of both sizes.
use super::program::{Functions, Program};
use super::workgroup::Waves;

/// Waves of both sizes that a host thread keeps from launch to launch.
#[derive(Default)]
pub(super) struct KeptWaves {
    narrow: Waves<32>,
    wide: Waves<64>,
}

/// Finds what belongs to waves of `W` lanes; implemented for the two sizes that exist.
pub(super) trait PerWaveSize<const W: usize> {
    fn functions(program: &Program) -> &Functions<W>;
    fn waves(kept: &mut KeptWaves) -> &mut Waves<W>;
}

pub(super) struct WaveSizes;

impl PerWaveSize<32> for WaveSizes {
    fn functions(program: &Program) -> &Functions<32> {
        &program.narrow
    }

    fn waves(kept: &mut KeptWaves) -> &mut Waves<32> {
        &mut kept.narrow
    }
}

impl PerWaveSize<64> for WaveSizes {
    fn functions(program: &Program) -> &Functions<64> {
        &program.wide
    }

    fn waves(kept: &mut KeptWaves) -> &mut Waves<64> {
        &mut kept.wide
    }
}
