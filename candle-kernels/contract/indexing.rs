//! Gather and scatter operations.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, INP, INTEGERS, NUMEL, OUT, UNITS};

subject! {
    modules {
        /// index_select, gather, scatter, scatter_add, index_add.
        indexing,
    }
    constants {
        /// Maximum number of units that a thread of index_select or gather moves.
        GATHER_UNITS_PER_THREAD = 4,
        /// Maximum number of bytes that a thread of index_select or gather moves.
        GATHER_BYTES_PER_THREAD = 32,
    }
}

/// Index dtypes of operations that move elements; operations that add take all integers.
const MOVING_IDS: &[&str] = &["u8", "u32", "i64"];
const IDS: &[Argument] = args![Pointer => ids "the indices"];
const STRIDES: &[Argument] = args![Usize =>
    ids_stride "elements between indices; not used by gather", src_dim_size "size of the source's indexed dim"];
const RIGHT: &[Argument] =
    args![Usize => right_size "number of elements after the indexed dim, as a divisor word"];

fn families() -> Vec<Family> {
    vec![
        family(
            "Take",
            "indexing",
            "{kind}_{ids}_{unit}",
            "`out[l, j, r] = inp[l, id, r]`: the id is `ids[j]` for index_select and `ids[l, j, r]` for gather. Sizes are \
             in units of 1 to 16 bytes.",
        )
        .over([names("kind", &["is"]), dtypes("ids", MOVING_IDS), names("unit", UNITS)])
        .over([names("kind", &["gather"]), dtypes("ids", MOVING_IDS), names("unit", &UNITS[..4])])
        .takes(&[NUMEL, IDS, INP, OUT, STRIDES])
        .takes(&[args![Usize => src_right_size "number of the source's elements after the indexed dim"], RIGHT])
        .takes(&[args![Usize => ids_dim_size "number of ids along the dim, as a divisor word"]]),
        family(
            "Put",
            "indexing",
            "{kind}_{ids}_{dtype}",
            "`out[l, id, r] = inp[l, j, r]` or `+=`: the id is `ids[j]` for index_add, otherwise `ids[l, j, r]`.",
        )
        .over([names("kind", &["s"]), dtypes("ids", MOVING_IDS), dtypes("dtype", CARRIERS)])
        .over([names("kind", &["sa", "ia"]), dtypes("ids", INTEGERS), dtypes("dtype", ELEMENTS)])
        .takes(&[NUMEL, IDS])
        .takes(&[args![Pointer => order "permutation that sorts the ids along the dim, as u32; may be null"]])
        .takes(&[INP, OUT, &STRIDES[1..]])
        .takes(&[args![Usize => dst_dim_size "size of the destination's indexed dim"], RIGHT])
        .takes(&[args![Usize => runs "threads along the dim, its size or 1, as a divisor word"]]),
    ]
}
