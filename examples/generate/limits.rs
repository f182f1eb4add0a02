//! The sizes that a model states about itself, and which of them candle-transformers would panic on.
use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::Content;
use candle_core::safetensors::MmapedSafetensors;
use candle_transformers::models::quantized_llama;
use serde_json::Value;

/// Positions are counted in f32, which has no odd numbers above this.
const LARGEST_CONTEXT: usize = 1 << 24;

/// What a prompt must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions of prompt and text together.
    pub context: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
}

/// The sizes that are divided by, counted to or allocated before any tensor is looked at.
struct Sizes {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head: Option<usize>,
    layers: usize,
    /// How many tensors the files have.
    tensors: usize,
    limits: Limits,
}

impl Limits {
    /// Of a config.json, which is completed by the family's defaults.
    pub fn of_config(config: &Value, weights: &MmapedSafetensors) -> Result<Self> {
        let number = |key: &str| -> Result<usize> {
            let number = config[key].as_u64().and_then(|number| usize::try_from(number).ok());
            number.with_context(|| format!("config.json has no number {key:?}: it is {}", config[key]))
        };
        for key in ["sliding_window", "sliding_window_pattern"] {
            ensure!(config[key] != 0, "config.json: {key:?} is 0");
        }
        let heads = number("num_attention_heads")?;
        let sizes = Sizes {
            hidden: number("hidden_size")?,
            heads,
            kv_heads: if config["num_key_value_heads"].is_null() {
                heads
            } else {
                number("num_key_value_heads")?
            },
            head: if config["head_dim"].is_null() { None } else { Some(number("head_dim")?) },
            layers: number("num_hidden_layers")?,
            tensors: weights.tensors().len(),
            limits: Self { context: number("max_position_embeddings")?, vocabulary: number("vocab_size")? },
        };
        sizes.check().context("config.json")
    }

    /// Of a GGUF file of the architecture `arch`.
    pub fn of_gguf(arch: &str, content: &Content) -> Result<Self> {
        let optional = |key: &str| -> Result<Option<usize>> {
            let value = content.metadata.get(&format!("{arch}.{key}"));
            let number = value.map(|value| value.to_u32()).transpose();
            Ok(number.with_context(|| format!("the metadata {arch}.{key}"))?.map(|number| number as usize))
        };
        let number = |key: &str| optional(key)?.with_context(|| format!("the metadata lacks {arch}.{key}"));
        ensure!(
            optional("attention.sliding_window_type")? != Some(0),
            "the metadata {arch}.attention.sliding_window_type is 0"
        );
        let (tensors, experts) = (content.tensor_infos.len(), optional("expert_count")?.unwrap_or(0));
        ensure!(experts <= tensors, "the metadata claim {experts} experts, the file has {tensors} tensors");
        let embedding =
            content.tensor_infos.get("token_embd.weight").context("there is no token_embd.weight")?;
        let (vocabulary, _) = embedding.shape.dims2().context("token_embd.weight")?;
        let mut context = number("context_length")?;
        if arch == "llama" {
            // Its tables of angles end there, whatever the file says.
            context = context.min(quantized_llama::MAX_SEQ_LEN);
        }
        let sizes = Sizes {
            hidden: number("embedding_length")?,
            heads: number("attention.head_count")?,
            kv_heads: number("attention.head_count_kv")?,
            head: optional("attention.key_length")?,
            layers: number("block_count")?,
            tensors,
            limits: Self { context, vocabulary },
        };
        sizes.check().context("the metadata")
    }
}

impl Sizes {
    fn check(self) -> Result<Limits> {
        let Self { hidden, heads, kv_heads, head, layers, tensors, limits } = self;
        ensure!(heads > 0 && kv_heads > 0, "{heads} heads and {kv_heads} of keys and values");
        ensure!(
            heads.is_multiple_of(kv_heads),
            "{heads} heads cannot share {kv_heads} heads of keys and values"
        );
        let head = match head {
            Some(head) => head,
            None => {
                ensure!(
                    hidden.is_multiple_of(heads),
                    "a width of {hidden} does not divide into {heads} heads"
                );
                hidden / heads
            }
        };
        ensure!(head > 0 && head.is_multiple_of(2), "heads of {head} elements: rotary embeddings need pairs");
        // Each layer has tensors of its own, so a claim beyond them is not allocated for.
        ensure!(
            (1..=tensors).contains(&layers),
            "{layers} layers cannot be made of the file's {tensors} tensors"
        );
        ensure!(
            (1..=LARGEST_CONTEXT).contains(&limits.context),
            "a context of {} positions is not between 1 and {LARGEST_CONTEXT}",
            limits.context
        );
        ensure!(limits.vocabulary > 0, "no vocabulary");
        Ok(limits)
    }
}
