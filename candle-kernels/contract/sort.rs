//! Sorting of rows.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::CARRIERS;

subject! {
    modules {
        /// Sorting of rows.
        sort,
    }
    constants {
        /// Maximum number of threads that sort a row in one launch.
        SORT_BLOCK = 1024,
        /// Elements per thread of rows that are sorted in one launch.
        SORT_KEYS_PER_THREAD = 4,
        /// Elements per thread of a tile of longer rows (radix sort).
        SORT_TILE_KEYS_PER_THREAD = 8,
    }
}

const X: &[Argument] = args![Pointer => x "dense rows"];
const COLUMNS: &[Argument] = args![U32 => ncols "elements of a row"];
const TILES: &[Argument] = args![U32 => tiles "number of tiles of a row"];
const SHIFT: &[Argument] = args![U32 => shift "position of the digit in the key, in bits"];
const COUNTS: &[Argument] = args![Pointer => counts "a u32 for each row, digit and tile"];
const TOTALS: &[Argument] = args![Pointer => totals "a u32 for each row and digit"];
const KEYS: &[Argument] = args![Usize =>
    sign "the sign bit, 0 for unsigned types",
    infinity "bits of the largest value that is not NaN, 0 for integers",
    descending_mask "all ones for descending order"];

fn families() -> Vec<Family> {
    let sort =
        |name, kernels, meaning| family(name, "sort", kernels, meaning).over([dtypes("carrier", CARRIERS)]);
    let counting = "Counts the elements of each digit in each tile of each row.";
    let summing = "Replaces counts by their exclusive prefix sums over the tiles.";
    vec![
        sort("SortRows", "asort_{carrier}", "Argsort of each row within a workgroup.")
            .takes(&[
                X,
                args![Pointer => dst "indices in sorted order, as u32"; Usize => rows "number of rows"],
                COLUMNS,
            ])
            .takes(&[args![U32 => width "threads that share a row, a power of two"], KEYS])
            .block(SORT_BLOCK)
            .with_dynamic_lds(),
        sort("SortCount", "asort_count_{carrier}", counting).takes(&[X, COUNTS, COLUMNS, TILES, SHIFT, KEYS]),
        sort(
            "SortMove",
            "asort_move_{carrier}",
            "Moves the elements of each row to their positions by a digit.",
        )
        .takes(&[
            X,
            args![Pointer =>
                places "index in the row of each element, as u32; null for its own position",
                keys_out "output of the ordered keys; may be null", places_out "output of their indices"],
        ])
        .takes(&[COUNTS, TOTALS, COLUMNS, TILES, SHIFT, KEYS]),
        family("SortSum", "sort", "asort_{op}", summing).over([names("op", &["sum"])]).takes(&[
            COUNTS,
            TOTALS,
            args![Usize => lists "number of rows times digits"],
            TILES,
        ]),
    ]
}
