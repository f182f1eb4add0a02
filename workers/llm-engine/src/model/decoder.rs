//! Decoder of all model families, over a batch of sequences.
use std::ops::Range;
use std::result::Result as StdResult;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Error, Tensor, bail};
use candle_nn::fused::{CacheHeads, write_rows};
use candle_nn::ops::sigmoid;
use candle_nn::recurrent::Sequences;

use super::adapter::{self, AdapterLimits, AdapterRows, AdapterTargets, Deltas, Target};
use super::attention::{AttentionPlan, Direction, Heads, StepIndices};
use super::cache::{Cache, KeysValues};
use super::cache_dtype::CacheTypes;
use super::config::DecoderConfig;
use super::graphs::{DecodeGraphs, INPUT_VECTORS, ReplayableModel, StepInputs};
use super::layers::{Embedding, FusedWith, Linear, Norm, QueryKeyNorms, ResidualStream, softcap};
use super::part::Part;
use super::pooling::EmbeddingHead;
use super::roles::Role;
use super::rope::RotaryTable;
use super::states::States;
use super::vision::Vision;
use super::weights::Weights;
use crate::step::{BLOCK_SIZE, SequenceStep, Step, StepModel, TEXT_ONLY};

mod altup;
mod embeddings;
mod inputs;
mod layer;
mod mixed;
mod mtp;
mod mtp_steps;
mod pictures;
mod step_model;
mod streams;

use altup::Streams;
use inputs::LayerInputs;
use layer::{FeedForward, Layer, Projections};
use mtp::MtpHead;
use pictures::{BidirectionalImageAttention, PictureFeatures};

/// A decoder: embedding, layers, final norm and output head.
pub struct Decoder {
    /// Sizes of the device's part.
    config: DecoderConfig,
    device: Device,
    dtype: DType,
    embedding: Embedding,
    /// Inputs of each layer, if they have any of their own.
    layer_inputs: Option<LayerInputs>,
    /// Streams of states, if there are several.
    streams: Option<Streams>,
    layers: Vec<Layer>,
    /// Head that predicts further tokens, if it is loaded.
    mtp: Option<MtpHead>,
    norm: Norm,
    head: Linear,
    /// Rotary tables: for layers with full attention, for layers with a window, and for layers without rotation, as far as
    /// these differ.
    tables: Vec<RotaryTable>,
    /// Distinct windows of the layers.
    windows: Vec<Option<usize>>,
    cache: Cache,
    states: States,
    graphs: DecodeGraphs,
    embedding_head: EmbeddingHead,
    task: Task,
    /// Encoder of pictures, or the reason why there is none.
    vision: StdResult<Vision, &'static str>,
    adapter_targets: AdapterTargets,
    /// Dropped after the graphs, which use the communicator.
    part: Part,
}

/// Task of a decoder. Only the first one uses the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Generate,
    Embed,
    Score,
}

/// Inputs that all layers of a step share.
struct StepContext {
    /// Position of each row, u32 (rows), or its row in `rotary`.
    positions: Tensor,
    /// Position of each row, u32 (rows), as recurrent layers read it: above 0 unless it is the first of its sequence.
    places: Tensor,
    /// Rotary table of rows whose axes have different positions.
    rotary: Option<RotaryTable>,
    /// Features of pictures among the rows.
    pictures: Option<PictureFeatures>,
    /// Attention of the features of pictures that see each other.
    image_attention: Option<BidirectionalImageAttention>,
    /// Slot of each row, u32 (rows).
    slots: Tensor,
    plan: AttentionPlan,
    /// First row of each sequence, and the number of rows, u32 (sequences + 1).
    sequence_rows: Tensor,
    /// Slots of recurrent states, u32 (sequences); empty if there are none.
    state_slots: Tensor,
    /// Slot that keeps the recurrent state after each row, u32 (rows); empty if there are none.
    kept: Tensor,
    /// Number of rows of the longest sequence.
    max_rows: usize,
    /// Keys and values of the step's rows, (rows, key heads, width), for all layers in turn, or for each layer with a cache;
    /// `None` if they are kept in the cache.
    uncached: Option<Vec<KeysValues>>,
    /// Slots of rows that are not written, u32 (rows), if some layers share the cache of others.
    no_slots: Option<Tensor>,
    /// Inputs of all layers, (rows, layers · width), if they have any of their own.
    layer_inputs: Option<Tensor>,
    /// Rows whose states are returned, u32; `None` for all.
    wanted: Option<Tensor>,
    /// Adapters of the rows.
    adapters: AdapterRows,
    /// Adapters of the rows whose states are returned, numbered among these.
    wanted_adapters: AdapterRows,
}

