//! Tests the example `tiny_sd`: images, detection, tokenizer, gradients, training, files, and the model in
//! the repository.
// Some functions are used only by the example.
#![allow(dead_code)]

#[path = "../examples/shared/adam.rs"]
mod adam;
#[path = "tiny_sd/adapters.rs"]
mod adapters;
#[path = "../examples/tiny_sd/autoencoder.rs"]
mod autoencoder;
#[path = "../examples/tiny_sd/batches.rs"]
mod batches;
#[path = "../examples/tiny_sd/composite.rs"]
mod composite;
#[path = "../examples/tiny_sd/controlnet.rs"]
mod controlnet;
#[path = "../examples/shared/curve.rs"]
mod curve;
#[path = "../examples/tiny_sd/detection.rs"]
mod detection;
#[path = "../examples/tiny_sd/export.rs"]
mod export;
#[path = "../examples/tiny_sd/images.rs"]
mod images;
#[path = "../examples/tiny_sd/judge.rs"]
mod judge;
#[path = "../examples/tiny_sd/latents.rs"]
mod latents;
#[path = "../examples/tiny_sd/lora.rs"]
mod lora;
#[path = "../examples/tiny_sd/sample.rs"]
mod sample;
#[path = "../examples/tiny_sd/schedule.rs"]
mod schedule;
#[path = "../examples/tiny_sd/text_encoder.rs"]
mod text_encoder;
#[path = "../examples/tiny_sd/tokenizer.rs"]
mod tokenizer;
#[path = "../examples/tiny_sd/train.rs"]
mod train;
#[path = "../examples/shared/training.rs"]
mod training;
#[path = "../examples/tiny_sd/unet.rs"]
mod unet;
#[path = "../examples/tiny_sd/weights.rs"]
mod weights;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder};
use candle_transformers::models::stable_diffusion::unet_2d::UNet2DConditionModel;
use candle_transformers::models::stable_diffusion::vae::AutoEncoderKL;
use rand::SeedableRng;
use rand::rngs::StdRng;

use autoencoder::{Autoencoder, CHANNELS};
use batches::{Batch, Subject};
use images::{COLOURS, Outline, SHAPES, SIDE, Scene, coverage};
use judge::{Expected, Score};
use latents::Latents;
use tokenizer::Prompts;
use train::{Sizes, Stage, TrainConfig, Training};
use unet::UNet;
use weights::{Part, Shapes, Weights};

/// Returns the folder of the model in the repository.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_sd/model")
}

fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

fn largest(x: &Tensor) -> Result<f64> {
    Ok(x.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?.to_scalar()?)
}

/// Sizes of networks for fast tests.
fn small() -> Sizes {
    Sizes {
        autoencoder: autoencoder::Size { widths: [4, 4, 8, 8], groups: 2 },
        text: text_encoder::Size { width: 16, layers: 1, heads: 2, ..Sizes::tiny(vocabulary()).text },
        // Some norms in candle-transformers have 32 groups regardless of the configuration.
        unet: unet::Size { widths: [32, 64], heads: 2, groups: 32, context: 16 },
    }
}

fn vocabulary() -> usize {
    tokenizer::vocabulary().0.len()
}

fn prompts() -> Result<Arc<Prompts>> {
    let folder = tempfile::tempdir()?;
    tokenizer::write(folder.path(), 24)?;
    Ok(Arc::new(Prompts::read(folder.path(), 24)?))
}

/// Returns random weights without layers that are zero.
fn random_weights(shapes: &Shapes, seed: u64) -> Result<Weights> {
    let mut rng = rng(seed);
    let initial = weights::random(shapes, &mut rng, &Device::Cpu)?;
    let weights = initial.into_iter().map(|(name, weight)| {
        let deviation = 0.5 * (weight.dims().iter().skip(1).product::<usize>() as f64).powf(-0.5);
        let noise = schedule::normal(&mut rng, weight.elem_count());
        let noise = Tensor::from_vec(noise, weight.shape(), &Device::Cpu)?;
        Ok((name, (weight + (noise * deviation)?)?))
    });
    weights.collect()
}

