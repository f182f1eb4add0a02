//! The kernel modules.

use std::fmt;

/// A kernel module: one source, one code object per target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// `x * mul + add`.
    Affine,
    /// Scaled dot product attention.
    Attention,
    /// Operations and comparisons of two tensors.
    Binary,
    /// Conversions between dtypes.
    Cast,
    /// Convolutions, pooling, upsampling.
    Conv,
    /// Constants and two-dimensional copies.
    Fill,
    /// Gradients of attention.
    Gradients,
    /// index_select, gather, scatter, scatter_add, index_add.
    Indexing,
    /// Products of matrices.
    Product,
    /// Products of few rows with matrices in GGML's block formats, on matrix units.
    Qfew,
    /// Large products with matrices in GGML's block formats.
    Qtiles,
    /// Making GGML's blocks.
    Quantize,
    /// Matrices in GGML's block formats: their values and their products with few rows.
    Quantized,
    /// Uniform and normal random numbers.
    Random,
    /// Sums and extrema.
    Reduce,
    /// Rotary embeddings.
    Rotary,
    /// Softmax and norms of rows.
    Rows,
    /// Running sums.
    Scan,
    /// Sorting of rows.
    Sort,
    /// `where`.
    Ternary,
    /// Products and convolutions on tiles.
    Tiled,
    /// Operations of one tensor, and strided copies.
    Unary,
}

impl Module {
    /// All modules.
    pub const ALL: [Module; 22] = [
        Module::Affine,
        Module::Attention,
        Module::Binary,
        Module::Cast,
        Module::Conv,
        Module::Fill,
        Module::Gradients,
        Module::Indexing,
        Module::Product,
        Module::Qfew,
        Module::Qtiles,
        Module::Quantize,
        Module::Quantized,
        Module::Random,
        Module::Reduce,
        Module::Rotary,
        Module::Rows,
        Module::Scan,
        Module::Sort,
        Module::Ternary,
        Module::Tiled,
        Module::Unary,
    ];

    /// The name of its source without the ending.
    pub fn name(self) -> &'static str {
        match self {
            Module::Affine => "affine",
            Module::Attention => "attention",
            Module::Binary => "binary",
            Module::Cast => "cast",
            Module::Conv => "conv",
            Module::Fill => "fill",
            Module::Gradients => "gradients",
            Module::Indexing => "indexing",
            Module::Product => "product",
            Module::Qfew => "qfew",
            Module::Qtiles => "qtiles",
            Module::Quantize => "quantize",
            Module::Quantized => "quantized",
            Module::Random => "random",
            Module::Reduce => "reduce",
            Module::Rotary => "rotary",
            Module::Rows => "rows",
            Module::Scan => "scan",
            Module::Sort => "sort",
            Module::Ternary => "ternary",
            Module::Tiled => "tiled",
            Module::Unary => "unary",
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
