//! What makes pictures.
use std::ops::ControlFlow;

use candle_core::{Device, Tensor};

use crate::Result;
use crate::picture::Picture;
use crate::pipeline::{OnStep, Pipeline, Request};

/// Makes pictures, one request at a time.
pub trait Painter: Send {
    /// The pictures of a request; `on_step` hears of each step when it is computed.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    fn paint(&mut self, request: &Request, on_step: &mut OnStep) -> Result<Vec<Picture>>;

    /// Whether the prompt is longer than the model reads.
    fn truncates(&self, request: &Request) -> bool;

    /// Whether the device still computes, after a request failed.
    ///
    /// # Errors
    /// It does not.
    fn check(&self) -> candle_core::Result<()>;
}

impl Painter for Pipeline {
    fn paint(&mut self, request: &Request, on_step: &mut OnStep) -> Result<Vec<Picture>> {
        let device = self.model.device.clone();
        let mut failed = None;
        // A card is only told of its steps; without a wait it would hear of all of them before the first is done.
        let painted = self.run(request, &mut |progress| match device.synchronize() {
            Ok(()) => on_step(progress),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        });
        match failed {
            Some(error) => Err(error.into()),
            None => painted,
        }
    }

    fn truncates(&self, request: &Request) -> bool {
        let long = |text: &str| self.model.truncates(text).unwrap_or(false);
        long(&request.prompt) || long(&request.negative)
    }

    fn check(&self) -> candle_core::Result<()> {
        computes(&self.model.device)
    }
}

/// Whether a device doubles three numbers.
fn computes(device: &Device) -> candle_core::Result<()> {
    let doubled = (Tensor::new(&[1f32, 2.0, 3.0], device)? * 2.0)?.to_vec1::<f32>()?;
    if doubled != [2.0, 4.0, 6.0] {
        candle_core::bail!("the device says that twice 1, 2, 3 is {doubled:?}")
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes() {
        computes(&Device::Cpu).unwrap();
    }
}
