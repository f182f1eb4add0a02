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

/// Shrinks the longer side of a height and a width, multiples of `factor`, so that they have at most `max` pixels. The result
/// has at least one multiple per side. [`smart_size`] exceeds its limit for long pictures, and where `min` is close to `max`.
pub(super) fn size_below(sides: [usize; 2], factor: usize, max: usize) -> [usize; 2] {
    let [rows, columns] = sides.map(|side| side / factor);
    let units = (max / (factor * factor)).max(1);
    if rows * columns <= units {
        return sides;
    }
    let short = rows.min(columns).min(units.isqrt()).max(1);
    let long = units / short;
    (if rows <= columns { [short, long] } else { [long, short] }).map(|side| side * factor)
}

/// Returns the largest argument of [`size_of_longest`], at most `longest`, with which [`size_of_tiles`] results in at most
/// `max_count` squares, including the one of the whole picture. A picture of one square is always allowed.
pub(super) fn longest_of_tiles(longest: usize, side: usize, max_count: usize) -> usize {
    let squares = max_count.saturating_sub(1).isqrt().max(1);
    // Sides are rounded up to even numbers.
    longest.min(squares.saturating_mul(side) / 2 * 2).max(1)
}

/// Returns the maximum number of squares of a picture whose longer side becomes `longest`, with that of the whole picture.
pub(super) fn max_tiles(longest: usize, side: usize) -> usize {
    match longest.next_multiple_of(2).div_ceil(side) {
        0 | 1 => 1,
        squares => squares * squares + 1,
    }
}

/// Returns the largest height and width of about the shape of a picture that are multiples of `unit` and have at most `most`
/// tokens of `unit` x `unit` pixels, at least one.
pub(super) fn size_of_tokens([height, width]: [usize; 2], unit: usize, most: usize) -> [usize; 2] {
    let factor = ((most * unit * unit) as f64 / (height * width) as f64).sqrt();
    let tokens = |side: usize| (factor * side as f64 / unit as f64).floor() as usize;
    match [tokens(height), tokens(width)] {
        [0, _] => [unit, (width / height).clamp(1, most) * unit],
        [_, 0] => [(height / width).clamp(1, most) * unit, unit],
        both => both.map(|tokens| tokens * unit),
    }
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
    let max_side = IDEFICS_MAX_SIDE;
    match width >= height {
        true if width > max_side => [((max_side as f64 / aspect) as usize).max(1), max_side],
        false if height > max_side => [max_side, ((max_side as f64 * aspect) as usize).max(1)],
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
        for (size, max, expected) in [
            ([8, 232], 960, [8, 120]),
            ([232, 8], 960, [120, 8]),
            ([16, 16], 64, [8, 8]),
            ([24, 32], 6 * 64, [16, 24]),
            ([24, 32], 12 * 64, [24, 32]),
            ([8, 8], 1, [8, 8]),
        ] {
            assert_eq!(size_below(size, 8, max), expected, "{size:?}");
        }
        for (size, longest, expected) in
            [([21, 37], 24, [16, 24]), ([50, 18], 24, [24, 8]), ([3, 5], 24, [8, 8]), ([1, 900], 24, [8, 24])]
        {
            assert_eq!(size_within(size, longest, 8), expected, "{size:?}");
        }
        for (size, expected) in
            [([21, 37], [24, 40]), ([50, 18], [48, 16]), ([4, 800], [8, 128]), ([800, 3], [128, 8])]
        {
            assert_eq!(size_of_tokens(size, 8, 16), expected, "{size:?}");
        }
        for (size, expected) in [([21, 37], [18, 32]), ([50, 18], [32, 12]), ([7, 7], [32, 32])] {
            assert_eq!(size_of_longest(size, 32), expected, "{size:?}");
        }
        assert_eq!(size_of_longest([10, 5000], 5000), [8, 4096]);
        for (size, expected) in [([18, 32], [32, 32]), ([32, 12], [32, 16]), ([16, 16], [16, 16])] {
            assert_eq!(size_of_tiles(size, 16), expected, "{size:?}");
        }
    }

    #[test]
    fn limits_of_tiles_are_kept() {
        for side in [14, 15, 16] {
            for max_count in 0..40 {
                let longest = longest_of_tiles(90, side, max_count);
                assert!(longest <= 90 && max_tiles(longest, side) <= max_count.max(1), "{side} {max_count}");
                for (height, width) in (1..50).flat_map(|height| [(height, 49), (49, height)]) {
                    let size = size_of_tiles(size_of_longest([height, width], longest), side);
                    let squares = match size[0] / side * (size[1] / side) {
                        1 => 1,
                        squares => squares + 1,
                    };
                    assert!(
                        squares <= max_tiles(longest, side),
                        "{height} x {width}, {side} {max_count}: {size:?}"
                    );
                }
            }
        }
        assert_eq!([16, 17, 5, 4].map(|max_count| longest_of_tiles(64, 16, max_count)), [48, 64, 32, 16]);
    }
}
