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

    /// Returns the names of its variants, such as those with adapters, and their fields of `GET /v1/models`.
    fn variants(&self) -> Vec<(String, Value)> {
        Vec::new()
    }

    /// Checks that the model name of a request, if there is one, refers to this model or to one of its variants.
    ///
    /// # Errors
    /// 404 if the name is unknown.
    fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        self.name().check(name)
    }

    /// Returns the device that it runs on.
    fn device(&self) -> &OpenDevice;

    /// Returns the number of running and of waiting requests.
    fn requests(&self) -> [usize; 2];

    /// Stops its thread and waits for it, at most for `limit`. Returns false if it is still running.
    fn stop_within(&self, limit: Duration) -> bool;
}

/// Names of a model in the API.
#[derive(Clone, Debug)]
pub struct ModelName {
    /// Names in `GET /v1/models`, at least one.
    names: Vec<String>,
    aliases: Vec<String>,
    accepts_any: bool,
    created: u64,
}

impl ModelName {
    /// Creates a name. Responses contain `name`; requests may also use one of the `aliases`.
    pub fn new(name: impl Into<String>, aliases: Vec<String>) -> Self {
        Self { names: vec![name.into()], aliases, accepts_any: false, created: unix_seconds() }
    }

    /// Creates several names. Responses contain `first`; `GET /v1/models` lists all.
    pub fn several(first: impl Into<String>, others: Vec<String>) -> Self {
        let mut name = Self::new(first, Vec::new());
        name.names.extend(others);
        name
    }

    /// Sets whether requests may use any name.
    pub fn accepting_any(self, accepts_any: bool) -> Self {
        Self { accepts_any, ..self }
    }

    /// Returns the name that responses contain.
    pub fn as_str(&self) -> &str {
        &self.names[0]
    }

    /// Returns true if `name` is one of its names.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().chain(&self.aliases).any(|known| known == name)
    }

    /// Checks that the model name of a request, if there is one, refers to this model.
    ///
    /// # Errors
    /// 404 if the name is unknown.
    pub fn check(&self, name: Option<&str>) -> Result<(), ApiError> {
        let Some(name) = name.filter(|_| !self.accepts_any) else { return Ok(()) };
        if self.has(name) {
            return Ok(());
        }
        let message = format!("model {name:?} not found; this worker serves {:?}", self.as_str());
        Err(ApiError::not_found(message).with_code("model_not_found").with_param("model"))
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

/// Returns the entry of the model in `GET /v1/models` under the name `id`.
fn model(served: &impl LoadedModel, owner: &str, id: &str) -> Value {
    let mut model = served.card();
    let more = [
        ("id", json!(id)),
        ("object", json!("model")),
        ("created", json!(served.name().created)),
        ("owned_by", json!(owner)),
    ];
    more.into_iter().for_each(|(field, value)| model[field] = value);
    model
}

/// Returns the entry of a variant.
fn variant(served: &impl LoadedModel, owner: &str, id: &str, fields: Value) -> Value {
    let mut model = model(served, owner, id);
    if let (Value::Object(model), Value::Object(fields)) = (&mut model, fields) {
        model.extend(fields);
    }
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
    let served = api.served()?;
    let mut models: Vec<Value> = served.name().names.iter().map(|id| model(&*served, owner, id)).collect();
    models.extend(served.variants().into_iter().map(|(id, fields)| variant(&*served, owner, &id, fields)));
    Ok(Json(json!({ "object": "list", "data": models })))
}

async fn one<S: LoadedModel>(
    State((api, owner)): Models<S>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?;
    if let Some((id, fields)) = served.variants().into_iter().find(|(id, _)| *id == name) {
        return Ok(Json(variant(&*served, owner, &id, fields)));
    }
    served.name().check(Some(&name))?;
    let id = served
        .name()
        .names
        .iter()
        .find(|known| **known == name)
        .map_or(served.name().as_str(), String::as_str);
    Ok(Json(model(&*served, owner, id)))
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
