//! Products of matrices, of stacks of them, and on tiles.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{OUT, TILED_FLOATS, tile_sides};

subject! {
    modules {
        /// Products of matrices.
        product,
        /// Products and convolutions on tiles.
        tiled,
    }
    constants {
        /// Maximum number of rows of a product of few rows.
        PRODUCT_ROWS = 4,
        /// Columns of a workgroup's part of a thin product, and the most rows of one.
        THIN_SIDE = 16,
        /// Rows and columns of a workgroup's part of a product of f64.
        PRODUCT_TILE = 16,
    }
}

const PRODUCT: &[Argument] = args![
    Pointer => a "left side", b "right side", c "result; its rows are dense";
    U32 => m "rows of the result", n "columns of the result", k "columns of the left side", batches "products";
    Usize => a_row "elements from row to row of the left side",
        a_column "elements from column to column of the left side",
        a_batch "elements from product to product of the left side",
        b_row "elements from row to row of the right side",
        b_column "elements from column to column of the right side",
        b_batch "elements from product to product of the right side",
        c_row "elements from row to row of the result", c_batch "elements from product to product of the result"];
/// The matrix of a stack that each product takes, and where it goes.
pub const ROUTES: &[Argument] = args![Pointer =>
    experts "the matrix of each product, as u32; null if there is one",
    order "rows of the output, as u32; null for the order of the products",
    factors "of each row of the output, as f32; may be null"];
/// The number of products with a stack of matrices, and their sizes.
pub const ROUTED: &[Argument] = args![U32 =>
    count "products", n "rows of a matrix", stack "matrices",
    per "rows of the output that share a row of activations"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Product",
            "product",
            "{kind}_{dtype}",
            "`c = a b`: in tiles, for GPUs that rocBLAS has no kernels for, or of one row, up to PRODUCT_ROWS or \
             (thin) THIN_SIDE with dense columns, in packs; z of the grid counts batches.",
        )
        .over([names("kind", &["product"]), dtypes("dtype", &["f64"])])
        .over([names("kind", &["row", "rows", "thin"]), dtypes("dtype", TILED_FLOATS)])
        .takes(&[PRODUCT, args![U32 => width "threads that share a column, of row and rows"]]),
        family(
            "TiledProduct",
            "tiled",
            "tiled_product_{side}_{dtype}",
            "`c = a b` on tiles; x of the grid counts parts of `side` rows, then those of `side` columns; z batches.",
        )
        .over([tile_sides(), dtypes("dtype", &["bf16", "f16", "f32", "f8e4m3"])])
        .takes(&[PRODUCT]),
        family(
            "Experts",
            "product",
            "experts_{dtype}",
            "The products of rows with matrices of a stack, one of them each.",
        )
        .over([dtypes("dtype", &["bf16", "f16"])])
        .takes(&[args![Pointer => x "dense rows, in packs", weights "matrices (n, k)"], ROUTES, OUT, ROUTED])
        .takes(&[args![U32 => k "columns, whole packs", width "threads that share a row of a matrix"]]),
    ]
}
