//! Adds a ROCm counterpart ("twin") to every use of CUDA in Candle.
//!
//! Upstream's sources are not in this repository: [`upstream`] finds the published crates at build time. [`twins`] contains
//! the general rule, and [`core_rules`], [`nn_rules`] and [`transformers_rules`] the special rules. [`tree`] rewrites a whole
//! crate. The build scripts of [`CRATES`] call [`build_script`]. [`suites`] rewrites upstream's tests.

pub mod build_script;
pub mod core_rules;
pub mod fork;
pub mod mxfp4_rules;
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

/// Crates that are rewritten, each after its dependencies.
pub const CRATES: [rules::CrateRules; 3] =
    [core_rules::CANDLE_CORE, nn_rules::CANDLE_NN, transformers_rules::CANDLE_TRANSFORMERS];
