//! Elementwise operations: unary, binary, comparisons, conversions and `where`.

use super::schema::{Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, FLOATS, INP, INTEGERS, LHS_RHS, OUT, STRIDED, WIDER_FLOATS};

subject! {
    modules {
        /// `x * mul + add`.
        affine,
        /// Binary operations and comparisons.
        binary,
        /// Conversions between dtypes.
        cast,
        /// `where`.
        ternary,
        /// Unary operations and strided copies.
        unary,
    }
    constants {
        /// Maximum number of elements of a pack for functions of many instructions.
        COSTLY_PACK = 8,
        /// Maximum number of packs that a thread reads before it uses the first.
        PACKS_IN_FLIGHT = 4,
        /// Maximum number of bytes that a thread reads before it uses the first; at least one pack.
        BYTES_IN_FLIGHT = 80,
    }
}

const SIGNED: &[&str] = &["i16", "i32", "i64"];
const FUNCTIONS: &[&str] = &[
    "neg", "abs", "sqr", "relu", "sign", "recip", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf", "ceil",
    "floor", "round", "gelu", "gelu_erf", "silu",
];
const BINARY_OPS: &[&str] =
    &["badd", "bsub", "bmul", "bdiv", "bminimum", "bmaximum", "eq", "ne", "lt", "le", "gt", "ge"];

fn families() -> Vec<Family> {
    // A dtype is not cast to itself.
    let cast = |family: Family, from: &&'static str| {
        let others: Vec<_> = ELEMENTS.iter().copied().filter(|to| to != from).collect();
        family.over([dtypes("from", &[*from]), dtypes("to", &others)])
    };
    let casts = family("Cast", "cast", "cast_{from}_{to}", "Conversion to another dtype.");
    vec![
        family("Unary", "unary", "u{op}_{dtype}", "A function of each element.")
            .over([names("op", FUNCTIONS), dtypes("dtype", FLOATS)])
            .over([names("op", &["sigmoid"]), dtypes("dtype", WIDER_FLOATS)])
            .over([names("op", &["sign"]), dtypes("dtype", INTEGERS)])
            .over([names("op", &["abs", "relu"]), dtypes("dtype", SIGNED)])
            .over([names("op", &["copy"]), dtypes("dtype", CARRIERS)])
            .takes(&[STRIDED, INP, OUT])
            .in_packs(),
        family(
            "UnaryWithParameter",
            "unary",
            "u{op}_{dtype}",
            "A function of each element with a parameter.",
        )
        .over([names("op", &["elu", "powf"]), dtypes("dtype", FLOATS)])
        .takes(&[STRIDED, args![Element("dtype") => param "alpha or exponent"], INP, OUT])
        .in_packs(),
        family("Affine", "affine", "affine_{dtype}", "`inp * mul + add`.")
            .over([dtypes("dtype", ELEMENTS)])
            .takes(&[STRIDED, INP, OUT, args![Element("dtype") => mul "factor", add "offset"]])
            .in_packs(),
        family(
            "Binary",
            "binary",
            "{op}_{dtype}",
            "Binary arithmetic, or comparisons with result 0 or 1 as u8.",
        )
        .over([names("op", BINARY_OPS), dtypes("dtype", ELEMENTS)])
        .takes(&[STRIDED, LHS_RHS, OUT])
        .in_packs(),
        family("Swiglu", "unary", "swiglu_{dtype}", "`silu(lhs) * rhs`, with both operations rounded.")
            .over([dtypes("dtype", FLOATS)])
            .takes(&[STRIDED, LHS_RHS, OUT])
            .in_packs(),
        ELEMENTS.iter().fold(casts, cast).takes(&[STRIDED, INP, OUT]).in_packs(),
        family("Where", "ternary", "where_{condition}_{carrier}", "`ids ? t : f`.")
            .over([dtypes("condition", INTEGERS), dtypes("carrier", CARRIERS)])
            .takes(&[
                STRIDED,
                args![Pointer =>
                ids "the condition", t "result where the condition is not 0", f "result elsewhere"],
                OUT,
            ])
            .in_packs(),
    ]
}
