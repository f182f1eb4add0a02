//! Gives every place in Candle that names CUDA a ROCm twin.
//!
//! Upstream's sources are not in this repository: [`upstream`] finds the published crates at build
//! time, [`twins`] holds the general rule, [`core_rules`], [`nn_rules`] and [`transformers_rules`] the
//! places that need more than that, and [`tree`] rewrites a crate as a whole. [`build_script`] is all that
//! the build scripts of [`CRATES`] call. [`suites`] does the same for upstream's own tests.

pub mod build_script;
pub mod core_rules;
pub mod fork;
pub mod nn_rules;
pub mod operation_rules;
pub mod reader_rules;
pub mod rename;
pub mod report;
pub mod rules;
pub mod suite_rules;
pub mod suites;
pub mod transformers_rules;
pub mod tree;
pub mod twins;
mod unpacked;
pub mod upstream;
mod words;

/// What is rewritten, each crate after those that it depends on.
pub const CRATES: [rules::CrateRules; 3] =
    [core_rules::CANDLE_CORE, nn_rules::CANDLE_NN, transformers_rules::CANDLE_TRANSFORMERS];
