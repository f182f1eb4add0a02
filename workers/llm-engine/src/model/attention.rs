//! Attention of a step's rows over the cache, or over each other.
use candle_core::{D, DType, Device, Result, Tensor, bail};
use candle_flash_attn::{
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_encoded, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_with_sinks,
};
use candle_nn::encoded_cache::CacheEncoding;
use candle_nn::fused::CacheHeads;
use candle_nn::fused_attention::{PagedSequences, ScoreParams, append_and_attend};

use super::cache::KeysValues;
use super::layers::softcap;
use crate::step::{BLOCK_SIZE, SequenceStep, Step};

/// Head widths that candle-flash-attn supports: multiples of the first number, up to the second.
const FLASH_WIDTHS: (usize, usize) = (8, 512);

/// Parameters of a layer's attention scores.
#[derive(Clone, Copy, Debug)]
pub struct Scoring {
    /// Scale factor.
    pub scale: f32,
    /// Soft cap c: each score is replaced by c · tanh(score / c).
    pub softcap: Option<f32>,
    /// Number of keys that a query attends to, including its own; `None` means all before it.
    pub window: Option<usize>,
}

/// Heads of all layers.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Data type of queries, keys and values.
    pub dtype: DType,
    /// Width of a head.
    pub width: usize,
}

impl Heads {
    /// Returns true if candle-flash-attn supports these heads on the device.
    pub(super) fn support_flash_attention(self, device: &Device) -> bool {
        let (step, max) = FLASH_WIDTHS;
        device.is_rocm()
            && matches!(self.dtype, DType::F16 | DType::BF16 | DType::F32)
            && self.width.is_multiple_of(step)
            && self.width <= max
    }
}

/// Attention inputs that depend only on the step, shared by all layers.
pub struct AttentionPlan {
    sequences: Vec<SequencePlan>,
    flash: Option<FlashArguments>,
    direction: Direction,
    /// True if a row may be among the keys of another sequence of the step, so that all rows are written first.
    writes_first: bool,
}

/// Keys that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The keys up to its position.
    Causal,
    /// All keys; windows extend to both sides.
    Bidirectional,
    /// All keys; windows limit only those before its position.
    BidirectionalImage,
}

struct SequencePlan {
    step: SequenceStep,
    /// Block table, u32 (blocks), for gathering keys and values without flash attention.
    blocks: Option<Tensor>,
    /// Mask of each window: -infinity where a query (row) must not see a key (column). `None` masks nothing.
    masks: Vec<(Option<usize>, Option<Tensor>)>,
}

/// Arguments of candle-flash-attn.
struct FlashArguments {
    /// Cumulative row counts of the sequences, u32 (sequences + 1).
    rows: Tensor,
    /// Cumulative key counts of the sequences, u32 (sequences + 1).
    keys: Tensor,
    /// Block table, u32 (sequences, maximum number of blocks).
    table: Tensor,
    max_rows: usize,
    max_keys: usize,
}

/// Cumulative lengths and block table of a step, uploaded together with its tokens.
pub struct StepIndices {
    rows: Vec<u32>,
    keys: Vec<u32>,
    table: Vec<u32>,
}

/// Returns the width of the block table. It is a power of two, so that the shapes of decoding steps rarely
/// change while sequences grow, and most steps repeat the same launches.
fn table_width(step: &Step) -> usize {
    let table_width = step.sequences.iter().map(|sequence| sequence.context.div_ceil(BLOCK_SIZE)).max();
    table_width.unwrap_or(0).next_power_of_two()
}

