//! Models by path or by their name on the Hub.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde_json::Value;

const INDEX: &str = "model.safetensors.index.json";
const RETRIES: usize = 3;

/// Told how far a download is, 0 to 1, and of what.
pub type Report<'a> = &'a mut dyn FnMut(f32, &str);

/// Where models come from that are no paths. The default is what the Hub's own programs take: HF_ENDPOINT, HF_HOME and
/// HF_TOKEN of the environment.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    /// Its address.
    pub endpoint: Option<String>,
    /// The folder where models are kept.
    pub cache: Option<PathBuf>,
}

impl Hub {
    fn cache(&self) -> Cache {
        self.cache.clone().map_or_else(Cache::from_env, Cache::new)
    }

    fn api(&self) -> Result<Api> {
        let mut builder = ApiBuilder::from_env().with_progress(false).with_retries(RETRIES);
        if let Some(token) = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty()) {
            builder = builder.with_token(Some(token));
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if let Some(folder) = &self.cache {
            builder = builder.with_cache_dir(folder.clone());
        }
        builder.build().context("cannot make a client of the Hub")
    }
}

/// The folder or file of a model: itself if it is a path, else fetched from the Hub (org/name, or org/name/file.gguf) into
/// the cache that other programs share.
///
/// # Errors
/// Says whether the path or the name is wrong, a token is missing (HF_TOKEN), or the Hub cannot be reached.
pub fn model(hub: &Hub, model: &str, revision: Option<&str>, report: Report) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        ensure!(revision.is_none(), "--model-ref is for models on the Hub; {model} is a path");
        return Ok(path.to_owned());
    }
    let name = HubName::parse(model)
        .with_context(|| format!("there is no {model}, and it is no name on the Hub (org/name)"))?;
    fetch(hub, &name, revision.unwrap_or("main"), report)
}

/// A name on the Hub.
#[derive(Debug, PartialEq, Eq)]
struct HubName {
    repository: String,
    /// One GGUF file of it.
    file: Option<String>,
}

impl HubName {
    fn parse(text: &str) -> Option<Self> {
        let plain = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
        };
        let parts: Vec<&str> = text.split('/').collect();
        let file = match parts[..] {
            [_, _] => None,
            [_, _, file] if file.ends_with(".gguf") => Some(file.to_owned()),
            _ => return None,
        };
        parts.iter().all(|part| plain(part)).then(|| Self { repository: parts[..2].join("/"), file })
    }
}

fn fetch(hub: &Hub, name: &HubName, revision: &str, report: Report) -> Result<PathBuf> {
    let (api, cache) = (hub.api()?, hub.cache());
    let repository =
        |revision: &str| Repo::with_revision(name.repository.clone(), RepoType::Model, revision.to_owned());
    let info = match api.repo(repository(revision)).info() {
        Ok(info) => info,
        Err(error) => {
            let Some(known) = known(&cache.repo(repository(revision)), name) else {
                return Err(explain(error, name, revision));
            };
            tracing::warn!(%error, path = %known.display(), "the Hub is out of reach; what was fetched before is used");
            return Ok(known);
        }
    };
    // The commit, so that files of two never mix; the cache finds it by the revision's name, without a network too.
    let (remote, local) = (api.repo(repository(&info.sha)), cache.repo(repository(revision)));
    local.create_ref(&info.sha).context("the cache of models cannot be written (HF_HOME)")?;
    let mut source = Source { remote, local, report, name, revision };
    let files: BTreeSet<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    match &name.file {
        Some(file) => {
            ensure!(files.contains(file), "{} at {revision} has no {file}", name.repository);
            source.get(file, "")
        }
        None => source.folder(&files),
    }
}

/// A model that was fetched before, if its weights seem to be there.
fn known(cache: &CacheRepo, name: &HubName) -> Option<PathBuf> {
    match &name.file {
        Some(file) => cache.get(file),
        None => {
            cache.get(INDEX).or_else(|| cache.get("model.safetensors"))?;
            Some(cache.get("config.json")?.parent()?.to_owned())
        }
    }
}

struct Source<'a> {
    remote: ApiRepo,
    local: CacheRepo,
    report: Report<'a>,
    name: &'a HubName,
    revision: &'a str,
}

