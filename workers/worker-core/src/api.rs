//! State shared by the handlers of all workers: the model, once loaded, and its routes under `/v1/models`.

use crate::device::OpenDevice;
use crate::error::ApiError;
use crate::lifecycle::Lifecycle;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Retry interval sent to clients while the model is loading.
const LOADING: Duration = Duration::from_secs(5);

/// A loaded model that accepts requests.
pub trait LoadedModel: Send + Sync + 'static {
    /// Returns its names.
    fn name(&self) -> &ModelName;

    /// Returns a JSON object with the fields of `GET /v1/models` that are specific to this kind of model.
    fn card(&self) -> Value;

    /// Returns the device that it runs on.
    fn device(&self) -> &OpenDevice;

    /// Returns the number of running and of waiting requests.
    fn requests(&self) -> [usize; 2];

    /// Stops its thread and waits for it, at most for `limit`. Returns false if it is still running.
    fn stop_within(&self, limit: Duration) -> bool;
}

/// Name and aliases of a model.
#[derive(Clone, Debug)]
pub struct ModelName {
    name: String,
    aliases: Vec<String>,
    created: u64,
}

impl ModelName {
    /// Creates a name. Responses contain `name`; requests may also use one of the `aliases`.
    pub fn new(name: impl Into<String>, aliases: Vec<String>) -> Self {
        Self { name: name.into(), aliases, created: unix_seconds() }
    }

    /// Returns the name that responses contain.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Checks that the model name of a request, if there is one, refers to this model.
    ///
    /// # Errors
    /// 404 if the name is unknown.
    pub fn check(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if name != self.name && !self.aliases.iter().any(|alias| alias == name) => {
                let message = format!("model {name:?} not found; this worker serves {:?}", self.name);
                Err(ApiError::not_found(message).with_code("model_not_found").with_param("model"))
            }
            _ => Ok(()),
        }
    }
}

/// Handle to the model `S`, once it is loaded, and to the worker's state. Clones share both.
#[derive(Debug)]
pub struct Api<S> {
    served: Arc<OnceLock<Arc<S>>>,
    /// State of the worker.
    pub lifecycle: Lifecycle,
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Self {
        Self { served: self.served.clone(), lifecycle: self.lifecycle.clone() }
    }
}

impl<S> Api<S> {
    /// Creates a handle without a model.
    pub fn new(lifecycle: Lifecycle) -> Self {
        Self { served: Arc::default(), lifecycle }
    }

    /// Sets the model and returns it. Later calls keep the first model.
    pub fn serve(&self, served: S) -> &Arc<S> {
        self.served.get_or_init(|| Arc::new(served))
    }

    /// Returns the model.
    ///
    /// # Errors
    /// 503 until the model is loaded.
    pub fn served(&self) -> Result<Arc<S>, ApiError> {
        self.served.get().cloned().ok_or_else(|| {
            let refusal = self.lifecycle.state().refusal();
            let (why, after) = refusal.unwrap_or_else(|| ("the model is not loaded yet".to_owned(), LOADING));
            ApiError::unavailable(why, after).with_code("not_ready")
        })
    }
}

/// Returns the entry of the model in `GET /v1/models`.
fn model(served: &impl LoadedModel, owner: &str) -> Value {
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

/// Returns the routes `GET /v1/models` and `GET /v1/models/{name}`, also without `/v1`; `owner` is the name of the
/// worker's package.
pub fn models<S: LoadedModel>(api: &Api<S>, owner: &'static str) -> Router {
    let routes = |router: Router<_>, prefix: &str| {
        let router = router.route(&format!("{prefix}/models"), get(list::<S>));
        router.route(&format!("{prefix}/models/{{*name}}"), get(one::<S>))
    };
    let router = ["/v1", ""].into_iter().fold(Router::new(), routes);
    router.with_state((api.clone(), owner))
}

type Models<S> = State<(Api<S>, &'static str)>;

async fn list<S: LoadedModel>(State((api, owner)): Models<S>) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "object": "list", "data": [model(&*api.served()?, owner)] })))
}

async fn one<S: LoadedModel>(
    State((api, owner)): Models<S>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?;
    served.name().check(Some(&name))?;
    Ok(Json(model(&*served, owner)))
}

/// Runs CPU-bound work on the blocking thread pool, so that it does not delay other requests.
///
/// # Errors
/// Returns the error of `work`, or 500 if it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("internal error in the worker; see its log")))
}

/// Returns the current Unix time in seconds.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
