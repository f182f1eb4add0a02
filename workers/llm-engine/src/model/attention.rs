//! Attention of a step's rows over the cache, or over each other.
use candle_core::{DType, Device, Result, Tensor, bail};
use candle_flash_attn::{flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed};

use super::layers::capped;
use crate::step::{BLOCK, SequenceStep, Step};

/// Heads that candle-flash-attn takes: multiples of the first up to the second.
const FLASH_WIDTHS: (usize, usize) = (8, 512);

/// What goes into the scores of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// Factor.
    pub scale: f32,
    /// With c, c tanh(score / c) takes the place of the score.
    pub softcap: Option<f32>,
    /// How many keys a query sees, its own among them.
    pub window: Option<usize>,
}

/// What attention needs to know of a step, made once and shared by all layers.
pub struct Plan {
    sequences: Vec<Span>,
    flash: Option<Flash>,
}

struct Span {
    step: SequenceStep,
    /// u32 (blocks), where flash attention does not gather them.
    blocks: Option<Tensor>,
    /// By window: negative infinity where a query (row) does not see a key (column); none if each sees all.
    masks: Vec<(Option<usize>, Option<Tensor>)>,
}

/// The arguments of candle-flash-attn.
struct Flash {
    /// u32 (sequences + 1): where each sequence's rows begin and end.
    rows: Tensor,
    /// Likewise its keys.
    keys: Tensor,
    /// u32 (sequences, most blocks of one).
    table: Tensor,
    max_rows: usize,
    max_keys: usize,
}

/// The words that a plan adds to what a step uploads.
pub struct Words {
    rows: Vec<u32>,
    keys: Vec<u32>,
    table: Vec<u32>,
}

/// Whether candle-flash-attn computes heads of this width and dtype there.
fn has_flash(device: &Device, dtype: DType, width: usize) -> bool {
    let (step, most) = FLASH_WIDTHS;
    device.is_rocm()
        && matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
        && width.is_multiple_of(step)
        && width <= most
}

/// Blocks of a table's row: a power of two, so that the shapes of a step change seldom while texts grow, and a step of one
/// row for each text is the same launches for long.
fn widest(step: &Step) -> usize {
    let widest = step.sequences.iter().map(|sequence| sequence.context.div_ceil(BLOCK)).max();
    widest.unwrap_or(0).next_power_of_two()
}

impl Words {
    /// Of a step: cumulative lengths and the table of blocks.
    pub fn of(step: &Step) -> Self {
        let sums = |length: fn(&SequenceStep) -> usize| {
            let sum = |sum: &mut usize, sequence| {
                *sum += length(sequence);
                Some(*sum as u32)
            };
            std::iter::once(0).chain(step.sequences.iter().scan(0, sum)).collect()
        };
        let widest = widest(step);
        // A row's end is never looked at: any block fills it.
        let row = |sequence: &SequenceStep| {
            let blocks = sequence.blocks.clone().into_iter().take(sequence.context.div_ceil(BLOCK));
            blocks.chain(std::iter::repeat(0)).take(widest).collect::<Vec<_>>()
        };
        Self {
            rows: sums(|sequence| sequence.rows.len()),
            keys: sums(|sequence| sequence.context),
            table: step.sequences.iter().flat_map(row).collect(),
        }
    }

    /// How they follow each other in an upload.
    pub fn parts(self) -> [Vec<u32>; 3] {
        [self.rows, self.keys, self.table]
    }
}

