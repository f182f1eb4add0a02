//! Gather and scatter operations.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, INP, NUMEL, OUT, UNITS};

subject! {
    modules {
        /// index_select, gather, scatter, scatter_add, index_add.
        indexing,
    }
    constants {
        /// Maximum number of units that a thread of index_select or gather moves, and number of elements that a thread of
        /// scatter moves if the last places are known.
        GATHER_UNITS_PER_THREAD = 4,
        /// Threads per workgroup of scatter_lines.
        SCATTER_LINES_BLOCK = 1024,
        /// Maximum number of bytes that a thread of index_select or gather moves.
        GATHER_BYTES_PER_THREAD = 32,
        /// Dtype of indices: u8.
        IDS_U8 = 0,
        /// Dtype of indices: u32.
        IDS_U32 = 1,
        /// Dtype of indices: i64.
        IDS_I64 = 2,
        /// Dtype of indices: i16.
        IDS_I16 = 3,
        /// Dtype of indices: i32.
        IDS_I32 = 4,
    }
}

const IDS: &[Argument] = args![Pointer => ids "the indices"];
const IDS_DTYPE: &[Argument] = args![Usize => ids_dtype "one of IDS_U8 to IDS_I32"];
const STRIDES: &[Argument] = args![Usize =>
    ids_stride "elements between indices; not used by gather", src_dim_size "size of the source's indexed dim"];
const RIGHT: &[Argument] =
    args![Usize => right_size "number of elements after the indexed dim, as a divisor word"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Take",
            "indexing",
            "take_{unit}",
            "`out[l, j, r] = inp[l, id, r]`: the id is `ids[j]` for index_select and `ids[l, j, r]` for gather. Sizes are \
             in units of 1 to 16 bytes.",
        )
        .over([names("unit", UNITS)])
        .takes(&[NUMEL, IDS, INP, OUT, STRIDES])
        .takes(&[args![Usize => src_right_size "number of the source's elements after the indexed dim"], RIGHT])
        .takes(&[args![Usize => ids_dim_size "number of ids along the dim, as a divisor word"], IDS_DTYPE])
        .takes(&[args![Bool => gathers "true for gather"]]),
        family(
            "Put",
            "indexing",
            "{kind}_{dtype}",
            "`out[l, id, r] = inp[l, j, r]` or `+=`: the id is `ids[j]` for index_add, otherwise `ids[l, j, r]`.",
        )
        .over([names("kind", &["scatter"]), dtypes("dtype", CARRIERS)])
        .over([names("kind", &["add"]), dtypes("dtype", ELEMENTS)])
        .takes(&[NUMEL, IDS])
        .takes(&[args![Pointer =>
            order "permutation that sorts the ids along the dim, as u32; may be null",
            last "for scatter, the last place of each element as found by LastPlaces; may be null"]])
        .takes(&[INP, OUT, &STRIDES[1..]])
        .takes(&[args![Usize => dst_dim_size "size of the destination's indexed dim"], RIGHT])
        .takes(&[args![Usize => runs
            "threads along the dim, its size or 1, or with `last` the destination's size, as a divisor word"]])
        .takes(&[IDS_DTYPE])
        .takes(&[args![Bool => are_shared "true for index_add"]]),
        family(
            "ScatterLines",
            "indexing",
            "scatter_lines_{carrier}",
            "`out[l, id, r] = inp[l, j, r]` for the last place j with each id `ids[l, j, r]`, which each workgroup finds in \
             LDS: one u32 for each element of the destination's `columns` lines. Each l has whole workgroups.",
        )
        .over([dtypes("carrier", CARRIERS)])
        .takes(&[IDS, INP, OUT, &STRIDES[1..]])
        .takes(&[args![Usize =>
            dst_dim_size "size of the destination's indexed dim", right_size "number of elements after the indexed dim",
            columns "neighbouring elements after the indexed dim for a workgroup, a power of two"]])
        .takes(&[IDS_DTYPE])
        .block(SCATTER_LINES_BLOCK)
        .with_dynamic_lds(),
        family(
            "LastPlaces",
            "indexing",
            "{op}_places",
            "Raises `last[l, ids[l, j, r], r]` to j + 1, so that the last place with each id remains. Reports ids out of range.",
        )
        .over([names("op", &["last"])])
        .takes(&[NUMEL, IDS])
        .takes(&[args![Pointer => last "one u32 for each element of the destination, 0 at first";
            Usize => dst_dim_size "size of the destination's indexed dim"]])
        .takes(&[RIGHT])
        .takes(&[args![Usize => ids_dim_size "number of ids along the dim, as a divisor word"], IDS_DTYPE]),
    ]
}
