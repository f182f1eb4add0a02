//! Layers of models with several streams of states.
use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use super::altup::{StreamLayer, Streams};
use super::layer::{FeedForward, Layer};
use super::{Decoder, StepContext};
use crate::model::layers::FusedWith;

impl Decoder {
    /// Computes the layers of a range on streams (rows, streams, width). After the last layer, returns their mean, (wanted
    /// rows, width), if any row is wanted.
    pub(super) fn run_layers_on_streams(
        &self,
        all: &Streams,
        mut streams: Tensor,
        range: Range<usize>,
        shared: &StepContext,
    ) -> Result<Tensor> {
        for (index, layer) in self.layers.iter().enumerate().take(range.end).skip(range.start) {
            let (Some(own), Some(norm)) = (&layer.streams, &layer.attention_norm) else {
                bail!("internal error: a layer without streams")
            };
            let wanted = shared.wanted.as_ref().filter(|_| index + 1 == self.layers.len());
            let is_wanted = wanted.is_none_or(|wanted| wanted.elem_count() > 0);
            let mut predictions = own.predict(&streams)?;
            let mut normed = norm.forward(&own.active(&predictions)?)?;
            let attended = self.attend(index, layer, (&normed, FusedWith::default()), shared, is_wanted)?;
            let Some(mut attended) = attended else { return Ok(streams) };
            let mut inputs = shared.layer_inputs.clone();
            if let Some(wanted) = wanted {
                let select = |x: &Tensor| x.index_select(wanted, 0);
                (attended, predictions, normed) =
                    (select(&attended)?, select(&predictions)?, select(&normed)?);
                inputs = inputs.as_ref().map(select).transpose()?;
            }
            let computed = computed(own, layer, &attended, &predictions, &normed)?;
            let corrected = own.correct(&predictions, &computed)?;
            streams = match (&layer.input, inputs) {
                (Some(input), Some(inputs)) => {
                    let added = input.normalized(&own.gating(&corrected)?, &inputs, index)?;
                    own.add_input(&corrected, &added)?
                }
                _ => corrected,
            };
        }
        match range.end == self.layers.len() {
            true => all.merge(&streams),
            false => Ok(streams),
        }
    }
}

/// Computes the active stream after attention and the feed-forward layer, without its input.
fn computed(
    own: &StreamLayer,
    layer: &Layer,
    attended: &Tensor,
    predictions: &Tensor,
    normed: &Tensor,
) -> Result<Tensor> {
    let (FeedForward::Dense(mlp), Some(output)) = (&layer.feed_forward, &layer.output) else {
        bail!("internal error: streams with experts, or without attention")
    };
    let norms = [&layer.attention_post_norm, &layer.mlp_norm, &layer.mlp_post_norm];
    let [Some(post_norm), Some(mlp_norm), Some(mlp_post_norm)] = norms else {
        bail!("internal error: streams without norms")
    };
    let attended = post_norm.forward(&output.forward(attended)?)?;
    let sum = ((own.active(predictions)? + attended)? + own.residual(normed)?)?;
    let sum = (sum * 0.5f64.sqrt())?;
    let out = mlp.down.forward(&own.inner(mlp, &mlp_norm.forward(&sum)?)?)?;
    mlp_post_norm.forward(&out)? + sum
}
