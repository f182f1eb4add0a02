//! Second pass at a larger size ("hires fix"), as AUTOMATIC1111 defines it: the image of the first pass is scaled, noise is
//! added to it, and the last steps of a schedule remove the noise.
use super::interpolation::Interpolation;
use crate::schedulers::MAX_SCHEDULE_STEPS;

/// Greatest strength from which the number of steps of the schedule is computed.
const MAX_STRENGTH: f64 = 0.999;

/// Scaling of an image between two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upscaler {
    /// Interpolates the latents.
    Latent {
        /// Weights of neighbours.
        interpolation: Interpolation,
        /// True if the kernel is widened for smaller sizes.
        antialias: bool,
    },
    /// Decodes the image, and scales its pixels with a Lanczos kernel.
    Lanczos,
    /// Decodes the image, and repeats its pixels.
    Nearest,
}

impl Upscaler {
    /// Names of A1111.
    pub const NAMES: [(&str, Self); 9] = [
        ("Latent", Self::latent(Interpolation::Bilinear, false)),
        ("Latent (antialiased)", Self::latent(Interpolation::Bilinear, true)),
        ("Latent (bicubic)", Self::latent(Interpolation::Bicubic, false)),
        ("Latent (bicubic antialiased)", Self::latent(Interpolation::Bicubic, true)),
        ("Latent (nearest)", Self::latent(Interpolation::Nearest, false)),
        ("Latent (nearest-exact)", Self::latent(Interpolation::NearestExact, false)),
        ("Lanczos", Self::Lanczos),
        ("Nearest", Self::Nearest),
        // Without an upscaler, A1111 scales with a Lanczos kernel.
        ("None", Self::Lanczos),
    ];

    const fn latent(interpolation: Interpolation, antialias: bool) -> Self {
        Self::Latent { interpolation, antialias }
    }

    /// Returns the upscaler with this name, in any case.
    pub fn of(name: &str) -> Option<Self> {
        let is_name = |(own, _): &&(&str, Self)| own.eq_ignore_ascii_case(name.trim());
        Self::NAMES.iter().find(is_name).map(|(_, upscaler)| *upscaler)
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, own)| *own == self).map_or("Latent", |(name, _)| name)
    }
}

/// Second pass of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Hires {
    /// Width and height to which the image of the first pass is scaled, multiples of
    /// [`Model::multiple`](crate::model::Model::multiple).
    pub scaled: (usize, usize),
    /// Width and height of the result, which is the middle of the scaled image, and multiples of the same number.
    pub size: (usize, usize),
    /// Number of steps that are computed.
    pub steps: usize,
    /// Strength of the change, above 0 and at most 1.
    pub strength: f64,
    /// Scaling between the passes.
    pub upscaler: Upscaler,
}

impl Hires {
    /// Returns the number of steps of the schedule, of which the last ones are computed.
    pub fn schedule_steps(&self) -> usize {
        (self.steps as f64 / self.strength.min(MAX_STRENGTH)) as usize
    }

    /// Returns the left and top edge, in pixels, of the part of the scaled image that is kept. Both are multiples of
    /// `factor`, the side of a cell of the latents.
    pub(super) fn corner(&self, factor: usize) -> (usize, usize) {
        let start = |scaled: usize, size: usize| (scaled / factor - size / factor) / 2 * factor;
        (start(self.scaled.0, self.size.0), start(self.scaled.1, self.size.1))
    }

    /// Checks the length of the schedule.
    ///
    /// # Errors
    /// Returns a message about the strength if the schedule has more than [`MAX_SCHEDULE_STEPS`] steps.
    pub fn check_schedule(&self) -> Result<(), String> {
        let (length, Self { steps, strength, .. }) = (self.schedule_steps(), self);
        if length <= MAX_SCHEDULE_STEPS {
            return Ok(());
        }
        let least = *steps as f64 / MAX_SCHEDULE_STEPS as f64;
        Err(format!(
            "{strength} with {steps} steps requires a schedule of {length} steps, but at most {MAX_SCHEDULE_STEPS} are \
             supported; use a strength of at least {least} or fewer steps"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for (name, upscaler) in Upscaler::NAMES {
            assert_eq!(Upscaler::of(&name.to_uppercase()), Some(upscaler));
            assert!(name == "None" || upscaler.name() == name);
        }
        assert_eq!(Upscaler::of("R-ESRGAN 4x+"), None);
        assert_eq!(Upscaler::of(""), None);
    }

    #[test]
    fn the_schedule_is_longer_than_the_pass() {
        let hires = |steps, strength| Hires {
            scaled: (8, 8),
            size: (8, 8),
            steps,
            strength,
            upscaler: Upscaler::Lanczos,
        };
        for (steps, strength, expected) in [(20, 0.7, 28), (20, 1.0, 20), (1, 0.5, 2), (5, 0.05, 100)] {
            assert_eq!(hires(steps, strength).schedule_steps(), expected, "{steps} {strength}");
            assert_eq!(hires(steps, strength).check_schedule(), Ok(()));
        }
        assert_eq!(hires(20, 0.02).check_schedule(), Ok(()));
        for strength in [0.0199, 1e-9, 1e-300, f64::MIN_POSITIVE] {
            let error = hires(20, strength).check_schedule().unwrap_err();
            assert!(error.contains("with 20 steps") && error.contains("at least 0.02"), "{error}");
        }
    }
}
