//! Quantization methods of safetensors folders: the `quantization_config` of config.json.
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::packed_bits::{self, Layout};

/// Quantization methods, and the functions that read their configurations.
const METHODS: &[(&str, ReadMethod)] = &[
    ("gptq", gptq),
    ("awq", awq),
    ("compressed-tensors", compressed_tensors),
    ("fp8", fp8),
    ("fbgemm_fp8", fp8),
    ("quark", quark),
    // Its tensors are found by their names.
    ("mxfp4", |_| Ok(Quantization::default())),
];

/// Summands of words of zero points in the first version of GPTQ's format, for four and eight bits: 1 for each number.
/// Numbers carry into the next one, as they do when checkpoints are written.
const GPTQ_ZERO_OFFSETS: [u32; 2] = [0x1111_1111, 0x0101_0101];

type ReadMethod = fn(&Value) -> Result<Quantization>;

/// Quantization of a folder's weights.
#[derive(Debug, Default)]
pub struct Quantization {
    /// Packing of weights in words, if there are any.
    pub packing: Option<Packing>,
    /// Numbers of output and input features of the blocks that share a scale, if there are any.
    pub blocks: Option<[usize; 2]>,
    /// If true, bytes with scales are signed integers.
    pub has_integers: bool,
}

/// Packing of weights in words of 32 bits.
#[derive(Debug)]
pub struct Packing {
    /// Layout of the tensors.
    pub layout: &'static Layout,
    /// Number of input features of a group. Without it, the number of scales decides.
    pub group: Option<usize>,
    /// Summand of the words of zero points.
    pub zero_offset: u32,
    /// If true, zero points are stored, but all are in the middle of the range.
    pub symmetric: bool,
    /// If true, zero points must be stored.
    pub requires_zeros: bool,
    /// If true, groups of input features may be in any order.
    pub may_reorder: bool,
}

impl Quantization {
    /// Reads the configuration of a config.json. Without one, no weights are packed.
    ///
    /// # Errors
    /// Returns an error that names the method or the setting that is not supported.
    pub fn from_config(config: &Value) -> Result<Self> {
        let places = [config, &config["text_config"]];
        let mut found = places
            .iter()
            .flat_map(|place| ["quantization_config", "compression_config"].map(|key| (key, &place[key])));
        let Some((key, found)) = found.find(|(_, value)| value.is_object()) else {
            return Ok(Self::default());
        };
        let method = found["quant_method"].as_str().unwrap_or_default();
        let names = || METHODS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let read = METHODS.iter().find(|(name, _)| *name == method).with_context(|| {
            format!(
                "{key:?} has the method {method:?}, which is not supported; use a checkpoint without quantization, one of \
                 {}, or a GGUF file",
                names()
            )
        })?;
        (read.1)(found).with_context(|| format!("{key:?} of the method {method:?}"))
    }
}

/// Checks a number of bits.
fn check_bits(bits: &Value, expected: u64) -> Result<()> {
    ensure!(
        bits.as_u64() == Some(expected),
        "weights of {bits} bits are not supported; use a checkpoint of {expected} bits or a GGUF file"
    );
    Ok(())
}

/// Reads a group size; -1 is one group of all input features.
fn group_size(size: &Value) -> Result<Option<usize>> {
    match size.as_i64() {
        Some(-1) => Ok(None),
        Some(size @ 1..) => Ok(Some(usize::try_from(size)?)),
        _ => bail!("\"group_size\" is {size}; it must be -1 or above 0"),
    }
}

/// Checks that a setting is missing, or one of the values.
fn check_setting(config: &Value, key: &str, supported: &[&str]) -> Result<()> {
    let Some(value) = config.get(key).filter(|value| !value.is_null()) else { return Ok(()) };
    let text = value.as_str().map(str::to_lowercase);
    ensure!(
        text.is_some_and(|text| supported.contains(&text.as_str())),
        "{key:?} is {value}, which is not supported; use a checkpoint with {}",
        supported.join(" or ")
    );
    Ok(())
}

