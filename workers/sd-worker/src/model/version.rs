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
    /// Refiner of Stable Diffusion XL, which changes images.
    XlRefiner,
    /// Flux.
    Flux,
    /// Stable Diffusion 3.
    Sd3,
    /// Stable Diffusion 3.5.
    Sd35,
    /// A model with the architecture of Stable Diffusion 1, 2 or XL and other sizes.
    Other,
}

impl Version {
    /// Returns the name in the API, such as `1.5`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "1.5",
            Self::V2 => "2.1",
            Self::Xl => "xl",
            Self::XlRefiner => "xl-refiner",
            Self::Flux => "flux",
            Self::Sd3 => "3",
            Self::Sd35 => "3.5",
            Self::Other => "other",
        }
    }

    /// Returns the name of the network, for messages and the API.
    pub fn network(self) -> &'static str {
        match self {
            Self::V1 => "Stable Diffusion 1",
            Self::V2 => "Stable Diffusion 2",
            Self::Xl => "Stable Diffusion XL",
            Self::XlRefiner => "Stable Diffusion XL's refiner",
            Self::Flux => "Flux",
            Self::Sd3 => "Stable Diffusion 3",
            Self::Sd35 => "Stable Diffusion 3.5",
            Self::Other => "this model",
        }
    }
}
