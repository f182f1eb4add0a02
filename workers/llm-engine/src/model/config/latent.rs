//! Sizes of latent attention.

/// Widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentConfig {
    /// Width of the vector from which queries are projected; `None` if they are projected from the states.
    pub query_rank: Option<usize>,
    /// Width of the vector from which keys and values are projected.
    pub rank: usize,
    /// Number of elements of a key that are not rotated.
    pub plain: usize,
    /// Number of elements of a key that are rotated.
    pub rotated: usize,
    /// Number of elements of a value.
    pub value: usize,
}
