//! Data-parallel primitives (DPP): source 0 is read from other lanes of the wave.
use crate::isa::{Dpp, DppControl};

/// A permutation of lanes, and the mask of lanes that it may write.
#[derive(Clone, Debug)]
pub struct DppPattern {
    /// Source lane of each destination lane, or [`OUTSIDE`].
    sources: [u8; 64],
    /// Lanes that the row and bank masks enable.
    enabled: u64,
    bound_ctrl: bool,
    fetch_inactive: bool,
    /// Set for DPP8, which writes every lane. Inactive sources read as 0.
    is_dpp8: bool,
}

/// Marks a source outside the row.
const OUTSIDE: u8 = 0xff;

impl DppPattern {
    /// Tabulates the control for up to 64 lanes.
    pub fn new(dpp: &Dpp) -> Self {
        let mut sources = [OUTSIDE; 64];
        let mut enabled = 0;
        for lane in 0..64u8 {
            sources[lane as usize] = source_lane(&dpp.control, lane);
            let (row, bank) = (lane / 16, lane % 16 / 4);
            if dpp.row_mask >> row & 1 != 0 && dpp.bank_mask >> bank & 1 != 0 {
                enabled |= 1 << lane;
            }
        }
        let is_dpp8 = matches!(dpp.control, DppControl::Dpp8(_));
        if is_dpp8 {
            enabled = u64::MAX;
        }
        Self { sources, enabled, bound_ctrl: dpp.bound_ctrl, fetch_inactive: dpp.fetch_inactive, is_dpp8 }
    }

    /// Returns the source lane of `lane` if it is in the row and may be read.
    #[inline]
    fn valid<const W: usize>(&self, lane: usize, exec: u64) -> Option<usize> {
        let source = self.sources[lane] as usize;
        (source < W && (self.fetch_inactive || exec >> source & 1 != 0)).then_some(source)
    }

    /// Returns the lanes to write: enabled lanes with a valid source, or all enabled ones with bound_ctrl.
    #[inline(never)]
    pub fn write_mask<const W: usize>(&self, exec: u64) -> u64 {
        if self.bound_ctrl || self.is_dpp8 {
            return self.enabled;
        }
        (0..W).filter(|lane| self.valid::<W>(*lane, exec).is_some()).fold(0, |mask, lane| mask | 1 << lane)
            & self.enabled
    }

    /// Returns each lane's source value, or 0 if it has none.
    pub fn permute<const W: usize>(&self, lanes: &[u32; W], exec: u64) -> [u32; W] {
        let mut out = [0; W];
        for (lane, value) in out.iter_mut().enumerate() {
            if let Some(source) = self.valid::<W>(lane, exec) {
                *value = lanes[source];
            }
        }
        out
    }
}

fn source_lane(control: &DppControl, lane: u8) -> u8 {
    let (row, lane_in_row) = (lane & !15, lane & 15);
    let within =
        |lane_in_row: i16| if (0..16).contains(&lane_in_row) { row + lane_in_row as u8 } else { OUTSIDE };
    let only = |inside: bool, lane: u8| if inside { lane } else { OUTSIDE };
    match control {
        DppControl::QuadPerm(select) => (lane & !3) + (select[(lane & 3) as usize] & 3),
        DppControl::RowShl(n) => within(i16::from(lane_in_row) + i16::from(*n)),
        DppControl::RowShr(n) => within(i16::from(lane_in_row) - i16::from(*n)),
        DppControl::RowRor(n) => row + (lane_in_row.wrapping_sub(*n) & 15),
        DppControl::RowMirror => row + 15 - lane_in_row,
        DppControl::RowHalfMirror => (lane & !7) + 7 - (lane & 7),
        DppControl::RowShare(n) => row + (n & 15),
        DppControl::RowXmask(n) => row + (lane_in_row ^ (n & 15)),
        DppControl::WaveShl => only(lane < 63, lane + 1),
        DppControl::WaveRol => (lane + 1) & 63,
        DppControl::WaveShr => lane.checked_sub(1).unwrap_or(OUTSIDE),
        DppControl::WaveRor => lane.wrapping_sub(1) & 63,
        DppControl::RowBcast15 => only(lane >= 16, row.wrapping_sub(1)),
        DppControl::RowBcast31 => only(lane >= 32, 31),
        DppControl::Dpp8(select) => (lane & !7) + (select[(lane & 7) as usize] & 7),
    }
}
