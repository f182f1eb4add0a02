//! The contract between the kernels in this folder and the host: every kernel that ships, with its arguments, and
//! the constants that both sides use. Each subject has a file; a module of its own is a row in the file of its subject.
//!
//! The build reads this table (crate `hip-kernels-build`) and makes three things of it: the header
//! `candle_contract.h` with the constants, the Rust side of each family (crate `hip-kernels`, module `contract`: a
//! struct of its arguments, the numbers of its kernels), and a check of every compiled code object: a kernel that is
//! missing, one that is not in here, or an argument of another name, place, size or kind fails the build.

#[macro_use]
mod schema;
pub mod attention;
pub mod convolution;
pub mod copies;
pub mod elementwise;
pub mod faults;
pub mod formats;
pub mod indexing;
pub mod product;
pub mod quantized;
pub mod random;
pub mod reduce;
pub mod rows;
pub mod shared;
pub mod sort;

pub use schema::{Argument, Axis, Constant, Family, Module, Pass, Subject, names};

/// All subjects. Constants stand in the header, and kernels are numbered, in this order.
pub const SUBJECTS: [Subject; 13] = [
    shared::SUBJECT,
    elementwise::SUBJECT,
    random::SUBJECT,
    copies::SUBJECT,
    indexing::SUBJECT,
    reduce::SUBJECT,
    rows::SUBJECT,
    sort::SUBJECT,
    convolution::SUBJECT,
    attention::SUBJECT,
    product::SUBJECT,
    faults::SUBJECT,
    quantized::SUBJECT,
];

/// All modules, sorted by name.
pub fn modules() -> Vec<Module> {
    let mut modules: Vec<_> = SUBJECTS.iter().flat_map(|subject| subject.modules).copied().collect();
    modules.sort_unstable_by_key(|module| module.name);
    modules
}

/// All constants.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    SUBJECTS.iter().flat_map(|subject| subject.constants)
}

/// All families.
pub fn families() -> Vec<Family> {
    SUBJECTS.iter().flat_map(|subject| (subject.families)()).collect()
}
