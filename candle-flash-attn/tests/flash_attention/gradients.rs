//! Gradients of every function, compared with those of Candle's own operations on the CPU device in f64, and with finite
//! differences of the formula.
use candle::{CustomOp3, DType, Device, Result, Tensor, Var};
use candle_flash_attn::*;
use rand::{rngs::StdRng, Rng, SeedableRng};

use crate::attention_formula::{assert_close, wide, Formula};
use crate::case::{Case, Form, Host, Inputs, View};
use crate::functions::{Function, FUNCTIONS};
use crate::{device, formula, CAUSAL, DTYPES, SCORES, WINDOWS};

/// A case's values, the gradient of its result, and the device's outputs: the result and the gradients of q, k and v, each
/// (rows, heads, width).
struct Differentiated {
    function: &'static Function,
    host: Host,
    grad: Vec<f32>,
    made: [Vec<f64>; 4],
}

fn differentiate(case: &Case, device: &Device) -> Result<Differentiated> {
    let functions = case.functions();
    assert!(!functions.is_empty(), "no function supports {case:?}");
    let function = functions[case.function % functions.len()];
    let mut rng = StdRng::seed_from_u64(case.seed);
    let host = case.host(&mut rng)?;
    let inputs = case.inputs(&host, &mut rng, device)?;
    let vars = inputs.bases.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let bases: Vec<_> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let [q, k, v] = case.views(&bases)?;
    let (out, statistics) = (function.call)(case, &Inputs { q, k, v, ..inputs })?;
    assert!(statistics.is_none_or(|statistics| !statistics.track_op()), "{}", function.name);
    let random: Vec<f32> = (0..out.elem_count()).map(|_| rng.random_range(-1f32..1.0)).collect();
    let grad = Tensor::from_vec(random, out.dims(), &Device::Cpu)?.to_dtype(case.dtype)?;
    let grads = (&out * grad.to_device(device)?)?.sum_all()?.backward()?;
    let of_bases: Vec<_> = bases.iter().map(|base| grads.get(base).expect("a gradient").clone()).collect();
    let [q, k, v] = case.views(&of_bases)?;
    let grad = grad.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(Differentiated { function, host, grad, made: [wide(&out)?, wide(&q)?, wide(&k)?, wide(&v)?] })
}

/// Returns the reference from Candle's graph, without and with rounding of intermediate values.
fn expected(case: &Case, host: &Host, grad: &[f32]) -> Result<[[Vec<f64>; 4]; 2]> {
    let ((heads, key_heads), (width, value_width)) = (case.heads, case.widths);
    let (mut right, mut rounded): ([Vec<f64>; 4], [Vec<f64>; 4]) = Default::default();
    let (mut first_query, mut first_key) = (0, 0);
    for (sequence, &(queries, keys)) in case.sequences.iter().enumerate() {
        // Converts (rows, heads, width) to (1, heads, rows, width).
        let operand = |values: &[f32], first: usize, rows: usize, heads: usize, width: usize| {
            let part = &values[first * heads * width..][..rows * heads * width];
            let part: Vec<f64> = part.iter().map(|x| f64::from(*x)).collect();
            Tensor::from_vec(part, (1, rows, heads, width), &Device::Cpu)?.transpose(1, 2)?.contiguous()
        };
        let add = |to: &mut [Vec<f64>; 4], parts: [&Tensor; 4]| -> Result<()> {
            for (to, part) in to.iter_mut().zip(parts) {
                to.extend(wide(&part.transpose(1, 2)?)?);
            }
            Ok(())
        };
        let q = operand(&host.q, first_query, queries, heads, width)?;
        let k = operand(&host.k, first_key, keys, key_heads, width)?;
        let v = operand(&host.v, first_key, keys, key_heads, value_width)?;
        let grad = operand(grad, first_query, queries, heads, value_width)?;
        (first_query, first_key) = (first_query + queries, first_key + keys);
        if queries * keys == 0 {
            let nothing = [&grad, &q, &k, &v].map(|t| t.zeros_like());
            let [result, q, k, v] = nothing;
            let parts = [&result?, &q?, &k?, &v?];
            add(&mut right, parts)?;
            add(&mut rounded, parts)?;
            continue;
        }
        let no_slopes = vec![0.0; heads];
        let formula = Formula {
            scale: f64::from(case.scale()),
            softcap: case.softcap.filter(|cap| *cap > 0.0).map(f64::from),
            slopes: if case.alibi { &host.slopes } else { &no_slopes },
            sinks: &host.sinks,
            sees: &|position, key| case.sees(sequence, position, key),
        };
        let vars = [Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?];
        let result = formula.result(&vars[0], &vars[1], &vars[2])?;
        let grads = (&result * &grad)?.sum_all()?.backward()?;
        let of = |var: &Var| grads.get(var).expect("a gradient");
        add(&mut right, [&result, of(&vars[0]), of(&vars[1]), of(&vars[2])])?;
        add(&mut rounded, formula.rounded([&q, &k, &v], &grad, case.dtype)?.each_ref())?;
    }
    Ok([right, rounded])
}

