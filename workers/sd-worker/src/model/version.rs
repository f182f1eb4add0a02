//! The families of models.

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Stable Diffusion 1.x.
    V1,
    /// Stable Diffusion 2.x.
    V2,
    /// Stable Diffusion XL.
    Xl,
    /// The same architecture in another size.
    Other,
}
