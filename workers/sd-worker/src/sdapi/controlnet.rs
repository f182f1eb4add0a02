//! Units and endpoints of A1111's extension for ControlNet.
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use worker_core::body::{Nested, Others, Table};
use worker_core::{ApiError, blocking, fields};

use crate::controlnets::ControlNetRequest;
use crate::models::Api;
use crate::picture::Fit;
use crate::pipeline::Control;

/// Version of the extension's API whose fields the worker has.
const VERSION: u32 = 2;
/// Scalings of the extension by number and name.
const RESIZE_MODES: [(&str, Fit); 3] =
    [("Just Resize", Fit::Stretch), ("Crop and Resize", Fit::Crop), ("Resize and Fill", Fit::Pad)];
/// Values of `control_mode` that select the default balance between prompt and ControlNet.
const BALANCED: [&str; 2] = ["balanced", "0"];

/// Maximum number of characters of client input in an error.
const MAX_ECHOED_CHARS: usize = 64;

const ANY: &[&str] = &["*"];
const OFF: &[&str] = &["false"];

/// Fields of a unit that the worker does not have, each with the values that do not change the images. Many concern
/// the preprocessor of the image, which the worker does not have.
const WITHOUT_EFFECT: Table = &[
    ("batch_image_dir", &[""]),
    ("batch_images", &["", "[]"]),
    ("batch_mask_dir", &[""]),
    ("guessmode", OFF),
    ("hr_option", ANY),
    ("inpaint_crop_input_image", ANY),
    ("input_mode", &["simple"]),
    ("is_ui", ANY),
    ("loopback", OFF),
    ("low_vram", ANY),
    ("lowvram", ANY),
    ("output_dir", ANY),
    ("pixel_perfect", ANY),
    ("processor_res", ANY),
    ("save_detected_map", ANY),
    ("threshold_a", ANY),
    ("threshold_b", ANY),
    ("union_control_type", &["Unknown"]),
    ("use_preview_as_input", OFF),
];

fields! {
    /// Extensions of a request, by name.
    pub struct AlwaysOnScripts, others: Others::Unsupported(&[]) => {
        /// The extension for ControlNet.
        controlnet: Nested<Script>,
        /// Other spelling of its name.
        controlnet_title as "ControlNet": Nested<Script>,
    }
}

fields! {
    /// Arguments of the extension.
    pub struct Script, others: Others::Unsupported(&[]) => {
        /// ControlNets.
        args: Vec<Nested<Unit>>,
    }
}

fields! {
    /// A ControlNet of a request.
    pub struct Unit, others: Others::Unsupported(&[WITHOUT_EFFECT]) => {
        /// If false, the unit is left out.
        enabled: bool,
        /// Preparation of the image, of which the worker has none.
        module: String,
        /// Name of the ControlNet, which a hash in square brackets may follow.
        model: String,
        /// Factor of the effect.
        weight: f64,
        /// Image as base64 or a data URL.
        image: String,
        /// Older name of `image`.
        input_image: String,
        /// Scaling of the image: number or name.
        resize_mode: Value,
        /// Fraction of the steps after which the effect starts.
        guidance_start: f64,
        /// Fraction of the steps after which the effect ends.
        guidance_end: f64,
        /// Balance between prompt and ControlNet: number or name.
        control_mode: Value,
    }
}

impl AlwaysOnScripts {
    /// Returns the units of the extension for ControlNet that are enabled, with their paths in the body.
    pub fn units(self) -> impl Iterator<Item = (String, Unit)> {
        let scripts = [("controlnet", self.controlnet), ("ControlNet", self.controlnet_title)];
        let units = scripts.into_iter().flat_map(|(name, script)| {
            let args = script.and_then(|script| script.0.args).unwrap_or_default().into_iter().enumerate();
            args.map(move |(i, unit)| (format!("alwayson_scripts.{name}.args[{i}]"), unit.0))
        });
        units.filter(|(_, unit)| unit.enabled != Some(false))
    }
}

