//! Products of one row of activations with the operations around them in a decoder layer.

use super::formats::{ALL, formats};
use super::schema::{Argument, Family, dtypes, family};
use super::shared::TILED_FLOATS;

subject! {
    modules {
        /// Products of one row with float and quantized matrices, with norm, bias, gate and residual.
        row,
    }
    constants {
        /// Threads per workgroup of a product of one row.
        ROW_PRODUCT_BLOCK = 512,
        /// Sums of waves that a workgroup holds in LDS. With a row of 32,768 bytes and its scales they fit into 48 KiB.
        ROW_PRODUCT_SUMS = 1984,
        /// Packs of a float matrix's row that a lane multiplies.
        ROW_FLOAT_UNITS = 4,
        /// Code of f32 in the arguments of a product of one row.
        FLOAT_F32 = 0,
        /// Code of f16.
        FLOAT_F16 = 1,
        /// Code of bf16.
        FLOAT_BF16 = 2,
        /// Code of a product without a gate.
        ACTIVATION_NONE = 0,
        /// Code of silu(gate) * up.
        ACTIVATION_SILU = 1,
        /// Code of gelu(gate) * up with the approximation by tanh.
        ACTIVATION_GELU = 2,
    }
}

const ROW: &[Argument] = args![
    Pointer => x "the row", gate "if not null, the row of f32 is silu(x) * gate; only for blocks",
        norm "if not null, the weights of an RMS norm of the row",
        bias "added to the products with all matrices; may be null", summand "added to the result; may be null",
        w0 "rows of the first matrix, or of the gate", w1 "rows of the second matrix, if any, or of up",
        w2 "rows of the third matrix, if any", out0 "result of the first matrix, or of the gate and up",
        out1 "result of the second matrix", out2 "result of the third matrix";
    U32 => end0 "end of the first matrix's rows", end1 "end of the second matrix's rows",
        end2 "end of the third matrix's rows", k "elements of a row", results "results per workgroup",
        lanes "threads that share a row of a matrix: a power of two, or a multiple of 32",
        dtype "code of the dtype of all inputs other than the matrices and the summand",
        summand_dtype "code of the summand's dtype", out_dtype "code of the results' dtype",
        activation "code of the gate's activation";
    F32 => eps "added to the mean square of the norm"];

fn families() -> Vec<Family> {
    let row = |family: Family| family.takes(&[ROW]).block(ROW_PRODUCT_BLOCK);
    vec![
        row(family(
            "RowProduct",
            "row",
            "row_product_{dtype}",
            "Products of one row with up to three float matrices, whose rows are numbered consecutively.",
        )
        .over([dtypes("dtype", TILED_FLOATS)])),
        row(family(
            "QuantizedRow",
            "row",
            "quantized_row_{format}",
            "Products of one row with up to three matrices of blocks, whose rows are numbered consecutively.",
        )
        .over([formats(ALL)])
        .with_dynamic_lds()),
    ]
}
