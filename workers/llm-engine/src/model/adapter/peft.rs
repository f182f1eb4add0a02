//! Reading of PEFT's files: `adapter_config.json` and `adapter_model.safetensors`.
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::expert_targets::ExpertTargets;
use super::experts::ExpertPairs;
use super::targets::{AdapterTargets, Module, TARGETS, Target};
use super::weights::{AdapterFiles, LowRank};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Fields of the configuration that must be absent, null, false or empty, and the features that they request.
const UNSUPPORTED: [(&str, &str); 15] = [
    ("use_dora", "DoRA"),
    ("use_qalora", "QALoRA"),
    ("use_bdlora", "block-diagonal adapters"),
    ("lora_bias", "biases of adapters"),
    ("modules_to_save", "modules that are trained as a whole"),
    ("trainable_token_indices", "trained embeddings"),
    ("target_parameters", "adapters of parameters, such as stacks of experts"),
    ("rank_pattern", "ranks by module"),
    ("alpha_pattern", "scales by module"),
    ("fan_in_fan_out", "transposed weights"),
    ("layer_replication", "replicated layers"),
    ("alora_invocation_tokens", "activated adapters"),
    ("kasa_config", "KaSA"),
    ("monteclora_config", "MonteCLoRA"),
    ("arrow_config", "routed adapters"),
];

/// Initializations that change the weights of the model, to which the adapter is then relative.
const CHANGING_INITIALIZATIONS: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Names of the model before the number of a layer.
const PREFIXES: [&str; 3] = ["model.layers.", "model.language_model.layers.", "language_model.model.layers."];

/// Matrices A and B of a module.
type Pair = [Option<Tensor>; 2];

/// Settings of an adapter.
struct Config {
    rank: usize,
    scale: f64,
}

/// Reads an adapter from a folder.
///
/// # Errors
/// Returns an error that names the file and the missing, unsupported or wrong field or tensor.
pub fn read(folder: &Path, targets: &AdapterTargets) -> Result<AdapterFiles> {
    let [config_path, weights_path] = [CONFIG, WEIGHTS].map(|name| folder.join(name));
    let open = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let config_bytes = open(&config_path)?;
    if !weights_path.exists() && folder.join("adapter_model.bin").exists() {
        bail!(
            "{}: adapter_model.bin is not supported; save the adapter with PEFT's `safe_serialization=True`",
            folder.display()
        )
    }
    let bytes = open(&weights_path)?;
    let config =
        config(&config_bytes, targets.limits.rank).with_context(|| config_path.display().to_string())?;
    let layers = layers(&bytes, &config, targets).with_context(|| weights_path.display().to_string())?;
    let digest =
        Sha256::new().chain_update(Sha256::digest(&config_bytes)).chain_update(Sha256::digest(&bytes));
    let folder = folder.display().to_string();
    Ok(AdapterFiles { folder, digest: digest.finalize().into(), dtype: targets.dtype, layers })
}

fn config(bytes: &[u8], max_rank: usize) -> Result<Config> {
    let config: Value = serde_json::from_slice(bytes).context("it is not JSON")?;
    let kind = &config["peft_type"];
    ensure!(kind == "LORA", "\"peft_type\" is {kind}; only adapters of type LORA are supported");
    for (field, feature) in UNSUPPORTED {
        let value = &config[field];
        let is_off = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        ensure!(is_off, "{field:?} is {value}: {feature} are not supported; train the adapter without it");
    }
    let bias = &config["bias"];
    ensure!(
        bias.is_null() || bias == "none",
        "\"bias\" is {bias}: trained biases are not supported; use \"none\""
    );
    let initialization = config["init_lora_weights"].as_str().unwrap_or_default();
    ensure!(
        !CHANGING_INITIALIZATIONS.iter().any(|changing| initialization.starts_with(changing)),
        "\"init_lora_weights\" is {initialization:?}, which changes the weights of the model; convert the adapter with \
         PEFT's `path_initial_model_for_weight_conversion`"
    );
    let rank = config["r"].as_u64().filter(|rank| *rank > 0).context("\"r\" must be a number above 0")?;
    let rank = usize::try_from(rank)?;
    ensure!(
        rank <= max_rank,
        "\"r\" is {rank}, but adapters may have a rank of at most {max_rank}; raise --max-lora-rank"
    );
    let alpha = config["lora_alpha"].as_f64().filter(|alpha| alpha.is_finite());
    let alpha = alpha.context("\"lora_alpha\" must be a number")?;
    let divisor = match config["use_rslora"] == true {
        true => (rank as f64).sqrt(),
        false => rank as f64,
    };
    Ok(Config { rank, scale: alpha / divisor })
}

