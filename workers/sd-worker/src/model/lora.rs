//! LoRA files: low-rank changes of weights, with the names of kohya, diffusers or PEFT, and LoHa files, whose changes are
//! elementwise products of two low-rank matrices.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use super::low_rank::LowRank;
use super::weights::{View, Weights};
use crate::{Error, Result};

/// Prefixes of layer names, with the index of the network that they refer to.
const NETWORKS: [(&[&str], usize); 4] = [
    (
        &[
            "lora_unet_",
            "unet.",
            "base_model.model.",
            "lora_transformer_",
            "transformer.",
            "model.diffusion_model.",
            "diffusion_model.",
        ],
        NETWORK,
    ),
    (&["lora_te_", "lora_te1_", "text_encoder."], NETWORK + 1),
    (&["lora_te2_", "text_encoder_2."], NETWORK + 2),
    (&["lora_te3_", "text_encoder_3."], NETWORK + 3),
];
/// Index of the UNet or transformer; the text encoders follow.
pub(super) const NETWORK: usize = 0;

/// Suffixes of tensor names, with the part of the change that the tensor holds.
const ENDS: [(&str, Part); 19] = [
    (".lora_down.weight", Part::Down),
    (".lora_up.weight", Part::Up),
    (".lora_A.weight", Part::Down),
    (".lora_B.weight", Part::Up),
    (".lora_A.default.weight", Part::Down),
    (".lora_B.default.weight", Part::Up),
    (".lora_A.default_0.weight", Part::Down),
    (".lora_B.default_0.weight", Part::Up),
    (".lora.down.weight", Part::Down),
    (".lora.up.weight", Part::Up),
    (".lora_linear_layer.down.weight", Part::Down),
    (".lora_linear_layer.up.weight", Part::Up),
    ("_lora.down.weight", Part::Down),
    ("_lora.up.weight", Part::Up),
    (".hada_w1_a", Part::Hadamard(0)),
    (".hada_w1_b", Part::Hadamard(1)),
    (".hada_w2_a", Part::Hadamard(2)),
    (".hada_w2_b", Part::Hadamard(3)),
    (".alpha", Part::Alpha),
];

/// Unsupported kinds of adapters, with substrings of tensor names by which they are recognised.
const OTHERS: [(&str, &[&str]); 8] = [
    ("LoHa with a Tucker decomposition", &[".hada_t"]),
    ("LoKr", &[".lokr_"]),
    ("DoRA", &[".dora_scale", ".lora_magnitude_vector"]),
    ("LoCon with a Tucker decomposition", &[".lora_mid."]),
    ("OFT", &[".oft_"]),
    ("GLoRA", &[".a1.weight", ".b1.weight"]),
    ("IA3", &[".on_input"]),
    ("a difference of whole weights", &[".diff", ".diff_b"]),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Down,
    Up,
    /// Tensor of a LoHa: up and down of the first matrix, then of the second.
    Hadamard(usize),
    Alpha,
}

/// Names of the tensors that change a weight.
#[derive(Debug, Default)]
struct Change {
    down: Option<String>,
    up: Option<String>,
    hadamard: [Option<String>; 4],
    alpha: Option<String>,
}

/// A LoRA file.
pub(super) struct Lora {
    weights: Weights,
    /// Changes by network and by the name of the layer in the file.
    changes: BTreeMap<(usize, String), Change>,
    /// Numerators of the scales by network, for files of PEFT.
    peft_alphas: HashMap<usize, f64>,
}

/// Change of a weight: the elementwise product of low-rank matrices, times `scale`.
pub(super) struct Product {
    /// Factors (rows, rank) and (rank, columns) of each matrix, in f32 on the CPU.
    factors: Vec<[Tensor; 2]>,
    scale: f64,
}

