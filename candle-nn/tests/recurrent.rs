//! Recurrent layers on ROCm, compared with separate operations in f32 on the CPU.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Tensor};
use candle_nn::recurrent::{CausalConv, GatedDelta, SelectiveScan, Sequences};
use common::{assert_close, rocm, rocm_alone, tensor, values};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Numbers of rows of sequences, their first positions and their slots.
type Shares<'a> = &'a [(usize, u32, u32)];

/// Sequences that begin and that continue, with fewer and with more rows than a thread or a workgroup processes at once, one
/// without rows, and one whose state is not kept.
const MIXED: Shares = &[
    (1, 0, 3),
    (1, 5, 0),
    (2, 0, 1),
    (0, 0, 6),
    (3, 9, 2),
    (16, 0, 4),
    (17, 16, 5),
    (40, 3, 7),
    (5, 0, u32::MAX),
    (2, 7, u32::MAX),
];
const SLOTS: usize = 9;

struct Batch {
    rows: Tensor,
    slots: Tensor,
    kept: Tensor,
    positions: Tensor,
    max_rows: usize,
}

impl Batch {
    fn new(shares: Shares, device: &Device) -> Self {
        let mut rows = vec![0];
        let mut positions = Vec::new();
        for &(count, first, _) in shares {
            positions.extend((first..).take(count));
            rows.push(positions.len() as u32);
        }
        let slots: Vec<u32> = shares.iter().map(|share| share.2).collect();
        let kept = |&(rows, _, slot): &(usize, u32, u32)| {
            (1..=rows).map(move |row| if row == rows { slot } else { u32::MAX })
        };
        let kept = shares.iter().flat_map(kept).collect();
        let upload = |values: Vec<u32>| Tensor::from_vec(values.clone(), values.len(), device).unwrap();
        let max_rows = shares.iter().map(|share| share.0).max().unwrap_or(0);
        let [rows, slots, kept, positions] = [rows, slots, kept, positions].map(upload);
        Self { rows, slots, kept, positions, max_rows }
    }

    /// Keeps the states after these rows in these slots, too.
    fn keeping(self, rows: &[(usize, u32)]) -> Self {
        let mut kept = self.kept.to_vec1::<u32>().unwrap();
        rows.iter().for_each(|&(row, slot)| kept[row] = slot);
        Self { kept: Tensor::new(kept, self.rows.device()).unwrap(), ..self }
    }

    fn sequences(&self) -> Sequences<'_> {
        let Self { rows, slots, kept, positions, max_rows } = self;
        Sequences { rows, slots, kept, positions, max_rows: *max_rows }
    }

    fn count(&self) -> usize {
        self.positions.elem_count()
    }
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    }
}

/// Returns a matrix whose rows have elements between them.
fn strided(rows: usize, columns: usize, dtype: DType, device: &Device) -> Tensor {
    let all = tensor(&[rows, columns + 3], dtype, 1.7).to_device(device).unwrap();
    all.narrow(1, 2, columns).unwrap()
}

fn wide(x: &Tensor) -> Tensor {
    x.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap()
}

#[test]
fn convolutions_of_all_lengths() {
    let device = rocm();
    for dtype in DTYPES {
        for (channels, has_bias, shares) in [
            (1, false, MIXED),
            (40, true, MIXED),
            (300, false, &MIXED[..2]),
            (130, true, &[(70, 0, 8), (64, 64, 7)]),
        ] {
            let batch = Batch::new(shares, &device);
            let x = strided(batch.count(), channels, dtype, &device);
            let weight = tensor(&[channels, 4], DType::F32, 0.8).to_device(&device).unwrap();
            let states = tensor(&[SLOTS, 3, channels], dtype, 2.0).to_device(&device).unwrap();
            let cpu = Batch::new(shares, &Device::Cpu);
            let bias = tensor(&[channels], DType::F32, 0.6).to_device(&device).unwrap();
            let [cpu_x, cpu_weight, cpu_bias, cpu_states] = [&x, &weight, &bias, &states].map(wide);
            let conv = |[x, weight, bias, states]: [&Tensor; 4], batch: &Batch| {
                let (bias, sequences) = (has_bias.then_some(bias), batch.sequences());
                CausalConv { x, weight, bias, states, sequences }.forward().unwrap()
            };
            let got = conv([&x, &weight, &bias, &states], &batch);
            let expected = conv([&cpu_x, &cpu_weight, &cpu_bias, &cpu_states], &cpu);
            let what = format!("{dtype:?} {channels} {shares:?}");
            assert_eq!(got.dtype(), dtype);
            assert_close(&got, &expected, tolerance(dtype), &what);
            // They are inputs, which are not rounded.
            assert_eq!(values(&states), values(&cpu_states), "{what}");
        }
    }
}

