//! Tests training on the device: with the same weights and data, 200 steps must reach the CPU device's loss.
mod common;

use std::collections::HashMap;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{
    AdamW, BatchNormConfig, Conv2dConfig, Module, Optimizer, ParamsAdamW, SGD, VarBuilder, VarMap,
    batch_norm, conv2d, layer_norm, linear, loss, ops,
};
use serial_test::serial;

const STEPS: usize = 200;

type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// Network and its training data.
struct Task {
    network: fn(VarBuilder) -> Result<Forward>,
    data: fn() -> Result<(Tensor, Tensor)>,
}

const MLP: Task = Task { network: mlp, data: spirals };
const CONVNET: Task = Task { network: convnet, data: stripes };

/// Returns a network with two hidden layers and a layer norm after the first one.
fn mlp(vb: VarBuilder) -> Result<Forward> {
    let (first, second) = (linear(2, 24, vb.pp("first"))?, linear(24, 24, vb.pp("second"))?);
    let (norm, last) = (layer_norm(24, 1e-5, vb.pp("norm"))?, linear(24, 3, vb.pp("last"))?);
    let bias = norm.bias().cloned().unwrap_or(norm.weight().zeros_like()?);
    Ok(Box::new(move |x| {
        let x = first.forward(x)?;
        // The fused layer norm has no gradient on any device.
        let x = ops::layer_norm_slow(&x, norm.weight(), &bias, 1e-5)?.gelu()?;
        last.forward(&ops::silu(&second.forward(&x)?)?)
    }))
}

/// Returns a network with two convolutions, batch norm, max pooling and average pooling.
fn convnet(vb: VarBuilder) -> Result<Forward> {
    let padded = Conv2dConfig { padding: 1, ..Conv2dConfig::default() };
    let (first, second) =
        (conv2d(1, 4, 3, padded, vb.pp("first"))?, conv2d(4, 6, 3, padded, vb.pp("second"))?);
    let norm = batch_norm(4, BatchNormConfig::default(), vb.pp("norm"))?;
    let last = linear(6 * 2 * 2, 4, vb.pp("last"))?;
    Ok(Box::new(move |x| {
        let x = norm.forward_train(&first.forward(x)?)?.relu()?.max_pool2d(2)?;
        let x = second.forward(&x)?.relu()?.avg_pool2d(2)?;
        last.forward(&x.flatten_from(1)?)
    }))
}

/// Returns points on three interleaved spirals.
fn spirals() -> Result<(Tensor, Tensor)> {
    let (mut points, mut classes) = (Vec::new(), Vec::new());
    for class in 0..3u32 {
        for step in 0..16 {
            let radius = 0.2 + step as f32 / 16.0;
            let angle = radius * 2.5 + class as f32 * std::f32::consts::TAU / 3.0;
            points.extend([radius * angle.cos(), radius * angle.sin()]);
            classes.push(class);
        }
    }
    Ok((Tensor::from_vec(points, (48, 2), &Device::Cpu)?, Tensor::from_vec(classes, 48, &Device::Cpu)?))
}

/// Returns images of stripes in four directions with three shifts each.
fn stripes() -> Result<(Tensor, Tensor)> {
    let (mut pixels, mut classes) = (Vec::new(), Vec::new());
    for class in 0..4u32 {
        for shift in 0..3 {
            for y in 0..8i32 {
                for x in 0..8i32 {
                    let along = [x, y, x + y, x - y][class as usize] + shift;
                    let noise = ((x * 5 + y * 11 + shift * 3) as f32 * 12.9898).sin() * 0.3;
                    pixels.push(f32::from(u8::from(along.rem_euclid(4) < 2)) + noise);
                }
            }
            classes.push(class);
        }
    }
    Ok((Tensor::from_vec(pixels, (12, 1, 8, 8), &Device::Cpu)?, Tensor::from_vec(classes, 12, &Device::Cpu)?))
}

