//! Positions of three axes (M-RoPE): the tokens of a picture have a time, a row and a column.
use super::processor::Placement;

/// Positions of the three axes for the tokens of a prompt, and for those that follow.
#[derive(Debug, Default)]
pub struct PromptAxes {
    prompt: Vec<[u32; 3]>,
    /// Difference between the index and the position of the tokens after the prompt.
    position_offset: u32,
}

impl PromptAxes {
    /// Computes the positions of a prompt of `tokens` tokens. The tokens of a picture have the time of its beginning. The
    /// position after a picture follows its largest one.
    pub fn new(tokens: usize, pictures: &[Placement]) -> Self {
        let (mut prompt, mut next) = (Vec::with_capacity(tokens), 0u32);
        for picture in pictures {
            let first = picture.spans.first().map_or(tokens, |span| span.start);
            let text = first.saturating_sub(prompt.len()) as u32;
            prompt.extend((next..next + text).map(|position| [position; 3]));
            next += text;
            let [rows, columns] = picture.picture.token_grid();
            let position = |row: usize, column: usize| [next, next + row as u32, next + column as u32];
            prompt.extend((0..rows).flat_map(|row| (0..columns).map(move |column| position(row, column))));
            next += rows.max(columns) as u32;
        }
        let text = tokens.saturating_sub(prompt.len()) as u32;
        prompt.extend((next..next + text).map(|position| [position; 3]));
        Self { prompt, position_offset: tokens as u32 - next - text }
    }

    /// Returns the positions of the token at `index`.
    pub fn at(&self, index: usize) -> [u32; 3] {
        self.prompt.get(index).copied().unwrap_or([(index as u32).saturating_sub(self.position_offset); 3])
    }
}
