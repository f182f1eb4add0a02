//! Counts calls of driver functions with the loader's counters.
use std::collections::BTreeMap;

/// Number of calls by function name.
pub type Calls = BTreeMap<&'static str, u64>;

/// Returns the number of calls of each function since the process started.
pub fn calls() -> Calls {
    rocm_loader::symbols::calls().collect()
}

/// Runs `work` and returns its result and the number of calls of each function that it called.
pub fn count_calls<R>(work: impl FnOnce() -> R) -> (R, Calls) {
    let before = calls();
    let result = work();
    let made = calls().into_iter().map(|(name, count)| (name, count - before[name]));
    (result, made.filter(|(_, count)| *count > 0).collect())
}