#[test]
fn drawn_shapes_have_the_expected_area() {
    for (shape, (name, outline)) in SHAPES.iter().enumerate() {
        let (radius, centre) = (20f32, [31.3, 32.8]);
        let area = radius
            * radius
            * match outline {
                Outline::Disc => std::f32::consts::PI,
                Outline::Ring(hole) => std::f32::consts::PI * (1. - hole * hole),
                // Half the sum of the cross products of neighbouring corners.
                Outline::Polygon(corners) => {
                    let next = corners.iter().cycle().skip(1);
                    let crosses = corners.iter().zip(next).map(|(a, b)| a[0] * b[1] - a[1] * b[0]);
                    crosses.sum::<f32>().abs() / 2.
                }
            };
        let shares = coverage(shape, centre, radius);
        let covered: f32 = shares.iter().sum();
        assert!((covered - area).abs() < 0.02 * area, "{name} covers {covered} pixels, expected {area}");
        assert!(shares.iter().any(|share| (0.2..0.8).contains(share)), "{name} has no smooth edge");
        let beyond = shares.iter().enumerate().filter(|(at, share)| {
            let off = [(at % SIDE) as f32 + 0.5 - centre[0], (at / SIDE) as f32 + 0.5 - centre[1]];
            **share > 0. && off.iter().any(|off| off.abs() > radius + 1.)
        });
        assert_eq!(beyond.count(), 0, "{name} is larger than its radius");
    }
}

#[test]
fn captions_describe_the_scene() -> Result<()> {
    let mut random = rng(1);
    let words: BTreeSet<&str> = images::words().into_iter().collect();
    assert_eq!(words.len(), images::words().len());
    let (mut empty, mut mentioned) = (0, [0; 4]);
    for _ in 0..2000 {
        let scene = Scene::random(&mut random);
        let caption = scene.caption(&mut random);
        if caption.is_empty() {
            empty += 1;
            continue;
        }
        assert!(caption.split(' ').all(|word| words.contains(word)), "{caption}");
        let expected = Expected::of(&caption)?;
        assert_eq!(expected.shape, scene.shape, "{caption}");
        let pairs = [
            (expected.colours[0], scene.colours[0]),
            (expected.colours[1], scene.colours[1]),
            (expected.size, scene.size),
            (expected.position, scene.position),
        ];
        for ((expected, drawn), mentioned) in pairs.into_iter().zip(&mut mentioned) {
            assert!(expected.is_none_or(|expected| expected == drawn), "{caption}: {scene:?}");
            *mentioned += usize::from(expected.is_some());
        }
    }
    assert!((150..250).contains(&empty), "{empty} of 2000 captions are empty");
    assert!(mentioned.iter().all(|count| (500..1800).contains(count)), "mentioned: {mentioned:?}");
    assert_eq!(Scene::random(&mut rng(7)), Scene::random(&mut rng(7)));
    assert_ne!(Scene::random(&mut rng(7)), Scene::random(&mut rng(8)));
    Ok(())
}

#[test]
fn detection_recognizes_drawn_scenes() {
    const COUNT: usize = 2000;
    let mut random = rng(2);
    let mut wrong = [0; 5];
    for _ in 0..COUNT {
        let scene = Scene::random(&mut random);
        let Some(found) = detection::detect(&scene.draw()) else { panic!("nothing detected in {scene:?}") };
        let same = [
            found.shape == scene.shape,
            found.colours[0] == scene.colours[0],
            found.colours[1] == scene.colours[1],
            found.size == scene.size,
            found.position == scene.position,
        ];
        wrong.iter_mut().zip(same).for_each(|(wrong, same)| *wrong += usize::from(!same));
    }
    println!("wrong shapes, colours, backgrounds, sizes, places in {COUNT} scenes: {wrong:?}");
    assert!(wrong.iter().all(|wrong| *wrong * 200 < COUNT), "{wrong:?} of {COUNT} are wrong");
}

#[test]
fn detection_tolerates_noise_and_blur() {
    const COUNT: usize = 500;
    let mut random = rng(3);
    let mut wrong = 0;
    for _ in 0..COUNT {
        let scene = Scene::random(&mut random);
        let drawn = scene.draw();
        let noise = schedule::normal(&mut random, drawn.len());
        // Blur: the mean of the pixel and its neighbours to the right and below.
        let level = |at: usize| {
            let near = [at, at + 3, at + 3 * SIDE, at + 3 * SIDE + 3].map(|at| at.min(drawn.len() - 1));
            near.iter().map(|at| f32::from(drawn[*at])).sum::<f32>() / 4. + 12. * noise[at]
        };
        let degraded: Vec<u8> = (0..drawn.len()).map(|at| level(at) as u8).collect();
        let found = detection::detect(&degraded);
        let is_same = found.is_some_and(|found| (found.shape, found.colours) == (scene.shape, scene.colours));
        wrong += usize::from(!is_same);
    }
    assert!(wrong * 20 < COUNT, "{wrong} of {COUNT} are wrong");
}

