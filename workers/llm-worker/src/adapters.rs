//! Adapters by name: those of `--lora-modules`, and those that clients load.
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use anyhow::{Context, Result, bail, ensure};
use llm_engine::engine::Engine;
use llm_engine::model::adapter::Adapter;
use llm_engine::request::RequestError;
use serde_json::{Value, json};
use worker_core::{ApiError, ModelName, unix_seconds};

use crate::api::failure;
use crate::lora_modules::LoraModule;

/// Model of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestedModel {
    /// Name that the response contains.
    pub name: String,
    /// Adapter, if the name is that of one.
    pub adapter: Option<Arc<Adapter>>,
}

/// A loaded adapter.
struct Entry {
    name: String,
    path: String,
    parent: String,
    created: u64,
    adapter: Arc<Adapter>,
}

/// Loaded adapters by name.
#[derive(Default)]
pub struct Adapters {
    entries: RwLock<Vec<Entry>>,
}

impl Adapters {
    /// Loads the adapters of a model whose names are `model`.
    ///
    /// # Errors
    /// Returns an error that names the adapter that cannot be loaded.
    pub fn load<'a>(
        engine: &Engine,
        model: &ModelName,
        modules: impl Iterator<Item = &'a LoraModule>,
    ) -> Result<Self> {
        let adapters = Self::default();
        for LoraModule { name, path, base_model_name } in modules {
            let named = || format!("cannot load the adapter {name:?}");
            let check = |base: &String| model.check(Some(base));
            if let Some(Err(error)) = base_model_name.as_ref().map(check) {
                bail!("{}: {}", named(), error.message());
            }
            let parent = base_model_name.as_deref().unwrap_or(model.as_str());
            adapters.add(engine, model, [name, path, parent]).with_context(named)?;
        }
        Ok(adapters)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the adapter with this name.
    pub fn get(&self, name: &str) -> Option<Arc<Adapter>> {
        self.read().iter().find(|entry| entry.name == name).map(|entry| entry.adapter.clone())
    }

    /// Returns the names of the adapters, and their fields in `GET /v1/models`.
    pub fn cards(&self) -> Vec<(String, Value)> {
        let card = |entry: &Entry| {
            let Entry { name, path, parent, created, .. } = entry;
            (name.clone(), json!({ "created": created, "root": path, "parent": parent }))
        };
        self.read().iter().map(card).collect()
    }

    /// Returns true if there is an adapter with this name.
    pub fn has(&self, name: &str) -> bool {
        self.read().iter().any(|entry| entry.name == name)
    }

    fn add(&self, engine: &Engine, model: &ModelName, [name, path, parent]: [&str; 3]) -> Result<()> {
        let check = |entries: &[Entry]| {
            let is_known = model.has(name) || entries.iter().any(|entry| entry.name == name);
            ensure!(
                !is_known,
                "a model named {name:?} is served already; choose another name or unload it first"
            );
            Ok(())
        };
        check(&self.read())?;
        let adapter = engine.load_adapter(Path::new(path))?;
        let mut entries = self.write();
        if let Err(error) = check(&entries) {
            drop(entries);
            engine.unload_adapter(adapter);
            bail!(error);
        }
        tracing::info!(name, bytes = adapter.bytes(), "adapter loaded");
        let (name, path, parent) = (name.to_owned(), path.to_owned(), parent.to_owned());
        entries.push(Entry { name, path, parent, created: unix_seconds(), adapter });
        Ok(())
    }

    /// Loads the adapter `name` of the model `parent` at `path` for a client. Blocks until it is loaded.
    ///
    /// # Errors
    /// 400 if it cannot be loaded, 503 if the engine accepts no requests.
    pub fn add_for_client(
        &self,
        engine: &Engine,
        model: &ModelName,
        [name, path, parent]: [&str; 3],
    ) -> Result<(), ApiError> {
        self.add(engine, model, [name, path, parent]).map_err(|error| match error.downcast() {
            Ok(closed @ RequestError::Closed { .. }) => {
                failure::request_error(closed, "lora_path", "lora_path")
            }
            Ok(other) => failure::rejected("lora_path", &other.into()),
            Err(error) => failure::rejected("lora_path", &error),
        })
    }

    /// Unloads the adapter `name`. Requests that use it continue.
    ///
    /// # Errors
    /// 404 if there is none of this name.
    pub fn remove_for_client(&self, engine: &Engine, name: &str) -> Result<(), ApiError> {
        let mut entries = self.write();
        let Some(place) = entries.iter().position(|entry| entry.name == name) else {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let message = format!("adapter {name:?} not found; the loaded ones are {names:?}");
            return Err(ApiError::not_found(message).with_code("model_not_found").with_param("lora_name"));
        };
        let entry = entries.remove(place);
        drop(entries);
        engine.unload_adapter(entry.adapter);
        tracing::info!(name, "adapter unloaded");
        Ok(())
    }
}
