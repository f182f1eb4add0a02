//! The contract between the kernels in this folder and the host: every kernel that ships, with its arguments, and
//! the constants that both sides use.
//!
//! The build reads this table (crate `hip-kernels-build`) and makes three things of it: the header
//! `candle_contract.h` with the constants, the Rust side of each family (crate `hip-kernels`, module `contract`: a
//! struct of its arguments, the numbers of its kernels), and a check of every compiled code object: a kernel that is
//! missing, one that is not in here, or an argument of another name, place, size or kind fails the build.

/// How an argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// `size_t`, `uint64_t`.
    Usize,
    /// `unsigned int`.
    U32,
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// `bool`.
    Bool,
    /// Dims and strides by value: `const size_t *` in the sources, `CandleLayout` after hipify.
    Layout,
    /// A pointer into device memory. May be null where the argument's text says so.
    Pointer,
    /// One element of the dtype that the axis of this name has.
    Element(&'static str),
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name in the sources, and of the field in Rust.
    pub name: &'static str,
    /// How it is passed.
    pub pass: Pass,
    /// What it is, for the documentation of the field.
    pub meaning: &'static str,
}

/// What a part of a kernel's name may be.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The name in braces.
    pub name: &'static str,
    /// Dtypes, of the type `Element` in Rust; else names, of an enumeration of their own.
    pub is_dtype: bool,
    /// The values, as they stand in the name.
    pub values: Vec<&'static str>,
    /// The enumeration in Rust, of names that several families have; else each family has its own.
    pub shared: Option<&'static str>,
}

/// Kernels that differ only in what their axes say.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name of its struct in Rust.
    pub name: &'static str,
    /// The source file without its ending.
    pub module: &'static str,
    /// Names of the kernels, each axis in braces.
    pub kernels: &'static str,
    /// Each is a set of axes, in the order of the name, all combinations of which exist; together they are the family.
    pub variants: Vec<Vec<Axis>>,
    /// In the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// The most threads of a workgroup. Kernels of single elements are launched with just as many.
    pub block: u32,
    /// Bytes of dense elements that a thread moves at once; 0 where it takes one element at a time.
    pub pack_bytes: u32,
    /// Whether the launch sets the size of LDS.
    pub dynamic_lds: bool,
    /// What the kernels compute, for the documentation of the struct.
    pub meaning: &'static str,
}

/// A number that kernels and host share: `CANDLE_NAME` in C, `NAME` in Rust.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: u32,
    /// What it says.
    pub meaning: &'static str,
}

/// All constants.
pub const CONSTANTS: &[Constant] = &[
    constant("LAYOUT_WORDS", 32, "Words of a by-value layout: dims, then the strides of each operand."),
    constant("BLOCK", 256, "Threads of a workgroup, where nothing else is said."),
    constant("PACK_BYTES", 16, "What one access of a lane moves at most."),
    constant("COSTLY_PACK", 8, "The most elements of a pack where each costs many instructions."),
    constant("PACKS_IN_FLIGHT", 4, "The most packs that a thread reads before it uses the first."),
    constant("BYTES_IN_FLIGHT", 80, "About as many bytes are read by then, at least one pack."),
    constant("COPIED", 8, "The most sources that one launch copies to their places."),
    constant("TILE_BYTES", 8192, "Bytes of a workgroup's part of a transposition."),
    constant("TILE_ROW_BYTES", 128, "Of them, those that lie beside each other where they are read."),
    constant("TILE_ROWS", 64, "The most rows of it."),
    constant("TAKEN", 4, "The most units that each thread of an index_select or gather moves."),
    constant("TAKEN_BYTES", 32, "The most bytes, likewise."),
    constant("CONV_PLACES", 4, "Places of a plane whose windows a thread goes through together."),
    constant("FOLD_CHANNELS", 4, "Channels whose products a thread sums together."),
    constant("SORT_BLOCK", SORT_BLOCK, "The most threads that sort a row in one launch."),
    constant("SORT_HELD", 4, "Elements of each of them."),
    constant("SORT_ROUNDS", 8, "Elements of each thread of a tile of a longer row."),
    constant(
        "ROW_BLOCK",
        1024,
        "The most threads that share a row of softmax or a norm, or a result of a reduction.",
    ),
    constant("ROW_PACKS", 4, "Packs of a row of softmax or a norm that a thread keeps; of f64 one."),
    constant("NEIGHBOURS", 8, "The most neighbouring results of a reduction that a thread has."),
    constant("ATTENTION_ROWS", 128, "Rows of queries of a workgroup of attention_rows."),
    constant(
        "ATTENTION_COLUMNS",
        128,
        "Columns of values of a workgroup where it cannot have all of a head's.",
    ),
    constant(
        "ATTENTION_SPLIT_THREADS",
        ATTENTION_SPLIT_THREADS,
        "Threads of a workgroup of attention_keys, which has ATTENTION_FEW rows.",
    ),
    constant("ATTENTION_FEW", 16, "Rows of queries that are few."),
    constant("ATTENTION_PARTS", ATTENTION_PARTS, "The most parts of the keys."),
    constant("PRODUCT_ROWS", 4, "Rows that are few."),
    constant("THIN_SIDE", 16, "Columns of a workgroup's part of a thin product, and the most rows of one."),
    constant("PRODUCT_TILE", 16, "Rows and columns of a workgroup's part of a product of f64."),
    constant("FAULT_INDEX_SELECT", 1, "The operation that met an index out of range; 0 is none."),
    constant("FAULT_GATHER", 2, "As FAULT_INDEX_SELECT."),
    constant("FAULT_SCATTER", 3, "As FAULT_INDEX_SELECT."),
    constant("FAULT_SCATTER_ADD", 4, "As FAULT_INDEX_SELECT."),
    constant("FAULT_INDEX_ADD", 5, "As FAULT_INDEX_SELECT."),
    constant("FAULT_EMBEDDING", 6, "As FAULT_INDEX_SELECT."),
    constant("FAULT_EXPERT", 7, "As FAULT_INDEX_SELECT."),
    constant("FAULT_SEQUENCE", 8, "As FAULT_INDEX_SELECT."),
    constant("FAULT_PAGE", 9, "As FAULT_INDEX_SELECT."),
    constant(
        "QUANTIZED_ROW_BLOCK",
        QUANTIZED_ROW_BLOCK,
        "Threads that share the bytes of one row of activations.",
    ),
    constant("QUANTIZED_SEGMENT", 4096, "Activations of each row that wait in LDS at a time."),
    constant("QUANTIZED_BESIDE", 2, "Rows of blocks that a group of lanes multiplies together."),
    constant(
        "QUANTIZED_PIECE",
        32,
        "Weights that one lane unpacks at once, and activations that share a scale.",
    ),
    constant("QFEW_SIDE", 16, "Rows and columns of a workgroup's part of a product of few rows with blocks."),
    constant("QTILE_ROWS", 128, "Rows of activations of a workgroup's part of a large product with blocks."),
    constant("QTILE_COLUMNS", 64, "Rows of blocks of it."),
    constant("QTILE_DEPTH", 128, "Weights of each of these that it unpacks at once."),
];

