//! Sampling methods and their names.
use crate::{Error, Result};

/// Sampling method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// DDIM, Song et al. 2020, with η = 0.
    #[default]
    Ddim,
    /// PNDM without Runge-Kutta steps (PLMS), Liu et al. 2022, the method of Stable Diffusion 1.5. It evaluates the
    /// network once more than it has steps.
    Pndm,
    /// Euler's method as in k-diffusion: the step of DDIM with other timesteps.
    Euler,
    /// Euler's method with ancestral noise.
    EulerAncestral,
    /// Heun's method, Karras et al. 2022. All steps except the last one evaluate the network twice.
    Heun,
    /// DPM-Solver++(2M), Lu et al. 2022.
    DpmSolver2M,
    /// UniPC, Zhao et al. 2023.
    UniPc,
}

/// Name, scheduler class in diffusers, and method.
const METHODS: [(&str, &str, Method); 7] = [
    ("ddim", "DDIMScheduler", Method::Ddim),
    ("pndm", "PNDMScheduler", Method::Pndm),
    ("euler", "EulerDiscreteScheduler", Method::Euler),
    ("euler-a", "EulerAncestralDiscreteScheduler", Method::EulerAncestral),
    ("heun", "HeunDiscreteScheduler", Method::Heun),
    ("dpm++2m", "DPMSolverMultistepScheduler", Method::DpmSolver2M),
    ("unipc", "UniPCMultistepScheduler", Method::UniPc),
];

impl Method {
    /// All methods.
    pub const ALL: [Self; 7] = [
        Self::Ddim,
        Self::Pndm,
        Self::Euler,
        Self::EulerAncestral,
        Self::Heun,
        Self::DpmSolver2M,
        Self::UniPc,
    ];

    /// Returns the name: ddim, pndm, euler, euler-a, heun, dpm++2m or unipc.
    pub fn name(self) -> &'static str {
        METHODS.iter().find(|(_, _, method)| *method == self).map_or("", |(name, _, _)| name)
    }

    /// Returns the method of a scheduler class in diffusers, or DDIM for unknown classes.
    pub(super) fn of_class(class: &str) -> Self {
        METHODS.iter().find(|(_, other, _)| *other == class).map_or(Self::Ddim, |(_, _, method)| *method)
    }

    pub(super) fn is_multistep(self) -> bool {
        matches!(self, Self::DpmSolver2M | Self::UniPc)
    }

    /// Returns true if the method visits the training timesteps themselves, without noise levels of its own.
    pub(super) fn has_trained_levels(self) -> bool {
        matches!(self, Self::Ddim | Self::Pndm)
    }

    pub(super) fn has_fractional_timesteps(self) -> bool {
        matches!(self, Self::Euler | Self::EulerAncestral | Self::Heun)
    }
}

impl std::str::FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = METHODS.iter().find(|(own, _, _)| *own == name);
        found.map(|(_, _, method)| *method).ok_or_else(|| {
            let names: Vec<&str> = METHODS.iter().map(|(own, _, _)| *own).collect();
            Error::request(format!("unknown scheduler {name:?}; expected one of {}", names.join(", ")))
        })
    }
}
