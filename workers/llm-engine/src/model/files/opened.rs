//! Open files of a model.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;

use super::matrix::Region;

/// Number of bytes that a thread reads at a time. Disks reach their full rate only with several outstanding requests.
const CHUNK: usize = 1 << 20;

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