impl Source<'_> {
    /// The configuration, the tokenizer and the weights: those of the index, or all safetensors.
    fn folder(&mut self, files: &BTreeSet<String>) -> Result<PathBuf> {
        let top = || files.iter().filter(|file| !file.contains('/'));
        let small = top().filter(|file| file.ends_with(".json") || file.ends_with(".jinja"));
        for file in small.clone() {
            self.get(file, "")?;
        }
        let config = self.get("config.json", "").context("a model needs a config.json")?;
        let weights: BTreeSet<String> = match files.contains(INDEX) {
            true => named_by_index(&self.get(INDEX, "")?)?,
            false if files.contains("model.safetensors") => ["model.safetensors".to_owned()].into(),
            false => top().filter(|file| file.ends_with(".safetensors")).cloned().collect(),
        };
        ensure!(
            !weights.is_empty(),
            "{} at {} has no safetensors; of GGUF files name one: {}/FILE.gguf",
            self.name.repository,
            self.revision,
            self.name.repository
        );
        for (i, file) in weights.iter().enumerate() {
            self.get(file, &format!(" ({} of {})", i + 1, weights.len()))?;
        }
        let folder = config.parent().context("a file of the Hub's cache lies nowhere")?;
        Ok(folder.to_owned())
    }

    fn get(&mut self, file: &str, note: &str) -> Result<PathBuf> {
        if let Some(path) = self.local.get(file) {
            return Ok(path);
        }
        let what = format!("fetching {file}{note}");
        let download = Download { report: &mut *self.report, what, size: 0, done: 0 };
        let fetched = self.remote.download_with_progress(file, download);
        fetched.map_err(|error| explain(error, self.name, self.revision).context(format!("fetching {file}")))
    }
}

struct Download<'a> {
    report: Report<'a>,
    what: String,
    size: usize,
    done: usize,
}

impl Progress for Download<'_> {
    fn init(&mut self, size: usize, _file: &str) {
        (self.size, self.done) = (size, 0);
        self.update(0);
    }

    fn update(&mut self, bytes: usize) {
        self.done += bytes;
        (self.report)(self.done as f32 / self.size.max(1) as f32, &self.what);
    }

    fn finish(&mut self) {}
}

fn named_by_index(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let index: Value = serde_json::from_str(&text).with_context(|| format!("{INDEX} is no JSON"))?;
    let map = index["weight_map"].as_object().with_context(|| format!("{INDEX} has no \"weight_map\""))?;
    map.values()
        .map(|file| {
            let file = file.as_str().filter(|file| !file.contains('/'));
            Ok(file.with_context(|| format!("{INDEX} names files that are not beside it"))?.to_owned())
        })
        .collect()
}

fn explain(error: ApiError, name: &HubName, revision: &str) -> anyhow::Error {
    let repository = &name.repository;
    match status_of(&error) {
        // The Hub says 401 of what is not there, too.
        Some(401 | 403) => anyhow!(
            "{repository} is gated, private or not there: accept its terms on the Hub, and set HF_TOKEN"
        ),
        Some(404) => anyhow!("the Hub has no {repository} at {revision}: check --model and --model-ref"),
        _ => anyhow!(
            "{repository} cannot be fetched: {error}; give --model a folder where there is no network"
        ),
    }
}

/// The status that a request ended with: the client's own type is none of this crate's, but its text ends with it.
fn status_of(error: &ApiError) -> Option<u16> {
    let text = error.to_string();
    text.rsplit_once("status code ")?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_hub_are_told_from_paths() {
        let name = |repository: &str, file: Option<&str>| {
            Some(HubName { repository: repository.to_owned(), file: file.map(str::to_owned) })
        };
        for (text, expected) in [
            ("org/name-1.5", name("org/name-1.5", None)),
            ("org/name/model.Q4.gguf", name("org/name", Some("model.Q4.gguf"))),
            ("org/name/model.bin", None),
            ("name", None),
            ("/models/llama", None),
            ("../name", None),
            ("org/na me", None),
            ("a/b/c/d.gguf", None),
        ] {
            assert_eq!(HubName::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(model(&Hub::default(), path, None, &mut |_, _| ()).unwrap(), folder.path());
        assert!(model(&Hub::default(), path, Some("main"), &mut |_, _| ()).is_err());
        let missing = model(&Hub::default(), "/no/such/model", None, &mut |_, _| ()).unwrap_err();
        assert!(format!("{missing:#}").contains("no name on the Hub"), "{missing:#}");
    }

    #[test]
    fn an_index_names_files_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(INDEX);
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(r#"{"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "x.safetensors"}}"#);
        assert_eq!(named_by_index(&path).unwrap().len(), 2);
        for wrong in [r#"{"weight_map": {"a": "../x"}}"#, r#"{"weight_map": {"a": 1}}"#, "{}", "["] {
            write(wrong);
            assert!(named_by_index(&path).is_err(), "{wrong}");
        }
    }
}
