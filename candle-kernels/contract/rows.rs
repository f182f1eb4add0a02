//! Softmax, norms and rotary embeddings of rows.

use super::reduce::ROW_BLOCK;
use super::schema::{Argument, Family, dtypes, family, names};
use super::shared::WIDER_FLOATS;

subject! {
    modules {
        /// Rotary embeddings.
        rotary,
        /// Softmax and norms of rows.
        rows,
    }
    constants {
        /// Packs of a row of softmax or a norm that a thread keeps; of f64 one.
        ROW_PACKS = 4,
    }
}

const SRC: &[Argument] = args![Pointer => src "dense rows"];
const DST: &[Argument] = args![Pointer => dst "dense rows"];
const ROWS: &[Argument] = args![
    Pointer => known "what is known of parts, three numbers each; null where a launch has whole rows";
    U32 => rows "rows in all", columns "elements of a row",
        part "elements of a part, which y of the grid counts", width "threads of a row, a power of two"];
const SCALED: &[Argument] =
    args![Pointer => alpha "a factor for each column", beta "a summand for each column"];
const OF_CHANNELS: &[Argument] =
    args![Pointer => alpha "a factor for each channel", beta "a summand for each channel"];
const EPS: &[Argument] = args![F32 => eps "added to the mean square or variance"];
const GROUPS: &[Argument] = args![
    Usize => channel "elements of a channel, with a factor to divide by them",
        groups "groups of an image, likewise";
    U32 => group "the group that the first row is";
    F64 => eps "added to the variance"];

fn families() -> Vec<Family> {
    let of_rows =
        |family: Family, weights, last| family.takes(&[SRC, DST, weights, ROWS, last]).block(ROW_BLOCK);
    let norm = |name, kernels, meaning, weights, last| {
        let family = family(name, "rows", kernels, meaning).over([dtypes("dtype", WIDER_FLOATS)]);
        of_rows(family, weights, last)
    };
    let normed = "`(src - mean) / sqrt(variance + eps) * alpha + beta` of each row.";
    let of_group = "`(src - mean) / sqrt(variance + eps) * alpha + beta` of each row, a group of channels.";
    let by_root = "`src / sqrt(mean(src^2) + eps) * alpha` of each row.";
    let softmax = family("Softmax", "rows", "{op}_{dtype}", "Softmax of each row, or its logarithm.")
        .over([names("op", &["softmax", "logsoftmax"]), dtypes("dtype", WIDER_FLOATS)]);
    vec![
        of_rows(softmax, &[], &[]),
        norm("RmsNorm", "rmsnorm_{dtype}", by_root, &SCALED[..1], EPS),
        norm("LayerNorm", "layernorm_{dtype}", normed, SCALED, EPS),
        norm("GroupNorm", "groupnorm_{dtype}", of_group, OF_CHANNELS, GROUPS),
        family(
            "Rope",
            "rotary",
            "rope_{pairs}_{dtype}",
            "Turns pairs of each row by the angles of its position: of neighbours, or of both halves.",
        )
        .over([names("pairs", &["neighbours", "halves"]), dtypes("dtype", WIDER_FLOATS)])
        .takes(&[
            args![
            U32 => half "pairs of a row", positions "positions",
                heads "rows of a position, which y of the grid counts", batches "batches, which z counts",
                position_rows "rows from position to position", head_rows "rows from head to head",
                batch_angles "angles of a batch; 0 where all batches share them";
            Bool => in_packs "whether packs fit everywhere, N pairs for a thread"],
            SRC,
        ])
        .takes(&[args![Pointer => cos "cosines, `half` for each position", sin "sines, likewise"], DST]),
    ]
}
