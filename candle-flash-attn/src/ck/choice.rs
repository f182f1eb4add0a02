//! Whose kernel is launched where both can.
use std::sync::atomic::{AtomicU8, Ordering};

use super::interface::{Element, Instance};
use super::Problem;

/// Whose attention is launched where an instance of Composable Kernel covers what is asked for and was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Composable Kernel's where [`TABLE`] says that it wins, or else Candle's.
    #[default]
    Table,
    /// Composable Kernel's. It trusts cumulative lengths of sequences, which Candle's kernels check: wrong ones have it
    /// access memory outside of the tensors.
    ComposableKernel,
    /// Candle's.
    Candle,
}

const CHOICES: [Choice; 3] = [Choice::Table, Choice::ComposableKernel, Choice::Candle];

static CHOSEN: AtomicU8 = AtomicU8::new(Choice::Table as u8);

/// Chooses for all devices of the process, from the next call on.
pub fn choose(choice: Choice) {
    CHOSEN.store(choice as u8, Ordering::Relaxed);
}

/// What was chosen last.
pub fn choice() -> Choice {
    CHOICES[usize::from(CHOSEN.load(Ordering::Relaxed))]
}

/// Where Composable Kernel is launched unless something else is chosen.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    /// The architecture.
    pub arch: &'static str,
    /// The instance's.
    pub element: Element,
    /// The instance's.
    pub width: usize,
    /// The fewest queries of a sequence. With fewer, most of a tile of 128 is padding, and Candle's kernel, which shares
    /// the keys out over workgroups, has an eighth of the matrix products.
    pub queries: usize,
}

const fn row(arch: &'static str, element: Element, width: usize) -> Row {
    Row { arch, element, width, queries: 128 }
}

/// What wins on paper, for dense batches: no speed of an AMD GPU is known. Composable Kernel is here where the busiest unit
/// (matrix, vector, LDS) has at least a tenth less to do, and all units together have, in calls of 128 and of 512 queries
/// with a causal mask and without.
///
/// Of bf16 nothing is: the instances round it in several vector instructions. On gfx90a matrix units bound both from
/// width 128 on, and Candle's kernel skips more of a causal mask. Of width 256 both wait for them, or nearly.
pub const TABLE: &[Row] = &[
    // Clocks of a compute unit in thousands, matrix + vector + LDS, 2 x 512 x 512 causal: 82 + 64 + 33 for 70 + 112 + 31.
    row("gfx90a", Element::F16, 64),
    // 41 + 64 + 33 for 35 + 111 + 31.
    row("gfx942", Element::F16, 64),
    // 82 + 69 + 67 for 74 + 120 + 66.
    row("gfx942", Element::F16, 128),
];

/// Sequences of their own lengths are left to Candle's kernels, which check where they begin.
pub(super) fn wins(arch: &str, problem: &Problem, instance: Instance) -> bool {
    let is_of = |row: &&Row| (row.arch, row.element, row.width) == (arch, instance.element, instance.width);
    !instance.varlen && TABLE.iter().find(is_of).is_some_and(|row| problem.queries >= row.queries)
}
