//! The models that a worker serves: one that is loaded at start, or several that are loaded on demand.
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::Device;
use model_thread::{ModelState, catch_panic, error_summary, is_out_of_memory};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use worker_core::api::{model_not_found, model_required, model_status};
use worker_core::device::{self, OpenDevice};
use worker_core::{ApiError, Client, LoadedModel, ModelEntry, ModelLocation, ModelName};

use crate::controlnets::ControlNetFolder;
use crate::loras::LoraFolder;
use crate::model::{ACTIVATION_BYTES, RequiredBytes, TOO_LARGE};
use crate::pipeline::Pipeline;
use crate::queue::{Failure, Generators, ImageGenerator, Queue, QueuePlace, computes};
use crate::safetensors_folder::has_ending;
use crate::served::{ModelInfo, ServedModel, decoders, submit_error, wait_for_images};

/// Endings of the files of models.
const ENDINGS: [&str; 2] = ["safetensors", "gguf"];

/// Returns the models in a folder by name: its safetensors and GGUF files, without their endings, and its subfolders with
/// `model_index.json`.
///
/// # Errors
/// Returns an error if the folder cannot be read or contains no model.
pub fn models_in(folder: &Path) -> Result<Vec<ModelLocation>> {
    let cannot = || format!("cannot read the folder {}", folder.display());
    let entries = folder.read_dir().with_context(cannot)?;
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>().with_context(cannot)?;
    paths.sort();
    let mut models = Vec::new();
    for path in paths {
        let name = match path.is_dir() {
            true if path.join("model_index.json").exists() => path.file_name(),
            false if has_ending(&path, &ENDINGS) => path.file_stem(),
            _ => continue,
        };
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        models.push(ModelLocation { name, model: path.to_string_lossy().into_owned() });
    }
    ensure!(
        !models.is_empty(),
        "the folder {} contains no model; add .safetensors or GGUF files, or subfolders with model_index.json",
        folder.display()
    );
    Ok(models)
}

/// Description and state of a model that is loaded on demand, which handlers and the generator thread share.
#[derive(Default)]
pub struct OnDemand {
    /// Description of the model; set when the model is first loaded.
    info: OnceLock<ModelInfo>,
    /// State of the weights; `None` stands for unloaded.
    state: Mutex<Option<ModelState>>,
}

impl OnDemand {
    fn state(&self) -> ModelState {
        self.state.lock().unwrap_or(ModelState::Unloaded)
    }

    fn set(&self, state: ModelState) {
        *self.state.lock() = Some(state);
    }
}

/// Loading of models on demand.
pub trait LoadModel: Send {
    /// Returns the number of bytes that the weights of a model will need on the device.
    ///
    /// # Errors
    /// A file is missing or invalid.
    fn required_bytes(&self, location: &ModelLocation) -> Result<RequiredBytes>;

    /// Returns the number of bytes that are free for weights on the device, if that is known.
    ///
    /// # Errors
    /// The device fails.
    fn available_bytes(&self) -> Result<Option<usize>>;

    /// Loads a model. Decoded copies of the size of `--decoded-memory` leave `reserved` bytes free.
    ///
    /// # Errors
    /// A file is missing or invalid, or the device is out of memory.
    fn load(&self, location: &ModelLocation, reserved: usize) -> Result<(Pipeline, ModelInfo)>;
}

/// A model of [`PipelinePool`].
struct PooledModel {
    location: ModelLocation,
    shared: Arc<OnDemand>,
    pipeline: Option<Pipeline>,
    /// Size of the weights in bytes; 0 until the model is first loaded.
    bytes: usize,
    /// Counter value at the last use. The model with the lowest value is unloaded first.
    used: u64,
}

/// Pipelines of several models, which the generator thread owns. The least recently used model is unloaded if the
/// pool is full or memory is needed for another.
pub struct PipelinePool {
    models: Vec<PooledModel>,
    max_loaded: usize,
    device: Device,
    loader: Box<dyn LoadModel>,
    uses: u64,
}

impl PipelinePool {
    /// Creates a pool of models that `loader` loads, at most `max_loaded` at once.
    pub fn new(
        models: &[ModelLocation],
        max_loaded: usize,
        device: Device,
        loader: Box<dyn LoadModel>,
    ) -> Self {
        let pooled = |location: &ModelLocation| PooledModel {
            location: location.clone(),
            shared: Arc::default(),
            pipeline: None,
            bytes: 0,
            used: 0,
        };
        Self { models: models.iter().map(pooled).collect(), max_loaded, device, loader, uses: 0 }
    }

