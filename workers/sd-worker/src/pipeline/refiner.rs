//! Last steps by XL's refiner, as diffusers defines them (`denoising_end` of the base model, `denoising_start` of the refiner):
//! the refiner continues with the latents and the noise levels of the base model, and its solver restarts.
use super::pass::Pass;
use crate::model::{Model, Network};
use crate::schedulers::{Scheduler, SchedulerConfig};
use crate::{Error, Result};

/// XL's refiner, which is loaded together with its base model.
#[derive(Debug)]
pub struct Refiner {
    /// Name for clients.
    pub name: String,
    /// The model. Its VAE is not used, and is not loaded with [`LoadOptions::without_vae`](crate::model::LoadOptions).
    pub model: Model,
}

impl Refiner {
    /// Checks that the model is a refiner whose latents are those of `base`.
    ///
    /// # Errors
    /// The model is not a refiner, or its latents differ from those of `base`.
    pub(super) fn check_base(&self, base: &Model) -> Result<()> {
        let Self { name, model } = self;
        if !model.is_refiner() {
            return Err(Error::model(format!(
                "{name} is not XL's refiner, which --refiner requires; use stabilityai/stable-diffusion-xl-refiner-1.0"
            )));
        }
        let is_xl =
            matches!(&base.network, Network::UNet(unet) if unet.config().addition_embed_type.is_some());
        let layout = |model: &Model| (model.vae_config.latent_channels, model.vae_config.factor());
        if !is_xl || base.is_refiner() || layout(base) != layout(model) {
            let found = base.version.network();
            return Err(Error::model(format!(
                "--refiner {name} requires a base model of Stable Diffusion XL, but the model is {found}"
            )));
        }
        Ok(())
    }

    /// Returns the number of steps of a pass that precede those of the refiner, and the scheduler of the latter. `config` is that
    /// of the base model. Returns `None` if the refiner computes no step.
    ///
    /// # Errors
    /// Returns the errors of [`Scheduler::new`].
    pub(super) fn last_steps(
        &self,
        pass: &Pass,
        config: &SchedulerConfig,
        switch_at: f64,
    ) -> Result<Option<(usize, Scheduler)>> {
        let prediction = self.model.scheduler.prediction;
        let config = SchedulerConfig { prediction, ..config.clone() };
        let first = steps_before(&pass.scheduler, config.num_train_timesteps, switch_at);
        if first == pass.scheduler.steps() {
            return Ok(None);
        }
        Ok(Some((first, pass.request.scheduler_from(&config, pass.skipped + first)?)))
    }
}

/// Returns the number of steps whose timestep is not below the fraction `1 - switch_at` of the training timesteps, rounded as
/// in diffusers.
fn steps_before(scheduler: &Scheduler, train_timesteps: usize, switch_at: f64) -> usize {
    let all = train_timesteps as f64;
    let last = (all - switch_at * all).round_ties_even();
    (0..scheduler.steps()).take_while(|i| scheduler.timestep(*i).is_some_and(|t| t >= last)).count()
}
