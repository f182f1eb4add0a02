//! The folder of built code objects.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use super::interface::{Built, Instance, Manifest, ARCHS, INTERFACE, MANIFEST};

/// Names the folder with a folder of code objects for each architecture.
pub const FOLDER_VARIABLE: &str = "CANDLE_ROCM_CK";

/// Why a folder of code objects cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// Nothing was built for this architecture, or it cannot be read.
    #[error(
        "cannot read {}: {source}; build it with `cargo xtask ck --arch {arch} --out FOLDER`, or unset {FOLDER_VARIABLE}",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The device's.
        arch: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The files are not what they should be.
    #[error("{}: {reason}; build it anew with `cargo xtask ck --arch {arch}`", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The device's.
        arch: String,
        /// What is wrong.
        reason: String,
    },
}

/// One code object.
#[derive(Debug)]
pub(super) struct Object {
    instance: Instance,
    pub(super) name: String,
    pub(super) bytes: Box<[u8]>,
}

/// The code objects for one architecture, read and checked.
#[derive(Debug)]
pub struct Library {
    arch: String,
    objects: Vec<Object>,
}

/// For each architecture what the variable named when it was first asked for.
static LIBRARIES: [OnceLock<Option<Library>>; ARCHS.len()] = [const { OnceLock::new() }; ARCHS.len()];

impl Library {
    /// What [`FOLDER_VARIABLE`] names: `None` if it is unset or empty, and for architectures that nothing can be built
    /// for. Files are read once in a process.
    ///
    /// # Errors
    /// As [`Self::open`].
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

    /// Reads what was built for `arch` below `folder`. Modes that follow a colon (`gfx90a:sramecc+`) do not matter.
    ///
    /// # Errors
    /// [`LibraryError::Unreadable`]; [`LibraryError::Unusable`] if the files are for another architecture, were built
    /// by another version, or are damaged.
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
                return Err(unusable(&path, format!("it has SHA-256 {digest}, {sha256} was built")));
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

    /// What the code objects are for.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// What there is.
    pub fn instances(&self) -> impl Iterator<Item = Instance> + '_ {
        self.objects.iter().map(|object| object.instance)
    }

    /// The code object of an instance, if it was built.
    pub fn code_object(&self, wanted: Instance) -> Option<&[u8]> {
        self.object(wanted).map(|object| &*object.bytes)
    }

    pub(super) fn object(&self, wanted: Instance) -> Option<&Object> {
        self.objects.iter().find(|object| object.instance == wanted)
    }
}

/// Without the modes that follow a colon.
fn base(arch: &str) -> &str {
    arch.split(':').next().unwrap_or(arch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with an object of `bytes` for gfx90a, whose manifest was changed.
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
                // Of the four bytes "code".
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
    fn a_whole_folder_is_read() {
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
    fn what_is_wrong_is_named() {
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
    fn an_architecture_that_was_not_built_is_named() {
        let folder = folder(b"code", |_| ());
        let text = Library::open(folder.path(), "gfx942").unwrap_err().to_string();
        assert!(text.contains("cargo xtask ck --arch gfx942"), "{text}");
    }
}
