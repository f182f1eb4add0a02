//! Softmax, norms and rotary embeddings of rows, and the write of heads to a paged cache.

use super::reduce::ROW_BLOCK;
use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{TILED_FLOATS, WIDER_FLOATS};

subject! {
    modules {
        /// Rotary embeddings with the write of keys and values to a paged cache.
        kvcache,
        /// Residual sums with RMS norms.
        residual,
        /// Rotary embeddings.
        rotary,
        /// Softmax and norms of rows.
        rows,
    }
    constants {
        /// Packs of a row of softmax or a norm that a thread keeps in registers; one for f64.
        ROW_PACKS = 4,
        /// Maximum number of threads that share a row of a residual sum. With more, they would have too few registers for the
        /// packs of four operands.
        RESIDUAL_BLOCK = 512,
    }
}

const SRC: &[Argument] = args![Pointer => src "dense rows"];
const DST: &[Argument] = args![Pointer => dst "dense rows"];
const ROWS: &[Argument] = args![
    Pointer => partials "statistics of each part, three numbers each; null if rows are not split";
    U32 => rows "number of rows", columns "elements of a row",
        part "elements of a part, which y of the grid numbers", width "threads that share a row, a power of two"];
const COLUMN_WEIGHTS: &[Argument] =
    args![Pointer => alpha "a factor for each column", beta "an offset for each column"];
const CHANNEL_WEIGHTS: &[Argument] =
    args![Pointer => alpha "a factor for each channel", beta "an offset for each channel"];
const EPS: &[Argument] = args![F32 => eps "added to the mean square or variance"];
const GROUPS: &[Argument] = args![
    Usize => channel "elements of a channel, as a divisor word",
        groups "groups of an image, as a divisor word";
    U32 => group "index of the group in the first row";
    F64 => eps "added to the variance";
    Pointer => summands "a summand for each channel of each image, which is added first; may be null";
    Bool => silu "true if SiLU is applied to the result"];

const HEAD_SIZES: &[Argument] = args![
    U32 => rows "number of rows; y of the grid", q_heads "heads of queries", kv_heads "heads of keys, and of values",
        width "elements of a head, an even number", pairs "number of pairs that are rotated",
        lanes "threads that share a head, a power of two, at most 32", table "number of positions of `cos` and `sin`",
        slots "number of slots of the cache";
    Bool => interleaved "true if pairs are neighbours, false if they are elements of both halves",
        in_packs "true if everything is aligned to packs";
    F32 => eps "added to the mean square of the norms";
    Usize => q_stride "elements between rows of `q`", k_stride "elements between rows of `k`",
        v_stride "elements between rows of `v`"];
const HEADS: &[Argument] = args![Pointer => q "queries", k "keys", v "values",
    bias "a summand for each element of the heads of queries, keys and values; may be null",
    q_norm "a factor for each element of a head of queries; null without norms", k_norm "likewise of keys",
    cos "cosines, `pairs` for each position, as f32", sin "sines, likewise",
    position_of "position of each row, as u32", slot_of "slot of each row, as u32; the largest number is no slot",
    out "dense rotated queries", keys "keys of the cache: `kv_heads` heads for each slot",
    values "values of the cache, likewise"];

