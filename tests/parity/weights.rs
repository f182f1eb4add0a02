//! Random weights without files: each number is derived from the tensor's name and the element's index.
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// Names and shapes of the tensors that a model has requested.
pub type Requests = Arc<Mutex<Vec<(String, Shape)>>>;

/// Backend that creates every requested tensor, with the same values on every device.
pub struct Weights {
    /// Dtype to which the numbers are rounded before they are converted to the requested dtype.
    rounded_to: DType,
    requests: Requests,
    named: fn(&str, &Shape) -> Result<Tensor>,
    is_absent: fn(&str, &[usize]) -> bool,
}

/// Returns weights of `dtype` whose numbers are rounded to `rounded_to`.
pub fn weights(rounded_to: DType, dtype: DType, device: &Device) -> VarBuilder<'static> {
    recording_weights(rounded_to, dtype, device, Requests::default())
}

/// Returns [`weights`] that record the requested tensors.
pub fn recording_weights(
    rounded_to: DType,
    dtype: DType,
    device: &Device,
    requests: Requests,
) -> VarBuilder<'static> {
    let weights = Weights { rounded_to, requests, named, is_absent: |_, _| false };
    VarBuilder::from_backend(Box::new(weights), dtype, device.clone())
}

/// Returns f32 weights of models with convolutions. Tensors for which `is_absent` returns true do not exist.
pub fn convolution_weights(device: &Device, is_absent: fn(&str, &[usize]) -> bool) -> VarBuilder<'static> {
    let weights =
        Weights { rounded_to: DType::F32, requests: Requests::default(), named: convolution, is_absent };
    VarBuilder::from_backend(Box::new(weights), DType::F32, device.clone())
}

impl SimpleBackend for Weights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        // Models request convolutions of kernel size 0 to check that they do not exist.
        if (self.is_absent)(name, shape.dims()) || shape.elem_count() == 0 {
            return Err(Error::CannotFindTensor { path: name.to_string() });
        }
        self.requests.lock().expect("the lock is not poisoned").push((name.to_string(), shape.clone()));
        (self.named)(name, &shape)?.to_dtype(self.rounded_to)?.to_dtype(dtype)?.to_device(device)
    }

    /// Used only by rwkv_v7, which reads the ranks of its low-rank products from the shapes.
    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.get((64, 8).into(), name, Init::Const(0.0), dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !(self.is_absent)(name, &[])
    }
}

/// Returns the tensor of a name. Matrix rows have a norm near one, so that activations keep their size from
/// layer to layer; norm weights are near one, biases near zero.
pub fn named(name: &str, shape: &Shape) -> Result<Tensor> {
    let (centre, spread) = match *shape.dims() {
        [_] if name.ends_with("weight") => (1.0, 0.25),
        [.., columns] if shape.rank() > 1 => (0.0, (3.0 / columns as f32).sqrt()),
        _ => (0.0, 0.25),
    };
    random(name, shape, (centre, spread))
}

/// Like [`named`], but tensors of more than two dimensions are convolutions, whose filters have a norm near
/// one. Variances, slopes and channel scales are near one.
fn convolution(name: &str, shape: &Shape) -> Result<Tensor> {
    let inputs = shape.dims().iter().skip(1).product::<usize>();
    match shape.dims() {
        // Larger variances compensate the growth of activations by residual connections.
        _ if name.ends_with("running_var") => random(name, shape, (4.0, 1.0)),
        _ if name.ends_with("alpha") || (shape.rank() > 2 && inputs == 1) => random(name, shape, (1.0, 0.25)),
        // A table of positions, or a class token.
        [1, ..] if shape.rank() > 2 => random(name, shape, (0.0, 0.5)),
        _ if shape.rank() > 2 => random(name, shape, (0.0, (3.0 / inputs as f32).sqrt())),
        _ => named(name, shape),
    }
}

/// Returns numbers derived from the name, at most `spread` from `centre`.
pub fn random(name: &str, shape: &Shape, (centre, spread): (f32, f32)) -> Result<Tensor> {
    let seed = name.bytes().fold(0, |seed, byte| splitmix64(seed ^ u64::from(byte)));
    let number = |i: u64| {
        // 24 random bits give a number in [-1, 1).
        let unit = (splitmix64(seed.wrapping_add(i)) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        centre + spread * unit
    };
    Tensor::from_iter((0..shape.elem_count() as u64).map(number), &Device::Cpu)?.reshape(shape)
}

/// Hash function of SplitMix64.
fn splitmix64(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