/// Returns the layer, the module and the kind of a tensor: 0 for A and 1 for B.
fn parse(name: &str) -> Result<(usize, &str, usize)> {
    let (module, kind) = match [".lora_A.weight", ".lora_B.weight"].map(|end| name.strip_suffix(end)) {
        [Some(module), _] => (module, 0),
        [None, Some(module)] => (module, 1),
        [None, None] => {
            bail!("it is neither matrix A nor matrix B of a linear layer; only these are supported")
        }
    };
    let module = module.strip_prefix("base_model.model.").unwrap_or(module);
    let in_layer = PREFIXES.iter().find_map(|prefix| module.strip_prefix(prefix));
    let numbered = in_layer.and_then(|rest| rest.split_once('.'));
    let numbered = numbered.and_then(|(layer, module)| Some((layer.parse().ok()?, module)));
    let (layer, module) = numbered.with_context(|| {
        format!("'{module}' is in no layer of the decoder; only projections of layers are supported")
    })?;
    Ok((layer, module, kind))
}

/// Returns the matrices of all layers.
fn layers(
    bytes: &[u8],
    config: &Config,
    targets: &AdapterTargets,
) -> Result<Vec<[Option<LowRank>; TARGETS]>> {
    let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu)?;
    ensure!(!tensors.is_empty(), "it has no tensors");
    let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
    let mut pairs: HashMap<(usize, &str), Pair> = HashMap::new();
    let mut of_experts: HashMap<usize, Vec<[Pair; 3]>> = HashMap::new();
    for (name, tensor) in tensors {
        let named = || format!("tensor '{name}'");
        let (layer, module, kind) = parse(&name).with_context(named)?;
        let experts = targets.experts.as_ref().filter(|_| targets.dense.get(layer) == Some(&false));
        let in_expert = experts.and_then(|own| Some((own, own.find(module)?)));
        let (place, [inputs, outputs]) = match in_expert {
            Some((own, (expert, projection))) => {
                let layer = of_experts.entry(layer).or_insert_with(|| vec![Default::default(); own.count]);
                (&mut layer[expert][projection], own.sizes[projection])
            }
            None => {
                let module = find(layer, module, targets).with_context(named)?;
                let [inputs, _] = targets.sizes[module.target as usize];
                (pairs.entry((layer, module.name)).or_default(), [inputs, module.outputs.len()])
            }
        };
        let expected = match kind {
            0 => [config.rank, inputs],
            _ => [outputs, config.rank],
        };
        ensure!(
            tensor.dims() == expected,
            "{} has shape {:?}, but the model and the rank require {expected:?}",
            named(),
            tensor.dims()
        );
        ensure!(tensor.dtype().is_float(), "{} has type {:?}, expected floats", named(), tensor.dtype());
        let tensor = tensor.to_dtype(DType::F32).with_context(named)?;
        place[kind] = Some(tensor);
    }
    let mut layers = Vec::with_capacity(targets.dense.len());
    for layer in 0..targets.dense.len() {
        let mut low_ranks = [const { None }; TARGETS];
        for target in [Target::QueryKeyValue, Target::Output, Target::GateUp, Target::Down] {
            let mut projections = Vec::new();
            for module in targets.modules.iter().filter(|module| module.target == target) {
                match pairs.remove(&(layer, module.name)) {
                    None => {}
                    Some([Some(down), Some(up)]) => projections.push((module, [down, up])),
                    Some(_) => bail!("layer {layer}: '{}' has only one of the matrices A and B", module.name),
                }
            }
            if !projections.is_empty() {
                let [_, outputs] = targets.sizes[target as usize];
                low_ranks[target as usize] = Some(joined(projections, outputs, config, targets.dtype)?);
            }
        }
        if let (Some(own), Some(experts)) = (&targets.experts, of_experts.remove(&layer)) {
            let whole = experts.into_iter().map(|expert| whole_pairs(expert, own, layer));
            let config = (config.rank, config.scale, targets.dtype);
            let [gate_up, down] = own.stacks(&whole.collect::<Result<Vec<_>>>()?, config)?;
            low_ranks[Target::ExpertGateUp as usize] = Some(gate_up);
            low_ranks[Target::ExpertDown as usize] = Some(down);
        }
        layers.push(low_ranks);
    }
    Ok(layers)
}

