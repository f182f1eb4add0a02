//! `GET /v1/models`: what is served.
use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use worker_core::ApiError;

use super::Api;
use crate::served::Served;

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
    /// Tokens of prompt and text together.
    max_model_len: usize,
    /// Whether it takes chats.
    chat_template: bool,
}

impl Model {
    fn of(served: &Served) -> Self {
        Self {
            id: served.name.clone(),
            object: "model",
            created: served.created,
            owned_by: "llm-worker",
            max_model_len: served.context(),
            chat_template: served.engine.text().has_template(),
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
