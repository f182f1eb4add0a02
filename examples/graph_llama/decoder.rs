//! Llama with the weights and the configuration of candle-transformers, and a static cache.
use candle_core::rocm::{FusedProduct, GateActivation, RocmGraph};
use candle_core::{D, DType, Device, Result, Tensor, bail};
use candle_flash_attn::flash_attn_varlen_paged_windowed;
use candle_nn::VarBuilder;
use candle_nn::fused::Rotary;
use candle_nn::fused_attention::ScoreParams;
use candle_nn::static_cache::{PAGE_SIZE, StaticCache, StaticCacheSize};
use candle_transformers::models::llama::Config;

/// Decoder of one sequence. [`Self::step`] has no other input than the memory of the device. Tokens of even and odd steps
/// have their own memory, so that the host can read a token while the next step runs.
pub struct Decoder {
    embeddings: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    /// Cosines and sines of all positions, f32 (positions, width / 2).
    rotary: [Tensor; 2],
    cache: StaticCache,
    /// Tokens of steps with even and with odd numbers, u32 (1) each.
    tokens: [Tensor; 2],
    /// Ends of the queries, u32 (2): one query.
    query_ends: Tensor,
    eps: f32,
}

struct Layer {
    input_norm: Tensor,
    query_key_value: Tensor,
    output: Tensor,
    feed_forward_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    /// Widths of queries, keys and values.
    widths: [usize; 3],
}

impl Decoder {
    /// Loads the weights, with a cache of at least `context` positions.
    ///
    /// # Errors
    /// If the rotary embedding is scaled, weights are missing or have other shapes, or there is not enough memory.
    pub fn load(config: &Config, context: usize, weights: &VarBuilder) -> Result<Self> {
        if config.rope_scaling.is_some() {
            bail!("the configuration has rope_scaling, which this example does not support");
        }
        let (hidden, device) = (config.hidden_size, weights.device());
        let (heads, key_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let width = hidden / heads;
        let size = StaticCacheSize {
            layers: config.num_hidden_layers,
            sequences: 1,
            capacity: context.next_multiple_of(PAGE_SIZE),
            key_heads,
            width,
        };
        let embeddings = weights.get((config.vocab_size, hidden), "model.embed_tokens.weight")?;
        let head = match config.tie_word_embeddings {
            true => embeddings.clone(),
            false => weights.get((config.vocab_size, hidden), "lm_head.weight")?,
        };
        let token = || Tensor::zeros(1, DType::U32, device);
        let layers = (0..config.num_hidden_layers)
            .map(|layer| Layer::load(config, &weights.pp("model.layers").pp(layer)));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            norm: weights.get(hidden, "model.norm.weight")?,
            head,
            embeddings,
            rotary: rotary(config.rope_theta, size.capacity, width, device)?,
            cache: StaticCache::new(size, weights.dtype(), device)?,
            tokens: [token()?, token()?],
            query_ends: Tensor::new(&[0u32, 1], device)?,
            eps: config.rms_norm_eps as f32,
        })
    }

    /// Sets the position of the next step; 0 starts a new sequence.
    ///
    /// # Errors
    /// If the device fails.
    pub fn set_position(&self, position: u32) -> Result<()> {
        self.cache.set_positions(&[position])
    }

    /// Sets the token of step `number`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn set_token(&self, number: usize, token: u32) -> Result<()> {
        let to = self.token(number);
        to.slice_set(&Tensor::new(&[token], to.device())?, 0, 0)
    }

    /// Returns the token of step `number`, u32 (1), which the step before it predicts. The step after it does not change
    /// the token, so that it can be read in the meantime.
    pub fn token(&self, number: usize) -> &Tensor {
        &self.tokens[number % 2]
    }

    /// Captures a step with an even number, and one with an odd number, on a ROCm device. Before, runs a step at position 0, so
    /// that position and token must be set afterwards.
    ///
    /// # Errors
    /// If the step cannot be captured, or the device fails.
    pub fn capture(&self) -> Result<[RocmGraph; 2]> {
        // The first step loads kernels and libraries, which a capture cannot do.
        self.set_position(0)?;
        self.step(0)?;
        let device = self.token(0).device().as_rocm_device()?;
        let capture = |number| device.capture(|| self.step(number)).map(|(graph, ())| graph);
        Ok([capture(0)?, capture(1)?])
    }

    /// Enqueues step `number`, which can be captured as a graph: reads its token and its position from the memory of the
    /// device, and writes the predicted token and the next position there.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self, number: usize) -> Result<()> {
        let mut x = self.embeddings.index_select(self.token(number), 0)?;
        for (at, layer) in self.layers.iter().enumerate() {
            let query_key_value = product(&x, &layer.query_key_value);
            let attended =
                self.attend(at, layer, &query_key_value.rms_norm(&layer.input_norm, self.eps).forward()?)?;
            x = product(&attended, &layer.output).residual(&x).forward()?;
            let gate_up = product(&x, &layer.gate_up).rms_norm(&layer.feed_forward_norm, self.eps);
            x = product(&gate_up.gated(GateActivation::Silu).forward()?, &layer.down)
                .residual(&x)
                .forward()?;
        }
        let logits = product(&x, &self.head).rms_norm(&self.norm, self.eps).forward()?;
        self.token(number + 1).slice_set(&logits.argmax(D::Minus1)?, 0, 0)?;
        self.cache.advance()
    }

    /// Writes keys and values to the cache, and returns the attention (1, hidden).
    fn attend(&self, at: usize, layer: &Layer, all: &Tensor) -> Result<Tensor> {
        let [q, k, v] = layer.widths;
        let parts = [(0, q), (q, k), (q + k, v)].map(|(start, width)| all.narrow(1, start, width));
        let [q, k, v] = parts;
        let [cos, sin] = &self.rotary;
        let rotary = Rotary { cos, sin, interleaved: false };
        let StaticCacheSize { capacity, width, .. } = self.cache.size();
        let scale = 1.0 / (width as f32).sqrt();
        let scores = ScoreParams { scale, softcap: None, window: None, sinks: None };
        let (q, k, v) = (q?, k?, v?);
        if let Some(out) = self.cache.append_and_attend(at, [&q, &k, &v], None, rotary, scores, true)? {
            return out.flatten_from(1);
        }
        let q = self.cache.append(at, [&q, &k, &v], None, rotary)?;
        if !q.device().is_rocm() {
            return self.cache.attention(at, &q, f64::from(scale))?.flatten_from(1);
        }
        let (keys, values) = self.cache.pages(at)?;
        let (ends, table) = (self.cache.key_ends(), self.cache.block_table());
        let out = flash_attn_varlen_paged_windowed(
            &q,
            &keys,
            &values,
            &self.query_ends,
            ends,
            table,
            None,
            1,
            capacity,
            scale,
            None,
            Some(0),
            PAGE_SIZE,
            None,
        )?;
        out.flatten_from(1)
    }
}

