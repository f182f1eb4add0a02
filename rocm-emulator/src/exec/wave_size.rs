//! Data that is separate for waves of 32 and of 64 lanes. A kernel's descriptor selects the size, and one
//! code object may contain kernels of both sizes.
use super::program::{Functions, Program};
use super::workgroup::Waves;

/// Waves of both sizes, which a host thread reuses between launches.
#[derive(Default)]
pub(super) struct WavePool {
    narrow: Waves<32>,
    wide: Waves<64>,
}

/// Accessors of the data for waves of `W` lanes, implemented for both sizes.
pub(super) trait PerWaveSize<const W: usize> {
    fn functions(program: &Program) -> &Functions<W>;
    fn waves(pool: &mut WavePool) -> &mut Waves<W>;
}

pub(super) struct WaveSizes;

impl PerWaveSize<32> for WaveSizes {
    fn functions(program: &Program) -> &Functions<32> {
        &program.narrow
    }

    fn waves(pool: &mut WavePool) -> &mut Waves<32> {
        &mut pool.narrow
    }
}

impl PerWaveSize<64> for WaveSizes {
    fn functions(program: &Program) -> &Functions<64> {
        &program.wide
    }

    fn waves(pool: &mut WavePool) -> &mut Waves<64> {
        &mut pool.wide
    }
}
