//! The methods by which steps are made, and their names.
use crate::{Error, Result};

/// How steps are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// Song et al. 2020, without noise.
    #[default]
    Ddim,
    /// Euler's method as in k-diffusion: DDIM's step on other timesteps.
    Euler,
    /// Euler's method with the posterior's noise.
    EulerAncestral,
    /// DPM-Solver++(2M), Lu et al. 2022.
    DpmSolver2M,
    /// UniPC, Zhao et al. 2023.
    UniPc,
}

/// Name, name of diffusers' class, method.
const METHODS: [(&str, &str, Method); 5] = [
    ("ddim", "DDIMScheduler", Method::Ddim),
    ("euler", "EulerDiscreteScheduler", Method::Euler),
    ("euler-a", "EulerAncestralDiscreteScheduler", Method::EulerAncestral),
    ("dpm++2m", "DPMSolverMultistepScheduler", Method::DpmSolver2M),
    ("unipc", "UniPCMultistepScheduler", Method::UniPc),
];

impl Method {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Ddim, Self::Euler, Self::EulerAncestral, Self::DpmSolver2M, Self::UniPc];

    /// ddim, euler, euler-a, dpm++2m or unipc.
    pub fn name(self) -> &'static str {
        METHODS.iter().find(|(_, _, method)| *method == self).map_or("", |(name, _, _)| name)
    }

    /// The method of diffusers' class; DDIM for those without one.
    pub(super) fn of_class(class: &str) -> Self {
        METHODS.iter().find(|(_, other, _)| *other == class).map_or(Self::Ddim, |(_, _, method)| *method)
    }

    pub(super) fn is_multistep(self) -> bool {
        matches!(self, Self::DpmSolver2M | Self::UniPc)
    }

    pub(super) fn has_fractional_timesteps(self) -> bool {
        matches!(self, Self::Euler | Self::EulerAncestral)
    }
}

impl std::str::FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = METHODS.iter().find(|(own, _, _)| *own == name);
        found.map(|(_, _, method)| *method).ok_or_else(|| {
            let names: Vec<&str> = METHODS.iter().map(|(own, _, _)| *own).collect();
            Error::request(format!("no scheduler {name:?}; there are {}", names.join(", ")))
        })
    }
}
