//! Sizes of layers with recurrent states: linear attention by the gated delta rule, Mamba 1 and Mamba 2.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::fields::Fields;

/// Computation of the layers with recurrent states.
#[derive(Clone, Debug, PartialEq)]
pub enum Recurrence {
    /// Linear attention by the gated delta rule.
    GatedDelta {
        /// If true, safetensors have the rows of queries, keys, values and gates of each head of keys together, in one matrix.
        is_grouped: bool,
    },
    /// Mamba 2. Its C, B and x correspond to the queries, keys and values of linear attention.
    Selective(SelectiveConfig),
    /// Mamba 1, whose x are divided into heads of any width.
    Mamba1(Mamba1Config),
}

/// Options of Mamba 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba1Config {
    /// Number of elements from which the steps of a row are projected.
    pub step_rank: usize,
    /// If true, the convolution has biases.
    pub conv_bias: bool,
    /// If true, the projections at both ends of the layer have biases.
    pub projection_bias: bool,
    /// Epsilon of the norms of steps, B and C.
    pub norm_eps: f64,
}

/// Norm of the results of Mamba 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectiveNorm {
    /// There is none.
    Absent,
    /// The results are multiplied by the activated gates, and then normalized.
    AfterGates,
    /// The results are normalized, and then multiplied by the activated gates.
    BeforeGates,
}

/// Options of Mamba 2.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectiveConfig {
    /// If true, the convolution has biases.
    pub conv_bias: bool,
    /// If true, the projections have biases.
    pub projection_bias: bool,
    /// Minimum and maximum step.
    pub step_limits: [f32; 2],
    /// Norm after the recurrence, which normalizes the heads that share one of keys together.
    pub norm: SelectiveNorm,
    /// Epsilon of this norm.
    pub norm_eps: f64,
    /// Factors of the outputs of the input projection: gates, x, B, C and steps, in the order of the files.
    pub input_factors: [f64; 5],
    /// If true, the layers also have attention, whose output is added to that of Mamba 2.
    pub has_parallel_attention: bool,
}

/// Names of the sizes of Mamba 2 in config.json: key heads (groups), value heads, elements of a key (the state) and of a value,
/// and width of the convolution.
pub type SelectiveNames = [&'static str; 5];

/// Names of these sizes in GGUF metadata that was converted to fields of a config.json.
const CONVERTED_NAMES: SelectiveNames = [
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];

/// Widths of the heads into which x of Mamba 1 is divided, if possible.
const MAMBA1_VALUE_WIDTHS: [usize; 3] = [32, 16, 8];

/// Sizes of the layers whose heads have recurrent states.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentConfig {
    /// Number of heads of queries, and of keys.
    pub key_heads: usize,
    /// Number of heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Number of elements of a query or a key.
    pub key_width: usize,
    /// Number of elements of a value.
    pub value_width: usize,
    /// Number of rows whose inputs the convolution of a row reads, including its own.
    pub conv_width: usize,
    /// Layers: true if they have recurrent states, false if they have only a cache of keys and values or neither.
    pub layers: Vec<bool>,
    /// Computation of the layers.
    pub kind: Recurrence,
}