/// Returns deterministic weights, created on the CPU: sines scaled by the number of inputs of a neuron;
/// biases are zero.
fn initial_weights(task: &Task) -> Result<HashMap<String, Tensor>> {
    let vars = VarMap::new();
    let _network = (task.network)(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let mut weights = HashMap::new();
    let vars = vars.data().lock().expect("the lock is not poisoned");
    for (name, var) in vars.iter() {
        let dims = var.dims();
        let value = if dims.len() > 1 {
            let bound = (3.0 / dims[1..].iter().product::<usize>() as f64).sqrt();
            let sine = |i: usize| (i as f64 * 78.233 + name.len() as f64).sin() * bound;
            let values: Vec<f64> = (0..var.elem_count()).map(sine).collect();
            Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(DType::F32)?
        } else if name.starts_with("norm") {
            var.as_tensor().copy()?
        } else {
            var.zeros_like()?
        };
        weights.insert(name.clone(), value);
    }
    Ok(weights)
}

/// Trains a network; returns the loss before and after all steps.
fn train<O: Optimizer>(
    task: &Task,
    config: O::Config,
    device: &Device,
    weights: &HashMap<String, Tensor>,
) -> Result<[f32; 2]> {
    let vars = VarMap::new();
    let network = (task.network)(VarBuilder::from_varmap(&vars, DType::F32, device))?;
    for (name, var) in vars.data().lock().expect("the lock is not poisoned").iter() {
        var.set(&weights[name].to_device(device)?)?;
    }
    let (inputs, classes) = (task.data)()?;
    let (inputs, classes) = (inputs.to_device(device)?, classes.to_device(device)?);
    let loss = || loss::cross_entropy(&network(&inputs)?, &classes);
    let mut optimizer = O::new(vars.all_vars(), config)?;
    let before = loss()?.to_scalar()?;
    for _ in 0..STEPS {
        optimizer.backward_step(&loss()?)?;
    }
    Ok([before, loss()?.to_scalar()?])
}

#[track_caller]
fn check<O: Optimizer>(task: &Task, config: impl Fn() -> O::Config) {
    let run = || -> Result<[[f32; 2]; 2]> {
        let weights = initial_weights(task)?;
        let on = |device| train::<O>(task, config(), device, &weights);
        Ok([on(&Device::Cpu)?, on(&common::device())?])
    };
    let [cpu, rocm] = run().unwrap();
    println!("loss before and after {STEPS} steps: CPU {cpu:?}, ROCm {rocm:?}");
    assert!((cpu[0] - rocm[0]).abs() < 1e-5, "before: CPU {}, ROCm {}", cpu[0], rocm[0]);
    assert!((cpu[1] - rocm[1]).abs() < 1e-3 * cpu[1].min(1.0), "after: CPU {}, ROCm {}", cpu[1], rocm[1]);
    assert!(rocm[1] < 0.5 * rocm[0], "the loss was not halved: {rocm:?}");
}

fn adamw() -> ParamsAdamW {
    ParamsAdamW { lr: 0.01, ..ParamsAdamW::default() }
}

#[test]
#[serial]
fn mlp_with_sgd() {
    check::<SGD>(&MLP, || 0.3);
}

#[test]
#[serial]
fn mlp_with_adamw() {
    check::<AdamW>(&MLP, adamw);
}

#[test]
#[serial]
fn convnet_with_sgd() {
    check::<SGD>(&CONVNET, || 0.1);
}

#[test]
#[serial]
fn convnet_with_adamw() {
    check::<AdamW>(&CONVNET, adamw);
}

/// Weights saved from the device give the same outputs on the CPU and on the device.
#[test]
#[serial]
fn saved_weights_are_loaded_unchanged() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("weights.safetensors");
    let (inputs, _) = spirals()?;
    let network = |device: &Device, load: bool| -> Result<Tensor> {
        let mut vars = VarMap::new();
        let network = mlp(VarBuilder::from_varmap(&vars, DType::F32, device))?;
        if load {
            vars.load(&file)?;
        } else {
            vars.save(&file)?;
        }
        network(&inputs.to_device(device)?)?.to_device(&Device::Cpu)
    };
    let saved = network(&common::device(), false)?;
    for device in [Device::Cpu, common::device()] {
        let loaded = network(&device, true)?;
        let difference = (loaded - &saved)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        assert!(difference < 1e-5, "{device:?}: {difference}");
    }
    // The outputs of the random weights are not all zero.
    assert!(saved.flatten_all()?.abs()?.max(0)?.to_scalar::<f32>()? > 1e-3);
    Ok(())
}

/// Compares gradients of operations that the networks above do not use.
#[test]
#[serial]
fn gradients_of_other_operations_match_the_cpu() -> Result<()> {
    type Loss = fn(&Tensor) -> Result<Tensor>;
    let losses: [(&str, Loss); 8] = [
        ("sigmoid", |x| ops::sigmoid(x)?.sqr()),
        ("softmax", |x| ops::softmax(x, D::Minus1)?.sqr()),
        ("log_softmax", |x| ops::log_softmax(x, 0)?.sin()),
        ("rms_norm", |x| ops::rms_norm_slow(x, &Tensor::full(1.5f32, 12, x.device())?, 1e-5)?.exp()),
        ("slices", |x| Tensor::cat(&[x.narrow(1, 3, 4)?, x.narrow(1, 0, 5)?.sqr()?], 1)?.tanh()),
        ("gather", |x| x.gather(&Tensor::new(&[[0u32, 5, 5], [11, 1, 0]], x.device())?, 1)?.sqr()),
        ("index_select", |x| x.index_select(&Tensor::new(&[1u32, 1, 0], x.device())?, 0)?.recip()),
        ("conv1d", |x| {
            let kernel = x.narrow(1, 0, 6)?.reshape((2, 2, 3))?;
            x.reshape((1, 2, 12))?.conv1d(&kernel, 1, 2, 1, 1)?.sqr()
        }),
    ];
    for (name, loss) in losses {
        let gradient = |device: &Device| -> Result<Vec<f32>> {
            let values: Vec<f32> = (0..24).map(|i| (i as f32 * 12.9898).sin() + 1.5).collect();
            let x = Var::from_vec(values, (2, 12), device)?;
            let gradients = loss(&x)?.sum_all()?.backward()?;
            gradients.get(&x).map_or(Ok(Vec::new()), |gradient| gradient.flatten_all()?.to_vec1())
        };
        let (got, expected) = (gradient(&common::device())?, gradient(&Device::Cpu)?);
        assert_eq!(expected.len(), 24, "{name}");
        assert!(expected.iter().any(|gradient| gradient.abs() > 1e-3), "{name}: {expected:?}");
        for (got, expected) in got.iter().zip(&expected) {
            assert!((got - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{name}: {got} {expected}");
        }
        assert_eq!(got.len(), expected.len(), "{name}");
    }
    Ok(())
}
