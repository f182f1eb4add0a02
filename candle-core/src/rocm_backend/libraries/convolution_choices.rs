//! Persistent cache of tuning results: the fastest convolution algorithm for each shape.
//!
//! The cache is a text file. Each line is appended in one write, so that processes can share the file; incomplete or
//! corrupt lines are ignored. A line has five fields, separated by tabs: the GPU's architecture, the library's version,
//! the shape, the algorithm (`tiles`, `unfolded`, or the number of a library solution) and a full stop.
use super::convolution_shape::ConvShape;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Environment variable with the path of the cache file; `0` disables it. The default is
/// `candle-rocm/convolutions.tsv` in the user's cache folder.
pub const CACHE_VARIABLE: &str = "CANDLE_ROCM_CONV_CACHE";

/// Maximum number of bytes that are read from the file.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Last field of a line, which shows that the line is complete.
const END: &str = ".";

/// Algorithm of the built-in kernels for more than a few channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvMethod {
    /// Implicit matrix products on tiles, which read the input in place.
    Tiles,
    /// Matrix products by the product library: with an unfolded copy (im2col), or of each tap with a summation.
    Unfolded,
}

/// Fastest measured algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Built-in kernels.
    Own(ConvMethod),
    /// The library solution with this number.
    Solution(u64),
}

/// Cached choices for one GPU architecture and one version of the library.
pub(super) struct Choices {
    path: Option<PathBuf>,
    arch: String,
    version: String,
    known: HashMap<String, Choice>,
}

impl Choices {
    /// Loads the cached choices. A file that cannot be read counts as empty.
    pub(super) fn load(path: Option<PathBuf>, arch: &str, version: &str) -> Self {
        let text = path.as_deref().and_then(|path| read(path).ok()).unwrap_or_default();
        let known = text.lines().filter_map(|line| parse(line, arch, version)).collect();
        Self { path, arch: arch.to_string(), version: version.to_string(), known }
    }

    pub(super) fn of(&self, shape: &ConvShape) -> Option<Choice> {
        self.known.get(&shape.to_string()).copied()
    }

    /// Stores a choice in memory and on disk.
    ///
    /// # Errors
    /// If the file cannot be written; the choice is still stored in memory.
    pub(super) fn store(&mut self, shape: &ConvShape, choice: Choice) -> std::io::Result<()> {
        let shape = shape.to_string();
        let number = match choice {
            Choice::Own(ConvMethod::Tiles) => "tiles".to_string(),
            Choice::Own(ConvMethod::Unfolded) => "unfolded".to_string(),
            Choice::Solution(id) => id.to_string(),
        };
        // The leading newline ends an incomplete line of a process that was stopped while writing.
        let line = format!("\n{}\t{}\t{shape}\t{number}\t{END}\n", self.arch, self.version);
        self.known.insert(shape, choice);
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(line.as_bytes())
    }

    /// Returns the path of the file, or `memory`, for messages.
    pub(super) fn location(&self) -> String {
        self.path.as_ref().map_or_else(|| "memory".to_string(), |path| path.display().to_string())
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(line: &str, arch: &str, version: &str) -> Option<(String, Choice)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [line_arch, line_version, shape, choice, END] = fields[..] else { return None };
    if line_arch != arch || line_version != version {
        return None;
    }
    let choice = match choice {
        "tiles" => Choice::Own(ConvMethod::Tiles),
        "unfolded" => Choice::Own(ConvMethod::Unfolded),
        number => Choice::Solution(number.parse().ok()?),
    };
    Some((shape.to_string(), choice))
}

/// Returns the path of the cache file; `None` if it is disabled or there is no cache folder.
pub(super) fn path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match folder(CACHE_VARIABLE) {
        Some(path) if path.as_os_str() == "0" => None,
        Some(path) => Some(path),
        None => {
            let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
            Some(cache.join("candle-rocm").join("convolutions.tsv"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::convolution_shape::{Axis, Direction};
    use super::*;
    use crate::DType;

    fn shape(batch: usize) -> ConvShape {
        let (h, w) = (Axis::UNIT, Axis { size: 9, taps: 3, padding: 1, stride: 2, dilation: 1, out: 5 });
        ConvShape {
            direction: Direction::Output,
            dtype: DType::F16,
            batch,
            groups: 2,
            c_in: 4,
            c_out: 8,
            h,
            w,
        }
    }

    /// A temporary path that is removed on drop.
    struct TempPath(PathBuf);

    impl TempPath {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("candle-choices-{}-{name}", std::process::id())))
        }
    }

    impl Drop for TempPath {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn choices_persist_across_processes() {
        let scratch = TempPath::new("kept");
        let path = scratch.0.join("folder").join("file.tsv");
        let load = |arch, version| Choices::load(Some(path.clone()), arch, version);
        let mut first = load("gfx1100", "3.4.0");
        assert_eq!(first.of(&shape(1)), None);
        let mut second = load("gfx1100", "3.4.0");
        first.store(&shape(1), Choice::Solution(91)).unwrap();
        second.store(&shape(2), Choice::Own(ConvMethod::Tiles)).unwrap();
        assert_eq!(first.of(&shape(1)), Some(Choice::Solution(91)));
        let third = load("gfx1100", "3.4.0");
        assert_eq!(
            (third.of(&shape(1)), third.of(&shape(2)), third.of(&shape(3))),
            (Some(Choice::Solution(91)), Some(Choice::Own(ConvMethod::Tiles)), None)
        );
        for (arch, version) in [("gfx1101", "3.4.0"), ("gfx1100", "3.5.0")] {
            assert_eq!(load(arch, version).of(&shape(1)), None, "{arch} {version}");
        }
    }

    /// Truncates the file at every length and corrupts each byte.
    #[test]
    fn corruption_never_creates_choices() {
        let scratch = TempPath::new("damaged");
        std::fs::create_dir_all(&scratch.0).unwrap();
        let path = scratch.0.join("file.tsv");
        let load = || Choices::load(Some(path.clone()), "gfx90a", "3.4.0");
        load().store(&shape(1), Choice::Solution(123)).unwrap();
        load().store(&shape(2), Choice::Own(ConvMethod::Tiles)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let choices = load();
            assert!(matches!(choices.of(&shape(1)), None | Some(Choice::Solution(123))), "cut at {cut}");
            assert!(
                matches!(choices.of(&shape(2)), None | Some(Choice::Own(ConvMethod::Tiles))),
                "cut at {cut}"
            );
            load().store(&shape(3), Choice::Own(ConvMethod::Tiles)).unwrap();
            assert_eq!(
                load().of(&shape(3)),
                Some(Choice::Own(ConvMethod::Tiles)),
                "written after truncation at {cut}"
            );
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            std::fs::write(&path, bytes).unwrap();
            assert!(load().known.len() <= 3, "changed at {at}");
        }
    }

    #[test]
    fn choices_stay_in_memory_if_writing_fails() {
        let scratch = TempPath::new("blocked");
        std::fs::write(&scratch.0, "a file where the folder would be").unwrap();
        let mut choices = Choices::load(Some(scratch.0.join("file.tsv")), "gfx90a", "3.4.0");
        assert!(choices.store(&shape(1), Choice::Own(ConvMethod::Tiles)).is_err());
        assert_eq!(choices.of(&shape(1)), Some(Choice::Own(ConvMethod::Tiles)));
        let _ = std::fs::remove_file(&scratch.0);
    }
}