/// Data types of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct Types {
    /// Hidden states.
    pub states: DType,
    /// Float matrices; `None` for the types in the files.
    pub matrices: Option<DType>,
    /// Cache and attention.
    pub cache: CacheTypes,
}

impl Decoder {
    /// Loads the weights, and allocates a cache of `blocks` blocks and `slots` slots of recurrent states. The
    /// configuration is that of the part that `weights` reads.
    ///
    /// # Errors
    /// Returns an error that names the file and the invalid tensor, or if memory runs out.
    pub fn load(
        config: DecoderConfig,
        weights: &mut Weights,
        [blocks, slots]: [usize; 2],
        types: Types,
        device: &Device,
    ) -> Result<Self> {
        let dtype = types.states;
        ensure!(blocks > 0, "the cache must have at least 1 block");
        let embedding = weights.embedding(config.hidden)?;
        let vocabulary = embedding.vocabulary()?;
        let layer_inputs = LayerInputs::load(&config, weights, vocabulary)?;
        let streams = Streams::load(&config, weights)?;
        let layers = 0..config.layer_count();
        let layers = layers.map(|layer| Layer::load(&config, weights, layer)).collect::<Result<Vec<_>>>()?;
        let mtp = MtpHead::load(&config, weights)?;
        let norm = weights.norm(None, Role::Norm, config.hidden, (config.norm_kind, config.norm_eps))?;
        let head = match config.tied_embeddings {
            true => embedding.head(DType::F32),
            false => {
                let rows = weights.part().rows(None, &[(Role::Head, vocabulary)]);
                weights.linear(None, &rows, config.hidden, config.head_bias)?.with_output(DType::F32)
            }
        };
        let table = |rope| RotaryTable::new(rope, config.interleaved, config.context, device);
        let tables = std::iter::once(&config.rope).chain(&config.local_rope).map(table);
        let mut tables = tables.collect::<candle_core::Result<Vec<_>>>().context("rotary tables")?;
        if config.rotated.contains(&false) {
            tables.push(tables[0].without_rotation().context("rotary tables")?);
        }
        let mut windows: Vec<Option<usize>> = Vec::new();
        for window in &config.windows {
            if !windows.contains(window) {
                windows.push(*window);
            }
        }
        let cache = Cache::new(&config, blocks, (types.cache, dtype), device)
            .with_context(|| format!("cannot allocate a cache of {blocks} blocks of {BLOCK_SIZE} tokens"))?;
        let states = States::new(&config, slots, dtype, device)
            .with_context(|| format!("cannot allocate {slots} slots of recurrent states"))?;
        let (part, device, graphs) = (weights.part().clone(), device.clone(), DecodeGraphs::default());
        let embedding_head = EmbeddingHead::mean(config.hidden);
        let adapter_targets = AdapterTargets::new(&config, &part, dtype, &device, AdapterLimits::default());
        Ok(Self {
            config,
            device,
            dtype,
            embedding,
            layer_inputs,
            streams,
            layers,
            mtp,
            norm,
            head,
            tables,
            windows,
            cache,
            states,
            graphs,
            embedding_head,
            task: Task::Generate,
            vision: Err(TEXT_ONLY),
            adapter_targets,
            part,
        })
    }