/// Heads of the smallest and of the largest widths with a kernel, and of widths without one.
#[test]
fn gated_delta_rules_of_all_widths() {
    let device = rocm();
    for dtype in DTYPES {
        for (key_heads, value_heads, key_width, value_width, shares) in [
            (1, 1, 16, 8, MIXED),
            (2, 6, 32, 16, MIXED),
            (1, 2, 128, 128, &MIXED[..6]),
            (2, 2, 64, 24, &[(1, 0, 8), (1, 1, 0), (1, 7, 3)]),
            (1, 1, 112, 24, &MIXED[..4]),
            (1, 2, 12, 5, &MIXED[..5]),
        ] {
            let batch = Batch::new(shares, &device);
            let (rows, values_width) = (batch.count(), value_heads * value_width);
            let on_device =
                |dims: &[usize], dtype, limit| tensor(dims, dtype, limit).to_device(&device).unwrap();
            let qkv = on_device(&[rows, 2 * key_heads * key_width + values_width], dtype, 1.3);
            let a = (strided(rows, value_heads, dtype, &device) * 4.0).unwrap();
            let (b, z) =
                (strided(rows, value_heads, dtype, &device), strided(rows, values_width, dtype, &device));
            let rate = on_device(&[value_heads], DType::F32, 0.3).abs().unwrap().neg().unwrap();
            let dt_bias = on_device(&[value_heads], DType::F32, 0.5);
            let norm = on_device(&[value_width], dtype, 1.2);
            let states = on_device(&[SLOTS, value_heads, value_width, key_width], DType::F32, 0.4);
            let cpu = Batch::new(shares, &Device::Cpu);
            let all = [&qkv, &a, &b, &z, &rate, &dt_bias, &norm, &states].map(wide);
            let delta = |[qkv, a, b, z, rate, dt_bias, norm, states]: [&Tensor; 8], batch: &Batch| {
                let (eps, sequences) = (1e-6, batch.sequences());
                GatedDelta { qkv, a, b, z, rate, dt_bias, norm, eps, states, sequences }.forward().unwrap()
            };
            let got = delta([&qkv, &a, &b, &z, &rate, &dt_bias, &norm, &states], &batch);
            let expected = delta(all.each_ref(), &cpu);
            let what = format!("{dtype:?} {key_heads} {value_heads} {key_width} {value_width}");
            assert_eq!(got.dtype(), dtype);
            // The norm divides by small numbers where results are small.
            assert_close(&got, &expected, 4.0 * tolerance(dtype), &what);
            assert_close(&states, &all[7].to_dtype(DType::F64).unwrap(), 2e-5, &format!("{what}: states"));
        }
    }
}

