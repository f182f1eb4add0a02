//! Joining of the tensors that encode a weight of a safetensors folder.
//!
//! The tensors of a weight, such as `q_proj.qweight` and `q_proj.scales`, become one tensor `q_proj.weight`, which is converted
//! when it is read. Other weights stay as they are: the tensors decide, not the lists of exceptions in the configuration.
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::DType;
use candle_core::quantized::GgmlDType;

use super::format::Format;
use super::matrix::StoredMatrix;
use super::mxfp4;
use super::opened::OpenFiles;
use super::packed_bits::{Axis, PackedBits, ZeroPoints};
use super::quantization::{Packing, Quantization};
use super::scaled::{Number, Scaled};
use super::tensor_info::{Encoding, TensorInfo};

/// Tensors by name.
type Tensors = HashMap<String, TensorInfo>;

/// Joins the tensors that encode a weight.
///
/// # Errors
/// Returns an error that names the tensor that is missing or has another type or shape.
pub(super) fn join(quantization: &Quantization, tensors: &mut Tensors, files: &OpenFiles) -> Result<()> {
    if let Some(packing) = &quantization.packing {
        for base in bases(tensors, &format!(".{}", packing.layout.names[0])) {
            let weight = join_packed(packing, &base, tensors, files)?;
            tensors.insert(format!("{base}.weight"), weight);
        }
    }
    let is_packed = |name: &&String| name.ends_with(".qweight") || name.ends_with(".weight_packed");
    if let Some(name) = tensors.keys().filter(is_packed).min() {
        bail!(
            "tensor '{name}' is packed, but config.json has no \"quantization_config\" of such weights; add the one with \
             which the checkpoint was made, such as the contents of quantize_config.json"
        );
    }
    for base in bases(tensors, ".weight") {
        join_scaled(quantization, &base, tensors, files)?;
    }
    Ok(())
}

/// Joins a weight of eight bits with its scales.
fn join_scaled(
    quantization: &Quantization,
    base: &str,
    tensors: &mut Tensors,
    files: &OpenFiles,
) -> Result<()> {
    let name = format!("{base}.weight");
    let names = ["weight_scale_inv", "weight_scale"].map(|part| format!("{base}.{part}"));
    let scale_name = names.iter().find(|name| tensors.contains_key(*name));
    let Some(info) = tensors.get(&name).filter(|info| info.shape.len() == 2) else { return Ok(()) };
    let number = match info.format {
        Format::Floats(DType::F8E4M3) => Number::Float,
        Format::Floats(DType::U8) if quantization.has_integers && scale_name.is_some() => Number::Integer,
        _ => return Ok(()),
    };
    let file = files.path(info.file).display();
    let [inverse, plain] = &names;
    let scale_name = scale_name.with_context(|| {
        format!("{file}: tensor '{name}' has no '{plain}' or '{inverse}'; download the whole checkpoint")
    })?;
    ensure!(
        number == Number::Float || !tensors.contains_key(&format!("{base}.weight_zero_point")),
        "{file}: tensor '{name}' has zero points, which are not supported for weights of 8 bits; use symmetric ones"
    );
    let (Some(scales), Some(weights)) = (tensors.get(scale_name), only(info)) else { return Ok(()) };
    let [rows, columns] = [weights.rows, weights.columns];
    let in_blocks = |blocks: &[usize; 2]| [rows.div_ceil(blocks[0]), columns.div_ceil(blocks[1])];
    let (shape, shared_by) = match (scales.shape[..].trim_ones(), quantization.blocks) {
        ([], _) => ([1, 1], [rows.max(1), columns.max(1)]),
        (&[count], _) if count == rows => ([rows, 1], [1, columns.max(1)]),
        (shape, Some(blocks)) if *shape == *in_blocks(&blocks).trim_ones() => (in_blocks(&blocks), blocks),
        (&[outputs, groups], _) if outputs == rows && columns.is_multiple_of(groups.max(1)) => {
            ([rows, groups], [1, (columns / groups.max(1)).max(1)])
        }
        _ => bail!(
            "{file}: tensor '{scale_name}' has shape {:?}, but '{name}' of shape {:?} requires one scale, one for each \
             row, or one for each block of {}",
            scales.shape,
            info.shape,
            match quantization.blocks {
                Some([rows, columns]) => format!("{rows} x {columns}"),
                None => "a \"weight_block_size\" in config.json".to_owned(),
            }
        ),
    };
    let Format::Floats(dtype) = scales.format else { return Ok(()) };
    check_scales(scale_name, dtype)?;
    let matrix = StoredMatrix {
        file: scales.file,
        offset: scales.offset,
        rows: shape[0],
        columns: shape[1],
        unit: dtype.size_in_bytes(),
    };
    let scaled = Scaled { number, weights, scales: (matrix, dtype), shared_by };
    let joined = TensorInfo {
        format: scaled.format(DType::F32),
        encoding: Encoding::Scaled(Box::new(scaled)),
        ..info.clone()
    };
    tensors.insert(name, joined);
    Ok(())
}