    /// Makes the model compute only embeddings, with this head.
    pub fn for_embeddings(self, embedding_head: EmbeddingHead) -> Self {
        Self { embedding_head, task: Task::Embed, ..self }
    }

    /// Makes the model score pairs of texts, with a head of width 1.
    pub fn for_scores(self, embedding_head: EmbeddingHead) -> Self {
        Self { embedding_head, task: Task::Score, ..self }
    }

    /// Sets the encoder of pictures, or the reason why there is none.
    ///
    /// # Errors
    /// Returns an error if the decoder has no inputs of layers for the padding token of the encoder.
    pub fn with_vision(self, vision: StdResult<Vision, &'static str>) -> Result<Self> {
        if let (Ok(vision), Some(layer_inputs)) = (&vision, &self.layer_inputs) {
            layer_inputs.check_padding(vision.padding())?;
        }
        Ok(Self { vision, ..self })
    }

    /// Sets the limits of adapters.
    pub fn with_adapters(mut self, limits: AdapterLimits) -> Self {
        self.adapter_targets.limits = limits;
        self
    }

    /// Returns this part of the projections that adapters may change, if the model takes adapters.
    pub(super) fn own_adapter_targets(&self) -> Option<&AdapterTargets> {
        let takes_adapters = self.task == Task::Generate && self.config.takes_adapters();
        takes_adapters.then_some(&self.adapter_targets)
    }

    /// Enables graphs for decoding steps, if the device and the attention support them.
    pub fn with_graphs(mut self, enabled: bool) -> Self {
        let enabled =
            enabled && self.part.supports_graphs() && self.heads().support_flash_attention(&self.device);
        self.graphs = DecodeGraphs::new(&self.device, enabled);
        self.mtp.iter_mut().for_each(|head| head.graphs = DecodeGraphs::new(&self.device, enabled));
        self
    }

    /// Returns the graphs of decoding steps.
    pub fn graphs(&self) -> &DecodeGraphs {
        &self.graphs
    }

    /// Returns the graphs of the steps of its head that predicts further tokens, if it is loaded.
    pub fn mtp_graphs(&self) -> Option<&DecodeGraphs> {
        self.mtp.as_ref().map(|head| &head.graphs)
    }

