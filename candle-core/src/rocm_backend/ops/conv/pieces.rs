//! Pieces of what a convolution makes beside its result, so that it stays within bounds.
use crate::rocm_backend::libraries::conv_workspace;

/// Our own kernels gain nothing from more.
const MOST: usize = 64 << 20;

/// Bytes that our kernels may take beside a result.
pub(super) fn bound() -> usize {
    conv_workspace().min(MOST)
}

/// An unfolded input is cut into groups of whole images, or a single image into runs of places.
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
        // Whole waves, so that the products stay aligned.
        let places = if fitting >= 64 { fitting / 64 * 64 } else { fitting.max(1) };
        Self { images: 1, places }
    }

    /// First image, number of images, first place and number of places of each piece.
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
    fn pieces_are_images_or_runs_of_places() {
        assert_eq!(covered(3, 100, 4000), [(0, 3, 0, 100)]);
        assert_eq!(covered(3, 100, 800), [(0, 2, 0, 100), (2, 1, 0, 100)]);
        assert_eq!(covered(2, 100, 399), [(0, 1, 0, 64), (0, 1, 64, 36), (1, 1, 0, 64), (1, 1, 64, 36)]);
        assert_eq!(covered(1, 3, 0), [(0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 1)]);
        assert_eq!(covered(0, 3, 800), []);
    }
}