/// Compares all cases with Candle's graph. Returns the names of the functions called.
#[track_caller]
fn check(cases: impl IntoIterator<Item = Case>) -> Result<Vec<&'static str>> {
    let (device, mut called, mut most) = (device(), Vec::new(), [0f64; 3]);
    for case in cases {
        let Differentiated { function, host, grad, made } = differentiate(&case, &device)?;
        let [right, rounded] = expected(&case, &host, &grad)?;
        for (i, what) in ["result", "q", "k", "v"].into_iter().enumerate() {
            let what = format!("{what} of {}: {case:?}", function.name);
            let share = assert_close(&made[i], &right[i], &rounded[i], case.dtype, &what);
            let at = DTYPES.iter().position(|dtype| *dtype == case.dtype).expect("a dtype of the cases");
            most[at] = most[at].max(share);
        }
        called.push(function.name);
    }
    println!("{} cases; {DTYPES:?} off by {most:.2?} of what is allowed", called.len());
    Ok(called)
}

/// Forms that support gradients.
const FORMS: [Form; 2] = [Form::Dense, Form::Sequences];

#[test]
fn gradients_of_every_function() -> Result<()> {
    let mut cases = Vec::new();
    for form in FORMS {
        for (i, (alibi, softcap)) in SCORES.into_iter().enumerate() {
            for (j, window) in WINDOWS.into_iter().enumerate() {
                let sequences = if form == Form::Dense { vec![(19, 35); 2] } else { vec![(19, 35), (3, 20)] };
                let (dtype, seed) = (DTYPES[(i + j) % 3], cases.len() as u64);
                let case = Case {
                    form,
                    alibi,
                    softcap,
                    window,
                    sequences,
                    dtype,
                    seed,
                    heads: (2, 1),
                    ..Case::default()
                };
                let functions = case.functions().len();
                cases.extend((0..functions).map(|function| Case { function, ..case.clone() }));
            }
        }
    }
    let sinks = |case: &Case| Case { sinks: true, function: 0, ..case.clone() };
    let with_sinks: Vec<_> = cases.iter().map(sinks).filter(|case| !case.functions().is_empty()).collect();
    cases.extend(with_sinks);
    let called = check(cases)?;
    let missed: Vec<_> =
        FUNCTIONS.iter().filter(|f| !f.pages && !called.contains(&f.name)).map(|f| f.name).collect();
    assert!(missed.is_empty(), "not called: {missed:?}");
    Ok(())
}

#[test]
fn gradients_of_every_width() -> Result<()> {
    let mut cases = Vec::new();
    for (i, width) in [8, 32, 40, 64, 72, 96, 128, 160, 256, 512].into_iter().enumerate() {
        for (j, dtype) in DTYPES.into_iter().enumerate() {
            let (sequences, other) =
                (vec![[(5, 40), (37, 43), (20, 33)][(i + j) % 3]], [64, 24, 128][(i + j) % 3]);
            let widths = [(width, width), (width, other), (other, width)];
            let case =
                Case { dtype, sequences, heads: (1, 1), window: CAUSAL, function: i, ..Case::default() };
            let which = if j == i % 3 { &widths[..1] } else { &widths[1 + j % 2..][..1] };
            for &widths in which {
                if dtype != DType::F32 || width <= 256 {
                    cases.push(Case { widths, form: FORMS[(i + j) % 2], ..case.clone() });
                }
            }
        }
    }
    check(cases).map(|_| ())
}

#[test]
fn gradients_at_the_edges_of_tiles_and_of_groups() -> Result<()> {
    let heads = [(1, 1), (4, 2), (8, 1), (6, 2), (3, 1)];
    let lengths = [(1, 1), (1, 70), (16, 16), (17, 33), (33, 32), (64, 65), (129, 31), (128, 130), (9, 300)];
    let cases = lengths.into_iter().enumerate().map(|(i, length)| Case {
        sequences: vec![length],
        heads: heads[i % 5],
        form: FORMS[i % 2],
        dtype: DTYPES[i / 2 % 3],
        window: [CAUSAL, (None, None), (Some(20), Some(3))][i % 3],
        widths: (40, 40),
        function: i,
        ..Case::default()
    });
    check(cases).map(|_| ())
}

