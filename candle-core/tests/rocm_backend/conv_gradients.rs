//! Gradients of convolutions, compared with the definition in f64, and gradients of gradients.
use super::fixture::*;
use candle_core::{DType, Device, Result, Tensor, Var};

/// A convolution or transposed convolution with its parameters.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    x: &'static [usize],
    k: &'static [usize],
    padding: usize,
    output_padding: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
}

impl Case {
    fn apply(&self, x: &Tensor, k: &Tensor) -> Result<Tensor> {
        let Self { padding, output_padding, stride, dilation, groups, .. } = *self;
        match self.name {
            "conv1d" => x.conv1d(k, padding, stride, dilation, groups),
            "conv2d" => x.conv2d(k, padding, stride, dilation, groups),
            "conv_transpose1d" => x.conv_transpose1d(k, padding, output_padding, stride, dilation, groups),
            _ => x.conv_transpose2d(k, padding, output_padding, stride, dilation),
        }
    }
}

const fn case(
    name: &'static str,
    x: &'static [usize],
    k: &'static [usize],
    [padding, output_padding, stride, dilation, groups]: [usize; 5],
) -> Case {
    Case { name, x, k, padding, output_padding, stride, dilation, groups }
}

const CASES: &[Case] = &[
    case("conv1d", &[2, 4, 11], &[6, 4, 3], [1, 0, 1, 1, 1]),
    case("conv1d", &[2, 4, 11], &[6, 2, 3], [2, 0, 2, 2, 2]),
    case("conv1d", &[1, 3, 9], &[3, 1, 4], [3, 0, 1, 1, 3]),
    case("conv2d", &[2, 5, 7, 9], &[6, 5, 3, 2], [1, 0, 1, 1, 1]),
    case("conv2d", &[3, 6, 8, 7], &[10, 3, 2, 3], [2, 0, 3, 2, 2]),
    case("conv2d", &[2, 8, 5, 6], &[8, 8, 1, 1], [0, 0, 1, 1, 1]),
    case("conv2d", &[2, 6, 6, 6], &[6, 1, 3, 3], [1, 0, 2, 1, 6]),
    case("conv_transpose1d", &[2, 4, 6], &[4, 3, 3], [1, 1, 2, 1, 1]),
    case("conv_transpose1d", &[2, 6, 6], &[6, 3, 4], [0, 0, 2, 1, 2]),
    case("conv_transpose1d", &[1, 10, 5], &[10, 2, 3], [1, 0, 3, 2, 2]),
    case("conv_transpose2d", &[2, 6, 4, 5], &[6, 4, 3, 3], [1, 1, 2, 1, 1]),
    case("conv_transpose2d", &[2, 3, 4, 5], &[3, 2, 2, 3], [0, 0, 1, 2, 1]),
];

/// Returns a weighted sum of the result, so that every element has a different gradient, and the weights.
fn loss(case: &Case, x: &Tensor, k: &Tensor) -> Result<(Tensor, Tensor)> {
    let y = case.apply(x, k)?;
    let weights = tensor(y.dims(), DType::F32, 1.0).to_dtype(y.dtype())?.to_device(y.device())?;
    Ok(((&y * &weights)?.sum_all()?, weights))
}

/// The function is linear in each operand, so a gradient times a direction is the result for that direction.
#[test]
fn gradients_match_the_definition() {
    super::conv::each_way(against_the_definition);
}

fn against_the_definition(device: &Device) {
    for dtype in FLOATS {
        for case in CASES {
            let what = format!("{dtype:?} {case:?}");
            let (x, k) = (tensor(case.x, dtype, 1.0), tensor(case.k, dtype, 1.0));
            let (gx, gk) = (Var::from_tensor(&x.to_device(device).unwrap()), k.to_device(device));
            let (gx, gk) = (gx.unwrap(), Var::from_tensor(&gk.unwrap()).unwrap());
            let (l, weights) = loss(case, gx.as_tensor(), gk.as_tensor()).unwrap();
            let grads = l.backward().unwrap();
            let wide = |t: &Tensor| t.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
            let (dx, dk) = (grads.get(&gx).unwrap(), grads.get(&gk).unwrap());
            assert_eq!((dx.dims(), dk.dims(), dx.dtype()), (case.x, case.k, dtype), "{what}");
            for (which, got, dims) in [("input", dx, case.x), ("weights", dk, case.k)] {
                let expected = by_directions(case, &wide(&x), &wide(&k), &wide(&weights), which, dims);
                let bound = 8.0 * epsilon(dtype);
                assert_close(got, &expected, bound, &format!("{which} of {what}"));
            }
        }
    }
}

