//! Rewrites a whole crate: reads upstream's `src/`, applies the general and the special rules, and writes the result.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::rename::{names_cuda, names_rocm, to_rocm};
use crate::rules::{CrateRules, EVERY_FILE, Edit, Rule};
use crate::twins::{Site, TwinError, add_twins};

/// Form of the rewritten crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `lib.rs` is included with `include!` from a build script's `OUT_DIR`.
    Included,
    /// A plain crate, for reading, debugging or contributing upstream.
    Plain,
}

/// A site and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSite {
    /// Path of the file below upstream's `src/`.
    pub file: String,
    /// The site in the file.
    pub site: Site,
}

/// A rewritten crate in memory.
#[derive(Debug)]
pub struct Tree {
    /// Texts by path below `src/`, with `/` as separator.
    pub files: BTreeMap<String, String>,
    /// All places changed by rules.
    pub sites: Vec<FileSite>,
    /// Mentions of CUDA without a twin.
    pub left: Vec<FileSite>,
}

/// Error of rewriting a crate.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum TreeError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{name} {version}, {file}: {source}")]
    Twin { name: String, version: String, file: String, source: TwinError },
    #[error(
        "rule `{rule}` of {name} must match {expect} times in {file} but matched {found} times in version \
         {version}: upstream changed; update the rule"
    )]
    Count { rule: String, name: String, file: String, version: String, expect: usize, found: usize },
    #[error("{name} {version} names CUDA in {found} places without a rule, expected {expect}:\n{places}")]
    Left { name: String, version: String, expect: usize, found: usize, places: String },
    #[error("{name} {version}, {file}: names ROCm already, so its twins would be duplicates")]
    NamesRocm { name: String, version: String, file: String },
    #[error("{name} {version}: lib.rs starts with an inner attribute, which an included file must not have")]
    InnerAttribute { name: String, version: String },
}

impl Tree {
    /// Rewrites the crate in the folder `upstream`, which contains `Cargo.toml` and `src/`.
    ///
    /// `version` is used only in error messages.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or a rule does not match the expected number of times.
    pub fn rewrite(
        rules: &CrateRules,
        upstream: &Path,
        version: &str,
        form: Form,
    ) -> Result<Self, TreeError> {
        let src = upstream.join("src");
        let mut files = BTreeMap::new();
        read_files(&src, &src, &mut files)?;
        Self::rewrite_files(rules, files, version, form)
    }

    /// Like [`Tree::rewrite`], for files in memory.
    pub fn rewrite_files(
        rules: &CrateRules,
        files: BTreeMap<String, String>,
        version: &str,
        form: Form,
    ) -> Result<Self, TreeError> {
        let mut tree = Self { files, sites: Vec::new(), left: Vec::new() };
        tree.general_rule(rules, version)?;
        tree.special_rules(rules, rules.rules, version)?;
        for list in rules.mending_rules {
            tree.special_rules(rules, list, version)?;
        }
        match form {
            Form::Included => {
                tree.special_rules(rules, rules.included_rules, version)?;
                tree.strip_inner_docs(rules, version)?;
            }
            Form::Plain => {
                if let Some(text) = tree.files.get_mut("lib.rs") {
                    for module in rules.own_modules {
                        let visibility = if module.public { "pub " } else { "" };
                        let feature = if module.rocm_only { "#[cfg(feature = \"rocm\")]\n" } else { "" };
                        text.push_str(&format!("\n{feature}{visibility}mod {};\n", module.name));
                    }
                }
            }
        }
        Ok(tree)
    }

    fn general_rule(&mut self, rules: &CrateRules, version: &str) -> Result<(), TreeError> {
        if let Some((file, _)) = self.files.iter().find(|(_, text)| names_rocm(text)) {
            return Err(TreeError::NamesRocm {
                name: rules.name.to_owned(),
                version: version.to_owned(),
                file: file.clone(),
            });
        }
        let mut twin_files = Vec::new();
        for (file, text) in &mut self.files {
            let of_file = |rule: &&Rule| rule.file == file.as_str();
            let specials: Vec<&Rule> = rules.rules.iter().filter(of_file).collect();
            if let Some((rule, to)) = specials.iter().find_map(|rule| match rule.edit {
                Edit::TwinFile(to) => Some((rule.name, to)),
                _ => None,
            }) {
                twin_files.push((to.to_owned(), to_rocm(text)));
                let site = Site { line: 1, rule, text: format!("the whole file, as {to}") };
                self.sites.push(FileSite { file: file.clone(), site });
                continue;
            }
            let cuda_only = rules
                .cuda_only
                .iter()
                .any(|path| file.as_str() == *path || (path.ends_with('/') && file.starts_with(path)));
            if cuda_only || !names_cuda(text) {
                continue;
            }
            let twinned = add_twins(text, &specials).map_err(|source| TreeError::Twin {
                name: rules.name.to_owned(),
                version: version.to_owned(),
                file: file.clone(),
                source,
            })?;
            *text = twinned.text;
            let in_file = |site| FileSite { file: file.clone(), site };
            self.sites.extend(twinned.sites.into_iter().map(in_file));
            self.left.extend(twinned.left.into_iter().map(in_file));
        }
        self.files.extend(twin_files);
        if self.left.len() != rules.left_alone {
            let places: Vec<_> = self
                .left
                .iter()
                .map(|place| format!("  {}:{}: {}", place.file, place.site.line, place.site.text))
                .collect();
            return Err(TreeError::Left {
                name: rules.name.to_owned(),
                version: version.to_owned(),
                expect: rules.left_alone,
                found: places.len(),
                places: places.join("\n"),
            });
        }
        Ok(())
    }

