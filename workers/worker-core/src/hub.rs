//! Download of model files from the Hugging Face Hub.

use crate::progress::Completed;
use anyhow::{Context, Result, anyhow, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const RETRIES: usize = 3;

/// Callback that receives the completed part of a download and its description.
pub type Report<'a> = &'a mut dyn FnMut(Completed, &str);

/// Source of models that are not local paths. By default the environment variables HF_ENDPOINT, HF_HOME and
/// HF_TOKEN apply, as in other Hub clients.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    /// Base URL of the Hub.
    pub endpoint: Option<String>,
    /// Cache folder.
    pub cache: Option<PathBuf>,
}

impl Hub {
    /// Resolves a branch, tag or commit of a repository and lists its files.
    ///
    /// # Errors
    /// The name is wrong, a token is required (HF_TOKEN), or the Hub is unreachable.
    fn snapshot(&self, repository: &str, revision: &str) -> Result<Snapshot> {
        let repo = |revision: &str| named(repository, revision);
        let label = format!("{repository} at {revision}");
        let info = self.api()?.repo(repo(revision)).info().map_err(|error| explain(&error, &label))?;
        // Request files by commit, so that all are of one version. The reference makes them available offline.
        let (remote, local) = (self.api()?.repo(repo(&info.sha)), self.local(repository, revision));
        local.create_ref(&info.sha).context("cannot write to the model cache (HF_HOME)")?;
        let files = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        Ok(Snapshot { remote, local, label, files })
    }

    fn local(&self, repository: &str, revision: &str) -> CacheRepo {
        let cache = self.cache.clone().map_or_else(Cache::from_env, Cache::new);
        cache.repo(named(repository, revision))
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
        builder.build().context("cannot create a client of the Hub")
    }
}

/// A model's name on the Hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// Organisation and repository, separated by a slash.
    pub repository: String,
    /// A single file of the repository.
    pub file: Option<String>,
}

impl HubName {
    /// Parses `org/name`, or `org/name/file`.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let file = match parts[..] {
            [_, _] => None,
            [_, _, file] => Some(file.to_owned()),
            _ => return None,
        };
        parts.iter().all(|part| is_name(part)).then(|| Self { repository: parts[..2].join("/"), file })
    }
}

/// Selection of the files of one kind of model.
pub trait ModelFiles {
    /// Returns true if the name can refer to a model of this kind.
    fn accepts(&self, name: &HubName) -> bool;

    /// Downloads the files that are not cached and returns the path of the model.
    ///
    /// # Errors
    /// A file does not exist, is invalid, or cannot be downloaded.
    fn fetch(&self, name: &HubName, snapshot: &Snapshot, report: Report) -> Result<PathBuf>;

    /// Returns the path of a model in the cache if it seems to be complete; `cached` looks up a file.
    fn find(&self, name: &HubName, cached: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf>;
}

impl Hub {
    /// Returns the path of a model: `model` itself if it is a path, otherwise the downloaded copy in the Hub
    /// cache. If the Hub is unreachable, a cached copy is used.
    ///
    /// # Errors
    /// The path or name is wrong, a token is required (HF_TOKEN), or the Hub is unreachable and there is no copy.
    pub fn model(
        &self,
        model: &str,
        revision: Option<&str>,
        files: &dyn ModelFiles,
        report: Report,
    ) -> Result<PathBuf> {
        let path = Path::new(model);
        if path.exists() {
            ensure!(revision.is_none(), "--model-ref requires a model on the Hub; {model} is a local path");
            return Ok(path.to_owned());
        }
        let name = HubName::parse(model).filter(|name| files.accepts(name));
        let name =
            name.with_context(|| format!("{model} does not exist, and is not a name on the Hub (org/name)"))?;
        let revision = revision.unwrap_or("main");
        let error = match self.snapshot(&name.repository, revision) {
            Ok(snapshot) => return files.fetch(&name, &snapshot, report),
            Err(error) => error,
        };
        let cached = |file: &str| self.local(&name.repository, revision).get(file);
        let Some(known) = files.find(&name, &cached) else { return Err(error) };
        tracing::warn!(error = format!("{error:#}"), path = %known.display(), "using the cached copy");
        Ok(known)
    }
}

/// Returns true if `part` is a valid name on the Hub: letters, digits, `-`, `_` and `.`, not starting with a dot.
pub fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
}

