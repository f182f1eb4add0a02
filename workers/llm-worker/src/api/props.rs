//! `GET /props`: properties of the worker, as in llama.cpp.
use axum::Json;
use axum::extract::{Query, State};
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::sampling::settings::{Kind, SETTINGS};
use llm_engine::text::ChatTemplate;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use worker_core::ApiError;

use super::answer::decimal;
use crate::models::Api;

/// Query of `GET /props`.
#[derive(Debug, Deserialize)]
pub struct PropsQuery {
    /// Name of the model; required if the worker serves several.
    model: Option<String>,
}

/// Handles `GET /props`.
pub async fn get(
    State(api): State<Api>,
    Query(PropsQuery { model }): Query<PropsQuery>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?.model(model.as_deref()).await?;
    served.requested(model.as_deref())?;
    let name = served.name.as_str();
    let template = served.engine.text().template();
    let [bos, eos] = template.map(ChatTemplate::special_texts).unwrap_or_default();
    let mut params = Map::new();
    for setting in SETTINGS {
        let value = match &setting.kind {
            Kind::Number { get, .. } => json!(decimal(get(&served.sampling))),
            Kind::Count { get, .. } => json!(get(&served.sampling).unwrap_or(0)),
        };
        params.insert(setting.alias.unwrap_or(setting.name).to_owned(), value);
    }
    params.insert("n_predict".to_owned(), json!(-1));
    params.insert("seed".to_owned(), json!(-1));
    Ok(Json(json!({
        "default_generation_settings": { "n_ctx": served.context(), "params": params },
        "total_slots": served.max_running,
        "cache_dtype": served.engine.cache_dtype().map(CacheDType::name),
        "model_alias": name,
        // Only the name, since paths are private.
        "model_path": name,
        "chat_template": template.map(ChatTemplate::source).unwrap_or_default(),
        "bos_token": bos,
        "eos_token": eos,
        "modalities": { "vision": served.engine.image_processor().is_ok(), "audio": false },
        "build_info": concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")),
    })))
}
