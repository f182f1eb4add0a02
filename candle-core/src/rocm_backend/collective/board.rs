//! Record of the operations that each rank of this process has called, so that an error can name the rank that is
//! missing.
use crate::DType;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A reduction over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The maximum.
    Max,
}

/// An operation with the sizes that the ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) elements: usize,
    pub(super) dtype: DType,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} {:?}", self.name, self.elements, self.dtype)
    }
}

#[derive(Clone, Default)]
struct Progress {
    has_joined: bool,
    calls: u64,
    last: Option<Call>,
    failure: Option<String>,
}

/// Progress of the ranks of a communicator that are in this process.
pub(super) struct Board(Mutex<Vec<Progress>>);

type Boards = HashMap<[u8; 128], Arc<Board>>;
static BOARDS: Mutex<Option<Boards>> = Mutex::new(None);

impl Board {
    /// Returns the board of the communicator with this unique id. The first rank determines the number of ranks.
    pub(super) fn of(id: &[u8; 128], world_size: usize) -> Arc<Self> {
        let mut boards = BOARDS.lock().unwrap_or_else(PoisonError::into_inner);
        let boards = boards.get_or_insert_default();
        // A rank that joins after another one has failed must notice it.
        boards.retain(|_, board| Arc::strong_count(board) > 1 || board.has_failure(None));
        let new = || Arc::new(Self(Mutex::new(vec![Progress::default(); world_size])));
        boards.entry(*id).or_insert_with(new).clone()
    }

    fn change(&self, rank: usize, change: impl FnOnce(&mut Progress)) {
        let mut ranks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A rank out of range does not join.
        if let Some(progress) = ranks.get_mut(rank) {
            change(progress);
        }
    }

    /// Adds a rank.
    ///
    /// # Errors
    /// Returns a message if the rank is taken, or if another rank was started with another number of ranks. Both
    /// ranks then fail.
    pub(super) fn join(&self, rank: usize, world_size: usize) -> Result<(), String> {
        let mut ranks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ranks.len();
        if count != world_size {
            let text =
                format!("rank {rank} was started with {world_size} ranks, but another one of this process with {count}");
            if let Some(progress) = ranks.get_mut(rank.min(count.saturating_sub(1))) {
                progress.failure.get_or_insert_with(|| text.clone());
            }
            return Err(text);
        }
        match ranks.get_mut(rank) {
            Some(progress) if progress.has_joined => {
                Err(format!("rank {rank} has already joined in this process"))
            }
            Some(progress) => {
                progress.has_joined = true;
                Ok(())
            }
            None => Err(format!("there is no rank {rank} of {world_size}: ranks are numbered from 0")),
        }
    }

    pub(super) fn called(&self, rank: usize, call: Call) {
        self.change(rank, |progress| {
            progress.calls += 1;
            progress.last = Some(call);
        });
    }

    pub(super) fn failed(&self, rank: usize, reason: String) {
        self.change(rank, |progress| {
            progress.failure.get_or_insert(reason);
        });
    }

    /// Returns true if a rank of this process other than `except` has failed.
    pub(super) fn has_failure(&self, except: Option<usize>) -> bool {
        let ranks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.iter().enumerate().any(|(rank, progress)| Some(rank) != except && progress.failure.is_some())
    }

    /// Describes the ranks that have failed or that differ from `rank`, each after a semicolon; may be empty.
    pub(super) fn differences(&self, rank: usize) -> String {
        let ranks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = ranks.get(rank) else { return String::new() };
        let mut text = String::new();
        for (other, progress) in ranks.iter().enumerate().filter(|(other, _)| *other != rank) {
            let last = |progress: &Progress| match progress.last {
                Some(call) => format!("{} calls, the last being {call}", progress.calls),
                None => "no calls".to_string(),
            };
            if let Some(reason) = &progress.failure {
                text.push_str(&format!("; rank {other} failed: {reason}"));
            } else if progress.has_joined && (progress.calls, progress.last) != (own.calls, own.last) {
                let (theirs, ours) = (last(progress), last(own));
                text.push_str(&format!("; rank {other} has made {theirs}, but rank {rank} has made {ours}"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_behind_is_named() {
        let (first, same) = (Board::of(&[1; 128], 3), Board::of(&[1; 128], 3));
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &Board::of(&[2; 128], 3)));
        let call = Call { name: "all_reduce", elements: 4, dtype: DType::F32 };
        assert!((0..3).all(|rank| first.join(rank, 3).is_ok()));
        assert!(first.join(0, 3).is_err_and(|text| text.contains("already joined")));
        assert!(first.join(0, 2).is_err_and(|text| text.contains("with 2 ranks")));
        assert!(first.join(3, 3).is_err_and(|text| text.contains("no rank 3")));
        (0..2).for_each(|rank| first.called(rank, call));
        let text = first.differences(0);
        assert_eq!(
            text,
            "; rank 2 has made no calls, but rank 0 has made 1 calls, the last being all_reduce of 4 F32"
        );
        first.failed(2, "it was stopped".to_string());
        assert!(first.differences(1).contains("rank 2 failed: it was stopped"));
    }
}