fn families() -> Vec<Family> {
    let row_family =
        |family: Family, weights, last| family.takes(&[SRC, DST, weights, ROWS, last]).block(ROW_BLOCK);
    let norm = |name, kernels, meaning, weights, last| {
        let family = family(name, "rows", kernels, meaning).over([dtypes("dtype", WIDER_FLOATS)]);
        row_family(family, weights, last)
    };
    let normed = "`(src - mean) / sqrt(variance + eps) * alpha + beta` for each row.";
    let group_normed =
        "`(src - mean) / sqrt(variance + eps) * alpha + beta` for each row, a group of channels.";
    let rms_normed = "`src / sqrt(mean(src^2) + eps) * alpha` for each row.";
    let softmax = family("Softmax", "rows", "{op}_{dtype}", "Softmax or log-softmax of each row.")
        .over([names("op", &["softmax", "logsoftmax"]), dtypes("dtype", WIDER_FLOATS)]);
    vec![
        row_family(softmax, &[], &[]),
        norm("RmsNorm", "rmsnorm_{dtype}", rms_normed, &COLUMN_WEIGHTS[..1], EPS),
        norm("LayerNorm", "layernorm_{dtype}", normed, COLUMN_WEIGHTS, EPS),
        norm("GroupNorm", "groupnorm_{dtype}", group_normed, CHANNEL_WEIGHTS, GROUPS),
        family(
            "Rope",
            "rotary",
            "rope_{pairs}_{dtype}",
            "Rotary embeddings: rotates pairs of neighbours, or of both halves of a row, by the angles of its position.",
        )
        .over([names("pairs", &["neighbours", "halves"]), dtypes("dtype", WIDER_FLOATS)])
        .takes(&[
            args![
            U32 => half "pairs of a row", positions "number of positions",
                heads "rows of a position; y of the grid", batches "number of batches; z of the grid",
                position_rows "rows between positions", head_rows "rows between heads",
                batch_angles "number of angles per batch; 0 if all batches share them";
            Bool => in_packs "true if everything is aligned to packs; a thread then rotates N pairs"],
            SRC,
        ])
        .takes(&[args![Pointer => cos "cosines, `half` for each position", sin "sines, `half` for each position"], DST]),
        family(
            "CacheHeads",
            "kvcache",
            "cache_{dtype}_{cache}",
            "Adds biases to queries, keys and values, normalizes and rotates the heads of queries and keys, and writes \
             keys and values to the slots of a cache.",
        )
        .over([dtypes("dtype", TILED_FLOATS), dtypes("cache", TILED_FLOATS)])
        .takes(&[HEAD_SIZES, HEADS]),
        family(
            "CacheHeadsEncoded",
            "kvcache",
            "cache_encoded_{dtype}_{queries}",
            "Like cache heads, with a cache whose elements are bytes and whose rows of a head have a scale each.",
        )
        .over([dtypes("dtype", &["bf16"]), dtypes("queries", &["bf16"])])
        .over([dtypes("dtype", &["f16", "f32"]), dtypes("queries", &["f16"])])
        .takes(&[HEAD_SIZES, HEADS])
        .takes(&[args![
            Pointer => scales "pairs of bf16 for each slot and head: the scales of its key and its value";
            Bool => is_fp8 "true if elements are E4M3, false if they are integers plus 128"]]),
        family(
            "CacheDecoded",
            "kvcache",
            "cache_decoded_{dtype}",
            "Decodes the keys and values that the queries of sequences see, from the pages of an encoded cache to pages of one \
             sequence each. y of the grid numbers sequences.",
        )
        .over([dtypes("dtype", &["bf16", "f16"])])
        .takes(&[args![
            U32 => capacity "rows of a page of the output",
                left "number of keys before its position that a query sees",
                pages "number of pages of the cache", table_row "page numbers of a sequence in `table`";
            Bool => is_fp8 "true if elements are E4M3, false if they are integers plus 128";
            Usize => page "rows of a page of the cache, as a divisor word", heads "heads of keys, as a divisor word",
                packs "packs of eight elements of a head, as a divisor word",
                page_stride "elements between pages of keys, and of values", head_stride "likewise between heads",
                row_stride "likewise between rows";
            Pointer => keys "keys of the cache", values "values of the cache",
                scales "pairs of bf16 for each row of a key head: the scales of its key and its value",
                query_starts "first query of each sequence and the end, as u32", key_starts "the same for keys",
                table "page numbers of each sequence, as u32", out_keys "dense decoded rows of all heads",
                out_values "likewise", out_table "page number of each sequence in the output"]]),
        family(
            "CacheAdvance",
            "kvcache",
            "cache_advance",
            "Moves the sequences of a static cache to their next positions.",
        )
        .over([])
        .takes(&[args![
            U32 => sequences "number of sequences", capacity "positions of a sequence";
            Pointer => state "u32: positions, slots, and `sequences` + 1 ends of the keys, of which the first stays 0"]])
        .block(32),
        family(
            "AddNorm",
            "residual",
            "addnorm_{dtype}",
            "`sum = residual + x`, or with `post` `residual + norm(x) * post`; and `dst = norm(sum) * alpha`, where \
             `norm(x)` is `x / sqrt(mean(x^2) + eps)` for each row.",
        )
        .over([dtypes("dtype", TILED_FLOATS)])
        .takes(&[args![
            Pointer => x "dense rows", residual "dense rows", post "a factor for each column; may be null",
                alpha "a factor for each column", sum "dense rows", dst "dense rows";
            U32 => rows "number of rows",
                columns "elements of a row, at most as many as ROW_PACKS packs for each thread hold",
                width "threads that share a row, a power of two";
            Bool => in_packs "true if everything is aligned to packs"], EPS])
        .block(RESIDUAL_BLOCK),
    ]
}
