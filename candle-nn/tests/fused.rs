//! Fused layers on ROCm, compared with their formulas in f64: softmax, norms, sigmoid, rotary embeddings.
#![cfg(feature = "rocm-emulator")]
mod common;

use candle::{DType, Device, Result, Tensor};
use candle_nn::{ops, rotary_emb};
use common::{assert_close, rocm, rocm_alone, tensor, tolerance, values, wide, FLOATS};

#[test]
fn softmax_of_short_and_long_rows() {
    let device = rocm();
    for dtype in FLOATS {
        for columns in [1, 31, 32, 33, 1023, 1024, 1025, 5000] {
            let x = tensor(&[2, 3, columns], dtype, 4.0);
            // The definition, in f64.
            let e = wide(&x).exp().unwrap();
            let expected = e.broadcast_div(&e.sum_keepdim(2).unwrap()).unwrap();
            let got = ops::softmax_last_dim(&x.to_device(&device).unwrap()).unwrap();
            assert_eq!(got.dtype(), dtype);
            assert_close(&got, &expected, tolerance(dtype), &format!("softmax {dtype:?} {columns}"));
        }
    }
}

/// Returns softmax, its logarithm and the norms of `x`, each from the device and by its definition in f64.
fn row_wise(x: &Tensor, alpha: &Tensor, beta: &Tensor) -> Result<[(Tensor, Tensor); 4]> {
    let last = x.rank() - 1;
    let (w, a, b) = (values_of(x)?, values_of(alpha)?, values_of(beta)?);
    let distance = w.broadcast_sub(&w.max_keepdim(last)?)?;
    let sum = distance.exp()?.sum_keepdim(last)?;
    let centred = w.broadcast_sub(&w.mean_keepdim(last)?)?;
    let by_root =
        |t: &Tensor| t.broadcast_div(&(t.sqr()?.mean_keepdim(last)? + 1e-5)?.sqrt()?)?.broadcast_mul(&a);
    Ok([
        (ops::softmax(x, last)?, distance.exp()?.broadcast_div(&sum)?),
        (ops::log_softmax(x, last)?, distance.broadcast_sub(&sum.log()?)?),
        (ops::rms_norm(x, alpha, 1e-5)?, by_root(&w)?),
        (ops::layer_norm(x, alpha, beta, 1e-5)?, by_root(&centred)?.broadcast_add(&b)?),
    ])
}

fn values_of(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}

/// Covers short rows, of which a workgroup has several, rows that are read twice in part, and rows that are split into
/// parts, each with unaligned starts and odd lengths.
#[test]
fn rows_of_all_lengths_and_alignments() {
    let device = rocm();
    for dtype in FLOATS {
        for (rows, columns, skipped) in [
            (1, 1, 0),
            (3, 2, 1),
            (300, 3, 2),
            (70, 7, 3),
            (65, 17, 1),
            (130, 24, 0),
            (33, 128, 0),
            (16_500, 104, 0),
            (5, 129, 7),
            (2, 4099, 5),
            (1, 20_000, 0),
            (1, 17_003, 1),
            (1, 66_001, 3),
            (2, 70_000, 0),
        ] {
            let to = |t: Tensor, skipped| t.to_device(&device).unwrap().narrow(0, skipped, columns).unwrap();
            let x = tensor(&[rows * columns + skipped], dtype, 4.0).to_device(&device).unwrap();
            let x = x.narrow(0, skipped, rows * columns).unwrap().reshape((rows, columns)).unwrap();
            let alpha = to(tensor(&[columns + 1], dtype, 1.5), 1);
            let beta = to(tensor(&[columns], dtype, 0.5), 0);
            for (op, (got, expected)) in row_wise(&x, &alpha, &beta).unwrap().iter().enumerate() {
                let what = format!("operation {op} {dtype:?} {rows} x {columns} from {skipped}");
                assert_close(got, expected, tolerance(dtype), &what);
            }
        }
    }
}

