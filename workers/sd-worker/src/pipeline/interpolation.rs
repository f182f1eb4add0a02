//! Interpolation of latents to another size, as PyTorch's `interpolate` defines it.
use candle_core::{Result, Tensor};

/// Function that weights the neighbours of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpolation {
    /// The neighbour at the scaled position, rounded down.
    Nearest,
    /// The neighbour whose centre is nearest.
    NearestExact,
    /// Linear interpolation of two neighbours.
    Bilinear,
    /// Cubic interpolation of four neighbours.
    Bicubic,
}

/// Coefficient of the cubic kernel, and that with antialiasing, in PyTorch.
const CUBIC: [f64; 2] = [-0.75, -0.5];

/// Cubic convolution kernel (Keys 1981) with coefficient `a`.
fn cubic(x: f64, a: f64) -> f64 {
    match x.abs() {
        x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((x - 5.0) * x + 8.0) * x * a - 4.0 * a,
        _ => 0.0,
    }
}

impl Interpolation {
    /// Returns the neighbours of each output position along a dimension, and their weights.
    fn taps(self, from: usize, to: usize, antialias: bool) -> Vec<Vec<(usize, f64)>> {
        let scale = from as f64 / to as f64;
        let last = from - 1;
        let at = |i: usize| {
            let center = (i as f64 + 0.5) * scale;
            let (half_width, kernel): (f64, &dyn Fn(f64) -> f64) = match self {
                Self::Nearest => return vec![((i * from / to).min(last), 1.0)],
                Self::NearestExact => return vec![((center as usize).min(last), 1.0)],
                Self::Bilinear => (1.0, &|x| (1.0 - x.abs()).max(0.0)),
                Self::Bicubic => (2.0, &|x| cubic(x, CUBIC[usize::from(antialias)])),
            };
            if antialias {
                // Smaller images are blurred.
                let stretch = scale.max(1.0);
                let edge = |offset: f64| ((center + offset * stretch + 0.5).max(0.0) as usize).min(from);
                let taps = (edge(-half_width)..edge(half_width))
                    .map(|x| (x, kernel((x as f64 - center + 0.5) / stretch)));
                let taps: Vec<(usize, f64)> = taps.collect();
                let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
                return taps.into_iter().map(|(x, weight)| (x, weight / sum)).collect();
            }
            let source = if self == Self::Bilinear { (center - 0.5).max(0.0) } else { center - 0.5 };
            let first = source.floor();
            let taps = (1 - half_width as isize..=half_width as isize).map(|offset| {
                let x = first as isize + offset;
                (x.clamp(0, last as isize) as usize, kernel(source - x as f64))
            });
            taps.collect()
        };
        (0..to).map(at).collect()
    }

    /// Returns the matrix (to, from) that interpolates along a dimension.
    fn matrix(self, from: usize, to: usize, antialias: bool, like: &Tensor) -> Result<Tensor> {
        let mut weights = vec![0f32; from * to];
        for (row, taps) in weights.chunks_exact_mut(from).zip(self.taps(from, to, antialias)) {
            taps.into_iter().for_each(|(x, weight)| row[x] += weight as f32);
        }
        Tensor::from_vec(weights, (to, from), like.device())
    }

    /// Scales `x`, f32 (batch, channels, height, width), to a height and width that are not 0. With `antialias`, linear and
    /// cubic kernels are as wide as an output cell if the output is smaller.
    ///
    /// # Errors
    /// The shape or dtype is wrong, or the device fails.
    pub fn resize(self, x: &Tensor, (height, width): (usize, usize), antialias: bool) -> Result<Tensor> {
        let (batch, channels, from_height, from_width) = x.dims4()?;
        let columns = self.matrix(from_width, width, antialias, x)?.t()?.contiguous()?;
        let rows = self.matrix(from_height, height, antialias, x)?;
        let wide = x.contiguous()?.reshape((batch * channels * from_height, from_width))?.matmul(&columns)?;
        let wide = wide.reshape((batch * channels, from_height, width))?;
        rows.unsqueeze(0)?
            .broadcast_as((batch * channels, height, from_height))?
            .contiguous()?
            .matmul(&wide)?
            .reshape((batch, channels, height, width))
    }
}

#[cfg(test)]
mod tests {
    use super::Interpolation::{Bicubic, Bilinear, Nearest, NearestExact};
    use super::*;
    use candle_core::Device;

    /// Interpolation, antialiasing, size, and the sum of the values times their positions, by PyTorch 2.11.
    #[test]
    fn values_equal_those_of_pytorch() -> Result<()> {
        let values: Vec<f32> =
            (0..2 * 5 * 4).map(|i| ((i * i * 37 + 11 * i) % 101) as f32 / 50.0 - 1.0).collect();
        let x = Tensor::from_vec(values, (1, 2, 5, 4), &Device::Cpu)?;
        for (interpolation, antialias, size, first, expected) in EXPECTED {
            let resized = interpolation.resize(&x, size, antialias)?.flatten_all()?.to_vec1::<f32>()?;
            let sum: f64 = resized.iter().enumerate().map(|(i, x)| (i + 1) as f64 * f64::from(*x)).sum();
            let what = format!("{interpolation:?} {antialias} {size:?}: {sum} {}", resized[1]);
            assert!((sum - expected).abs() < 2e-3 && (f64::from(resized[1]) - first).abs() < 1e-5, "{what}");
        }
        Ok(())
    }

    /// Interpolation, antialiasing, size, second value and sum.
    type Case = (Interpolation, bool, (usize, usize), f64, f64);

    /// Results of the test above.
    const EXPECTED: [Case; 24] = [
        (Nearest, false, (10, 8), -1.000000, -355.1200),
        (Nearest, false, (7, 5), -1.000000, -4.8000),
        (Nearest, false, (3, 2), 0.380000, -1.5000),
        (Nearest, false, (1, 9), -1.000000, 35.4400),
        (NearestExact, false, (10, 8), -1.000000, -355.1200),
        (NearestExact, false, (7, 5), -0.040000, -164.8600),
        (NearestExact, false, (3, 2), 0.260000, -2.4800),
        (NearestExact, false, (1, 9), -0.360000, 26.1800),
        (Bilinear, false, (10, 8), -0.760000, -352.5201),
        (Bilinear, false, (7, 5), -0.328000, -65.8797),
        (Bilinear, false, (3, 2), 0.403333, -0.1033),
        (Bilinear, false, (1, 9), -0.246667, 10.6389),
        (Bilinear, true, (10, 8), -0.760000, -352.5200),
        (Bilinear, true, (7, 5), -0.328000, -65.8797),
        (Bilinear, true, (3, 2), 0.388571, -1.5781),
        (Bilinear, true, (1, 9), -0.399298, -1.6105),
        (Bicubic, false, (10, 8), -0.857721, -361.7109),
        (Bicubic, false, (7, 5), -0.394645, -70.4583),
        (Bicubic, false, (3, 2), 0.451898, -0.3846),
        (Bicubic, false, (1, 9), -0.264838, 11.4654),
        (Bicubic, true, (10, 8), -0.877875, -356.6480),
        (Bicubic, true, (7, 5), -0.369026, -66.8845),
        (Bicubic, true, (3, 2), 0.470403, -1.7871),
        (Bicubic, true, (1, 9), -0.441615, -2.5482),
    ];
}
