//! Fused products compared with formulas in f64, for every kind of weights and every combination of operations.
use super::fixture::{from_f64, rocm, to_f64};
use candle_core::quantized::rocm::block_types;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::rocm::{FusedProduct, GateActivation, ProductWeight};
use candle_core::{DType, Device, Tensor};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const EPS: f32 = 1e-5;

/// Returns pseudo-random numbers between -limit and limit.
fn noise(count: usize, limit: f64, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f64 / f64::from(1 << 23) - 1.0) * limit
    };
    (0..count).map(next).collect()
}

/// Weights (n, k) on a device, and their values.
struct Weights {
    float: Option<Tensor>,
    blocks: Option<QTensor>,
    values: Vec<f64>,
    n: usize,
    k: usize,
}

impl Weights {
    fn floats(dtype: DType, n: usize, k: usize, device: &Device) -> Self {
        let tensor = from_f64(&noise(n * k, 0.3, 1), &[n, k], dtype);
        let float = Some(tensor.to_device(device).unwrap());
        Self { float, blocks: None, values: to_f64(&tensor), n, k }
    }

    fn blocks(kind: GgmlDType, n: usize, k: usize, device: &Device) -> Self {
        let tensor = from_f64(&noise(n * k, 0.3, 2), &[n, k], DType::F32);
        let cpu = QTensor::quantize(&tensor, kind).unwrap();
        let values = to_f64(&cpu.dequantize(&Device::Cpu).unwrap());
        let storage = QStorage::from_data(cpu.data().unwrap(), device, kind).unwrap();
        let blocks = Some(QTensor::new(storage, (n, k)).unwrap());
        Self { float: None, blocks, values, n, k }
    }

    /// Returns true for floats, and for formats with this block size.
    fn has_blocks_of(&self, size: usize) -> bool {
        self.blocks.as_ref().is_none_or(|blocks| blocks.dtype().block_size() == size)
    }

    /// Returns true if matrix units multiply two to four rows.
    fn uses_matrix_units(&self, dtype: DType, arch: &str) -> bool {
        let has_units = arch.starts_with("gfx9") && arch != "gfx906" || arch.starts_with("sm_");
        has_units && (self.float.is_none() || dtype != DType::F32 && !arch.starts_with("gfx90a"))
    }

    fn weight(&self) -> ProductWeight<'_> {
        match (&self.float, &self.blocks) {
            (Some(tensor), _) => tensor.into(),
            (None, Some(blocks)) => blocks.into(),
            (None, None) => unreachable!(),
        }
    }
}

/// Operations around the product.
#[derive(Clone, Copy, Debug)]
struct Parts {
    norm: bool,
    bias: bool,
    gate: Option<GateActivation>,
    residual: bool,
}

impl Parts {
    fn all() -> impl Iterator<Item = Self> {
        let gates = [
            None,
            Some(GateActivation::Silu),
            Some(GateActivation::GeluTanh),
            Some(GateActivation::ClampedSwiglu),
        ];
        (0..32).map(move |i| Self {
            norm: i & 1 > 0,
            bias: i & 2 > 0,
            residual: i & 4 > 0,
            gate: gates[i / 8],
        })
    }
}

/// A number and the bound of its error.
type Bounded = (f64, f64);

fn activated(activation: GateActivation, x: f64) -> f64 {
    match activation {
        GateActivation::Silu => x / (1.0 + (-x).exp()),
        GateActivation::GeluTanh => {
            0.5 * x * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * x * (1.0 + 0.044715 * x * x)).tanh())
        }
        GateActivation::ClampedSwiglu => x.min(7.0) / (1.0 + (-1.702 * x.min(7.0)).exp()),
    }
}

fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Computes a row of the result, with bounds: activations are quantized in spans of up to `span` elements if the weights
/// are blocks, and each operation rounds to `dtype` if it is separate.
fn expected(
    of: &Weights,
    parts: Parts,
    [x, norm, bias, residual]: [&[f64]; 4],
    (dtype, out, separate): (DType, DType, bool),
    span: usize,
) -> Vec<Bounded> {
    let (n, k) = (of.n, of.k);
    let step = if separate { epsilon(dtype) } else { 0.0 };
    let scale = match parts.norm {
        true => 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / k as f64 + f64::from(EPS)).sqrt(),
        false => 1.0,
    };
    let row: Vec<f64> = (0..k).map(|i| if parts.norm { x[i] * norm[i] * scale } else { x[i] }).collect();
    let half_step = |i: usize| {
        let whole = &row[i / span * span..((i / span + 1) * span).min(k)];
        let largest = whole.iter().fold(0f64, |top, x| top.max(x.abs()));
        if of.blocks.is_some() {
            largest / 253.0
        } else {
            0.0
        }
    };
    let steps: Vec<f64> = (0..k).map(half_step).collect();
    let product = |r: usize| -> Bounded {
        let weights = &of.values[r * k..(r + 1) * k];
        let top = weights.iter().fold(0f64, |top, w| top.max(w.abs()));
        let sum: f64 = weights.iter().zip(&row).map(|(w, x)| w * x).sum();
        // Sums of scaled bytes and minimums are at most four times the largest weight.
        let magnitude: f64 = row.iter().map(|x| 4.0 * top * x.abs()).sum();
        let quantized: f64 = weights.iter().zip(&steps).map(|(w, step)| w.abs() * step).sum();
        let error = quantized + magnitude * (2.0 * step + 2f64.powi(-24) * (8.0 + k as f64 / 32.0).min(64.0));
        let sum = sum + if parts.bias { bias[r] } else { 0.0 };
        (sum, error + 2.0 * step * sum.abs())
    };
    let columns = if parts.gate.is_some() { n / 2 } else { n };
    let result = |c: usize| {
        let (mut value, mut error) = product(c);
        if let Some(activation) = parts.gate {
            let ((gate, gate_error), (up, up_error)) = ((value, error), product(columns + c));
            let up = match activation {
                GateActivation::ClampedSwiglu => up.clamp(-7.0, 7.0) + 1.0,
                _ => up,
            };
            // Both activations have a slope below 1.2.
            let (act, act_error) =
                (activated(activation, gate), 1.2 * gate_error + 2.0 * step * gate.abs() + 1e-6);
            value = act * up;
            error = act_error * up.abs() + up_error * (act.abs() + act_error) + 2.0 * step * value.abs();
        }
        if parts.residual {
            value += residual[c];
        }
        (value, error + (epsilon(out) + 2.0 * step + 2f64.powi(-22)) * (value.abs() + error) + 1e-6)
    };
    (0..columns).map(result).collect()
}

/// Checks `rows` rows with all or some combinations. Rows for which there is a kernel must take one launch.
fn check(of: &Weights, dtype: DType, rows: usize, span: usize, every: usize, device: &Device) {
    let k = of.k;
    let on_device = |values: &[f64], dims: &[usize]| {
        let cpu = from_f64(values, dims, dtype);
        (to_f64(&cpu), cpu.to_device(device).unwrap())
    };
    let (x, x_tensor) = on_device(&noise(rows * k, 2.0, 3), &[rows, k]);
    let (norm, norm_tensor) = on_device(&noise(k, 1.5, 4), &[k]);
    let (bias, bias_tensor) = on_device(&noise(of.n, 2.0, 5), &[of.n]);
    for (i, parts) in Parts::all().enumerate().filter(|(i, _)| i % every == 0) {
        let columns = if parts.gate.is_some() { of.n / 2 } else { of.n };
        if parts.gate.is_some() && of.n % 2 == 1 {
            continue;
        }
        let (residual, residual_tensor) = on_device(&noise(rows * columns, 4.0, 6), &[rows, columns]);
        let out = if i % 3 == 0 { DType::F32 } else { dtype };
        let mut product = FusedProduct::new(&x_tensor, of.weight())
            .bias(parts.bias.then_some(&bias_tensor))
            .gated(parts.gate)
            .residual(parts.residual.then_some(&residual_tensor))
            .dtype(out);
        if parts.norm {
            product = product.rms_norm(&norm_tensor, EPS);
        }
        let rocm = device.as_rocm_device().unwrap();
        let before = rocm.kernels_launched();
        let got = product.forward().unwrap();
        let what = format!("{dtype:?} {rows} x {k} to {} {parts:?}", of.n);
        let has_kernel =
            rows == 1 || rows <= 4 && of.has_blocks_of(32) && !of.uses_matrix_units(dtype, rocm.arch());
        assert_eq!(of.weight().takes_one_launch(rows, dtype).unwrap(), has_kernel, "{what}");
        if has_kernel {
            assert_eq!(rocm.kernels_launched() - before, 1, "{what}");
        }
        assert_eq!((got.dims(), got.dtype()), (&[rows, columns][..], out), "{what}");
        let got = to_f64(&got);
        for r in 0..rows {
            let residual = &residual[r * columns..(r + 1) * columns];
            let inputs = [&x[r * k..(r + 1) * k], &norm[..], &bias[..], residual];
            let wanted = expected(of, parts, inputs, (dtype, out, !has_kernel), span);
            for (c, (wanted, bound)) in wanted.into_iter().enumerate() {
                let value = got[r * columns + c];
                let error = (value - wanted).abs();
                assert!(error <= bound, "{what}, row {r}, {c}: {value}, wanted {wanted} within {bound}");
            }
        }
    }
}

