//! Gradients of attention, compared with the formula in f64 on the CPU device.
use crate::attention_formula::{assert_close, wide, Formula};
use crate::fixture::{numbers, rocm};
use candle_core::op::BackpropOp;
use candle_core::rocm::{Attention, AttentionOperand};
use candle_core::{DType, Device, Layout, Storage, Tensor, Var};

/// A test case. `sizes` are batch, heads, key heads, queries, keys, width and value width.
#[derive(Clone, Copy, Debug)]
struct Case {
    sizes: [usize; 7],
    window: (Option<usize>, Option<usize>),
    softcap: Option<f32>,
    alibi: bool,
}

fn check(case: &Case, dtype: DType) {
    let device = rocm();
    let [b, h, kh, n, m, d, dv] = case.sizes;
    let made = |dims: &[usize], from: usize| {
        let count: usize = dims.iter().product();
        let values = &numbers(from + count, 1.5)[from..];
        Tensor::from_slice(values, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    };
    let [q, k, v, g] = [
        made(&[b, h, n, d], 1),
        made(&[b, kh, m, d], 77),
        made(&[b, kh, m, dv], 333),
        made(&[b, h, n, dv], 1234),
    ];
    let slopes: Vec<f32> = (0..h).map(|i| if case.alibi { 0.1 * (i + 1) as f32 } else { 0.0 }).collect();
    let scale = 1.0 / (d as f64).sqrt();
    let (left, right) = case.window;
    let formula = Formula {
        scale,
        softcap: case.softcap.map(f64::from),
        slopes: &slopes,
        sinks: &[],
        sees: &|position, key| {
            left.is_none_or(|left| key >= position - left as i64)
                && right.is_none_or(|right| key <= position + right as i64)
        },
    };
    let [wide_q, wide_k, wide_v, wide_g] = [&q, &k, &v, &g].map(|t| t.to_dtype(DType::F64).unwrap());
    let vars = [&wide_q, &wide_k, &wide_v].map(|t| Var::from_tensor(t).unwrap());
    let expected = formula.result(&vars[0], &vars[1], &vars[2]).unwrap();
    let grads = (&expected * &wide_g).unwrap().sum_all().unwrap().backward().unwrap();
    let rounded = formula.rounded([&wide_q, &wide_k, &wide_v], &wide_g, dtype).unwrap();

    let [q, k, v, g] = [q, k, v, g].map(|t| t.to_device(&device).unwrap());
    let slopes = Tensor::new(slopes, &device).unwrap();
    let tensors = [&q, &k, &v, &g, &slopes];
    let guards = tensors.map(Tensor::storage_and_layout);
    let operand = |i: usize| -> AttentionOperand<'_> {
        match &*guards[i].0 {
            Storage::Rocm(storage) => (storage, guards[i].1),
            _ => panic!("not on the device"),
        }
    };
    let attention = Attention {
        scale: scale as f32,
        softcap: case.softcap,
        window: case.window,
        slopes: case.alibi.then(|| operand(4)),
        statistics: true,
        ..Attention::default()
    };
    let out = Layout::contiguous((b, h, n, dv));
    let attended = attention.forward("attention", operand(0), operand(1), operand(2), &out).unwrap();
    let layouts = [0, 1, 2].map(|i| Layout::contiguous(guards[i].1.shape()));
    let gradients = attention
        .backward(
            "attention",
            [operand(0), operand(1), operand(2)],
            (&attended.out, &out),
            attended.statistics.as_ref().unwrap(),
            operand(3),
            layouts.each_ref(),
        )
        .unwrap();
    let [out_q, out_k, out_v] = layouts;
    let made = [(attended.out, out), (gradients.q, out_q), (gradients.k, out_k), (gradients.v, out_v)];
    let expected = std::iter::once(&expected).chain(vars.iter().map(|var| grads.get(var).unwrap()));
    for (((storage, layout), expected), (rounded, what)) in
        made.into_iter().zip(expected).zip(rounded.iter().zip(["result", "q", "k", "v"]))
    {
        let got = Tensor::from_storage(Storage::Rocm(storage), layout.shape(), BackpropOp::none(), false);
        let [got, expected, rounded] = [&got, expected, rounded].map(|t| wide(t).unwrap());
        assert_close(&got, &expected, &rounded, dtype, &format!("{what} of {case:?} {dtype:?}"));
    }
}

#[test]
fn gradients_match_the_formula() {
    let plain = Case { sizes: [1, 2, 2, 33, 33, 64, 64], window: (None, None), softcap: None, alibi: false };
    let causal = (None, Some(0));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for case in [
            plain,
            Case { window: causal, ..plain },
            Case { sizes: [2, 4, 2, 17, 40, 64, 64], window: causal, ..plain },
            Case { sizes: [1, 4, 1, 140, 150, 128, 128], window: (Some(20), Some(3)), ..plain },
            Case { sizes: [1, 2, 1, 40, 20, 96, 64], window: causal, alibi: true, ..plain },
            Case { sizes: [1, 2, 2, 20, 50, 40, 72], softcap: Some(1.5), alibi: true, ..plain },
            Case { sizes: [1, 1, 1, 18, 35, 256, 256], window: causal, ..plain },
            Case { sizes: [1, 2, 1, 5, 18, 512, 512], ..plain },
        ] {
            if dtype != DType::F32 || case.sizes[5] <= 256 {
                check(&case, dtype);
            }
        }
    }
}