/// Returns the pairs of an expert, and an error if one has only one matrix.
fn whole_pairs(expert: [Pair; 3], targets: &ExpertTargets, layer: usize) -> Result<ExpertPairs> {
    let mut whole = ExpertPairs::default();
    for (projection, pair) in expert.into_iter().enumerate() {
        whole[projection] = match pair {
            [Some(down), Some(up)] => Some([down, up]),
            [None, None] => None,
            _ => {
                let name = targets.name(projection);
                bail!("layer {layer}: '{name}' has only one of the matrices A and B for an expert")
            }
        };
    }
    Ok(whole)
}

/// Returns the module of a layer that an adapter changes.
fn find<'a>(layer: usize, name: &str, targets: &'a AdapterTargets) -> Result<&'a Module> {
    let layers = targets.dense.len();
    ensure!(layer < layers, "the model has only {layers} layers");
    let module = targets.modules.iter().find(|module| module.name == name);
    let module = module.filter(|module| targets.has(layer, module.target));
    module.with_context(|| {
        let in_layer = targets.modules.iter().filter(|module| targets.has(layer, module.target));
        let mut names: Vec<_> = in_layer.map(|module| module.name.to_owned()).collect();
        let experts = targets.experts.iter().filter(|_| !targets.dense[layer]);
        names.extend(experts.flat_map(|all| (0..all.sizes.len()).map(|projection| all.name(projection))));
        format!("adapters of '{name}' are not supported; layer {layer} supports {}", names.join(", "))
    })
}

/// Joins the matrices of projections with a common input to one pair, whose output has `outputs` elements.
fn joined(
    projections: Vec<(&Module, [Tensor; 2])>,
    outputs: usize,
    config: &Config,
    dtype: DType,
) -> Result<LowRank> {
    let ranks = projections.len() * config.rank;
    let (mut downs, mut ups, mut rows) = (Vec::new(), Vec::new(), 0);
    for (index, (module, [down, up])) in projections.into_iter().enumerate() {
        let up = match module.reordered_heads {
            Some(heads) => interleaved(&up, heads)?,
            None => up,
        };
        if module.outputs.start > rows {
            ups.push(Tensor::zeros((module.outputs.start - rows, ranks), DType::F32, &Device::Cpu)?);
        }
        rows = module.outputs.end;
        let before = index * config.rank;
        ups.push((up * config.scale)?.pad_with_zeros(1, before, ranks - before - config.rank)?);
        downs.push(down);
    }
    if rows < outputs {
        ups.push(Tensor::zeros((outputs - rows, ranks), DType::F32, &Device::Cpu)?);
    }
    let [down, up] = [downs, ups].map(|parts| Tensor::cat(&parts, 0)?.to_dtype(dtype)?.contiguous());
    Ok(LowRank { down: down?, up: up? })
}

/// Reorders the rows of all heads like the converter of llama.cpp: elements of both halves of a head, which rotate together,
/// become neighbors.
fn interleaved(up: &Tensor, heads: usize) -> candle_core::Result<Tensor> {
    let (rows, rank) = up.dims2()?;
    up.reshape((heads, 2, rows / heads / 2, rank))?.transpose(1, 2)?.contiguous()?.reshape((rows, rank))
}