impl StepIndices {
    /// Computes the cumulative lengths and the block table of a step.
    pub fn of(step: &Step) -> Self {
        let sums = |length: fn(&SequenceStep) -> usize| {
            let sum = |sum: &mut usize, sequence| {
                *sum += length(sequence);
                Some(*sum as u32)
            };
            std::iter::once(0).chain(step.sequences.iter().scan(0, sum)).collect()
        };
        let table_width = table_width(step);
        // Entries beyond a sequence's blocks are never read, so any block number can fill them.
        let row = |sequence: &SequenceStep| {
            let blocks = sequence.blocks.clone().into_iter().take(sequence.context.div_ceil(BLOCK_SIZE));
            blocks.chain(std::iter::repeat(0)).take(table_width).collect::<Vec<_>>()
        };
        Self {
            rows: sums(|sequence| sequence.rows.len()),
            keys: sums(|sequence| sequence.context),
            table: step.sequences.iter().flat_map(row).collect(),
        }
    }

    /// Returns the vectors in the order of the upload.
    pub fn parts(self) -> [Vec<u32>; 3] {
        [self.rows, self.keys, self.table]
    }
}

impl AttentionPlan {
    /// Creates the inputs for a step from its uploaded [`StepIndices`], the distinct windows of the layers, the heads, and the keys
    /// that a query sees.
    pub fn new(
        step: &Step,
        [rows, keys, table]: [Tensor; 3],
        windows: &[Option<usize>],
        heads: Heads,
        direction: Direction,
    ) -> Result<Self> {
        let device = rows.device().clone();
        let max = |length: fn(&SequenceStep) -> usize| step.sequences.iter().map(length).max().unwrap_or(0);
        let mut sequences = Vec::with_capacity(step.sequences.len());
        let flash = heads.support_flash_attention(&device);
        let table_width = table.elem_count() / step.sequences.len().max(1);
        for (index, sequence) in step.sequences.iter().enumerate() {
            let mut planned = SequencePlan { step: sequence.clone(), blocks: None, masks: Vec::new() };
            if !flash {
                let blocks = sequence.context.div_ceil(BLOCK_SIZE);
                if table_width > 0 {
                    planned.blocks = Some(table.narrow(0, index * table_width, blocks)?);
                }
                for &window in windows {
                    planned.masks.push((window, mask(sequence, window, direction, &device)?));
                }
            }
            sequences.push(planned);
        }
        let flash = match flash {
            true => Some(FlashArguments {
                rows,
                keys,
                table: table.reshape((step.sequences.len(), ()))?,
                max_rows: max(|sequence| sequence.rows.len()),
                max_keys: table_width * BLOCK_SIZE,
            }),
            false => None,
        };
        Ok(Self { sequences, flash, direction, writes_first: false })
    }

    /// Writes the rows of all sequences before the attention of any, because a row may be among the keys of another sequence.
    pub fn writing_first(self) -> Self {
        Self { writes_first: true, ..self }
    }

    /// Writes one row of each sequence to the cache and computes its attention, in one launch. Returns (rows, heads · width), or
    /// `None` if no kernel does both. `constant_history` is that of [`PagedSequences`].
    pub fn append_and_attend(
        &self,
        scores: Scoring,
        heads: &CacheHeads,
        sinks: Option<&Tensor>,
        constant_history: bool,
    ) -> Result<Option<Tensor>> {
        let has_single_rows = self.sequences.iter().all(|sequence| sequence.step.rows.len() == 1);
        let Some(flash) = self.flash.as_ref().filter(|_| has_single_rows) else { return Ok(None) };
        if self.direction != Direction::Causal || self.writes_first {
            return Ok(None);
        }
        let sequences = PagedSequences {
            cu_rows: &flash.rows,
            cu_keys: &flash.keys,
            block_table: &flash.table,
            page_size: BLOCK_SIZE,
            max_keys: flash.max_keys,
            constant_history,
        };
        let window = scores.window.map(|window| window - 1);
        let scores = ScoreParams { scale: scores.scale, softcap: scores.softcap, window, sinks };
        append_and_attend(heads, &sequences, &scores)?.map(|out| out.flatten_from(1)).transpose()
    }

