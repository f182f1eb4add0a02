//! State shared by the handlers of all workers: the model, once loaded, and its routes under `/v1/models`.

use crate::device::OpenDevice;
use crate::error::ApiError;
use crate::lifecycle::Lifecycle;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use model_thread::ModelState;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Retry interval sent to clients while the model is loading.
const LOADING: Duration = Duration::from_secs(5);

/// An entry of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEntry {
    /// Name.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// JSON object with further fields.
    pub fields: Value,
}

/// Returns the field `status` of an entry of `GET /v1/models`, as in llama.cpp.
pub fn model_status(state: ModelState) -> Value {
    json!({ "value": state.name() })
}

/// Returns the error of a request that names none of several models.
pub fn model_required(field: &str, known: &[String]) -> ApiError {
    let why = format!("is required, because this worker serves several models: {}", known.join(", "));
    ApiError::field(field, why)
}

/// Returns the error of a request for an unknown model.
pub fn model_not_found(name: &str, known: &[String]) -> ApiError {
    let message = format!("model {name:?} not found; this worker serves {}", known.join(", "));
    ApiError::not_found(message).with_code("model_not_found").with_param("model")
}

/// The loaded models of a worker, which accept requests.
pub trait LoadedModel: Send + Sync + 'static {
    /// Returns the names in responses, at least one.
    fn names(&self) -> Vec<String>;

    /// Returns the entries of `GET /v1/models`, at least one.
    fn entries(&self) -> Vec<ModelEntry>;

    /// Checks the model name of a request, if there is one.
    ///
    /// # Errors
    /// 404 if the name is unknown.
    fn check_name(&self, name: Option<&str>) -> Result<(), ApiError>;

    /// Returns the device that it runs on.
    fn device(&self) -> &OpenDevice;

    /// Returns the number of running and of waiting requests.
    fn requests(&self) -> [usize; 2];

    /// Stops its threads and waits for them, at most for `limit`. Returns false if one is still running.
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

    /// Returns the entries of `GET /v1/models`: one with the fields `card` for each name, and one for each of the `variants`,
    /// such as models with adapters, whose fields are added.
    pub fn entries(&self, card: &Value, variants: Vec<(String, Value)>) -> Vec<ModelEntry> {
        let named = |id: &String| ModelEntry { id: id.clone(), created: self.created, fields: card.clone() };
        let variant = |(id, more): (String, Value)| {
            let mut entry = named(&id);
            if let (Value::Object(fields), Value::Object(more)) = (&mut entry.fields, more) {
                fields.extend(more);
            }
            entry
        };
        self.names.iter().map(named).chain(variants.into_iter().map(variant)).collect()
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

/// Returns the JSON of an entry of `GET /v1/models`. Its fields may replace `created`.
fn entry_json(entry: ModelEntry, owner: &str) -> Value {
    let mut model = json!({ "id": entry.id, "object": "model", "created": entry.created, "owned_by": owner });
    if let (Value::Object(model), Value::Object(fields)) = (&mut model, entry.fields) {
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
    // Entries may list folders.
    let entries = blocking(move || Ok(served.entries())).await?.into_iter();
    let models: Vec<Value> = entries.map(|entry| entry_json(entry, owner)).collect();
    Ok(Json(json!({ "object": "list", "data": models })))
}

async fn one<S: LoadedModel>(
    State((api, owner)): Models<S>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?;
    let listed = served.clone();
    let mut entries = blocking(move || Ok(listed.entries())).await?;
    let index = match entries.iter().position(|entry| entry.id == name) {
        Some(index) => index,
        // An alias refers to the first name.
        None => served.check_name(Some(&name)).map(|()| 0)?,
    };
    Ok(Json(entry_json(entries.swap_remove(index), owner)))
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