#[test]
fn detection_rejects_wrong_pictures() -> Result<()> {
    assert_eq!(detection::detect(&[90; SIDE * SIDE * 3]), None);
    assert_eq!(detection::detect(&[0; 12]), None);
    let centre = [14., 32.];
    let scene = Scene { shape: 3, colours: [0, 2], centre, radius: 11., ..Scene::random(&mut rng(4)) };
    let tints = scene.colours.map(|colour| COLOURS[colour].1);
    let detected = detection::detect(&Scene { tints, ..scene }.draw());
    for (prompt, parts) in [
        ("a red star on blue", [true; 4]),
        ("a star", [true; 4]),
        ("a small star at the left", [true; 4]),
        ("a red star on green", [true, false, true, true]),
        ("a blue star on red", [true, false, true, true]),
        ("a red ring on blue", [false, true, true, true]),
        ("a huge star", [true, true, false, true]),
        ("a star at the right", [true, true, true, false]),
    ] {
        let score =
            Score { prompt: prompt.into(), expected: Expected::of(prompt)?, detected: detected.clone() };
        assert_eq!(score.parts(), parts, "{score}");
    }
    assert!(Expected::of("a red thing").is_err());
    Ok(())
}

#[test]
fn each_test_prompt_names_all_parts() -> Result<()> {
    let words: BTreeSet<&str> = images::words().into_iter().collect();
    for prompt in judge::PROMPTS {
        assert!(prompt.split(' ').all(|word| words.contains(word)), "{prompt}");
        let expected = Expected::of(prompt)?;
        let named = [expected.colours.as_slice(), &[expected.size, expected.position]].concat();
        assert!(named.iter().all(Option::is_some), "{prompt}: {expected:?}");
    }
    Ok(())
}

#[test]
fn each_word_is_one_token() -> Result<()> {
    let prompts = prompts()?;
    let (tokens, merges) = tokenizer::vocabulary();
    let different: BTreeSet<&String> = tokens.iter().collect();
    assert_eq!(different.len(), tokens.len());
    assert!(merges.iter().all(|merge| different.contains(&merge.concat())));
    let (start, end) = (tokens.len() as u32 - 2, tokens.len() as u32 - 1);
    let mut seen = BTreeSet::new();
    for word in images::words() {
        let ids = prompts.tokens(word)?;
        assert_eq!((ids[0], ids[2], ids.len()), (start, end, 24), "{word}");
        assert_eq!(tokens[ids[1] as usize], format!("{word}</w>"));
        assert!(seen.insert(ids[1]), "{word}");
    }
    assert_eq!(prompts.tokens("")?, [vec![start], vec![end; 23]].concat());
    assert_eq!(prompts.tokens(" A  RED\ncircle ")?, prompts.tokens("a red circle")?);
    // Other words are split into bytes.
    let odd = prompts.tokens("reds, naïve €")?;
    assert!(odd.iter().filter(|id| **id != end).count() > 10, "{odd:?}");
    let long = prompts.tokens(&"red ".repeat(40))?;
    assert_eq!((long.len(), long[22], long[23]), (24, long[1], end));
    Ok(())
}

#[test]
fn noise_follows_the_schedule_and_the_normal_distribution() {
    let levels = schedule::levels();
    // ᾱ of Stable Diffusion at the first, the middle and the last timestep.
    for (step, expected) in [(0, 0.99915), (499, 0.27767), (999, 0.00466)] {
        let kept = levels[step][0].powi(2);
        assert!((kept - expected).abs() < 1e-5, "{step}: {kept}");
    }
    assert!(levels.iter().all(|[kept, noise]| (kept * kept + noise * noise - 1.).abs() < 1e-12));
    let numbers = schedule::normal(&mut rng(5), 100_001);
    let moment = |power: i32| numbers.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / 100_001.;
    for (power, expected, bound) in [(1, 0., 0.015), (2, 1., 0.02), (3, 0., 0.05), (4, 3., 0.15)] {
        assert!((moment(power) - expected).abs() < bound, "moment {power} is {}", moment(power));
    }
}

type Operation = Box<dyn Fn(&[Tensor]) -> candle_core::Result<Tensor>>;

