//! GGML's block formats: their table, and the kernels that make, unpack and multiply blocks.

use super::product::{ROUTED, ROUTES};
use super::schema::{Argument, Axis, Family, dtypes, family, names};
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

/// A block format of GGML. Host, kernels and tests take all that they need to know of it from its row in [`FORMATS`].
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// The name in kernels.
    pub name: &'static str,
    /// The struct in `blocks.cuh` that unpacks blocks.
    pub unpacker: &'static str,
    /// GGML's number of the type, as GGUF files have it.
    pub ggml_type: u32,
    /// Weights of a block.
    pub weights: u32,
    /// Bytes of a block.
    pub bytes: u32,
    /// Threads that make a block together by the format's `Quantizer` in `quantize.cu`; 0 without one.
    pub quantizer_threads: u32,
    /// Whether the quantizer can weight columns by their importance.
    pub is_weighted: bool,
}

impl BlockFormat {
    const fn row(name: &'static str, unpacker: &'static str, sizes: [u32; 4], is_weighted: bool) -> Self {
        let [ggml_type, weights, bytes, quantizer_threads] = sizes;
        Self { name, unpacker, ggml_type, weights, bytes, quantizer_threads, is_weighted }
    }
}

/// All block formats: name, unpacker, [GGML's number, weights, bytes, threads of the quantizer], whether it is weighted.
#[rustfmt::skip]
pub const FORMATS: &[BlockFormat] = &[
    BlockFormat::row("q4_0", "Q4_0", [ 2,  32,  18,  8], false),
    BlockFormat::row("q4_1", "Q4_1", [ 3,  32,  20,  8], false),
    BlockFormat::row("q5_0", "Q5_0", [ 6,  32,  22,  8], false),
    BlockFormat::row("q5_1", "Q5_1", [ 7,  32,  24,  8], false),
    BlockFormat::row("q8_0", "Q8_0", [ 8,  32,  34,  8], false),
    BlockFormat::row("q8_1", "Q8_1", [ 9,  32,  36,  8], false),
    BlockFormat::row("q2k",  "Q2K",  [10, 256,  84, 16], true),
    BlockFormat::row("q3k",  "Q3K",  [11, 256, 110, 16], true),
    BlockFormat::row("q4k",  "Q4K",  [12, 256, 144,  8], true),
    BlockFormat::row("q5k",  "Q5K",  [13, 256, 176,  8], true),
    BlockFormat::row("q6k",  "Q6K",  [14, 256, 210, 16], true),
    BlockFormat::row("q8k",  "Q8K",  [15, 256, 292, 16], false),
];

/// A condition on a format.
type Condition = fn(&BlockFormat) -> bool;
const ALL: Condition = |_| true;
const LARGE: Condition = |format| format.weights == 256;
const MADE: Condition = |format| format.quantizer_threads > 0;
const WEIGHTED: Condition = |format| format.is_weighted;

/// The macros that write a kernel out for each format, as pairs of name and expansion.
pub fn macros() -> Vec<(&'static str, String)> {
    let lists =
        [("FORMAT", ALL), ("LARGE_FORMAT", LARGE), ("MADE_FORMAT", MADE), ("WEIGHTED_FORMAT", WEIGHTED)];
    let expansion = |condition: Condition| {
        let rows = FORMATS.iter().copied().filter(condition).map(|format| {
            let BlockFormat { name, unpacker, weights, bytes, quantizer_threads, .. } = format;
            format!("X({unpacker}, {name}, {weights}, {bytes}, {quantizer_threads})")
        });
        rows.collect::<Vec<_>>().join(" ")
    };
    lists.map(|(name, condition)| (name, expansion(condition))).into()
}

fn formats(condition: Condition) -> Axis {
    let names_of: Vec<_> =
        FORMATS.iter().filter(|format| condition(format)).map(|format| format.name).collect();
    Axis { shared: Some("BlockFormat"), ..names("format", &names_of) }
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
