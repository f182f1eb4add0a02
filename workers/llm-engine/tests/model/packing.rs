//! Tiny checkpoints with quantized weights, packed from known numbers, scales and zero points.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use serde_json::{Value, json};

use super::steps::random;

/// A tensor of a safetensors file: its dtype, shape and bytes.
#[derive(Clone)]
pub struct Stored {
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Stored>;

impl Stored {
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: "F32", shape: shape.into(), bytes }
    }

    pub fn f16(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        Self { dtype: "F16", shape: shape.into(), bytes }
    }

    pub fn bf16(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        Self { dtype: "BF16", shape: shape.into(), bytes }
    }

    pub fn i32(shape: &[usize], values: impl IntoIterator<Item = u32>) -> Self {
        let bytes = values.into_iter().flat_map(u32::to_le_bytes).collect();
        Self { dtype: "I32", shape: shape.into(), bytes }
    }
}

/// Writes a safetensors folder.
pub fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, Stored { dtype, shape, bytes }) in tensors {
        let start = data.len();
        data.extend(bytes);
        header.insert(
            name.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// Weights of four bits: scale · (number - zero point).
pub struct FourBits {
    outputs: usize,
    inputs: usize,
    /// Number of groups.
    count: usize,
    /// Numbers from 0 to 15, (outputs, inputs).
    numbers: Vec<u8>,
    /// Zero points, (groups, outputs).
    zeros: Vec<u8>,
    /// Scales, (groups, outputs), which are exact in f16 and bf16.
    scales: Vec<f32>,
    /// Group of each input feature.
    groups: Vec<usize>,
}

/// Kind of weights of four bits.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub group: usize,
    /// If true, zero points are 8, otherwise from 0 to 15.
    pub symmetric: bool,
    /// If true, groups are not in order.
    pub reordered: bool,
}

impl FourBits {
    pub fn random(seed: usize, [outputs, inputs]: [usize; 2], kind: Kind) -> Self {
        let mut next = random(seed as u64 + 100);
        let mut below = |limit: usize| ((next() + 1.0) / 2.0 * limit as f32) as usize % limit;
        let count = inputs / kind.group;
        let numbers = (0..outputs * inputs).map(|_| below(16) as u8).collect();
        let zeros = (0..count * outputs).map(|_| if kind.symmetric { 8 } else { below(16) as u8 }).collect();
        let scales = (0..count * outputs).map(|_| (128 + below(128)) as f32 * 2f32.powi(-13)).collect();
        let mut groups: Vec<usize> = (0..inputs).map(|input| input / kind.group).collect();
        if kind.reordered {
            groups = (0..inputs).map(|input| groups[input * 37 % inputs]).collect();
        }
        Self { outputs, inputs, count, numbers, zeros, scales, groups }
    }

    fn number(&self, output: usize, input: usize) -> u32 {
        self.numbers[output * self.inputs + input].into()
    }

    fn zero(&self, output: usize, group: usize) -> u32 {
        self.zeros[group * self.outputs + output].into()
    }

    fn scale(&self, output: usize, group: usize) -> f32 {
        self.scales[group * self.outputs + output]
    }

    /// Returns the weights, (outputs, inputs), and scale · zero point of each.
    pub fn weights(&self) -> (Vec<f32>, Vec<f32>) {
        let places = (0..self.outputs).flat_map(|output| (0..self.inputs).map(move |input| (output, input)));
        let weight = |(output, input): (usize, usize)| {
            let group = self.groups[input];
            let (scale, zero) = (self.scale(output, group), self.zero(output, group) as f32);
            (scale * (self.number(output, input) as f32 - zero), scale * zero)
        };
        places.map(weight).unzip()
    }

    fn oriented(&self, values: impl Fn(usize, usize) -> f32, outputs_first: bool) -> Vec<f32> {
        match outputs_first {
            true => (0..self.outputs)
                .flat_map(|o| (0..self.count).map(move |g| (o, g)))
                .map(|(o, g)| values(o, g))
                .collect(),
            false => (0..self.count)
                .flat_map(|g| (0..self.outputs).map(move |o| (o, g)))
                .map(|(o, g)| values(o, g))
                .collect(),
        }
    }

    /// Returns the tensors of GPTQ, from whose words of zero points the first version of the format
    /// subtracts 1 for each number.
    pub fn gptq(&self, base: &str, version: u32) -> Tensors {
        let Self { outputs, inputs, count, .. } = *self;
        let weights = down([inputs, outputs], |input, output| self.number(output, input));
        let zeros = along([count, outputs], |group, output| self.zero(output, group));
        let less = if version == 1 { 0x1111_1111 } else { 0 };
        let zeros = zeros.into_iter().map(|word| word.wrapping_sub(less));
        let groups = self.groups.iter().map(|group| *group as u32);
        [
            ("qweight", Stored::i32(&[inputs / 8, outputs], weights)),
            ("qzeros", Stored::i32(&[count, outputs / 8], zeros)),
            ("scales", Stored::f16(&[count, outputs], &self.oriented(|o, g| self.scale(o, g), false))),
            ("g_idx", Stored::i32(&[inputs], groups)),
        ]
        .map(|(part, tensor)| (format!("{base}.{part}"), tensor))
        .into()
    }

    /// Returns the tensors of AWQ. Word by word, the number at place n is that of output feature `ORDER[n]`.
    pub fn awq(&self, base: &str) -> Tensors {
        const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
        let Self { outputs, inputs, count, .. } = *self;
        let shuffled = |output: usize| output / 8 * 8 + ORDER[output % 8];
        let weights = along([inputs, outputs], |input, output| self.number(shuffled(output), input));
        let zeros = along([count, outputs], |group, output| self.zero(shuffled(output), group));
        [
            ("qweight", Stored::i32(&[inputs, outputs / 8], weights)),
            ("qzeros", Stored::i32(&[count, outputs / 8], zeros)),
            ("scales", Stored::f16(&[count, outputs], &self.oriented(|o, g| self.scale(o, g), false))),
        ]
        .map(|(part, tensor)| (format!("{base}.{part}"), tensor))
        .into()
    }

    /// Returns the tensors of compressed-tensors, format pack-quantized. Symmetric weights have no zero points.
    pub fn compressed_tensors(&self, base: &str, kind: Kind) -> Tensors {
        let Self { outputs, inputs, count, .. } = *self;
        let weights = along([outputs, inputs], |output, input| self.number(output, input));
        let zeros = down([outputs, count], |output, group| self.zero(output, group));
        let groups = self.groups.iter().map(|group| *group as u32);
        let mut tensors: Tensors = [
            ("weight_packed", Stored::i32(&[outputs, inputs / 8], weights)),
            ("weight_scale", Stored::bf16(&[outputs, count], &self.oriented(|o, g| self.scale(o, g), true))),
        ]
        .map(|(part, tensor)| (format!("{base}.{part}"), tensor))
        .into();
        if !kind.symmetric {
            tensors.insert(format!("{base}.weight_zero_point"), Stored::i32(&[outputs / 8, count], zeros));
        }
        if kind.reordered {
            tensors.insert(format!("{base}.weight_g_idx"), Stored::i32(&[inputs], groups));
        }
        tensors
    }
}

/// Packing of weights of four bits.
#[derive(Clone, Copy, Debug)]
pub enum Packing {
    Gptq(u32),
    Awq,
    CompressedTensors,
}

impl Packing {
    pub fn tensors(self, weights: &FourBits, base: &str, kind: Kind) -> Tensors {
        match self {
            Self::Gptq(version) => weights.gptq(base, version),
            Self::Awq => weights.awq(base),
            Self::CompressedTensors => weights.compressed_tensors(base, kind),
        }
    }

    pub fn config(self, kind: Kind) -> Value {
        let Kind { group, symmetric, reordered } = kind;
        match self {
            Self::Gptq(version) => {
                json!({"quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric,
                "desc_act": reordered, "checkpoint_format": if version == 1 { "gptq" } else { "gptq_v2" }})
            }
            Self::Awq => {
                json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": true})
            }
            Self::CompressedTensors => {
                json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
                "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group}}}})
            }
        }
    }
}

/// Packs eight neighbors of a row into a word, the first in its lowest bits.
fn along([rows, columns]: [usize; 2], number: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    let words = (0..rows).flat_map(|row| (0..columns / 8).map(move |word| (row, word)));
    let pack = |(row, word)| (0..8).map(|place| number(row, word * 8 + place) << (4 * place)).sum();
    words.map(pack).collect()
}

/// Packs eight neighbors of a column into a word, the first in its lowest bits.
fn down([rows, columns]: [usize; 2], number: impl Fn(usize, usize) -> u32) -> Vec<u32> {
    let words = (0..rows / 8).flat_map(|word| (0..columns).map(move |column| (word, column)));
    let pack = |(word, column)| (0..8).map(|place| number(word * 8 + place, column) << (4 * place)).sum();
    words.map(pack).collect()
}

/// Random bytes that are numbers as e4m3, and their values by Candle's conversion.
pub fn floats_of_8_bits(seed: usize, count: usize) -> (Vec<u8>, Vec<f32>) {
    let mut next = random(seed as u64 + 500);
    // Magnitudes below 2.
    let bytes: Vec<u8> = (0..count).map(|_| ((next() + 1.0) * 1023.9) as u32 as u8 & 0xbf).collect();
    let tensor = Tensor::from_raw_buffer(&bytes, DType::F8E4M3, &[count], &Device::Cpu).unwrap();
    (bytes, tensor.to_dtype(DType::F32).unwrap().to_vec1().unwrap())
}

/// Random signed integers of 8 bits.
pub fn integers(seed: usize, count: usize) -> Vec<u8> {
    let mut next = random(seed as u64 + 900);
    (0..count).map(|_| (next() * 127.9) as i8 as u8).collect()
}

/// Returns the tensors of a matrix with this name and shape, and its weights.
pub type Quantize<'a> = dyn Fn(usize, &str, [usize; 2]) -> (Tensors, Vec<f32>) + 'a;

/// Returns the tensors of a checkpoint whose linear layers are quantized, and of one with the same weights as floats.
pub fn checkpoints(weights: &HashMap<String, Tensor>, quantize: &Quantize) -> [Tensors; 2] {
    let [mut quantized, mut floats] = [Tensors::new(), Tensors::new()];
    let mut names: Vec<_> = weights.keys().collect();
    names.sort();
    for (seed, name) in names.into_iter().enumerate() {
        let tensor = &weights[name];
        let plain = Stored::f32(tensor.dims(), &tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        match (name.strip_suffix(".weight"), tensor.dims()) {
            (Some(base), &[outputs, inputs])
                if !name.contains("embed") && !name.contains("lm_head") && !name.ends_with("gate.weight") =>
            {
                let (tensors, values) = quantize(seed, base, [outputs, inputs]);
                quantized.extend(tensors);
                floats.insert(name.clone(), Stored::f32(tensor.dims(), &values));
            }
            _ => {
                quantized.insert(name.clone(), plain.clone());
                floats.insert(name.clone(), plain);
            }
        }
    }
    [quantized, floats]
}

/// Tensors of a matrix in floats of 8 bits with a scale for each block of 128 x 128, and its weights.
pub fn in_blocks(seed: usize, base: &str, [outputs, inputs]: [usize; 2]) -> (Tensors, Vec<f32>) {
    let (bytes, floats) = floats_of_8_bits(seed, outputs * inputs);
    let (rows, columns) = (outputs.div_ceil(128), inputs.div_ceil(128));
    let scales: Vec<f32> = (0..rows * columns).map(|index| 0.15 + 0.07 * index as f32).collect();
    let scale = |index: usize| scales[index / inputs / 128 * columns + index % inputs / 128];
    let values = floats.iter().enumerate().map(|(index, value)| value * scale(index)).collect();
    let tensors = [
        (format!("{base}.weight"), Stored { dtype: "F8_E4M3", shape: vec![outputs, inputs], bytes }),
        (format!("{base}.weight_scale_inv"), Stored::f32(&[rows, columns], &scales)),
    ];
    (tensors.into(), values)
}
