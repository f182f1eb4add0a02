//! Observation of each instruction of an instrumented launch: preemption and profiling.
use super::profile::{Footprint, Profile, Profiler, Rate};
use super::program::Step;
use super::wave::Wave;

/// Instrumentation state of one host thread.
pub(super) struct Watch {
    /// Number of instructions until the wave is preempted.
    pub(super) turn: u64,
    profiler: Option<Profiler>,
}

impl Watch {
    /// Creates a watch that never preempts waves.
    pub(super) fn new(profiles: bool) -> Self {
        Self { turn: u64::MAX, profiler: profiles.then(Profiler::default) }
    }

    /// Records that a wave begins its turn.
    pub(super) fn resume<const W: usize>(&mut self, wave: &Wave<W>) {
        if let Some(profiler) = &mut self.profiler {
            profiler.resume(wave);
        }
    }

    /// Called before each step. Returns false if the wave's turn is over and it must not execute the step.
    #[inline]
    pub(super) fn before_step<const W: usize>(&mut self, step: &Step<W>, rate: Rate, wave: &Wave<W>) -> bool {
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

    /// Returns the profile.
    pub(super) fn profile(&self) -> Profile {
        self.profiler.as_ref().map(|profiler| profiler.sums).unwrap_or_default()
    }

    /// Returns the cache lines that were accessed.
    pub(super) fn footprint(self) -> Footprint {
        self.profiler.map(|profiler| profiler.footprint).unwrap_or_default()
    }
}
