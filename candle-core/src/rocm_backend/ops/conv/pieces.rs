//! Splits the scratch memory of a convolution into pieces of bounded size.
use crate::rocm_backend::libraries::conv_workspace;

/// Maximum scratch memory in bytes; the built-in kernels do not get faster with more.
const MAX_SCRATCH_BYTES: usize = 64 << 20;

/// Returns the number of bytes of scratch memory that the built-in kernels may use.
pub(super) fn scratch_limit() -> usize {
    conv_workspace().min(MAX_SCRATCH_BYTES)
}

/// Size of a piece of an unfolded input: several whole images, or some positions of one image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) images: usize,
    pub(super) places: usize,
}

impl Pieces {
    pub(super) fn of(batch: usize, places: usize, bytes_per_place: usize, limit: usize) -> Self {
        let fitting = limit / bytes_per_place.max(1);
        if fitting >= places {
            return Self { images: (fitting / places.max(1)).clamp(1, batch.max(1)), places };
        }
        // A multiple of 64 keeps the products aligned.
        let places = if fitting >= 64 { fitting / 64 * 64 } else { fitting.max(1) };
        Self { images: 1, places }
    }

    /// Returns the first image, number of images, first position and number of positions of each piece.
    pub(super) fn all(
        &self,
        batch: usize,
        places: usize,
    ) -> impl Iterator<Item = (usize, usize, usize, usize)> + use<'_> {
        (0..batch).step_by(self.images).flat_map(move |image| {
            let images = self.images.min(batch - image);
            (0..places)
                .step_by(self.places)
                .map(move |first| (image, images, first, self.places.min(places - first)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(batch: usize, places: usize, limit: usize) -> Vec<(usize, usize, usize, usize)> {
        Pieces::of(batch, places, 4, limit).all(batch, places).collect()
    }

    #[test]
    fn pieces_are_whole_images_or_parts_of_one() {
        assert_eq!(covered(3, 100, 4000), [(0, 3, 0, 100)]);
        assert_eq!(covered(3, 100, 800), [(0, 2, 0, 100), (2, 1, 0, 100)]);
        assert_eq!(covered(2, 100, 399), [(0, 1, 0, 64), (0, 1, 64, 36), (1, 1, 0, 64), (1, 1, 64, 36)]);
        assert_eq!(covered(1, 3, 0), [(0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 1)]);
        assert_eq!(covered(0, 3, 800), []);
    }
}