    /// Computes attention of queries (rows, heads, width) over the keys of their sequence; causal queries see those up to
    /// their position. Returns (rows, heads · width). Keys and values are the cache's if `paged`, otherwise the step's.
    /// `sinks`, f32 (heads), are the scores of a key whose value is zero, which all queries of a head see.
    pub fn attend(
        &self,
        scores: Scoring,
        q: &Tensor,
        keys_values: &KeysValues,
        sinks: Option<&Tensor>,
        paged: bool,
    ) -> Result<Tensor> {
        let Some(flash) = &self.flash else {
            return self.attend_without_flash(scores, q, keys_values, sinks, paged);
        };
        let KeysValues { keys: k, values: v, scales } = keys_values;
        let left = scores.window.map(|window| window - 1);
        let right = match self.direction {
            Direction::Causal => Some(0),
            Direction::Bidirectional => left,
            Direction::BidirectionalImage => None,
        };
        let (rows, keys) = (&flash.rows, &flash.keys);
        let (max_rows, max_keys) = (flash.max_rows, flash.max_keys);
        let (scale, cap) = (scores.scale, scores.softcap);
        let out = if let Some(scales) = scales {
            let table = &flash.table;
            flash_attn_varlen_encoded(
                q, k, v, scales, sinks, rows, keys, table, max_rows, max_keys, scale, left, right,
                BLOCK_SIZE, cap,
            )?
        } else if let Some(sinks) = sinks {
            let table = paged.then_some(&flash.table);
            flash_attn_varlen_with_sinks(
                q, k, v, sinks, rows, keys, table, max_rows, max_keys, scale, left, right, BLOCK_SIZE, cap,
            )?
        } else if paged {
            let table = &flash.table;
            flash_attn_varlen_paged_windowed(
                q, k, v, rows, keys, table, None, max_rows, max_keys, scale, left, right, BLOCK_SIZE, cap,
            )?
        } else {
            let cap = cap.unwrap_or(0.0);
            flash_attn_varlen_alibi_windowed_softcap(
                q, k, v, None, rows, keys, max_rows, max_keys, scale, left, right, cap,
            )?
        };
        out.flatten_from(1)
    }

    fn attend_without_flash(
        &self,
        scores: Scoring,
        q: &Tensor,
        keys_values: &KeysValues,
        sinks: Option<&Tensor>,
        paged: bool,
    ) -> Result<Tensor> {
        let KeysValues { keys, values, scales } = keys_values;
        let mut out = Vec::with_capacity(self.sequences.len());
        for sequence in &self.sequences {
            let SequenceStep { rows, context, .. } = &sequence.step;
            let gathered = |from: &Tensor| match (paged, &sequence.blocks) {
                (true, Some(blocks)) => from.index_select(blocks, 0)?.flatten(0, 1)?.narrow(0, 0, *context),
                (true, None) => bail!("paged attention over a sequence without blocks"),
                (false, _) => from.narrow(0, rows.start, rows.len()),
            };
            let Some((_, mask)) = sequence.masks.iter().find(|(window, _)| *window == scores.window) else {
                bail!("no mask was prepared for a window of {:?}", scores.window)
            };
            let q = q.narrow(0, rows.start, rows.len())?;
            let (mut k, mut v) = (gathered(keys)?, gathered(values)?);
            if let Some(scales) = scales {
                let scales = gathered(scales)?;
                let scale = |index: usize| scales.narrow(D::Minus1, index, 1)?.squeeze(D::Minus1);
                (k, v) = (CacheEncoding::decode(&k, &scale(0)?)?, CacheEncoding::decode(&v, &scale(1)?)?);
            }
            out.push(attend_sequence(scores, &q, [&k, &v], mask.as_ref(), sinks)?);
        }
        Tensor::cat(&out, 0)
    }
}

