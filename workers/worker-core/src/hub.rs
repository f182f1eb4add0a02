//! Files of models that are named as on the Hub.

use anyhow::{Context, Result, anyhow, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
    /// The files of a repository at a branch, tag or commit, as they are now.
    ///
    /// # Errors
    /// Says whether the name is wrong, a token is missing (HF_TOKEN), or the Hub cannot be reached.
    fn snapshot(&self, repository: &str, revision: &str) -> Result<Snapshot> {
        let repo = |revision: &str| named(repository, revision);
        let whose = format!("{repository} at {revision}");
        let info = self.api()?.repo(repo(revision)).info().map_err(|error| explain(&error, &whose))?;
        // The commit, so that files of two never mix; the cache finds it by the revision's name, without a network too.
        let (remote, local) = (self.api()?.repo(repo(&info.sha)), self.local(repository, revision));
        local.create_ref(&info.sha).context("the cache of models cannot be written (HF_HOME)")?;
        let files = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        Ok(Snapshot { remote, local, whose, files })
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
        builder.build().context("cannot make a client of the Hub")
    }
}

/// A model's name on the Hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// Organisation and repository, with a slash between.
    pub repository: String,
    /// One file of it.
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

/// The files of one kind of model.
pub trait ModelFiles {
    /// Returns true if a name is of this kind.
    fn accepts(&self, name: &HubName) -> bool;

    /// Fetches what is missing of them, and returns the path of the model.
    ///
    /// # Errors
    /// A file is missing, broken or does not arrive.
    fn fetch(&self, name: &HubName, snapshot: &Snapshot, report: Report) -> Result<PathBuf>;

    /// The path of a model that was fetched before, if it seems to be whole; `kept` finds files.
    fn find(&self, name: &HubName, kept: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf>;
}

impl Hub {
    /// The path of a model: `model` itself if it exists, otherwise fetched from the Hub into the cache that other programs
    /// share. Where the Hub cannot be reached, what was fetched before is used.
    ///
    /// # Errors
    /// Says whether the path or the name is wrong, a token is missing (HF_TOKEN), or the Hub cannot be reached.
    pub fn model(
        &self,
        model: &str,
        revision: Option<&str>,
        files: &dyn ModelFiles,
        report: Report,
    ) -> Result<PathBuf> {
        let path = Path::new(model);
        if path.exists() {
            ensure!(revision.is_none(), "--model-ref is for models on the Hub; {model} is a path");
            return Ok(path.to_owned());
        }
        let name = HubName::parse(model).filter(|name| files.accepts(name));
        let name =
            name.with_context(|| format!("there is no {model}, and it is no name on the Hub (org/name)"))?;
        let revision = revision.unwrap_or("main");
        let error = match self.snapshot(&name.repository, revision) {
            Ok(snapshot) => return files.fetch(&name, &snapshot, report),
            Err(error) => error,
        };
        let kept = |file: &str| self.local(&name.repository, revision).get(file);
        let Some(known) = files.find(&name, &kept) else { return Err(error) };
        tracing::warn!(error = format!("{error:#}"), path = %known.display(), "using the copy fetched before");
        Ok(known)
    }
}

/// Whether a text can be a name on the Hub's: letters, digits, `-`, `_` and `.`, and no dot first.
pub fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
}

/// One commit of a repository.
#[derive(Debug)]
pub struct Snapshot {
    remote: ApiRepo,
    local: CacheRepo,
    whose: String,
    files: BTreeSet<String>,
}

impl Snapshot {
    /// Names of its files: `unet/config.json`.
    pub fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// A file's path, after it was fetched if it had to be; `note` is said behind its name.
    ///
    /// # Errors
    /// There is no such file, or it does not arrive.
    pub fn get(&self, file: &str, note: &str, report: Report) -> Result<PathBuf> {
        ensure!(self.files.contains(file), "{} has no {file}", self.whose);
        if let Some(path) = self.local.get(file) {
            return Ok(path);
        }
        let download = Download { report, what: format!("fetching {file}{note}"), size: 0, done: 0 };
        let fetched = self.remote.download_with_progress(file, download);
        fetched.map_err(|error| explain(&error, &self.whose).context(format!("fetching {file}")))
    }
}

impl Snapshot {
    /// Fetches `files`, numbered in the report.
    ///
    /// # Errors
    /// As [`Self::get`].
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

fn explain(error: &ApiError, whose: &str) -> anyhow::Error {
    let status = match error {
        ApiError::RequestError(error) => match &**error {
            ureq::Error::Status(status, _) => Some(*status),
            ureq::Error::Transport(_) => None,
        },
        _ => None,
    };
    match status {
        // The Hub says 401 of what is not there, too.
        Some(401 | 403) => {
            anyhow!("{whose} is gated, private or not there: accept its terms on the Hub, and set HF_TOKEN")
        }
        Some(404) => anyhow!("the Hub has no {whose}: check the model's name and --model-ref"),
        _ => anyhow!("{whose} cannot be fetched: {error}; give a folder where there is no network"),
    }
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
