//! Matrix products: direct, tiled, and with stacks of matrices (mixtures of experts).

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{OUT, TILED_FLOATS, tile_sides};

subject! {
    modules {
        /// Matrix products of few rows, and of f64.
        product,
        /// Tiled matrix products and convolutions.
        tiled,
    }
    constants {
        /// Maximum number of rows for the small-row kernel.
        PRODUCT_ROWS = 4,
        /// Columns per workgroup of a thin product, and its maximum number of rows.
        THIN_SIDE = 16,
        /// Rows and columns of a workgroup's tile of an f64 product.
        PRODUCT_TILE = 16,
    }
}

const PRODUCT: &[Argument] = args![
    Pointer => a "left operand", b "right operand", c "result, with dense rows";
    U32 => m "rows of the result", n "columns of the result", k "columns of the left operand", batches "number of products";
    Usize => a_row "row stride of the left operand", a_column "column stride of the left operand",
        a_batch "batch stride of the left operand", b_row "row stride of the right operand",
        b_column "column stride of the right operand", b_batch "batch stride of the right operand",
        c_row "row stride of the result", c_batch "batch stride of the result"];
/// Routing of products: the matrix of the stack and the row of the output of each.
pub const ROUTES: &[Argument] = args![Pointer =>
    experts "matrix of each product, as u32; null if there is only one",
    order "row of the output of each product, as u32; null for the order of the products",
    factors "factor of each row of the output, as f32; may be null"];
/// Sizes of products with a stack of matrices.
pub const ROUTED: &[Argument] = args![U32 =>
    count "number of products", n "rows of a matrix", stack "number of matrices",
    rows_per_activation "number of output rows that share a row of activations"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Product",
            "product",
            "{kind}_{dtype}",
            "`c = a b`: tiled f64 products for GPUs without rocBLAS kernels, and products of one row (row), of up to \
             PRODUCT_ROWS (rows) or THIN_SIDE rows (thin) with dense columns. z of the grid numbers batches.",
        )
        .over([names("kind", &["product"]), dtypes("dtype", &["f64"])])
        .over([names("kind", &["row", "rows", "thin"]), dtypes("dtype", TILED_FLOATS)])
        .takes(&[PRODUCT, args![U32 => width "threads that share a column; only for row and rows"]]),
        family(
            "TiledProduct",
            "tiled",
            "tiled_product_{side}_{dtype}",
            "Tiled `c = a b`. x of the grid numbers tiles of `side` rows and `side` columns; z numbers batches.",
        )
        .over([tile_sides(), dtypes("dtype", &["bf16", "f16", "f32", "f8e4m3"])])
        .takes(&[PRODUCT]),
        family(
            "Experts",
            "product",
            "experts_{dtype}",
            "Products of rows with a matrix of a stack each (mixture of experts).",
        )
        .over([dtypes("dtype", &["bf16", "f16"])])
        .takes(&[args![Pointer => x "dense rows of whole packs", weights "matrices (n, k)"], ROUTES, OUT, ROUTED])
        .takes(&[args![U32 => k "columns of a matrix, whole packs", width "threads that share a row of a matrix"]]),
    ]
}
