//! Embeddings and scores from the states of a model: pooling, linear layers and normalization.
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{D, DType, Device, Tensor};

use super::files::{Description, ModelFiles};
use super::sentence::{Pooling, SentenceModules};

/// Activation function of a linear layer.
#[derive(Clone, Copy, Debug)]
enum Activation {
    Identity,
    Tanh,
    Sigmoid,
}

/// Linear layer after the pooling.
#[derive(Clone, Debug)]
struct Dense {
    linear: candle_nn::Linear,
    width: usize,
    activation: Activation,
}

/// Converts the states of texts to one vector for each text.
#[derive(Clone, Debug)]
pub struct EmbeddingHead {
    poolings: Vec<Pooling>,
    dense: Vec<Dense>,
    normalize: bool,
    width: usize,
}

impl EmbeddingHead {
    /// Creates a head that computes the mean of states of `width` elements.
    pub fn mean(width: usize) -> Self {
        Self::pooled(Pooling::Mean, width)
    }

    /// Creates a head that only pools states of `width` elements.
    pub fn pooled(pooling: Pooling, width: usize) -> Self {
        Self { poolings: vec![pooling], dense: Vec::new(), normalize: false, width }
    }

    /// Creates a head that computes a score: the product of the last state with `weight`, f32 (1, width). If `sigmoid`,
    /// the score is the sigmoid of the product.
    pub fn score(weight: Tensor, sigmoid: bool) -> Self {
        let activation = if sigmoid { Activation::Sigmoid } else { Activation::Identity };
        let dense = Dense { linear: candle_nn::Linear::new(weight, None), width: 1, activation };
        Self { poolings: vec![Pooling::Last], dense: vec![dense], normalize: false, width: 1 }
    }

    /// Loads the modules of a model whose states have `hidden` elements.
    ///
    /// # Errors
    /// Returns an error for invalid files, an unsupported activation, or widths that do not match.
    pub fn load(modules: &SentenceModules, hidden: usize, device: &Device) -> Result<Self> {
        let mut width = hidden * modules.poolings.len();
        let mut dense = Vec::new();
        for folder in &modules.dense {
            let layer = Dense::load(folder, width, device).with_context(|| folder.display().to_string())?;
            width = layer.width;
            dense.push(layer);
        }
        Ok(Self { poolings: modules.poolings.clone(), dense, normalize: modules.normalize, width })
    }

    /// Returns the number of elements of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the only row of each text that the pooling reads, or `None` if it reads several.
    pub fn rows(&self, lengths: &[usize]) -> Option<Vec<u32>> {
        let [pooling @ (Pooling::Cls | Pooling::Last)] = self.poolings[..] else { return None };
        Some(rows_of(pooling, lengths))
    }

    /// Computes vectors (texts, width) of type f32 from the states of all rows, (rows, hidden), or from those of
    /// [`Self::rows`]. `lengths` are the numbers of rows of the texts.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(&self, states: &Tensor, lengths: &[usize]) -> candle_core::Result<Tensor> {
        let states = states.to_dtype(DType::F32)?;
        let mut vectors = match self.rows(lengths) {
            Some(_) if states.dim(0)? == lengths.len() => states,
            _ => {
                let pooled = self.poolings.iter().map(|pooling| pool(*pooling, &states, lengths));
                Tensor::cat(&pooled.collect::<candle_core::Result<Vec<_>>>()?, 1)?
            }
        };
        for dense in &self.dense {
            vectors = candle_core::Module::forward(&dense.linear, &vectors)?;
            vectors = match dense.activation {
                Activation::Identity => vectors,
                Activation::Tanh => vectors.tanh()?,
                Activation::Sigmoid => candle_nn::ops::sigmoid(&vectors)?,
            };
        }
        match self.normalize {
            true => normalized(&vectors),
            false => Ok(vectors),
        }
    }
}

impl Dense {
    fn load(folder: &Path, inputs: usize, device: &Device) -> Result<Self> {
        let mut files = ModelFiles::open(folder)?;
        let Description::Config(config) = &files.description else { bail!("config.json is missing") };
        let width = config["out_features"].as_u64().context("\"out_features\" is not a whole number")?;
        let width = usize::try_from(width)?;
        let activation = config["activation_function"].as_str().unwrap_or_default();
        let activation = match activation.rsplit('.').next().unwrap_or_default() {
            "Tanh" => Activation::Tanh,
            "Identity" => Activation::Identity,
            _ => bail!("the activation {activation:?} is not known; use Tanh or Identity"),
        };
        ensure!(config["use_residual"] != true, "\"use_residual\" is not supported");
        let bias = match config["bias"] == false {
            true => None,
            false => Some(tensor(&mut files, "linear.bias", &[width], device)?),
        };
        let weight = tensor(&mut files, "linear.weight", &[width, inputs], device)?;
        Ok(Self { linear: candle_nn::Linear::new(weight, bias), width, activation })
    }
}

