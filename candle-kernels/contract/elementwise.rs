//! Operations of elements: of one tensor, of two, comparisons, conversions and `where`.

use super::schema::{Family, dtypes, family, names};
use super::shared::{CARRIERS, ELEMENTS, FLOATS, INP, INTEGERS, LHS_RHS, OUT, STRIDED, WIDER_FLOATS};

subject! {
    modules {
        /// `x * mul + add`.
        affine,
        /// Operations and comparisons of two tensors.
        binary,
        /// Conversions between dtypes.
        cast,
        /// `where`.
        ternary,
        /// Operations of one tensor, and strided copies.
        unary,
    }
    constants {
        /// The most elements of a pack where each costs many instructions.
        COSTLY_PACK = 8,
        /// The most packs that a thread reads before it uses the first.
        PACKS_IN_FLIGHT = 4,
        /// About as many bytes are read by then, at least one pack.
        BYTES_IN_FLIGHT = 80,
    }
}

const SIGNED: &[&str] = &["i16", "i32", "i64"];
const FUNCTIONS: &[&str] = &[
    "neg", "abs", "sqr", "relu", "sign", "recip", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf", "ceil",
    "floor", "round", "gelu", "gelu_erf", "silu",
];
const OF_TWO: &[&str] =
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
        family("UnaryWithParameter", "unary", "u{op}_{dtype}", "A function of each element and a parameter.")
            .over([names("op", &["elu", "powf"]), dtypes("dtype", FLOATS)])
            .takes(&[STRIDED, args![Element("dtype") => param "alpha or exponent"], INP, OUT])
            .in_packs(),
        family("Affine", "affine", "affine_{dtype}", "`inp * mul + add`.")
            .over([dtypes("dtype", ELEMENTS)])
            .takes(&[STRIDED, INP, OUT, args![Element("dtype") => mul "factor", add "summand"]])
            .in_packs(),
        family(
            "Binary",
            "binary",
            "{op}_{dtype}",
            "Arithmetic of two tensors, or comparisons: 0 or 1 in u8.",
        )
        .over([names("op", OF_TWO), dtypes("dtype", ELEMENTS)])
        .takes(&[STRIDED, LHS_RHS, OUT])
        .in_packs(),
        family("Swiglu", "unary", "swiglu_{dtype}", "`silu(lhs) * rhs`, each rounded.")
            .over([dtypes("dtype", FLOATS)])
            .takes(&[STRIDED, LHS_RHS, OUT])
            .in_packs(),
        ELEMENTS.iter().fold(casts, cast).takes(&[STRIDED, INP, OUT]).in_packs(),
        family("Where", "ternary", "where_{condition}_{carrier}", "`ids ? t : f`.")
            .over([dtypes("condition", INTEGERS), dtypes("carrier", CARRIERS)])
            .takes(&[
                STRIDED,
                args![Pointer =>
                ids "the condition", t "taken where the condition is not 0", f "taken elsewhere"],
                OUT,
            ])
            .in_packs(),
    ]
}
