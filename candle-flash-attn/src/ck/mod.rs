//! Attention with AMD's Composable Kernel (CK), if the user has built it. `cargo xtask ck` compiles instances of CK's
//! forward kernel to code objects outside of the project, and [`FOLDER_VARIABLE`] names their folder. [`Library`] reads and
//! checks them. This crate's functions launch them instead of Candle's kernels if [`TABLE`] or [`choose`] selects them and
//! an instance supports the call. See docs/how-to/composable-kernel.md.

mod call;
mod choice;
mod dispatch;
pub mod interface;
mod library;

pub use call::{Call, KernelArguments, LogSumExp, Operand, Problem, SequenceStarts, Unsupported};
pub use choice::{choice, choose, Choice, TableRow, TABLE};
pub(crate) use dispatch::try_forward;
pub use interface::{Element, Instance};
pub use library::{Library, LibraryError, FOLDER_VARIABLE};