/// Loads a tensor as f32.
fn tensor(files: &mut ModelFiles, name: &str, shape: &[usize], device: &Device) -> Result<Tensor> {
    let info = files.location(name)?.clone();
    ensure!(info.shape == shape, "tensor '{name}' has shape {:?}, expected {shape:?}", info.shape);
    let super::files::Format::Floats(dtype) = info.format else { bail!("tensor '{name}' is quantized") };
    let bytes = files.rows(name, 0..shape[0])?;
    Ok(Tensor::from_raw_buffer(&bytes, dtype, shape, device)?.to_dtype(DType::F32)?)
}

/// Returns the first or last row of each text.
fn rows_of(pooling: Pooling, lengths: &[usize]) -> Vec<u32> {
    let starts = starts(lengths).zip(lengths);
    let row = |(start, length): (usize, &usize)| match pooling {
        Pooling::Last => start + length.saturating_sub(1),
        _ => start,
    };
    starts.map(|text| row(text) as u32).collect()
}

/// Returns the first row of each text.
fn starts(lengths: &[usize]) -> impl Iterator<Item = usize> {
    lengths.iter().scan(0, |next, length| {
        let start = *next;
        *next += length;
        Some(start)
    })
}

/// Pools the states of all texts.
fn pool(pooling: Pooling, states: &Tensor, lengths: &[usize]) -> candle_core::Result<Tensor> {
    let weight: fn(usize, f32) -> f32 = match pooling {
        Pooling::Cls | Pooling::Last => {
            let rows = Tensor::from_vec(rows_of(pooling, lengths), lengths.len(), states.device())?;
            return states.index_select(&rows, 0);
        }
        Pooling::Max => {
            let texts = starts(lengths).zip(lengths);
            let maxima = texts.map(|(start, length)| states.narrow(0, start, *length)?.max(0));
            return Tensor::stack(&maxima.collect::<candle_core::Result<Vec<_>>>()?, 0);
        }
        Pooling::Mean => |_, length| 1.0 / length,
        Pooling::MeanSqrtLength => |_, length| 1.0 / length.sqrt(),
        Pooling::WeightedMean => |index, length| (index + 1) as f32 / (length * (length + 1.0) / 2.0),
    };
    // The sums of all texts are one product with a matrix (texts, rows) of weights.
    let rows = states.dim(0)?;
    let mut weights = vec![0f32; lengths.len() * rows];
    for (text, (start, &length)) in starts(lengths).zip(lengths).enumerate() {
        for index in 0..length {
            weights[text * rows + start + index] = weight(index, length as f32);
        }
    }
    Tensor::from_vec(weights, (lengths.len(), rows), states.device())?.matmul(states)
}

/// Scales rows to length 1, unless they are zero.
fn normalized(vectors: &Tensor) -> candle_core::Result<Tensor> {
    let lengths = vectors.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    vectors.broadcast_div(&lengths.maximum(1e-12)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of 1, 3 and 2 rows.
    fn states() -> Tensor {
        let values = [[3f32, 4.], [1., 8.], [2., 0.], [6., 1.], [-1., -2.], [-3., 2.]];
        Tensor::new(&values, &Device::Cpu).unwrap()
    }

    fn forward(poolings: &[Pooling], normalize: bool) -> Vec<Vec<f32>> {
        let head = EmbeddingHead { poolings: poolings.to_vec(), dense: vec![], normalize, width: 2 };
        head.forward(&states(), &[1, 3, 2]).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn poolings_reduce_each_text() {
        let root = 3f32.sqrt();
        let expected = [
            (Pooling::Cls, [[3., 4.], [1., 8.], [-1., -2.]]),
            (Pooling::Last, [[3., 4.], [6., 1.], [-3., 2.]]),
            (Pooling::Max, [[3., 4.], [6., 8.], [-1., 2.]]),
            (Pooling::Mean, [[3., 4.], [3., 3.], [-2., 0.]]),
            (Pooling::MeanSqrtLength, [[3., 4.], [9. / root, 9. / root], [-4. / 2f32.sqrt(), 0.]]),
            (Pooling::WeightedMean, [[3., 4.], [23. / 6., 11. / 6.], [-7. / 3., 2. / 3.]]),
        ];
        let close = |one: &[f32], other: &[f32]| {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-5)
        };
        for (pooling, expected) in expected {
            let vectors = forward(&[pooling], false);
            for (vector, expected) in vectors.iter().zip(&expected) {
                assert!(close(vector, expected), "{pooling:?}: {vector:?} instead of {expected:?}");
            }
        }
        let both = forward(&[Pooling::Cls, Pooling::Last], false);
        assert!(close(&both[1], &[1., 8., 6., 1.]));
        let unit = forward(&[Pooling::Cls], true);
        assert!(close(&unit[0], &[0.6, 0.8]));
    }

    #[test]
    fn single_rows_may_be_selected_before() {
        let head = EmbeddingHead { poolings: vec![Pooling::Last], dense: vec![], normalize: true, width: 2 };
        let rows = head.rows(&[1, 3, 2]).unwrap();
        assert_eq!(rows, [0, 3, 5]);
        let selected = states().index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap();
        let vectors = |states: &Tensor| head.forward(states, &[1, 3, 2]).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(vectors(&selected), vectors(&states()));
        assert_eq!(EmbeddingHead::mean(2).rows(&[1]), None);
    }
}
