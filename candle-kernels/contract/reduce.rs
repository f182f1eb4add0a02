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
    }
}

const NARROW: &[&str] = &["bf16", "f16", "f8e4m3"];
const SIZES: &[Argument] = args![
    Usize => results "number of results", per_result "elements per result";
    U32 => width "threads that share a result and part, a power of two",
        across "neighbouring results per thread; 0 if threads are numbered along the reduced elements";
    Usize => kept_dims "number of dims that are kept, which precede those that are reduced"];
const SRC: &[Argument] = args![Pointer => src "the input"];

fn families() -> Vec<Family> {
    let same = |family: Family, dtype: &&'static str| {
        family.over([dtypes("from", &[*dtype]), dtypes("to", &[*dtype])])
    };
    let sums = family(
        "ReduceSum",
        "reduce",
        "reduce_sum_{from}_{to}",
        "Sums over any dims; y of the grid numbers parts.",
    );
    let reduced = |family: Family, out| family.takes(&[SIZES, NUM_DIMS, INFO, SRC, out]).block(ROW_BLOCK);
    vec![
        reduced(
            // Partial sums of narrow floats stay in f32 between the launches.
            ELEMENTS
                .iter()
                .fold(sums, same)
                .over([dtypes("from", NARROW), dtypes("to", &["f32"])])
                .over([dtypes("from", &["f32"]), dtypes("to", NARROW)]),
            args![
                Pointer => dst "a sum for each part and result";
                F64 => scale "factor of each sum before it is rounded"],
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
                "reduce_{op}_{dtype}",
                "Extrema and their places (indices) over any dims; y of the grid numbers parts.",
            )
            .over([names("op", &["min", "max"]), dtypes("dtype", ELEMENTS)]),
            args![Pointer =>
                candidates "places found by the parts; null for all elements",
                values "the extrema; may be null",
                places "their places as u32; may be null"],
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