/// A device whose launches no other test counts.
fn own() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

/// Rows of one pack, of part of the lanes of a wave, of several waves, and of several segments.
#[test]
fn one_row_with_floats() {
    let device = own();
    for dtype in DTYPES {
        for (n, k, every) in [(1, 8, 1), (6, 8, 1), (7, 72, 3), (70, 1032, 5), (5, 16392, 7), (4, 20000, 7)] {
            check(&Weights::floats(dtype, n, k, &device), dtype, 1, 32, every, &device);
        }
    }
}

/// Rows of one block and of several, whole streams of packs and others.
#[test]
fn one_row_with_blocks() {
    let device = own();
    for (kind, format) in block_types() {
        let block = format.weights();
        for (n, blocks, every) in [(1, 1, 2), (6, 1, 1), (10, 3, 5), (38, 8, 3), (5, 25, 7), (4, 104, 11)] {
            let weights = Weights::blocks(kind, n, blocks * block, &device);
            for dtype in DTYPES {
                check(&weights, dtype, 1, 32, every, &device);
            }
        }
    }
}

/// Two to four rows, with few lanes per row and with several waves, and more rows.
#[test]
fn several_rows() {
    let device = own();
    for rows in [2, 3, 4, 5, 17] {
        for dtype in DTYPES {
            check(&Weights::floats(dtype, 6, 72, &device), dtype, rows, 32, 1, &device);
            check(&Weights::floats(dtype, 5, 1032, &device), dtype, rows, 32, 5, &device);
        }
        check(&Weights::floats(DType::F32, 2, 5000, &device), DType::F32, rows, 32, 11, &device);
        for (kind, format) in block_types() {
            for (n, blocks) in [(6, 1), (10, 3), (5, 16), (4, 40)] {
                if format.weights() == 256 && blocks > 3 {
                    continue;
                }
                let weights = Weights::blocks(kind, n, blocks * format.weights(), &device);
                check(&weights, DType::F16, rows, kind.block_size(), 5, &device);
            }
        }
    }
}

/// Shapes with other leading dims, empty tensors, and errors.
#[test]
fn shapes_and_errors() {
    let device = own();
    let weights = Weights::floats(DType::F32, 6, 16, &device);
    let ones = |dims: &[usize], dtype| Tensor::ones(dims, dtype, &device).unwrap();
    let x = ones(&[1, 1, 16], DType::F32);
    assert_eq!(FusedProduct::new(&x, weights.weight()).forward().unwrap().dims(), [1, 1, 6]);
    let empty = ones(&[0, 16], DType::F32);
    let gated = FusedProduct::new(&empty, weights.weight()).gated(GateActivation::Silu);
    assert_eq!(gated.forward().unwrap().dims(), [0, 3]);
    let flat = ones(&[16], DType::F32);
    assert_eq!(FusedProduct::new(&flat, weights.weight()).forward().unwrap().dims(), [6]);
    // Inputs of another dtype are computed by separate operations.
    let half = ones(&[6], DType::F16);
    let mixed = FusedProduct::new(&x, weights.weight()).bias(&half).forward().unwrap();
    assert_eq!(mixed.dtype(), DType::F32);
    let refused = |product: FusedProduct, text: &str| {
        let error = product.forward().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(FusedProduct::new(&half, weights.weight()), "needs rows of 16");
    refused(FusedProduct::new(&x, weights.weight()).bias(&flat), "the bias has shape [16]");
    refused(FusedProduct::new(&x, weights.weight()).residual(&x), "the residual has shape");
    refused(FusedProduct::new(&x, weights.weight()).rms_norm(&half, EPS), "the norm's weight");
    refused(FusedProduct::new(&x, weights.weight()).dtype(DType::F64), "expected f16");
    let odd = Weights::floats(DType::F32, 3, 16, &device);
    refused(FusedProduct::new(&x, odd.weight()).gated(GateActivation::Silu), "an even number");
    let on_cpu = Tensor::ones((6, 16), DType::F32, &Device::Cpu).unwrap();
    refused(FusedProduct::new(&x, &on_cpu), "the weight on");
    // The CPU device computes separate operations.
    let x = Tensor::ones((2, 16), DType::F32, &Device::Cpu).unwrap();
    let product = FusedProduct::new(&x, &on_cpu)
        .rms_norm(&Tensor::ones(16, DType::F32, &Device::Cpu).unwrap(), 0.0)
        .forward();
    assert_eq!(to_f64(&product.unwrap()), [16.0; 12]);
}
