//! Supported model families, and identification of a file's family.
use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::config::Family;
use super::sentence::CLASSIFIER;

mod dense;
mod gemma;
mod gguf;
mod hybrids;
mod mixtures;
mod windows;

pub use gguf::from_gguf;
pub(super) use gguf::scalar;
pub use hybrids::complete as complete_hybrid;

/// Returns all supported model families.
pub fn all_families() -> impl Iterator<Item = &'static Family> {
    [dense::FAMILIES, gemma::FAMILIES, mixtures::FAMILIES, hybrids::FAMILIES].into_iter().flatten()
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the family of a config.json.
///
/// # Errors
/// Returns an error if the architecture is not in the table.
pub fn from_config(config: &Value) -> Result<&'static Family> {
    let names = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let named = |name: &str| {
        // Classifiers only differ by their heads.
        let generator = name.strip_suffix(CLASSIFIER).map(|base| format!("{base}ForCausalLM"));
        let name = generator.as_deref().unwrap_or(name);
        let families = || all_families().filter(|family| family.architectures.contains(&name));
        // Dense models and mixtures of Gemma, Granite and Nemotron-H have the same name.
        let text = text_of_config(config);
        let is_mixture = text["enable_moe_block"] == true
            || text["num_local_experts"].as_u64().is_some_and(|experts| experts > 0)
            || hybrids::has_mixtures(text);
        let family = families().find(|family| family.experts.is_some() == is_mixture);
        family.or_else(|| families().next())
    };
    let kind = config["model_type"].as_str().unwrap_or_default();
    let by_type = || all_families().find(|family| family.model_types.contains(&kind));
    let all = || join_names(all_families().flat_map(|family| family.architectures).copied());
    match (names.clone().next(), names.clone().find_map(named)) {
        (_, Some(family)) => Ok(family),
        (None, None) => by_type().with_context(|| {
            format!("\"model_type\" is {kind:?}, but no architecture is given; use one of {}", all())
        }),
        (Some(name), None) => bail!("the architecture {name:?} is not known; use one of {}", all()),
    }
}

/// Returns the part of a config.json that describes the text model, which multimodal models nest.
pub fn text_of_config(config: &Value) -> &Value {
    config.get("text_config").filter(|text| text.is_object()).unwrap_or(config)
}
