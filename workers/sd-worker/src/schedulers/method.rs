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
    /// Linear multistep method of order 4 as in k-diffusion.
    Lms,
    /// DPM-Solver-2 as in k-diffusion: a midpoint method, which evaluates the network twice in all steps except the last.
    Dpm2,
    /// [`Self::Dpm2`] with ancestral noise.
    Dpm2Ancestral,
    /// DPM-Solver++(2M), Lu et al. 2022.
    DpmSolver2M,
    /// [`Self::DpmSolver2M`] for the stochastic equation, which adds noise in each step.
    DpmSolver2MSde,
    /// DPM-Solver++ with one step for the stochastic equation, as in k-diffusion. It evaluates the network twice in all
    /// steps except the last.
    DpmSolverSde,
    /// UniPC, Zhao et al. 2023.
    UniPc,
    /// Sampling of latent consistency models, Luo et al. 2023, in a few steps.
    Lcm,
}

/// Name, scheduler class in diffusers, and method.
const METHODS: [(&str, &str, Method); 13] = [
    ("ddim", "DDIMScheduler", Method::Ddim),
    ("pndm", "PNDMScheduler", Method::Pndm),
    ("euler", "EulerDiscreteScheduler", Method::Euler),
    ("euler-a", "EulerAncestralDiscreteScheduler", Method::EulerAncestral),
    ("heun", "HeunDiscreteScheduler", Method::Heun),
    ("lms", "LMSDiscreteScheduler", Method::Lms),
    ("dpm2", "KDPM2DiscreteScheduler", Method::Dpm2),
    ("dpm2-a", "KDPM2AncestralDiscreteScheduler", Method::Dpm2Ancestral),
    ("dpm++2m", "DPMSolverMultistepScheduler", Method::DpmSolver2M),
    // In diffusers a setting of the class above.
    ("dpm++2m-sde", "", Method::DpmSolver2MSde),
    ("dpm++sde", "DPMSolverSDEScheduler", Method::DpmSolverSde),
    ("unipc", "UniPCMultistepScheduler", Method::UniPc),
    ("lcm", "LCMScheduler", Method::Lcm),
];

impl Method {
    /// All methods.
    pub const ALL: [Self; METHODS.len()] = {
        let mut all = [Self::Ddim; METHODS.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = METHODS[i].2;
            i += 1;
        }
        all
    };

    /// Returns the name in requests, such as `dpm++2m`.
    pub fn name(self) -> &'static str {
        METHODS.iter().find(|(_, _, method)| *method == self).map_or("", |(name, _, _)| name)
    }

    /// Returns the method of a scheduler class in diffusers, or DDIM for unknown classes.
    pub(super) fn of_class(class: &str) -> Self {
        METHODS.iter().find(|(_, other, _)| *other == class).map_or(Self::Ddim, |(_, _, method)| *method)
    }

    /// Returns true if the method has the levels of diffusers' multistep schedulers.
    pub(super) fn is_multistep(self) -> bool {
        matches!(self, Self::DpmSolver2M | Self::DpmSolver2MSde | Self::UniPc)
    }

    /// Returns true if the method visits the training timesteps themselves, without separate noise levels.
    pub(super) fn has_trained_levels(self) -> bool {
        matches!(self, Self::Ddim | Self::Pndm | Self::Lcm)
    }

    pub(super) fn has_fractional_timesteps(self) -> bool {
        !self.is_multistep() && !self.has_trained_levels()
    }

    /// Returns true if each step evaluates the network once, so that another network can compute the last steps.
    pub fn is_divisible(self) -> bool {
        !matches!(self, Self::Pndm | Self::Heun | Self::Dpm2 | Self::Dpm2Ancestral | Self::DpmSolverSde)
    }

    /// Returns true if diffusers rounds the timesteps of Karras noise levels.
    pub(super) fn rounds_karras_timesteps(self) -> bool {
        self.is_multistep() || matches!(self, Self::Dpm2 | Self::Dpm2Ancestral)
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
