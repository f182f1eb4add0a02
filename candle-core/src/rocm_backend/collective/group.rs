//! Groups of operations between ranks, which are enqueued together.
use super::communicator::{Communicator, Rank};
use crate::rocm_backend::RocmError;
use crate::{Result, Tensor};
use rocm_loader::rccl::*;
use std::cell::RefCell;
use std::sync::Arc;

#[derive(Default)]
struct Group {
    depth: usize,
    ranks: Vec<Arc<Rank>>,
    /// Operands and results, whose memory must not be reused before the group ends.
    tensors: Vec<Tensor>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Ends the library's group when dropped, also if the closure panics.
struct Open;

impl Open {
    fn end(self) -> (ncclResult_t, Group) {
        std::mem::forget(self);
        close()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        close();
    }
}

fn close() -> (ncclResult_t, Group) {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth -= 1;
        if group.depth == 0 {
            std::mem::take(group)
        } else {
            Group::default()
        }
    });
    // SAFETY: takes no arguments; the thread has begun a group.
    (unsafe { ncclGroupEnd() }, ended)
}

/// Runs `work`, and enqueues the operations between ranks that it calls together when it returns. A group is required
/// if one thread calls operations of several ranks, and if ranks send to each other. Results may be used after the
/// group.
///
/// # Errors
/// The error of `work`, or of the operations.
pub fn group<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: takes no arguments; the group is ended below in any case.
    match unsafe { ncclGroupStart() } {
        ncclSuccess => {}
        result => {
            let detail = rocm_loader::last_error().unwrap_or_default();
            let text = format!("ncclGroupStart failed with result {result}: {detail}");
            return Err(RocmError::Unsupported(text).into());
        }
    }
    GROUP.with_borrow_mut(|group| group.depth += 1);
    let open = Open;
    let value = work();
    let (result, ended) = open.end();
    let settle = |rank: &Arc<Rank>| rank.settled(&mut rank.handle(), result, "a group of operations", "");
    // All of them, so that each rank is in a known state.
    let settled = ended.ranks.iter().map(settle).fold(Ok(()), Result::and);
    let value = value?;
    settled.map(|()| value)
}

/// Returns true if the calling thread is in a group, which then keeps the tensors until its end.
pub(super) fn add(communicator: &Communicator, tensors: &[&Tensor]) -> bool {
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return false;
        }
        group.tensors.extend(tensors.iter().map(|tensor| (*tensor).clone()));
        if !group.ranks.iter().any(|rank| Arc::ptr_eq(rank, communicator.state())) {
            group.ranks.push(communicator.state().clone());
        }
        true
    })
}