impl Plan {
    /// Of a step whose [`Words`] lie on the device, `dtype` and `width` being those of heads, and `windows` the different
    /// ones of the layers.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn new(
        step: &Step,
        [rows, keys, table]: [Tensor; 3],
        windows: &[Option<usize>],
        (dtype, width): (DType, usize),
    ) -> Result<Self> {
        let device = rows.device().clone();
        let most = |length: fn(&SequenceStep) -> usize| step.sequences.iter().map(length).max().unwrap_or(0);
        let mut sequences = Vec::with_capacity(step.sequences.len());
        let flash = has_flash(&device, dtype, width);
        let widest = table.elem_count() / step.sequences.len().max(1);
        for (at, sequence) in step.sequences.iter().enumerate() {
            let mut span = Span { step: sequence.clone(), blocks: None, masks: Vec::new() };
            if !flash {
                let blocks = sequence.context.div_ceil(BLOCK);
                if widest > 0 {
                    span.blocks = Some(table.narrow(0, at * widest, blocks)?);
                }
                for &window in windows {
                    span.masks.push((window, mask(sequence, window, &device)?));
                }
            }
            sequences.push(span);
        }
        let flash = match flash {
            true => Some(Flash {
                rows,
                keys,
                table: table.reshape((step.sequences.len(), ()))?,
                max_rows: most(|sequence| sequence.rows.len()),
                max_keys: widest * BLOCK,
            }),
            false => None,
        };
        Ok(Self { sequences, flash })
    }

    /// Queries (rows, heads, width) see the keys of their sequence up to their own position, and give (rows, heads times
    /// width). Keys and values are the cache's (blocks, [`BLOCK`], key heads, width) if `paged`, else the rows'
    /// own (rows, key heads, width).
    ///
    /// # Errors
    /// Where the device fails.
    pub fn attend(&self, scores: Scores, q: &Tensor, [k, v]: [&Tensor; 2], paged: bool) -> Result<Tensor> {
        let Some(flash) = &self.flash else { return self.attend_plainly(scores, q, [k, v], paged) };
        let (left, right) = (scores.window.map(|window| window - 1), Some(0));
        let (rows, keys) = (&flash.rows, &flash.keys);
        let (max_rows, max_keys) = (flash.max_rows, flash.max_keys);
        let (scale, cap) = (scores.scale, scores.softcap);
        let out = if paged {
            let table = &flash.table;
            flash_attn_varlen_paged_windowed(
                q, k, v, rows, keys, table, None, max_rows, max_keys, scale, left, right, BLOCK, cap,
            )?
        } else {
            let cap = cap.unwrap_or(0.0);
            flash_attn_varlen_alibi_windowed_softcap(
                q, k, v, None, rows, keys, max_rows, max_keys, scale, left, right, cap,
            )?
        };
        out.flatten_from(1)
    }

    fn attend_plainly(
        &self,
        scores: Scores,
        q: &Tensor,
        [k, v]: [&Tensor; 2],
        paged: bool,
    ) -> Result<Tensor> {
        let mut out = Vec::with_capacity(self.sequences.len());
        for span in &self.sequences {
            let SequenceStep { rows, context, .. } = &span.step;
            let gathered = |from: &Tensor| match (paged, &span.blocks) {
                (true, Some(blocks)) => from.index_select(blocks, 0)?.flatten(0, 1)?.narrow(0, 0, *context),
                (true, None) => bail!("attention over the cache of a sequence without blocks"),
                (false, _) => from.narrow(0, rows.start, rows.len()),
            };
            let Some((_, mask)) = span.masks.iter().find(|(window, _)| *window == scores.window) else {
                bail!("attention with a window of {:?} that no layer has", scores.window)
            };
            let q = q.narrow(0, rows.start, rows.len())?;
            out.push(one(scores, &q, &gathered(k)?, &gathered(v)?, mask.as_ref())?);
        }
        Tensor::cat(&out, 0)
    }
}

/// Of one sequence: (rows, heads, width) over (context, key heads, width) twice; computed in f32.
fn one(scores: Scores, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let ((rows, heads, width), (context, kv_heads, _)) = (q.dims3()?, k.dims3()?);
    let (group, dtype) = (heads / kv_heads, q.dtype());
    let exact = |x: &Tensor| x.to_dtype(DType::F32);
    // Heads that share a head of keys become rows of one product.
    let q = exact(q)?.reshape((rows, kv_heads, group, width))?.permute((1, 2, 0, 3))?;
    let q = q.reshape((kv_heads, group * rows, width))?;
    let k = exact(k)?.permute((1, 2, 0))?.contiguous()?;
    let v = exact(v)?.transpose(0, 1)?.contiguous()?;
    let mut score = (q.matmul(&k)? * scores.scale as f64)?;
    if let Some(cap) = scores.softcap {
        score = capped(&score, cap as f64)?;
    }
    if let Some(mask) = mask {
        let by_head = score.reshape((kv_heads * group, rows, context))?;
        score = by_head.broadcast_add(mask)?.reshape((kv_heads, group * rows, context))?;
    }
    let out = candle_nn::ops::softmax_last_dim(&score)?.matmul(&v)?;
    let out = out.reshape((kv_heads, group, rows, width))?.permute((2, 0, 1, 3))?;
    out.reshape((rows, heads * width))?.to_dtype(dtype)
}

/// None if every query sees every key.
fn mask(sequence: &SequenceStep, window: Option<usize>, device: &Device) -> Result<Option<Tensor>> {
    let (rows, context) = (sequence.rows.len(), sequence.context);
    let first = context - rows;
    if rows == 1 && window.is_none_or(|window| context <= window) {
        return Ok(None);
    }
    let seen = |query: usize, key: usize| key <= query && window.is_none_or(|window| query - key < window);
    let value = |query, key| if seen(query, key) { 0f32 } else { f32::NEG_INFINITY };
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
            blocks: (0..context.div_ceil(BLOCK) as u32).collect(),
            logits: true,
        };
        Step { sequences: contexts.iter().enumerate().map(sequence).collect(), ..Step::default() }
    }

    #[test]
    fn shapes_of_a_step_stay_while_texts_grow() {
        let lengths = |contexts: &[usize]| Words::of(&step(contexts)).parts().map(|part| part.len());
        let bound = |contexts: &[usize]| widest(&step(contexts)) * BLOCK;
        for (short, long) in [([1, 1], [16, 2]), ([65, 3], [128, 100]), ([513, 1], [1024, 1000])] {
            assert_eq!(lengths(&short), lengths(&long));
            assert_eq!(bound(&short), bound(&long));
            assert!(long.iter().all(|context| *context <= bound(&long)));
        }
        assert_eq!(lengths(&[17, 40]), [3, 3, 2 * 4]);
    }
}
