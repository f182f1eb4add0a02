//! Kernels that quantize, dequantize and multiply blocks of GGML's formats.

use super::formats::{ALL, QUANTIZABLE, SMALL, WEIGHTED, formats};
use super::product::{ROUTED, ROUTES};
use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{INP, NUMEL, OUT, TILED_FLOATS};

subject! {
    modules {
        /// Products of a few rows with quantized matrices, on matrix units.
        qfew,
        /// Products of many rows with quantized matrices, on matrix units.
        qtiles,
        /// Quantization to GGML's block formats.
        quantize,
        /// Dequantization, and memory-bound products of few rows with quantized matrices.
        quantized,
    }
    constants {
        /// Threads per workgroup of the quantized_rows kernels.
        QUANTIZED_ROW_BLOCK = 512,
        /// Activations of each row that are held in LDS at a time.
        QUANTIZED_SEGMENT = 4096,
        /// Rows of weights that a group of lanes multiplies together.
        ROWS_PER_LANE_GROUP = 2,
        /// Weights that a lane unpacks at a time, and activations that share a scale.
        QUANTIZED_PIECE = 32,
        /// Rows and columns of a workgroup's tile of qfew.
        QFEW_SIDE = 16,
        /// Blocks of 32 weights that a wave of qfew multiplies at a time; rows of such blocks have at least as many.
        QFEW_STEP = 4,
        /// Rows of activations of a workgroup's tile of qtiles.
        QTILE_ROWS = 128,
        /// Rows of weights of a workgroup's tile of qtiles.
        QTILE_COLUMNS = 64,
        /// Weights of each row that a workgroup of qtiles unpacks at a time.
        QTILE_DEPTH = 128,
    }
}

const PRODUCT: &[Argument] = args![
    Pointer => blocks "the matrix", x "output of quantize_rows; for qfew_halves, rows of f16", out "the dense output";
    U32 => m "rows of the result", n "columns of the result, rows of the matrix", k "columns of the matrix, whole blocks",
        out_dtype "code of the output's dtype"];
const GROUPS: &[Argument] = args![U32 =>
    pieces "pieces of QUANTIZED_PIECE weights per row",
    width "threads that share ROWS_PER_LANE_GROUP rows of weights, at most `pieces`"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Dequantize",
            "quantized",
            "dequantize_{format}_{dtype}",
            "Dequantizes all rows of a matrix, or selected rows.",
        )
        .over([formats(ALL), dtypes("dtype", TILED_FLOATS)])
        .takes(&[args![Pointer =>
            blocks "the matrix", ids "indices of the selected rows, as u32; null for all rows"], OUT])
        .takes(&[args![
            U32 => pieces "pieces of QUANTIZED_PIECE weights of the output";
            Usize => rows "rows of the matrix", row_pieces "pieces of a row, as a divisor word"]]),
        family(
            "QuantizeRows",
            "quantized",
            "quantize_rows_{span}_{dtype}",
            "Quantizes activations to bytes, followed by a scale and two sums for each QUANTIZED_PIECE. The scale is \
             that of the span of 32 or 256 activations.",
        )
        .over([names("span", &["32", "256"]), dtypes("dtype", TILED_FLOATS)])
        .takes(&[args![Pointer => x "the activations"], OUT, NUMEL]),
        family(
            "QuantizedRows",
            "quantized",
            "quantized_rows_{count}_{format}",
            "Products of rows of activations, up to `count` at a time, with a matrix, or with one of a stack each.",
        )
        .over([names("count", &["1", "8"]), formats(ALL)])
        .takes(&[args![Pointer =>
            activations "output of quantize_rows", weights "blocks of the matrix, or of a stack of matrices"]])
        .takes(&[ROUTES, OUT, args![Usize => all "number of rows of activations"], ROUTED, GROUPS])
        .block(QUANTIZED_ROW_BLOCK),
        family(
            "QuantizedTiles",
            "qtiles",
            "qtiles_{format}",
            "Products of many rows of activations with a matrix, on matrix units. x of the grid numbers tiles of \
             QTILE_ROWS rows, y tiles of QTILE_COLUMNS columns.",
        )
        .over([formats(ALL)])
        .takes(&[PRODUCT]),
        family(
            "QuantizedFew",
            "qfew",
            "qfew_{format}",
            "Products of a few rows of activations with a matrix, on matrix units. x of the grid numbers tiles of \
             QFEW_SIDE columns, y tiles of QFEW_SIDE rows.",
        )
        .over([formats(ALL)])
        .takes(&[PRODUCT]),
        family(
            "QuantizedFewExperts",
            "qfew",
            "qfew_experts_{format}",
            "Products of rows of activations with the matrices of their experts, on matrix units. x of the grid numbers tiles \
             of QFEW_SIDE columns, y those of `tiles`.",
        )
        .over([formats(ALL)])
        .takes(&[args![
            Pointer => blocks "the stack of matrices (n, k)", x "output of quantize_rows", order "output of group_products",
                tiles "output of group_products", out "the dense output, with a row for each product";
            U32 => m "rows of activations", n "rows of a matrix", k "columns of a matrix, whole blocks",
                rows_per_activation "number of products that share a row of activations",
                out_dtype "code of the output's dtype"]]),
        family(
            "QuantizedFewHalves",
            "qfew",
            "qfew_halves_{format}",
            "Products of a few rows of f16 with a matrix, on matrix units. The grid is that of qfew_{format}.",
        )
        .over([formats(SMALL)])
        .takes(&[PRODUCT]),
        family(
            "Quantize",
            "quantize",
            "{kind}_{format}",
            "Quantizes f32 to the CPU device's blocks, optionally weighted by an importance matrix.",
        )
        .over([names("kind", &["quantize"]), formats(QUANTIZABLE)])
        .over([names("kind", &["quantize_weighted"]), formats(WEIGHTED)])
        .takes(&[INP, args![Pointer => weights "importance of the columns, as f32; null if not weighted"]])
        .takes(&[OUT, args![Usize =>
            blocks "number of blocks", row_blocks "blocks of a row; 0 if not weighted"]]),
    ]
}