    /// Returns the encoder of pictures, if there is one.
    pub fn vision(&mut self) -> Option<&mut Vision> {
        self.vision.as_mut().ok()
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Uploads several vectors in one copy, and returns a view of each.
    fn upload<const N: usize>(&self, vectors: [Vec<u32>; N]) -> candle_core::Result<[Tensor; N]> {
        let lengths = vectors.each_ref().map(Vec::len);
        let all = Tensor::from_vec(vectors.concat(), lengths.iter().sum::<usize>(), &self.device)?;
        Self::split(&all, lengths)
    }

    /// Returns a view of each part of a tensor.
    fn split<const N: usize>(all: &Tensor, lengths: [usize; N]) -> candle_core::Result<[Tensor; N]> {
        let mut parts = Vec::with_capacity(N);
        let mut start = 0;
        for length in lengths {
            parts.push(all.narrow(0, start, length)?);
            start += length;
        }
        parts.try_into().map_err(|_| Error::Msg(format!("internal error: expected {N} parts of an upload")))
    }

    /// Computes the residual stream after the last layer, (wanted rows, width), from u32 tokens (rows).
    fn states(&self, tokens: &Tensor, shared: &mut StepContext) -> candle_core::Result<ResidualStream> {
        self.run_layers(self.embedded(tokens, shared)?, 0..self.layers.len(), shared)
    }

    /// Returns the residual stream before the first layer, or several, (rows, streams, width). Computes the layers' inputs.
    fn embedded(&self, tokens: &Tensor, shared: &mut StepContext) -> candle_core::Result<ResidualStream> {
        let x = self.token_embeddings(tokens)?;
        let x = match &shared.pictures {
            Some(pictures) => pictures.replace(&x)?,
            None => x,
        };
        shared.layer_inputs = match &self.layer_inputs {
            Some(layer_inputs) => {
                let tokens = shared.pictures.as_ref().map_or(tokens, |pictures| &pictures.text_tokens);
                Some(layer_inputs.forward(tokens, &x, self.dtype)?)
            }
            None => None,
        };
        if let Some(streams) = &self.streams {
            return ResidualStream::new(streams.split(&x)?, None);
        }
        ResidualStream::new(x, self.layers.first().and_then(Layer::input_norm))
    }

    /// Returns the scaled embeddings of tokens.
    fn token_embeddings(&self, tokens: &Tensor) -> candle_core::Result<Tensor> {
        let rows = |tokens: &Tensor| self.embedding.forward(tokens, self.dtype);
        let x = self.part.look_up(tokens, self.embedding.vocabulary()?, rows)?;
        match self.config.embedding_scale {
            Some(scale) => x * scale,
            None => Ok(x),
        }
    }

    /// Computes the layers of a range.
    fn run_layers(
        &self,
        stream: ResidualStream,
        range: Range<usize>,
        shared: &StepContext,
    ) -> candle_core::Result<ResidualStream> {
        if let Some(streams) = &self.streams {
            let out = self.run_layers_on_streams(streams, stream.sum, range, shared)?;
            return ResidualStream::new(out, None);
        }
        self.run((&self.layers, &self.norm), stream, range, shared)
    }

    /// Computes a range of layers, which a norm follows.
    fn run(
        &self,
        (layers, last_norm): (&[Layer], &Norm),
        mut stream: ResidualStream,
        range: Range<usize>,
        shared: &StepContext,
    ) -> candle_core::Result<ResidualStream> {
        let norm_of = |index: usize| match layers.get(index) {
            Some(layer) => layer.input_norm(),
            None => Some(last_norm),
        };
        for (index, layer) in layers.iter().enumerate().take(range.end).skip(range.start) {
            // After the last layer's keys and values are written, only the wanted rows matter.
            let wanted = shared.wanted.as_ref().filter(|_| index + 1 == layers.len());
            let is_wanted = wanted.is_none_or(|wanted| wanted.elem_count() > 0);
            let input = stream.input(norm_of(index));
            let parallel = match &layer.parallel_mixer {
                Some(parallel) => {
                    let states = self.states.layer(parallel.place);
                    Some((&parallel.output, parallel.mixer.forward(input, states, shared.sequences())?))
                }
                None => None,
            };
            let attended = match &layer.output {
                Some(_) => match self.attend(index, layer, input, shared, is_wanted)? {
                    Some(out) => Some(out),
                    None => break,
                },
                None if is_wanted => None,
                None => break,
            };
            let select = |out: Tensor| wanted.map_or(Ok(out.clone()), |wanted| out.index_select(wanted, 0));
            let attended = attended.map(select).transpose()?;
            let adapters = match wanted {
                Some(wanted) => {
                    stream = stream.select(wanted)?;
                    &shared.wanted_adapters
                }
                None => &shared.adapters,
            };
            if let Some((output, out)) = parallel {
                stream = self.add(&stream, output, &select(out)?, [None, None], &Deltas::default())?;
            }
            let next = norm_of(index + 1);
            let norm = match &layer.feed_forward {
                FeedForward::Absent => next,
                // The feed-forward layer has the input of attention.
                _ if self.config.parallel => None,
                _ => layer.mlp_norm.as_ref(),
            };
            let parallel_norm = layer.mlp_norm.as_ref().filter(|_| self.config.parallel);
            let parallel = parallel_norm.map(|norm| norm.forward(&stream.sum)).transpose()?;
            let attended = match (&layer.output, &attended) {
                (Some(output), Some(out)) => {
                    let post_norm = layer.attention_post_norm.as_ref();
                    let deltas = adapters.deltas(index, Target::Output, (out, FusedWith::default()))?;
                    self.add(&stream, output, out, [post_norm, norm], &deltas)?
                }
                _ => stream.clone(),
            };
            let input = match &parallel {
                Some(normed) => (normed, FusedWith::default()),
                None if self.config.parallel => stream.input(layer.attention_norm.as_ref()),
                None => attended.input(norm),
            };
            let post_norm = layer.mlp_post_norm.as_ref();
            stream = match &layer.feed_forward {
                FeedForward::Absent => attended,
                FeedForward::Dense(mlp) => {
                    let deltas = adapters.deltas(index, Target::GateUp, input)?;
                    let inner = adapter::inner(mlp, input, &deltas)?;
                    let deltas = adapters.deltas(index, Target::Down, (&inner, FusedWith::default()))?;
                    self.add(&attended, &mlp.down, &inner, [post_norm, next], &deltas)?
                }
                // States without a norm of their own are those of few rows, whose products include it.
                FeedForward::Experts(experts)
                    if self.part.is_whole() && post_norm.is_none() && input.1.norm.is_some() =>
                {
                    let adapters = adapters.experts(index);
                    ResidualStream::new(experts.forward(input, Some(&attended.sum), &adapters)?, next)?
                }
                FeedForward::Mixed(mixed) => {
                    let Some(post_norm) = post_norm else { bail!("internal error: no norm after experts") };
                    attended.add_output(&mixed.forward(input, &attended.sum, post_norm)?, None, next)?
                }
                FeedForward::Experts(experts) => {
                    let out = self.part.sum(experts.forward(input, None, &adapters.experts(index))?)?;
                    attended.add_output(&out, post_norm, next)?
                }
            };
            if let (Some(own), Some(inputs)) = (&layer.input, &shared.layer_inputs) {
                stream = match wanted {
                    Some(wanted) => own.add(&stream, &inputs.index_select(wanted, 0)?, index, next)?,
                    None => own.add(&stream, inputs, index, next)?,
                };
            }
            if let Some(scale) = layer.scale {
                stream = ResidualStream::new((stream.sum * scale)?, next)?;
            }
            if let Some(added) = shared.pictures.as_ref().and_then(|pictures| pictures.deepstack(index)) {
                stream = ResidualStream::new((&stream.sum + added?)?, next)?;
            }
        }
        Ok(stream)
    }

    /// Adds the output of a block, `linear` of `x` and what adapters add to it, to the residual stream. Ranks have a part of
    /// `x` each, and compute a part of both.
    fn add(
        &self,
        stream: &ResidualStream,
        linear: &Linear,
        x: &Tensor,
        [post_norm, next]: [Option<&Norm>; 2],
        deltas: &Deltas,
    ) -> candle_core::Result<ResidualStream> {
        match self.part.is_whole() {
            true => stream.add(linear, x, [post_norm, next], |out| deltas.add(out)),
            false => stream.add_output(&self.part.sum(deltas.add(linear.forward(x)?)?)?, post_norm, next),
        }
    }

    /// Computes the attention of a layer, without its output projection. If it is not wanted, only updates cache and states.
    fn attend(
        &self,
        index: usize,
        layer: &Layer,
        input: (&Tensor, FusedWith),
        shared: &StepContext,
        is_wanted: bool,
    ) -> candle_core::Result<Option<Tensor>> {
        if let Projections::Recurrent(mixer) = &layer.attention {
            let out = mixer.forward(input, self.states.layer(layer.place), shared.sequences())?;
            return Ok(is_wanted.then_some(out));
        }
        let (out, gates) = match self.write_and_attend(index, layer, input, shared, is_wanted)? {
            (CacheWrite::Attended(out), gates) => (out, gates),
            _ if !is_wanted => return Ok(None),
            (CacheWrite::Queries(queries), gates) => {
                let (keys_values, is_paged) = (self.keys_values(layer, shared), shared.uncached.is_none());
                let sinks = layer.sinks.as_ref();
                let out = shared.plan.attend(layer.scores, &queries, keys_values, sinks, is_paged)?;
                let out = match &shared.image_attention {
                    Some(image_attention) => {
                        image_attention.attend(out, layer.scores, &queries, keys_values)?
                    }
                    None => out,
                };
                (out, gates)
            }
        };
        let out = match &layer.attention {
            Projections::Latent(latent) => latent.without_padding(&out)?,
            _ => out,
        };
        Ok(Some(match gates {
            Some(gates) => {
                let gates = sigmoid(&gates.contiguous()?)?;
                (out.to_dtype(gates.dtype())? * gates)?
            }
            None => out,
        }))
    }

    /// Returns the keys and values that the rows of a step attend to.
    fn keys_values<'a>(&'a self, layer: &Layer, shared: &'a StepContext) -> &'a KeysValues {
        match &shared.uncached {
            Some(uncached) => &uncached[layer.place % uncached.len()],
            None => self.cache.layer(layer.place),
        }
    }

    /// Writes the keys and values of a layer. If `wants_attention` is true and a kernel does both, also computes attention;
    /// otherwise returns the queries. Also returns the gates of attention's output, if the layer has any.
    fn write_and_attend(
        &self,
        index: usize,
        layer: &Layer,
        input: (&Tensor, FusedWith),
        shared: &StepContext,
        wants_attention: bool,
    ) -> candle_core::Result<(CacheWrite, Option<Tensor>)> {
        let (([mut q, mut k, mut v], gates), bias) = match &layer.attention {
            Projections::Plain(plain) => {
                let deltas = shared.adapters.deltas(index, Target::QueryKeyValue, input)?;
                let outputs = deltas.add_to_parts(plain.outputs(input)?)?;
                (plain.split(outputs)?, plain.bias.as_ref())
            }
            Projections::Latent(latent) => ((latent.forward(input)?, None), None),
            Projections::Recurrent(_) | Projections::Absent => {
                bail!("internal error: the layer has no cache")
            }
        };
        if let Some(QueryKeyNorms { query, key }) = &layer.row_norms {
            (q, k) = (query.forward(&q.contiguous()?)?, key.forward(&k.contiguous()?)?);
        }
        if let Some(norm) = &layer.value_norm {
            v = norm.forward(&v.contiguous()?.reshape(((), norm.width()))?)?.reshape(v.dims())?;
        }
        let keys_values = self.keys_values(layer, shared);
        let no_slots = shared.no_slots.as_ref().filter(|_| layer.shares_cache);
        let write = CacheHeads {
            q: &q,
            k: &k,
            v: &v,
            bias,
            norms: layer.head_norms.as_ref().map(QueryKeyNorms::head_norms),
            rotary: shared.rotary.as_ref().unwrap_or(&self.tables[layer.rotary_table]).rotary(),
            positions: &shared.positions,
            slots: no_slots.unwrap_or(&shared.slots),
            keys: &keys_values.keys,
            values: &keys_values.values,
            scales: keys_values.cache_scales(self.cache.types()),
        };
        if wants_attention && shared.uncached.is_none() && shared.image_attention.is_none() {
            // `no_slots` are written by an operation of the step, so they are not constant in its graph.
            let sinks = layer.sinks.as_ref();
            let attended = shared.plan.append_and_attend(layer.scores, &write, sinks, no_slots.is_none())?;
            if let Some(out) = attended {
                return Ok((CacheWrite::Attended(out), gates));
            }
        }
        Ok((CacheWrite::Queries(write.forward()?), gates))
    }

    fn plan(&self, step: &Step, indices: [Tensor; 3]) -> candle_core::Result<AttentionPlan> {
        AttentionPlan::new(step, indices, &self.windows, self.heads(), Direction::Causal)
    }

    fn heads(&self) -> Heads {
        // One that flash attention does not support, or the largest.
        let width = self.config.head_widths().max_by_key(|width| (width % 8 != 0, *width));
        Heads { dtype: self.cache.types().attention, width: width.unwrap_or(self.config.head_dim) }
    }

    /// Returns slots of rows that are not written, if layers share the cache of others.
    fn no_slots(&self, rows: usize) -> candle_core::Result<Option<Tensor>> {
        let shares_cache = self.config.shared_layers > 0;
        shares_cache.then(|| Tensor::full(u32::MAX, rows, &self.device)).transpose()
    }

    /// Computes the logits of states after the last layer, and the norm that they are given with.
    fn logits(&self, (x, with): (&Tensor, FusedWith)) -> candle_core::Result<Tensor> {
        let logits = self.part.gather_columns(self.head.forward_fused(x, with)?)?;
        let logits = match self.config.logit_scale {
            Some(scale) => (logits * scale)?,
            None => logits,
        };
        match self.config.logit_softcap {
            Some(cap) => softcap(&logits, cap),
            None => Ok(logits),
        }
    }

    fn no_logits(&self) -> candle_core::Result<Tensor> {
        Tensor::zeros((0, self.capacity().vocabulary), DType::F32, &self.device)
    }
}

/// Result of writing keys and values to the cache.
enum CacheWrite {
    /// Attention's output (rows, heads · width).
    Attended(Tensor),
    /// Queries (rows, heads, width).
    Queries(Tensor),
}

impl ReplayableModel for Decoder {
    fn inputs(&self, step: &Step) -> StepInputs {
        StepInputs::new(input_vectors(step))
    }

