//! Open files of a model.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::matrix::Region;

/// Number of bytes that a thread reads at a time. Disks reach their rate only if several requests wait. Many short reads keep
/// all threads busy until a part of the device's ring is full.
const CHUNK: usize = 256 << 10;

/// Open files, by index.
#[derive(Default)]
pub struct OpenFiles(Vec<(PathBuf, File)>);

impl OpenFiles {
    /// Adds a file.
    pub fn push(&mut self, path: PathBuf, file: File) {
        self.0.push((path, file));
    }

    /// Returns the number of files.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the path of a file.
    pub fn path(&self, file: usize) -> &Path {
        &self.0[file].0
    }

    /// Returns the sizes of all files, in bytes.
    ///
    /// # Errors
    /// Returns an error if the metadata cannot be read.
    pub fn sizes(&self) -> Result<Vec<u64>> {
        self.0.iter().map(|(_, file)| Ok(file.metadata()?.len())).collect()
    }

    /// Reads the bytes of a region.
    ///
    /// # Errors
    /// Returns an error that names the file if reading fails.
    pub fn read(&self, region: &Region) -> Result<Vec<u8>> {
        let mut data = vec![0; region.bytes()];
        let named = || self.path(region.matrix.file).display().to_string();
        self.read_from(region, 0, &mut data).with_context(named)?;
        Ok(data)
    }

    /// Fills `part` with the bytes of a region from `first` on, on several threads.
    ///
    /// # Errors
    /// Returns the error of reading.
    pub fn read_from(&self, region: &Region, first: usize, part: &mut [u8]) -> io::Result<()> {
        let file = &self.0[region.matrix.file].1;
        let chunks = part.par_chunks_mut(CHUNK).enumerate();
        chunks.try_for_each(|(index, chunk)| {
            let mut rest = chunk;
            for (offset, bytes) in region.ranges_from(first + index * CHUNK) {
                let Some(range) =
                    rest.split_off_mut(..bytes.min(rest.len())).filter(|range| !range.is_empty())
                else {
                    break;
                };
                file.read_exact_at(range, offset)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::files::matrix::StoredMatrix;

    #[test]
    fn parts_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        let (rows, columns, unit, offset) = (7, 40_009, 3, 5);
        let byte = |index: usize| (index * 31 + index / 251) as u8;
        let all: Vec<u8> = (0..offset + rows * columns * unit).map(byte).collect();
        fs::write(&path, &all).unwrap();
        let mut files = OpenFiles::default();
        files.push(path.clone(), File::open(&path).unwrap());
        let matrix = StoredMatrix { file: 0, offset: offset as u64, rows, columns, unit };
        for region in [matrix.whole(), matrix.region(1..7, 3..40_000), matrix.region(2..3, 0..1)] {
            let row = |row: usize| {
                let start = offset + (row * columns + region.columns.start) * unit;
                &all[start..start + region.columns.len() * unit]
            };
            let expected = region.rows.clone().map(row).collect::<Vec<_>>().concat();
            assert!(expected == files.read(&region).unwrap());
            for size in [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7] {
                let mut part = vec![0; size.min(expected.len())];
                let most = expected.len() - part.len();
                for first in [0, 1, most / 2, most].into_iter().filter(|first| *first <= most) {
                    files.read_from(&region, first, &mut part).unwrap();
                    assert!(part == expected[first..first + part.len()], "{size} from {first}");
                }
            }
        }
    }
}
