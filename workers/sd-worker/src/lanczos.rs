//! Scaling of images with a Lanczos kernel of three lobes. The pixels equal those of Pillow, which diffusers and
//! AUTOMATIC1111 use: columns first, rounded to eight bits, then rows, with coefficients in fixed point.
use std::f64::consts::PI;

const CHANNELS: usize = 3;
/// Half width of the kernel in pixels of the smaller image.
const LOBES: f64 = 3.0;
/// Fraction bits of the coefficients.
const FRACTION_BITS: u32 = 22;

/// Coefficients of an output position.
struct Taps {
    /// First input position.
    start: usize,
    factors: Vec<i64>,
}

fn kernel(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
    if x.abs() < LOBES { sinc(x) * sinc(x / LOBES) } else { 0.0 }
}

/// Returns the coefficients of each output position along a dimension.
fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    // Smaller images are blurred, so that details do not alias.
    let stretch = scale.max(1.0);
    let position = |i: usize| {
        let center = (i as f64 + 0.5) * scale;
        let edge = |offset: f64| ((center + offset * stretch + 0.5).max(0.0) as usize).min(from);
        let (start, end) = (edge(-LOBES), edge(LOBES));
        let weights: Vec<f64> = (start..end).map(|x| kernel((x as f64 - center + 0.5) / stretch)).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: f64| (weight / sum * f64::from(1u32 << FRACTION_BITS)).round() as i64;
        Taps { start, factors: weights.into_iter().map(fixed).collect() }
    };
    (0..to).map(position).collect()
}

/// Returns the weighted sum of the pixels `start`, `start + stride`, ... in each channel.
fn pixel(rgb: &[u8], start: usize, stride: usize, factors: &[i64]) -> [u8; CHANNELS] {
    let mut sums = [1i64 << (FRACTION_BITS - 1); CHANNELS];
    for (i, factor) in factors.iter().enumerate() {
        let at = CHANNELS * (start + i * stride);
        for (sum, value) in sums.iter_mut().zip(&rgb[at..at + CHANNELS]) {
            *sum += factor * i64::from(*value);
        }
    }
    sums.map(|sum| (sum >> FRACTION_BITS).clamp(0, 255) as u8)
}

/// Scales an image of three bytes per pixel from a width and height to others, which are not 0.
pub fn resize(rgb: &[u8], from: (usize, usize), to: (usize, usize)) -> Vec<u8> {
    let mut columns = rgb.to_vec();
    if from.0 != to.0 {
        let taps = taps(from.0, to.0);
        let row =
            |y: usize| taps.iter().flat_map(move |tap| pixel(rgb, y * from.0 + tap.start, 1, &tap.factors));
        columns = (0..from.1).flat_map(row).collect();
    }
    if from.1 == to.1 {
        return columns;
    }
    let columns = &columns;
    let row = |tap: &Taps| {
        (0..to.0).flat_map(|x| pixel(columns, tap.start * to.0 + x, to.0, &tap.factors)).collect::<Vec<u8>>()
    };
    taps(from.1, to.1).iter().flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes, first bytes, sum of the bytes, and sum of the bytes times their positions, by Pillow 12.
    #[test]
    fn images_equal_those_of_pillow() {
        let (width, height) = (7, 5);
        let rgb: Vec<u8> = (0..width * height * CHANNELS).map(|i| (i * i * 37 + 11 * i) as u8).collect();
        for (size, first, sum, weighted) in [
            ((3, 2), [101, 117, 162], 2219, 20_355),
            ((9, 8), [0, 16, 174], 27_066, 2_775_898),
            ((7, 3), [72, 126, 148], 7880, 238_179),
            ((2, 5), [68, 120, 197], 3651, 53_053),
            ((1, 1), [108, 122, 137], 367, 763),
        ] {
            let resized = resize(&rgb, (width, height), size);
            assert_eq!(resized.len(), CHANNELS * size.0 * size.1);
            assert_eq!(resized[..3], first, "{size:?}");
            let total = |weight: &dyn Fn(usize) -> usize| -> usize {
                resized.iter().enumerate().map(|(i, value)| weight(i) * usize::from(*value)).sum()
            };
            assert_eq!((total(&|_| 1), total(&|i| i + 1)), (sum, weighted), "{size:?}");
        }
        assert_eq!(resize(&rgb, (width, height), (width, height)), rgb);
    }
}
