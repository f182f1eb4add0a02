//! The contract between the kernels in this folder and the host: all kernels with their arguments, and the constants
//! that both sides share. There is one file per subject.
//!
//! From this table the build (crate `hip-kernels-build`) generates the header `candle_contract.h` with the constants,
//! and the Rust side of each family (crate `hip-kernels`, module `contract`): a struct of its arguments and the IDs of
//! its kernels. It also checks every compiled code object. A missing kernel, a kernel that is not listed here, or an
//! argument with a different name, offset, size or kind fails the build.

#[macro_use]
mod schema;
pub mod attention;
pub mod convolution;
pub mod copies;
pub mod elementwise;
pub mod experts;
pub mod faults;
pub mod formats;
pub mod indexing;
pub mod product;
pub mod quantized;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod row;
pub mod rows;
pub mod sampling;
pub mod shared;
pub mod sort;

pub use schema::{Argument, Axis, Constant, Family, Module, Pass, Subject, names};

/// All subjects, in the order of the constants in the header and of kernel IDs.
pub const SUBJECTS: [Subject; 17] = [
    shared::SUBJECT,
    elementwise::SUBJECT,
    random::SUBJECT,
    copies::SUBJECT,
    indexing::SUBJECT,
    reduce::SUBJECT,
    rows::SUBJECT,
    sort::SUBJECT,
    sampling::SUBJECT,
    convolution::SUBJECT,
    attention::SUBJECT,
    product::SUBJECT,
    faults::SUBJECT,
    quantized::SUBJECT,
    row::SUBJECT,
    experts::SUBJECT,
    recurrent::SUBJECT,
];

/// Returns all modules, sorted by name.
pub fn modules() -> Vec<Module> {
    let mut modules: Vec<_> = SUBJECTS.iter().flat_map(|subject| subject.modules).copied().collect();
    modules.sort_unstable_by_key(|module| module.name);
    modules
}

/// Returns all constants.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    SUBJECTS.iter().flat_map(|subject| subject.constants)
}

/// Returns all families.
pub fn families() -> Vec<Family> {
    SUBJECTS.iter().flat_map(|subject| (subject.families)()).collect()
}
