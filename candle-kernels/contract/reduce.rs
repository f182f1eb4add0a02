//! Sums, variances and extrema over any dims, and running sums.

use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::{ELEMENTS, INFO, NUM_DIMS, TILED_FLOATS, WIDER_FLOATS};

subject! {
    modules {
        /// Sums and extrema.
        reduce,
        /// Running sums.
        scan,
    }
    constants {
        /// The most threads that share a row of softmax or a norm, or a result of a reduction.
        ROW_BLOCK = 1024,
        /// The most neighbouring results of a reduction that a thread has.
        NEIGHBOURS = 8,
    }
}

const NARROW: &[&str] = &["bf16", "f16", "f8e4m3"];
const SIZES: &[Argument] = args![
    Usize => results "how many results there are", per_result "elements of each";
    U32 => width "threads of a result and part, a power of two",
        across "not 0 if threads are numbered across results: how many each has";
    Usize => kept_dims "dims that are kept; the others follow and are reduced"];
const SRC: &[Argument] = args![Pointer => src "the elements"];

fn families() -> Vec<Family> {
    let same = |family: Family, dtype: &&'static str| {
        family.over([dtypes("from", &[*dtype]), dtypes("to", &[*dtype])])
    };
    let sums = family(
        "ReduceSum",
        "reduce",
        "reduce_sum_{from}_{to}",
        "Sums over any dims; y of the grid counts parts.",
    );
    let reduced = |family: Family, out| family.takes(&[SIZES, NUM_DIMS, INFO, SRC, out]).block(ROW_BLOCK);
    vec![
        reduced(
            // Parts of narrow floats stay f32 between the launches.
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
                "Unbiased variances over any dims, in one part.",
            )
            .over([dtypes("dtype", TILED_FLOATS)]),
            args![Pointer => dst "a variance for each result"],
        ),
        reduced(
            family(
                "ReduceExtreme",
                "reduce",
                "reduce_{op}_{dtype}",
                "Extrema and their places over any dims; y of the grid counts parts.",
            )
            .over([names("op", &["min", "max"]), dtypes("dtype", ELEMENTS)]),
            args![Pointer =>
                candidates "places that parts have left; null for all elements",
                values "the extrema; may be null",
                places "their places as u32; may be null"],
        ),
        family("Cumsum", "scan", "cumsum_{dtype}", "Running sums of each line; y of the grid counts parts.")
            .over([dtypes("dtype", WIDER_FLOATS)])
            .takes(&[args![
                U32 => lines "lines in all", length "elements of a line",
                    inner "elements from one of a line to the next",
                    part "elements of a part, a multiple of 64 or all of a line",
                    width "threads of a line, a power of two";
                Pointer => src "dense elements", dst "the dense output; null to leave the totals of parts",
                    known "the totals, a number for each part and line; null without parts"]])
            .block(ROW_BLOCK)
            .with_dynamic_lds(),
    ]
}