/// One commit of a repository.
#[derive(Debug)]
pub struct Snapshot {
    remote: ApiRepo,
    local: CacheRepo,
    label: String,
    files: BTreeSet<String>,
}

impl Snapshot {
    /// Returns the paths of its files, such as `unet/config.json`.
    pub fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// Downloads a file unless it is cached, and returns its path; `note` follows its name in reports.
    ///
    /// # Errors
    /// The file does not exist or cannot be downloaded.
    pub fn get(&self, file: &str, note: &str, report: Report) -> Result<PathBuf> {
        ensure!(self.files.contains(file), "{} has no file {file}; check the name", self.label);
        if let Some(path) = self.local.get(file) {
            return Ok(path);
        }
        let what = format!("fetching {file}{note}");
        let download = Download { report, what, total: 0, done: 0, resumed: None };
        let fetched = self.remote.download_with_progress(file, download);
        fetched.map_err(|error| explain(&error, &self.label).context(format!("fetching {file}")))
    }
}

impl Snapshot {
    /// Downloads `files`; reports contain the number of each file.
    ///
    /// # Errors
    /// A file does not exist or cannot be downloaded.
    pub fn get_all<'a>(&self, files: impl IntoIterator<Item = &'a String>, report: Report) -> Result<()> {
        let files: Vec<&String> = files.into_iter().collect();
        for (i, file) in files.iter().enumerate() {
            self.get(file, &format!(" ({} of {})", i + 1, files.len()), report)?;
        }
        Ok(())
    }
}

fn named(repository: &str, revision: &str) -> Repo {
    Repo::with_revision(repository.to_owned(), RepoType::Model, revision.to_owned())
}

/// State of the download of a file.
struct Download<'a> {
    report: Report<'a>,
    what: String,
    total: u64,
    done: u64,
    /// Bytes that were there before the request. The first update after [`Progress::init`] contains them.
    resumed: Option<u64>,
}

impl Progress for Download<'_> {
    fn init(&mut self, size: usize, _file: &str) {
        (self.total, self.done, self.resumed) = (size as u64, 0, None);
    }

    fn update(&mut self, bytes: usize) {
        self.done += bytes as u64;
        let resumed = *self.resumed.get_or_insert(self.done);
        let completed = Completed::Bytes { done: self.done, total: self.total, resumed };
        (self.report)(completed, &self.what);
    }

    fn finish(&mut self) {}
}

fn explain(error: &ApiError, label: &str) -> anyhow::Error {
    let status = match error {
        ApiError::RequestError(error) => match &**error {
            ureq::Error::Status(status, _) => Some(*status),
            ureq::Error::Transport(_) => None,
        },
        _ => None,
    };
    match status {
        // The Hub also returns 401 for repositories that do not exist.
        Some(401 | 403) => {
            anyhow!("{label} is gated, private or missing; accept its terms on the Hub, and set HF_TOKEN")
        }
        Some(404) => anyhow!("the Hub has no {label}; check the model's name and --model-ref"),
        _ => anyhow!("cannot download {label}: {error}; without a network, pass a local path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_hub_are_distinguished_from_paths() {
        let name = |repository: &str, file: Option<&str>| {
            Some(HubName { repository: repository.to_owned(), file: file.map(str::to_owned) })
        };
        for (text, expected) in [
            ("org/name-1.5", name("org/name-1.5", None)),
            ("org/name/model.Q4.gguf", name("org/name", Some("model.Q4.gguf"))),
            ("name", None),
            ("/models/llama", None),
            ("../name", None),
            ("org/na me", None),
            ("a/b/c/d.gguf", None),
        ] {
            assert_eq!(HubName::parse(text), expected, "{text}");
        }
    }
}
