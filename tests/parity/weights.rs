//! Random weights that need no file: each number follows from the tensor's name and its place in it.
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// The names and shapes that a model has asked for.
pub type Asked = Arc<Mutex<Vec<(String, Shape)>>>;

/// Gives every tensor that is asked for, the same on every device.
pub struct Weights {
    /// The numbers are those of this dtype, whatever dtype they are asked for in.
    rounded_to: DType,
    asked: Asked,
    named: fn(&str, &Shape) -> Result<Tensor>,
    is_absent: fn(&str, &[usize]) -> bool,
}

/// Weights of `dtype` whose numbers are those of `rounded_to`.
pub fn weights(rounded_to: DType, dtype: DType, device: &Device) -> VarBuilder<'static> {
    noted_weights(rounded_to, dtype, device, Asked::default())
}

/// [`weights`] that note what is asked for.
pub fn noted_weights(rounded_to: DType, dtype: DType, device: &Device, asked: Asked) -> VarBuilder<'static> {
    let weights = Weights { rounded_to, asked, named, is_absent: |_, _| false };
    VarBuilder::from_backend(Box::new(weights), dtype, device.clone())
}

/// Weights of models with convolutions in f32, without the tensors that `is_absent` by name and dimensions.
pub fn convolution_weights(device: &Device, is_absent: fn(&str, &[usize]) -> bool) -> VarBuilder<'static> {
    let weights = Weights { rounded_to: DType::F32, asked: Asked::default(), named: convolution, is_absent };
    VarBuilder::from_backend(Box::new(weights), DType::F32, device.clone())
}

impl SimpleBackend for Weights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        // Models ask for convolutions of kernel size 0 to find out that they have none.
        if (self.is_absent)(name, shape.dims()) || shape.elem_count() == 0 {
            return Err(Error::CannotFindTensor { path: name.to_string() });
        }
        self.asked.lock().expect("no panic holds it").push((name.to_string(), shape.clone()));
        (self.named)(name, &shape)?.to_dtype(self.rounded_to)?.to_dtype(dtype)?.to_device(device)
    }

    /// Only rwkv_v7 asks without a shape, to read the ranks of its small products.
    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.get((64, 8).into(), name, Init::Const(0.0), dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !(self.is_absent)(name, &[])
    }
}

/// The tensor of a name. Rows of a matrix have a length near one, so that nothing grows or fades from layer
/// to layer; the weights of a norm lie around one, biases around zero.
pub fn named(name: &str, shape: &Shape) -> Result<Tensor> {
    let (centre, spread) = match *shape.dims() {
        [_] if name.ends_with("weight") => (1.0, 0.25),
        [.., columns] if shape.rank() > 1 => (0.0, (3.0 / columns as f32).sqrt()),
        _ => (0.0, 0.25),
    };
    random(name, shape, (centre, spread))
}

/// Like [`named`], where tensors of more than two dimensions are convolutions: variances, slopes and scales of channels
/// lie around one, and what a convolution adds up for one result has a length near one.
fn convolution(name: &str, shape: &Shape) -> Result<Tensor> {
    let inputs = shape.dims().iter().skip(1).product::<usize>();
    match shape.dims() {
        // Blocks add to what goes past them, and statistics of a trained model keep that from growing.
        _ if name.ends_with("running_var") => random(name, shape, (4.0, 1.0)),
        _ if name.ends_with("alpha") || (shape.rank() > 2 && inputs == 1) => random(name, shape, (1.0, 0.25)),
        // A table of positions, or a token.
        [1, ..] if shape.rank() > 2 => random(name, shape, (0.0, 0.5)),
        _ if shape.rank() > 2 => random(name, shape, (0.0, (3.0 / inputs as f32).sqrt())),
        _ => named(name, shape),
    }
}

/// Numbers that follow from the name, at most `spread` from `centre`.
pub fn random(name: &str, shape: &Shape, (centre, spread): (f32, f32)) -> Result<Tensor> {
    let seed = name.bytes().fold(0, |seed, byte| mixed(seed ^ u64::from(byte)));
    let number = |i: u64| {
        // 24 bits make a number of [-1, 1).
        let unit = (mixed(seed.wrapping_add(i)) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        centre + spread * unit
    };
    Tensor::from_iter((0..shape.elem_count() as u64).map(number), &Device::Cpu)?.reshape(shape)
}

/// Splitmix64: neighbouring numbers give unrelated ones.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
