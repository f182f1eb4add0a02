//! Finds crates that cargo or `cargo vendor` has already unpacked, without running cargo.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Folders that may contain unpacked crates.
pub(crate) struct Places {
    /// Cargo's home folder, with its registry and configuration.
    pub(crate) cargo_home: Option<PathBuf>,
    /// Folders in and above which cargo's configuration is searched.
    pub(crate) inside: Vec<PathBuf>,
}

impl Places {
    /// Returns the folders of this build. A build script does not know where cargo was started, so this uses the shell's
    /// folder, the package's folder and the folder that the build writes to.
    pub(crate) fn of_this_build(work_dir: &Path) -> Self {
        let named =
            |variable: &str| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            cargo_home: named("CARGO_HOME").or_else(|| Some(named("HOME")?.join(".cargo"))),
            inside: [named("PWD"), env::current_dir().ok(), std::path::absolute(work_dir).ok()]
                .into_iter()
                .flatten()
                .collect(),
        }
    }

    /// Returns the folder of a crate of exactly this version: among the unpacked crates of any registry, or in a directory
    /// source, even if the configuration does not use it.
    pub(crate) fn find(&self, name: &str, version: &str) -> Option<PathBuf> {
        let versioned = format!("{name}-{version}");
        let registries = self.cargo_home.iter().flat_map(|home| folders(&home.join("registry/src")));
        // Cargo writes this file after it has unpacked the whole crate.
        let unpacked = registries
            .map(|registry| registry.join(&versioned))
            .filter(|path| path.join(".cargo-ok").exists());
        let vendored = self.configurations().into_iter().flat_map(|file| directory_sources(&file));
        let vendored = vendored.flat_map(|source| [source.join(&versioned), source.join(name)]);
        unpacked.chain(vendored).find(|path| is_package(path, name, version))
    }

    /// Returns cargo's configuration files, nearest first.
    fn configurations(&self) -> Vec<PathBuf> {
        let above =
            self.inside.iter().flat_map(|folder| folder.ancestors()).map(|folder| folder.join(".cargo"));
        let mut files = Vec::new();
        for folder in above.chain(self.cargo_home.clone()) {
            for file in [folder.join("config.toml"), folder.join("config")] {
                if file.is_file() && !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        files
    }
}

fn folders(folder: &Path) -> std::vec::IntoIter<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter()
}

/// Returns the folders given by `directory` keys in `[source.*]` of a configuration file. Their paths are relative to the
/// parent of the file's folder.
fn directory_sources(file: &Path) -> Vec<PathBuf> {
    let Some(base) = file.parent().and_then(Path::parent) else { return Vec::new() };
    let config = table(file);
    let sources = config.get("source").and_then(Value::as_table).into_iter().flat_map(Table::values);
    sources.filter_map(|source| Some(base.join(source.get("directory")?.as_str()?))).collect()
}

/// Returns true if a folder contains the manifest of a published package with this name and version.
fn is_package(folder: &Path, name: &str, version: &str) -> bool {
    let manifest = table(&folder.join("Cargo.toml"));
    let field = |key: &str| manifest.get("package")?.get(key)?.as_str();
    field("name") == Some(name) && field("version") == Some(version)
}

/// Parses a TOML file; returns an empty table if there is none.
fn table(file: &Path) -> Table {
    fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "candle-kernels";
    const VERSION: &str = "0.11.1";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    /// Creates the folder of a published crate.
    fn package(folder: &Path, version: &str) {
        let text = format!(
            "# made by cargo\n[package]\nedition = \"2021\"\nname = \"{NAME}\"\nversion = \"{version}\"\n\n[dependencies.x]\nversion = \"1\"\n"
        );
        write(&folder.join("Cargo.toml"), &text);
    }

    fn places(root: &Path) -> Places {
        Places { cargo_home: Some(root.join("home/.cargo")), inside: vec![root.join("work/app/target/out")] }
    }

    #[test]
    fn an_unpacked_crate_is_used_if_it_is_complete() {
        let root = tempfile::tempdir().expect("a folder");
        let places = places(root.path());
        assert_eq!(places.find(NAME, VERSION), None);
        let folder = root.path().join("home/.cargo/registry/src/some-registry/candle-kernels-0.11.1");
        package(&folder, VERSION);
        assert_eq!(places.find(NAME, VERSION), None, "cargo has not finished it");
        write(&folder.join(".cargo-ok"), "");
        assert_eq!(places.find(NAME, VERSION), Some(folder));
        assert_eq!(places.find(NAME, "0.11.2"), None);
        assert_eq!(places.find("candle", VERSION), None);
    }

    #[test]
    fn a_vendored_crate_is_found_by_the_configuration_above_the_build() {
        let configurations = [
            "[source.the-registry]\nreplace-with = \"vendored\"\n\n[source.vendored]\ndirectory = \"third_party\"\n",
            "source.vendored.directory = 'third_party'\n",
            "[source]\nvendored = { directory = \"third_party\" }\n",
        ];
        for text in configurations {
            for folder in [NAME, "candle-kernels-0.11.1"] {
                let root = tempfile::tempdir().expect("a folder");
                write(&root.path().join("work/.cargo/config.toml"), text);
                let folder = root.path().join("work/third_party").join(folder);
                package(&folder, VERSION);
                assert_eq!(places(root.path()).find(NAME, VERSION), Some(folder), "{text}");
            }
        }
    }

    #[test]
    fn cargo_homes_configuration_is_used_and_other_versions_are_not() {
        let root = tempfile::tempdir().expect("a folder");
        let vendor = root.path().join("vendor");
        let config = format!("[source.vendored]\n# directory = \"nowhere\"\ndirectory = {:?}\n", vendor);
        write(&root.path().join("home/.cargo/config.toml"), &config);
        package(&vendor.join(NAME), "0.11.0");
        assert_eq!(places(root.path()).find(NAME, VERSION), None);
        package(&vendor.join("candle-kernels-0.11.1"), VERSION);
        assert_eq!(places(root.path()).find(NAME, VERSION), Some(vendor.join("candle-kernels-0.11.1")));
    }

    #[test]
    fn a_directory_key_of_another_section_is_ignored() {
        let root = tempfile::tempdir().expect("a folder");
        write(&root.path().join("work/.cargo/config.toml"), "[build]\ndirectory = \"third_party\"\n");
        package(&root.path().join("work/third_party").join(NAME), VERSION);
        assert_eq!(places(root.path()).find(NAME, VERSION), None);
    }
}
