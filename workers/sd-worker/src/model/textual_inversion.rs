//! Textual inversion (Gal et al. 2022): embedding vectors from files, which prompts refer to by name.
use std::path::Path;

use candle_core::{DType, Tensor};

use super::weights::Weights;
use crate::{Result, safetensors_folder};

/// Names of the tensor for each text encoder of XL, as kohya's scripts and diffusers write them.
const XL_TENSORS: [&str; 2] = ["clip_l", "clip_g"];
/// Name of the tensor in files of AUTOMATIC1111.
const TENSOR: &str = "emb_params";

/// An embedding of a file.
#[derive(Debug)]
pub(super) struct TextualInversion {
    /// Names in prompts: that of the file without ending, and the token that the file names.
    pub names: Vec<String>,
    /// Vectors (count, width) for each text encoder, on the CPU; the count is the same for all.
    pub vectors: Vec<Tensor>,
}

/// Reads the embeddings of a folder for text encoders of these widths. Files that do not fit are logged and left out,
/// because one folder usually serves models of several families.
pub(super) fn read(folder: &Path, widths: &[usize]) -> Vec<TextualInversion> {
    let mut found = Vec::new();
    for (name, path) in safetensors_folder::files(folder) {
        match embedding(&name, &path, widths) {
            Ok(embedding) => found.push(embedding),
            Err(error) => tracing::warn!("embedding left out: {error}"),
        }
    }
    found
}

fn embedding(name: &str, path: &Path, widths: &[usize]) -> Result<TextualInversion> {
    let file = Weights::open(&[path.to_owned()])?;
    let stored = file.names();
    let mut names = vec![name.to_owned()];
    let tensors = match (widths.len(), &stored[..]) {
        (2, _) if XL_TENSORS.iter().all(|name| stored.contains(name)) => XL_TENSORS.to_vec(),
        (1, _) if stored.contains(&TENSOR) => vec![TENSOR],
        // Files of diffusers have one tensor, whose name is the token.
        (1, [token]) => {
            names.push((*token).to_owned());
            vec![*token]
        }
        _ => {
            let expected = if widths.len() == 2 { "clip_l and clip_g" } else { "emb_params, or one tensor" };
            let found = stored.iter().take(4).copied().collect::<Vec<_>>().join(", ");
            return Err(crate::Error::model(format!(
                "{}: has {found} instead of {expected}",
                path.display()
            )));
        }
    };
    let mut vectors = Vec::new();
    for (tensor, width) in tensors.into_iter().zip(widths) {
        let values = file.load(tensor)?.to_dtype(DType::F32)?;
        let values = if values.rank() == 1 { values.unsqueeze(0)? } else { values };
        if values.rank() != 2 || values.dim(0)? == 0 || values.dim(1)? != *width {
            let (path, shape) = (path.display(), values.dims());
            return Err(crate::Error::model(format!(
                "{path}: {tensor} has shape {shape:?}, but the text encoder has width {width}"
            )));
        }
        vectors.push(values);
    }
    let counts: Vec<usize> = vectors.iter().map(|vectors| vectors.dims()[0]).collect();
    if counts.iter().any(|count| *count != counts[0]) {
        let path = path.display();
        return Err(crate::Error::model(format!(
            "{path}: the tensors have different numbers of vectors: {counts:?}"
        )));
    }
    Ok(TextualInversion { names, vectors })
}