/// Sizes with and without a kernel, and steps at both limits and between them.
#[test]
fn selective_scans_of_all_widths() {
    let device = rocm();
    for dtype in DTYPES {
        for (key_heads, value_heads, key_width, value_width, shares) in [
            (1, 1, 16, 8, MIXED),
            (2, 6, 32, 16, MIXED),
            (1, 2, 128, 64, &MIXED[..6]),
            (2, 2, 64, 80, &[(1, 0, 8), (1, 1, 0), (1, 7, 3)]),
            (1, 2, 12, 5, &MIXED[..5]),
        ] {
            let batch = Batch::new(shares, &device);
            let (rows, width) = (batch.count(), value_heads * value_width);
            let on_device =
                |dims: &[usize], dtype, limit| tensor(dims, dtype, limit).to_device(&device).unwrap();
            let qkv = on_device(&[rows, 2 * key_heads * key_width + width], dtype, 1.3);
            let a = (strided(rows, value_heads, dtype, &device) * 4.0).unwrap();
            let z = strided(rows, width, dtype, &device);
            let rate = on_device(&[value_heads], DType::F32, 0.3).abs().unwrap().neg().unwrap();
            let of_heads = |limit| on_device(&[value_heads], DType::F32, limit);
            let (dt_bias, skip) = (of_heads(0.5), of_heads(1.1));
            let states = on_device(&[SLOTS, value_heads, value_width, key_width], DType::F32, 0.4);
            let cpu = Batch::new(shares, &Device::Cpu);
            let all = [&qkv, &a, &z, &rate, &dt_bias, &skip, &states].map(wide);
            let scan = |[qkv, a, z, rate, dt_bias, skip, states]: [&Tensor; 7], batch: &Batch| {
                let (z, step_limits, sequences) = (Some(z), [0.1, 2.0], batch.sequences());
                let scan = SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states, sequences };
                scan.forward().unwrap()
            };
            let got = scan([&qkv, &a, &z, &rate, &dt_bias, &skip, &states], &batch);
            let expected = scan(all.each_ref(), &cpu);
            let what = format!("{dtype:?} {key_heads} {value_heads} {key_width} {value_width}");
            assert_eq!(got.dtype(), dtype);
            assert_close(&got, &expected, tolerance(dtype), &what);
            assert_close(&states, &all[6].to_dtype(DType::F64).unwrap(), 2e-5, &format!("{what}: states"));
        }
    }
}

/// Mamba 1, in which each element has a step: sizes with and without a kernel, with and without gates.
#[test]
fn selective_scans_with_a_step_for_each_element() {
    let device = rocm();
    for dtype in DTYPES {
        for (heads, key_width, value_width, has_gates, shares) in [
            (1, 16, 8, true, MIXED),
            (3, 16, 32, false, MIXED),
            (1, 16, 128, true, &MIXED[..6]),
            (2, 32, 8, true, &MIXED[..5]),
            (2, 16, 5, false, &MIXED[..5]),
        ] {
            let batch = Batch::new(shares, &device);
            let (rows, width) = (batch.count(), heads * value_width);
            let on_device =
                |dims: &[usize], dtype, limit| tensor(dims, dtype, limit).to_device(&device).unwrap();
            let qkv = on_device(&[rows, 2 * key_width + width], dtype, 1.3);
            let a = (strided(rows, width, dtype, &device) * 4.0).unwrap();
            let z = strided(rows, width, dtype, &device);
            let rate = on_device(&[heads, value_width, key_width], DType::F32, 0.9).abs().unwrap();
            let rate = rate.neg().unwrap();
            let of_steps = |limit| on_device(&[width], DType::F32, limit);
            let (dt_bias, skip) = (of_steps(0.5), of_steps(1.1));
            let states = on_device(&[SLOTS, heads, value_width, key_width], DType::F32, 0.4);
            let cpu = Batch::new(shares, &Device::Cpu);
            let all = [&qkv, &a, &z, &rate, &dt_bias, &skip, &states].map(wide);
            let scan = |[qkv, a, z, rate, dt_bias, skip, states]: [&Tensor; 7], batch: &Batch| {
                let (step_limits, sequences) = ([0.0, f32::INFINITY], batch.sequences());
                let z = has_gates.then_some(z);
                let scan = SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states, sequences };
                scan.forward().unwrap()
            };
            let got = scan([&qkv, &a, &z, &rate, &dt_bias, &skip, &states], &batch);
            let expected = scan(all.each_ref(), &cpu);
            let what = format!("{dtype:?} {heads} {key_width} {value_width}");
            assert_eq!(got.dtype(), dtype);
            assert_close(&got, &expected, tolerance(dtype), &what);
            assert_close(&states, &all[6].to_dtype(DType::F64).unwrap(), 2e-5, &format!("{what}: states"));
            // The definition, for the first sequence that begins, whose only row is row 0.
            let first = |tensor: &Tensor| values(&tensor.get(0).unwrap());
            let [qkv, a, z] = [&all[0], &all[1], &all[2]].map(first);
            let [dt_bias, skip] = [&all[4], &all[5]].map(values);
            for (place, got) in first(&expected).into_iter().enumerate() {
                let (x, step) = (qkv[2 * key_width + place], (a[place] + dt_bias[place]).exp().ln_1p());
                let product: f64 = (0..key_width).map(|k| qkv[k] * qkv[key_width + k]).sum();
                let gate = if has_gates { z[place] / (1.0 + (-z[place]).exp()) } else { 1.0 };
                let wanted = (step * x * product + skip[place] * x) * gate;
                assert!((got - wanted).abs() < 1e-4, "{what}: {got} instead of {wanted}");
            }
        }
    }
}

