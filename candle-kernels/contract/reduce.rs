//! Sums, variances and extrema over any dims, and cumulative sums.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{ELEMENTS, INFO, NUM_DIMS, TILED_FLOATS, WIDER_FLOATS};

subject! {
    modules {
        /// Sums, variances and extrema.
        reduce,
        /// Cumulative sums.
        scan,
    }
    constants {
        /// Maximum number of threads that share a row of softmax or a norm, or a result of a reduction.
        ROW_BLOCK = 1024,
        /// Maximum number of neighbouring results of a reduction that a thread computes.
        MAX_RESULTS_PER_THREAD = 8,
        /// Result of a sum: the dtype of the elements.
        SUM_AS_ELEMENTS = 0,
        /// Result of a sum of narrow floats: f32.
        SUM_AS_F32 = 1,
        /// Results of sums of parts: f16.
        PARTS_AS_F16 = 0,
        /// Results of sums of parts: bf16.
        PARTS_AS_BF16 = 1,
        /// Results of sums of parts: f8e4m3.
        PARTS_AS_F8 = 2,
    }
}

/// Elements of sums. Signed integers are summed as unsigned ones where these exist.
const SUMMED: &[&str] = &["u8", "u32", "i16", "i64", "bf16", "f16", "f32", "f64", "f8e4m3", "parts"];
const SIZES: &[Argument] = args![
    Usize => results "number of results", per_result "elements per result";
    U32 => width "threads that share a result and part, a power of two",
        across "neighbouring results per thread; 0 if threads are numbered along the reduced elements";
    Usize => kept_dims "number of dims that are kept, which precede those that are reduced"];
const SRC: &[Argument] = args![Pointer => src "the input"];

fn families() -> Vec<Family> {
    let reduced = |family: Family, out| family.takes(&[SIZES, NUM_DIMS, INFO, SRC, out]).block(ROW_BLOCK);
    vec![
        reduced(
            family(
                "ReduceSum",
                "reduce",
                "reduce_sum_{source}",
                "Sums over any dims; y of the grid numbers parts. Partial sums of narrow floats stay in f32 between the \
                 launches: `parts` sums them to narrow floats.",
            )
            .over([names("source", SUMMED)]),
            args![
                Pointer => dst "a sum for each part and result";
                F64 => scale "factor of each sum before it is rounded";
                Usize => to "dtype of `dst`: SUM_AS_ELEMENTS or SUM_AS_F32, or for parts one of PARTS_AS"],
        ),
        reduced(
            family(
                "ReduceVariance",
                "reduce",
                "reduce_variance_{dtype}",
                "Unbiased variances over any dims, in one launch.",
            )
            .over([dtypes("dtype", TILED_FLOATS)]),
            args![Pointer => dst "a variance for each result"],
        ),
        reduced(
            family(
                "ReduceExtreme",
                "reduce",
                "reduce_extreme_{dtype}",
                "Extrema and their places (indices) over any dims; y of the grid numbers parts.",
            )
            .over([dtypes("dtype", ELEMENTS)]),
            args![Pointer =>
                candidates "places found by the parts; null for all elements",
                values "the extrema; may be null",
                places "their places as u32; may be null";
                Bool => smallest "true for minima, false for maxima"],
        ),
        family("Cumsum", "scan", "cumsum_{dtype}", "Cumulative sums of each line; y of the grid numbers parts.")
            .over([dtypes("dtype", WIDER_FLOATS)])
            .takes(&[args![
                U32 => lines "number of lines", length "elements of a line",
                    inner "stride between elements of a line",
                    part "elements of a part: a multiple of 64, or the whole line",
                    width "threads that share a line, a power of two";
                Pointer => src "dense elements", dst "the dense output; null to write only the totals of parts",
                    partials "total of each part and line; null without parts"]])
            .block(ROW_BLOCK)
            .with_dynamic_lds(),
    ]
}
