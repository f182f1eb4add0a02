//! Scaled dot product attention and its gradients.

use super::schema::{Argument, Axis, Family, dtypes, family, names};
use super::shared::{INFO, OUT};

subject! {
    modules {
        /// Scaled dot product attention.
        attention,
        /// Scaled dot product attention of a few queries per key head.
        decode,
        /// Gradients of attention.
        gradients,
    }
    constants {
        /// Query rows per workgroup of attention_rows.
        ATTENTION_ROWS = 128,
        /// Value columns per workgroup if a head does not fit into one workgroup.
        ATTENTION_COLUMNS = 128,
        /// Maximum number of query rows that the kernels of attention_decode are used for.
        ATTENTION_DECODE_ROWS = 16,
        /// Maximum head width of attention_decode.
        ATTENTION_DECODE_WIDTH = 256,
        /// Keys of a group of lanes per iteration of attention_decode.
        ATTENTION_DECODE_KEYS = 4,
        /// Maximum number of workgroups in x of attention_decode if the keys are split.
        ATTENTION_COUNTERS = 4096,
        /// Words of 8 bytes through which parts of attention_decode exchange results: one for each column of each row of a part.
        ATTENTION_EXCHANGED_WORDS = 524288,
    }
}

const QKV: &[Argument] = args![Pointer => q "queries", k "keys", v "values"];
const OPTIONS: &[Argument] = args![Pointer =>
    statistics "logarithms of the sums of exponentials, as f32; may be null",
    slopes "ALiBi slope of each head, as f32, times which the distance is subtracted; may be null",
    query_starts "first query of each sequence and the end, as u32; null if all lengths are equal",
    key_starts "the same for keys",
    table "page numbers of each sequence, as u32; may be null",
    ranges "half-open ranges per batch whose positions all see each other, as i32; may be null"];
const SCORES: &[Argument] = args![
    F32 => scale "factor of the scores", softcap "softcap of the scores; 0 for none";
    U32 => total_queries "maximum end of a sequence of queries", total_keys "maximum end of a sequence of keys"];
const GRADIENT: &[Argument] = args![Pointer =>
    grad "gradient of the result", statistics "logarithms of the sums of exponentials, as f32",
    means "output of gradient_means", slopes "as for attention; may be null",
    query_starts "as for attention; may be null", key_starts "as for attention; may be null"];