/// A text that is computed at once, in chunks, and row by row has the same results and states.
#[test]
fn rows_one_by_one_equal_all_rows_at_once() {
    let device = rocm();
    let x = tensor(&[21, 56], DType::F32, 1.0).to_device(&device).unwrap();
    let weight = tensor(&[56, 4], DType::F32, 0.8).to_device(&device).unwrap();
    let of_heads = |limit| tensor(&[3], DType::F32, limit).to_device(&device).unwrap();
    let (rate, dt_bias) = (of_heads(0.2).abs().unwrap().neg().unwrap(), of_heads(0.5));
    let norm = tensor(&[8], DType::F32, 1.0).to_device(&device).unwrap();
    let run = |chunks: &[usize]| {
        let inputs = Tensor::ones((1, 3, 56), DType::F32, &device).unwrap();
        let states = Tensor::ones((1, 3, 8, 16), DType::F32, &device).unwrap();
        let scanned_states = states.copy().unwrap();
        let (mut out, mut scanned, mut first) = (Vec::new(), Vec::new(), 0);
        for &rows in chunks {
            let batch = Batch::new(&[(rows, first as u32, 0)], &device);
            let (x, sequences) = (x.narrow(0, first, rows).unwrap(), batch.sequences());
            let conv = CausalConv { x: &x, weight: &weight, bias: None, states: &inputs, sequences };
            let conv = conv.forward().unwrap();
            let (a, z) = (&x.narrow(1, 0, 3).unwrap(), &x.narrow(1, 5, 24).unwrap());
            let (qkv, rate, dt_bias, norm, states) = (&conv, &rate, &dt_bias, &norm, &states);
            let delta = GatedDelta { qkv, a, b: a, z, rate, dt_bias, norm, eps: 1e-6, states, sequences };
            out.push(delta.forward().unwrap());
            let (z, skip, step_limits, states) = (Some(z), rate, [0.0, f32::INFINITY], &scanned_states);
            let scan = SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states, sequences };
            scanned.push(scan.forward().unwrap());
            first += rows;
        }
        let [out, scanned] = [out, scanned].map(|rows| Tensor::cat(&rows, 0).unwrap());
        [out, scanned, inputs, states, scanned_states].map(|tensor| values(&tensor))
    };
    let expected = run(&[21]);
    for chunks in [&[1; 21][..], &[16, 5], &[2, 1, 3, 15]] {
        for (got, expected) in run(chunks).iter().zip(&expected) {
            assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-5), "{chunks:?}");
        }
    }
}

