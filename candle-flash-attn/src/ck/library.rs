//! Loads and checks the folder of built code objects.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use super::interface::{Built, Instance, Manifest, ARCHS, INTERFACE, MANIFEST};

/// Environment variable with the folder that contains one folder of code objects per architecture.
pub const FOLDER_VARIABLE: &str = "CANDLE_ROCM_CK";

/// Error of loading a folder of code objects.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A file is missing, because nothing was built for this architecture, or cannot be read.
    #[error(
        "cannot read {}: {source}; build it with `cargo xtask ck --arch {arch} --out FOLDER`, or unset {FOLDER_VARIABLE}",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The device's architecture.
        arch: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has unexpected contents.
    #[error("{}: {reason}; rebuild it with `cargo xtask ck --arch {arch}`", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The device's architecture.
        arch: String,
        /// Description of the difference.
        reason: String,
    },
}

/// A loaded code object.
#[derive(Debug)]
pub(super) struct Object {
    instance: Instance,
    pub(super) name: String,
    pub(super) bytes: Box<[u8]>,
}

/// The loaded and checked code objects of one architecture.
#[derive(Debug)]
pub struct Library {
    arch: String,
    objects: Vec<Object>,
}

/// Library of each architecture, loaded on first use.
static LIBRARIES: [OnceLock<Option<Library>>; ARCHS.len()] = [const { OnceLock::new() }; ARCHS.len()];

impl Library {
    /// Returns the library in the folder of [`FOLDER_VARIABLE`]: `None` if it is unset or empty, or if the architecture is
    /// unsupported. Files are read once per process.
    ///
    /// # Errors
    /// Like [`Self::open`].
    pub fn from_environment(arch: &str) -> Result<Option<&'static Self>, LibraryError> {
        let base = base(arch);
        let Some(known) = ARCHS.iter().position(|known| *known == base) else { return Ok(None) };
        let library = &LIBRARIES[known];
        if let Some(read) = library.get() {
            return Ok(read.as_ref());
        }
        let folder = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        let read = folder.map(|folder| Self::open(Path::new(&folder), base)).transpose()?;
        Ok(library.get_or_init(|| read).as_ref())
    }

    /// Reads the code objects for `arch` below `folder`. Features after a colon (`gfx90a:sramecc+`) are ignored.
    ///
    /// # Errors
    /// [`LibraryError::Unreadable`]; [`LibraryError::Unusable`] if the files are for another architecture, were built by
    /// another version, or are damaged.
    pub fn open(folder: &Path, arch: &str) -> Result<Self, LibraryError> {
        let arch = base(arch);
        let folder = folder.join(arch);
        let read = |path: &Path| {
            fs::read(path).map_err(|source| LibraryError::Unreadable {
                path: path.into(),
                arch: arch.into(),
                source,
            })
        };
        let unusable = |path: &Path, reason: String| LibraryError::Unusable {
            path: path.into(),
            arch: arch.into(),
            reason,
        };
        let path = folder.join(MANIFEST);
        let manifest: Manifest =
            serde_json::from_slice(&read(&path)?).map_err(|error| unusable(&path, error.to_string()))?;
        if manifest.interface != INTERFACE {
            let reason = format!("it has interface {}, {INTERFACE} is known here", manifest.interface);
            return Err(unusable(&path, reason));
        }
        if manifest.arch != arch {
            return Err(unusable(&path, format!("it is for {}, the device is {arch}", manifest.arch)));
        }
        let mut objects = Vec::new();
        for Built { instance, file, sha256, argument_bytes } in manifest.instances {
            let path = folder.join(file);
            let bytes = read(&path)?;
            let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            if digest != sha256 {
                return Err(unusable(&path, format!("it has SHA-256 {digest}, expected {sha256}")));
            }
            let passed = instance.layout().bytes;
            if argument_bytes != passed {
                let reason = format!("its argument has {argument_bytes} bytes, {passed} are passed");
                return Err(unusable(&path, reason));
            }
            objects.push(Object { instance, name: instance.name(), bytes: bytes.into() });
        }
        Ok(Self { arch: arch.into(), objects })
    }

    /// Returns the architecture of the code objects.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Returns the instances that were built.
    pub fn instances(&self) -> impl Iterator<Item = Instance> + '_ {
        self.objects.iter().map(|object| object.instance)
    }

    /// Returns the code object of an instance, if it was built.
    pub fn code_object(&self, wanted: Instance) -> Option<&[u8]> {
        self.object(wanted).map(|object| &*object.bytes)
    }

    pub(super) fn object(&self, wanted: Instance) -> Option<&Object> {
        self.objects.iter().find(|object| object.instance == wanted)
    }
}

/// Removes the features after a colon.
fn base(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a folder with an object of `bytes` for gfx90a and a modified manifest.
    fn folder(bytes: &[u8], change: impl Fn(&mut Manifest)) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("gfx90a");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("a.hsaco"), bytes).unwrap();
        let instance = Instance::all().next().unwrap();
        let mut manifest = Manifest {
            interface: INTERFACE,
            arch: "gfx90a".into(),
            instances: vec![Built {
                instance,
                file: "a.hsaco".into(),
                // SHA-256 of the four bytes "code".
                sha256: "5694d08a2e53ffcae0c3103e5ad6f6076abd960eb1f8a56577040bc1028f702b".into(),
                argument_bytes: 144,
            }],
            ..Manifest::default()
        };
        change(&mut manifest);
        fs::write(below.join(MANIFEST), serde_json::to_string(&manifest).unwrap()).unwrap();
        folder
    }

    #[test]
    fn a_valid_folder_is_read() {
        let folder = folder(b"code", |_| ());
        let library = Library::open(folder.path(), "gfx90a:sramecc+:xnack-").unwrap();
        let instances: Vec<_> = library.instances().collect();
        assert_eq!(
            (library.arch(), instances.len(), instances[0].name()),
            ("gfx90a", 1, "f16-64-dense-masked".into())
        );
        assert_eq!(library.code_object(instances[0]), Some(&b"code"[..]));
        assert_eq!(library.code_object(Instance { width: 128, ..instances[0] }), None);
    }

    #[test]
    fn errors_name_the_file_and_the_cause() {
        let open = |bytes: &[u8], change: fn(&mut Manifest)| {
            let folder = folder(bytes, change);
            Library::open(folder.path(), "gfx90a").unwrap_err().to_string()
        };
        for (text, parts) in [
            (open(b"cut", |_| ()), ["a.hsaco", "SHA-256", "--arch gfx90a"]),
            (open(b"code", |m| m.interface += 1), [MANIFEST, "interface 2", "--arch gfx90a"]),
            (open(b"code", |m| m.arch = "gfx942".into()), [MANIFEST, "for gfx942", "is gfx90a"]),
            (
                open(b"code", |m| m.instances[0].argument_bytes = 152),
                ["a.hsaco", "152 bytes", "144 are passed"],
            ),
            (
                open(b"code", |m| m.instances[0].file = "b".into()),
                ["gfx90a/b", FOLDER_VARIABLE, "cargo xtask ck"],
            ),
        ] {
            for part in parts {
                assert!(text.contains(part), "{part:?} is missing in: {text}");
            }
        }
    }

    #[test]
    fn the_error_names_an_architecture_that_was_not_built() {
        let folder = folder(b"code", |_| ());
        let text = Library::open(folder.path(), "gfx942").unwrap_err().to_string();
        assert!(text.contains("cargo xtask ck --arch gfx942"), "{text}");
    }
}