    /// Unloads the least recently used model except `kept`. Returns false if no other is loaded.
    fn unload_one(&mut self, kept: usize) -> bool {
        let models = self.models.iter_mut().enumerate();
        let loaded = models.filter(|(index, model)| *index != kept && model.pipeline.is_some());
        let Some((_, model)) = loaded.min_by_key(|(_, model)| model.used) else { return false };
        model.pipeline = None;
        model.shared.set(ModelState::Unloaded);
        tracing::info!(model = model.location.name, "unloaded");
        if let Err(error) = device::release_memory(&self.device) {
            tracing::warn!("cannot return the memory of the unloaded model to the system: {error}");
        }
        true
    }

    fn loaded(&self) -> impl Iterator<Item = (&PooledModel, &Pipeline)> {
        self.models.iter().filter_map(|model| Some((model, model.pipeline.as_ref()?)))
    }

    /// Checks that a model fits after all others are unloaded, so that a model that is too large unloads none. Returns the
    /// number of bytes that it will use.
    fn plan_memory(&self, required: RequiredBytes) -> Result<usize> {
        let RequiredBytes { resident, least } = required;
        if self.loader.available_bytes()?.is_none_or(|free| resident.saturating_add(ACTIVATION_BYTES) <= free)
        {
            return Ok(resident);
        }
        // Memory that is not for weights of models is not in the sum of their sizes.
        for (_, pipeline) in self.loaded() {
            pipeline.model.select_controlnets(&[], &|| Ok(()))?;
        }
        device::release_memory(&self.device)?;
        let loaded = self.loaded().map(|(model, _)| model.bytes).sum::<usize>();
        let Some(free) = self.loader.available_bytes()? else { return Ok(resident) };
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        ensure!(
            least <= free.saturating_add(loaded),
            "the weights of the model need {} MiB, but the device has {} MiB free and {} MiB in use by other models; {TOO_LARGE}",
            mib(least),
            mib(free),
            mib(loaded)
        );
        Ok(required.planned(Some(free.saturating_add(loaded))))
    }

    /// Returns the part of the free memory that belongs to models that may be loaded after the next one.
    fn reserved_bytes(&self) -> Result<usize> {
        let free = self.loader.available_bytes()?.unwrap_or_default();
        let parts = self.max_loaded.min(self.models.len()).saturating_sub(self.loaded().count()).max(1);
        Ok(free - free / parts)
    }

    /// Loads a model. If the pool is full or memory does not suffice, other models are unloaded first.
    fn load(&mut self, index: usize) -> Result<(Pipeline, ModelInfo)> {
        let location = self.models[index].location.clone();
        // Check first, so that a model that cannot be read or is too large does not cause others to be unloaded.
        let needed = self.plan_memory(self.loader.required_bytes(&location)?)?;
        while self.loaded().count() >= self.max_loaded && self.unload_one(index) {}
        let wanted = needed.saturating_add(ACTIVATION_BYTES);
        while self.loader.available_bytes()?.is_some_and(|free| free < wanted) && self.unload_one(index) {}
        tracing::info!(model = location.name, bytes = needed, "loading");
        let (pipeline, info) = match self.loader.load(&location, self.reserved_bytes()?) {
            Err(error) if is_memory_error(&error) && self.unload_others(index) => {
                self.loader.load(&location, self.reserved_bytes()?)?
            }
            loaded => loaded?,
        };
        self.models[index].bytes = needed + pipeline.model.decoded_bytes;
        Ok((pipeline, info))
    }
}

/// Returns true if a model could not be loaded because the device or the host ran out of memory.
fn is_memory_error(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(crate::Error::Device(error)) if is_out_of_memory(error))
}

impl Generators for PipelinePool {
    fn select(&mut self, index: usize) -> Result<&mut dyn ImageGenerator, Failure> {
        let unknown = || Failure::new("internal_error", format!("there is no model {index}"));
        let model = self.models.get(index).ok_or_else(unknown)?;
        if model.pipeline.is_none() {
            let (shared, name) = (model.shared.clone(), model.location.name.clone());
            shared.set(ModelState::Loading);
            let loaded = catch_panic(|| self.load(index));
            let loaded = loaded.unwrap_or_else(|panic| Err(anyhow!("loading panicked: {panic}")));
            let (pipeline, info) = loaded.map_err(|error| {
                shared.set(ModelState::Unloaded);
                tracing::error!(model = name, code = "load_failed", "{error:#}");
                Failure::new(
                    "load_failed",
                    format!("cannot load the model {name:?}: {}", error_summary(&error)),
                )
            })?;
            shared.info.get_or_init(|| info);
            shared.set(ModelState::Loaded);
            self.models[index].pipeline = Some(pipeline);
        }
        self.uses += 1;
        let model = &mut self.models[index];
        model.used = self.uses;
        model.pipeline.as_mut().map(|pipeline| pipeline as &mut dyn ImageGenerator).ok_or_else(unknown)
    }