    fn compute(
        &self,
        step: &Step,
        inputs: &Tensor,
        lengths: [usize; INPUT_VECTORS],
    ) -> candle_core::Result<Tensor> {
        self.compute_with(step, (inputs, lengths), None)
    }

    fn unused_block(&self) -> u32 {
        self.cache.unused_block()
    }

    fn is_repeatable(&self) -> bool {
        self.states.slots().is_none()
    }
}

impl Decoder {
    /// Returns the rotary table of a step with rows whose axes have different positions.
    fn rotary_of_axes(&self, step: &Step) -> candle_core::Result<Option<RotaryTable>> {
        let sections = self.config.axes.as_ref().filter(|_| !step.has_equal_axes());
        let Some(sections) = sections else { return Ok(None) };
        let (positions, rows) = (sections.positions(&step.axes), step.axes.len());
        let pairs = positions.len() / rows.max(1);
        self.tables[0].gathered(&Tensor::from_vec(positions, (rows, pairs), &self.device)?).map(Some)
    }

    /// Computes a step from its uploaded inputs, which are vectors of these lengths, and the features of its pictures.
    fn compute_with(
        &self,
        step: &Step,
        (inputs, lengths): (&Tensor, [usize; INPUT_VECTORS]),
        pictures: Option<PictureFeatures>,
    ) -> candle_core::Result<Tensor> {
        let (rows, wanted_rows) = (step.tokens.len(), lengths[WANTED]);
        let rotary = self.rotary_of_axes(step)?;
        let processor = self.vision.as_ref().ok().map(Vision::processor).filter(|_| pictures.is_some());
        let image_attention = match processor.filter(|processor| processor.is_bidirectional()) {
            Some(processor) => {
                let in_windows = processor.is_bidirectional_in_windows();
                let (windows, heads) = (&self.windows, self.heads());
                Some(BidirectionalImageAttention::of(step, windows, in_windows, heads, &self.device)?)
            }
            None => None,
        };
        let [tokens, positions, slots, cu_rows, cu_keys, table, wanted, state_slots, kept, places] =
            Self::split(inputs, lengths)?;
        let places = if places.elem_count() > 0 { places } else { positions.clone() };
        let sequence_rows = cu_rows.clone();
        let plan = self.plan(step, [cu_rows, cu_keys, table])?;
        let wanted = (wanted_rows < rows).then_some(wanted);
        let hidden = self.cache.hidden()?;
        // The hidden states of all rows are kept.
        let (wanted, later_wanted) = if hidden.is_some() { (None, wanted) } else { (wanted, None) };
        let rows = |count: fn(&SequenceStep) -> usize| {
            let sequences = step.sequences.iter();
            let sequences = sequences.map(|sequence| (sequence.adapter.as_ref(), count(sequence)));
            AdapterRows::new(sequences, (self.part.rank(), &self.device))
        };
        let adapters = rows(|sequence| sequence.rows.len())?;
        let wanted_adapters = rows(|sequence| sequence.logits)?;
        let no_slots = self.no_slots(step.tokens.len())?;
        let mut shared = StepContext {
            places,
            rotary,
            pictures,
            image_attention,
            state_slots,
            kept,
            no_slots,
            wanted,
            adapters,
            wanted_adapters,
            ..StepContext::of_rows([positions, slots, sequence_rows], plan, max_rows(step))
        };
        let states = self.states(&tokens, &mut shared)?;
        let Some(hidden) = hidden else {
            return match wanted_rows {
                0 => self.no_logits(),
                _ => self.logits(states.input(Some(&self.norm))),
            };
        };
        let normed = states.into_normed(&self.norm)?;
        write_rows(&shared.slots, &[(hidden, normed.clone())])?;
        match (wanted_rows, later_wanted) {
            (0, _) => self.no_logits(),
            (_, Some(wanted)) => self.logits((&normed.index_select(&wanted, 0)?, FusedWith::default())),
            (_, None) => self.logits((&normed, FusedWith::default())),
        }
    }
}

impl StepContext {
    /// Creates the inputs of rows of which all states are returned, without recurrent states, from positions, slots and first
    /// rows of the sequences.
    fn of_rows([positions, slots, sequence_rows]: [Tensor; 3], plan: AttentionPlan, max_rows: usize) -> Self {
        let (adapters, wanted_adapters) = Default::default();
        Self {
            places: positions.clone(),
            rotary: None,
            pictures: None,
            image_attention: None,
            plan,
            state_slots: positions.clone(),
            kept: positions.clone(),
            positions,
            slots,
            sequence_rows,
            max_rows,
            uncached: None,
            no_slots: None,
            layer_inputs: None,
            wanted: None,
            adapters,
            wanted_adapters,
        }
    }

