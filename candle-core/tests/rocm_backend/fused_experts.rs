//! Routers compared with formulas in f64, and products with experts compared with fused products of each expert.
use super::fixture::{assert_close_values, from_f64, numbers, rocm, to_f64};
use candle_core::quantized::rocm::block_types;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::rocm::{
    ExpertGroups, FusedExperts, FusedProduct, GateActivation, ProductWeight, Router, RouterFunction,
};
use candle_core::{DType, Device, Result, Tensor};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const EPS: f32 = 1e-5;

/// Returns the experts and weights of a row by the definition of a router.
fn routed(router: &Router, scores: &[f64], correction: Option<&[f64]>) -> (Vec<usize>, Vec<f64>) {
    let exp_sum = |of: &[f64]| of.iter().map(|score| score.exp()).sum::<f64>();
    let values: Vec<f64> = match router.function {
        RouterFunction::Softmax => scores.iter().map(|score| score.exp() / exp_sum(scores)).collect(),
        RouterFunction::Sigmoid => scores.iter().map(|score| 1.0 / (1.0 + (-score).exp())).collect(),
        _ => scores.to_vec(),
    };
    let mut choice: Vec<f64> =
        (0..values.len()).map(|i| values[i] + correction.map_or(0.0, |correction| correction[i])).collect();
    if let Some((count, used)) = router.groups {
        let size = choice.len() / count;
        let best = |group: &[f64]| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.iter().take(if correction.is_some() { 2 } else { 1 }).sum::<f64>()
        };
        let groups: Vec<f64> = choice.chunks(size).map(best).collect();
        for (i, choice) in choice.iter_mut().enumerate() {
            if groups.iter().filter(|group| **group > groups[i / size]).count() >= used {
                *choice = 0.0;
            }
        }
    }
    let mut order: Vec<usize> = (0..choice.len()).collect();
    order.sort_by(|&a, &b| choice[b].total_cmp(&choice[a]));
    let chosen = order[..router.used].to_vec();
    let own: Vec<f64> = chosen.iter().map(|&i| values[i]).collect();
    let weights: Vec<f64> = match router.function {
        RouterFunction::ChosenSoftmax => own.iter().map(|score| score.exp() / exp_sum(&own)).collect(),
        RouterFunction::SparseMixer { tolerance } => (0..chosen.len())
            .map(|at| {
                let near = order[at..]
                    .iter()
                    .map(|&i| values[i])
                    .filter(|value| own[at] - value <= f64::from(tolerance) * value.abs().max(own[at]));
                1.0 / near.map(|value| (value - own[at]).exp()).sum::<f64>()
            })
            .collect(),
        _ if router.normalized => own.iter().map(|value| value / (own.iter().sum::<f64>() + 1e-20)).collect(),
        _ => own,
    };
    (chosen, weights.iter().map(|weight| weight * f64::from(router.scale)).collect())
}

