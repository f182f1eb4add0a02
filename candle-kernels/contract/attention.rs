//! Scaled dot product attention and its gradients.

use super::schema::{Argument, Axis, Family, dtypes, family, names};
use super::shared::{INFO, OUT};

subject! {
    modules {
        /// Scaled dot product attention.
        attention,
        /// Gradients of attention.
        gradients,
    }
    constants {
        /// Rows of queries of a workgroup of attention_rows.
        ATTENTION_ROWS = 128,
        /// Columns of values of a workgroup where it cannot have all of a head's.
        ATTENTION_COLUMNS = 128,
        /// Threads of a workgroup of attention_keys, which has ATTENTION_FEW rows.
        ATTENTION_SPLIT_THREADS = 64,
        /// Maximum number of rows of queries for attention_keys.
        ATTENTION_FEW = 16,
        /// The most parts of the keys.
        ATTENTION_PARTS = 128,
    }
}

const QKV: &[Argument] = args![Pointer => q "queries", k "keys", v "values"];
const OPTIONS: &[Argument] = args![Pointer =>
    statistics "logarithms of the sums of exponents, as f32; may be null",
    slopes "of each head, as f32: the score is less by slope times distance; may be null",
    query_starts "of each sequence, as u32, and the end; null if all are as long", key_starts "likewise",
    table "numbers of each sequence's pages, as u32; may be null",
    ranges "of each batch, pairs of positions that see each other, as i32; may be null"];
const SCORES: &[Argument] = args![
    F32 => scale "factor of the scores", softcap "bound of the scores; 0 for none";
    U32 => total_queries "where sequences of queries end at most", total_keys "likewise of keys"];
const GRADIENT: &[Argument] = args![Pointer =>
    grad "the gradient of the result", statistics "logarithms of the sums of exponents, as f32",
    means "what gradient_means wrote", slopes "as of attention; may be null", query_starts "likewise",
    key_starts "likewise"];

fn families() -> Vec<Family> {
    const DTYPES: &[&str] = &["f32", "f16", "bf16"];
    const WIDTHS: &[&str] = &["64", "128", "256", "512"];
    let widths = |widths, of| -> [Axis; 2] { [names("width", widths), dtypes("dtype", of)] };
    let attention = |family: Family, last| {
        let mask = args![Pointer => mask "summands of the scores; may be null"];
        family.takes(&[QKV, mask, OUT, OPTIONS, INFO, SCORES, last])
    };
    let gradient = |name, kernels, meaning, out| {
        family(name, "gradients", kernels, meaning)
            .over(widths(&WIDTHS[..3], &DTYPES[..1]))
            .over(widths(WIDTHS, &DTYPES[1..]))
            .takes(&[QKV, GRADIENT, INFO, SCORES, out])
    };
    let rows = family(
        "AttentionRows",
        "attention",
        "attention_rows_{width}_{dtype}",
        "Attention of many queries: ATTENTION_ROWS rows a workgroup. x of the grid counts these, then key heads, then \
         batches; y pieces of values.",
    );
    let keys = family(
        "AttentionKeys",
        "attention",
        "attention_keys_{width}_{dtype}",
        "Attention of few queries: likewise, with ATTENTION_FEW rows; z of the grid counts parts of the keys.",
    );
    let parts = family(
        "AttentionParts",
        "attention",
        "attention_parts_{dtype}",
        "Combines what attention_keys left of parts of the keys: as many x and y in the grid, and its rows in z.",
    );
    let partial = args![Pointer => partial "room for the sums of parts, if there are several"];
    let sums = args![
        Pointer => partial "the sums of parts";
        U32 => parts "how many there are", columns "columns of values of a workgroup of attention_keys"];
    vec![
        attention(rows.over(widths(WIDTHS, DTYPES)), &[]),
        attention(keys.over(widths(WIDTHS, DTYPES)), partial).block(ATTENTION_SPLIT_THREADS),
        attention(parts.over([dtypes("dtype", DTYPES)]), sums).block(ATTENTION_PARTS),
        family(
            "GradientMeans",
            "gradients",
            "gradient_means_{dtype}",
            "The gradient of attention's result times the result, summed up over each row; 32 lanes a row.",
        )
        .over([dtypes("dtype", DTYPES)])
        .takes(&[
            args![Pointer =>
            grad "the gradient of the result", result "the result", means "f32, dense"],
            INFO,
        ]),
        gradient(
            "GradientQueries",
            "gradient_queries_{width}_{dtype}",
            "The gradient of attention's queries; the grid is that of attention_rows, but for pieces of columns.",
            OUT,
        ),
        gradient(
            "GradientKeys",
            "gradient_keys_{width}_{dtype}",
            "The gradients of attention's keys and values: ATTENTION_ROWS keys a workgroup, else likewise.",
            args![Pointer => out_keys "gradient of the keys", out_values "gradient of the values"],
        ),
    ]
}