    /// Returns the sequences as recurrent layers read them.
    fn sequences(&self) -> Sequences<'_> {
        Sequences {
            rows: &self.sequence_rows,
            slots: &self.state_slots,
            kept: &self.kept,
            positions: &self.places,
            max_rows: self.max_rows,
        }
    }
}

/// Returns the number of rows of the longest sequence.
fn max_rows(step: &Step) -> usize {
    step.sequences.iter().map(|sequence| sequence.rows.len()).max().unwrap_or(0)
}

/// Index of the wanted rows among the vectors of [`input_vectors`].
const WANTED: usize = 6;
/// Index of the slots that keep states.
const KEPT: usize = 8;

/// Returns the vectors that a step uploads: tokens, positions, slots, cumulative lengths, block table, wanted rows, slots of
/// states, those that keep states, and positions for recurrent layers if the others are rows of a rotary table.
fn input_vectors(step: &Step) -> [Vec<u32>; INPUT_VECTORS] {
    let last =
        |sequence: &SequenceStep| (sequence.rows.end - sequence.logits) as u32..sequence.rows.end as u32;
    let wanted = step.sequences.iter().flat_map(last).collect();
    let [cu_rows, cu_keys, table] = StepIndices::of(step).parts();
    let (tokens, slots) = (step.tokens.clone(), step.slots.clone());
    let positions = match step.has_equal_axes() {
        true if step.axes.is_empty() => step.positions.clone(),
        true => step.axes.iter().map(|axes| axes[0]).collect(),
        // Each row has its own angles.
        false => (0..step.tokens.len() as u32).collect(),
    };
    let places = match step.states.is_empty() || step.has_equal_axes() {
        true => Vec::new(),
        false => step.positions.clone(),
    };
    let (states, kept) = (step.states.clone(), step.kept_slots());
    [tokens, positions, slots, cu_rows, cu_keys, table, wanted, states, kept, places]
}
