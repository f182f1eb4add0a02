//! Sampling of a whole batch with one read back.
use candle_core::{DType, Device, Result, Tensor, bail};

use super::cumulative::{Crossing, Cumulative};
use super::largest::largest;
use super::mask::Masks;
use super::penalties::Penalties;
use super::row::Row;
use super::thresholds::{self, Thresholds};
use crate::request::LogProb;

/// Maximum vocabulary size: tokens are read back as f32, which represents integers exactly up to here.
const MAX_VOCABULARY: usize = 1 << 24;

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Log probability according to the model's unmodified logits, if requested.
    pub logprob: Option<f32>,
    /// Most likely tokens by the same measure, in descending order, if requested.
    pub top: Vec<LogProb>,
}

/// Samples the next token of each row of a batch. Keeps constants on the device between steps.
#[derive(Debug, Default)]
pub struct Sampler {
    penalties: Penalties,
    masks: Masks,
    cumulative: Cumulative,
}

impl Sampler {
    /// Creates a sampler; it allocates its constants on first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Samples a token for each row of f32 `logits` (rows, vocabulary) on their device, with one read back.
    ///
    /// Applies in this order: bias and penalties, mask, temperature, top-k, top-p, min-p. Greedy rows take
    /// the first of the largest logits. Log probabilities are those of the unmodified logits.
    ///
    /// # Errors
    /// Returns an error if the shapes do not match, a logit is NaN or positive infinity, a row has no
    /// possible token, or the device fails.
    pub fn sample(&mut self, logits: &Tensor, rows: &[Row]) -> Result<Vec<Sampled>> {
        let (count, vocabulary) = logits.dims2()?;
        if count != rows.len() || vocabulary == 0 || vocabulary > MAX_VOCABULARY {
            bail!(
                "cannot sample {} rows from logits of shape {:?}: one row each and a vocabulary of 1 to 2^24 are required",
                rows.len(),
                logits.shape()
            )
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let logits = logits.to_dtype(DType::F32)?.contiguous()?;
        let adjusted = self.penalties.apply(&logits, rows)?;
        let adjusted = self.masks.apply(&adjusted, rows)?;
        let best = adjusted.max_keepdim(1)?;
        let tokens = self.tokens(&adjusted, &best, rows)?;
        // The sum detects NaN and infinity in any logit.
        let mut columns = vec![tokens.clone(), logits.sum_keepdim(1)?, best];
        let top_count = rows.iter().filter_map(|row| row.logprobs).max().map(|count| count.min(vocabulary));
        if let Some(top_count) = top_count {
            let top = logits.max_keepdim(1)?;
            let sums = logits.broadcast_sub(&top)?.exp()?.sum_keepdim(1)?.log()?;
            let norm = (top + sums)?;
            columns.push((logits.gather(&tokens.to_dtype(DType::U32)?, 1)? - &norm)?);
            if top_count > 0 {
                let (values, places) = largest(&logits, top_count)?;
                columns.extend([places, values.broadcast_sub(&norm)?]);
            }
        }
        let read = Tensor::cat(&columns, 1)?.to_vec2::<f32>()?;
        let top_count = top_count.unwrap_or(0);
        read.iter()
            .zip(rows)
            .enumerate()
            .map(|(index, (read, row))| sampled(index, read, row, top_count, vocabulary))
            .collect()
    }

    /// Samples the tokens of all rows, f32 (rows, 1).
    fn tokens(&mut self, adjusted: &Tensor, best: &Tensor, rows: &[Row]) -> Result<Tensor> {
        let first = || adjusted.argmax_keepdim(1)?.to_dtype(DType::F32);
        if rows.iter().all(Row::greedy) {
            return first();
        }
        let vocabulary = adjusted.dim(1)?;
        let parameters = Parameters::upload(rows, vocabulary, adjusted.device())?;
        let scaled = adjusted.broadcast_sub(best)?.broadcast_div(&parameters.temperature)?;
        let mut threshold = parameters.thresholds.threshold(&scaled, &mut self.cumulative)?;
        if let Some(min_p) = &parameters.min_p {
            threshold = Some(match threshold {
                Some(threshold) => threshold.maximum(min_p)?,
                None => min_p.clone(),
            });
        }
        let weights = thresholds::weights(&scaled, threshold.as_ref())?;
        let row = &parameters.thresholds.row;
        let drawn = self.cumulative.find(&weights, &parameters.draw, row, Crossing::Above)?;
        match &parameters.greedy {
            Some(greedy) => greedy.gt(0f32)?.where_cond(&first()?, &drawn),
            None => Ok(drawn),
        }
    }
}

/// Number of uploaded values per row.
const COLUMNS: usize = 8;

/// Parameters of all rows on the device, each f32 (rows, 1); `None` if no row uses it.
struct Parameters {
    temperature: Tensor,
    draw: Tensor,
    thresholds: Thresholds,
    /// Logarithm of min-p.
    min_p: Option<Tensor>,
    /// 1 for greedy rows, 0 for others.
    greedy: Option<Tensor>,
}

impl Parameters {
    /// Uploads all parameters at once. Greedy rows get neutral values.
    fn upload(rows: &[Row], vocabulary: usize, device: &Device) -> Result<Self> {
        let drawn = |row: &Row, value: f32, greedy: f32| if row.greedy() { greedy } else { value };
        let top_k = |row: &Row| {
            drawn(
                row,
                row.sampling.top_k.unwrap_or(vocabulary).clamp(1, vocabulary) as f32,
                vocabulary as f32,
            )
        };
        // The smallest positive number has the same effect as 0: it keeps only the most likely token.
        let top_p = |row: &Row| drawn(row, row.sampling.top_p.max(f32::MIN_POSITIVE), 1.0);
        let min_p = |row: &Row| drawn(row, row.sampling.min_p, 0.0);
        let of = |(index, row): (usize, &Row)| {
            [
                index as f32,
                // A subnormal temperature would turn the logits into infinities and NaN.
                drawn(row, row.sampling.temperature.max(f32::MIN_POSITIVE), 1.0),
                row.draw,
                top_k(row),
                top_p(row),
                if top_p(row) < 1.0 { 0.0 } else { f32::NEG_INFINITY },
                min_p(row).ln(),
                drawn(row, 0.0, 1.0),
            ]
        };
        let lines: Vec<[f32; COLUMNS]> = rows.iter().enumerate().map(of).collect();
        let values = (0..COLUMNS).flat_map(|column| lines.iter().map(move |line| line[column]));
        let uploaded = Tensor::from_vec(values.collect::<Vec<f32>>(), (COLUMNS, rows.len(), 1), device)?;
        let column = |place: usize| uploaded.get(place);
        let some = |used: bool, place: usize| used.then(|| column(place)).transpose();
        let share = some(rows.iter().any(|row| top_p(row) < 1.0), 4)?;
        Ok(Self {
            temperature: column(1)?,
            draw: column(2)?,
            thresholds: Thresholds {
                top_k: some(rows.iter().any(|row| top_k(row) < vocabulary as f32), 3)?,
                top_p: share.map(|share| Ok::<_, candle_core::Error>((share, column(5)?))).transpose()?,
                row: column(0)?,
            },
            min_p: some(rows.iter().any(|row| min_p(row) > 0.0), 6)?,
            greedy: some(rows.iter().any(Row::greedy), 7)?,
        })
    }
}

/// Interprets the values that were read back for a row: the token, the sum of its logits, the largest
/// adjusted logit, and optionally the token's log probability, `top_count` positions and their log
/// probabilities.
fn sampled(index: usize, read: &[f32], row: &Row, top_count: usize, vocabulary: usize) -> Result<Sampled> {
    let [token, sum, best, logprobs @ ..] = read else { bail!("read {} values of row {index}", read.len()) };
    if sum.is_nan() || *sum == f32::INFINITY {
        bail!(
            "the logits of row {index} are not finite (their sum is {sum}): the weights are corrupt or overflow their dtype"
        )
    }
    if *best == f32::NEG_INFINITY {
        bail!("no token of row {index} is possible: its mask allows only logits of -infinity")
    }
    let token = *token as u32;
    let (Some(count), [own, top @ ..]) = (row.logprobs, logprobs) else {
        return Ok(Sampled { token, logprob: None, top: Vec::new() });
    };
    let (places, values) = top.split_at(top_count.min(top.len()));
    let pairs = places.iter().zip(values).filter(|(place, _)| (**place as usize) < vocabulary);
    let top =
        pairs.take(count).map(|(place, value)| LogProb { token: *place as u32, logprob: *value }).collect();
    Ok(Sampled { token, logprob: Some(*own), top })
}
