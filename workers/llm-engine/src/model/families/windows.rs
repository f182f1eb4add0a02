//! Layers whose attention has a window.
use anyhow::Result;

use crate::model::config::{Fields, WindowPredicate};

/// Selects all layers.
pub(super) fn all_layers(_: &Fields) -> Result<WindowPredicate> {
    Ok(Box::new(|_| true))
}

/// Selects no layers.
pub(super) fn no_layers(_: &Fields) -> Result<WindowPredicate> {
    Ok(Box::new(|_| false))
}

/// Selects the layers from `max_window_layers` on, if windows are enabled.
pub(super) fn layers_from_max_window_layers(fields: &Fields) -> Result<WindowPredicate> {
    let (on, first) = (fields.flag("use_sliding_window"), fields.size("max_window_layers")?.unwrap_or(0));
    Ok(Box::new(move |layer| on && layer >= first))
}

/// Selects all layers except the last of each group of `sliding_window_pattern`.
pub(super) fn all_but_last_of_group(fields: &Fields) -> Result<WindowPredicate> {
    let group = fields.required("sliding_window_pattern")?;
    Ok(Box::new(move |layer| !(layer + 1).is_multiple_of(group)))
}
