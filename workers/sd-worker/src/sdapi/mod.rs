//! API of AUTOMATIC1111's web UI (A1111), for its clients.
//!
//! | file | subject |
//! |---|---|
//! | `controlnet` | units and endpoints of the extension for ControlNet |
//! | `infotext` | description of images as text |
//! | `payload` | bodies of requests |
//! | `png_text` | text chunks of PNG files |
//! | `running` | progress and cancellation |
mod controlnet;
mod infotext;
mod payload;
mod png_text;
mod running;

use std::future::ready;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use worker_core::{ApiError, Body, Client, blocking, fields};

use crate::controlnets::ControlNetRequest;
use crate::images::Source;
use crate::models::{Api, ServedModels};
use crate::parameters;
use crate::pipeline::{Control, Upscaler};
use crate::queue::Images;
use crate::schedulers::Method;
use crate::served::wait_for_images;
use infotext::Infotext;
use payload::{Payload, SAMPLERS, Settings};
use running::Running;

/// Keyword of the description in PNG files.
const KEYWORD: &str = "parameters";
/// Extensions that requests may use.
const SCRIPTS: [&str; 1] = ["controlnet"];
/// Names of ControlNets in descriptions.
const CONTROL_NAMES: [&str; Control::MAX_COUNT] =
    ["ControlNet 0", "ControlNet 1", "ControlNet 2", "ControlNet 3"];

#[derive(Clone)]
struct SdApi {
    api: Api,
    running: Running,
    /// Options that `POST /sdapi/v1/options` has set.
    settings: Arc<Mutex<Settings>>,
}

fields! {
    /// Body of `POST /sdapi/v1/png-info`.
    pub struct PngInfo => {
        /// PNG file as base64 or a data URL.
        image: String,
    }
}

fields! {
    /// Body of `POST /sdapi/v1/options`.
    pub struct Options => {
        /// Name of the model of later requests that name none, which is loaded.
        sd_model_checkpoint: String,
        /// Number of the layer of the text encoder whose output is used, from the last one.
        clip_skip as "CLIP_stop_at_last_layers": usize,
    }
}

impl SdApi {
    /// Returns the name of the model of requests that name none.
    fn checkpoint(&self, models: &ServedModels) -> String {
        let chosen = self.settings.lock().sd_model_checkpoint.clone();
        chosen.unwrap_or_else(|| models.default_name().unwrap_or_default().to_owned())
    }
}

/// Returns the routes under `/sdapi/v1` and `/controlnet`.
pub fn router(api: Api) -> Router {
    let controlnets = controlnet::router(api.clone());
    let state = SdApi { api, running: Running::default(), settings: Arc::default() };
    let empty = || get(async || Json(json!([])));
    let names = |is_latent: bool| {
        let names = Upscaler::NAMES.into_iter();
        let names = names.filter(|(_, own)| matches!(own, Upscaler::Latent { .. }) == is_latent);
        let entry = |(name, _): (&str, Upscaler)| json!({"name": name, "model_name": null, "model_path": null, "model_url": null, "scale": 4});
        let list = Value::from_iter(names.map(entry));
        get(move || ready(Json(list.clone())))
    };
    let interrupt = || {
        post(async |State(state): State<SdApi>| {
            state.running.interrupt();
            Json(json!({}))
        })
    };
    let routes = Router::new()
        .route("/txt2img", post(txt2img))
        .route("/img2img", post(img2img))
        .route("/options", get(options).post(set_options))
        .route("/sd-models", get(models))
        .route("/loras", get(loras))
        .route("/embeddings", get(embeddings))
        .route("/samplers", get(samplers))
        .route("/schedulers", get(schedulers))
        .route("/progress", get(async |State(state): State<SdApi>| Json(state.running.progress())))
        .route("/interrupt", interrupt())
        .route("/skip", interrupt())
        .route("/png-info", post(png_info))
        .route("/scripts", get(async || Json(json!({"txt2img": SCRIPTS, "img2img": SCRIPTS}))))
        .route("/sd-vae", empty())
        .route("/upscalers", names(false))
        .route("/latent-upscale-modes", names(true))
        .with_state(state);
    Router::new().nest("/sdapi/v1", routes).merge(controlnets)
}

/// Handles `POST /sdapi/v1/txt2img`.
async fn txt2img(state: State<SdApi>, client: Client, body: Body<Payload>) -> Result<Json<Value>, ApiError> {
    generate(state.0, &client, body.0, false).await
}

/// Handles `POST /sdapi/v1/img2img`.
async fn img2img(state: State<SdApi>, client: Client, body: Body<Payload>) -> Result<Json<Value>, ApiError> {
    generate(state.0, &client, body.0, true).await
}