    /// Applies the text edits, and checks the number of matches of every rule.
    fn special_rules(&mut self, rules: &CrateRules, list: &[Rule], version: &str) -> Result<(), TreeError> {
        for rule in list {
            let found = match rule.edit {
                Edit::TwinFile(_) | Edit::MethodBody { .. } | Edit::ArmBody { .. } => {
                    self.sites.iter().filter(|place| place.site.rule == rule.name).count()
                }
                Edit::After { anchor, insert } => self.replace(rule, anchor, &format!("{anchor}{insert}")),
                Edit::Before { anchor, insert } => self.replace(rule, anchor, &format!("{insert}{anchor}")),
                Edit::Replace { from, to } => self.replace(rule, from, to),
            };
            if found != rule.expect {
                return Err(TreeError::Count {
                    rule: rule.name.to_owned(),
                    name: rules.name.to_owned(),
                    file: if rule.file == EVERY_FILE { "all files".to_owned() } else { rule.file.to_owned() },
                    version: version.to_owned(),
                    expect: rule.expect,
                    found,
                });
            }
        }
        Ok(())
    }

    fn replace(&mut self, rule: &Rule, from: &str, to: &str) -> usize {
        let mut found = 0;
        for (file, text) in &mut self.files {
            if rule.file != EVERY_FILE && rule.file != file.as_str() {
                continue;
            }
            let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
            for at in &places {
                let line = text[..*at].matches('\n').count() + 1;
                let first = from.trim().lines().next().unwrap_or_default().to_owned();
                let site = Site { line, rule: rule.name, text: first };
                self.sites.push(FileSite { file: file.clone(), site });
            }
            found += places.len();
            if !places.is_empty() {
                *text = text.replace(from, to);
            }
        }
        found
    }

    /// Removes the inner docs of `lib.rs`, which an included file must not have.
    fn strip_inner_docs(&mut self, rules: &CrateRules, version: &str) -> Result<(), TreeError> {
        let Some(text) = self.files.get_mut("lib.rs") else { return Ok(()) };
        let kept: Vec<&str> =
            text.lines().skip_while(|line| line.starts_with("//!") || line.is_empty()).collect();
        if kept.first().is_some_and(|line| line.starts_with("#![")) {
            return Err(TreeError::InnerAttribute {
                name: rules.name.to_owned(),
                version: version.to_owned(),
            });
        }
        *text = kept.join("\n") + "\n";
        Ok(())
    }

    /// Writes the tree below `dir` and removes files that do not belong to it. Unchanged files are not written, so that they
    /// keep their time stamps.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), TreeError> {
        let mut old = BTreeMap::new();
        if dir.is_dir() {
            read_files(dir, dir, &mut old)?;
        }
        for stale in old.keys().filter(|file| !self.files.contains_key(*file)) {
            let path = dir.join(stale);
            fs::remove_file(&path).map_err(|source| io(&path, source))?;
        }
        for (file, text) in &self.files {
            if old.get(file) == Some(text) {
                continue;
            }
            let path = dir.join(file);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(|source| io(parent, source))?;
            }
            fs::write(&path, text).map_err(|source| io(&path, source))?;
        }
        Ok(())
    }
}

/// Reads all `.rs` files below `dir` into `files`, by path relative to `root`.
fn read_files(root: &Path, dir: &Path, files: &mut BTreeMap<String, String>) -> Result<(), TreeError> {
    for entry in fs::read_dir(dir).map_err(|source| io(dir, source))? {
        let path: PathBuf = entry.map_err(|source| io(dir, source))?.path();
        if path.is_dir() {
            read_files(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(|source| io(&path, source))?;
            let below: Vec<_> = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .components()
                .map(|part| part.as_os_str().to_string_lossy())
                .collect();
            files.insert(below.join("/"), text);
        }
    }
    Ok(())
}

fn io(path: &Path, source: std::io::Error) -> TreeError {
    TreeError::Io { path: path.display().to_string(), source }
}