impl Lora {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file is no LoRA, or one of a kind that is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let weights = Weights::open(&[path.to_owned()]).map_err(|e| Error::request(e.to_string()))?;
        let bad = |what: String| Error::request(format!("LoRA {}: {what}", path.display()));
        let mut changes: BTreeMap<(usize, String), Change> = BTreeMap::new();
        for name in weights.names() {
            if let Some((kind, _)) =
                OTHERS.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part)))
            {
                return Err(bad(format!("{kind} is not supported (tensor {name})")));
            }
            let parsed = ENDS.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part)));
            let network = NETWORKS.iter().find_map(|(starts, network)| {
                let rest = starts.iter().find_map(|start| parsed?.0.strip_prefix(start))?;
                Some((*network, rest))
            });
            let (Some((_, part)), Some((network, layer))) = (parsed, network) else {
                return Err(bad(format!("tensor {name} is not part of a LoRA for an image model")));
            };
            // Older versions of diffusers stored the layers of an attention in its processor.
            let layer = layer.replace(".processor.to_out", ".to_out.0").replace(".processor.", ".");
            let change = changes.entry((network, layer)).or_default();
            let slot = match part {
                Part::Down => &mut change.down,
                Part::Up => &mut change.up,
                Part::Hadamard(at) => &mut change.hadamard[at],
                Part::Alpha => &mut change.alpha,
            };
            *slot = Some(name.to_owned());
        }
        if changes.is_empty() {
            return Err(bad("the file has no tensors".to_owned()));
        }
        let peft_alphas = peft_alphas(&weights).map_err(bad)?;
        Ok(Self { weights, changes, peft_alphas })
    }

    /// Returns network and name of each changed layer.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &str)> {
        self.changes.keys().map(|(network, layer)| (*network, layer.as_str()))
    }

    /// Reads the change of a layer whose weight has this shape.
    ///
    /// # Errors
    /// A tensor is missing, or shapes do not match.
    pub fn product(&self, network: usize, layer: &str, shape: &[usize]) -> Result<Product> {
        let path = self.weights.path().display();
        let incomplete =
            || Error::request(format!("LoRA {path}: {layer} lacks a tensor of its low-rank matrices"));
        let change = self.changes.get(&(network, layer.to_owned())).ok_or_else(incomplete)?;
        let pairs = match (&change.up, &change.down, &change.hadamard) {
            (Some(up), Some(down), [None, None, None, None]) => vec![[up, down]],
            (None, None, [Some(up), Some(down), Some(other_up), Some(other_down)]) => {
                vec![[up, down], [other_up, other_down]]
            }
            _ => return Err(incomplete()),
        };
        let load = |name: &str| self.weights.load(name)?.to_dtype(DType::F32);
        let mut rank = 0;
        let mut factors = Vec::new();
        for [up, down] in pairs {
            let (up, down) = (load(up)?, load(down)?);
            let rows = up.dims().first().copied().unwrap_or(0);
            let own = down.dims().first().copied().unwrap_or(0);
            if own == 0 || up.elem_count() != rows * own || !fits(shape, rows, down.dims()) {
                return Err(Error::request(format!(
                    "LoRA {path} is for another network: {layer} has shapes {:?} and {:?}, but the weight has {shape:?}",
                    up.dims(),
                    down.dims()
                )));
            }
            rank = own;
            factors.push([up.reshape((rows, own))?, down.flatten_from(1)?]);
        }
        let alpha = match &change.alpha {
            Some(name) => f64::from(load(name)?.flatten_all()?.get(0)?.to_scalar::<f32>()?),
            None => self.peft_alphas.get(&network).copied().unwrap_or(rank as f64),
        };
        Ok(Product { factors, scale: alpha / rank as f64 })
    }
}

/// Returns true if a product with `rows` rows and the columns of `down` has as many elements as a weight. The `down` of a
/// LoHa of a convolution has a single axis of columns.
fn fits(shape: &[usize], rows: usize, down: &[usize]) -> bool {
    let [own_rows, columns @ ..] = shape else { return false };
    let trimmed = |dims: &[usize]| {
        let rest = dims.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
        dims[..rest].to_vec()
    };
    let down = &down[1..];
    *own_rows == rows && (trimmed(columns) == trimmed(down) || *down == [columns.iter().product::<usize>()])
}

