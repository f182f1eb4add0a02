//! `GET /v1/models`: what is served.
use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use worker_core::ApiError;

use crate::schedulers::Method;
use crate::served::{Api, Served};

#[derive(Serialize)]
pub struct List {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Serialize)]
pub struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// 1.5, 2.1, xl, or other.
    version: &'static str,
    /// Made for few steps without guidance.
    turbo: bool,
    /// Picture and mask must be given.
    paints_in: bool,
    /// Sides are multiples of it.
    multiple: usize,
    max_side: usize,
    max_pixels: usize,
    max_steps: usize,
    max_images: usize,
    schedulers: [&'static str; 5],
    /// What a request is that says nothing.
    defaults: Defaults,
}

#[derive(Serialize)]
struct Defaults {
    width: usize,
    height: usize,
    steps: usize,
    guidance: f64,
    scheduler: &'static str,
}

impl Model {
    fn of(served: &Served) -> Self {
        use crate::model::Version;
        let about = &served.about;
        let defaults = &about.defaults;
        Self {
            id: served.name.clone(),
            object: "model",
            created: served.created,
            owned_by: "sd-worker",
            version: match about.version {
                Version::V1 => "1.5",
                Version::V2 => "2.1",
                Version::Xl => "xl",
                Version::Other => "other",
            },
            turbo: about.turbo,
            paints_in: about.paints_in,
            multiple: about.multiple,
            max_side: about.bounds.side,
            max_pixels: about.bounds.pixels,
            max_steps: about.bounds.steps,
            max_images: about.bounds.pictures,
            schedulers: Method::ALL.map(Method::name),
            defaults: Defaults {
                width: defaults.width,
                height: defaults.height,
                steps: defaults.steps.min(about.bounds.steps),
                guidance: defaults.guidance,
                scheduler: about.scheduler.method.name(),
            },
        }
    }
}

/// The only one.
pub async fn list(State(api): State<Api>) -> Result<Json<List>, ApiError> {
    Ok(Json(List { object: "list", data: vec![Model::of(&*api.served()?)] }))
}

/// The only one, if it is asked for.
pub async fn one(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Model>, ApiError> {
    let served = api.served()?;
    served.check_name(Some(&name))?;
    Ok(Json(Model::of(&served)))
}
