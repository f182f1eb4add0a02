//! Random numbers.

use super::schema::{Family, dtypes, family, names};
use super::shared::{FLOATS, NUMEL, OUT};

subject! {
    modules {
        /// Uniform and normal random numbers.
        random,
    }
    constants {}
}

fn families() -> Vec<Family> {
    let numbers = args![
        Usize => seed "key of the Philox stream", offset "index of the first counter block";
        F64 => first "lower bound, or mean", second "upper bound, or standard deviation"];
    vec![
        family("Random", "random", "rand_{kind}_{dtype}", "Random numbers from Philox counter blocks.")
            .over([names("kind", &["uniform", "normal"]), dtypes("dtype", FLOATS)])
            .takes(&[NUMEL, numbers, OUT]),
    ]
}