    fn unload_others(&mut self, model: usize) -> bool {
        std::iter::from_fn(|| self.unload_one(model).then_some(())).count() > 0
    }

    fn check(&mut self, _: usize) -> candle_core::Result<()> {
        computes(&self.device)
    }
}

/// A model and its state.
struct Model {
    name: ModelName,
    /// Path, or name on the Hub.
    path: String,
    /// `None` for a model that is loaded at start.
    on_demand: Option<Arc<OnDemand>>,
    /// Handle to the model; set when the model is first loaded.
    served: OnceLock<Arc<ServedModel>>,
}

/// State of the handlers: the models, once the worker serves them.
pub type Api = worker_core::Api<ServedModels>;

/// The models that a worker serves.
pub struct ServedModels {
    models: Vec<Model>,
    queue: Queue,
    device: OpenDevice,
    decoders: Arc<Semaphore>,
    /// Folder of LoRA files.
    pub loras: LoraFolder,
    /// Folder of ControlNets.
    pub controlnets: ControlNetFolder,
}

impl ServedModels {
    /// Serves a loaded model.
    pub fn one(served: ServedModel) -> Self {
        let (queue, device, decoders) =
            (served.queue.clone(), served.device.clone(), served.decoders.clone());
        let (loras, controlnets) = (served.info.loras.clone(), served.info.controlnets.clone());
        let (name, path) = (served.name.clone(), served.name.as_str().to_owned());
        let served = OnceLock::from(Arc::new(served));
        let models = vec![Model { name, path, on_demand: None, served }];
        Self { models, queue, device, decoders, loras, controlnets }
    }

    /// Serves the models of a pool. `start` starts the queue of their requests.
    ///
    /// # Errors
    /// Returns the error of `start`.
    pub fn several(
        pool: PipelinePool,
        device: OpenDevice,
        (loras, controlnets): (LoraFolder, ControlNetFolder),
        start: impl FnOnce(Box<dyn Generators>) -> std::io::Result<Queue>,
    ) -> std::io::Result<Self> {
        let entry = |PooledModel { location, shared, .. }: &PooledModel| Model {
            name: ModelName::new(&location.name, Vec::new()),
            path: location.model.clone(),
            on_demand: Some(shared.clone()),
            served: OnceLock::new(),
        };
        let models = pool.models.iter().map(entry).collect();
        let queue = start(Box::new(pool))?;
        Ok(Self { models, queue, device, decoders: decoders(), loras, controlnets })
    }

    /// Returns true if models are loaded on demand.
    fn is_several(&self) -> bool {
        self.models.iter().any(|model| model.on_demand.is_some())
    }

    /// Returns names and paths of the models.
    pub fn list(&self) -> Vec<(String, String)> {
        self.models.iter().map(|model| (model.name.as_str().to_owned(), model.path.clone())).collect()
    }

    /// Returns the default model for requests that name none: a loaded model if there is one, otherwise the first.
    pub fn default_name(&self) -> Option<&str> {
        let is_loaded = |model: &&Model| {
            model.on_demand.as_ref().is_none_or(|shared| shared.state() == ModelState::Loaded)
        };
        let model = self.models.iter().find(is_loaded).or(self.models.first())?;
        Some(model.name.as_str())
    }

    /// Returns a model if its description is known, or the first one without a name.
    pub fn known(&self, name: Option<&str>) -> Option<Arc<ServedModel>> {
        let model = self.models.iter().find(|model| name.is_none_or(|name| model.name.has(name)))?;
        model.served.get().cloned()
    }

    /// Checks that a request would be accepted now.
    ///
    /// # Errors
    /// 429 if the queue is full, 503 if it is closed.
    pub fn check_capacity(&self) -> Result<(), ApiError> {
        self.queue.check_capacity(None).map_err(submit_error)
    }

    /// Reserves a place in the queue for a request.
    ///
    /// # Errors
    /// 429 if the queue is full, 503 if it is closed.
    pub fn reserve(&self) -> Result<QueuePlace, ApiError> {
        self.queue.reserve().map_err(submit_error)
    }

    fn find(&self, name: Option<&str>) -> Result<(usize, &Model), ApiError> {
        if let (false, [model]) = (self.is_several(), &self.models[..]) {
            return model.name.check(name).map(|()| (0, model));
        }
        if let (None, [model]) = (name, &self.models[..]) {
            return Ok((0, model));
        }
        let Some(name) = name else { return Err(model_required("model", &self.names())) };
        let mut models = self.models.iter().enumerate();
        models.find(|(_, model)| model.name.has(name)).ok_or_else(|| model_not_found(name, &self.names()))
    }

