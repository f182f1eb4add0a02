//! Features of pictures among the rows of a step.
use candle_core::{Device, Result, Tensor, bail};

use crate::model::attention::{AttentionPlan, Direction, Heads, Scoring, StepIndices};
use crate::model::cache::KeysValues;
use crate::model::vision::Vision;
use crate::step::{SequenceStep, Step};

/// Features of the pictures of a step.
pub(super) struct PictureFeatures {
    /// Features of all pictures, (1 + number of deepstack layers, features, width).
    features: Tensor,
    /// Index of the embedding or features of each row in the concatenation of embeddings and features, u32 (rows).
    order: Tensor,
    /// Index of the features of each row in the concatenation of a row of zeros and the features, u32 (rows).
    deepstack_order: Tensor,
    /// Tokens of the rows, u32 (rows), of which those of features are replaced by the padding.
    pub(super) text_tokens: Tensor,
}

/// Uploads a vector.
fn uploaded(values: Vec<u32>, device: &Device) -> Result<Tensor> {
    let count = values.len();
    Tensor::from_vec(values, count, device)
}

impl PictureFeatures {
    /// Encodes the pictures of a step.
    pub(super) fn of(step: &Step, vision: &mut Vision, device: &Device) -> Result<Self> {
        let rows = step.tokens.len();
        let (mut order, mut deepstack_order) = ((0..rows as u32).collect::<Vec<_>>(), vec![0u32; rows]);
        let mut tokens = step.tokens.clone();
        let (mut parts, mut count) = (Vec::with_capacity(step.pictures.len()), 0u32);
        for part in &step.pictures {
            parts.push(vision.features(&part.picture)?.narrow(1, part.first, part.rows.len())?);
            for row in part.rows.clone() {
                (order[row], deepstack_order[row]) = (rows as u32 + count, 1 + count);
                tokens[row] = vision.padding();
                count += 1;
            }
        }
        let features = Tensor::cat(&parts, 1)?;
        Ok(Self {
            features,
            order: uploaded(order, device)?,
            deepstack_order: uploaded(deepstack_order, device)?,
            text_tokens: uploaded(tokens, device)?,
        })
    }

    /// Replaces embeddings (rows, width) by features.
    pub(super) fn replace(&self, x: &Tensor) -> Result<Tensor> {
        let features = self.features.get(0)?.to_dtype(x.dtype())?;
        Tensor::cat(&[x, &features], 0)?.index_select(&self.order, 0)
    }

    /// Returns the features that are added to the states after layer number `index`, (rows, width), if there are any.
    pub(super) fn deepstack(&self, index: usize) -> Option<Result<Tensor>> {
        let deepstack = || {
            let features = self.features.get(1 + index)?;
            let zeros = features.narrow(0, 0, 1)?.zeros_like()?;
            Tensor::cat(&[&zeros, &features], 0)?.index_select(&self.deepstack_order, 0)
        };
        (1 + index < self.features.dims()[0]).then(deepstack)
    }
}

/// Bidirectional attention among the tokens of each picture.
pub(super) struct BidirectionalImageAttention {
    /// Rows of the features, u32.
    rows: Tensor,
    /// If true, the features see each other only in layers with a window.
    in_windows: bool,
    plan: AttentionPlan,
    /// Index of the result of each row in the concatenation of the results of all rows and those of the features, u32 (rows).
    order: Tensor,
}

impl BidirectionalImageAttention {
    /// Plans the attention of the features of a step, which never splits a run of features.
    pub(super) fn of(
        step: &Step,
        windows: &[Option<usize>],
        in_windows: bool,
        heads: Heads,
        device: &Device,
    ) -> Result<Self> {
        let mut order: Vec<u32> = (0..step.tokens.len() as u32).collect();
        let (mut features, mut rows) = (Step::default(), Vec::new());
        for part in &step.pictures {
            let sequence = step.sequences.iter().find(|sequence| sequence.rows.contains(&part.rows.start));
            let Some(sequence) = sequence else { bail!("internal error: a picture without a sequence") };
            let first = rows.len();
            for row in part.rows.clone() {
                order[row] = (step.tokens.len() + rows.len()) as u32;
                rows.push(row as u32);
            }
            features.sequences.push(SequenceStep {
                rows: first..rows.len(),
                context: sequence.context - (sequence.rows.end - part.rows.end),
                blocks: sequence.blocks.clone(),
                ..SequenceStep::default()
            });
        }
        let [cu_rows, cu_keys, table] = StepIndices::of(&features).parts();
        let indices = [uploaded(cu_rows, device)?, uploaded(cu_keys, device)?, uploaded(table, device)?];
        let plan = AttentionPlan::new(&features, indices, windows, heads, Direction::BidirectionalImage)?;
        Ok(Self { rows: uploaded(rows, device)?, in_windows, plan, order: uploaded(order, device)? })
    }

    /// Replaces the results `out` of causal attention in the rows of features.
    pub(super) fn attend(
        &self,
        out: Tensor,
        scores: Scoring,
        queries: &Tensor,
        keys_values: &KeysValues,
    ) -> Result<Tensor> {
        if self.in_windows && scores.window.is_none() {
            return Ok(out);
        }
        let queries = queries.index_select(&self.rows, 0)?;
        let image_attention = self.plan.attend(scores, &queries, keys_values, None, true)?;
        Tensor::cat(&[out, image_attention], 0)?.index_select(&self.order, 0)
    }
}