/// Removal of dimensions of size 1 at the end of a shape.
trait TrimOnes {
    fn trim_ones(&self) -> &[usize];
}

impl TrimOnes for [usize] {
    fn trim_ones(&self) -> &[usize] {
        match self {
            [rest @ .., 1] => rest.trim_ones(),
            _ => self,
        }
    }
}

/// Returns the weight `{base}.weight` from its tensors, and removes them.
fn join_packed(
    packing: &Packing,
    base: &str,
    tensors: &mut Tensors,
    files: &OpenFiles,
) -> Result<TensorInfo> {
    let layout = packing.layout;
    let per_word = layout.per_word();
    let [name, scale_name, zero_name, group_name] = layout.names.map(|part| format!("{base}.{part}"));
    let mut take = |name: &str| tensors.remove(name);
    let packed = take(&name).with_context(|| format!("internal error: no tensor '{name}'"))?;
    let file = files.path(packed.file).display();
    let missing =
        |missing: &str| format!("{file}: tensor '{name}' has no '{missing}'; download the whole checkpoint");
    let scales = take(&scale_name).with_context(|| missing(&scale_name))?;
    let (zeros, groups) = (take(&zero_name), take(&group_name));
    ensure!(zeros.is_some() || !packing.requires_zeros, missing(&zero_name));
    let words = words(&name, &packed)?;
    let [rows, columns] = match layout.weights {
        Axis::Row => [words.rows, words.columns.saturating_mul(per_word)],
        Axis::Column => [words.rows.saturating_mul(per_word), words.columns],
    };
    let [outputs, inputs] = if layout.inputs_first { [columns, rows] } else { [rows, columns] };
    let oriented = |groups: usize| if layout.inputs_first { [groups, outputs] } else { [outputs, groups] };
    let Format::Floats(scale_type) = scales.format else {
        bail!("{file}: '{scale_name}' is not a tensor of floats")
    };
    check_scales(&scale_name, scale_type)?;
    let count = match (layout.inputs_first, &scales.shape[..]) {
        (true, &[count, _]) | (false, &[_, count]) => count,
        _ => 0,
    };
    let group = packing.group.unwrap_or(inputs / count.max(1)).max(1);
    let shape = oriented(inputs.div_ceil(group));
    ensure!(
        scales.shape == shape,
        "{file}: tensor '{scale_name}' has shape {:?}, but '{name}' of {outputs} output and {inputs} input features in \
         groups of {group} requires {shape:?}",
        scales.shape
    );
    let zeros = match zeros {
        Some(zeros) => {
            let matrix = self::words(&zero_name, &zeros)?;
            let shape = match layout.zeros {
                Axis::Row => [shape[0], shape[1].div_ceil(per_word)],
                Axis::Column => [shape[0].div_ceil(per_word), shape[1]],
            };
            ensure!(
                [matrix.rows, matrix.columns] == shape,
                "{file}: tensor '{zero_name}' has shape {:?}, but the scales require {shape:?}",
                zeros.shape
            );
            Some(ZeroPoints { matrix, offset: packing.zero_offset, symmetric: packing.symmetric })
        }
        None => None,
    };
    let groups = groups.map(|groups| {
        ensure!(
            groups.shape == [inputs] && groups.format == Format::Floats(DType::I32),
            "{file}: tensor '{group_name}' has type {} and shape {:?}, but {inputs} input features require as many I32",
            groups.format,
            groups.shape
        );
        only(&groups).context("internal error: a tensor without a matrix")
    });
    let groups = groups.transpose()?;
    let (mut is_reordered, mut order) = (false, None);
    if let Some(groups) = groups.as_ref().filter(|_| packing.may_reorder) {
        let bytes = files.read(&groups.whole()).with_context(|| format!("tensor '{group_name}'"))?;
        let of_inputs: Vec<u32> =
            bytes.as_chunks().0.iter().map(|group| u32::from_le_bytes(*group)).collect();
        is_reordered = !is_in_order(of_inputs.iter(), group);
        let mut sorted: Vec<u32> = (0..of_inputs.len() as u32).collect();
        sorted.sort_by_key(|input| of_inputs[*input as usize]);
        // Matrices of experts are stacked, so that they cannot have different orders.
        let has_order = is_reordered && !base.contains("expert");
        if has_order && is_in_order(sorted.iter().map(|input| &of_inputs[*input as usize]), group) {
            order = Some(Arc::from(sorted));
        }
    }
    let Some(scales) = only(&scales) else { bail!("internal error: a tensor without a matrix") };
    let scales = (scales, scale_type);
    let weights = PackedBits { layout, group, weights: words, scales, zeros, groups, is_reordered, order };
    Ok(TensorInfo {
        format: weights.format(inputs, DType::F32),
        encoding: Encoding::PackedBits(Box::new(weights)),
        shape: vec![outputs, inputs],
        ..packed
    })
}