async fn generate(
    state: SdApi,
    client: &Client,
    mut payload: Payload,
    is_edit: bool,
) -> Result<Json<Value>, ApiError> {
    let settings = state.settings.lock().clone();
    let models = state.api.served()?;
    let own = payload.override_settings.as_ref().and_then(|own| own.sd_model_checkpoint.clone());
    let parameters = payload.parameters(is_edit, &settings)?;
    // Invalid requests load no model.
    parameters.check_values()?;
    let controlnets = control_texts(parameters.controlnets.as_deref().unwrap_or_default());
    let sampler = payload.sampler()?;
    models.check_capacity()?;
    let (canvas, payload) = blocking(move || Ok((payload.canvas(is_edit)?, payload))).await?;
    let served = models.model(Some(&own.unwrap_or_else(|| state.checkpoint(&models))), client).await?;
    payload.check_refiner(served.info.refiner.as_deref())?;
    let request = parameters::check(&served, parameters, canvas, ["width", "height"]).await?;
    let _place = client.acquire(request.seeds.len(), "batch_size")?;
    let (prompt, negative) = (payload.prompt.unwrap_or_default(), request.negative.clone());
    let (width, height, seeds) = (request.width, request.height, request.seeds.clone());
    let method = request.method.unwrap_or(served.info.scheduler.method);
    let sampler_name = sampler.map_or_else(|| sampler_name(method), |sampler| sampler.name);
    let schedule = match request.noise_levels(&served.info.scheduler) {
        (true, _) => "Karras",
        (_, true) => "Exponential",
        _ => "Automatic",
    };
    let mut about = vec![
        ("Steps", request.steps.to_string()),
        ("Sampler", sampler_name.to_owned()),
        ("Schedule type", schedule.to_owned()),
        ("CFG scale", request.guidance.to_string()),
        ("Seed", String::new()),
        ("Size", format!("{width}x{height}")),
        ("Model", served.name.as_str().to_owned()),
    ];
    if let Some(start) = &request.start {
        about.push(("Denoising strength", start.strength.to_string()));
    }
    if let Some(hires) = &request.hires {
        about.push(("Denoising strength", hires.strength.to_string()));
        about.push(("Hires resize", format!("{}x{}", hires.size.0, hires.size.1)));
        about.push(("Hires steps", hires.steps.to_string()));
        about.push(("Hires upscaler", hires.upscaler.name().to_owned()));
    }
    if let (Some(name), Some(switch_at)) = (&served.info.refiner, request.refiner_switch_at) {
        about.push(("Refiner", name.clone()));
        about.push(("Refiner switch at", switch_at.to_string()));
    }
    if request.clip_skip > 1 {
        about.push(("Clip skip", request.clip_skip.to_string()));
    }
    about.extend(CONTROL_NAMES.into_iter().zip(controlnets));
    let echo = json!({
        "prompt": prompt, "negative_prompt": negative, "seed": seeds.first(), "steps": request.steps,
        "cfg_scale": request.guidance, "width": width, "height": height, "sampler_name": sampler_name,
        "batch_size": payload.batch_size.unwrap_or(1), "n_iter": payload.n_iter.unwrap_or(1),
        "denoising_strength": request.start.as_ref().map(|start| start.strength)
            .or_else(|| request.hires.as_ref().map(|hires| hires.strength)),
        "clip_skip": request.clip_skip, "enable_hr": request.hires.is_some(),
    });
    let job = served.submit(request)?;
    let entry = state.running.add(job.canceller());
    let Images { pictures, flagged } = wait_for_images(job, |event| entry.report(event)).await?;
    drop(entry);
    let send_images = payload.send_images != Some(false);
    blocking(move || {
        let about = Infotext { prompt: &prompt, negative: &negative, settings: &about };
        let texts: Vec<String> = seeds.iter().map(|seed| about.text(*seed)).collect();
        let mut images = Vec::new();
        for (picture, text) in pictures.iter().zip(&texts).filter(|_| send_images) {
            let mut file = picture.png().map_err(|error| ApiError::internal(error.to_string()))?;
            png_text::insert(&mut file, KEYWORD, text);
            images.push(BASE64_STANDARD.encode(file));
        }
        let mut info = echo.clone();
        info["all_prompts"] = json!(vec![&prompt; seeds.len()]);
        info["all_negative_prompts"] = json!(vec![&negative; seeds.len()]);
        info["all_seeds"] = json!(seeds);
        info["index_of_first_image"] = json!(0);
        info["infotexts"] = json!(texts);
        if !flagged.is_empty() {
            info["nsfw_content_detected"] = json!(flagged);
        }
        Ok(Json(json!({"images": images, "parameters": echo, "info": info.to_string()})))
    })
    .await
}

/// Describes ControlNets as A1111's extension does.
fn control_texts(controlnets: &[ControlNetRequest]) -> Vec<String> {
    let text = |ControlNetRequest { model, weight, start, end, fit, .. }: &ControlNetRequest| {
        let mode = controlnet::resize_mode(*fit);
        format!(
            "Module: none, Model: {model}, Weight: {weight}, Resize Mode: {mode}, Guidance Start: {start}, \
             Guidance End: {end}, Control Mode: Balanced"
        )
    };
    controlnets.iter().map(text).collect()
}

fn sampler_name(method: crate::schedulers::Method) -> &'static str {
    SAMPLERS.into_iter().find(|(_, own)| *own == method).map_or("Euler", |(name, _)| name)
}

