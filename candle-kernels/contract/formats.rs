//! Table of GGML's block formats, from which the lists in kernels, host and tests are derived.

use super::schema::{Axis, names};

/// A block format of GGML: a row of [`FORMATS`].
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// Name of the format in kernel names.
    pub name: &'static str,
    /// Name of the struct in `blocks.cuh` that unpacks blocks.
    pub unpacker: &'static str,
    /// GGML's type number, as in GGUF files.
    pub ggml_type: u32,
    /// Weights per block.
    pub weights: u32,
    /// Bytes per block.
    pub bytes: u32,
    /// Threads per block of the format's `Quantizer` in `quantize.cu`; 0 if it has none.
    pub quantizer_threads: u32,
    /// True if the quantizer supports an importance matrix.
    pub is_weighted: bool,
}

impl BlockFormat {
    const fn row(name: &'static str, unpacker: &'static str, sizes: [u32; 4], is_weighted: bool) -> Self {
        let [ggml_type, weights, bytes, quantizer_threads] = sizes;
        Self { name, unpacker, ggml_type, weights, bytes, quantizer_threads, is_weighted }
    }
}

/// All block formats: name, unpacker, [GGML's type number, weights, bytes, quantizer threads], importance matrix.
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
    BlockFormat::row("mxfp4", "Mxfp4", [39, 32,  17,  8], false),
];

/// A condition on a format.
pub type Condition = fn(&BlockFormat) -> bool;
/// All formats.
pub const ALL: Condition = |_| true;
/// Formats with blocks of 32 weights.
pub const SMALL: Condition = |format| format.weights == 32;
/// Formats with a quantizer.
pub const QUANTIZABLE: Condition = |format| format.quantizer_threads > 0;
/// Formats whose quantizer supports an importance matrix.
pub const WEIGHTED: Condition = |format| format.is_weighted;

/// Returns the X-macros that list formats, as pairs of name and expansion.
pub fn macros() -> Vec<(&'static str, String)> {
    let lists = [
        ("FORMAT", ALL),
        ("SMALL_FORMAT", SMALL),
        ("QUANTIZABLE_FORMAT", QUANTIZABLE),
        ("WEIGHTED_FORMAT", WEIGHTED),
    ];
    let expansion = |condition: Condition| {
        let rows = FORMATS.iter().copied().filter(condition).map(|format| {
            let BlockFormat { name, unpacker, weights, bytes, quantizer_threads, .. } = format;
            format!("X({unpacker}, {name}, {weights}, {bytes}, {quantizer_threads})")
        });
        rows.collect::<Vec<_>>().join(" ")
    };
    lists.map(|(name, condition)| (name, expansion(condition))).into()
}

/// Returns the axis of the formats that meet a condition.
pub fn formats(condition: Condition) -> Axis {
    let names_of: Vec<_> =
        FORMATS.iter().filter(|format| condition(format)).map(|format| format.name).collect();
    Axis { shared: Some("BlockFormat"), ..names("format", &names_of) }
}
