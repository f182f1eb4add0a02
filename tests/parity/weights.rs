//! Random weights that need no file: each number follows from the tensor's name and its place in it.
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// The names and shapes that a model has asked for.
pub type Asked = Arc<Mutex<Vec<(String, Shape)>>>;

/// Gives every tensor that is asked for, the same on every device.
pub struct Weights {
    /// The numbers are those of this dtype, whatever dtype they are asked for in.
    rounded_to: DType,
    asked: Asked,
}

/// Weights of `dtype` whose numbers are those of `rounded_to`.
pub fn weights(rounded_to: DType, dtype: DType, device: &Device) -> VarBuilder<'static> {
    noted_weights(rounded_to, dtype, device, Asked::default())
}

/// [`weights`] that note what is asked for.
pub fn noted_weights(rounded_to: DType, dtype: DType, device: &Device, asked: Asked) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Weights { rounded_to, asked }), dtype, device.clone())
}

impl SimpleBackend for Weights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        self.asked.lock().expect("no panic holds it").push((name.to_string(), shape.clone()));
        named(name, &shape)?.to_dtype(self.rounded_to)?.to_dtype(dtype)?.to_device(device)
    }

    /// Only rwkv_v7 asks without a shape, to read the ranks of its small products.
    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.get((64, 8).into(), name, Init::Const(0.0), dtype, device)
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
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
