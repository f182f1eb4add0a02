//! Which convolution was fastest, as measured: kept on disk between processes.
//!
//! A text file of lines that are only ever added, each in one write, so that processes may share it; what is cut off or
//! damaged is passed over. A line is the GPU's architecture, the library's version, the shape, what to take
//! (`tiles` or `unfolded`, which are ours, or the number of one of the library's solutions) and a full stop, separated by tabs.
use super::convolution_shape::ConvShape;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The file of choices; `0` keeps none. Unset, it is `candle-rocm/convolutions.tsv` in the user's cache folder.
pub const CACHE_VARIABLE: &str = "CANDLE_ROCM_CONV_CACHE";

/// More than this is not read: a million shapes are not measured.
const MOST_BYTES: u64 = 64 << 20;
/// Ends a line, so that one that was cut off is not taken for another.
const END: &str = ".";

/// Method of our own kernels for more than a few channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvMethod {
    /// Products on tiles that read the input where it lies.
    Tiles,
    /// Products of the library for them, with an unfolded copy, or of taps that are then summed.
    Unfolded,
}

/// Fastest method, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Our kernels.
    Own(ConvMethod),
    /// The library's solution of this number.
    Solution(u64),
}

/// The choices for one GPU and one version of the library.
pub(super) struct Choices {
    path: Option<PathBuf>,
    arch: String,
    version: String,
    known: HashMap<String, Choice>,
}

impl Choices {
    /// Reads what there is. A file that cannot be read is as good as none.
    pub(super) fn load(path: Option<PathBuf>, arch: &str, version: &str) -> Self {
        let text = path.as_deref().and_then(|path| read(path).ok()).unwrap_or_default();
        let known = text.lines().filter_map(|line| parse(line, arch, version)).collect();
        Self { path, arch: arch.to_string(), version: version.to_string(), known }
    }

    pub(super) fn of(&self, shape: &ConvShape) -> Option<Choice> {
        self.known.get(&shape.to_string()).copied()
    }

    /// Keeps a choice, also on disk.
    ///
    /// # Errors
    /// Errors of the file system; the choice is kept for this process.
    pub(super) fn keep(&mut self, shape: &ConvShape, choice: Choice) -> std::io::Result<()> {
        let shape = shape.to_string();
        let number = match choice {
            Choice::Own(ConvMethod::Tiles) => "tiles".to_string(),
            Choice::Own(ConvMethod::Unfolded) => "unfolded".to_string(),
            Choice::Solution(id) => id.to_string(),
        };
        // Begins with an end of line, in case another process was stopped in the middle of one.
        let line = format!("\n{}\t{}\t{shape}\t{number}\t{END}\n", self.arch, self.version);
        self.known.insert(shape, choice);
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(line.as_bytes())
    }

    /// Where choices are kept, for messages.
    pub(super) fn place(&self) -> String {
        self.path.as_ref().map_or_else(|| "memory".to_string(), |path| path.display().to_string())
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(line: &str, arch: &str, version: &str) -> Option<(String, Choice)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [its_arch, its_version, shape, choice, END] = fields[..] else { return None };
    if its_arch != arch || its_version != version {
        return None;
    }
    let choice = match choice {
        "tiles" => Choice::Own(ConvMethod::Tiles),
        "unfolded" => Choice::Own(ConvMethod::Unfolded),
        number => Choice::Solution(number.parse().ok()?),
    };
    Some((shape.to_string(), choice))
}

/// Where the environment says, or in the user's cache folder; `None` where there is neither.
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
        let (h, w) = (Axis::FLAT, Axis { size: 9, taps: 3, padding: 1, stride: 2, dilation: 1, out: 5 });
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

    /// A file of the test's own, removed with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn of(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("candle-choices-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn choices_outlive_the_process_that_made_them() {
        let scratch = Scratch::of("kept");
        let path = scratch.0.join("folder").join("file.tsv");
        let load = |arch, version| Choices::load(Some(path.clone()), arch, version);
        let mut first = load("gfx1100", "3.4.0");
        assert_eq!(first.of(&shape(1)), None);
        let mut second = load("gfx1100", "3.4.0");
        first.keep(&shape(1), Choice::Solution(91)).unwrap();
        second.keep(&shape(2), Choice::Own(ConvMethod::Tiles)).unwrap();
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

    /// Every prefix of the file, and every byte of it changed.
    #[test]
    fn damage_loses_choices_and_makes_none() {
        let scratch = Scratch::of("damaged");
        std::fs::create_dir_all(&scratch.0).unwrap();
        let path = scratch.0.join("file.tsv");
        let load = || Choices::load(Some(path.clone()), "gfx90a", "3.4.0");
        load().keep(&shape(1), Choice::Solution(123)).unwrap();
        load().keep(&shape(2), Choice::Own(ConvMethod::Tiles)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let choices = load();
            assert!(matches!(choices.of(&shape(1)), None | Some(Choice::Solution(123))), "cut at {cut}");
            assert!(
                matches!(choices.of(&shape(2)), None | Some(Choice::Own(ConvMethod::Tiles))),
                "cut at {cut}"
            );
            load().keep(&shape(3), Choice::Own(ConvMethod::Tiles)).unwrap();
            assert_eq!(
                load().of(&shape(3)),
                Some(Choice::Own(ConvMethod::Tiles)),
                "written after a cut at {cut}"
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
    fn what_cannot_be_written_is_said_and_kept_in_memory() {
        let scratch = Scratch::of("blocked");
        std::fs::write(&scratch.0, "a file where the folder would be").unwrap();
        let mut choices = Choices::load(Some(scratch.0.join("file.tsv")), "gfx90a", "3.4.0");
        assert!(choices.keep(&shape(1), Choice::Own(ConvMethod::Tiles)).is_err());
        assert_eq!(choices.of(&shape(1)), Some(Choice::Own(ConvMethod::Tiles)));
        let _ = std::fs::remove_file(&scratch.0);
    }
}