/// Covers parts of a long row: a part of only -infinity has no effect, a NaN or a row of only -infinity affects the whole
/// row, and a large mean does not reduce the precision of the variance.
#[test]
fn parts_of_a_row_are_combined_correctly() {
    let device = rocm();
    let mut row = vec![f32::NEG_INFINITY; 80_000];
    let softmax = |row: &[f32]| {
        let x = Tensor::from_slice(row, (1, row.len()), &device).unwrap();
        [ops::softmax_last_dim(&x), ops::log_softmax(&x, 1)].map(|t| values(&t.unwrap()))
    };
    assert!(softmax(&row).iter().flatten().all(|v| v.is_nan()));
    (row[7], row[70_001]) = (3.0, 3.0);
    let [got, log] = softmax(&row);
    assert_eq!((got[7], got[70_001], got[8], got[79_999]), (0.5, 0.5, 0.0, 0.0));
    assert!((log[7] + 2f64.ln()).abs() < 1e-6 && log[8] == f64::NEG_INFINITY);
    row[30_000] = f32::NAN;
    assert!(softmax(&row).iter().flatten().all(|v| v.is_nan()));

    let x = (tensor(&[1, 80_000], DType::F32, 1.0) + 1000.0).unwrap().to_device(&device).unwrap();
    let (ones, zeros) =
        (Tensor::ones(80_000, DType::F32, &device), Tensor::zeros(80_000, DType::F32, &device));
    let [.., (got, expected)] = row_wise(&x, &ones.unwrap(), &zeros.unwrap()).unwrap();
    assert_close(&got, &expected, 1e-5, "layer_norm");
}

/// The fused operations have no gradients; upstream's operations are used if gradients are tracked.
#[test]
fn softmax_and_its_logarithm_over_any_dim_and_their_gradients() {
    let device = rocm();
    for (name, op) in [
        ("softmax", ops::softmax::<usize> as fn(&Tensor, usize) -> Result<Tensor>),
        ("log", ops::log_softmax),
    ] {
        for dim in 0..3 {
            let cpu = candle::Var::from_tensor(&tensor(&[3, 4, 5], DType::F32, 3.0)).unwrap();
            let gpu = candle::Var::from_tensor(&cpu.to_device(&device).unwrap()).unwrap();
            let fused = op(&gpu.as_detached_tensor(), dim).unwrap();
            assert!(fused.is_contiguous() && !fused.track_op());
            assert_close(&fused, &wide(&op(&cpu, dim).unwrap()), 1e-6, name);
            let gradient = |x: &candle::Var| {
                let y = op(x, dim).unwrap();
                let loss = (&y * tensor(&[3, 4, 5], DType::F32, 1.0).to_device(x.device()).unwrap()).unwrap();
                loss.sum_all().unwrap().backward().unwrap().get(x).unwrap().clone()
            };
            assert_close(&gradient(&gpu), &wide(&gradient(&cpu)), 1e-5, name);
        }
    }
}

/// The fused launch rounds like two operations, on halves of rows of all lengths. With gradients, two operations are used.
#[test]
fn swiglu_equals_silu_and_a_product() {
    let device = rocm();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::F8E4M3] {
        for columns in [2, 6, 14, 32, 1026] {
            let x = tensor(&[5, columns], dtype, 4.0).to_device(&device).unwrap();
            let halves = x.chunk(2, 1).unwrap();
            let expected = (halves[0].silu().unwrap() * &halves[1]).unwrap();
            let got = ops::swiglu(&x).unwrap();
            assert_eq!((got.dtype(), got.dims()), (dtype, &[5, columns / 2][..]));
            assert_close(&got, &wide(&expected.to_device(&Device::Cpu).unwrap()), 0.0, &format!("{dtype:?}"));
        }
    }
    let cpu = candle::Var::from_tensor(&tensor(&[3, 8], DType::F32, 3.0)).unwrap();
    let gpu = candle::Var::from_tensor(&cpu.to_device(&device).unwrap()).unwrap();
    let gradient = |x: &candle::Var| {
        let loss = ops::swiglu(x).unwrap().sqr().unwrap().sum_all().unwrap();
        loss.backward().unwrap().get(x).unwrap().clone()
    };
    assert_close(&gradient(&gpu), &wide(&gradient(&cpu)), 1e-5, "gradient");
    let integers = Tensor::ones((2, 4), DType::U32, &device).unwrap();
    assert_eq!(values(&ops::swiglu(&integers).unwrap()), [0.0; 4]);
}