/// Returns true if the groups of input features are in order and full, except the last one.
fn is_in_order<'a>(groups: impl Iterator<Item = &'a u32>, size: usize) -> bool {
    groups.enumerate().all(|(input, group)| *group as usize == input / size)
}

/// Returns the beginnings of the names that end with `end`, sorted.
fn bases(tensors: &Tensors, end: &str) -> BTreeSet<String> {
    tensors.keys().filter_map(|name| name.strip_suffix(end)).map(str::to_owned).collect()
}

/// Returns the matrix of a tensor that has only one.
fn only(info: &TensorInfo) -> Option<StoredMatrix> {
    info.matrices().pop()
}

/// Returns the matrix of a tensor of words.
fn words(name: &str, info: &TensorInfo) -> Result<StoredMatrix> {
    let is_words = [DType::I32, DType::U32].iter().any(|dtype| info.format == Format::Floats(*dtype));
    let matrix = only(info).filter(|_| is_words && info.shape.len() == 2);
    matrix.with_context(|| {
        format!(
            "tensor '{name}' has type {} and shape {:?}, expected a matrix of I32",
            info.format, info.shape
        )
    })
}

fn check_scales(name: &str, dtype: DType) -> Result<()> {
    let is_known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    ensure!(is_known, "tensor '{name}' is {dtype:?}, but scales must be f32, f16 or bf16");
    Ok(())
}

/// Joins the elements and scales of tensors in MXFP4, which are tensors of bytes.
///
/// # Errors
/// Returns an error that names the tensor without scales, or with scales of another shape.
pub(super) fn join_mxfp4(tensors: &mut Tensors) -> Result<()> {
    let names: Vec<String> =
        tensors.keys().filter_map(|name| name.strip_suffix("_blocks")).map(str::to_owned).collect();
    for name in names {
        let [elements, scales] = ["blocks", "scales"].map(|part| tensors.remove(&format!("{name}_{part}")));
        let scales = scales.with_context(|| format!("tensor '{name}_blocks' has no '{name}_scales'"))?;
        let Some(elements) = elements else { continue };
        let bytes = Format::Floats(DType::U8);
        let shape = [&scales.shape[..], &[mxfp4::ELEMENTS]].concat();
        ensure!(
            elements.shape == shape && [elements.format, scales.format] == [bytes; 2],
            "tensor '{name}_blocks' has type {} and shape {:?}, but '{name}_scales' has type {} and shape {:?}; MXFP4 requires {} bytes for each scale",
            elements.format,
            elements.shape,
            scales.format,
            scales.shape,
            mxfp4::ELEMENTS
        );
        let mut shape = scales.shape;
        shape.iter_mut().last().into_iter().for_each(|last| *last *= mxfp4::BLOCK);
        let encoding = Encoding::Mxfp4(scales.file, scales.offset);
        let format = Format::Blocks(GgmlDType::MXFP4);
        tensors.insert(name, TensorInfo { encoding, format, shape, ..elements });
    }
    Ok(())
}