#[test]
fn gradients_of_empty_sequences_and_of_queries_without_keys() -> Result<()> {
    let sequences =
        [vec![(0, 5), (3, 3), (0, 0)], vec![(4, 0), (1, 2)], vec![(40, 7)], vec![(150, 20), (2, 1)]];
    let mut cases: Vec<Case> = Vec::new();
    for (i, sequences) in sequences.into_iter().enumerate() {
        let case = Case { form: Form::Sequences, sequences, window: CAUSAL, ..Case::default() };
        cases.extend([0, 1].map(|j| Case { dtype: DTYPES[(i + j) % 3], function: i + j, ..case.clone() }));
    }
    for (i, sequences) in [vec![(5, 0)], vec![(0, 5)], vec![(30, 4)]].into_iter().enumerate() {
        cases.push(Case { sequences, window: CAUSAL, dtype: DTYPES[i], function: i, ..Case::default() });
    }
    check(cases).map(|_| ())
}

#[test]
fn gradients_of_operands_of_any_strides() -> Result<()> {
    let mut cases = Vec::new();
    for (i, view) in [View::Heads, View::Offset, View::Fused].into_iter().enumerate() {
        for (j, form) in FORMS.into_iter().enumerate() {
            let sequences = if form == Form::Dense { vec![(21, 21); 2] } else { vec![(21, 21), (6, 6)] };
            let (dtype, function) = (DTYPES[(i + j) % 3], i);
            cases.push(Case {
                view,
                dtype,
                form,
                sequences,
                function,
                heads: (4, 2),
                widths: (72, 72),
                ..Case::default()
            });
        }
    }
    check(cases).map(|_| ())
}

