//! Elementwise operations: unary, binary, comparisons, conversions and `where`.

use super::schema::{Argument, Axis, Family, dtypes, family, names};
use super::shared::{
    CARRIERS, ELEMENTS, FLOATS, INP, INTEGERS, LHS_RHS, OUT, STRIDED, TILED_FLOATS, WIDER_FLOATS,
};

subject! {
    modules {
        /// `x * mul + add`, and clamping to a range.
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
        /// Function of SimpleUnary: absolute value.
        ABS = 0,
        /// Function of SimpleUnary: maximum of the element and 0.
        RELU = 1,
        /// Function of SimpleUnary: sign as -1, 0 or 1.
        SIGN = 2,
        /// Function of SimpleUnary, for floats: negation.
        NEG = 3,
        /// Function of SimpleUnary, for floats: square.
        SQR = 4,
        /// Function of SimpleUnary, for floats: rounding up.
        CEIL = 5,
        /// Function of SimpleUnary, for floats: rounding down.
        FLOOR = 6,
        /// Function of SimpleUnary, for floats: rounding to the nearest integer, ties away from zero.
        ROUND = 7,
        /// Function of the arithmetic kernels: sum.
        ADD = 0,
        /// Function of the arithmetic kernels: difference.
        SUB = 1,
        /// Function of the arithmetic kernels: product.
        MUL = 2,
        /// Function of the arithmetic kernels: minimum.
        MINIMUM = 3,
        /// Function of the arithmetic kernels: maximum.
        MAXIMUM = 4,
        /// Bit of the comparisons' function: the result is 1 if the left operand is less.
        LESS = 1,
        /// Bit of the comparisons' function: the result is 1 if the operands are equal.
        EQUAL = 2,
        /// Bit of the comparisons' function: the result is 1 if the left operand is neither less nor equal.
        NEITHER = 4,
    }
}

const FUNCTIONS: &[&str] =
    &["recip", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf", "gelu", "gelu_erf", "silu"];
/// Dtypes, or groups of dtypes with the same size, that share a kernel for conversions.
const CAST_FORMS: &[&str] = &["u8", "f8e4m3", "b2", "b4", "b8"];
/// The function that an argument chooses.
const FUNCTION: &[Argument] = args![Usize => function "number of the function, or bits for comparisons"];

fn families() -> Vec<Family> {
    let form = |name, values: &[_]| Axis { shared: Some("CastForm"), ..names(name, values) };
    // A dtype is not cast to itself.
    let cast = |family: Family, from: &&'static str| {
        let others = CAST_FORMS.iter().copied().filter(|to| to != from || from.starts_with('b'));
        family.over([form("from", &[*from]), form("to", &others.collect::<Vec<_>>())])
    };
    let casts = family(
        "Cast",
        "cast",
        "cast_{from}_{to}",
        "Conversion to another dtype. A form is a dtype, or all other dtypes of 2, 4 or 8 bytes.",
    );
    vec![
        family("Unary", "unary", "u{op}_{dtype}", "A function of each element.")
            .over([names("op", FUNCTIONS), dtypes("dtype", FLOATS)])
            .over([names("op", &["sigmoid"]), dtypes("dtype", WIDER_FLOATS)])
            .over([names("op", &["copy"]), dtypes("dtype", CARRIERS)])
            .takes(&[STRIDED, INP, OUT])
            .in_packs(),
        family(
            "SimpleUnary",
            "unary",
            "usimple_{dtype}",
            "A function of few instructions of each element: ABS to ROUND, for integers ABS to SIGN.",
        )
        .over([dtypes("dtype", ELEMENTS)])
        .takes(&[STRIDED, FUNCTION, INP, OUT])
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
        family("Clamp", "affine", "clamp_{dtype}", "`inp`, at least `low` and then at most `high`; NaN stays.")
            .over([dtypes("dtype", ELEMENTS)])
            .takes(&[STRIDED, INP, OUT, args![Element("dtype") => low "minimum", high "maximum"]])
            .in_packs(),
        family(
            "Binary",
            "binary",
            "{op}_{dtype}",
            "Binary arithmetic (ADD to MAXIMUM), division, or comparisons with result 0 or 1 as u8 (LESS to NEITHER).",
        )
        .over([names("op", &["arithmetic", "divide", "compare"]), dtypes("dtype", ELEMENTS)])
        .takes(&[STRIDED, FUNCTION, LHS_RHS, OUT])
        .in_packs(),
        family(
            "Gated",
            "unary",
            "{op}_{dtype}",
            "`silu(lhs) * rhs`, or `gelu_erf(lhs) * rhs`, with both operations rounded.",
        )
        .over([names("op", &["swiglu", "geglu"]), dtypes("dtype", FLOATS)])
        .takes(&[STRIDED, LHS_RHS, OUT])
        .in_packs(),
        CAST_FORMS
            .iter()
            .fold(casts, cast)
            .takes(&[
                STRIDED,
                args![Usize =>
                pair "number of the first dtype in its form, times the dtypes of the second form, plus the number of the \
                      second: i16, bf16, f16; u32, i32, f32; i64, f64"],
                INP,
                OUT,
            ])
            .in_packs(),
        family(
            "MultiplyAdd",
            "ternary",
            "multiply_add_{dtype}",
            "`a + b + c`, or `a + b * c`, computed in f32 and rounded once.",
        )
        .over([dtypes("dtype", TILED_FLOATS)])
        .takes(&[
            STRIDED,
            args![Bool => multiplies "true for the product";
                Pointer => a "summand", b "summand or factor", c "summand or factor"],
            OUT,
        ])
        .in_packs(),
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
