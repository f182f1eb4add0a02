//! Interface between the queue and the pipeline.
use std::ops::ControlFlow;

use candle_core::{Device, Tensor};

use super::events::Failure;
use crate::picture::Picture;
use crate::pipeline::{OnStep, Pipeline, Request, SharedRequests};

/// Generates images.
pub trait ImageGenerator: Send {
    /// Generates the images of a request; `on_step` is called after each step.
    ///
    /// # Errors
    /// Returns the errors of [`Pipeline::run`].
    fn generate(&mut self, request: &Request, on_step: &mut OnStep) -> crate::Result<Vec<Picture>>;

    /// Generates the images of requests that share steps. Requests that share none stay in `requests`.
    ///
    /// # Errors
    /// Returns the errors of [`Pipeline::run_shared`].
    fn generate_shared(&mut self, requests: &mut dyn SharedRequests) -> crate::Result<()> {
        let _ = requests;
        Ok(())
    }

    /// Returns whether the safety checker flags an image; `None` if there is no checker.
    ///
    /// # Errors
    /// The device fails.
    fn is_flagged(&self, picture: &Picture) -> crate::Result<Option<bool>>;

    /// Returns true if the prompt is longer than the model supports.
    fn truncates(&self, request: &Request) -> bool;

    /// Checks after a failed request that the device still works.
    ///
    /// # Errors
    /// The device fails or computes wrong results.
    fn check(&self) -> candle_core::Result<()>;
}

/// Generators of the models of a worker.
pub trait Generators: Send {
    /// Returns the generator of a model, after it was loaded if necessary.
    ///
    /// # Errors
    /// The model cannot be loaded. Other models keep working.
    fn select(&mut self, model: usize) -> Result<&mut dyn ImageGenerator, Failure>;

    /// Unloads all models except one, which ran out of memory. Returns false if no other was loaded.
    fn unload_others(&mut self, model: usize) -> bool;

    /// Checks after a failed request that the device still works.
    ///
    /// # Errors
    /// The device fails or computes wrong results.
    fn check(&mut self, model: usize) -> candle_core::Result<()>;
}

/// Generator of a worker with one model.
pub(super) struct SingleGenerator(pub Box<dyn ImageGenerator>);

impl Generators for SingleGenerator {
    fn select(&mut self, _: usize) -> Result<&mut dyn ImageGenerator, Failure> {
        Ok(&mut *self.0)
    }

    fn unload_others(&mut self, _: usize) -> bool {
        false
    }

    fn check(&mut self, _: usize) -> candle_core::Result<()> {
        self.0.check()
    }
}

impl ImageGenerator for Pipeline {
    fn generate(&mut self, request: &Request, on_step: &mut OnStep) -> crate::Result<Vec<Picture>> {
        let device = self.model.device.clone();
        let mut failed = None;
        // Devices execute steps asynchronously. Without a wait, steps would be reported before they are complete.
        let images = self.run(request, &mut |progress| match device.synchronize() {
            Ok(()) => on_step(progress),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        });
        match failed {
            Some(error) => Err(error.into()),
            None => images,
        }
    }

    fn generate_shared(&mut self, requests: &mut dyn SharedRequests) -> crate::Result<()> {
        self.run_shared(requests)
    }

    fn is_flagged(&self, picture: &Picture) -> crate::Result<Option<bool>> {
        Pipeline::is_flagged(self, picture)
    }

    fn truncates(&self, request: &Request) -> bool {
        let long = |text: &str| self.model.chunks(text).is_ok_and(|(_, truncated)| truncated);
        long(&request.prompt) || long(&request.negative)
    }

    fn check(&self) -> candle_core::Result<()> {
        computes(&self.model.device)
    }
}

/// Checks the device by a multiplication of three numbers.
///
/// # Errors
/// The device fails or computes wrong results.
pub fn computes(device: &Device) -> candle_core::Result<()> {
    let doubled = (Tensor::new(&[1f32, 2.0, 3.0], device)? * 2.0)?.to_vec1::<f32>()?;
    if doubled != [2.0, 4.0, 6.0] {
        candle_core::bail!("device self-test failed: expected [2, 4, 6], got {doubled:?}")
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_passes_the_self_test() {
        computes(&Device::Cpu).unwrap();
    }
}