/// Returns operations with the shapes of their operands.
fn operations() -> Vec<(&'static str, Vec<Vec<usize>>, Operation)> {
    let mask = || {
        let mask = [0., f64::NEG_INFINITY, f64::NEG_INFINITY, 0., 0., f64::NEG_INFINITY, 0., 0., 0.];
        Tensor::from_slice(&mask, (3, 3), &Device::Cpu)
    };
    let plane = vec![2, 4, 2, 4];
    vec![
        (
            "linear",
            vec![vec![2, 3, 4], vec![5, 4], vec![5]],
            Box::new(|x| composite::linear(&x[0], &x[1], Some(&x[2]))),
        ),
        ("product", vec![vec![3, 4], vec![5, 4]], Box::new(|x| composite::linear(&x[0], &x[1], None))),
        (
            "add per channel",
            vec![plane.clone(), vec![4]],
            Box::new(|x| composite::add_per_channel(&x[0], &x[1])),
        ),
        (
            "add per image",
            vec![plane.clone(), vec![2, 4]],
            Box::new(|x| composite::add_per_channel(&x[0], &x[1])),
        ),
        (
            "layer norm",
            vec![vec![2, 3, 4], vec![4], vec![4]],
            Box::new(|x| composite::layer_norm(&x[0], &x[1], &x[2], 1e-5)),
        ),
        (
            "group norm",
            vec![plane.clone(), vec![4], vec![4]],
            Box::new(|x| composite::group_norm(&x[0], &x[1], &x[2], 2, 1e-5, false)),
        ),
        (
            "group norm and SiLU",
            vec![plane.clone(), vec![4], vec![4]],
            Box::new(|x| composite::group_norm(&x[0], &x[1], &x[2], 2, 1e-5, true)),
        ),
        ("conv", vec![vec![2, 3, 4, 5], vec![4, 3, 3, 3]], Box::new(|x| composite::conv(&x[0], &x[1], 1, 1))),
        (
            "conv without padding",
            vec![vec![2, 3, 4, 5], vec![4, 3, 1, 1]],
            Box::new(|x| composite::conv(&x[0], &x[1], 0, 1)),
        ),
        (
            "strided conv",
            vec![vec![2, 3, 4, 6], vec![4, 3, 3, 3]],
            Box::new(|x| composite::conv(&x[0], &x[1], 1, 2)),
        ),
        ("silu", vec![vec![5, 2]], Box::new(|x| composite::silu(&x[0]))),
        ("quick gelu", vec![vec![5, 2]], Box::new(|x| composite::quick_gelu(&x[0]))),
        ("geglu", vec![vec![2, 3, 6]], Box::new(|x| composite::geglu(&x[0]))),
        (
            "attention",
            vec![vec![2, 3, 4], vec![2, 5, 4], vec![2, 5, 4]],
            Box::new(|x| composite::attention(&x[0], &x[1], &x[2], 2, None)),
        ),
        (
            "masked attention",
            vec![vec![2, 3, 4], vec![2, 3, 4], vec![2, 3, 4]],
            Box::new(move |x| composite::attention(&x[0], &x[1], &x[2], 2, Some(&mask()?))),
        ),
        ("flatten", vec![plane.clone()], Box::new(|x| composite::flatten_spatial(&x[0]))),
        ("unflatten", vec![vec![2, 8, 3]], Box::new(|x| composite::unflatten_spatial(&x[0], 2))),
        ("upsample", vec![plane], Box::new(|x| composite::upsample(&x[0]))),
    ]
}