fn families() -> Vec<Family> {
    const DTYPES: &[&str] = &["f32", "f16", "bf16"];
    let widths = |widths, of| -> [Axis; 2] { [names("width", widths), dtypes("dtype", of)] };
    let attention = |family: Family, last| {
        let mask = args![Pointer => mask "additive mask of the scores; may be null"];
        let sinks =
            args![Pointer => sinks "score of a key with a value of zero for each head, as f32; may be null"];
        family.takes(&[QKV, mask, OUT, OPTIONS, INFO, SCORES, sinks, last])
    };
    let gradient = |name, kernels, meaning, out| {
        family(name, "gradients", kernels, meaning)
            .over(widths(&["64", "128", "256"], &DTYPES[..1]))
            .over(widths(&["64", "128", "512"], &DTYPES[1..]))
            .takes(&[QKV, GRADIENT, INFO, SCORES, out])
    };
    let rows = family(
        "AttentionRows",
        "attention",
        "attention_rows_{width}_{dtype}",
        "Attention with many queries, ATTENTION_ROWS rows per workgroup. x of the grid numbers tiles of rows, key heads \
         and batches; y numbers groups of value columns; z numbers parts of the keys (split-KV).",
    );
    let parts = family(
        "AttentionParts",
        "attention",
        "attention_parts_{dtype}",
        "Combines the partial results of attention_rows. x and y of the grid are equal to its grid; z numbers its rows. \
         A thread has two columns.",
    );
    let decode = family(
        "AttentionDecode",
        "decode",
        "attention_decode_{rows}_{dtype}",
        "Attention with few queries, 4 or 8 rows per workgroup. x of the grid numbers tiles of rows, key heads and \
         batches; z numbers parts of the keys (split-KV), which the last workgroup combines.",
    );
    let encoded = args![
        Pointer => scales "pairs of bf16 for each row of a key head: the scales of its key and its value";
        Bool => is_fp8 "true if keys and values are E4M3, false if they are integers plus 128"];
    let rows_encoded = family(
        "AttentionRowsEncoded",
        "attention",
        "attention_rows_{width}_{dtype}_encoded",
        "attention_rows over an encoded cache.",
    );
    let decode_encoded = family(
        "AttentionDecodeEncoded",
        "decode",
        "attention_decode_{rows}_{dtype}_{encoding}",
        "attention_decode over an encoded cache. `is_fp8` agrees with the kernel's encoding.",
    );
    let append = family(
        "AttentionAppend",
        "decode",
        "attention_append_{rows}_{keys}_{dtype}",
        "attention_decode for sequences of one row. First adds biases, normalizes and rotates the heads, and writes keys and values \
         to their slots of the cache. `keys` is the maximum number of keys of a group of lanes per iteration.",
    );
    let appended = args![
        Pointer => own_k "rows of keys that are appended, one for each sequence", own_v "likewise values",
            bias "biases of the heads of queries, keys and values; may be null",
            q_norm "weights of the norm of a query's head; may be null, as both norms", k_norm "likewise of a key",
            cos "cosines, as f32, `pairs` for each position", sin "sines, likewise",
            position_of "position of each row, as u32",
            slot_of "slot of each row, as u32; the largest number is no slot, and all keys are in the cache";
        U32 => q_stride "elements between rows of `q`", k_stride "likewise of `own_k`", v_stride "likewise of `own_v`",
            pairs "rotated pairs of a head, a multiple of 8 unless interleaved, and of 4 if so",
            positions "number of positions of `cos` and `sin`";
        Bool => is_f32 "true if projections, biases and weights are f32, false if they have the dtype in the kernel's name",
            interleaved "true if pairs are neighbours, false if they are of both halves of the rotated elements",
            constant_history "true if no earlier launch of a captured graph writes operands other than projections, or \
             earlier rows of the cache";
        F32 => eps "summand of the mean square of the norms"];
    let append_encoded = family(
        "AttentionAppendEncoded",
        "decode",
        "attention_append_{rows}_{keys}_{dtype}_{encoding}",
        "attention_append over an encoded cache, which also encodes the keys and values. `is_fp8` agrees with the kernel's encoding.",
    );
    let partial = args![Pointer => partial "workspace for the partial results of several parts; may be null if there is one"];
    let sums = args![
        Pointer => partial "partial results of attention_rows";
        U32 => parts "number of parts", columns "value columns per workgroup of attention_rows"];
    let shared = |name, values: &[_], shared| Axis { shared: Some(shared), ..names(name, values) };
    let rows_of = |values: &[_]| shared("rows", values, "DecodeRows");
    let keys_of = |values: &[_]| shared("keys", values, "DecodeKeys");
    let encodings = || shared("encoding", &["int8", "fp8"], "DecodeEncoding");
    let halves = || dtypes("dtype", &DTYPES[1..]);
    vec![
        attention(
            rows.over(widths(&["64", "128", "512"], &DTYPES[..1]))
                .over(widths(&["48", "64", "96", "128", "256", "512"], &DTYPES[1..])),
            partial,
        ),
        attention(parts.over([dtypes("dtype", DTYPES)]), sums).block(ATTENTION_COLUMNS),
        attention(
            decode.over([rows_of(&["4"]), dtypes("dtype", DTYPES)]).over([rows_of(&["8"]), halves()]),
            &[],
        ),
        attention(
            append.over([rows_of(&["4"]), keys_of(&["4"]), dtypes("dtype", &DTYPES[..1])]).over([
                rows_of(&["4", "8"]),
                keys_of(&["2", "4"]),
                halves(),
            ]),
            &[],
        )
        .takes(&[appended]),
        attention(
            append_encoded.over([rows_of(&["4", "8"]), keys_of(&["2", "4"]), halves(), encodings()]),
            &[],
        )
        .takes(&[encoded, appended]),
        attention(rows_encoded.over(widths(&["64", "128", "256"], &DTYPES[1..])), partial).takes(&[encoded]),
        attention(decode_encoded.over([rows_of(&["4", "8"]), halves(), encodings()]), &[]).takes(&[encoded]),
        family(
            "GradientMeans",
            "gradients",
            "gradient_means_{dtype}",
            "Dot product of the result and its gradient for each row; 32 lanes per row.",
        )
        .over([dtypes("dtype", DTYPES)])
        .takes(&[
            args![Pointer =>
            grad "gradient of the result", result "the result", means "output, f32, dense"],
            INFO,
        ]),
        gradient(
            "GradientQueries",
            "gradient_queries_{width}_{dtype}",
            "Gradient of the queries; the grid is that of attention_rows with groups of query columns in y.",
            OUT,
        ),
        gradient(
            "GradientKeys",
            "gradient_keys_{width}_{dtype}",
            "Gradients of keys and values, ATTENTION_ROWS keys per workgroup; the grid is like that of gradient_queries.",
            args![Pointer => out_keys "gradient of the keys", out_values "gradient of the values"],
        ),
    ]
}
