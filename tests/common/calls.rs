//! Calls of the driver, counted by the loader.
use std::collections::BTreeMap;

/// Calls by name.
pub type Calls = BTreeMap<&'static str, u64>;

/// Returns how often each function was called so far.
pub fn calls() -> Calls {
    rocm_loader::symbols::calls().collect()
}

/// Runs `work` and returns which functions it called, and how often.
pub fn called<R>(work: impl FnOnce() -> R) -> (R, Calls) {
    let before = calls();
    let result = work();
    let made = calls().into_iter().map(|(name, count)| (name, count - before[name]));
    (result, made.filter(|(_, count)| *count > 0).collect())
}