/// Compares each gradient with a central difference along a random direction.
#[test]
fn gradients_match_finite_differences() -> Result<()> {
    const STEP: f64 = 1e-5;
    let mut random = rng(6);
    let mut numbers = |dims: &[usize]| -> Result<Tensor> {
        let numbers = schedule::normal(&mut random, dims.iter().product());
        Ok(Tensor::from_vec(numbers, dims, &Device::Cpu)?.to_dtype(DType::F64)?)
    };
    for (name, shapes, operation) in operations() {
        let at = shapes.iter().map(|dims| numbers(dims)).collect::<Result<Vec<_>>>()?;
        let result = operation(&at)?;
        let weights = numbers(result.dims())?;
        let loss = |operands: &[Tensor]| -> Result<f64> {
            Ok((operation(operands)? * &weights)?.sum_all()?.to_scalar()?)
        };
        let vars = at.iter().map(Var::from_tensor).collect::<candle_core::Result<Vec<_>>>()?;
        let tracked: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
        let tracked = operation(&tracked)?;
        assert_eq!(largest(&(&tracked - &result)?)?, 0., "{name}");
        let gradients = (tracked * &weights)?.sum_all()?.backward()?;
        for (operand, var) in vars.iter().enumerate() {
            let direction = numbers(var.dims())?;
            let gradient = gradients.get(var).with_context(|| format!("{name}: no gradient {operand}"))?;
            let slope: f64 = (gradient * &direction)?.sum_all()?.to_scalar()?;
            let loss_at = |step: f64| -> Result<f64> {
                let mut operands = at.clone();
                operands[operand] = (&at[operand] + (&direction * step)?)?;
                loss(&operands)
            };
            let difference = (loss_at(STEP)? - loss_at(-STEP)?) / (2. * STEP);
            let off = (slope - difference).abs();
            assert!(
                off < 1e-5 * (1. + slope.abs()),
                "{name}, operand {operand}: gradient {slope}, expected {difference}"
            );
        }
    }
    Ok(())
}

fn builder(weights: &Weights) -> VarBuilder<'static> {
    let weights: HashMap<String, Tensor> = weights.clone().into_iter().collect();
    VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu)
}

#[test]
fn the_unet_matches_candle_transformers() -> Result<()> {
    let size = small().unet;
    let weights = random_weights(&size.shapes()?, 1)?;
    let theirs = UNet2DConditionModel::new(builder(&weights), CHANNELS, CHANNELS, false, size.config())?;
    let ours = UNet { size, weights: Part::root(&weights) };
    let mut random = rng(9);
    let mut numbers = |dims: &[usize]| {
        Tensor::from_vec(schedule::normal(&mut random, dims.iter().product()), dims, &Device::Cpu)
    };
    let (latents, context) = (numbers(&[2, 4, 8, 12])?, numbers(&[2, 5, size.context])?);
    for timestep in [1., 500., 999.] {
        let expected = theirs.forward(&latents, timestep, &context)?;
        let timesteps = Tensor::new(vec![size.timestep_embedding(timestep); 2], &Device::Cpu)?;
        let got = ours.forward(&latents, &timesteps, &context, &[])?;
        // candle-transformers approximates GELU with tanh.
        let off = largest(&(got - &expected)?)? / largest(&expected)?;
        assert!(off < 2e-3, "timestep {timestep}: {off}");
    }
    Ok(())
}

#[test]
fn the_autoencoder_matches_candle_transformers() -> Result<()> {
    let size = small().autoencoder;
    let mut weights = random_weights(&size.shapes()?, 2)?;
    // Without variance, sampled latents equal the mean.
    let bias = weights["quant_conv.bias"].narrow(0, 0, CHANNELS)?;
    let minimum = Tensor::full(-60f32, CHANNELS, &Device::Cpu)?;
    weights.insert("quant_conv.bias".into(), Tensor::cat(&[bias, minimum], 0)?);
    let theirs = AutoEncoderKL::new(builder(&weights), 3, 3, size.config())?;
    let ours = Autoencoder { size, weights: Part::root(&weights) };
    let images =
        Tensor::from_vec(schedule::normal(&mut rng(8), 2 * 3 * 64 * 48), (2, 3, 64, 48), &Device::Cpu)?;
    let (mean, variance) = ours.encode(&images)?;
    assert_eq!(mean.dims(), [2, CHANNELS, 8, 6]);
    assert!(largest(&(variance + 30.)?)? < 1e-5);
    let expected = theirs.encode(&images)?.sample()?;
    let off = largest(&(&mean - &expected)?)? / largest(&expected)?;
    assert!(off < 1e-5, "latents: {off}");
    let expected = theirs.decode(&mean)?;
    let off = largest(&(ours.decode(&mean)? - &expected)?)? / largest(&expected)?;
    assert!(off < 1e-5, "images: {off}");
    Ok(())
}