const SORT_BLOCK: u32 = 1024;
const ATTENTION_SPLIT_THREADS: u32 = 64;
const ATTENTION_PARTS: u32 = 128;
const QUANTIZED_ROW_BLOCK: u32 = 512;

/// Every dtype that computes, named as `DType::as_str` names it.
pub const ELEMENTS: &[&str] = &["u8", "u32", "i16", "i32", "i64", "bf16", "f16", "f32", "f64", "f8e4m3"];
const FLOATS: &[&str] = &["bf16", "f16", "f32", "f64", "f8e4m3"];
/// What upstream's fused layers and products take.
const WIDER_FLOATS: &[&str] = &["bf16", "f16", "f32", "f64"];
/// What matrix units multiply, or lanes in their place.
const TILED_FLOATS: &[&str] = &["bf16", "f16", "f32"];
const INTEGERS: &[&str] = &["u8", "u32", "i16", "i32", "i64"];
const SIGNED: &[&str] = &["i16", "i32", "i64"];
/// Elements that are only moved: one dtype of each size stands for all of it.
const CARRIERS: &[&str] = &["u8", "f16", "u32", "i64"];
/// Likewise, by the number of bytes.
const UNITS: &[&str] = &["b1", "b2", "b4", "b8", "b16"];
/// Ids of operations that move elements, and of those that add.
const MOVING_IDS: &[&str] = &["u8", "u32", "i64"];
const ADDING_IDS: &[&str] = INTEGERS;
/// GGML's block formats.
const FORMATS: &[&str] =
    &["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2k", "q3k", "q4k", "q5k", "q6k", "q8k"];

/// All families. The kernels are numbered in this order.
pub fn families() -> Vec<Family> {
    [elementwise(), moving(), indexing(), reductions(), rows(), sorting(), windows(), products(), quantized()]
        .concat()
}