fn gptq(config: &Value) -> Result<Quantization> {
    let has_8_bits = config["bits"] == 8;
    ensure!(
        has_8_bits || config["bits"] == 4,
        "weights of {} bits are not supported; use a checkpoint of 4 or 8 bits or a GGUF file",
        config["bits"]
    );
    check_setting(config, "checkpoint_format", &["gptq", "gptq_v2"])?;
    check_setting(config, "pack_dtype", &["int32"])?;
    ensure!(
        config["is_marlin_format"] != true,
        "\"is_marlin_format\" is true, which is not supported; use a checkpoint in the format gptq"
    );
    let dynamic = config["dynamic"].as_object().into_iter().flatten();
    for (pattern, settings) in dynamic.filter(|(pattern, _)| !pattern.starts_with("-:")) {
        ensure!(
            settings.as_object().is_some_and(|settings| settings.is_empty()),
            "\"dynamic\" has other settings for {pattern:?}, which is not supported; use a checkpoint with one setting"
        );
    }
    let packing = Packing {
        layout: if has_8_bits { &packed_bits::GPTQ_8_BITS } else { &packed_bits::GPTQ },
        group: group_size(&config["group_size"])?,
        zero_offset: match config["checkpoint_format"] == "gptq_v2" {
            true => 0,
            false => GPTQ_ZERO_OFFSETS[usize::from(has_8_bits)],
        },
        symmetric: config["sym"] == true,
        requires_zeros: true,
        may_reorder: config["desc_act"] == true,
    };
    Ok(Quantization { packing: Some(packing), ..Quantization::default() })
}

fn awq(config: &Value) -> Result<Quantization> {
    let field = |names: [&str; 2]| names.map(|name| &config[name]).into_iter().find(|value| !value.is_null());
    check_bits(field(["bits", "w_bit"]).unwrap_or(&Value::Null), 4)?;
    check_setting(config, "version", &["gemm"])?;
    let packing = Packing {
        layout: &packed_bits::AWQ,
        group: group_size(field(["group_size", "q_group_size"]).unwrap_or(&Value::Null))?,
        zero_offset: 0,
        symmetric: false,
        requires_zeros: true,
        may_reorder: false,
    };
    Ok(Quantization { packing: Some(packing), ..Quantization::default() })
}

fn compressed_tensors(config: &Value) -> Result<Quantization> {
    const FORMATS: &[&str] = &["pack-quantized", "int-quantized", "float-quantized", "naive-quantized"];
    let is_empty = |value: &Value| value.as_object().is_none_or(|fields| fields.is_empty());
    ensure!(
        is_empty(&config["transform_config"]),
        "\"transform_config\" is set, but transforms of activations are not supported; use a checkpoint without them"
    );
    check_setting(&config["sparsity_config"], "format", &["dense"])?;
    let mut blocks = None;
    for (name, group) in config["config_groups"].as_object().into_iter().flatten() {
        let own = if group["format"].is_null() { config } else { group };
        let weights = &group["weights"];
        let check = || {
            check_setting(own, "format", FORMATS)?;
            check_setting(weights, "type", &["int", "float"])?;
            check_bits(&weights["num_bits"], if own["format"] == "pack-quantized" { 4 } else { 8 })
        };
        if !weights.is_null() {
            check().with_context(|| format!("group {name:?}"))?;
        }
        blocks = blocks.or(block_size(&weights["block_structure"])?);
    }
    let packing = Packing {
        layout: &packed_bits::COMPRESSED_TENSORS,
        group: None,
        zero_offset: 0,
        symmetric: false,
        requires_zeros: false,
        may_reorder: true,
    };
    Ok(Quantization { packing: Some(packing), blocks, has_integers: true })
}

fn fp8(config: &Value) -> Result<Quantization> {
    check_setting(config, "fmt", &["e4m3", "float8_e4m3fn"])?;
    Ok(Quantization { blocks: block_size(&config["weight_block_size"])?, ..Quantization::default() })
}

fn quark(config: &Value) -> Result<Quantization> {
    let others = config["layer_quant_config"].as_object().into_iter().flatten().map(|(_, layer)| layer);
    for layer in others.chain([&config["global_quant_config"]]) {
        check_setting(&layer["weight"], "dtype", &["fp8_e4m3"])?;
    }
    Ok(Quantization::default())
}

fn block_size(size: &Value) -> Result<Option<[usize; 2]>> {
    if size.is_null() {
        return Ok(None);
    }
    let sizes: Option<Vec<usize>> = size.as_array().into_iter().flatten().map(whole).collect();
    match sizes.as_deref() {
        Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok(Some([rows, columns])),
        _ => bail!("the block size is {size}, expected two numbers above 0"),
    }
}

fn whole(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}