/// Computes the gradient on the CPU device in f64: for each unit direction of the operand, the weighted sum of the result.
fn by_directions(
    case: &Case,
    x: &Tensor,
    k: &Tensor,
    weights: &Tensor,
    which: &str,
    dims: &[usize],
) -> Tensor {
    let count = dims.iter().product();
    let gradient: Vec<f64> = (0..count)
        .map(|at| {
            let mut unit = vec![0.0; count];
            unit[at] = 1.0;
            let unit = Tensor::from_vec(unit, dims, &Device::Cpu).unwrap();
            let y = match which {
                "input" => by_images(case, &unit, k),
                _ => by_images(case, x, &unit),
            };
            (y * weights).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap()
        })
        .collect();
    Tensor::from_vec(gradient, dims, &Device::Cpu).unwrap()
}

/// Computes one image at a time, since the CPU device's transposed convolution of several images is wrong.
fn by_images(case: &Case, x: &Tensor, k: &Tensor) -> Tensor {
    let images: Vec<Tensor> = (0..x.dims()[0])
        .map(|image| case.apply(&x.narrow(0, image, 1).unwrap().contiguous().unwrap(), k).unwrap())
        .collect();
    Tensor::cat(&images, 0).unwrap()
}

/// Upstream keeps the graph of gradients only if an environment variable is set, which each thread reads once.
#[test]
fn gradients_have_gradients() {
    rocm();
    let test = "conv_gradients::penalties_have_gradients";
    passes_in_its_own_process(test, ("CANDLE_GRAD_DO_NOT_DETACH", "1"));
}

/// Compares the weight gradient of a gradient penalty, as used by generative models, with finite differences.
#[test]
#[ignore = "run by gradients_have_gradients"]
fn penalties_have_gradients() {
    let device = rocm();
    for case in CASES {
        let (x, k) = (tensor(case.x, DType::F64, 1.0), tensor(case.k, DType::F64, 1.0));
        let (x, k) = (x.to_device(&device).unwrap(), k.to_device(&device).unwrap());
        // The gradient of sum(y^2) by x is linear in y, so its square is a polynomial of the weights.
        let penalty = |x: &Tensor, k: &Tensor| -> Result<Tensor> {
            let y = case.apply(x, k)?;
            let grads = y.sqr()?.sum_all()?.backward()?;
            grads.get(x).unwrap().sqr()?.sum_all()
        };
        let (vx, vk) = (Var::from_tensor(&x).unwrap(), Var::from_tensor(&k).unwrap());
        let grads = penalty(vx.as_tensor(), vk.as_tensor()).unwrap().backward();
        let Ok(grads) = grads else { panic!("{case:?}: {}", grads.err().unwrap()) };
        let got = grads.get(&vk).expect("a graph of gradients");
        let direction = tensor(case.k, DType::F64, 0.5).to_device(&device).unwrap();
        let step = 1e-4;
        let at = |sign: f64| -> f64 {
            let moved = (&k + (&direction * (sign * step)).unwrap()).unwrap();
            let var = Var::from_tensor(&x).unwrap();
            penalty(var.as_tensor(), &moved).unwrap().to_scalar::<f64>().unwrap()
        };
        let expected = (at(1.0) - at(-1.0)) / (2.0 * step);
        let along = (got * &direction).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
        let difference = (along - expected).abs() / expected.abs().max(1.0);
        assert!(difference < 1e-5, "{case:?}: {along} instead of {expected}");
    }
}

#[test]
fn weight_gradients_are_summed_over_pieces() {
    use candle_core::rocm::{conv_workspace, set_conv_workspace};
    let _alone = super::conv::lock_conv_settings();
    let device = rocm();
    let case = case("conv2d", &[3, 6, 12, 13], &[8, 3, 3, 3], [1, 0, 1, 1, 2]);
    let (x, k) = (tensor(case.x, DType::F32, 1.0), tensor(case.k, DType::F32, 1.0));
    let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
    let weights = tensor(&[3, 8, 12, 13], DType::F32, 1.0);
    let expected = by_directions(&case, &wide(&x), &wide(&k), &wide(&weights), "weights", case.k);
    let x = x.to_device(&device).unwrap();
    let whole = conv_workspace();
    // 54 + 8 rows of 4 bytes at each of 156 positions: pieces of all images, one image, 128 positions.
    for bytes in [whole, 62 * 4 * 156, 62 * 4 * 130] {
        let k = Var::from_tensor(&k.to_device(&device).unwrap()).unwrap();
        set_conv_workspace(bytes);
        let grads = loss(&case, &x, k.as_tensor()).and_then(|(l, _)| l.backward());
        set_conv_workspace(whole);
        let got = grads.unwrap();
        assert_close(got.get(&k).unwrap(), &expected, 1e-5, &format!("{bytes} bytes"));
    }
}
