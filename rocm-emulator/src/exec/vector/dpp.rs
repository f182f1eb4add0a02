//! Data-parallel primitives: source 0 comes from other lanes of the wave.
use crate::isa::{Dpp, DppControl};

/// A permutation of lanes and the lanes it lets be written.
#[derive(Clone, Debug)]
pub struct DppPattern {
    /// Per destination lane: the source lane, or [`OUTSIDE`].
    sources: [u8; 64],
    /// Lanes that the row and bank masks let through.
    enabled: u64,
    bound_ctrl: bool,
    fetch_inactive: bool,
    /// DPP8 writes every lane; a source that is switched off reads as 0.
    eight: bool,
}

/// The source lies outside the row.
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
        let eight = matches!(dpp.control, DppControl::Dpp8(_));
        if eight {
            enabled = u64::MAX;
        }
        Self { sources, enabled, bound_ctrl: dpp.bound_ctrl, fetch_inactive: dpp.fetch_inactive, eight }
    }

    /// The source lane of `lane` if it is in the row and may be read.
    #[inline]
    fn valid<const W: usize>(&self, lane: usize, exec: u64) -> Option<usize> {
        let source = self.sources[lane] as usize;
        (source < W && (self.fetch_inactive || exec >> source & 1 != 0)).then_some(source)
    }

    /// Lanes whose result is written: enabled ones with a valid source, or any source with bound_ctrl.
    #[inline(never)]
    pub fn write_mask<const W: usize>(&self, exec: u64) -> u64 {
        if self.bound_ctrl || self.eight {
            return self.enabled;
        }
        (0..W).filter(|lane| self.valid::<W>(*lane, exec).is_some()).fold(0, |mask, lane| mask | 1 << lane)
            & self.enabled
    }

    /// Each lane's source value; 0 where there is none.
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
    let (row, place) = (lane & !15, lane & 15);
    let within = |place: i16| if (0..16).contains(&place) { row + place as u8 } else { OUTSIDE };
    match control {
        DppControl::QuadPerm(select) => (lane & !3) + (select[(lane & 3) as usize] & 3),
        DppControl::RowShl(n) => within(i16::from(place) + i16::from(*n)),
        DppControl::RowShr(n) => within(i16::from(place) - i16::from(*n)),
        DppControl::RowRor(n) => row + (place.wrapping_sub(*n) & 15),
        DppControl::RowMirror => row + 15 - place,
        DppControl::RowHalfMirror => (lane & !7) + 7 - (lane & 7),
        DppControl::RowShare(n) => row + (n & 15),
        DppControl::RowXmask(n) => row + (place ^ (n & 15)),
        DppControl::WaveShl => {
            if lane < 63 {
                lane + 1
            } else {
                OUTSIDE
            }
        }
        DppControl::WaveRol => (lane + 1) & 63,
        DppControl::WaveShr => lane.checked_sub(1).unwrap_or(OUTSIDE),
        DppControl::WaveRor => lane.wrapping_sub(1) & 63,
        DppControl::RowBcast15 => {
            if lane >= 16 {
                row - 1
            } else {
                OUTSIDE
            }
        }
        DppControl::RowBcast31 => {
            if lane >= 32 {
                31
            } else {
                OUTSIDE
            }
        }
        DppControl::Dpp8(select) => (lane & !7) + (select[(lane & 7) as usize] & 7),
    }
}
