//! Sampling of tokens from rows of logits.

use super::schema::{Family, dtypes, family};
use super::shared::TILED_FLOATS;

subject! {
    modules {
        /// Sampling of tokens from rows of logits.
        sampling,
    }
    constants {
        /// Number of threads that sample a row.
        SAMPLE_BLOCK = 1024,
        /// Words of the settings of a row.
        SAMPLE_SETTINGS_WORDS = 16,
        /// Words of the result of a row before its most likely tokens.
        SAMPLE_RESULT_WORDS = 7,
    }
}

fn families() -> Vec<Family> {
    let sampling = "Applies penalties, bias and mask to each row of logits, and samples a token from it.";
    vec![
        family("Sample", "sampling", "sample_{dtype}", sampling)
            .over([dtypes("dtype", TILED_FLOATS)])
            .takes(&[args![
                Pointer => logits "dense rows; those of f32 are changed and restored",
                    settings "words: the settings of each row, then masks, and lists that the kernel overwrites",
                    out "words of each row: its result, then the most likely tokens";
                U32 => vocabulary "elements of a row, at most 2^24", out_words "words of a row of `out`"]])
            .block(SAMPLE_BLOCK),
    ]
}
