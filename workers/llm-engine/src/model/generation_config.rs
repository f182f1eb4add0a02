//! Defaults of the sampler settings in a model's generation_config.json.
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::sampling::settings::{Kind, Sampling, Setting};

/// Settings that are read, which are those that vLLM reads.
const NAMES: [&str; 5] = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"];

/// Returns the default settings with those of the file in `folder`, if there is one. Values that are out of range are
/// logged and ignored.
///
/// # Errors
/// Returns an error if the file exists but is not JSON.
pub(super) fn sampling(folder: &Path) -> Result<Sampling> {
    let path = folder.join("generation_config.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Sampling::default()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let config: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let mut sampling = Sampling::default();
    for setting in NAMES.into_iter().filter_map(Setting::named) {
        let value = &config[setting.name];
        if value.is_null() {
            continue;
        }
        let mut changed = sampling.clone();
        let known = match setting.kind {
            Kind::Number { set, .. } => value.as_f64().map(|value| set(&mut changed, value as f32)),
            // 0 disables top-k in transformers.
            Kind::Count { set, .. } => value.as_u64().map(|count| {
                set(&mut changed, usize::try_from(count).ok().filter(|count| *count > 0));
            }),
        };
        match known.ok_or_else(|| "is not a number".to_owned()).and_then(|()| setting.check(&changed)) {
            Ok(()) => sampling = changed,
            Err(why) => {
                tracing::warn!("{}: {} {why}; it is ignored", path.display(), setting.name);
            }
        }
    }
    Ok(sampling)
}
