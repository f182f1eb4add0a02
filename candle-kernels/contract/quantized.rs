//! The kernels that make, unpack and multiply blocks of GGML's formats.

use super::formats::{ALL, LARGE, MADE, WEIGHTED, formats};
use super::product::{ROUTED, ROUTES};
use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{INP, NUMEL, OUT, TILED_FLOATS};

subject! {
    modules {
        /// Products of few rows with matrices in GGML's block formats, on matrix units.
        qfew,
        /// Large products with matrices in GGML's block formats.
        qtiles,
        /// Making GGML's blocks.
        quantize,
        /// Matrices in GGML's block formats: their values and their products with few rows.
        quantized,
    }
    constants {
        /// Threads that share the bytes of one row of activations.
        QUANTIZED_ROW_BLOCK = 512,
        /// Activations of each row that wait in LDS at a time.
        QUANTIZED_SEGMENT = 4096,
        /// Rows of blocks that a group of lanes multiplies together.
        QUANTIZED_BESIDE = 2,
        /// Weights that one lane unpacks at once, and activations that share a scale.
        QUANTIZED_PIECE = 32,
        /// Rows and columns of a workgroup's part of a product of few rows with blocks.
        QFEW_SIDE = 16,
        /// Rows of activations of a workgroup's part of a large product with blocks.
        QTILE_ROWS = 128,
        /// Rows of blocks of it.
        QTILE_COLUMNS = 64,
        /// Weights of each of these that it unpacks at once.
        QTILE_DEPTH = 128,
    }
}

const PRODUCT: &[Argument] = args![
    Pointer => blocks "the matrix", x "what quantize_rows wrote", out "the dense output";
    U32 => m "rows of the result", n "its columns, rows of the matrix", k "columns of the matrix, whole blocks"];
const GROUPS: &[Argument] = args![U32 =>
    pieces "runs of QUANTIZED_PIECE weights in a row",
    width "threads that share QUANTIZED_BESIDE rows of weights, `pieces` at most"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Dequantize",
            "quantized",
            "dequantize_{format}_{dtype}",
            "The values of blocks, of all rows or of those with given numbers.",
        )
        .over([formats(ALL), dtypes("dtype", TILED_FLOATS)])
        .takes(&[args![Pointer =>
            blocks "the matrix", ids "numbers of its rows, as u32; null for all in order"], OUT])
        .takes(&[args![
            U32 => pieces "runs of QUANTIZED_PIECE weights of the output";
            Usize => rows "rows of the matrix", row_pieces "pieces of a row, as a dim's word"]]),
        family(
            "QuantizeRows",
            "quantized",
            "quantize_rows_{span}_{dtype}",
            "Activations as bytes, a whole number of spans; behind them a scale and two sums for each \
             QUANTIZED_PIECE, the scale that of its span.",
        )
        .over([names("span", &["32", "256"]), dtypes("dtype", TILED_FLOATS)])
        .takes(&[args![Pointer => x "the activations"], OUT, NUMEL]),
        family(
            "QuantizedRow",
            "quantized",
            "quantized_row_{format}",
            "The products of one row of f32 with up to three matrices, whose rows are counted through.",
        )
        .over([formats(ALL)])
        .takes(&[args![
            Pointer => x "the row", gate "may be null; else the row is silu(x) * gate",
                summand "added to the product with the first matrix; may be null",
                w0 "blocks of the first matrix", w1 "those of the second, if there is one",
                w2 "those of the third, if there is one",
                out0 "product with the first", out1 "with the second", out2 "with the third";
            U32 => end0 "where rows of the first end", end1 "where those of the second end",
                end2 "where those of the third end"], GROUPS])
        .block(QUANTIZED_ROW_BLOCK)
        .with_dynamic_lds(),
        family(
            "QuantizedRows",
            "quantized",
            "quantized_rows_{count}_{format}",
            "The products of up to so many rows of activations at a time with a matrix, or with one of a stack each.",
        )
        .over([names("count", &["1", "8"]), formats(ALL)])
        .takes(&[args![Pointer =>
            activations "what quantize_rows wrote", weights "blocks of the matrix, or of a stack of them"]])
        .takes(&[ROUTES, OUT, args![Usize => all "rows of activations"], ROUTED, GROUPS])
        .block(QUANTIZED_ROW_BLOCK),
        family(
            "QuantizedTiles",
            "qtiles",
            "qtiles_{format}",
            "The products of many rows of activations with a matrix, on matrix units; x of the grid counts parts of \
             QTILE_ROWS rows, y those of QTILE_COLUMNS columns.",
        )
        .over([formats(ALL)])
        .takes(&[PRODUCT]),
        family(
            "QuantizedFew",
            "qfew",
            "qfew_{format}",
            "The products of a few rows of activations with a matrix, on matrix units; x of the grid counts parts of \
             QFEW_SIDE columns, y those of as many rows.",
        )
        .over([formats(LARGE)])
        .takes(&[PRODUCT]),
        family(
            "Quantize",
            "quantize",
            "{kind}_{format}",
            "Blocks of f32, as the CPU device makes them; weighted: by how important each column is.",
        )
        .over([names("kind", &["quantize"]), formats(MADE)])
        .over([names("kind", &["quantize_weighted"]), formats(WEIGHTED)])
        .takes(&[INP, args![Pointer => weights "the importance of the columns, as f32; null if not weighted"]])
        .takes(&[OUT, args![Usize =>
            blocks "blocks in all", row_blocks "blocks of a row; 0 if not weighted"]]),
    ]
}
