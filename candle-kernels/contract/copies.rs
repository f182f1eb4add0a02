//! Constants, copies of rows and transpositions.

use super::schema::{Family, dtypes, family, names};
use super::shared::{CARRIERS, INFO, INP, NUM_DIMS, OUT, STRIDED, UNITS};

subject! {
    modules {
        /// Constant fill, two-dimensional copies and transpositions.
        fill,
    }
    constants {
        /// Maximum number of sources that one launch copies.
        MAX_COPY_SOURCES = 8,
        /// Bytes of a workgroup's tile of a transposition.
        TILE_BYTES = 8192,
        /// Bytes of a tile's row, which is contiguous in the input.
        TILE_ROW_BYTES = 128,
        /// Maximum number of elements of a tile's row.
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
            "Copies rows of up to MAX_COPY_SOURCES sources into the output, in units of 1 to 16 bytes. A null source is zeros.",
        )
        .over([names("unit", UNITS)])
        .takes(&[INFO, args![Usize => out_pitch "units between rows of `out`"], OUT])
        .takes(&[args![Pointer =>
            inp0 "a source; may be null", inp1 "a source; may be null", inp2 "a source; may be null",
            inp3 "a source; may be null", inp4 "a source; may be null", inp5 "a source; may be null",
            inp6 "a source; may be null", inp7 "a source; may be null"]]),
        family(
            "Transpose",
            "fill",
            "transpose_{carrier}",
            "Transposes matrices; `info` holds the batch dims, with strides of `inp` and `out`.",
        )
        .over([dtypes("carrier", CARRIERS)])
        .takes(&[
            NUM_DIMS,
            INFO,
            INP,
            OUT,
            args![
            U32 => batches "number of matrices", rows "elements of a contiguous run of `inp`",
                columns "elements of a contiguous run of `out`";
            Usize => in_stride "elements between columns of `inp`",
                out_stride "elements between rows of `out`";
            Bool => whole "true if everything is aligned to packs"],
        ])
        .in_packs(),
    ]
}
