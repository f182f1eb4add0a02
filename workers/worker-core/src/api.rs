//! State of the handlers of any worker: the model, once it is loaded, and its place in the API.

use crate::device::OpenDevice;
use crate::error::ApiError;
use crate::lifecycle::Lifecycle;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When to come again where nothing says how long loading takes.
const LOADING: Duration = Duration::from_secs(5);

/// A model that takes requests.
pub trait Served: Send + Sync + 'static {
    /// Its names.
    fn name(&self) -> &ModelName;

    /// An object with the fields of `GET /v1/models` besides name and owner.
    fn card(&self) -> Value;

    /// The device that it runs on.
    fn device(&self) -> &OpenDevice;

    /// Requests that run, and requests that wait.
    fn requests(&self) -> [usize; 2];

    /// Stops its thread, and waits for that at most for `limit`. Returns false if the thread still runs.
    fn stop_within(&self, limit: Duration) -> bool;
}

/// The names of a model.
#[derive(Clone, Debug)]
pub struct ModelName {
    name: String,
    aliases: Vec<String>,
    created: u64,
}

impl ModelName {
    /// `name` is the one that answers have; the model is also found by its `aliases`.
    pub fn new(name: impl Into<String>, aliases: Vec<String>) -> Self {
        Self { name: name.into(), aliases, created: unix_seconds() }
    }

    /// The name that answers have.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Checks that a request means this model; one without a name does.
    ///
    /// # Errors
    /// 404 for another name.
    pub fn check(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.name && !self.aliases.iter().any(|alias| alias == name) => {
                let message = format!("there is no model {name:?} here, only {:?}", self.name);
                Err(ApiError::not_found(message).with_code("model_not_found").with_param("model"))
            }
            _ => Ok(()),
        }
    }
}

/// The model `S`, once it is loaded, and the worker's state; clones share both.
#[derive(Debug)]
pub struct Api<S> {
    served: Arc<OnceLock<Arc<S>>>,
    /// The state of the worker.
    pub lifecycle: Lifecycle,
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Self {
        Self { served: self.served.clone(), lifecycle: self.lifecycle.clone() }
    }
}

impl<S> Api<S> {
    /// Without a model yet.
    pub fn new(lifecycle: Lifecycle) -> Self {
        Self { served: Arc::default(), lifecycle }
    }

    /// Sets the model; the first stays.
    pub fn serve(&self, served: S) -> &Arc<S> {
        self.served.get_or_init(|| Arc::new(served))
    }

    /// The model.
    ///
    /// # Errors
    /// 503 until it is loaded.
    pub fn served(&self) -> Result<Arc<S>, ApiError> {
        self.served.get().cloned().ok_or_else(|| {
            let refusal = self.lifecycle.state().refusal();
            let (why, after) = refusal.unwrap_or_else(|| ("the model is not loaded yet".to_owned(), LOADING));
            ApiError::unavailable(why, after).with_code("not_ready")
        })
    }
}

/// The model as `GET /v1/models` has it.
fn model(served: &impl Served, owner: &str) -> Value {
    let ModelName { name, created, .. } = served.name();
    let mut model = served.card();
    let more = [
        ("id", json!(name)),
        ("object", json!("model")),
        ("created", json!(created)),
        ("owned_by", json!(owner)),
    ];
    more.into_iter().for_each(|(field, value)| model[field] = value);
    model
}

/// The routes of `GET /v1/models`, and below it of the model by its name; `owner` is the worker's package.
pub fn models<S: Served>(api: &Api<S>, owner: &'static str) -> Router {
    let router = Router::new().route("/v1/models", get(list::<S>)).route("/v1/models/{*name}", get(one::<S>));
    router.with_state((api.clone(), owner))
}

type Models<S> = State<(Api<S>, &'static str)>;

async fn list<S: Served>(State((api, owner)): Models<S>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "object": "list", "data": [model(&*api.served()?, owner)] })))
}

async fn one<S: Served>(
    State((api, owner)): Models<S>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?;
    served.name().check(Some(&name))?;
    Ok(Json(model(&*served, owner)))
}

/// Runs work of a processor on a thread where nothing else waits for it.
///
/// # Errors
/// The errors of the work, or 500 where it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the worker has a bug here: its log says more")))
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