/// Differentiates Σ result · grad by changing single elements of q, k and v.
#[test]
fn gradients_are_the_limits_of_finite_differences() -> Result<()> {
    let device = device();
    let case = Case { dtype: DType::F32, sequences: vec![(9, 13)], widths: (16, 24), ..Case::default() };
    let varlen = vec![(5, 9), (7, 3)];
    let cases = [
        Case { window: CAUSAL, heads: (4, 2), ..case.clone() },
        Case { alibi: true, softcap: Some(1.5), window: (Some(4), Some(2)), function: 1, ..case.clone() },
        Case { form: Form::Sequences, sequences: varlen.clone(), window: CAUSAL, ..case.clone() },
        Case { form: Form::Sequences, sequences: varlen, alibi: true, softcap: Some(2.0), ..case },
    ];
    for case in cases {
        let Differentiated { function, mut host, grad, made } = differentiate(&case, &device)?;
        fn of(host: &mut Host, operand: usize) -> &mut Vec<f32> {
            [&mut host.q, &mut host.k, &mut host.v].into_iter().nth(operand).expect("one of three")
        }
        let loss = |host: &Host| -> f64 {
            let out = formula::attention::<f64>(&case, host).out;
            out.iter().zip(&grad).map(|(x, grad)| x * f64::from(*grad)).sum()
        };
        for (operand, gradient) in made[1..].iter().enumerate() {
            let largest = gradient.iter().fold(0f64, |most, x| most.max(x.abs()));
            for at in (0..gradient.len()).step_by(gradient.len() / 16 + 1) {
                let here = of(&mut host, operand)[at];
                let mut moved = |to: f32| {
                    of(&mut host, operand)[at] = to;
                    let loss = loss(&host);
                    of(&mut host, operand)[at] = here;
                    loss
                };
                let (more, less) = (here + 1.0 / 4096.0, here - 1.0 / 4096.0);
                let slope = (moved(more) - moved(less)) / (f64::from(more) - f64::from(less));
                let off = (slope - gradient[at]).abs();
                let name = function.name;
                assert!(
                    off <= 1e-5 * largest,
                    "{name}, operand {operand} at {at}: off by {off} of {slope}: {case:?}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_are_deterministic() -> Result<()> {
    let device = device();
    for (i, dtype) in DTYPES.into_iter().enumerate() {
        let form = FORMS[i % 2];
        let case = Case {
            dtype,
            form,
            sequences: vec![(140, 150)],
            heads: (4, 2),
            window: CAUSAL,
            ..Case::default()
        };
        let [first, again] = [differentiate(&case, &device)?.made, differentiate(&case, &device)?.made];
        for (first, again) in first.iter().zip(&again) {
            assert!(first.iter().zip(again).all(|(a, b)| a.to_bits() == b.to_bits()), "{case:?}");
        }
    }
    Ok(())
}

/// Rows before the first sequence and after the last are NaN and must not be read; their gradients are zero.
#[test]
fn rows_outside_of_sequences_have_zero_gradients() -> Result<()> {
    let device = device();
    for dtype in DTYPES {
        let of = |rows: usize, seed: usize| {
            let values: Vec<f32> =
                (0..rows * 2 * 64).map(|i| ((i * 7 + seed) % 23) as f32 / 11.0 - 1.0).collect();
            Tensor::from_vec(values, (rows, 2, 64), &device)?.to_dtype(dtype)
        };
        let run = |before: usize, behind: usize| -> Result<[Vec<f64>; 4]> {
            let nan = |rows: usize| Tensor::full(f32::NAN, (rows, 2, 64), &device)?.to_dtype(dtype);
            let around = |t: Tensor| match before + behind {
                0 => Ok(t),
                _ => Tensor::cat(&[nan(before)?, t, nan(behind)?], 0),
            };
            let operands = [of(8, 1)?, of(11, 5)?, of(11, 9)?];
            let [q, k, v] = operands.map(|t| around(t).and_then(|t| Var::from_tensor(&t)));
            let (q, k, v, first) = (q?, k?, v?, before as u32);
            let starts = Tensor::new(&[first, first + 3, first + 8], &device)?;
            let key_starts = Tensor::new(&[first, first + 9, first + 11], &device)?;
            let out = flash_attn_varlen(&q, &k, &v, &starts, &key_starts, 5, 9, 0.125, true)?;
            let grads = (&out * around(of(8, 3)?)?)?.sum_all()?.backward()?;
            let of = |var: &Var| wide(grads.get(var).expect("a gradient"));
            Ok([wide(&out)?, of(&q)?, of(&k)?, of(&v)?])
        };
        let (alone, among) = (run(0, 0)?, run(2, 3)?);
        for (what, (alone, among)) in ["result", "q", "k", "v"].iter().zip(alone.iter().zip(&among)) {
            let mut all = vec![0.0; 2 * 2 * 64];
            all.extend(alone);
            all.extend([0.0; 3 * 2 * 64]);
            assert!(*among == all, "{what}, {dtype:?}");
        }
    }
    Ok(())
}

/// The op, applied directly, recomputes the statistics in the backward pass. The gradient of its result may have any
/// strides.
#[test]
fn the_op_recomputes_statistics_in_the_backward_pass() -> Result<()> {
    let device = device();
    let case = Case { sequences: vec![(20, 33); 2], heads: (4, 2), window: CAUSAL, ..Case::default() };
    let mut rng = StdRng::seed_from_u64(1);
    let Inputs { q, k, v, .. } = case.inputs(&case.host(&mut rng)?, &mut rng, &device)?;
    let [q, k, v] = [Var::from_tensor(&q)?, Var::from_tensor(&k)?, Var::from_tensor(&v)?];
    let op = FlashAttn { softmax_scale: case.scale(), window_size_right: Some(0), ..FlashAttn::default() };
    let of_function = flash_attn(&q, &k, &v, case.scale(), true)?;
    let of_op = q.apply_op3(&k, &v, op.clone())?;
    // One row for all heads, using every third column from the second on.
    let row =
        Tensor::arange(0u32, 2 * 20 * 64 * 3, &device)?.to_dtype(DType::F32)?.sin()?.to_dtype(DType::F16)?;
    let row = row.reshape((2, 20, 1, 64, 3))?.narrow(4, 1, 1)?.squeeze(4)?;
    let grad = row.broadcast_as(of_op.shape())?;
    let dense = |out: &Tensor| -> Result<Vec<Vec<f64>>> {
        let grads = (out * grad.contiguous()?)?.sum_all()?.backward()?;
        [&q, &k, &v].into_iter().map(|var| wide(grads.get(var).expect("a gradient"))).collect()
    };
    let right = dense(&of_function)?;
    assert_eq!(dense(&of_op)?, right);
    let (of_q, of_k, of_v) = op.bwd(&q, &k, &v, &of_op, &grad)?;
    let strided = [of_q, of_k, of_v].map(|gradient| wide(&gradient.expect("of a variable")));
    assert_eq!(strided.into_iter().collect::<Result<Vec<_>>>()?, right);
    Ok(())
}

#[test]
fn only_variables_have_gradients() -> Result<()> {
    let device = device();
    let constant = Tensor::ones((1, 8, 2, 64), DType::F16, &device)?;
    for asked in 0..3 {
        let var = Var::from_tensor(&constant)?;
        let mut operands = [&constant; 3];
        operands[asked] = var.as_tensor();
        let [q, k, v] = operands;
        let grads = flash_attn(q, k, v, 0.125, false)?.sum_all()?.backward()?;
        assert!(grads.get(&var).is_some() && grads.get(&constant).is_none(), "operand {asked}");
    }
    Ok(())
}

/// Inference allocates only the result.
#[test]
fn statistics_are_kept_for_gradients_only() -> Result<()> {
    const ROWS: usize = 256;
    const HEADS: usize = 8;
    device();
    // A separate stream, so that other tests' memory does not count.
    let device = Device::new_rocm_with_stream(0)?;
    let x = Tensor::zeros((1, ROWS, HEADS, 8), DType::F16, &device)?;
    // Returns the bytes and the number of allocations of a call.
    let taken = |device: &Device, attend: &dyn Fn() -> Result<Tensor>| -> Result<(usize, u64)> {
        let before = device.as_rocm_device()?.memory_stats();
        let out = attend()?;
        let after = device.as_rocm_device()?.memory_stats();
        drop(out);
        Ok((after.live - before.live, after.requests - before.requests))
    };
    let starts = Tensor::new(&[0u32, ROWS as u32], &device)?;
    let rows = x.squeeze(0)?;
    type Attend<'a> = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + 'a>;
    let functions: [Attend; 2] = [
        Box::new(|x, _| flash_attn(x, x, x, 0.1, true)),
        Box::new(|_, rows| flash_attn_varlen(rows, rows, rows, &starts, &starts, ROWS, ROWS, 0.1, true)),
    ];
    // Allocations are rounded up by at most an eighth.
    let is_about = |bytes: usize, expected: usize| (expected..=expected + expected / 8).contains(&bytes);
    for attend in functions {
        let (plain, requests) = taken(&device, &|| attend(&x, &rows))?;
        assert!(is_about(plain, ROWS * HEADS * 8 * 2) && requests == 1, "{plain} bytes, {requests} requests");
        let var = Var::from_tensor(&x)?;
        let tracked = var.squeeze(0)?;
        let (bytes, requests) = taken(&device, &|| attend(&var, &tracked))?;
        assert!(
            is_about(bytes - plain, ROWS * HEADS * 4) && requests == 2,
            "{bytes} bytes, {requests} requests"
        );
        let (var, tracked) = (var.detach(), tracked.detach());
        assert_eq!(taken(&device, &|| attend(&var, &tracked))?, (plain, 1));
    }
    Ok(())
}

#[test]
fn unsupported_gradients_are_errors() -> Result<()> {
    let device = device();
    let var = |dims: &[usize], dtype| Tensor::ones(dims, dtype, &device).and_then(|t| Var::from_tensor(&t));
    let starts = Tensor::new(&[0u32, 8], &device)?;
    let table = Tensor::new(&[[0u32]], &device)?;
    let (rows, pages) = (var(&[8, 2, 64], DType::F16)?, var(&[1, 16, 2, 64], DType::F16)?);
    let paged = flash_attn_varlen_paged_windowed(
        &rows, &pages, &pages, &starts, &starts, &table, None, 8, 8, 0.1, None, None, 16, None,
    )?;
    let far = var(&[1, 4, 1, 264], DType::F32)?;
    let far = flash_attn(&far, &far, &far, 0.1, false)?;
    let table = [
        (paged, "flash-attn-varlen: no gradients with pages"),
        (far, "flash-attn: no gradients of F32 for heads of width 264 and 264: multiples of 4, at most 512, or 256 in f32"),
    ];
    for (out, text) in table {
        let Err(error) = out.sum_all()?.backward() else { panic!("not refused, though {text}") };
        assert!(error.to_string().contains(text), "{error}\nlacks: {text}");
    }
    // Statistics are not part of the graph.
    let x = var(&[1, 4, 2, 64], DType::F16)?;
    let (out, statistics) = flash_attn_with_statistics(&x, &x, &x, None, 0.1, None, None, None)?;
    assert!(out.track_op() && !statistics.track_op());
    assert!(statistics.sum_all()?.backward()?.get(&x).is_none());
    Ok(())
}