#[test]
fn softmax_of_large_numbers_does_not_overflow() {
    let device = rocm();
    let x = Tensor::new(&[[1000f32, 1001.0, -1000.0]], &device).unwrap();
    let got = ops::softmax_last_dim(&x).unwrap();
    let e = 1f64 / (1.0 + 1f64.exp());
    let expected = Tensor::new(&[[e, 1.0 - e, 0.0]], &Device::Cpu).unwrap();
    assert_close(&got, &expected, 1e-6, "softmax");
}

#[test]
fn softmax_of_a_strided_tensor_is_an_error() {
    let device = rocm();
    let x = tensor(&[4, 4], DType::F32, 1.0).to_device(&device).unwrap().t().unwrap();
    let error = ops::softmax_last_dim(&x).unwrap_err().to_string();
    assert!(error.contains("softmax-last-dim") && error.contains("contiguous"), "{error}");
}

#[test]
fn norms_of_short_and_long_rows() {
    let device = rocm();
    for dtype in FLOATS {
        for columns in [1, 31, 32, 33, 1023, 1024, 1025, 5000] {
            let (x, alpha) = (tensor(&[3, columns], dtype, 2.0), tensor(&[columns], dtype, 1.5));
            let beta = tensor(&[columns], dtype, 0.5);
            let to = |t: &Tensor| t.to_device(&device).unwrap();
            let (w, a, b) = (wide(&x), wide(&alpha), wide(&beta));
            let mean_of_squares = w.sqr().unwrap().mean_keepdim(1).unwrap();
            let scale = (mean_of_squares + 1e-5).unwrap().sqrt().unwrap();
            let expected = w.broadcast_div(&scale).unwrap().broadcast_mul(&a).unwrap();
            let got = ops::rms_norm(&to(&x), &to(&alpha), 1e-5).unwrap();
            assert_close(&got, &expected, tolerance(dtype), &format!("rms_norm {dtype:?} {columns}"));

            let centred = w.broadcast_sub(&w.mean_keepdim(1).unwrap()).unwrap();
            let variance = centred.sqr().unwrap().mean_keepdim(1).unwrap();
            let scaled = centred.broadcast_div(&(variance + 1e-5).unwrap().sqrt().unwrap()).unwrap();
            let expected = scaled.broadcast_mul(&a).unwrap().broadcast_add(&b).unwrap();
            let got = ops::layer_norm(&to(&x), &to(&alpha), &to(&beta), 1e-5).unwrap();
            assert_close(&got, &expected, tolerance(dtype), &format!("layer_norm {dtype:?} {columns}"));
        }
    }
}

#[test]
fn weights_that_do_not_match_their_rows_are_errors() {
    let device = rocm();
    let x = tensor(&[2, 8], DType::F32, 1.0).to_device(&device).unwrap();
    let alpha = tensor(&[7], DType::F32, 1.0).to_device(&device).unwrap();
    assert!(ops::rms_norm(&x, &alpha, 1e-5).is_err());
}

#[test]
fn sigmoid_follows_the_layout() {
    let device = rocm();
    for dtype in FLOATS {
        let x = tensor(&[3, 4, 5], dtype, 4.0);
        for view in
            [|t: &Tensor| Ok(t.clone()), |t: &Tensor| t.transpose(0, 2), |t: &Tensor| t.narrow(1, 1, 2)]
                as [fn(&Tensor) -> Result<Tensor>; 3]
        {
            let w = wide(&view(&x).unwrap());
            let expected = (w.neg().unwrap().exp().unwrap() + 1.0).unwrap().recip().unwrap();
            let got = ops::sigmoid(&view(&x.to_device(&device).unwrap()).unwrap()).unwrap();
            assert_close(&got, &expected, tolerance(dtype), &format!("sigmoid {dtype:?}"));
        }
    }
}

type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

