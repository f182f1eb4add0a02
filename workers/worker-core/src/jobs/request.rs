//! Fields shared by job requests of all workers.

use crate::api::LoadedModel;
use crate::error::ApiError;
use axum::Json;
use axum::http::StatusCode;
use serde_json::{Value, json};

crate::fields! {
    /// Fields that identify the target and the caller of a job.
    pub struct Target => {
        /// Identifier of the caller, for the log.
        hive_id: String,
        /// Name of the model.
        model: String,
        /// Ordinal of the device.
        device: usize,
        /// Name of the worker.
        worker_id: String,
    }
}

impl Target {
    /// Checks that the job is addressed to this worker.
    ///
    /// # Errors
    /// 400 or 404 that names the field that does not match.
    pub fn check(&self, served: &impl LoadedModel, worker_id: &str) -> Result<(), ApiError> {
        served.check_name(self.model.as_deref())?;
        if self.worker_id.as_deref().is_some_and(|meant| meant != worker_id) {
            return Err(ApiError::field("worker_id", format!("must be {worker_id:?}")));
        }
        // The CPU is device 0.
        let own = served.device().ordinal.unwrap_or(0);
        match self.device {
            Some(meant) if meant != own => {
                Err(ApiError::field("device", format!("is {meant}, but this worker runs on device {own}")))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the response of `POST /v1/jobs`, with the id of the job and the path of its event stream.
pub fn accepted(job_id: &str) -> (StatusCode, Json<Value>) {
    let sse_url = format!("/v1/jobs/{job_id}/stream");
    (StatusCode::ACCEPTED, Json(json!({ "job_id": job_id, "sse_url": sse_url })))
}
