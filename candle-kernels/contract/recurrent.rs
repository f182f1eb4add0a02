//! Recurrent layers: causal convolutions, the gated delta rule, and selective state spaces of Mamba 1 and 2.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::TILED_FLOATS;

subject! {
    modules {
        /// Causal convolutions, the gated delta rule and selective state spaces, with a state for each sequence.
        recurrent,
    }
    constants {
        /// Inputs of a causal convolution: that of the row and those before it, which are its state.
        CONV_WIDTH = 4,
        /// Rows of a sequence that a thread of a causal convolution computes.
        CONV_ROWS = 16,
        /// Maximum number of elements of a key and of a value of the gated delta rule and of a selective state space.
        DELTA_WIDTH = 128,
        /// Number of elements of a key in a selective state space of Mamba 1.
        MAMBA1_WIDTH = 16,
        /// Threads that share a column of their state, of which each keeps packs of 4 elements.
        DELTA_LANES = 4,
        /// Rows whose factors and results a workgroup holds in LDS.
        DELTA_ROWS = 16,
        /// Maximum number of threads per workgroup: DELTA_LANES for each element of a value.
        DELTA_BLOCK = DELTA_WIDTH * DELTA_LANES,
    }
}

const SEQUENCES: &[Argument] = args![
    Pointer => rows_of "first row of each sequence, which y of the grid numbers, and the number of rows, as u32",
        slot_of "slot from whose state each sequence continues, as u32; the largest number is no slot",
        position_of "position of each row, as u32; a sequence at position 0 begins with a state of zeros",
        kept_of "slot that keeps the state after each row, as u32; the largest number is no slot, as for all rows between the first CONV_ROWS and the last one"];

fn families() -> Vec<Family> {
    vec![
        family(
            "CausalConv",
            "recurrent",
            "causal_conv_{dtype}",
            "SiLU of the convolution of each channel over the rows of sequences, with the last inputs as state.",
        )
        .over([dtypes("dtype", TILED_FLOATS)])
        .takes(&[
            args![Pointer => x "rows", weight "CONV_WIDTH weights for each channel, as f32",
                bias "summand for each channel, as f32; may be null"],
            SEQUENCES,
            args![
                Pointer => states "last inputs of each slot: CONV_WIDTH - 1 dense rows, oldest first", out "dense rows";
                U32 => rows "number of rows", channels "elements of a row", slots "number of slots";
                Usize => x_stride "elements between rows of `x`"],
        ]),
        family(
            "RecurrentHeads",
            "recurrent",
            "{rule}_{dtype}",
            "Gated delta rule over the rows of sequences, with the gated RMS norm of the results of each head; or selective state space of Mamba 1 or 2, with the gates of the results.",
        )
        .over([names("rule", &["gated_delta", "selective_scan"]), dtypes("dtype", TILED_FLOATS)])
        .takes(&[
            args![
                Pointer => qkv "dense rows: heads of queries (C), of keys (B) and of values (x)",
                    a "input of the decay or the step for each head of values, or for each of its elements in Mamba 1",
                    b "input of the learning rate for each head of values; null for selective state spaces",
                    z "input of the gate for each element of the results; may be null for selective state spaces",
                    rate "negative factor of the decay's exponent for each head of values, or for each element of the state in Mamba 1, as f32",
                    dt_bias "summand for each element of a row of `a`, as f32",
                    norm "weight of the norm for each element of a head; null for selective state spaces",
                    skip "factor of the values in the results for each element of a row of `a`, as f32; null for the gated delta rule"],
            SEQUENCES,
            args![
                Pointer => states "matrix of each head of each slot, as f32: a key's elements for each element of a value",
                    out "dense rows of the results";
                U32 => rows "number of rows", key_heads "heads of queries, and of keys",
                    value_heads "heads of values, a multiple of `key_heads`",
                    key_width "elements of a query or a key: 16, 32, 64 or DELTA_WIDTH; MAMBA1_WIDTH in Mamba 1",
                    value_width "elements of a value, a multiple of 8 up to DELTA_WIDTH", slots "number of slots";
                F32 => eps "added to the mean square of the norm", min_step "least step", max_step "largest step";
                U32 => a_stride "elements between rows of `a`", b_stride "elements between rows of `b`",
                    z_stride "elements between rows of `z`";
                Bool => is_mamba1 "true for Mamba 1"],
        ])
        .block(DELTA_BLOCK),
    ]
}
