//! What stands in front of each instruction of a launch that is scrutinised.
use super::profile::{Footprint, Profile, Profiler, Rate};
use super::program::Step;
use super::wave::Wave;

/// One host thread's part in watching a launch.
pub(super) struct Watch {
    /// Instructions until the wave has to give way to others.
    pub(super) turn: u64,
    profiler: Option<Profiler>,
}

impl Watch {
    /// A watch that lets waves run as long as they want.
    pub(super) fn new(profiles: bool) -> Self {
        Self { turn: u64::MAX, profiler: profiles.then(Profiler::default) }
    }

    /// A wave begins its turn.
    pub(super) fn resume<const W: usize>(&mut self, wave: &Wave<W>) {
        if let Some(profiler) = &mut self.profiler {
            profiler.resume(wave);
        }
    }

    /// Whether the wave may execute the step now; false if its turn is over.
    #[inline]
    pub(super) fn before<const W: usize>(&mut self, step: &Step<W>, rate: Rate, wave: &Wave<W>) -> bool {
        if let Some(profiler) = &mut self.profiler {
            profiler.arrive(wave);
        }
        if self.turn == 0 {
            return false;
        }
        self.turn -= 1;
        if let Some(profiler) = &mut self.profiler {
            profiler.count(step, rate, wave);
        }
        true
    }

    /// What was counted.
    pub(super) fn profile(&self) -> Profile {
        self.profiler.as_ref().map(|profiler| profiler.sums).unwrap_or_default()
    }

    /// The lines that were touched.
    pub(super) fn footprint(self) -> Footprint {
        self.profiler.map(|profiler| profiler.footprint).unwrap_or_default()
    }
}
