//! Constants, copies of rows and transpositions.

use super::schema::{Family, dtypes, family, names};
use super::shared::{CARRIERS, INFO, INP, NUM_DIMS, OUT, STRIDED, UNITS};

subject! {
    modules {
        /// Constants and two-dimensional copies.
        fill,
    }
    constants {
        /// The most sources that one launch copies to their places.
        COPIED = 8,
        /// Bytes of a workgroup's part of a transposition.
        TILE_BYTES = 8192,
        /// Of them, those that are contiguous where they are read.
        TILE_ROW_BYTES = 128,
        /// The most rows of it.
        TILE_ROWS = 64,
    }
}

fn families() -> Vec<Family> {
    vec![
        family("ConstSet", "fill", "const_set_{carrier}", "Writes one value to every element of the layout.")
            .over([dtypes("carrier", CARRIERS)])
            .takes(&[STRIDED, args![Element("carrier") => value "the value"], OUT])
            .in_packs(),
        family(
            "Copy2d",
            "fill",
            "copy2d_{unit}",
            "Copies rows of up to COPIED sources to their places in the output, in units of so many bytes.",
        )
        .over([names("unit", UNITS)])
        .takes(&[INFO, args![Usize => out_pitch "units from row to row of `out`"], OUT])
        .takes(&[args![Pointer =>
            inp0 "a source, if there is one", inp1 "a source, if there is one", inp2 "a source, if there is one",
            inp3 "a source, if there is one", inp4 "a source, if there is one", inp5 "a source, if there is one",
            inp6 "a source, if there is one", inp7 "a source, if there is one"]]),
        family(
            "Transpose",
            "fill",
            "transpose_{carrier}",
            "Exchanges rows and columns; the layout is that of the batches, with strides of `inp` and `out`.",
        )
        .over([dtypes("carrier", CARRIERS)])
        .takes(&[NUM_DIMS, INFO, INP, OUT, args![
            U32 => batches "matrices", rows "elements that are contiguous in `inp`",
                columns "elements that are contiguous in `out`";
            Usize => in_stride "elements from column to column of `inp`",
                out_stride "elements from row to row of `out`";
            Bool => whole "whether packs fit everywhere"]])
        .in_packs(),
    ]
}
