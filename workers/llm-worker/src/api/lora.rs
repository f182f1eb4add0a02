//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`: loading of adapters, as in vLLM.
use axum::extract::State;
use worker_core::body::{Others, required};
use worker_core::{ApiError, Body, blocking, fields};

use crate::models::Api;

fields! {
    /// Body of `POST /v1/load_lora_adapter`.
    pub struct LoadBody, others: Others::Unsupported(&[&[("load_inplace", &["false"])]]) => {
        /// Name of the adapter in the API.
        lora_name: String,
        /// Folder of its files.
        lora_path: String,
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
    let served = api.served()?.model(None).await?;
    let name = not_empty(body.lora_name, "lora_name")?;
    let path = not_empty(body.lora_path, "lora_path")?;
    let success = format!("Success: LoRA adapter '{name}' added successfully.");
    blocking(move || served.adapters.add_for_client(&served.engine, &served.name, [&name, &path])).await?;
    Ok(success)
}

/// Handles `POST /v1/unload_lora_adapter`.
pub async fn unload(State(api): State<Api>, Body(body): Body<UnloadBody>) -> Result<String, ApiError> {
    let served = api.served()?.model(None).await?;
    let name = not_empty(body.lora_name, "lora_name")?;
    served.adapters.remove_for_client(&served.engine, &name)?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