impl Layer {
    fn load(config: &Config, weights: &VarBuilder) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let keys = hidden / config.num_attention_heads * config.num_key_value_heads;
        // Products of the same rows are one product.
        let joined = |parts: &[(&str, usize)]| {
            let parts =
                parts.iter().map(|(name, rows)| weights.get((*rows, hidden), &format!("{name}.weight")));
            Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
        };
        let (q, k, v) = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj");
        Ok(Self {
            input_norm: weights.get(hidden, "input_layernorm.weight")?,
            query_key_value: joined(&[(q, hidden), (k, keys), (v, keys)])?,
            output: weights.get((hidden, hidden), "self_attn.o_proj.weight")?,
            feed_forward_norm: weights.get(hidden, "post_attention_layernorm.weight")?,
            gate_up: joined(&[("mlp.gate_proj", inner), ("mlp.up_proj", inner)])?,
            down: weights.get((hidden, inner), "mlp.down_proj.weight")?,
            widths: [hidden, keys, keys],
        })
    }
}

/// Describes a product with a weight of the model, which no step writes.
fn product<'a>(x: &'a Tensor, weight: &'a Tensor) -> FusedProduct<'a> {
    FusedProduct::new(x, weight).constant_weight()
}

/// Returns cosines and sines (positions, width / 2) of RoPE with the given base.
fn rotary(base: f32, positions: usize, width: usize, device: &Device) -> Result<[Tensor; 2]> {
    let frequencies = (0..width).step_by(2).map(|pair| base.powf(-(pair as f32) / width as f32));
    let frequencies = Tensor::from_iter(frequencies, device)?.unsqueeze(0)?;
    let positions = Tensor::arange(0, positions as u32, device)?.to_dtype(DType::F32)?.unsqueeze(1)?;
    let angles = positions.broadcast_mul(&frequencies)?;
    Ok([angles.cos()?, angles.sin()?])
}
