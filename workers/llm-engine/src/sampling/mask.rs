//! Masking of tokens that a grammar does not allow.
use candle_core::{Device, Result, Tensor, bail};

use super::row::Row;

/// Expands bit masks over logits. Keeps its table on the device between steps.
#[derive(Debug, Default)]
pub(super) struct Masks {
    /// Mask value for each byte and bit: 0 if the bit is set, otherwise negative infinity; f32 (256, 8).
    table: Option<Tensor>,
}

impl Masks {
    /// Sets `logits` (rows, vocabulary) to negative infinity for tokens that a row does not allow.
    pub(super) fn apply(&mut self, logits: &Tensor, rows: &[Row]) -> Result<Tensor> {
        if rows.iter().all(|row| row.allowed.is_none()) {
            return Ok(logits.clone());
        }
        let (count, vocabulary) = logits.dims2()?;
        let width = vocabulary.div_ceil(8);
        let mut bytes = Vec::with_capacity(count * width);
        for (index, row) in rows.iter().enumerate() {
            let Some(words) = row.allowed else {
                bytes.resize(bytes.len() + width, u8::MAX);
                continue;
            };
            let start = bytes.len();
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()).take(width));
            // Tokens beyond the grammar's vocabulary, which pad the model's, are never allowed.
            bytes.resize(start + width, 0);
            if vocabulary % 8 != 0 {
                bytes[start + width - 1] &= (1 << (vocabulary % 8)) - 1;
            }
            if bytes[start..].iter().all(|byte| *byte == 0) {
                bail!("row {index} allows none of {vocabulary} tokens: its grammar has ended")
            }
        }
        let device = logits.device();
        let bytes = Tensor::from_vec(bytes, count * width, device)?;
        let mask = self.table(device)?.index_select(&bytes, 0)?.reshape((count, width * 8))?;
        logits + mask.narrow(1, 0, vocabulary)?
    }

    fn table(&mut self, device: &Device) -> Result<&Tensor> {
        if self.table.as_ref().is_none_or(|table| !table.device().same_device(device)) {
            let bit = |byte: usize, bit: usize| if byte >> bit & 1 == 1 { 0.0 } else { f32::NEG_INFINITY };
            let values = (0..256).flat_map(|byte| (0..8).map(move |place| bit(byte, place)));
            self.table = Some(Tensor::from_vec(values.collect::<Vec<f32>>(), (256, 8), device)?);
        }
        match &self.table {
            Some(table) => Ok(table),
            None => bail!("internal error: no table of masks"),
        }
    }
}