#[test]
fn routers_choose_as_the_formula() -> Result<()> {
    let device = rocm();
    let functions = [
        RouterFunction::Softmax,
        RouterFunction::ChosenSoftmax,
        RouterFunction::Sigmoid,
        RouterFunction::SparseMixer { tolerance: 0.3 },
    ];
    for (i, (rows, experts, used)) in
        [(1, 1, 1), (3, 8, 2), (2, 6, 6), (9, 33, 5), (17, 128, 8), (2, 256, 8), (1, 512, 32), (0, 8, 2)]
            .into_iter()
            .enumerate()
    {
        let scores = from_f64(&numbers(rows * experts, 3.0), &[rows, experts], DType::F32);
        let correction = from_f64(&numbers(experts + 9, 0.4)[9..], &[experts], DType::F32);
        let on_device = correction.to_device(&device)?;
        for (j, function) in functions.into_iter().enumerate() {
            for corrected in [false, true] {
                let groups = [None, Some((8, 3)), Some((4, 2)), Some((2, 1))][(i + j) % 4];
                let groups = groups.filter(|(count, _)| experts % count == 0 && experts / count >= 2);
                let router = Router {
                    used,
                    function,
                    normalized: j % 2 == 0 && corrected,
                    scale: if corrected { 2.5 } else { 1.0 },
                    groups,
                    correction: corrected.then_some(&on_device),
                };
                let (ids, weights) = router.route(&scores.to_device(&device)?)?.expect("a kernel");
                assert_eq!((ids.dims(), weights.dims()), (&[rows, used][..], &[rows, used][..]));
                let (ids, weights) = (ids.to_vec2::<u32>()?, weights.to_vec2::<f32>()?);
                let (scores, correction) = (to_f64(&scores), to_f64(&correction));
                for (row, scores) in scores.chunks(experts).enumerate() {
                    let (wanted, factors) = routed(&router, scores, corrected.then_some(&correction));
                    let ids: Vec<usize> = ids[row].iter().map(|id| *id as usize).collect();
                    // With a limit to groups, experts of others all count as 0.
                    assert_eq!(ids, wanted, "{router:?}, {experts} experts, row {row}");
                    let got: Vec<f64> = weights[row].iter().map(|weight| f64::from(*weight)).collect();
                    assert_close_values(&got, &factors, 1e-5, &format!("{router:?}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn routers_choose_valid_experts_of_any_scores() -> Result<()> {
    let device = rocm();
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    let rows = [[2.0f32; 5], [nan; 5], [-infinite; 5], [1.0, nan, infinite, -infinite, 3.0]];
    let scores = Tensor::new(&rows, &device)?;
    for function in [RouterFunction::Softmax, RouterFunction::ChosenSoftmax, RouterFunction::Sigmoid] {
        let router =
            Router { used: 5, function, normalized: true, scale: 1.0, groups: None, correction: None };
        let (ids, weights) = router.route(&scores)?.expect("a kernel");
        for (row, ids) in ids.to_vec2::<u32>()?.into_iter().enumerate() {
            let mut sorted = ids.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4], "{function:?} row {row}: {ids:?}");
        }
        // Among experts with equal scores, the first are chosen.
        assert_eq!(ids_of(&router, &scores)?[0], [0, 1, 2, 3, 4]);
        assert!(weights.to_vec2::<f32>()?[0].iter().all(|weight| (weight - 0.2).abs() < 1e-6));
    }
    let router = Router {
        used: 6,
        function: RouterFunction::Softmax,
        normalized: false,
        scale: 1.0,
        groups: None,
        correction: None,
    };
    let refused = |router: Router, text: &str| {
        let error = router.route(&scores).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(router, "6 experts are to be chosen for a row, but there are only 5");
    refused(Router { used: 2, groups: Some((2, 1)), ..router }, "cannot be divided into (2, 1) groups");
    let correction = Tensor::zeros(4, DType::F32, &device)?;
    refused(Router { used: 2, correction: Some(&correction), ..router }, "the correction has shape [4]");
    assert!(Router { used: 2, ..router }.route(&scores.to_device(&Device::Cpu)?)?.is_none());
    Ok(())
}

fn ids_of(router: &Router, scores: &Tensor) -> Result<Vec<Vec<u32>>> {
    router.route(scores)?.expect("a kernel").0.to_vec2()
}

/// A stack of matrices, and each of them as a weight of its own.
enum Stack {
    Floats(Tensor),
    Blocks(Box<QTensor>, Vec<QTensor>),
}

impl Stack {
    fn floats(dims: [usize; 3], dtype: DType, device: &Device) -> Result<Self> {
        let values = numbers(dims.iter().product(), 0.3);
        Ok(Self::Floats(from_f64(&values, &dims, dtype).to_device(device)?))
    }

    fn blocks([stack, n, k]: [usize; 3], kind: GgmlDType, device: &Device) -> Result<Self> {
        let tensor = from_f64(&numbers(stack * n * k, 0.3), &[stack * n, k], DType::F32);
        let cpu = QTensor::quantize(&tensor, kind)?;
        let data = cpu.data()?;
        let made = |bytes: &[u8], dims: &[usize]| {
            QTensor::new(QStorage::from_data(bytes.to_vec().into(), device, kind)?, dims)
        };
        let each = data.chunks(data.len() / stack).map(|bytes| made(bytes, &[n, k]));
        Ok(Self::Blocks(Box::new(made(&data, &[stack, n, k])?), each.collect::<Result<_>>()?))
    }

    fn whole(&self) -> ProductWeight<'_> {
        match self {
            Self::Floats(stack) => stack.into(),
            Self::Blocks(stack, _) => (&**stack).into(),
        }
    }

    /// Returns the product of a row with an expert.
    fn product(&self, expert: u32, compute: impl Fn(ProductWeight) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Self::Floats(stack) => compute((&stack.get(expert as usize)?.force_contiguous()?).into()),
            Self::Blocks(_, each) => compute((&each[expert as usize]).into()),
        }
    }
}

/// A device whose launches no other test counts.
fn own() -> Device {
    rocm();
    Device::new_rocm_with_stream(0).unwrap()
}

/// Checks rows of `k` elements with a stack, whose n is even. `ids` are the experts of each row.
fn check(
    stack: &Stack,
    [count, n, k]: [usize; 3],
    ids: &[Vec<u32>],
    dtype: DType,
    device: &Device,
) -> Result<()> {
    let what = format!("{dtype:?}, {count} x {n} x {k}, experts {ids:?}");
    let (rows, used) = (ids.len(), ids[0].len());
    let made = |dims: &[usize], limit: f64| {
        from_f64(&numbers(dims.iter().product(), limit), dims, dtype).to_device(device)
    };
    let (norm, bias) = (made(&[k], 1.5)?, made(&[count, n], 2.0)?);
    let experts = Tensor::new(ids.to_vec(), device)?;
    let rocm = device.as_rocm_device().unwrap();
    let x = made(&[rows, k], 2.0)?;
    let activations = [GateActivation::Silu, GateActivation::GeluTanh, GateActivation::ClampedSwiglu];
    for (i, activation) in activations.into_iter().enumerate() {
        let bias = (i % 2 == 0).then_some(&bias);
        let before = rocm.kernels_launched();
        let products = FusedExperts::new(&x, stack.whole(), &experts).rms_norm(&norm, EPS).bias(bias);
        let got = products.gated(activation)?.expect("a kernel");
        assert_eq!(rocm.kernels_launched() - before, 1, "{what}");
        let got = to_f64(&got);
        for (at, expert) in ids.iter().flatten().enumerate() {
            let row = x.narrow(0, at / used, 1)?.force_contiguous()?;
            let own_bias = bias.map(|bias| bias.get(*expert as usize)?.force_contiguous()).transpose()?;
            let wanted = stack.product(*expert, |weight| {
                let product = FusedProduct::new(&row, weight).rms_norm(&norm, EPS).bias(own_bias.as_ref());
                product.gated(activation).forward()
            })?;
            assert_eq!(
                got[at * n / 2..(at + 1) * n / 2],
                to_f64(&wanted),
                "{what}, product {at}, {activation:?}"
            );
        }
    }
    let hidden = made(&[rows * used, k], 2.0)?;
    let factors = from_f64(&numbers(rows * used, 1.0), &[rows, used], DType::F32).to_device(device)?;
    for with in [false, true] {
        let residual = if with { Some(made(&[rows, n], 3.0)?) } else { None };
        let before = rocm.kernels_launched();
        let sum = FusedExperts::new(&hidden, stack.whole(), &experts).bias(with.then_some(&bias));
        let got = sum.dtype(if with { dtype } else { DType::F32 }).sum(&factors, residual.as_ref())?;
        assert_eq!(rocm.kernels_launched() - before, 1, "{what}");
        let (factors, got) = (to_f64(&factors), to_f64(&got.expect("a kernel")));
        let mut wanted = residual.as_ref().map_or(vec![0.0; rows * n], to_f64);
        for (at, expert) in ids.iter().flatten().enumerate() {
            let row = hidden.narrow(0, at, 1)?.force_contiguous()?;
            let own_bias = bias.get(*expert as usize)?.force_contiguous()?;
            let product = stack.product(*expert, |weight| {
                FusedProduct::new(&row, weight).bias(with.then_some(&own_bias)).dtype(DType::F32).forward()
            })?;
            for (i, product) in to_f64(&product).into_iter().enumerate() {
                wanted[at / used * n + i] += factors[at] * product;
            }
        }
        let rounding = match dtype {
            DType::F16 if with => 2f64.powi(-10),
            DType::BF16 if with => 2f64.powi(-7),
            _ => 3e-6,
        };
        let largest = wanted.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        assert_close_values(&got, &wanted, rounding * largest, &what);
    }
    Ok(())
}

/// One expert, as many experts as there are, the same expert for several rows, and numbers that are no powers of two.
const CHOICES: [(usize, &[&[u32]]); 4] =
    [(1, &[&[0]]), (3, &[&[2, 0, 1], &[1, 2, 0]]), (5, &[&[4], &[4], &[0]]), (9, &[&[8, 1, 3, 7, 0]])];

#[test]
fn floats_equal_the_products_of_each_expert() -> Result<()> {
    let device = own();
    for dtype in DTYPES {
        for (i, (count, ids)) in CHOICES.into_iter().enumerate() {
            let ids: Vec<_> = ids.iter().map(|ids| ids.to_vec()).collect();
            for (n, k) in
                [[(2, 8), (38, 72)], [(6, 1032), (4, 8)], [(2, 5000), (70, 96)], [(10, 264), (134, 16)]][i]
            {
                let dims = [count, n, k];
                check(&Stack::floats(dims, dtype, &device)?, dims, &ids, dtype, &device)?;
            }
        }
    }
    Ok(())
}

#[test]
fn blocks_equal_the_products_of_each_expert() -> Result<()> {
    let device = own();
    for (kind, format) in block_types() {
        for (i, (count, ids)) in CHOICES.into_iter().enumerate() {
            let ids: Vec<_> = ids.iter().map(|ids| ids.to_vec()).collect();
            let (n, blocks) = [(2, 1), (38, 3), (6, 5), (70, 2)][i];
            let dims = [count, n, blocks * format.weights()];
            check(&Stack::blocks(dims, kind, &device)?, dims, &ids, DTYPES[i % 3], &device)?;
        }
        // Rows of whole packs, which are read as a stream.
        if format.weights() == 32 {
            let dims = [4, 6, 1280];
            check(&Stack::blocks(dims, kind, &device)?, dims, &[vec![3, 1]], DType::F32, &device)?;
        }
    }
    Ok(())
}

/// Experts without products, with one tile that is not full, and with several.
#[test]
fn grouped_products_equal_those_of_single_rows() -> Result<()> {
    let device = own();
    if !device.as_rocm_device().unwrap().has_matrix_units() {
        return Ok(());
    }
    for (kind, format) in block_types() {
        for (i, (rows, count, used, n)) in
            [(1, 1, 1, 2), (3, 5, 2, 38), (40, 3, 2, 18), (70, 40, 3, 34)].into_iter().enumerate()
        {
            let k = [160, 256][i % 2].max(format.weights()) * [1, 3][i / 2];
            let dtype = DTYPES[i % 3];
            let dims = [count, n, k];
            let stack = Stack::blocks(dims, kind, &device)?;
            let ids: Vec<Vec<u32>> = (0..rows)
                .map(|row| (0..used).map(|j| ((row * row + 3 * j) % count) as u32).collect())
                .collect();
            let experts = Tensor::new(ids, &device)?;
            assert!(ExpertGroups::are_supported(stack.whole(), rows, used)?, "{kind:?}");
            let groups = ExpertGroups::new(&experts, count)?;
            let made = |dims: &[usize], limit: f64| {
                from_f64(&numbers(dims.iter().product(), limit), dims, dtype).to_device(&device)
            };
            let (x, bias, hidden) =
                (made(&[rows, k], 2.0)?, made(&[count, n], 2.0)?, made(&[rows * used, k], 2.0)?);
            let residual = made(&[rows, n], 3.0)?;
            let factors =
                from_f64(&numbers(rows * used, 1.0), &[rows, used], DType::F32).to_device(&device)?;
            let [single, grouped] = [None, Some(&groups)].map(|groups| -> Result<_> {
                let products = FusedExperts::new(&x, stack.whole(), &experts).bias(&bias).grouped(groups);
                let sums = FusedExperts::new(&hidden, stack.whole(), &experts).bias(&bias).grouped(groups);
                let gated = products.gated(GateActivation::ClampedSwiglu)?.expect("a kernel");
                Ok([gated, sums.sum(&factors, Some(&residual))?.expect("a kernel")])
            });
            for (single, grouped) in single?.iter().zip(&grouped?) {
                let (single, grouped) = (to_f64(single), to_f64(grouped));
                // Grouped products of large blocks quantize activations with one scale for 256 of them.
                let magnitude = single.iter().map(|x| x * x).sum::<f64>().sqrt();
                let off = single.iter().zip(&grouped).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                assert!(
                    off <= 0.02 * magnitude,
                    "{kind:?} {dtype:?} {rows} x {dims:?}: {off} of {magnitude}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn experts_out_of_range_and_other_shapes_are_refused() -> Result<()> {
    let device = own();
    let stack = Tensor::ones((3, 4, 8), DType::F32, &device)?;
    let x = Tensor::ones((1, 8), DType::F32, &device)?;
    let experts = Tensor::new(&[[0u32, 3]], &device)?;
    let weights = Tensor::ones((1, 2), DType::F32, &device)?;
    let both = Tensor::ones((2, 8), DType::F32, &device)?;
    for sums in [false, true] {
        match sums {
            false => drop(FusedExperts::new(&x, &stack, &experts).gated(GateActivation::Silu)?),
            true => drop(FusedExperts::new(&both, &stack, &experts).sum(&weights, None)?),
        }
        let error = device.synchronize().unwrap_err().to_string();
        assert!(error.contains('3') && error.contains("expert"), "{error}");
    }
    drop(ExpertGroups::new(&experts, 3)?);
    assert!(device.synchronize().unwrap_err().to_string().contains("expert"));
    assert!(ExpertGroups::new(&x, 3).is_err());
    let refused = |made: Result<Option<Tensor>>, text: &str| {
        let error = made.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    let silu = GateActivation::Silu;
    refused(FusedExperts::new(&both, &stack, &experts).gated(silu), "need [1, 8]");
    refused(
        FusedExperts::new(&x, &stack, &experts).bias(&x).gated(silu),
        "the bias has shape [1, 8], expected [3, 4]",
    );
    refused(FusedExperts::new(&x, &stack, &experts).rms_norm(&stack, EPS).gated(silu), "the norm has shape");
    refused(FusedExperts::new(&both, &stack, &experts).sum(&x, None), "needs weights of shape [1, 2]");
    let odd = Tensor::ones((3, 5, 8), DType::F32, &device)?;
    refused(FusedExperts::new(&x, &odd, &experts).gated(silu), "an even number of outputs");
    let none = Tensor::zeros((0, 2), DType::U32, &device)?;
    let no_rows = Tensor::zeros((0, 8), DType::F32, &device)?;
    assert!(FusedExperts::new(&no_rows, &stack, &none).gated(silu)?.is_none());
    // Other dtypes have no kernel.
    let half = x.to_dtype(DType::F16)?;
    assert!(FusedExperts::new(&half, &stack, &experts).gated(silu)?.is_none());
    Ok(())
}