/// Attends in f32: queries (rows, heads, width) over keys and values (context, key heads, width).
fn attend_sequence(
    scores: Scoring,
    q: &Tensor,
    [k, v]: [&Tensor; 2],
    mask: Option<&Tensor>,
    sinks: Option<&Tensor>,
) -> Result<Tensor> {
    let ((rows, heads, width), (context, kv_heads, _)) = (q.dims3()?, k.dims3()?);
    let (group, dtype) = (heads / kv_heads, q.dtype());
    let to_f32 = |x: &Tensor| x.to_dtype(DType::F32);
    // Query heads that share a key head become rows of one product.
    let q = to_f32(q)?.reshape((rows, kv_heads, group, width))?.permute((1, 2, 0, 3))?;
    let q = q.reshape((kv_heads, group * rows, width))?;
    let k = to_f32(k)?.permute((1, 2, 0))?.contiguous()?;
    let v = to_f32(v)?.transpose(0, 1)?.contiguous()?;
    let mut score = (q.matmul(&k)? * scores.scale as f64)?;
    if let Some(cap) = scores.softcap {
        score = softcap(&score, cap as f64)?;
    }
    if let Some(mask) = mask {
        let by_head = score.reshape((kv_heads * group, rows, context))?;
        score = by_head.broadcast_add(mask)?.reshape((kv_heads, group * rows, context))?;
    }
    if let Some(sinks) = sinks {
        let sinks = sinks.reshape((kv_heads, group, 1))?.broadcast_as((kv_heads, group, rows))?;
        score = Tensor::cat(&[&score, &sinks.reshape((kv_heads, group * rows, 1))?], D::Minus1)?;
    }
    let weights = candle_nn::ops::softmax_last_dim(&score)?;
    // The value of a sink is zero.
    let out = weights.narrow(D::Minus1, 0, context)?.contiguous()?.matmul(&v)?;
    let out = out.reshape((kv_heads, group, rows, width))?.permute((2, 0, 1, 3))?;
    out.reshape((rows, heads * width))?.to_dtype(dtype)
}

/// Returns the mask of a sequence, f32 (rows, context); `None` if every query attends to every key.
fn mask(
    sequence: &SequenceStep,
    window: Option<usize>,
    direction: Direction,
    device: &Device,
) -> Result<Option<Tensor>> {
    let (rows, context) = (sequence.rows.len(), sequence.context);
    let first = context - rows;
    if (rows == 1 || direction != Direction::Causal) && window.is_none_or(|window| context <= window) {
        return Ok(None);
    }
    let is_visible = |query: usize, key: usize| {
        let is_after = key > query;
        match direction {
            Direction::Causal if is_after => false,
            Direction::BidirectionalImage if is_after => true,
            _ => window.is_none_or(|window| query.abs_diff(key) < window),
        }
    };
    let value = |query, key| if is_visible(query, key) { 0f32 } else { f32::NEG_INFINITY };
    let values: Vec<f32> =
        (first..context).flat_map(|query| (0..context).map(move |key| value(query, key))).collect();
    Tensor::from_vec(values, (rows, context), device).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(contexts: &[usize]) -> Step {
        let sequence = |(row, &context): (usize, &usize)| SequenceStep {
            rows: row..row + 1,
            context,
            blocks: (0..context.div_ceil(BLOCK_SIZE) as u32).collect(),
            logits: 1,
            adapter: None,
        };
        Step { sequences: contexts.iter().enumerate().map(sequence).collect(), ..Step::default() }
    }

    #[test]
    fn step_shapes_stay_constant_while_sequences_grow() {
        let lengths = |contexts: &[usize]| StepIndices::of(&step(contexts)).parts().map(|part| part.len());
        let bound = |contexts: &[usize]| table_width(&step(contexts)) * BLOCK_SIZE;
        for (short, long) in [([1, 1], [16, 2]), ([65, 3], [128, 100]), ([513, 1], [1024, 1000])] {
            assert_eq!(lengths(&short), lengths(&long));
            assert_eq!(bound(&short), bound(&long));
            assert!(long.iter().all(|context| *context <= bound(&long)));
        }
        assert_eq!(lengths(&[17, 40]), [3, 3, 2 * 4]);
    }
}
