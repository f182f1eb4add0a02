//! Elements that are read or written where indices say.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, INP, INTEGERS, NUMEL, OUT, UNITS};

subject! {
    modules {
        /// index_select, gather, scatter, scatter_add, index_add.
        indexing,
    }
    constants {
        /// The most units that each thread of an index_select or gather moves.
        TAKEN = 4,
        /// The most bytes, likewise.
        TAKEN_BYTES = 32,
    }
}

/// Ids of operations that move elements; those that add take all integers.
const MOVING_IDS: &[&str] = &["u8", "u32", "i64"];
const IDS: &[Argument] = args![Pointer => ids "the indices"];
const STRIDES: &[Argument] = args![Usize =>
    ids_stride "elements from index to index; not used by gather", src_dim_size "the indexed dim of the source"];
const RIGHT: &[Argument] =
    args![Usize => right_size "elements of the dims after the indexed one, as a dim's word"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Take",
            "indexing",
            "{kind}_{ids}_{unit}",
            "`out[l, j, r] = inp[l, id, r]`: the id is `ids[j]`, or of gather `ids[l, j, r]`. All elements and sizes \
             are units of so many bytes.",
        )
        .over([names("kind", &["is"]), dtypes("ids", MOVING_IDS), names("unit", UNITS)])
        .over([names("kind", &["gather"]), dtypes("ids", MOVING_IDS), names("unit", &UNITS[..4])])
        .takes(&[NUMEL, IDS, INP, OUT, STRIDES])
        .takes(&[args![Usize => src_right_size "those of the source, as they are"], RIGHT])
        .takes(&[args![Usize => ids_dim_size "ids along the dim, as a dim's word"]]),
        family(
            "Put",
            "indexing",
            "{kind}_{ids}_{dtype}",
            "`out[l, id, r] = inp[l, j, r]` or `+=`: the id is `ids[l, j, r]`, or of index_add `ids[j]`.",
        )
        .over([names("kind", &["s"]), dtypes("ids", MOVING_IDS), dtypes("dtype", CARRIERS)])
        .over([names("kind", &["sa", "ia"]), dtypes("ids", INTEGERS), dtypes("dtype", ELEMENTS)])
        .takes(&[NUMEL, IDS])
        .takes(&[args![Pointer => order "the places that sort the ids along the dim, as u32; may be null"]])
        .takes(&[INP, OUT, &STRIDES[1..]])
        .takes(&[args![Usize => dst_dim_size "the indexed dim of the destination"], RIGHT])
        .takes(&[args![Usize => runs "threads along the dim, its size or 1, as a dim's word"]]),
    ]
}