#[test]
fn rotary_embeddings_with_shared_and_separate_angles() {
    let device = rocm();
    // Upstream's reference implementations use tensor operations; the one for rope_thd swaps two dims.
    let slow_thd: Rope = |x, cos, sin| {
        rotary_emb::rope_slow(&x.transpose(1, 2)?.contiguous()?, cos, sin)?.transpose(1, 2)?.contiguous()
    };
    let kinds: [(&str, Rope, Rope, [usize; 3]); 3] = [
        ("rope", rotary_emb::rope, rotary_emb::rope_slow, [2, 3, 5]),
        ("rope_i", rotary_emb::rope_i, rotary_emb::rope_i_slow, [2, 3, 5]),
        ("rope_thd", rotary_emb::rope_thd, slow_thd, [2, 5, 3]),
    ];
    // Aligned for vectors, and pair by pair.
    for (dtype, half) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 16), (dtype, 3)]) {
        for (name, fused, slow, [b, m, n]) in kinds {
            let x = tensor(&[b, m, n, 2 * half], dtype, 2.0);
            let (cos, sin) = (tensor(&[5, half], dtype, 1.0), tensor(&[5, half], dtype, 0.7));
            let to = |t: &Tensor| t.to_device(&device).unwrap();
            let expected = slow(&wide(&x), &wide(&cos), &wide(&sin)).unwrap();
            let got = fused(&to(&x), &to(&cos), &to(&sin)).unwrap();
            assert_close(&got, &expected, tolerance(dtype), &format!("{name} {dtype:?}"));

            // Separate angles for each of the two batches.
            let (cos, sin) = (tensor(&[2, 5, half], dtype, 1.0), tensor(&[2, 5, half], dtype, 0.7));
            let got = fused(&to(&x), &to(&cos), &to(&sin)).unwrap();
            for batch in 0..2 {
                let pick = |t: &Tensor| wide(&t.get(batch).unwrap());
                let own = wide(&x.narrow(0, batch, 1).unwrap());
                let expected = slow(&own, &pick(&cos), &pick(&sin)).unwrap();
                let part = got.narrow(0, batch, 1).unwrap();
                assert_close(&part, &expected, tolerance(dtype), &format!("{name} {dtype:?} batch {batch}"));
            }
        }
    }
}

/// Each thread has several heads, and the last threads fewer.
#[test]
fn rotary_embeddings_of_many_heads() {
    let x = tensor(&[1, 49, 2048, 6], DType::F32, 2.0);
    let (cos, sin) = (tensor(&[2048, 3], DType::F32, 1.0), tensor(&[2048, 3], DType::F32, 0.7));
    let to = |t: &Tensor| t.to_device(&rocm()).unwrap();
    let got = rotary_emb::rope(&to(&x), &to(&cos), &to(&sin)).unwrap();
    assert_close(&got, &rotary_emb::rope_slow(&x, &cos, &sin).unwrap(), 1e-6, "rope of many heads");
}

/// Weights that were computed on another stream of the same GPU are waited for.
#[test]
fn operands_of_two_streams() {
    let (device, other) = (rocm(), rocm_alone());
    // Everything is kept, since releasing memory would wait.
    let kept = std::cell::RefCell::new(Vec::new());
    let large = Tensor::ones((400, 400), DType::F32, &other).unwrap();
    // Written only after a slow product.
    let late = |dims: &[usize]| {
        let t = tensor(dims, DType::F32, 1.0).to_device(&other).unwrap();
        let product = large.matmul(&large).unwrap();
        let late = (&t * 1.0).unwrap();
        kept.borrow_mut().extend([t, product, late.clone()]);
        late
    };
    let here = |dims: &[usize]| tensor(dims, DType::F32, 1.0).to_device(&device).unwrap();
    let x = here(&[3, 2000]);
    let (got, expected) = (
        ops::layer_norm(&x, &late(&[2000]), &late(&[2000]), 1e-5).unwrap(),
        ops::layer_norm(&x, &here(&[2000]), &here(&[2000]), 1e-5).unwrap(),
    );
    assert_close(&got, &expected, 0.0, "layer_norm");
    let x = here(&[1, 2, 64, 16]);
    let (got, expected) = (
        rotary_emb::rope(&x, &late(&[64, 8]), &late(&[64, 8])).unwrap(),
        rotary_emb::rope(&x, &here(&[64, 8]), &here(&[64, 8])).unwrap(),
    );
    assert_close(&got, &expected, 0.0, "rope");
    let dims = [1, 2, 64, 16];
    let (got, expected) = (
        ops::sdpa(&x, &late(&dims), &late(&dims), Some(&late(&[64, 64])), false, 0.2, 1.0).unwrap(),
        ops::sdpa(&x, &here(&dims), &here(&dims), Some(&here(&[64, 64])), false, 0.2, 1.0).unwrap(),
    );
    assert_close(&got, &expected, 0.0, "sdpa");
}
