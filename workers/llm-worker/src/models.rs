//! The models that a worker serves: one that is loaded at start, or several that are loaded on demand.
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::StatusCode;
use llm_engine::engine::{Hold, ModelSlot, ModelSlots, ModelState};
use llm_engine::model::files::{GgufPart, gguf_stem};
use model_thread::error_summary;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, oneshot};
pub use worker_core::ModelLocation;
use worker_core::api::{model_not_found, model_required, model_status};
use worker_core::device::OpenDevice;
use worker_core::{ApiError, LoadedModel, ModelEntry, ModelName, blocking};

use crate::api::failure;
use crate::lora_modules::LoraModule;
use crate::served::ServedModel;

/// Field of a request that names the model of an adapter.
const BASE: &str = "base_model_name";

/// Function that loads a model into a slot. It blocks.
pub type LoadModel = dyn Fn(ModelSlot) -> Result<ServedModel> + Send + Sync;

/// A model that is loaded on demand.
pub struct ModelOnDemand {
    /// Its names in the API.
    pub name: ModelName,
    /// Adapters that are loaded with it.
    pub adapters: Vec<LoraModule>,
    /// Loads it.
    pub load: Arc<LoadModel>,
}

/// Returns the models in a folder by name: its GGUF files, and its subfolders that contain `config.json` or a GGUF
/// file, of which the first by name is used. Of a model that is divided into several GGUF files, only the first file is
/// listed.
///
/// # Errors
/// Returns an error if the folder cannot be read or contains no model.
pub fn models_in(folder: &Path) -> Result<Vec<ModelLocation>> {
    let paths = |folder: &Path| -> Result<Vec<_>> {
        let entries =
            folder.read_dir().with_context(|| format!("cannot read the folder {}", folder.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let mut models = Vec::new();
    for path in paths(folder)? {
        let model = match path.is_dir() {
            true if path.join("config.json").exists() => path.clone(),
            true => match paths(&path).map(|paths| paths.into_iter().find(|file| is_gguf(file))) {
                Ok(Some(file)) => file,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!("{error:#}");
                    continue;
                }
            },
            false if is_gguf(&path) => path.clone(),
            false => continue,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = gguf_stem(&name).unwrap_or(&name).to_owned();
        models.push(ModelLocation { name, model: model.to_string_lossy().into_owned() });
    }
    ensure!(
        !models.is_empty(),
        "the folder {} contains no model; add GGUF files, or subfolders with config.json",
        folder.display()
    );
    Ok(models)
}

/// Returns true for a GGUF file of a language model that is whole or the first of several.
fn is_gguf(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Files named mmproj contain encoders of images.
    let is_first = GgufPart::parse(&name).is_none_or(|part| part.number == 1);
    is_first && gguf_stem(&name).is_some() && !name.to_lowercase().contains("mmproj")
}

/// A loaded model for the handler of one request.
pub struct ModelLease {
    served: Arc<ServedModel>,
    /// Keeps a model that was loaded for this request in memory.
    _hold: Option<Hold>,
}

impl ModelLease {
    /// Returns the model, which may be unloaded after the request was queued.
    pub fn queued(self) -> Arc<ServedModel> {
        self.served
    }
}

impl Deref for ModelLease {
    type Target = Arc<ServedModel>;

    fn deref(&self) -> &Arc<ServedModel> {
        &self.served
    }
}

/// A model and its state.
struct Model {
    name: ModelName,
    /// Its adapters until it is loaded.
    adapters: Vec<LoraModule>,
    /// `None` if it was loaded at start.
    load: Option<Arc<LoadModel>>,
    /// Handle to the model; set when the model is first loaded.
    served: OnceCell<Arc<ServedModel>>,
    /// True while it is loaded for the first time.
    is_loading: AtomicBool,
}

impl Model {
    fn state(&self) -> ModelState {
        match self.served.get() {
            Some(served) => served.engine.status().model,
            None if self.is_loading.load(Relaxed) => ModelState::Loading,
            None => ModelState::Unloaded,
        }
    }

    /// Returns true if it, or an adapter of it, has this name.
    fn has(&self, name: &str) -> bool {
        let has_adapter = match self.served.get() {
            Some(served) => served.adapters.has(name),
            None => self.adapters.iter().any(|adapter| adapter.name == name),
        };
        has_adapter || self.name.has(name)
    }

    /// Returns the names of its adapters before it is loaded, and their fields in `GET /v1/models`.
    fn cards(&self) -> Vec<(String, Value)> {
        let card = |LoraModule { name, path, base_model_name }: &LoraModule| {
            let parent = base_model_name.as_deref().unwrap_or(self.name.as_str());
            (name.clone(), json!({ "root": path, "parent": parent }))
        };
        self.adapters.iter().map(card).collect()
    }

    /// Loads the model for the first time, in a slot of `slots`.
    async fn load(&self, slots: &ModelSlots) -> Result<Arc<ServedModel>> {
        let load = self.load.clone().context("the model is not loaded")?;
        let (sender, granted) = oneshot::channel();
        // A slot that nobody receives is released.
        slots.request(move |slot| drop(sender.send(slot)));
        let slot = granted.await.context("the worker is shutting down")?;
        self.is_loading.store(true, Relaxed);
        let loaded = tokio::task::spawn_blocking(move || load(slot)).await;
        self.is_loading.store(false, Relaxed);
        Ok(Arc::new(loaded.context("loading panicked")??))
    }
}

/// State of the handlers: the models, once the worker serves them.
pub type Api = worker_core::Api<ServedModels>;

/// The models that a worker serves.
pub struct ServedModels {
    models: Vec<Arc<Model>>,
    device: OpenDevice,
    /// Slots of models that are loaded on demand; `None` if there is one model, which is loaded.
    slots: Option<ModelSlots>,
    /// Locked while a client loads an adapter, so that two have no common name.
    adding: tokio::sync::Mutex<()>,
    /// If true, clients may load and unload adapters.
    allows_adapter_updates: bool,
}

impl ServedModels {
    /// Serves a loaded model.
    pub fn one(served: ServedModel) -> Self {
        let (name, device) = (served.name.clone(), served.device.clone());
        let served = OnceCell::new_with(Some(Arc::new(served)));
        let (adapters, load, is_loading) = (Vec::new(), None, AtomicBool::new(false));
        let model = Model { name, adapters, load, served, is_loading };
        Self::new(vec![Arc::new(model)], None, device)
    }

    /// Serves models with different names, at least one, which are loaded on `device` when they are first requested. At most
    /// `max_loaded` are loaded at once.
    pub fn on_demand(models: Vec<ModelOnDemand>, max_loaded: usize, device: OpenDevice) -> Self {
        let entry = |ModelOnDemand { name, adapters, load }| {
            let (load, served, is_loading) = (Some(load), OnceCell::new(), AtomicBool::new(false));
            Arc::new(Model { name, adapters, load, served, is_loading })
        };
        let (models, slots) = (models.into_iter().map(entry).collect(), Some(ModelSlots::new(max_loaded)));
        Self::new(models, slots, device)
    }

    fn new(models: Vec<Arc<Model>>, slots: Option<ModelSlots>, device: OpenDevice) -> Self {
        Self { models, device, slots, adding: tokio::sync::Mutex::default(), allows_adapter_updates: false }
    }

    /// Sets whether clients may load and unload adapters.
    pub fn with_adapter_updates(self, allowed: bool) -> Self {
        Self { allows_adapter_updates: allowed, ..self }
    }

    /// Returns the model that a request names, or whose adapter it names, and loads it if necessary. A worker with one model
    /// returns it for every name; [`ServedModel::requested`] checks the name.
    ///
    /// # Errors
    /// With several models: 400 if the request names none, 404 if the name is unknown, 503 if the model cannot be loaded.
    pub async fn model(&self, name: Option<&str>) -> Result<ModelLease, ApiError> {
        let model = match &self.slots {
            Some(_) => self.find(name)?,
            None => &self.models[0],
        };
        if let Some(served) = model.served.get() {
            return Ok(ModelLease { served: served.clone(), _hold: None });
        }
        let Some(slots) = &self.slots else {
            return Err(ApiError::internal("the model is not loaded"));
        };
        let (model, slots) = (model.clone(), slots.clone());
        // Loading continues if the client disconnects.
        let loading = tokio::spawn(async move {
            let loaded = model.served.get_or_try_init(|| model.load(&slots)).await;
            let hold = |served: &Arc<ServedModel>| {
                let hold = Some(served.engine.hold());
                served.engine.allow_claims();
                ModelLease { served: served.clone(), _hold: hold }
            };
            loaded.map(hold).map_err(|error| {
                let name = model.name.as_str();
                tracing::error!(model = name, code = "load_failed", "{error:#}");
                format!("cannot load the model {name:?}: {}", error_summary(&error))
            })
        });
        match loading.await {
            Ok(loaded) => loaded.map_err(|message| failure::engine_error("load_failed", message)),
            Err(_) => Err(failure::worker_stopped()),
        }
    }

    fn find(&self, name: Option<&str>) -> Result<&Arc<Model>, ApiError> {
        let Some(name) = name else { return Err(model_required("model", &self.names())) };
        let found = self.models.iter().find(|model| model.has(name));
        found.ok_or_else(|| model_not_found(name, &self.names()))
    }

    /// Loads the adapter `name` at `path` for a client. `base` is the name of its model, which is required if there are
    /// several.
    ///
    /// # Errors
    /// 403 if clients may not load adapters; then no model is loaded. See also [`Self::model`] and
    /// [`Adapters::add_for_client`](crate::adapters::Adapters::add_for_client).
    pub async fn add_adapter(&self, [name, path]: [String; 2], base: Option<String>) -> Result<(), ApiError> {
        self.check_adapter_updates()?;
        if self.slots.is_some() && base.is_none() {
            return Err(model_required(BASE, &self.names()));
        }
        let of_base = |error: ApiError| error.with_param(BASE);
        let served = self.model(base.as_deref()).await.map_err(of_base)?;
        served.name.check(base.as_deref()).map_err(of_base)?;
        let _adding = self.adding.lock().await;
        if self.models.len() > 1 && self.models.iter().any(|model| model.has(&name)) {
            let why =
                format!("a model named {name:?} is served already; choose another name or unload it first");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", why).with_param("lora_name"));
        }
        blocking(move || {
            let parent = base.as_deref().unwrap_or(served.name.as_str());
            served.adapters.add_for_client(&served.engine, &served.name, [&name, &path, parent])
        })
        .await
    }

    /// Unloads the adapter `name`. Requests that use it continue.
    ///
    /// # Errors
    /// 403 if clients may not unload adapters; then no model is loaded. See also [`Self::model`] and
    /// [`Adapters::remove_for_client`](crate::adapters::Adapters::remove_for_client).
    pub async fn remove_adapter(&self, name: &str) -> Result<(), ApiError> {
        self.check_adapter_updates()?;
        let served = self.model(Some(name)).await.map_err(|error| error.with_param("lora_name"))?;
        served.adapters.remove_for_client(&served.engine, name)
    }

    fn check_adapter_updates(&self) -> Result<(), ApiError> {
        if self.allows_adapter_updates {
            return Ok(());
        }
        let message =
            "clients may not load or unload adapters; start the worker with --allow-runtime-lora-updating";
        Err(ApiError::new(StatusCode::FORBIDDEN, "adapter_updates_disabled", message))
    }

    /// Returns the models that have been loaded.
    pub fn loaded(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.iter().filter_map(|model| model.served.get())
    }
}

impl LoadedModel for ServedModels {
    fn names(&self) -> Vec<String> {
        self.models.iter().map(|model| model.name.as_str().to_owned()).collect()
    }

    fn entries(&self) -> Vec<ModelEntry> {
        let entries = |model: &Arc<Model>| {
            let mut entries = match model.served.get() {
                Some(served) => served.name.entries(&served.card(), served.adapters.cards()),
                None => model.name.entries(&json!({}), model.cards()),
            };
            if self.slots.is_some() {
                let status = model_status(model.state());
                entries.iter_mut().for_each(|entry| entry.fields["status"] = status.clone());
            }
            entries
        };
        self.models.iter().flat_map(entries).collect()
    }

    fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        match (&self.slots, self.models[0].served.get()) {
            (None, Some(served)) => served.requested(name).map(drop),
            _ => self.find(name).map(drop),
        }
    }

    fn device(&self) -> &OpenDevice {
        &self.device
    }

    fn requests(&self) -> [usize; 2] {
        let add = |[running, waiting]: [usize; 2], served: &Arc<ServedModel>| {
            let status = served.engine.status();
            [running + status.running, waiting + status.waiting]
        };
        self.loaded().fold([0; 2], add)
    }

    fn stop_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let stop = |served: &Arc<ServedModel>| {
            served.engine.stop_within(deadline.saturating_duration_since(Instant::now()))
        };
        for served in self.loaded() {
            // Signal all engines to stop before waiting for the first.
            let _ = served.engine.stop_within(Duration::ZERO);
        }
        let stopped: Vec<bool> = self.loaded().map(stop).collect();
        !stopped.contains(&false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_a_folder_have_the_names_of_files_and_subfolders() {
        let folder = tempfile::tempdir().unwrap();
        let error = models_in(folder.path()).unwrap_err().to_string();
        assert!(error.contains("contains no model"), "{error}");
        for path in [
            "b/config.json",
            "c/weights-00001-of-00002.gguf",
            "c/weights-00002-of-00002.gguf",
            "c/mmproj-f16.gguf",
            "empty/readme.md",
            "a.gguf",
            "mmproj-a.gguf",
            "a-mmproj-F16.gguf",
            "e-00001-of-00003.gguf",
            "e-00002-of-00003.gguf",
            "notes.txt",
        ] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = models_in(folder.path()).unwrap();
        let found: Vec<_> =
            found.iter().map(|model| (model.name.as_str(), Path::new(&model.model))).collect();
        let at = |path: &str| folder.path().join(path);
        let expected = [
            ("a", at("a.gguf")),
            ("b", at("b")),
            ("c", at("c/weights-00001-of-00002.gguf")),
            ("e", at("e-00001-of-00003.gguf")),
        ];
        assert_eq!(found, expected.each_ref().map(|(name, path)| (*name, path.as_path())));
        let error = models_in(&at("missing")).unwrap_err().to_string();
        assert!(error.contains("cannot read the folder"), "{error}");
    }
}
