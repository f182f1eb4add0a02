//! Single-file checkpoints with the original names of their weights, whole or with files of text encoders and VAE.
//!
//! | file | subject |
//! |---|---|
//! | `checkpoint` | files of a UNet, and other files of models |
//! | `kind` | recognition of the network by the names of its tensors |
//! | `names` | names of weights |
//! | `open` | formats of files |
//! | `shapes` | configurations, derived from the shapes of weights |
//! | `text` | text encoders |
//! | `vae` | VAEs |
mod checkpoint;
mod kind;
mod names;
mod open;
mod shapes;
mod text;
mod vae;

pub(super) use checkpoint::parts;
pub(super) use kind::found;
pub(super) use names::{UNetNames, is_ignored};
pub(super) use open::open;
pub(super) use text::{CLIP_G, CLIP_L, ClipSlot, REFINER_CLIP_G, TextFiles, given_t5};
pub(super) use vae::{own_vae, vae};
