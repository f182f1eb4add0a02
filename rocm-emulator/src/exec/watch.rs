//! What stands in front of each instruction of a launch that is scrutinised.
use super::program::Step;
use super::wave::Wave;

/// One host thread's part in watching a launch.
pub(super) struct Watch {
    /// Instructions until the wave has to give way to others.
    pub(super) turn: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Self { turn: u64::MAX }
    }
}

impl Watch {
    /// Whether the wave may execute the step now; false if its turn is over.
    #[inline]
    pub(super) fn before<const W: usize>(&mut self, _step: &Step<W>, _wave: &Wave<W>) -> bool {
        let goes_on = self.turn > 0;
        self.turn = self.turn.saturating_sub(1);
        goes_on
    }
}
