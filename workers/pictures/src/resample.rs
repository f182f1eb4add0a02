//! Scaling of images. The pixels equal those of Pillow, which Transformers, diffusers and AUTOMATIC1111 use: columns first,
//! rounded to eight bits, then rows, with coefficients in fixed point.
use std::f64::consts::PI;

const CHANNELS: usize = 3;
/// Fraction bits of the coefficients.
const FRACTION_BITS: u32 = 22;

/// Coefficients of an output position.
struct Taps {
    /// First input position.
    start: usize,
    factors: Vec<i64>,
}

/// Kernel of an interpolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Triangle.
    Bilinear,
    /// Keys' cubic convolution with a = -1/2.
    Bicubic,
    /// Sinc of three lobes, windowed by a sinc.
    Lanczos,
}

impl Filter {
    /// Returns half of the kernel's width in pixels of the smaller image.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn kernel(self, x: f64) -> f64 {
        let x = x.abs();
        if x >= self.support() {
            return 0.0;
        }
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) };
        match self {
            Self::Bilinear => 1.0 - x,
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Lanczos => sinc(x) * sinc(x / self.support()),
        }
    }
}

/// Returns the coefficients of each output position along a dimension.
fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    // Smaller images are blurred, so that details do not alias.
    let stretch = scale.max(1.0);
    let position = |i: usize| {
        let center = (i as f64 + 0.5) * scale;
        let edge = |offset: f64| ((center + offset * stretch + 0.5).max(0.0) as usize).min(from);
        let (start, end) = (edge(-filter.support()), edge(filter.support()));
        let weights: Vec<f64> =
            (start..end).map(|x| filter.kernel((x as f64 - center + 0.5) * (1.0 / stretch))).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: f64| (weight * (1.0 / sum) * f64::from(1u32 << FRACTION_BITS)).round() as i64;
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
pub fn resize(rgb: &[u8], from: (usize, usize), to: (usize, usize), filter: Filter) -> Vec<u8> {
    let mut columns = rgb.to_vec();
    if from.0 != to.0 {
        let taps = taps(from.0, to.0, filter);
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
    taps(from.1, to.1, filter).iter().flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes, first bytes, sum of the bytes, and sum of the bytes times their positions, by Pillow 13.
    #[test]
    fn images_equal_those_of_pillow() {
        let (width, height) = (7, 5);
        let rgb: Vec<u8> = (0..width * height * CHANNELS).map(|i| (i * i * 37 + 11 * i) as u8).collect();
        for (filter, size, first, sum, weighted) in [
            (Filter::Bilinear, (3, 2), [107, 123, 162], 2230, 20_565),
            (Filter::Bilinear, (9, 8), [0, 48, 170], 27_023, 2_768_122),
            (Filter::Bilinear, (7, 3), [70, 126, 146], 7896, 240_772),
            (Filter::Bilinear, (2, 5), [73, 127, 195], 3691, 53_944),
            (Filter::Bilinear, (1, 1), [106, 119, 136], 361, 752),
            (Filter::Bicubic, (3, 2), [104, 119, 164], 2224, 20_405),
            (Filter::Bicubic, (9, 8), [0, 30, 172], 27_086, 2_773_564),
            (Filter::Bicubic, (7, 3), [70, 125, 147], 7885, 239_313),
            (Filter::Bicubic, (2, 5), [70, 121, 195], 3675, 53_608),
            (Filter::Bicubic, (1, 1), [108, 121, 136], 365, 758),
            (Filter::Lanczos, (3, 2), [101, 117, 162], 2219, 20_355),
            (Filter::Lanczos, (9, 8), [0, 16, 174], 27_066, 2_775_898),
            (Filter::Lanczos, (7, 3), [72, 126, 148], 7880, 238_179),
            (Filter::Lanczos, (2, 5), [68, 120, 197], 3651, 53_053),
            (Filter::Lanczos, (1, 1), [108, 122, 137], 367, 763),
        ] {
            let resized = resize(&rgb, (width, height), size, filter);
            assert_eq!(resized.len(), CHANNELS * size.0 * size.1);
            assert_eq!(resized[..3], first, "{filter:?} {size:?}");
            let total = |weight: &dyn Fn(usize) -> usize| -> usize {
                resized.iter().enumerate().map(|(i, value)| weight(i) * usize::from(*value)).sum()
            };
            assert_eq!((total(&|_| 1), total(&|i| i + 1)), (sum, weighted), "{filter:?} {size:?}");
        }
        assert_eq!(resize(&rgb, (width, height), (width, height), Filter::Bicubic), rgb);
    }
}
