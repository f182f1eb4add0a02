//! A step for a whole batch, with one read back.
use candle_core::{DType, Device, Result, Tensor, bail};

use super::cumulative::{Cumulative, Passing};
use super::cuts::{self, Cuts};
use super::largest::largest;
use super::mask::Masks;
use super::penalties::Penalties;
use super::row::Row;
use crate::request::LogProb;

/// Tokens are read back as f32, which counts exactly so far.
const VOCABULARY: usize = 1 << 24;

/// A token drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// The logarithm of its probability by the model's logits as they came, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest by the same, likeliest first, as many as were asked for.
    pub top: Vec<LogProb>,
}

/// Draws the next token of each row of a batch. Keeps constants on the device between steps.
#[derive(Debug, Default)]
pub struct Sampler {
    penalties: Penalties,
    masks: Masks,
    cumulative: Cumulative,
}

impl Sampler {
    /// Knows no device yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Draws a token for each row of `logits`, f32 (rows, vocabulary), on their device, with one read back.
    ///
    /// In this order: bias and penalties, the mask, temperature, top-k, top-p and min-p, each on what the one before left.
    /// Greedy rows take the first of the largest. Log probabilities are of the logits as they came.
    ///
    /// # Errors
    /// Where the shapes do not fit, a logit is no number or plus infinity, a row leaves no token, or the device fails.
    pub fn sample(&mut self, logits: &Tensor, rows: &[Row]) -> Result<Vec<Sampled>> {
        let (count, vocabulary) = logits.dims2()?;
        if count != rows.len() || vocabulary == 0 || vocabulary > VOCABULARY {
            bail!(
                "cannot sample {} rows of logits of shape {:?}: one row each is needed",
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
        // A sum is no number if one of its parts is none.
        let mut columns = vec![tokens.clone(), logits.sum_keepdim(1)?, best];
        let told = rows.iter().filter_map(|row| row.logprobs).max().map(|told| told.min(vocabulary));
        if let Some(told) = told {
            let top = logits.max_keepdim(1)?;
            let sums = logits.broadcast_sub(&top)?.exp()?.sum_keepdim(1)?.log()?;
            let norm = (top + sums)?;
            columns.push((logits.gather(&tokens.to_dtype(DType::U32)?, 1)? - &norm)?);
            if told > 0 {
                let (values, places) = largest(&logits, told)?;
                columns.extend([places, values.broadcast_sub(&norm)?]);
            }
        }
        let read = Tensor::cat(&columns, 1)?.to_vec2::<f32>()?;
        let told = told.unwrap_or(0);
        read.iter()
            .zip(rows)
            .enumerate()
            .map(|(index, (read, row))| sampled(index, read, row, told, vocabulary))
            .collect()
    }

    /// The tokens of all rows, f32 (rows, 1).
    fn tokens(&mut self, adjusted: &Tensor, best: &Tensor, rows: &[Row]) -> Result<Tensor> {
        let first = || adjusted.argmax_keepdim(1)?.to_dtype(DType::F32);
        if rows.iter().all(Row::greedy) {
            return first();
        }
        let vocabulary = adjusted.dim(1)?;
        let parameters = Parameters::upload(rows, vocabulary, adjusted.device())?;
        let scaled = adjusted.broadcast_sub(best)?.broadcast_div(&parameters.temperature)?;
        let mut least = parameters.cuts.least(&scaled, &mut self.cumulative)?;
        if let Some(min_p) = &parameters.min_p {
            least = Some(match least {
                Some(least) => least.maximum(min_p)?,
                None => min_p.clone(),
            });
        }
        let weights = cuts::weights(&scaled, least.as_ref())?;
        let row = &parameters.cuts.row;
        let drawn = self.cumulative.place(&weights, &parameters.draw, row, Passing::Above)?;
        match &parameters.greedy {
            Some(greedy) => greedy.gt(0f32)?.where_cond(&first()?, &drawn),
            None => Ok(drawn),
        }
    }
}

/// What is uploaded of each row.
const COLUMNS: usize = 8;

/// Parameters of all rows on the device, each f32 (rows, 1); none where no row asks for it.
struct Parameters {
    temperature: Tensor,
    draw: Tensor,
    cuts: Cuts,
    /// Logarithms.
    min_p: Option<Tensor>,
    /// 1 or 0.
    greedy: Option<Tensor>,
}

impl Parameters {
    /// One upload. Greedy rows get values that change nothing.
    fn upload(rows: &[Row], vocabulary: usize, device: &Device) -> Result<Self> {
        let drawn = |row: &Row, value: f32, greedy: f32| if row.greedy() { greedy } else { value };
        let top_k = |row: &Row| {
            drawn(
                row,
                row.sampling.top_k.unwrap_or(vocabulary).clamp(1, vocabulary) as f32,
                vocabulary as f32,
            )
        };
        // 0 keeps the most likely token alone, as the least number above it does.
        let top_p = |row: &Row| drawn(row, row.sampling.top_p.max(f32::MIN_POSITIVE), 1.0);
        let min_p = |row: &Row| drawn(row, row.sampling.min_p, 0.0);
        let of = |(index, row): (usize, &Row)| {
            [
                index as f32,
                // What is smaller than any normal number would make infinity of 1 and no number of 0.
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
        let some = |asked: bool, place: usize| asked.then(|| column(place)).transpose();
        let share = some(rows.iter().any(|row| top_p(row) < 1.0), 4)?;
        Ok(Self {
            temperature: column(1)?,
            draw: column(2)?,
            cuts: Cuts {
                top_k: some(rows.iter().any(|row| top_k(row) < vocabulary as f32), 3)?,
                top_p: share.map(|share| Ok::<_, candle_core::Error>((share, column(5)?))).transpose()?,
                row: column(0)?,
            },
            min_p: some(rows.iter().any(|row| min_p(row) > 0.0), 6)?,
            greedy: some(rows.iter().any(Row::greedy), 7)?,
        })
    }
}

/// Of what was read back of a row: its token, the sum of its logits, the largest of those adjusted, then with log
/// probabilities its own, `told` places and as many of theirs.
fn sampled(index: usize, read: &[f32], row: &Row, told: usize, vocabulary: usize) -> Result<Sampled> {
    let [token, sum, best, logprobs @ ..] = read else { bail!("read {} values of row {index}", read.len()) };
    if sum.is_nan() || *sum == f32::INFINITY {
        bail!(
            "the logits of row {index} are no numbers (their sum is {sum}): the weights are broken, or overflow their dtype"
        )
    }
    if *best == f32::NEG_INFINITY {
        bail!("no token of row {index} has a probability: what its mask allows the model never writes")
    }
    let token = *token as u32;
    let (Some(asked), [own, top @ ..]) = (row.logprobs, logprobs) else {
        return Ok(Sampled { token, logprob: None, top: Vec::new() });
    };
    let (places, values) = top.split_at(told.min(top.len()));
    let pairs = places.iter().zip(values).filter(|(place, _)| (**place as usize) < vocabulary);
    let top =
        pairs.take(asked).map(|(place, value)| LogProb { token: *place as u32, logprob: *value }).collect();
    Ok(Sampled { token, logprob: Some(*own), top })
}
