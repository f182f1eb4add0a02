//! Sorting of rows.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::CARRIERS;

subject! {
    modules {
        /// Sorting of rows.
        sort,
    }
    constants {
        /// The most threads that sort a row in one launch.
        SORT_BLOCK = 1024,
        /// Elements of each of them.
        SORT_HELD = 4,
        /// Elements of each thread of a tile of a longer row.
        SORT_ROUNDS = 8,
    }
}

const X: &[Argument] = args![Pointer => x "dense rows"];
const COLUMNS: &[Argument] = args![U32 => ncols "elements of a row"];
const TILES: &[Argument] = args![U32 => tiles "tiles of a row"];
const SHIFT: &[Argument] = args![U32 => shift "bits of a key below the digit"];
const COUNTS: &[Argument] = args![Pointer => counts "a u32 for each row, digit and tile"];
const TOTALS: &[Argument] = args![Pointer => totals "a u32 for each row and digit"];
const KEYS: &[Argument] = args![Usize =>
    sign "the sign bit, 0 where there is none",
    infinity "bits of the largest value that is no NaN, 0 for integers",
    turned "all ones for descending order"];

fn families() -> Vec<Family> {
    let sort =
        |name, kernels, meaning| family(name, "sort", kernels, meaning).over([dtypes("carrier", CARRIERS)]);
    let counting = "Counts the elements of each digit in each tile of each row.";
    let summing = "Makes of counts the sums of those of the tiles before.";
    vec![
        sort("SortRows", "asort_{carrier}", "The order of each row, sorted within a workgroup.")
            .takes(&[X, args![Pointer => dst "places as u32"; Usize => rows "how many rows"], COLUMNS])
            .takes(&[args![U32 => width "threads of a row, a power of two"], KEYS])
            .block(SORT_BLOCK)
            .with_dynamic_lds(),
        sort("SortCount", "asort_count_{carrier}", counting).takes(&[X, COUNTS, COLUMNS, TILES, SHIFT, KEYS]),
        sort("SortMove", "asort_move_{carrier}", "Orders rows by a digit.")
            .takes(&[
                X,
                args![Pointer =>
                places "a place in the row for each element, as u32; may be null: its own",
                keys_out "ordered keys; may be null", places_out "their places"],
            ])
            .takes(&[COUNTS, TOTALS, COLUMNS, TILES, SHIFT, KEYS]),
        family("SortSum", "sort", "asort_{op}", summing).over([names("op", &["sum"])]).takes(&[
            COUNTS,
            TOTALS,
            args![Usize => lists "rows times digits"],
            TILES,
        ]),
    ]
}