/// The states after each of the first 16 rows and after the last one equal those of texts that end there.
#[test]
fn states_are_kept_after_each_row() {
    const ROWS: usize = 19;
    for (device, dtype) in [(Device::Cpu, DType::F32), (rocm(), DType::F32), (rocm(), DType::F16)] {
        let on_device = |dims: &[usize], dtype, limit| tensor(dims, dtype, limit).to_device(&device).unwrap();
        let x = on_device(&[ROWS, 56], dtype, 1.0);
        let weight = on_device(&[56, 4], DType::F32, 0.8);
        let rate = on_device(&[3], DType::F32, 0.2).abs().unwrap().neg().unwrap();
        let (dt_bias, norm) = (on_device(&[3], DType::F32, 0.5), on_device(&[8], dtype, 1.0));
        let rate_of_mamba1 = on_device(&[3, 8, 16], DType::F32, 0.9).abs().unwrap().neg().unwrap();
        let of_elements = on_device(&[24], DType::F32, 0.5);
        let run = |rows: usize, kept: &[(usize, u32)]| {
            let inputs = on_device(&[20, 3, 56], dtype, 1.5);
            let [states, scanned, of_mamba1] =
                [0.4, 0.7, 0.6].map(|limit| on_device(&[20, 3, 8, 16], DType::F32, limit));
            let (x, batch) =
                (x.narrow(0, 0, rows).unwrap(), Batch::new(&[(rows, 7, 2)], &device).keeping(kept));
            let sequences = batch.sequences();
            let conv = CausalConv { x: &x, weight: &weight, bias: None, states: &inputs, sequences };
            let qkv = &conv.forward().unwrap();
            let (a, z) = (&x.narrow(1, 0, 3).unwrap(), &x.narrow(1, 5, 24).unwrap());
            let (rate, dt_bias, norm, eps) = (&rate, &dt_bias, &norm, 1e-6);
            let delta = GatedDelta { qkv, a, b: a, z, rate, dt_bias, norm, eps, states: &states, sequences };
            delta.forward().unwrap();
            let (z, skip, step_limits) = (Some(z), rate, [0.0, f32::INFINITY]);
            let scan =
                SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states: &scanned, sequences };
            scan.forward().unwrap();
            let (a, rate, dt_bias, skip) =
                (&x.narrow(1, 2, 24).unwrap(), &rate_of_mamba1, &of_elements, &of_elements);
            let scan =
                SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states: &of_mamba1, sequences };
            scan.forward().unwrap();
            [inputs, states, scanned, of_mamba1]
        };
        let slot_of = |row: usize| if row == 0 { 2 } else { 2 + row as u32 };
        let kept: Vec<(usize, u32)> =
            (0..16).map(|row| (row, slot_of(row))).chain([(ROWS - 1, 19)]).collect();
        let all = run(ROWS, &kept);
        for &(row, slot) in &kept {
            let alone = run(row + 1, &[]);
            for (all, alone) in all.iter().zip(&alone) {
                let state = |tensor: &Tensor, slot: u32| values(&tensor.get(slot as usize).unwrap());
                assert_eq!(state(all, slot), state(alone, 2), "{device:?} {dtype:?}: row {row}");
            }
        }
        // Other slots are unchanged.
        let before = on_device(&[20, 3, 8, 16], DType::F32, 0.4);
        assert_eq!(values(&all[1].get(1).unwrap()), values(&before.get(1).unwrap()));
    }
}