fn elementwise() -> Vec<Family> {
    let floats = [
        "neg", "abs", "sqr", "relu", "sign", "recip", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf",
        "ceil", "floor", "round", "gelu", "gelu_erf", "silu",
    ];
    vec![
        Family {
            variants: vec![
                vec![names("op", &floats), dtypes("dtype", FLOATS)],
                vec![names("op", &["sigmoid"]), dtypes("dtype", WIDER_FLOATS)],
                vec![names("op", &["sign"]), dtypes("dtype", INTEGERS)],
                vec![names("op", &["abs", "relu"]), dtypes("dtype", SIGNED)],
                vec![names("op", &["copy"]), dtypes("dtype", CARRIERS)],
            ],
            pack_bytes: 16,
            ..family("Unary", "unary", "u{op}_{dtype}", "A function of each element.", strided(&[INP, OUT]))
        },
        Family {
            variants: vec![vec![names("op", &["elu", "powf"]), dtypes("dtype", FLOATS)]],
            pack_bytes: 16,
            ..family(
                "UnaryWithParameter",
                "unary",
                "u{op}_{dtype}",
                "A function of each element and a parameter.",
                strided(&[arg("param", Pass::Element("dtype"), "alpha or exponent"), INP, OUT]),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", ELEMENTS)]],
            pack_bytes: 16,
            ..family(
                "Affine",
                "affine",
                "affine_{dtype}",
                "`inp * mul + add`.",
                strided(&[
                    INP,
                    OUT,
                    arg("mul", Pass::Element("dtype"), "factor"),
                    arg("add", Pass::Element("dtype"), "summand"),
                ]),
            )
        },
        Family {
            variants: vec![vec![
                names(
                    "op",
                    &[
                        "badd", "bsub", "bmul", "bdiv", "bminimum", "bmaximum", "eq", "ne", "lt", "le", "gt",
                        "ge",
                    ],
                ),
                dtypes("dtype", ELEMENTS),
            ]],
            pack_bytes: 16,
            ..family(
                "Binary",
                "binary",
                "{op}_{dtype}",
                "Arithmetic of two tensors, or comparisons: 0 or 1 in u8.",
                strided(&[LHS, RHS, OUT]),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", FLOATS)]],
            pack_bytes: 16,
            ..family(
                "Swiglu",
                "unary",
                "swiglu_{dtype}",
                "`silu(lhs) * rhs`, each rounded.",
                strided(&[LHS, RHS, OUT]),
            )
        },
        Family {
            // A dtype is not cast to itself.
            variants: ELEMENTS
                .iter()
                .map(|from| {
                    let others: Vec<_> = ELEMENTS.iter().copied().filter(|to| to != from).collect();
                    vec![dtypes("from", &[*from]), dtypes("to", &others)]
                })
                .collect(),
            pack_bytes: 16,
            ..family("Cast", "cast", "cast_{from}_{to}", "Conversion to another dtype.", strided(&[INP, OUT]))
        },
        Family {
            variants: vec![vec![dtypes("condition", INTEGERS), dtypes("carrier", CARRIERS)]],
            pack_bytes: 16,
            ..family(
                "Where",
                "ternary",
                "where_{condition}_{carrier}",
                "`ids ? t : f`.",
                strided(&[
                    arg("ids", Pass::Pointer, "the condition"),
                    arg("t", Pass::Pointer, "taken where the condition is not 0"),
                    arg("f", Pass::Pointer, "taken elsewhere"),
                    OUT,
                ]),
            )
        },
        Family {
            variants: vec![vec![names("kind", &["uniform", "normal"]), dtypes("dtype", FLOATS)]],
            ..family(
                "Random",
                "random",
                "rand_{kind}_{dtype}",
                "Random numbers from Philox counter blocks.",
                vec![
                    NUMEL,
                    arg("seed", Pass::Usize, "key of the sequence"),
                    arg("offset", Pass::Usize, "first counter block"),
                    arg("first", Pass::F64, "lower bound, or mean"),
                    arg("second", Pass::F64, "upper bound, or standard deviation"),
                    OUT,
                ],
            )
        },
    ]
}

fn moving() -> Vec<Family> {
    vec![
        Family {
            variants: vec![vec![dtypes("carrier", CARRIERS)]],
            pack_bytes: 16,
            ..family(
                "ConstSet",
                "fill",
                "const_set_{carrier}",
                "Writes one value to every element that the layout shows.",
                strided(&[arg("value", Pass::Element("carrier"), "what is written"), OUT]),
            )
        },
        Family {
            variants: vec![vec![names("unit", UNITS)]],
            ..family(
                "Copy2d",
                "fill",
                "copy2d_{unit}",
                "Copies rows of up to COPIED sources to their places in the output, in units of so many bytes.",
                [INFO, arg("out_pitch", Pass::Usize, "units from row to row of `out`"), OUT]
                    .into_iter()
                    .chain(
                        ["inp0", "inp1", "inp2", "inp3", "inp4", "inp5", "inp6", "inp7"]
                            .map(|name| arg(name, Pass::Pointer, "a source, if there is one")),
                    )
                    .collect(),
            )
        },
        Family {
            variants: vec![vec![dtypes("carrier", CARRIERS)]],
            pack_bytes: 16,
            ..family(
                "Transpose",
                "fill",
                "transpose_{carrier}",
                "Exchanges rows and columns; the layout is that of the batches, with strides of `inp` and `out`.",
                vec![
                    NUM_DIMS,
                    INFO,
                    INP,
                    OUT,
                    arg("batches", Pass::U32, "matrices"),
                    arg("rows", Pass::U32, "elements that lie beside each other in `inp`"),
                    arg("columns", Pass::U32, "elements that lie beside each other in `out`"),
                    arg("in_stride", Pass::Usize, "elements from column to column of `inp`"),
                    arg("out_stride", Pass::Usize, "elements from row to row of `out`"),
                    arg("whole", Pass::Bool, "whether packs fit everywhere"),
                ],
            )
        },
    ]
}

fn indexing() -> Vec<Family> {
    let shared = [
        NUMEL,
        arg("ids", Pass::Pointer, "the indices"),
        INP,
        OUT,
        arg("ids_stride", Pass::Usize, "elements from index to index; not used by gather"),
        arg("src_dim_size", Pass::Usize, "the indexed dim of the source"),
    ];
    let right = arg("right_size", Pass::Usize, "elements of the dims after the indexed one, as a dim's word");
    let kind = |kind| names("kind", &[kind]);
    vec![
        Family {
            variants: vec![
                vec![kind("is"), dtypes("ids", MOVING_IDS), names("unit", UNITS)],
                vec![kind("gather"), dtypes("ids", MOVING_IDS), names("unit", &["b1", "b2", "b4", "b8"])],
            ],
            ..family(
                "Take",
                "indexing",
                "{kind}_{ids}_{unit}",
                "`out[l, j, r] = inp[l, id, r]`: the id is `ids[j]`, or of gather `ids[l, j, r]`. All elements and sizes \
                 are units of so many bytes.",
                [
                    &shared[..],
                    &[
                        arg("src_right_size", Pass::Usize, "those of the source, as they are"),
                        right,
                        arg("ids_dim_size", Pass::Usize, "ids along the dim, as a dim's word"),
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![
                vec![kind("s"), dtypes("ids", MOVING_IDS), dtypes("dtype", CARRIERS)],
                vec![names("kind", &["sa", "ia"]), dtypes("ids", ADDING_IDS), dtypes("dtype", ELEMENTS)],
            ],
            ..family(
                "Put",
                "indexing",
                "{kind}_{ids}_{dtype}",
                "`out[l, id, r] = inp[l, j, r]` or `+=`: the id is `ids[l, j, r]`, or of index_add `ids[j]`.",
                [
                    &shared[..2],
                    &[arg(
                        "order",
                        Pass::Pointer,
                        "the places that sort the ids along the dim, as u32; may be null",
                    )],
                    &shared[2..4],
                    &shared[5..],
                    &[
                        arg("dst_dim_size", Pass::Usize, "the indexed dim of the destination"),
                        right,
                        arg("runs", Pass::Usize, "threads along the dim, its size or 1, as a dim's word"),
                    ],
                ]
                .concat(),
            )
        },
    ]
}

fn reductions() -> Vec<Family> {
    let shared = [
        arg("results", Pass::Usize, "how many results there are"),
        arg("per_result", Pass::Usize, "elements of each"),
        arg("width", Pass::U32, "threads of a result and part, a power of two"),
        arg("across", Pass::U32, "not 0 if threads are numbered across results: how many each has"),
        arg("kept_dims", Pass::Usize, "dims that are kept; the others follow and are reduced"),
        NUM_DIMS,
        INFO,
        arg("src", Pass::Pointer, "the elements"),
    ];
    let narrow = ["bf16", "f16", "f8e4m3"];
    let mut sums: Vec<Vec<Axis>> =
        ELEMENTS.iter().map(|dtype| vec![dtypes("from", &[*dtype]), dtypes("to", &[*dtype])]).collect();
    // Parts of narrow floats stay f32 between the launches.
    sums.push(vec![dtypes("from", &narrow), dtypes("to", &["f32"])]);
    sums.push(vec![dtypes("from", &["f32"]), dtypes("to", &narrow)]);
    vec![
        Family {
            variants: sums,
            block: 1024,
            ..family(
                "ReduceSum",
                "reduce",
                "reduce_sum_{from}_{to}",
                "Sums over any dims; y of the grid counts parts.",
                [
                    &shared[..],
                    &[
                        arg("dst", Pass::Pointer, "a sum for each part and result"),
                        arg("scale", Pass::F64, "factor of each sum before it is rounded"),
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", &["bf16", "f16", "f32"])]],
            block: 1024,
            ..family(
                "ReduceVariance",
                "reduce",
                "reduce_variance_{dtype}",
                "Unbiased variances over any dims, in one part.",
                [&shared[..], &[arg("dst", Pass::Pointer, "a variance for each result")]].concat(),
            )
        },
        Family {
            variants: vec![vec![names("op", &["min", "max"]), dtypes("dtype", ELEMENTS)]],
            block: 1024,
            ..family(
                "ReduceExtreme",
                "reduce",
                "reduce_{op}_{dtype}",
                "Extrema and their places over any dims; y of the grid counts parts.",
                [
                    &shared[..],
                    &[
                        arg(
                            "candidates",
                            Pass::Pointer,
                            "places that parts have left; null for all elements",
                        ),
                        arg("values", Pass::Pointer, "the extrema; may be null"),
                        arg("places", Pass::Pointer, "their places as u32; may be null"),
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", WIDER_FLOATS)]],
            block: 1024,
            dynamic_lds: true,
            ..family(
                "Cumsum",
                "scan",
                "cumsum_{dtype}",
                "Running sums of each line; y of the grid counts parts.",
                vec![
                    arg("lines", Pass::U32, "lines in all"),
                    arg("length", Pass::U32, "elements of a line"),
                    arg("inner", Pass::U32, "elements from one of a line to the next"),
                    arg("part", Pass::U32, "elements of a part, a multiple of 64 or all of a line"),
                    arg("width", Pass::U32, "threads of a line, a power of two"),
                    arg("src", Pass::Pointer, "dense elements"),
                    arg("dst", Pass::Pointer, "the dense output; null to leave the totals of parts"),
                    arg(
                        "known",
                        Pass::Pointer,
                        "the totals, a number for each part and line; null without parts",
                    ),
                ],
            )
        },
    ]
}

fn rows() -> Vec<Family> {
    let src = arg("src", Pass::Pointer, "dense rows");
    let dst = arg("dst", Pass::Pointer, "dense rows");
    let alpha = arg("alpha", Pass::Pointer, "a factor for each column");
    let beta = arg("beta", Pass::Pointer, "a summand for each column");
    let rows = [
        arg(
            "known",
            Pass::Pointer,
            "what is known of parts, three numbers each; null where a launch has whole rows",
        ),
        arg("rows", Pass::U32, "rows in all"),
        arg("columns", Pass::U32, "elements of a row"),
        arg("part", Pass::U32, "elements of a part, which y of the grid counts"),
        arg("width", Pass::U32, "threads of a row, a power of two"),
    ];
    let eps = arg("eps", Pass::F32, "added to the mean square or variance");
    let by_row = |name, axes: Vec<Axis>, kernels, meaning, own: &[Argument], last: &[Argument]| Family {
        variants: vec![[axes, vec![dtypes("dtype", WIDER_FLOATS)]].concat()],
        block: 1024,
        ..family(name, "rows", kernels, meaning, [&[src, dst], own, &rows, last].concat())
    };
    vec![
        by_row(
            "Softmax",
            vec![names("op", &["softmax", "logsoftmax"])],
            "{op}_{dtype}",
            "Softmax of each row, or its logarithm.",
            &[],
            &[],
        ),
        by_row(
            "RmsNorm",
            vec![],
            "rmsnorm_{dtype}",
            "`src / sqrt(mean(src^2) + eps) * alpha` of each row.",
            &[alpha],
            &[eps],
        ),
        by_row(
            "LayerNorm",
            vec![],
            "layernorm_{dtype}",
            "`(src - mean) / sqrt(variance + eps) * alpha + beta` of each row.",
            &[alpha, beta],
            &[eps],
        ),
        by_row(
            "GroupNorm",
            vec![],
            "groupnorm_{dtype}",
            "`(src - mean) / sqrt(variance + eps) * alpha + beta` of each row, a group of channels.",
            &[
                arg("alpha", Pass::Pointer, "a factor for each channel"),
                arg("beta", Pass::Pointer, "a summand for each channel"),
            ],
            &[
                arg("channel", Pass::Usize, "elements of a channel, with a factor to divide by them"),
                arg("groups", Pass::Usize, "groups of an image, likewise"),
                arg("group", Pass::U32, "the group that the first row is"),
                arg("eps", Pass::F64, "added to the variance"),
            ],
        ),
        Family {
            variants: vec![vec![names("pairs", &["neighbours", "halves"]), dtypes("dtype", WIDER_FLOATS)]],
            ..family(
                "Rope",
                "rotary",
                "rope_{pairs}_{dtype}",
                "Turns pairs of each row by the angles of its position: of neighbours, or of both halves.",
                vec![
                    arg("half", Pass::U32, "pairs of a row"),
                    arg("positions", Pass::U32, "positions"),
                    arg("heads", Pass::U32, "rows of a position, which y of the grid walks"),
                    arg("batches", Pass::U32, "batches, which z walks"),
                    arg("position_rows", Pass::U32, "rows from position to position"),
                    arg("head_rows", Pass::U32, "rows from head to head"),
                    arg("batch_angles", Pass::U32, "angles of a batch; 0 where all batches share them"),
                    arg("in_packs", Pass::Bool, "whether packs fit everywhere, N pairs for a thread"),
                    src,
                    arg("cos", Pass::Pointer, "cosines, `half` for each position"),
                    arg("sin", Pass::Pointer, "sines, likewise"),
                    dst,
                ],
            )
        },
    ]
}

fn sorting() -> Vec<Family> {
    let x = arg("x", Pass::Pointer, "dense rows");
    let columns = arg("ncols", Pass::U32, "elements of a row");
    let tiles = arg("tiles", Pass::U32, "tiles of a row");
    let shift = arg("shift", Pass::U32, "bits of a key below the digit");
    let counts = arg("counts", Pass::Pointer, "a u32 for each row, digit and tile");
    let totals = arg("totals", Pass::Pointer, "a u32 for each row and digit");
    let keys = [
        arg("sign", Pass::Usize, "the sign bit, 0 where there is none"),
        arg("infinity", Pass::Usize, "bits of the largest value that is no NaN, 0 for integers"),
        arg("turned", Pass::Usize, "all ones for descending order"),
    ];
    let sort = |name, kernels, meaning, arguments: &[Argument], keys: &[Argument]| Family {
        variants: vec![vec![dtypes("carrier", CARRIERS)]],
        ..family(name, "sort", kernels, meaning, [arguments, keys].concat())
    };
    vec![
        Family {
            dynamic_lds: true,
            block: SORT_BLOCK,
            ..sort(
                "SortRows",
                "asort_{carrier}",
                "The order of each row, sorted within a workgroup.",
                &[
                    x,
                    arg("dst", Pass::Pointer, "places as u32"),
                    arg("rows", Pass::Usize, "how many rows"),
                    columns,
                    arg("width", Pass::U32, "threads of a row, a power of two"),
                ],
                &keys,
            )
        },
        sort(
            "SortCount",
            "asort_count_{carrier}",
            "How many elements of each digit each tile of each row has.",
            &[x, counts, columns, tiles, shift],
            &keys,
        ),
        sort(
            "SortMove",
            "asort_move_{carrier}",
            "Orders rows by a digit.",
            &[
                x,
                arg(
                    "places",
                    Pass::Pointer,
                    "a place in the row for each element, as u32; may be null: its own",
                ),
                arg("keys_out", Pass::Pointer, "ordered keys; may be null"),
                arg("places_out", Pass::Pointer, "their places"),
                counts,
                totals,
                columns,
                tiles,
                shift,
            ],
            &keys,
        ),
        Family {
            variants: vec![vec![names("op", &["sum"])]],
            ..family(
                "SortSum",
                "sort",
                "asort_{op}",
                "Makes of counts the sums of those of the tiles before.",
                vec![counts, totals, arg("lists", Pass::Usize, "rows times digits"), tiles],
            )
        },
    ]
}

fn windows() -> Vec<Family> {
    let src = arg("src", Pass::Pointer, "the input");
    let dst = arg("dst", Pass::Pointer, "the dense output");
    let plane = [
        arg("places", Pass::Usize, "elements of a plane of the output"),
        arg("w_out", Pass::Usize, "columns of the output"),
        arg("w_magic", Pass::Usize, "of a division by that"),
    ];
    let stride = arg("stride", Pass::Usize, "stride of the window");
    let steps = [
        arg("dilation", Pass::Usize, "distance of its taps"),
        arg("padding_y", Pass::Usize, "padding above and below"),
        arg("padding_x", Pass::Usize, "padding left and right"),
    ];
    let resize = [
        arg("h_step", Pass::F64, "rows of the input per row of the output"),
        arg("w_step", Pass::F64, "columns likewise"),
    ];
    let window =
        [arg("k_h", Pass::Usize, "rows of the window"), arg("k_w", Pass::Usize, "columns of the window")];
    vec![
        Family {
            variants: vec![
                vec![names("kind", &["conv", "conv_rows", "fold"]), dtypes("dtype", WIDER_FLOATS)],
                vec![names("kind", &["conv_transpose"]), dtypes("dtype", ELEMENTS)],
            ],
            ..family(
                "Convolution",
                "conv",
                "{kind}_{dtype}",
                "A convolution, each thread walking the windows of its places, or of a pack of a row where steps are 1 \
                 (then places and w_out count packs); a transposed one of the taps that reach them; or the sum of what these taps' products are, which stand in the channels (output channel, tap).",
                [
                    &plane[..],
                    &[
                        arg("channels", Pass::Usize, "output channels"),
                        arg("group_out", Pass::Usize, "output channels of a group; not used by fold"),
                        stride,
                        arg("stride_magic", Pass::Usize, "of a division by that"),
                    ],
                    &steps,
                    &[
                        arg("period", Pass::Usize, "from a tap that reaches a place to the next one"),
                        arg("back", Pass::Usize, "how far back the input of that is"),
                        arg("dst_stride", Pass::Usize, "elements from image to image of the output"),
                        INFO,
                        src,
                        arg("kernel", Pass::Pointer, "the weights; not used by fold"),
                        dst,
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("carrier", &["f16", "u32", "i64"])]],
            pack_bytes: 16,
            ..family(
                "Unfold",
                "conv",
                "unfold_{carrier}",
                "What each output place sees, as the columns of a matrix.",
                [
                    &[
                        arg("first", Pass::Usize, "first output place"),
                        arg("places", Pass::Usize, "output places"),
                        arg("pitch", Pass::Usize, "elements from row to row of the matrix, whole packs"),
                        arg("images", Pass::Usize, "images"),
                        arg(
                            "image_stride",
                            Pass::Usize,
                            "elements from image to image of the matrix, whole packs",
                        ),
                    ],
                    &plane[1..],
                    &window,
                    &[stride],
                    &steps,
                    &[INFO, src, dst],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![names("kind", &["avg", "max"]), dtypes("dtype", ELEMENTS)]],
            ..family(
                "Pool",
                "conv",
                "{kind}_pool2d_{dtype}",
                "Pooling of windows.",
                [
                    &plane[..],
                    &window,
                    &[
                        arg("stride_h", Pass::Usize, "rows from window to window"),
                        arg("stride_w", Pass::Usize, "columns from window to window"),
                        INFO,
                        src,
                        dst,
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("carrier", CARRIERS)]],
            pack_bytes: 16,
            ..family(
                "UpsampleNearest",
                "conv",
                "upsample_nearest2d_{carrier}",
                "The nearest element of each place.",
                [&plane[..], &resize, &[INFO, src, dst]].concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", ELEMENTS)]],
            ..family(
                "UpsampleBilinear",
                "conv",
                "upsample_bilinear2d_{dtype}",
                "The four nearest elements of each place, weighted.",
                [
                    &plane[..],
                    &resize,
                    &[
                        arg("align_corners", Pass::Bool, "whether the corners of input and output meet"),
                        INFO,
                        src,
                        dst,
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![
                names("kind", &["conv_tiles", "conv_transpose_tiles"]),
                tile_sides(),
                dtypes("dtype", TILED_FLOATS),
            ]],
            ..family(
                "ConvolutionTiles",
                "tiled",
                "{kind}_{side}_{dtype}",
                "A convolution as a product on tiles, of dense weights with what the places of all images see. x of the grid \
                 counts parts of `side` output channels of a group, then those of `side` places; z groups. The places of a \
                 transposed one are those of a phase; y of the grid counts the `stride_y * stride_x` phases.",
                vec![
                    src,
                    arg("kernel", Pass::Pointer, "the weights"),
                    dst,
                    INFO,
                    arg("h_out", Pass::U32, "rows of the output"),
                    arg("w_out", Pass::U32, "columns of the output"),
                    arg("stride_y", Pass::U32, "rows from window to window"),
                    arg("stride_x", Pass::U32, "columns from window to window"),
                    arg("dilation_y", Pass::U32, "rows from tap to tap"),
                    arg("dilation_x", Pass::U32, "columns from tap to tap"),
                    arg("padding_y", Pass::U32, "padding above and below"),
                    arg("padding_x", Pass::U32, "padding left and right"),
                ],
            )
        },
    ]
}

fn products() -> Vec<Family> {
    let stride = |name, meaning| arg(name, Pass::Usize, meaning);
    let widths = vec![names("width", &["64", "128", "256", "512"]), dtypes("dtype", &["f32", "f16", "bf16"])];
    let optional = |name, meaning| arg(name, Pass::Pointer, meaning);
    let attention = [
        arg("q", Pass::Pointer, "queries"),
        arg("k", Pass::Pointer, "keys"),
        arg("v", Pass::Pointer, "values"),
        optional("mask", "summands of the scores; may be null"),
        OUT,
        optional("statistics", "logarithms of the sums of exponents, as f32; may be null"),
        optional("slopes", "of each head, as f32: the score is less by slope times distance; may be null"),
        optional("query_starts", "of each sequence, as u32, and the end; null if all are as long"),
        optional("key_starts", "likewise"),
        optional("table", "numbers of each sequence's pages, as u32; may be null"),
        optional("ranges", "of each batch, pairs of positions that see each other, as i32; may be null"),
        INFO,
        arg("scale", Pass::F32, "factor of the scores"),
        arg("softcap", Pass::F32, "bound of the scores; 0 for none"),
        arg("total_queries", Pass::U32, "where sequences of queries end at most"),
        arg("total_keys", Pass::U32, "likewise of keys"),
    ];
    let gradient_widths = vec![
        vec![names("width", &["64", "128", "256"]), dtypes("dtype", &["f32"])],
        vec![names("width", &["64", "128", "256", "512"]), dtypes("dtype", &["f16", "bf16"])],
    ];
    let gradients = [
        arg("q", Pass::Pointer, "queries"),
        arg("k", Pass::Pointer, "keys"),
        arg("v", Pass::Pointer, "values"),
        arg("grad", Pass::Pointer, "the gradient of the result"),
        arg("statistics", Pass::Pointer, "logarithms of the sums of exponents, as f32"),
        arg("means", Pass::Pointer, "what gradient_means wrote"),
        optional("slopes", "as of attention; may be null"),
        optional("query_starts", "likewise"),
        optional("key_starts", "likewise"),
        INFO,
        arg("scale", Pass::F32, "factor of the scores"),
        arg("softcap", Pass::F32, "bound of the scores; 0 for none"),
        arg("total_queries", Pass::U32, "where sequences of queries end at most"),
        arg("total_keys", Pass::U32, "likewise of keys"),
    ];
    let product = [
        arg("a", Pass::Pointer, "left side"),
        arg("b", Pass::Pointer, "right side"),
        arg("c", Pass::Pointer, "result; its rows are dense"),
        arg("m", Pass::U32, "rows of the result"),
        arg("n", Pass::U32, "columns of the result"),
        arg("k", Pass::U32, "columns of the left side"),
        arg("batches", Pass::U32, "products"),
        stride("a_row", "elements from row to row of the left side"),
        stride("a_column", "elements from column to column of the left side"),
        stride("a_batch", "elements from product to product of the left side"),
        stride("b_row", "elements from row to row of the right side"),
        stride("b_column", "elements from column to column of the right side"),
        stride("b_batch", "elements from product to product of the right side"),
        stride("c_row", "elements from row to row of the result"),
        stride("c_batch", "elements from product to product of the result"),
    ];
    vec![
        Family {
            variants: vec![widths.clone()],
            ..family(
                "AttentionRows",
                "attention",
                "attention_rows_{width}_{dtype}",
                "Attention of many queries: ATTENTION_ROWS rows a workgroup. x of the grid counts these, then key heads, then \
                 batches; y pieces of values.",
                attention.to_vec(),
            )
        },
        Family {
            variants: vec![widths],
            block: ATTENTION_SPLIT_THREADS,
            ..family(
                "AttentionKeys",
                "attention",
                "attention_keys_{width}_{dtype}",
                "Attention of few queries: likewise, with ATTENTION_FEW rows; z of the grid counts parts of the keys.",
                [
                    &attention[..],
                    &[arg("partial", Pass::Pointer, "room for the sums of parts, if there are several")],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", &["f32", "f16", "bf16"])]],
            block: ATTENTION_PARTS,
            ..family(
                "AttentionParts",
                "attention",
                "attention_parts_{dtype}",
                "Puts together what attention_keys left of parts of the keys: as many x and y in the grid, and its rows in z.",
                [
                    &attention[..],
                    &[
                        arg("partial", Pass::Pointer, "the sums of parts"),
                        arg("parts", Pass::U32, "how many there are"),
                        arg("columns", Pass::U32, "columns of values of a workgroup of attention_keys"),
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", &["f32", "f16", "bf16"])]],
            ..family(
                "GradientMeans",
                "gradients",
                "gradient_means_{dtype}",
                "The gradient of attention's result times the result, summed up over each row; 32 lanes a row.",
                vec![
                    arg("grad", Pass::Pointer, "the gradient of the result"),
                    arg("result", Pass::Pointer, "the result"),
                    arg("means", Pass::Pointer, "f32, dense"),
                    INFO,
                ],
            )
        },
        Family {
            variants: gradient_widths.clone(),
            ..family(
                "GradientQueries",
                "gradients",
                "gradient_queries_{width}_{dtype}",
                "The gradient of attention's queries; the grid is that of attention_rows, but for pieces of columns.",
                [&gradients[..], &[OUT]].concat(),
            )
        },
        Family {
            variants: gradient_widths,
            ..family(
                "GradientKeys",
                "gradients",
                "gradient_keys_{width}_{dtype}",
                "The gradients of attention's keys and values: ATTENTION_ROWS keys a workgroup, else likewise.",
                [
                    &gradients[..],
                    &[
                        arg("out_keys", Pass::Pointer, "gradient of the keys"),
                        arg("out_values", Pass::Pointer, "gradient of the values"),
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![
                vec![names("kind", &["product"]), dtypes("dtype", &["f64"])],
                vec![names("kind", &["row", "rows", "thin"]), dtypes("dtype", TILED_FLOATS)],
            ],
            ..family(
                "Product",
                "product",
                "{kind}_{dtype}",
                "`c = a b`: in tiles, for GPUs that rocBLAS has no kernels for, or of one row, up to PRODUCT_ROWS or \
                 (thin) THIN_SIDE with dense columns, in packs; z of the grid counts batches.",
                [&product[..], &[arg("width", Pass::U32, "threads that share a column, of row and rows")]]
                    .concat(),
            )
        },
        Family {
            variants: vec![vec![tile_sides(), dtypes("dtype", &["bf16", "f16", "f32", "f8e4m3"])]],
            ..family(
                "TiledProduct",
                "tiled",
                "tiled_product_{side}_{dtype}",
                "`c = a b` on tiles; x of the grid counts parts of `side` rows, then those of `side` columns; z batches.",
                product.to_vec(),
            )
        },
    ]
}

fn quantized() -> Vec<Family> {
    let pieces = arg("pieces", Pass::U32, "runs of QUANTIZED_PIECE weights in a row");
    let width =
        arg("width", Pass::U32, "threads that share QUANTIZED_BESIDE rows of weights, `pieces` at most");
    let optional = |name, meaning| arg(name, Pass::Pointer, meaning);
    let routed = [
        arg("count", Pass::U32, "products"),
        arg("n", Pass::U32, "rows of a matrix"),
        arg("stack", Pass::U32, "matrices"),
        arg("per", Pass::U32, "rows of the output that share a row of activations"),
    ];
    let kind = |kind| names("kind", &[kind]);
    let weighted = Axis { values: vec!["q2k", "q3k", "q4k", "q5k", "q6k"], ..formats() };
    let large = Axis { values: vec!["q2k", "q3k", "q4k", "q5k", "q6k", "q8k"], ..formats() };
    let product_arguments = [
        arg("blocks", Pass::Pointer, "the matrix"),
        arg("x", Pass::Pointer, "what quantize_rows wrote"),
        OUT,
        arg("m", Pass::U32, "rows of the result"),
        arg("n", Pass::U32, "its columns, rows of the matrix"),
        arg("k", Pass::U32, "columns of the matrix, whole blocks"),
    ];
    vec![
        Family {
            variants: vec![vec![formats(), dtypes("dtype", &["bf16", "f16", "f32"])]],
            ..family(
                "Dequantize",
                "quantized",
                "dequantize_{format}_{dtype}",
                "The values of blocks, of all rows or of those with given numbers.",
                vec![
                    arg("blocks", Pass::Pointer, "the matrix"),
                    optional("ids", "numbers of its rows, as u32; null for all in order"),
                    OUT,
                    arg("pieces", Pass::U32, "runs of QUANTIZED_PIECE weights of the output"),
                    arg("rows", Pass::Usize, "rows of the matrix"),
                    arg("row_pieces", Pass::Usize, "pieces of a row, as a dim's word"),
                ],
            )
        },
        Family {
            variants: vec![vec![names("span", &["32", "256"]), dtypes("dtype", &["bf16", "f16", "f32"])]],
            ..family(
                "QuantizeRows",
                "quantized",
                "quantize_rows_{span}_{dtype}",
                "Activations as bytes, a whole number of spans; behind them a scale and two sums for each \
                 QUANTIZED_PIECE, the scale that of its span.",
                vec![arg("x", Pass::Pointer, "the activations"), OUT, NUMEL],
            )
        },
        Family {
            variants: vec![vec![formats()]],
            dynamic_lds: true,
            block: QUANTIZED_ROW_BLOCK,
            ..family(
                "QuantizedRow",
                "quantized",
                "quantized_row_{format}",
                "The products of one row of f32 with up to three matrices, whose rows are counted through.",
                vec![
                    arg("x", Pass::Pointer, "the row"),
                    optional("gate", "may be null; else the row is silu(x) * gate"),
                    optional("summand", "added to the product with the first matrix; may be null"),
                    arg("w0", Pass::Pointer, "blocks of the first matrix"),
                    optional("w1", "those of the second, if there is one"),
                    optional("w2", "those of the third, if there is one"),
                    arg("out0", Pass::Pointer, "product with the first"),
                    optional("out1", "with the second"),
                    optional("out2", "with the third"),
                    arg("end0", Pass::U32, "where rows of the first end"),
                    arg("end1", Pass::U32, "where those of the second end"),
                    arg("end2", Pass::U32, "where those of the third end"),
                    pieces,
                    width,
                ],
            )
        },
        Family {
            variants: vec![vec![names("count", &["1", "8"]), formats()]],
            block: QUANTIZED_ROW_BLOCK,
            ..family(
                "QuantizedRows",
                "quantized",
                "quantized_rows_{count}_{format}",
                "The products of up to so many rows of activations at a time with a matrix, or with one of a stack each.",
                [
                    &[
                        arg("activations", Pass::Pointer, "what quantize_rows wrote"),
                        arg("weights", Pass::Pointer, "blocks of the matrix, or of a stack of them"),
                    ],
                    &ROUTES[..],
                    &[OUT, arg("all", Pass::Usize, "rows of activations")],
                    &routed,
                    &[pieces, width],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![dtypes("dtype", &["bf16", "f16"])]],
            ..family(
                "Experts",
                "product",
                "experts_{dtype}",
                "The products of rows with matrices of a stack, one of them each.",
                [
                    &[
                        arg("x", Pass::Pointer, "dense rows, in packs"),
                        arg("weights", Pass::Pointer, "matrices (n, k)"),
                    ],
                    &ROUTES[..],
                    &[OUT],
                    &routed,
                    &[
                        arg("k", Pass::U32, "columns, whole packs"),
                        arg("width", Pass::U32, "threads that share a row of a matrix"),
                    ],
                ]
                .concat(),
            )
        },
        Family {
            variants: vec![vec![formats()]],
            ..family(
                "QuantizedTiles",
                "qtiles",
                "qtiles_{format}",
                "The products of many rows of activations with a matrix, on matrix units; x of the grid counts parts of \
                 QTILE_ROWS rows, y those of QTILE_COLUMNS columns.",
                product_arguments.to_vec(),
            )
        },
        Family {
            variants: vec![vec![large]],
            ..family(
                "QuantizedFew",
                "qfew",
                "qfew_{format}",
                "The products of a few rows of activations with a matrix, on matrix units; x of the grid counts parts of \
                 QFEW_SIDE columns, y those of as many rows.",
                product_arguments.to_vec(),
            )
        },
        Family {
            variants: vec![vec![kind("quantize"), formats()], vec![kind("quantize_weighted"), weighted]],
            ..family(
                "Quantize",
                "quantize",
                "{kind}_{format}",
                "Blocks of f32, as the CPU device makes them; weighted: by how important each column is.",
                vec![
                    INP,
                    optional("weights", "the importance of the columns, as f32; null if not weighted"),
                    OUT,
                    arg("blocks", Pass::Usize, "blocks in all"),
                    arg("row_blocks", Pass::Usize, "blocks of a row; 0 if not weighted"),
                ],
            )
        },
    ]
}

/// Which matrix of a stack each product takes, and where it goes.
const ROUTES: [Argument; 3] = [
    arg("experts", Pass::Pointer, "the matrix of each product, as u32; null if there is one"),
    arg("order", Pass::Pointer, "rows of the output, as u32; null for the order of the products"),
    arg("factors", Pass::Pointer, "of each row of the output, as f32; may be null"),
];

const NUMEL: Argument = arg("numel", Pass::Usize, "elements in all");
const NUM_DIMS: Argument = arg("num_dims", Pass::Usize, "dims in `info`; 0 if everything is contiguous");
const INFO: Argument = arg("info", Pass::Layout, "dims, then the strides of each operand");
const INP: Argument = arg("inp", Pass::Pointer, "the input");
const LHS: Argument = arg("lhs", Pass::Pointer, "left operand");
const RHS: Argument = arg("rhs", Pass::Pointer, "right operand");
const OUT: Argument = arg("out", Pass::Pointer, "the dense output");

/// The arguments of a kernel that follows a layout.
fn strided(rest: &[Argument]) -> Vec<Argument> {
    [&[NUMEL, NUM_DIMS, INFO], rest].concat()
}

const fn arg(name: &'static str, pass: Pass, meaning: &'static str) -> Argument {
    Argument { name, pass, meaning }
}

const fn constant(name: &'static str, value: u32, meaning: &'static str) -> Constant {
    Constant { name, value, meaning }
}

fn names(name: &'static str, values: &[&'static str]) -> Axis {
    Axis { name, is_dtype: false, values: values.to_vec(), shared: None }
}

/// Rows and columns of a workgroup's part of a product on tiles.
fn tile_sides() -> Axis {
    Axis { shared: Some("TileSide"), ..names("side", &["64", "128"]) }
}

/// GGML's block formats.
fn formats() -> Axis {
    Axis { shared: Some("BlockFormat"), ..names("format", FORMATS) }
}

fn dtypes(name: &'static str, values: &[&'static str]) -> Axis {
    Axis { name, is_dtype: true, values: values.to_vec(), shared: None }
}

/// A family without variants, one element per thread, in workgroups of 256.
fn family(
    name: &'static str,
    module: &'static str,
    kernels: &'static str,
    meaning: &'static str,
    arguments: Vec<Argument>,
) -> Family {
    let variants = Vec::new();
    Family {
        name,
        module,
        kernels,
        variants,
        arguments,
        block: 256,
        pack_bytes: 0,
        dynamic_lds: false,
        meaning,
    }
}