#[test]
fn tokens_do_not_depend_on_later_tokens() -> Result<()> {
    let size = small().text;
    let weights = random_weights(&size.shapes(), 3)?;
    let encoder = text_encoder::TextEncoder { size, weights: Part::root(&weights) };
    let mask = size.mask(&Device::Cpu)?;
    let prompts = prompts()?;
    let tokens = ["a red circle on blue", "a red circle on a white background"].map(|p| prompts.tokens(p));
    let tokens = tokens.into_iter().collect::<Result<Vec<_>>>()?;
    let encoded = encoder.forward(&Tensor::new(tokens.clone(), &Device::Cpu)?, &mask)?;
    assert_eq!(encoded.dims(), [2, size.length, size.width]);
    let same = (0..size.length).take_while(|at| tokens[0][*at] == tokens[1][*at]).count();
    assert_eq!(same, 5);
    for at in 0..size.length {
        let row = |text: usize| encoded.narrow(0, text, 1)?.narrow(1, at, 1);
        let off = largest(&(row(0)? - row(1)?)?)?;
        assert_eq!(off < 1e-5, at < same, "token {at}: {off}");
    }
    Ok(())
}

fn config(steps: u32, batch: u32) -> TrainConfig {
    TrainConfig { seed: 5, steps, batch, rate: 3e-3 }
}

fn untrained(sizes: &Sizes) -> Result<Latents> {
    let weights = random_weights(&sizes.autoencoder.shapes()?, 4)?;
    Ok(Latents { size: sizes.autoencoder, weights, scale: 1., colours: Default::default() })
}

#[test]
fn resumed_training_equals_uninterrupted_training() -> Result<()> {
    let (sizes, prompts, device) = (small(), prompts()?, Device::Cpu);
    let folder = tempfile::tempdir()?;
    for stage in [Stage::Autoencoder, Stage::Diffusion] {
        let latents = || if stage == Stage::Diffusion { untrained(&sizes).map(Some) } else { Ok(None) };
        let start = |sizes, config| Training::new(stage, sizes, config, &prompts, latents()?, &device);
        let mut whole = start(sizes, config(5, 2))?;
        (0..5).try_for_each(|_| whole.step())?;
        whole.read_losses()?;
        let file = stage.file(folder.path());
        let mut first = start(sizes, config(5, 2))?;
        (0..2).try_for_each(|_| first.step())?;
        first.save(&file)?;
        let mut resumed = start(sizes, config(5, 2))?.resume(&file)?;
        (2..5).try_for_each(|_| resumed.step())?;
        resumed.read_losses()?;
        assert_eq!((resumed.losses.len(), &resumed.losses), (5, &whole.losses), "{stage:?}");
        let (got, expected) = (resumed.averages()?, whole.averages()?);
        for (name, weight) in &expected {
            assert_eq!(largest(&(weight - &got[name])?)?, 0., "{stage:?}: {name}");
        }
        let other = TrainConfig { seed: 6, ..config(5, 2) };
        let error = start(sizes, other)?.resume(&file).err().context("another configuration was accepted")?;
        assert!(error.to_string().contains("--folder"), "{error}");
        let mut larger = sizes;
        larger.autoencoder.widths = [8, 8, 8, 8];
        larger.unet.widths = [32, 32];
        assert!(start(larger, config(5, 2))?.resume(&file).is_err(), "{stage:?}: another size was accepted");
    }
    Ok(())
}

#[test]
fn training_reduces_the_loss_and_draws_its_curves() -> Result<()> {
    let (sizes, prompts) = (small(), prompts()?);
    let fixed = Batch::generate(Subject::Plain, 3, 0, 16, &prompts)?;
    // Returns the loss of a fixed batch before and after training steps.
    let losses = |training: &mut Training, steps: usize| -> Result<(f32, f32)> {
        let before = training.loss(&fixed)?.to_scalar()?;
        (0..steps).try_for_each(|_| training.step())?;
        training.read_losses()?;
        Ok((before, training.loss(&fixed)?.to_scalar()?))
    };
    let config = TrainConfig { rate: 1e-2, ..config(40, 4) };
    let mut first = Training::new(Stage::Autoencoder, sizes, config, &prompts, None, &Device::Cpu)?;
    let (before, after) = losses(&mut first, 40)?;
    assert!(after < 0.92 * before, "the autoencoder's loss went from {before} to {after}");
    let latents = first.latents()?;
    let mut second = Training::new(Stage::Diffusion, sizes, config, &prompts, Some(latents), &Device::Cpu)?;
    let (before, after) = losses(&mut second, 40)?;
    // The error of predicting zero is the variance of the noise, times the mean weight 1/ᾱ, at most 25.
    let weights = fixed.timesteps.iter().map(|at| schedule::levels()[*at][0].powi(-2).min(25.) as f32);
    let mean = weights.sum::<f32>() / fixed.timesteps.len() as f32;
    assert!((before / mean - 1.).abs() < 0.1, "the initial error of the noise is {before}, expected {mean}");
    assert!(after < 0.8 * before, "the error of the noise went from {before} to {after}");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("loss.svg");
    curve::draw(&[("first", &first.losses), ("second", &second.losses)], &file)?;
    let svg = std::fs::read_to_string(&file)?;
    let curves = svg.split("<polyline").filter(|part| part.contains("#C81E28"));
    let points = curves.map(|part| part.matches(',').count());
    assert!(points.eq([40, 40]), "{svg}");
    Ok(())
}