/// Handles `GET /sdapi/v1/options`.
async fn options(State(state): State<SdApi>) -> Result<Json<Value>, ApiError> {
    let checkpoint = state.checkpoint(&*state.api.served()?);
    let clip_skip = state.settings.lock().clip_skip.unwrap_or(1);
    Ok(Json(json!({
        "sd_model_checkpoint": checkpoint,
        "sd_checkpoint_hash": "",
        "samples_format": "png",
        "CLIP_stop_at_last_layers": clip_skip,
    })))
}

/// Handles `POST /sdapi/v1/options`.
async fn set_options(
    State(state): State<SdApi>,
    client: Client,
    Body(options): Body<Options>,
) -> Result<Json<Value>, ApiError> {
    let models = state.api.served()?;
    let Options { sd_model_checkpoint: name, clip_skip } = options;
    let invalid = |why: String| Err(ApiError::field("CLIP_stop_at_last_layers", why));
    if clip_skip == Some(0) {
        return invalid("is 0, but must be at least 1".to_owned());
    }
    let served = match (&name, clip_skip) {
        (Some(name), _) => models.loaded(Some(name), &client).await?,
        (None, Some(_)) => models.model(Some(&state.checkpoint(&models)), &client).await?,
        (None, None) => return Ok(Json(json!({}))),
    };
    let most = served.info.max_clip_skip;
    if let Some(clip_skip) = clip_skip.filter(|clip_skip| *clip_skip > most) {
        return invalid(format!("is {clip_skip}, but must be 1 to {most} for this model"));
    }
    let mut settings = state.settings.lock();
    if name.is_some() {
        settings.sd_model_checkpoint = Some(served.name.as_str().to_owned());
    }
    settings.clip_skip = clip_skip.or(settings.clip_skip);
    Ok(Json(json!({})))
}

/// Handles `GET /sdapi/v1/sd-models`.
async fn models(State(state): State<SdApi>) -> Result<Json<Value>, ApiError> {
    let models = state.api.served()?;
    let entry = |(name, path): (String, String)| json!({"title": name, "model_name": name, "hash": null, "sha256": null, "filename": path, "config": null});
    Ok(Json(models.list().into_iter().map(entry).collect()))
}

/// Handles `GET /sdapi/v1/loras`.
async fn loras(State(state): State<SdApi>) -> Result<Json<Value>, ApiError> {
    let models = state.api.served()?;
    let files = blocking(move || Ok(models.loras.files())).await?;
    let list = files.iter().map(
        |(name, path)| json!({"name": name, "alias": name, "path": path.to_string_lossy(), "metadata": {}}),
    );
    Ok(Json(list.collect()))
}

/// Handles `GET /sdapi/v1/embeddings`.
async fn embeddings(State(state): State<SdApi>) -> Result<Json<Value>, ApiError> {
    let models = state.api.served()?;
    let served = models.known(Some(&state.checkpoint(&models)));
    let entry = |name: &String| {
        let unknown = json!({"step": null, "sd_checkpoint": null, "sd_checkpoint_name": null});
        (name.clone(), unknown)
    };
    let loaded: serde_json::Map<String, Value> =
        served.iter().flat_map(|served| &served.info.embeddings).map(entry).collect();
    Ok(Json(json!({"loaded": loaded, "skipped": {}})))
}

/// Handles `GET /sdapi/v1/samplers`.
async fn samplers(State(state): State<SdApi>) -> Result<Json<Value>, ApiError> {
    let models = state.api.served()?;
    let served = models.known(Some(&state.checkpoint(&models)));
    let methods = served.as_ref().map_or(&Method::ALL[..], |served| served.info.scheduler.methods());
    let supported = SAMPLERS.into_iter().filter(|(_, own)| methods.contains(own));
    let entry =
        |(name, method): (&str, Method)| json!({"name": name, "aliases": [method.name()], "options": {}});
    Ok(Json(supported.map(entry).collect()))
}

/// Handles `GET /sdapi/v1/schedulers`.
async fn schedulers() -> Json<Value> {
    let scheduler = |name: &str, label: &str| json!({"name": name, "label": label, "aliases": null, "default_rho": -1, "need_inner_model": false});
    Json(json!([
        scheduler("automatic", "Automatic"),
        scheduler("normal", "Normal"),
        scheduler("karras", "Karras"),
        scheduler("exponential", "Exponential")
    ]))
}

/// Handles `POST /sdapi/v1/png-info`.
async fn png_info(Body(body): Body<PngInfo>) -> Result<Json<Value>, ApiError> {
    let image = worker_core::body::required(body.image, "image")?;
    blocking(move || {
        let file = Source::Text(image).file().map_err(|why| ApiError::field("image", why))?;
        let items = png_text::read(&file);
        let info = items.get(KEYWORD).cloned().unwrap_or_default();
        let parameters = if info.is_empty() { json!({}) } else { json!(infotext::parse(&info)) };
        Ok(Json(json!({"info": info, "items": items, "parameters": parameters})))
    })
    .await
}