#[test]
fn operands_that_do_not_match_are_rejected() {
    for device in [Device::Cpu, rocm_alone()] {
        let batch = Batch::new(&[(3, 0, 0)], &device);
        let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &device).unwrap();
        let floats = |dims: &[usize]| zeros(dims, DType::F32);
        let conv = |x: &[usize], weight: &[usize], states: &[usize], batch: &Batch| {
            let (x, weight, states) = (floats(x), floats(weight), floats(states));
            let (bias, sequences) = (None, batch.sequences());
            let conv = CausalConv { x: &x, weight: &weight, bias, states: &states, sequences };
            conv.forward().unwrap_err().to_string()
        };
        assert!(conv(&[3, 8], &[7, 4], &[2, 3, 8], &batch).contains("causal-conv: weight"));
        assert!(conv(&[3, 8], &[8, 4], &[2, 2, 8], &batch).contains("causal-conv: states"));
        assert!(conv(&[4, 8], &[8, 4], &[2, 3, 8], &batch).contains("causal-conv: sequences"));
        let delta = |qkv: &[usize], states: &Tensor, norm: &[usize], z: &[usize]| {
            let (qkv, a, z, rate, norm) =
                (&floats(qkv), &floats(&[3, 2]), &floats(z), &floats(&[2]), &floats(norm));
            let (b, dt_bias, eps, sequences) = (a, rate, 1e-6, batch.sequences());
            let delta = GatedDelta { qkv, a, b, z, rate, dt_bias, norm, eps, states, sequences };
            delta.forward().unwrap_err().to_string()
        };
        let states = floats(&[1, 2, 8, 16]);
        assert!(delta(&[3, 47], &states, &[8], &[3, 16]).contains("gated-delta: qkv"));
        assert!(delta(&[3, 48], &states, &[9], &[3, 16]).contains("gated-delta: norm"));
        assert!(delta(&[3, 48], &states, &[8], &[3, 17]).contains("gated-delta: z"));
        let halves = zeros(&[1, 2, 8, 16], DType::F16);
        assert!(delta(&[3, 48], &halves, &[8], &[3, 16]).contains("gated-delta: dtype of states"));
        let scan = |qkv: &[usize], a: &[usize], skip: &[usize]| {
            let (qkv, a, z, rate) = (&floats(qkv), &floats(a), Some(&floats(&[3, 16])), &floats(&[2]));
            let (dt_bias, skip, states, sequences) = (rate, &floats(skip), &states, batch.sequences());
            let step_limits = [0.0, f32::INFINITY];
            let scan = SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states, sequences };
            scan.forward().unwrap_err().to_string()
        };
        assert!(scan(&[3, 47], &[3, 2], &[2]).contains("selective-scan: qkv"));
        assert!(scan(&[3, 48], &[3, 1], &[2]).contains("selective-scan: a"));
        assert!(scan(&[3, 48], &[3, 2], &[1]).contains("selective-scan: rate, dt_bias or skip"));
        let mamba1 = |qkv: &[usize], a: &[usize], rate: &[usize]| {
            let (qkv, a, rate, skip) = (&floats(qkv), &floats(a), &floats(rate), &floats(&[16]));
            let (z, dt_bias, states, sequences) = (None, skip, &states, batch.sequences());
            let step_limits = [0.0, f32::INFINITY];
            let scan = SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states, sequences };
            scan.forward().unwrap_err().to_string()
        };
        assert!(mamba1(&[3, 80], &[3, 16], &[2, 8, 16]).contains("selective-scan: qkv"));
        assert!(mamba1(&[3, 48], &[3, 2], &[2, 8, 16]).contains("selective-scan: a"));
        assert!(mamba1(&[3, 48], &[3, 16], &[2, 8, 8]).contains("selective-scan: rate, dt_bias or skip"));
        // A slot out of range.
        let beyond = Batch::new(&[(3, 0, 2)], &device);
        let (x, weight, states) = (floats(&[3, 8]), floats(&[8, 4]), floats(&[2, 3, 8]));
        let (bias, sequences) = (None, beyond.sequences());
        let conv = CausalConv { x: &x, weight: &weight, bias, states: &states, sequences };
        let error = conv.forward().and_then(|_| device.synchronize()).unwrap_err().to_string();
        assert!(error.contains("2"), "{error}");
    }
}

/// Bounds of sequences that do not fit in the rows are reported, and the other sequences are computed.
#[test]
fn rows_out_of_range_are_reported() {
    for device in [Device::Cpu, rocm_alone()] {
        let floats = |dims: &[usize]| Tensor::ones(dims, DType::F32, &device).unwrap();
        let (x, weight, inputs) = (&floats(&[3, 48]), &floats(&[48, 4]), floats(&[2, 3, 48]));
        let (qkv, a, z) = (x, &floats(&[3, 2]), &floats(&[3, 16]));
        let (rate, norm, states) = (&floats(&[2]), &floats(&[8]), floats(&[2, 2, 8, 16]));
        for (bounds, index) in [([0u32, 1, 4], "4"), ([0, 2, 1], "2"), ([u32::MAX, 2, 3], "4294967295")] {
            let mut batch = Batch::new(&[(1, 0, 0), (2, 0, 1)], &device);
            batch.rows = Tensor::new(&bounds, &device).unwrap();
            let sequences = batch.sequences();
            let conv = CausalConv { x, weight, bias: None, states: &inputs, sequences };
            let (dt_bias, b, states) = (rate, a, &states);
            let delta = GatedDelta { qkv, a, b, z, rate, dt_bias, norm, eps: 1e-6, states, sequences };
            let (z, skip, step_limits) = (Some(z), rate, [0.0, f32::INFINITY]);
            let scan = SelectiveScan { qkv, a, z, rate, dt_bias, skip, step_limits, states, sequences };
            let compute: [&dyn Fn() -> candle::Result<Tensor>; 3] =
                [&|| conv.forward(), &|| delta.forward(), &|| scan.forward()];
            for compute in compute {
                let error = compute().and_then(|_| device.synchronize()).unwrap_err().to_string();
                assert!(error.contains(index), "{bounds:?}: {error}");
            }
        }
    }
}
