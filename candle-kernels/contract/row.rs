//! Products of one to four rows of activations with the operations around them in a decoder layer.

use super::formats::{ALL, SMALL, formats};
use super::schema::{Argument, Axis, Family, dtypes, family, names};
use super::shared::TILED_FLOATS;

subject! {
    modules {
        /// Products of one to four rows with float and quantized matrices, with norm, bias, gate and residual.
        row,
    }
    constants {
        /// Maximum number of threads per workgroup of a product of one row.
        ROW_PRODUCT_BLOCK = 512,
        /// Number of sums of waves that a workgroup holds in LDS. With 32,768 quantized activations, their scales and the
        /// zeros between them, a workgroup uses at most 56 KiB.
        ROW_PRODUCT_SUMS = 1984,
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
        /// Code of the gate of gpt-oss: x / (1 + exp(-1.702 x)) of the gate x, which is at most CLAMPED_LIMIT, times 1 plus up,
        /// which is limited to both sides.
        ACTIVATION_CLAMPED = 3,
        /// Limit of gate and up of ACTIVATION_CLAMPED.
        CLAMPED_LIMIT = 7,
    }
}

const ROW: &[Argument] = args![
    Pointer => x "dense rows", gate "if not null, the row is silu(x) * gate; only for one row of f32 and blocks",
        norm "if not null, the weights of an RMS norm of the rows",
        bias "added to the products with all matrices; may be null", summand "added to the result; may be null",
        w0 "rows of the first matrix, or of the gate", w1 "rows of the second matrix, if any, or of up",
        w2 "rows of the third matrix, if any", out0 "result of the first matrix, or of the gate and up",
        out1 "result of the second matrix", out2 "result of the third matrix";
    U32 => end0 "end of the first matrix's rows", end1 "end of the second matrix's rows",
        end2 "end of the third matrix's rows", k "elements of a row", rows "number of rows, at most that in the name",
        results "results per workgroup and row",
        lanes "threads that share a row of a matrix: a power of two, or a multiple of 32; at least the number of rows in the name",
        dtype "code of the dtype of all inputs other than the matrices and the summand",
        summand_dtype "code of the summand's dtype", out_dtype "code of the results' dtype",
        activation "code of the gate's activation";
    F32 => eps "added to the mean square of the norm"];

fn families() -> Vec<Family> {
    let row = |family: Family| family.takes(&[ROW]).block(ROW_PRODUCT_BLOCK);
    let rows = |counts| Axis { shared: Some("RowCount"), ..names("rows", counts) };
    vec![
        row(family(
            "RowProduct",
            "row",
            "row_product_{rows}_{dtype}",
            "Products of few rows with up to three float matrices, whose rows are numbered consecutively.",
        )
        .over([rows(&["1", "4"]), dtypes("dtype", TILED_FLOATS)])),
        row(family(
            "QuantizedRow",
            "row",
            "quantized_row_{rows}_{format}",
            "Products of few rows with up to three matrices of blocks, whose rows are numbered consecutively.",
        )
        .over([rows(&["1"]), formats(ALL)])
        .over([rows(&["4"]), formats(SMALL)])
        .with_dynamic_lds()),
    ]
}