/// Parses PEFT's configuration, which diffusers stores as metadata.
fn peft_alphas(weights: &Weights) -> std::result::Result<HashMap<usize, f64>, String> {
    let Some(text) = weights.metadata("lora_adapter_metadata") else { return Ok(HashMap::new()) };
    let config: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("metadata lora_adapter_metadata: {e}"))?;
    let mut alphas = HashMap::new();
    let networks = ["unet", "text_encoder", "text_encoder_2", "text_encoder_3"].into_iter().enumerate();
    for (network, component) in networks.chain([(NETWORK, "transformer")]) {
        let value = |key: &str| &config[format!("{component}.{key}")];
        for key in ["use_dora", "use_rslora"] {
            if value(key).as_bool() == Some(true) {
                return Err(format!("{key} is not supported"));
            }
        }
        if value("alpha_pattern").as_object().is_some_and(|pattern| !pattern.is_empty()) {
            return Err("alpha_pattern is not supported".to_owned());
        }
        if let Some(alpha) = value("lora_alpha").as_f64() {
            alphas.insert(network, alpha);
        }
    }
    Ok(alphas)
}

/// Returns the change times `factor`, for the rows that `view` selects, as two matrices in f32 on the CPU. For a
/// LoHa, their rank is the product of its two ranks, because the elementwise product of two sums of column-row
/// products is the sum over all pairs. If this rank exceeds the number of columns, the result is the whole change and
/// an identity matrix, which are smaller.
pub(super) fn low_rank(product: &Product, factor: f64, view: View) -> candle_core::Result<LowRank> {
    let (mut all_ranks, mut all_columns) = (1usize, 0);
    for [_, down] in &product.factors {
        let (rank, columns) = down.dims2()?;
        (all_ranks, all_columns) = (all_ranks.saturating_mul(rank), columns);
    }
    let is_full = all_ranks > all_columns;
    let mut total: Option<LowRank> = None;
    if is_full {
        let down = Tensor::eye(all_columns, DType::F32, &Device::Cpu)?;
        total = Some(LowRank { up: delta(product, factor, &Device::Cpu)?, down });
    }
    for [up, down] in product.factors.iter().filter(|_| !is_full) {
        total = Some(match total {
            None => LowRank { up: (up * (product.scale * factor))?, down: down.clone() },
            Some(first) => {
                let (rows, first_rank) = first.up.dims2()?;
                let (rank, columns) = down.dims2()?;
                let ranks = first_rank * rank;
                let up = first.up.unsqueeze(2)?.broadcast_mul(&up.unsqueeze(1)?)?.reshape((rows, ranks))?;
                let down = first.down.unsqueeze(1)?.broadcast_mul(&down.unsqueeze(0)?)?;
                LowRank { up, down: down.reshape((ranks, columns))? }
            }
        });
    }
    let LowRank { down, up } =
        total.ok_or_else(|| candle_core::Error::Msg("a change without factors".to_owned()))?;
    let rows = up.dim(0)?;
    let up = match view {
        View::Rows { from, count, of } => up.narrow(0, rows / of * from, rows / of * count)?,
        View::SwappedHalves => {
            let halves = [up.narrow(0, rows / 2, rows - rows / 2)?, up.narrow(0, 0, rows / 2)?];
            Tensor::cat(&halves, 0)?
        }
        View::Whole | View::Transposed => up,
    };
    Ok(LowRank { down, up })
}

/// Returns the change times `factor`, as a matrix in f32 on `device`.
pub(super) fn delta(product: &Product, factor: f64, device: &Device) -> candle_core::Result<Tensor> {
    let mut total: Option<Tensor> = None;
    for [up, down] in &product.factors {
        let (up, down) = (up.to_device(device)?, down.to_device(device)?);
        total = Some(match total {
            None => (up * (product.scale * factor))?.matmul(&down)?,
            Some(total) => (total * up.matmul(&down)?)?,
        });
    }
    total.ok_or_else(|| candle_core::Error::Msg("a change without factors".to_owned()))
}
