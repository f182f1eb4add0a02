//! Number of draft tokens of a text, adapted to how many of them are accepted.

/// Number of drafts in the first step. Every length is a power of two minus 1, because the batches of graphs are
/// padded to powers of two.
const FIRST: usize = 3;
/// Number of steps without drafts after all were rejected for the first time, and its maximum after repeated rejections.
const PAUSE: [usize; 2] = [2, 32];

/// Number of draft tokens that a text gets in its next step: 1, 3, 7 or 15, within a limit; 0 while it pauses.
pub(super) struct DraftLength {
    limit: usize,
    length: usize,
    /// Remaining steps without drafts.
    paused: usize,
    /// Number of steps of the next pause.
    pause: usize,
    /// True if the last draft of a single token was rejected.
    is_rejected: bool,
}

impl DraftLength {
    /// Creates the length of a text that gets at most `limit` draft tokens in a step.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, length: FIRST.min(limit.max(1)), paused: 0, pause: PAUSE[0], is_rejected: false }
    }

    /// Returns the number of drafts for the next step, and counts the step.
    pub(super) fn next(&mut self) -> usize {
        if self.paused > 0 {
            self.paused -= 1;
            return 0;
        }
        self.length.min(self.limit)
    }

    /// Adapts the length after a step that verified `drafted` tokens.
    pub(super) fn record(&mut self, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return;
        }
        if accepted > 0 {
            (self.pause, self.is_rejected) = (PAUSE[0], false);
        }
        if accepted == drafted {
            // Short drafts do not show that long ones would be accepted.
            if drafted >= self.length.min(self.limit) && self.length < self.limit {
                self.length = 2 * self.length + 1;
            }
        } else if 2 * accepted < drafted {
            self.length /= 2;
            if self.length == 0 {
                self.length = 1;
                // If all drafts have one token, as those of heads that predict one, many of them are rejected alone.
                if self.limit == 1 && !self.is_rejected {
                    self.is_rejected = true;
                    return;
                }
                self.paused = self.pause;
                self.pause = (2 * self.pause).min(PAUSE[1]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lengths of steps in which `accepted` of the drafts are accepted, if there are so many.
    fn lengths(limit: usize, steps: usize, accepted: usize) -> Vec<usize> {
        let mut length = DraftLength::new(limit);
        let step = |_| {
            let drafted = length.next();
            length.record(drafted, accepted.min(drafted));
            drafted
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn lengths_follow_the_acceptance() {
        assert_eq!(lengths(15, 5, 15), [3, 7, 15, 15, 15]);
        assert_eq!(lengths(5, 4, 15), [3, 5, 5, 5]);
        assert_eq!(lengths(15, 8, 3), [3, 7, 3, 7, 3, 7, 3, 7]);
        assert_eq!(lengths(15, 4, 2), [3, 3, 3, 3]);
        assert_eq!(lengths(0, 3, 0), [0, 0, 0]);
        assert_eq!(lengths(1, 8, 0), [1, 1, 0, 0, 1, 0, 0, 0]);
        let rejected = lengths(15, 200, 0);
        assert_eq!(rejected[..9], [3, 1, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(rejected.iter().filter(|length| **length > 0).count(), 10);
    }
}