#[test]
fn scaled_latents_have_unit_variance() -> Result<()> {
    let (sizes, prompts) = (small(), prompts()?);
    let weights = random_weights(&sizes.autoencoder.shapes()?, 4)?;
    let batches = (0..4)
        .map(|step| Batch::generate(Subject::Plain, 3, step, 8, &prompts))
        .collect::<Result<Vec<_>>>()?;
    let latents = Latents::measure(sizes.autoencoder, weights, &batches, &Device::Cpu)?;
    let (mut sampled, mut colours) = (Vec::new(), Vec::new());
    for batch in &batches {
        let images = batch.images(&Device::Cpu)?;
        sampled.push(latents.sample(&images, &batch.noises(&Device::Cpu)?[0])?);
        colours.push(images.avg_pool2d(8)?);
    }
    let all = Tensor::cat(&sampled, 0)?;
    let values: Vec<f32> = all.flatten_all()?.to_vec1()?;
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    let square = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32;
    assert!((square - 1.).abs() < 1e-3, "the variance is {square}");
    // Other factors have a larger error.
    let rows: Vec<Vec<f32>> = all.permute((0, 2, 3, 1))?.flatten(0, 2)?.to_vec2()?;
    let colours: Vec<Vec<f32>> = Tensor::cat(&colours, 0)?.permute((0, 2, 3, 1))?.flatten(0, 2)?.to_vec2()?;
    let error = |factors: &[[f64; 3]; CHANNELS + 1]| -> f64 {
        let off = |(row, colour): (&Vec<f32>, &Vec<f32>), i: usize| {
            let sum: f64 = row.iter().zip(factors).map(|(x, factor)| f64::from(*x) * factor[i]).sum();
            (sum + factors[CHANNELS][i] - f64::from(colour[i])).powi(2)
        };
        rows.iter().zip(&colours).map(|cell| (0..3).map(|i| off(cell, i)).sum::<f64>()).sum()
    };
    let best = error(&latents.colours);
    for at in 0..3 * (CHANNELS + 1) {
        for change in [-0.01, 0.01] {
            let mut other = latents.colours;
            other[at / 3][at % 3] += change;
            assert!(error(&other) > best, "changing factor {at} by {change} reduces the error");
        }
    }
    Ok(())
}

#[test]
fn the_optimizer_matches_candles_adamw() -> Result<()> {
    const WEIGHT_DECAY: f64 = 0.05;
    let start = Tensor::new(&[[0.3f32, -0.2, 0.5], [0.1, 0.4, -0.6]], &Device::Cpu)?;
    let theirs = Var::from_tensor(&start)?;
    let mut adam = adam::AdamW::new(&BTreeMap::from([("w".to_string(), start.clone())]), WEIGHT_DECAY)?;
    let params = ParamsAdamW {
        lr: 0.01,
        beta1: adam::BETAS.0,
        beta2: adam::BETAS.1,
        eps: adam::EPSILON,
        weight_decay: WEIGHT_DECAY,
    };
    let mut expected = candle_nn::AdamW::new(vec![theirs.clone()], params)?;
    // Gradients short enough not to be scaled down.
    let loss = |w: &Tensor| (w + 0.1)?.sqr()?.sum_all()? * 0.1;
    let weights = adam.weights();
    let mut average = start;
    for step in 1..=20 {
        adam.step(&loss(&weights["w"])?.backward()?, 0.01, step)?;
        expected.step(&loss(theirs.as_tensor())?.backward()?)?;
        let off = largest(&(&weights["w"] - theirs.as_tensor())?)?;
        assert!(off < 1e-6, "step {step}: {off}");
        let decay = (1. + step as f64) / (10. + step as f64);
        average = ((average * decay)? + (theirs.as_detached_tensor() * (1. - decay))?)?;
        let ours = &adam.averages()?["w"];
        assert!(largest(&(ours - &average)?)? < 1e-6 && !ours.track_op(), "step {step}");
    }
    // A gradient a thousand times too long is scaled down to the maximum norm.
    let mut adam = adam::AdamW::new(&weights, WEIGHT_DECAY)?;
    let steep = (&adam.weights()["w"] * (1000. * adam::MAX_GRADIENT_NORM))?.sum_all()?.backward()?;
    adam.step(&steep, 0.01, 1)?;
    let mean: f32 = adam.state()["mean"].sqr()?.sum_all()?.sqrt()?.to_scalar()?;
    let allowed = ((1. - adam::BETAS.0) * adam::MAX_GRADIENT_NORM) as f32;
    assert!(
        (mean - allowed).abs() < 1e-4 * allowed,
        "the norm of the first moment is {mean}, expected {allowed}"
    );
    Ok(())
}

