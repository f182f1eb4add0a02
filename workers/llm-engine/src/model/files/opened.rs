//! Open files of a model.
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::matrix::Region;

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
        let (path, mut file) = (&self.0[region.matrix.file].0, &self.0[region.matrix.file].1);
        let mut data = vec![0; region.bytes()];
        let (offsets, length) = region.ranges();
        for (offset, range) in offsets.zip(data.chunks_exact_mut(length.max(1))) {
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| file.read_exact(range))
                .with_context(|| path.display().to_string())?;
        }
        Ok(data)
    }
}