impl Unit {
    /// Returns the ControlNet of a request. `path` is the path of the unit in the body, and `input` the image that is used
    /// if the unit has none.
    ///
    /// # Errors
    /// 400 that names the field, for a missing model or image, or a setting that is not supported.
    pub fn request(self, path: &str, input: Option<&String>) -> Result<ControlNetRequest, ApiError> {
        let field = |name: &str, why: &str| ApiError::field(format!("{path}.{name}"), why);
        let unsupported = |name: &str, value: &str, remedy: &str| {
            let value: String = value.chars().take(MAX_ECHOED_CHARS).collect();
            let why = format!("{value:?} is not supported; {remedy}");
            field(name, &why).with_code("unsupported_parameter")
        };
        if let Some(module) = self.module.filter(|name| !["", "none"].contains(&name.to_lowercase().as_str()))
        {
            let remedy = "send the prepared image, such as edges or depth, with the module \"none\"";
            return Err(unsupported("module", &module, remedy));
        }
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_lowercase);
        if let Some(mode) = self.control_mode.map(text).filter(|mode| !BALANCED.contains(&mode.as_str())) {
            return Err(unsupported("control_mode", &mode, "use \"Balanced\""));
        }
        let fit = match self.resize_mode.map(text) {
            None => Fit::Crop,
            Some(mode) => {
                let mut modes = RESIZE_MODES.iter().enumerate();
                let found = modes.find(|(i, (name, _))| name.to_lowercase() == mode || i.to_string() == mode);
                let names = RESIZE_MODES.map(|(name, _)| name).join(", ");
                found
                    .map(|(_, (_, fit))| *fit)
                    .ok_or_else(|| field("resize_mode", &format!("must be one of {names}")))?
            }
        };
        let model = self.model.filter(|name| !["", "None"].contains(&name.as_str()));
        let model = model.ok_or_else(|| field("model", "is missing"))?;
        let own = [self.image, self.input_image].into_iter().flatten().find(|image| !image.is_empty());
        let image = own.or_else(|| input.cloned());
        Ok(ControlNetRequest {
            model: without_hash(&model).to_owned(),
            image: image.ok_or_else(|| field("image", "is missing"))?,
            weight: self.weight.unwrap_or(1.0),
            start: self.guidance_start.unwrap_or(0.0),
            end: self.guidance_end.unwrap_or(1.0),
            fit,
        })
    }
}

/// Returns the extension's name of a scaling.
pub fn resize_mode(fit: Fit) -> &'static str {
    RESIZE_MODES.iter().find(|(_, own)| *own == fit).map_or(RESIZE_MODES[0].0, |(name, _)| name)
}

/// Removes a hash in square brackets from the end of a model's name.
fn without_hash(name: &str) -> &str {
    let hash = name.strip_suffix(']').and_then(|name| name.rsplit_once(" ["));
    match hash {
        Some((name, hash)) if hash.chars().all(|c| c.is_ascii_hexdigit()) => name,
        _ => name,
    }
}

/// Returns the routes under `/controlnet`.
pub fn router(api: Api) -> Router {
    let routes = Router::new()
        .route("/version", get(async || Json(json!({"version": VERSION}))))
        .route("/settings", get(async || Json(json!({"control_net_unit_count": Control::MAX_COUNT}))))
        .route("/module_list", get(async || Json(json!({"module_list": ["none"], "module_detail": {}}))))
        .route("/model_list", get(models))
        .with_state(api);
    Router::new().nest("/controlnet", routes)
}

/// Handles `GET /controlnet/model_list`.
async fn models(State(api): State<Api>) -> Result<Json<Value>, ApiError> {
    let served = api.served()?;
    let models = blocking(move || Ok(served.controlnets.models())).await?;
    Ok(Json(json!({"model_list": models.into_keys().collect::<Vec<String>>()})))
}

#[cfg(test)]
mod tests {
    use super::without_hash;

    #[test]
    fn hashes_are_removed() {
        for (name, expected) in [
            ("canny [d14c016b]", "canny"),
            ("canny", "canny"),
            ("canny [v2]", "canny [v2]"),
            ("[d14c016b]", "[d14c016b]"),
            ("a [1] [2]", "a [1]"),
            ("é]", "é]"),
        ] {
            assert_eq!(without_hash(name), expected, "{name}");
        }
    }
}
