//! Mixtures of experts: the router's choice, and products of single rows with the matrices of their experts.

use super::formats::{ALL, formats};
use super::row::ROW_PRODUCT_BLOCK;
use super::schema::{Argument, Family, dtypes, family};
use super::shared::TILED_FLOATS;

subject! {
    modules {
        /// Products of single rows with the matrices of their experts, with norm, bias, gate, weighted sum and residual.
        expert_rows,
        /// The choice of the experts of each row and their weights, and operations on grouped products.
        routing,
    }
    constants {
        /// Maximum number of experts of a router.
        ROUTE_EXPERTS = 512,
        /// Maximum number of experts that are chosen for a row, and of groups of experts.
        ROUTE_USED = 32,
        /// Code of routers whose scores are a softmax over all experts.
        ROUTE_SOFTMAX = 0,
        /// Code of routers whose weights are a softmax over the chosen experts.
        ROUTE_CHOSEN_SOFTMAX = 1,
        /// Code of routers whose scores are sigmoids.
        ROUTE_SIGMOID = 2,
        /// Code of routers whose weights are a softmax over the experts near each chosen one.
        ROUTE_SPARSE_MIXER = 3,
    }
}

const STACK: &[Argument] = args![Pointer =>
    weights "matrices (n, k) of all experts", experts "expert of each product, as u32"];

fn families() -> Vec<Family> {
    let row: &[Argument] = args![
        Pointer => x "dense rows", norm "if not null, the weights of an RMS norm of the rows",
            bias "added to the products, (stack, n); may be null"];
    let row_sizes: &[Argument] = args![
        U32 => n "rows of a matrix; with an activation, those of the gate and of up", stack "number of matrices",
            rows_per_activation "number of products that share a row of activations", k "elements of a row",
            results "results of a workgroup", lanes "threads that share a row of a matrix, as in ROW",
            dtype "code of the dtype of x, norm and bias", out_dtype "code of the results' dtype",
            activation "code of the gate's activation";
        F32 => eps "added to the mean square of the norm"];
    let sum: &[Argument] = args![
        Pointer => x "dense rows, one for each product", bias "added to the products, (stack, n); may be null",
            summand "added to the sums; may be null"];
    let sum_sizes: &[Argument] = args![
        Pointer => factors "factor of each product, as f32", out "sums, (rows, n)";
        U32 => n "rows of a matrix", stack "number of matrices", used "products of a sum", k "elements of a row",
            results "results of a workgroup", lanes "threads that share a row of a matrix: a power of two",
            dtype "code of the dtype of x and bias", summand_dtype "code of the summand's dtype",
            out_dtype "code of the results' dtype"];
    let out: &[Argument] =
        args![Pointer => out "results of the products, (products, n), or half as wide with an activation"];
    let rows =
        |name, kernels, meaning| family(name, "expert_rows", kernels, meaning).block(ROW_PRODUCT_BLOCK);
    let products = "Products of rows with the matrix of an expert each. x of the grid numbers groups of results, y products.";
    let sums = "Sums of the products of `used` rows each with the matrices of their experts, times factors. x of the grid \
                numbers groups of results, y sums.";
    vec![
        family("Route", "routing", "route", "Chooses the experts of each row and computes their weights; 32 lanes per row.")
            .over([])
            .takes(&[args![
                Pointer => scores "scores, f32 (rows, stack)",
                    correction "added to the scores by which experts are chosen, f32 (stack); may be null",
                    experts "chosen experts, u32 (rows, used)", weights "their weights, f32 (rows, used)";
                U32 => rows "number of rows", stack "number of experts", used "number of experts of a row",
                    groups "number of groups of neighbouring experts that limit the choice; 1 for none",
                    used_groups "number of groups that are chosen", function "code of the router's function",
                    normalized "if not 0, the weights are divided by their sum";
                F32 => scale "factor of the weights",
                    tolerance "share of the larger magnitude by which a near score may be below the chosen one"]]),
        family("GroupProducts", "routing", "group_products", "Orders products by their experts, in one workgroup.")
            .over([])
            .takes(&[args![
                Pointer => experts "expert of each product, as u32", order "products in the order of their experts, as u32",
                    tiles "expert, first product and end in the order, of tiles of up to QFEW_SIDE products, as u32";
                U32 => count "number of products", stack "number of experts, at most ROUTE_EXPERTS",
                    max_tiles "number of tiles, of which those that are not needed are empty"]]),
        family("GateProducts", "routing", "gate_products", "Activations of products with gate and up of experts.")
            .over([])
            .takes(&[args![
                Pointer => products "dense rows of gate and up", bias "added to the products, (stack, 2 width); may be null",
                    experts "expert of each product, as u32", out "activation(gate) * up, (products, width)";
                U32 => width "columns of the result", stack "number of experts", dtype "code of the products' dtype",
                    out_dtype "code of the dtype of the bias and the results", activation "code of the activation"]]),
        family("CombineProducts", "routing", "combine_products", "Weighted sums of the products of each row.")
            .over([])
            .takes(&[args![
                Pointer => products "dense rows, `used` for each sum", bias "added to the products, (stack, n); may be null",
                    summand "added to the sums; may be null", experts "expert of each product, as u32",
                    factors "factor of each product, as f32", out "sums, (rows, n)";
                U32 => n "columns", stack "number of experts", used "products of a sum", dtype "code of the products' dtype",
                    bias_dtype "code of the bias' dtype", summand_dtype "code of the summand's dtype",
                    out_dtype "code of the results' dtype"]]),
        rows("ExpertRow", "expert_row_{dtype}", products)
            .over([dtypes("dtype", TILED_FLOATS)])
            .takes(&[row, STACK, out, row_sizes]),
        rows("ExpertSum", "expert_sum_{dtype}", sums)
            .over([dtypes("dtype", TILED_FLOATS)])
            .takes(&[sum, STACK, sum_sizes]),
        rows("QuantizedExpertRow", "expert_row_{format}", products)
            .over([formats(ALL)])
            .takes(&[row, STACK, out, row_sizes])
            .with_dynamic_lds(),
        rows("QuantizedExpertSum", "expert_sum_{format}", sums)
            .over([formats(ALL)])
            .takes(&[sum, STACK, sum_sizes])
            .with_dynamic_lds(),
    ]
}
