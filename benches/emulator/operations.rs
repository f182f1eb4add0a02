//! Tensor operations whose time must not exceed a multiple of the CPU device's.
use super::measure::compare;
use anyhow::Result;
use candle_core::{D, DType, Device, Tensor};

const ROUNDS: usize = 5;

type Operation = fn(&[Tensor; 2]) -> candle_core::Result<Tensor>;

/// Name, shape of the operands, and operation on the first or on both of them.
const OPERATIONS: [(&str, &[usize], Operation); 6] = [
    ("add f32 4M", &[4 << 20], |[x, y]| x + y),
    ("exp f32 4M", &[4 << 20], |[x, _]| x.exp()),
    ("cast f32->f16 4M", &[4 << 20], |[x, _]| x.to_dtype(DType::F16)),
    ("cast f32->u8 4M", &[4 << 20], |[x, _]| x.to_dtype(DType::U8)),
    ("sum 2048x2048", &[2048, 2048], |[x, _]| x.sum(D::Minus1)),
    ("softmax 2048x1024", &[2048, 1024], |[x, _]| candle_nn::ops::softmax_last_dim(x)),
];

/// Measures the operations whose name contains `part`.
pub fn measure(devices: &[Device], part: &str) -> Result<()> {
    for (name, shape, operation) in OPERATIONS.into_iter().filter(|(name, ..)| name.contains(part)) {
        let operands = |device: &Device| Ok([operand(shape, 37, device)?, operand(shape, 41, device)?]);
        compare(name, devices, ROUNDS, operands, |operands| Ok(operation(operands)?))?;
    }
    Ok(())
}

/// Returns a tensor of scattered numbers from 0 to 7.
fn operand(shape: &[usize], factor: usize, device: &Device) -> Result<Tensor> {
    let elements = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..elements).map(|i| (i * factor % 1009) as f32 / 144.0).collect();
    Ok(Tensor::from_vec(values, shape, device)?)
}