#[test]
fn a_written_model_can_be_read_and_sampled() -> Result<()> {
    let sizes = small();
    let latents = Latents { scale: 0.7, ..untrained(&sizes)? };
    let named = |name: &str, shapes: Shapes| {
        shapes.into_iter().map(|(part, dims)| (format!("{name}.{part}"), dims)).collect::<Shapes>()
    };
    let mut shapes = named(train::TEXT, sizes.text.shapes());
    shapes.extend(named(train::UNET, sizes.unet.shapes()?));
    let diffusion = random_weights(&shapes, 5)?;
    let folder = tempfile::tempdir()?;
    export::write(folder.path(), &sizes, &latents, &diffusion)?;
    let model = export::Model::read(folder.path(), &Device::Cpu)?;
    assert_eq!((model.sizes, model.scale), (sizes, 0.7));
    let parts = model.text.iter().map(|(name, weight)| (format!("{}.{name}", train::TEXT), weight));
    let parts =
        parts.chain(model.unet.iter().map(|(name, weight)| (format!("{}.{name}", train::UNET), weight)));
    let read: BTreeMap<String, &Tensor> = parts.collect();
    assert!(read.keys().eq(diffusion.keys()));
    for (name, weight) in &diffusion {
        let half = weight.to_dtype(DType::F16)?.to_dtype(DType::F32)?;
        assert_eq!(largest(&(&half - read[name])?)?, 0., "{name}");
    }
    assert!(model.vae.keys().eq(latents.weights.keys()));
    assert!(model.vae.contains_key("decoder.mid_block.attentions.0.to_out.0.weight"));
    let options = sample::SampleOptions { steps: 3, guidance: 2., seed: 1 };
    let sample =
        |options| sample::images(&model, &["a red circle", "a star"], None, &options, SIDE, &Device::Cpu);
    let first = sample(options)?;
    assert!(first.iter().all(|image| image.len() == SIDE * SIDE * 3));
    assert_eq!(first, sample(options)?);
    assert_ne!(first, sample(sample::SampleOptions { seed: 2, ..options })?);
    assert_ne!(first[0], first[1]);
    Ok(())
}

#[test]
fn the_model_is_small() -> Result<()> {
    let sizes = Sizes::tiny(vocabulary());
    let count = |shapes: Shapes| shapes.values().map(|dims| dims.iter().product::<usize>()).sum::<usize>();
    let counts = [sizes.text.shapes(), sizes.unet.shapes()?, sizes.autoencoder.shapes()?].map(count);
    println!("text encoder, UNet, VAE: {counts:?} parameters");
    let bytes = 2 * counts.iter().sum::<usize>();
    assert!(bytes < 11_800_000, "{bytes} bytes as f16");
    Ok(())
}

/// Shape, colours, size and position are each right in at least 18 of 20 images.
#[test]
fn sampled_pictures_match_their_prompts() -> Result<()> {
    let model = export::Model::read(&folder(), &Device::Cpu)?;
    let options = sample::SampleOptions { steps: 12, guidance: 4., seed: 1 };
    let images = sample::images(&model, &judge::PROMPTS, None, &options, SIDE, &Device::Cpu)?;
    let scores = judge::scores(&judge::PROMPTS, &images)?;
    scores.iter().for_each(|score| println!("{score}"));
    for (part, right) in judge::PARTS.iter().zip(judge::right(&scores)) {
        assert!(right >= 18, "{part}: {right} of {} are correct", scores.len());
    }
    Ok(())
}
