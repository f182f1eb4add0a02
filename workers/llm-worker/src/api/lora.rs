//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`: loading of adapters, as in vLLM.
use axum::extract::State;
use worker_core::body::{Others, required};
use worker_core::{ApiError, Body, fields};

use crate::models::Api;

fields! {
    /// Body of `POST /v1/load_lora_adapter`.
    pub struct LoadBody, others: Others::Unsupported(&[&[("load_inplace", &["false"])]]) => {
        /// Name of the adapter in the API.
        lora_name: String,
        /// Folder of its files.
        lora_path: String,
        /// Name of the model that it changes; required if there are several.
        base_model_name: String,
    }
}

fields! {
    /// Body of `POST /v1/unload_lora_adapter`.
    pub struct UnloadBody, others: Others::Unsupported(&[&[("lora_int_id", &["*"])]]) => {
        /// Name of the adapter in the API.
        lora_name: String,
    }
}

fn not_empty(value: Option<String>, field: &str) -> Result<String, ApiError> {
    let value = required(value, field)?;
    if value.is_empty() { Err(ApiError::field(field, "must not be empty")) } else { Ok(value) }
}

/// Handles `POST /v1/load_lora_adapter`.
pub async fn load(State(api): State<Api>, Body(body): Body<LoadBody>) -> Result<String, ApiError> {
    let models = api.served()?;
    let name = not_empty(body.lora_name, "lora_name")?;
    let path = not_empty(body.lora_path, "lora_path")?;
    let success = format!("Success: LoRA adapter '{name}' added successfully.");
    models.add_adapter([name, path], body.base_model_name).await?;
    Ok(success)
}

/// Handles `POST /v1/unload_lora_adapter`.
pub async fn unload(State(api): State<Api>, Body(body): Body<UnloadBody>) -> Result<String, ApiError> {
    let name = not_empty(body.lora_name, "lora_name")?;
    api.served()?.remove_adapter(&name).await?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
