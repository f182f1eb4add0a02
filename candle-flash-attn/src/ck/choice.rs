//! Choice between Composable Kernel's and Candle's attention kernels.
use std::sync::atomic::{AtomicU8, Ordering};

use super::interface::{Element, Instance};
use super::Problem;

/// Attention kernels to launch if an instance of Composable Kernel supports the problem and was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Composable Kernel's kernels for the problems in [`TABLE`], otherwise Candle's.
    #[default]
    Table,
    /// Composable Kernel's kernels. They do not check cumulative sequence lengths as Candle's kernels do: wrong lengths
    /// cause accesses outside of the tensors.
    ComposableKernel,
    /// Candle's kernels.
    Candle,
}

const CHOICES: [Choice; 3] = [Choice::Table, Choice::ComposableKernel, Choice::Candle];

static CHOSEN: AtomicU8 = AtomicU8::new(Choice::Table as u8);

/// Sets the choice for all devices of the process, from the next call on.
pub fn choose(choice: Choice) {
    CHOSEN.store(choice as u8, Ordering::Relaxed);
}

/// Returns the current choice.
pub fn choice() -> Choice {
    CHOICES[usize::from(CHOSEN.load(Ordering::Relaxed))]
}

/// A row of [`TABLE`]: problems for which Composable Kernel is launched by default.
#[derive(Debug, PartialEq, Eq)]
pub struct TableRow {
    /// GPU architecture.
    pub arch: &'static str,
    /// Element type of the instance.
    pub element: Element,
    /// Head width of the instance.
    pub width: usize,
    /// Minimum number of queries per sequence. With fewer, most of a tile of 128 is padding, while Candle's split-KV
    /// kernel needs an eighth of the matrix products.
    pub queries: usize,
}

const fn row(arch: &'static str, element: Element, width: usize) -> TableRow {
    TableRow { arch, element, width, queries: 128 }
}

/// Dense problems for which Composable Kernel is launched by default. The table follows from instruction counts, because it
/// has not been measured on AMD GPUs. It lists instances whose busiest unit (matrix, vector, LDS), and the sum of all
/// units, need at least 10% fewer clocks for 128 and 512 queries, with and without a causal mask.
///
/// bf16 is not listed because the instances round it with several vector instructions. On gfx90a, both kernels are bound by
/// the matrix units from width 128 on, and Candle's kernel skips more of a causal mask; the same holds for width 256.
pub const TABLE: &[TableRow] = &[
    // Kiloclocks of a compute unit, matrix + vector + LDS, 2 x 512 x 512 causal: 82 + 64 + 33, not 70 + 112 + 31.
    row("gfx90a", Element::F16, 64),
    // 41 + 64 + 33 instead of 35 + 111 + 31.
    row("gfx942", Element::F16, 64),
    // 82 + 69 + 67 instead of 74 + 120 + 66.
    row("gfx942", Element::F16, 128),
];

/// Returns true if [`TABLE`] selects Composable Kernel, for dense batches only: it does not check start offsets.
pub(super) fn is_in_table(arch: &str, problem: &Problem, instance: Instance) -> bool {
    let is_of =
        |row: &&TableRow| (row.arch, row.element, row.width) == (arch, instance.element, instance.width);
    !instance.varlen && TABLE.iter().find(is_of).is_some_and(|row| problem.queries >= row.queries)
}
