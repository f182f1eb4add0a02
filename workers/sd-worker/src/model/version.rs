//! Model families.

/// Model family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Stable Diffusion 1.x.
    V1,
    /// Stable Diffusion 2.x.
    V2,
    /// Stable Diffusion XL.
    Xl,
    /// A model of the same architecture with other sizes.
    Other,
}