impl RecurrentConfig {
    /// Reads the sizes of linear attention.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn of_delta_rule(fields: &Fields, is_grouped: bool) -> Result<Self> {
        let count = fields.required("num_hidden_layers")?;
        let layers = match fields.value("layer_types").and_then(Value::as_array) {
            Some(kinds) => kinds.iter().map(|kind| kind == "linear_attention").collect(),
            None => {
                let interval = fields.required("full_attention_interval")?;
                (1..=count).map(|layer| !layer.is_multiple_of(interval)).collect()
            }
        };
        Self::read(fields, CONVERTED_NAMES, layers, Recurrence::GatedDelta { is_grouped })
    }

    /// Reads the sizes of Mamba 2, by their names in config.json or by those of converted metadata.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn of_mamba(fields: &Fields, names: SelectiveNames, options: SelectiveConfig) -> Result<Self> {
        let layers = match options.has_parallel_attention {
            true => vec![true; fields.required("num_hidden_layers")?],
            false => mamba_layers(fields)?,
        };
        let is_converted = fields.value(CONVERTED_NAMES[0]).is_some();
        let names = if is_converted { CONVERTED_NAMES } else { names };
        Self::read(fields, names, layers, Recurrence::Selective(options))
    }

    /// Reads the sizes of Mamba 1.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn of_mamba1(fields: &Fields, options: Mamba1Config) -> Result<Self> {
        let either = |converted: &str, own: &str| match fields.size(converted)? {
            Some(size) => Ok(size),
            None => fields.required(own),
        };
        let values = match fields.size("mamba_d_inner")? {
            Some(values) => values,
            None => {
                let (expand, hidden) = (fields.required("mamba_expand")?, fields.required("hidden_size")?);
                expand.checked_mul(hidden).context("\"mamba_expand\" is too large")?
            }
        };
        let value_width = MAMBA1_VALUE_WIDTHS.into_iter().find(|width| values.is_multiple_of(*width));
        let value_width = value_width.unwrap_or(1);
        let config = Self {
            key_heads: 1,
            value_heads: values / value_width,
            key_width: either("linear_key_head_dim", "mamba_d_state")?,
            value_width,
            conv_width: either("linear_conv_kernel_dim", "mamba_d_conv")?,
            layers: mamba_layers(fields)?,
            kind: Recurrence::Mamba1(options),
        };
        config.checked("mamba_d_conv")
    }

    fn read(fields: &Fields, names: SelectiveNames, layers: Vec<bool>, kind: Recurrence) -> Result<Self> {
        let [key_heads, value_heads, key_width, value_width, conv_width] = names;
        let (of_keys, of_values) = (fields.required(key_heads)?, fields.required(value_heads)?);
        ensure!(
            of_values.is_multiple_of(of_keys),
            "{of_values} heads of values cannot share {of_keys} heads of keys: the first number must be a multiple of the \
             second"
        );
        let config = Self {
            key_heads: of_keys,
            value_heads: of_values,
            key_width: fields.required(key_width)?,
            value_width: fields.required(value_width)?,
            conv_width: fields.required(conv_width)?,
            layers,
            kind,
        };
        config.checked(conv_width)
    }

    /// Checks that the sizes are supported. `conv_name` is the field of the width of the convolution.
    fn checked(self, conv_name: &str) -> Result<Self> {
        let width = self.conv_width;
        ensure!((2..=1024).contains(&width), "{conv_name:?} is {width}, but must be 2 to 1024");
        let widths = [self.key_heads * 2, self.key_width, self.value_heads, self.value_width];
        let size = widths.iter().try_fold(1usize, |size, width| size.checked_mul(*width));
        size.filter(|size| *size < 1 << 40).context("the sizes of recurrent states are too large")?;
        Ok(self)
    }

    /// Returns true if the layers also have attention.
    pub fn has_parallel_attention(&self) -> bool {
        matches!(self.kind, Recurrence::Selective(SelectiveConfig { has_parallel_attention: true, .. }))
    }

    /// Returns the index of a value head of linear attention in GGUF files. They contain the first value head of each key
    /// head, then the second one of each, and so on.
    pub fn stored_head(&self, head: usize) -> usize {
        let shared = self.value_heads / self.key_heads;
        head % shared * self.key_heads + head / shared
    }

    /// Returns the number of elements of all queries, and of all keys, of a row.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_width
    }

    /// Returns the number of elements of all values of a row.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_width
    }

    /// Returns the number of channels of the convolution: queries, keys and values, or values of Mamba 1.
    pub fn channels(&self) -> usize {
        match self.kind {
            Recurrence::Mamba1(_) => self.values(),
            _ => 2 * self.keys() + self.values(),
        }
    }
}

/// Returns true for each layer with Mamba.
fn mamba_layers(fields: &Fields) -> Result<Vec<bool>> {
    let kinds = fields.value("layer_types").and_then(Value::as_array);
    let kinds = kinds.context("\"layer_types\" is missing")?;
    Ok(kinds.iter().map(|kind| kind == "linear_attention" || kind == "mamba").collect())
}
