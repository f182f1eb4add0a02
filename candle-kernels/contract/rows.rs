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
        /// Packs of a row of softmax or a norm that a thread keeps in registers; one for f64.
        ROW_PACKS = 4,
    }
}

const SRC: &[Argument] = args![Pointer => src "dense rows"];
const DST: &[Argument] = args![Pointer => dst "dense rows"];
const ROWS: &[Argument] = args![
    Pointer => partials "statistics of each part, three numbers each; null if rows are not split";
    U32 => rows "number of rows", columns "elements of a row",
        part "elements of a part, which y of the grid numbers", width "threads that share a row, a power of two"];
const COLUMN_WEIGHTS: &[Argument] =
    args![Pointer => alpha "a factor for each column", beta "an offset for each column"];
const CHANNEL_WEIGHTS: &[Argument] =
    args![Pointer => alpha "a factor for each channel", beta "an offset for each channel"];
const EPS: &[Argument] = args![F32 => eps "added to the mean square or variance"];
const GROUPS: &[Argument] = args![
    Usize => channel "elements of a channel, as a divisor word",
        groups "groups of an image, as a divisor word";
    U32 => group "index of the group in the first row";
    F64 => eps "added to the variance"];

fn families() -> Vec<Family> {
    let row_family =
        |family: Family, weights, last| family.takes(&[SRC, DST, weights, ROWS, last]).block(ROW_BLOCK);
    let norm = |name, kernels, meaning, weights, last| {
        let family = family(name, "rows", kernels, meaning).over([dtypes("dtype", WIDER_FLOATS)]);
        row_family(family, weights, last)
    };
    let normed = "`(src - mean) / sqrt(variance + eps) * alpha + beta` for each row.";
    let group_normed =
        "`(src - mean) / sqrt(variance + eps) * alpha + beta` for each row, a group of channels.";
    let rms_normed = "`src / sqrt(mean(src^2) + eps) * alpha` for each row.";
    let softmax = family("Softmax", "rows", "{op}_{dtype}", "Softmax or log-softmax of each row.")
        .over([names("op", &["softmax", "logsoftmax"]), dtypes("dtype", WIDER_FLOATS)]);
    vec![
        row_family(softmax, &[], &[]),
        norm("RmsNorm", "rmsnorm_{dtype}", rms_normed, &COLUMN_WEIGHTS[..1], EPS),
        norm("LayerNorm", "layernorm_{dtype}", normed, COLUMN_WEIGHTS, EPS),
        norm("GroupNorm", "groupnorm_{dtype}", group_normed, CHANNEL_WEIGHTS, GROUPS),
        family(
            "Rope",
            "rotary",
            "rope_{pairs}_{dtype}",
            "Rotary embeddings: rotates pairs of neighbours, or of both halves of a row, by the angles of its position.",
        )
        .over([names("pairs", &["neighbours", "halves"]), dtypes("dtype", WIDER_FLOATS)])
        .takes(&[
            args![
            U32 => half "pairs of a row", positions "number of positions",
                heads "rows of a position; y of the grid", batches "number of batches; z of the grid",
                position_rows "rows between positions", head_rows "rows between heads",
                batch_angles "number of angles per batch; 0 if all batches share them";
            Bool => in_packs "true if everything is aligned to packs; a thread then rotates N pairs"],
            SRC,
        ])
        .takes(&[args![Pointer => cos "cosines, `half` for each position", sin "sines, `half` for each position"], DST]),
    ]
}
