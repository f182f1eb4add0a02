//! Feed-forward layers of rows with adapters.
use candle_core::{Result, Tensor, bail};

use super::rows::Deltas;
use crate::model::config::Activation;
use crate::model::layers::{FusedWith, GateUp, Linear, Mlp, gated, replace_rows};

/// Maps (rows, width) to the input of the down projection, (rows, intermediate). `deltas` are those of gate and up. Rows without
/// an adapter have the same result as in [`Mlp::inner`], bit for bit.
///
/// # Errors
/// Returns an error if the device fails.
pub fn inner(mlp: &Mlp, (x, with): (&Tensor, FusedWith), deltas: &Deltas) -> Result<Tensor> {
    if deltas.is_empty() {
        return mlp.inner((x, with));
    }
    match &mlp.gate_up {
        GateUp::Fused(both) => fused(both, mlp.activation, (x, with), deltas),
        GateUp::Separate(gate, up) => {
            let outputs = vec![gate.forward_fused(x, with)?, up.forward_fused(x, with)?];
            match &deltas.add_to_parts(outputs)?[..] {
                [gate, up] => mlp.activation.gate(gate, up),
                outputs => bail!("internal error: {} outputs of gate and up", outputs.len()),
            }
        }
        GateUp::UpOnly(up) => mlp.activation.forward(&deltas.add(up.forward_fused(x, with)?)?),
    }
}

/// Computes the activation after adding the deltas. If the product without adapters is fused with the activation, rows without
/// an adapter use it, because separate operations round differently.
fn fused(
    both: &Linear,
    activation: Activation,
    (x, with): (&Tensor, FusedWith),
    deltas: &Deltas,
) -> Result<Tensor> {
    let rows = if both.is_fused(x)? { deltas.rows()? } else { None };
    let Some(rows) = rows else {
        return gated(&deltas.add(both.forward_fused(x, with)?)?, activation);
    };
    let adapted = (both.forward_fused(&x.index_select(&rows, 0)?, with)? + deltas.values()?)?;
    let adapted = gated(&adapted, activation)?;
    let all = both.forward_fused(x, FusedWith { gate: Some(activation), ..with })?;
    replace_rows(&all, &rows, &adapted)
}
