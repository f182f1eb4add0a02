//! Sizes to which pictures are scaled before they are divided into patches, as in the image processors of transformers.

/// Width or height below which Idefics3 keeps pictures.
const IDEFICS_MAX_SIDE: usize = 4096;

/// Returns the height and width closest to those of a picture that are multiples of `factor` and have between `min` and `max`
/// pixels.
pub(super) fn smart_size([height, width]: [usize; 2], factor: usize, min: usize, max: usize) -> [usize; 2] {
    let sides = [height, width];
    let rounded = sides.map(|side| (side as f64 / factor as f64).round_ties_even() as usize * factor);
    let pixels = (height * width) as f64;
    let area = rounded[0] * rounded[1];
    if area > max {
        let shrink = (pixels / max as f64).sqrt();
        return sides
            .map(|side| ((side as f64 / shrink / factor as f64).floor() as usize * factor).max(factor));
    }
    if area < min {
        let grow = (min as f64 / pixels).sqrt();
        return sides.map(|side| (side as f64 * grow / factor as f64).ceil() as usize * factor);
    }
    rounded
}

/// Returns the height and width of a picture that is made smaller, if necessary, so that no side is longer than `longest`,
/// rounded up to multiples of `unit`.
pub(super) fn size_within([height, width]: [usize; 2], longest: usize, unit: usize) -> [usize; 2] {
    let ratio = height.max(width) as f64 / longest as f64;
    let shrunk =
        |side: usize| if ratio > 1.0 { ((side as f64 / ratio).floor() as usize).max(1) } else { side };
    [height, width].map(|side| shrunk(side).div_ceil(unit) * unit)
}

/// Returns the height and width of a picture whose longer side becomes `longest`.
pub(super) fn size_of_longest([height, width]: [usize; 2], longest: usize) -> [usize; 2] {
    let aspect = width as f64 / height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2);
    let [height, width] = match width >= height {
        true => [even(longest as f64 / aspect), longest],
        false => [longest, even(longest as f64 * aspect)],
    };
    let [height, width] = [height.max(1), width.max(1)];
    let aspect = width as f64 / height as f64;
    let most = IDEFICS_MAX_SIDE;
    match width >= height {
        true if width > most => [((most as f64 / aspect) as usize).max(1), most],
        false if height > most => [most, ((most as f64 * aspect) as usize).max(1)],
        _ => [height, width],
    }
}

/// Returns the height and width, multiples of `side`, of a picture that is divided into squares.
pub(super) fn size_of_tiles([height, width]: [usize; 2], side: usize) -> [usize; 2] {
    let aspect = width as f64 / height as f64;
    let whole = |length: usize| length.div_ceil(side).max(1) * side;
    match width >= height {
        true => [whole((whole(width) as f64 / aspect) as usize), whole(width)],
        false => [whole(height), whole((whole(height) as f64 * aspect) as usize)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that the functions of transformers return.
    #[test]
    fn sizes_equal_those_of_transformers() {
        for (size, expected) in [
            ([21, 37], [24, 40]),
            ([50, 18], [48, 16]),
            ([1, 1], [16, 16]),
            ([4, 800], [8, 232]),
            ([300, 400], [24, 32]),
            ([12, 20], [16, 16]),
            ([28, 12], [32, 16]),
        ] {
            assert_eq!(smart_size(size, 8, 256, 960), expected, "{size:?}");
        }
        for (size, longest, expected) in
            [([21, 37], 24, [16, 24]), ([50, 18], 24, [24, 8]), ([3, 5], 24, [8, 8]), ([1, 900], 24, [8, 24])]
        {
            assert_eq!(size_within(size, longest, 8), expected, "{size:?}");
        }
        for (size, expected) in [([21, 37], [18, 32]), ([50, 18], [32, 12]), ([7, 7], [32, 32])] {
            assert_eq!(size_of_longest(size, 32), expected, "{size:?}");
        }
        assert_eq!(size_of_longest([10, 5000], 5000), [8, 4096]);
        for (size, expected) in [([18, 32], [32, 32]), ([32, 12], [32, 16]), ([16, 16], [16, 16])] {
            assert_eq!(size_of_tiles(size, 16), expected, "{size:?}");
        }
    }
}