    /// Returns the model that a request names. If its description is not known yet, the model is loaded first, and
    /// loading counts as running work of the client.
    ///
    /// # Errors
    /// With several models: 400 if the request names none although there are two or more, 404 if the name is unknown,
    /// 429 if the client is at its limit, 503 if the model cannot be loaded, and the errors of the queue.
    pub async fn model(&self, name: Option<&str>, client: &Client) -> Result<Arc<ServedModel>, ApiError> {
        match self.described(name)? {
            Some(served) => Ok(served),
            None => self.loaded(name, client).await,
        }
    }

    /// Returns the model that a request names if its description is known.
    ///
    /// # Errors
    /// 400 if the request names none of several models, 404 if the name is unknown.
    pub fn described(&self, name: Option<&str>) -> Result<Option<Arc<ServedModel>>, ApiError> {
        Ok(self.find(name)?.1.served.get().cloned())
    }

    /// Returns the name of the requested model if its weights are not in memory.
    pub fn unloaded(&self, name: Option<&str>) -> Option<String> {
        let (_, model) = self.find(name).ok()?;
        let is_unloaded = model.on_demand.as_ref().is_some_and(|shared| shared.state() != ModelState::Loaded);
        is_unloaded.then(|| model.name.as_str().to_owned())
    }

    /// Like [`Self::model`], for a request that has a place and already counts towards the limit of the client.
    ///
    /// # Errors
    /// As for [`Self::model`], except for the limit of the client.
    pub async fn described_after_load(
        &self,
        name: Option<&str>,
        place: QueuePlace,
    ) -> Result<Arc<ServedModel>, ApiError> {
        let (index, model) = self.find(name)?;
        match model.served.get() {
            Some(served) => Ok(served.at(place)),
            None => self.load(index, model, place).await,
        }
    }

    /// Like [`Self::model`], but also loads the weights if they are not in memory.
    ///
    /// # Errors
    /// As for [`Self::model`].
    pub async fn loaded(&self, name: Option<&str>, client: &Client) -> Result<Arc<ServedModel>, ApiError> {
        let (index, model) = self.find(name)?;
        match (&model.on_demand, model.served.get()) {
            (None, Some(served)) => Ok(served.clone()),
            _ => {
                let _permit = client.acquire(1, "model")?;
                self.load(index, model, self.reserve()?).await
            }
        }
    }

    /// Loads a model. Requests of the returned handle take the place of the loading.
    async fn load(
        &self,
        index: usize,
        model: &Model,
        place: QueuePlace,
    ) -> Result<Arc<ServedModel>, ApiError> {
        let job = self.queue.submit_to(index, None, Some(&place)).map_err(submit_error)?;
        wait_for_images(job, |_| ()).await?;
        let info = model.on_demand.as_ref().and_then(|shared| shared.info.get());
        let info = info.ok_or_else(|| ApiError::internal("the model has no description"))?;
        let served = model.served.get_or_init(|| {
            Arc::new(ServedModel {
                queue: self.queue.clone(),
                index,
                place: None,
                name: model.name.clone(),
                info: info.clone(),
                device: self.device.clone(),
                decoders: self.decoders.clone(),
            })
        });
        Ok(served.at(place))
    }
}

impl LoadedModel for ServedModels {
    fn names(&self) -> Vec<String> {
        self.models.iter().map(|model| model.name.as_str().to_owned()).collect()
    }

    fn entries(&self) -> Vec<ModelEntry> {
        let entries = |model: &Model| {
            let mut card = model.served.get().map_or_else(|| serde_json::json!({}), |served| served.card());
            if let Some(shared) = &model.on_demand {
                card["status"] = model_status(shared.state());
            }
            model.name.entries(&card, Vec::new())
        };
        self.models.iter().flat_map(entries).collect()
    }

    fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        self.find(name).map(drop)
    }

    fn device(&self) -> &OpenDevice {
        &self.device
    }

    fn requests(&self) -> [usize; 2] {
        let status = self.queue.status();
        [status.running, status.waiting]
    }

    fn stop_within(&self, limit: Duration) -> bool {
        self.queue.stop_within(limit)
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
        for path in ["b/model_index.json", "c.safetensors", "a.gguf", "e/config.json", "notes.txt", "f.ckpt"]
        {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = models_in(folder.path()).unwrap();
        let found: Vec<_> =
            found.iter().map(|model| (model.name.as_str(), Path::new(&model.model))).collect();
        let expected = [("a", "a.gguf"), ("b", "b"), ("c", "c.safetensors")];
        let expected = expected.map(|(name, path)| (name, folder.path().join(path)));
        assert_eq!(found, expected.each_ref().map(|(name, path)| (*name, path.as_path())));
        let error = models_in(&folder.path().join("missing")).unwrap_err().to_string();
        assert!(error.contains("cannot read the folder"), "{error}");
    }
}
