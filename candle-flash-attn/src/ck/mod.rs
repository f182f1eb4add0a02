//! Attention by AMD's Composable Kernel (CK), where the user built it: `cargo xtask ck` compiles instances of CK's
//! forward kernel to code objects outside of the project, and [`FOLDER_VARIABLE`] names their folder. [`Library`] reads and
//! checks them; this crate's functions launch them instead of Candle's kernels where [`TABLE`] or [`choose`] says so
//! and an instance covers what is asked for. docs/composable-kernel.md has the whole.

mod call;
mod choice;
mod instead;
pub mod interface;
mod library;

pub use call::{Call, LogSums, Operand, Passed, Problem, Starts, Uncovered};
pub use choice::{choice, choose, Choice, Row, TABLE};
pub(crate) use instead::instead;
pub use interface::{Element, Instance};
pub use library::{Library, LibraryError, FOLDER_VARIABLE};
