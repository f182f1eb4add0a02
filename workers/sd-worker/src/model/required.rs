//! Weights that a network requires, found by building it without data.
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;

/// Maximum number of weights of a network, which rejects unreasonable configurations.
const MAX_WEIGHTS: usize = 1 << 16;

type List = Arc<Mutex<Vec<(String, Shape)>>>;

/// Returns names and shapes of the weights that `build` requests.
///
/// # Errors
/// Returns the error of `build`, or an error if there are too many.
pub(super) fn required(build: impl FnOnce(VarBuilder) -> Result<()>) -> Result<Vec<(String, Shape)>> {
    let list = List::default();
    let backend = Box::new(Recorder(list.clone()));
    build(VarBuilder::from_backend(backend, DType::F32, Device::Cpu))?;
    Ok(std::mem::take(&mut list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
}

/// Source of weights that share one element.
struct Recorder(List);

impl SimpleBackend for Recorder {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let weight = Tensor::zeros((), dtype, device)?.broadcast_as(&shape)?;
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if list.len() == MAX_WEIGHTS {
            candle_core::bail!("has a configuration that requires more than {MAX_WEIGHTS} tensors")
        }
        list.push((name.to_owned(), shape));
        Ok(weight)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("the network requests {name} without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        false
    }
}
