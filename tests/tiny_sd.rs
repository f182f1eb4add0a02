//! The small Stable Diffusion of `examples/tiny_sd`: its pictures, the judge of them, its tokenizer, gradients, training
//! and files, and what the one in the repository paints.
// The command uses the rest.
#![allow(dead_code)]

#[path = "../examples/shared/adam.rs"]
mod adam;
#[path = "../examples/tiny_sd/autoencoder.rs"]
mod autoencoder;
#[path = "../examples/tiny_sd/batches.rs"]
mod batches;
#[path = "../examples/tiny_sd/composite.rs"]
mod composite;
#[path = "../examples/shared/curve.rs"]
mod curve;
#[path = "../examples/tiny_sd/export.rs"]
mod export;
#[path = "../examples/tiny_sd/judge.rs"]
mod judge;
#[path = "../examples/tiny_sd/latents.rs"]
mod latents;
#[path = "../examples/tiny_sd/pictures.rs"]
mod pictures;
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
use latents::Latents;
use pictures::{COLOURS, Outline, SHAPES, SIDE, Scene, coverage};
use sample::{Score, Wanted};
use tokenizer::Prompts;
use train::{Course, Sizes, Stage, Training};
use unet::UNet;
use weights::{Part, Shapes, Weights};

/// The model in the repository.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_sd/model")
}

fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

fn largest(x: &Tensor) -> Result<f64> {
    Ok(x.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?.to_scalar()?)
}

/// Networks that take no time.
fn small() -> Sizes {
    Sizes {
        autoencoder: autoencoder::Size { widths: [4, 4, 8, 8], groups: 2 },
        text: text_encoder::Size { width: 16, layers: 1, heads: 2, ..Sizes::tiny(vocabulary()).text },
        // Some norms of candle-transformers have 32 groups whatever they are told.
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

/// Random weights, the zeros among them too.
fn noisy(shapes: &Shapes, seed: u64) -> Result<Weights> {
    let mut rng = rng(seed);
    let begin = weights::random(shapes, &mut rng, &Device::Cpu)?;
    let moved = begin.into_iter().map(|(name, weight)| {
        let spread = 0.5 * (weight.dims().iter().skip(1).product::<usize>() as f64).powf(-0.5);
        let noise = schedule::normal(&mut rng, weight.elem_count());
        let noise = Tensor::from_vec(noise, weight.shape(), &Device::Cpu)?;
        Ok((name, (weight + (noise * spread)?)?))
    });
    moved.collect()
}

#[test]
fn shapes_cover_their_area() {
    for (shape, (name, outline)) in SHAPES.iter().enumerate() {
        let (radius, centre) = (20f32, [31.3, 32.8]);
        let area = radius
            * radius
            * match outline {
                Outline::Disc => std::f32::consts::PI,
                Outline::Ring(hole) => std::f32::consts::PI * (1. - hole * hole),
                // Half the sum of the cross products of neighbours.
                Outline::Polygon(corners) => {
                    let next = corners.iter().cycle().skip(1);
                    let crosses = corners.iter().zip(next).map(|(a, b)| a[0] * b[1] - a[1] * b[0]);
                    crosses.sum::<f32>().abs() / 2.
                }
            };
        let shares = coverage(shape, centre, radius);
        let covered: f32 = shares.iter().sum();
        assert!((covered - area).abs() < 0.02 * area, "{name} covers {covered}, not {area}");
        assert!(shares.iter().any(|share| (0.2..0.8).contains(share)), "{name} has no smooth edge");
        let beyond = shares.iter().enumerate().filter(|(at, share)| {
            let off = [(at % SIDE) as f32 + 0.5 - centre[0], (at / SIDE) as f32 + 0.5 - centre[1]];
            **share > 0. && off.iter().any(|off| off.abs() > radius + 1.)
        });
        assert_eq!(beyond.count(), 0, "{name} is larger than its radius");
    }
}

#[test]
fn captions_tell_what_is_there() -> Result<()> {
    let mut random = rng(1);
    let words: BTreeSet<&str> = pictures::words().into_iter().collect();
    assert_eq!(words.len(), pictures::words().len());
    let (mut empty, mut told) = (0, [0; 4]);
    for _ in 0..2000 {
        let scene = Scene::random(&mut random);
        let caption = scene.caption(&mut random);
        if caption.is_empty() {
            empty += 1;
            continue;
        }
        assert!(caption.split(' ').all(|word| words.contains(word)), "{caption}");
        let wanted = Wanted::of(&caption)?;
        assert_eq!(wanted.shape, scene.shape, "{caption}");
        let pairs = [
            (wanted.colours[0], scene.colours[0]),
            (wanted.colours[1], scene.colours[1]),
            (wanted.size, scene.size),
            (wanted.place, scene.place),
        ];
        for ((wanted, there), told) in pairs.into_iter().zip(&mut told) {
            assert!(wanted.is_none_or(|wanted| wanted == there), "{caption}: {scene:?}");
            *told += usize::from(wanted.is_some());
        }
    }
    assert!((150..250).contains(&empty), "{empty} of 2000 captions are empty");
    assert!(told.iter().all(|told| (500..1800).contains(told)), "told of {told:?}");
    assert_eq!(Scene::random(&mut rng(7)), Scene::random(&mut rng(7)));
    assert_ne!(Scene::random(&mut rng(7)), Scene::random(&mut rng(8)));
    Ok(())
}

#[test]
fn the_judge_sees_what_was_drawn() {
    const COUNT: usize = 2000;
    let mut random = rng(2);
    let mut wrong = [0; 5];
    for _ in 0..COUNT {
        let scene = Scene::random(&mut random);
        let Some(seen) = judge::look(&scene.draw()) else { panic!("nothing seen of {scene:?}") };
        let same = [
            seen.shape == scene.shape,
            seen.colours[0] == scene.colours[0],
            seen.colours[1] == scene.colours[1],
            seen.size == scene.size,
            seen.place == scene.place,
        ];
        wrong.iter_mut().zip(same).for_each(|(wrong, same)| *wrong += usize::from(!same));
    }
    println!("wrong shapes, colours, grounds, sizes, places of {COUNT}: {wrong:?}");
    assert!(wrong.iter().all(|wrong| *wrong * 200 < COUNT), "{wrong:?} of {COUNT} are wrong");
}

#[test]
fn the_judge_takes_noise_and_blur() {
    const COUNT: usize = 500;
    let mut random = rng(3);
    let mut wrong = 0;
    for _ in 0..COUNT {
        let scene = Scene::random(&mut random);
        let drawn = scene.draw();
        let noise = schedule::normal(&mut random, drawn.len());
        // The mean with the neighbours to the right and below.
        let level = |at: usize| {
            let near = [at, at + 3, at + 3 * SIDE, at + 3 * SIDE + 3].map(|at| at.min(drawn.len() - 1));
            near.iter().map(|at| f32::from(drawn[*at])).sum::<f32>() / 4. + 12. * noise[at]
        };
        let spoiled: Vec<u8> = (0..drawn.len()).map(|at| level(at) as u8).collect();
        let seen = judge::look(&spoiled);
        let is_same = seen.is_some_and(|seen| (seen.shape, seen.colours) == (scene.shape, scene.colours));
        wrong += usize::from(!is_same);
    }
    assert!(wrong * 20 < COUNT, "{wrong} of {COUNT} are wrong");
}

#[test]
fn the_judge_finds_fault() -> Result<()> {
    assert_eq!(judge::look(&[90; SIDE * SIDE * 3]), None);
    assert_eq!(judge::look(&[0; 12]), None);
    let scene = Scene { shape: 3, colours: [0, 2], ..Scene::random(&mut rng(4)) };
    let tints = scene.colours.map(|colour| COLOURS[colour].1);
    let seen = judge::look(&Scene { tints, ..scene }.draw());
    for (prompt, is_right) in [
        ("a red star on blue", true),
        ("a star", true),
        ("a red star on green", false),
        ("a blue star on red", false),
        ("a red ring on blue", false),
    ] {
        let score = Score { prompt: prompt.into(), wanted: Wanted::of(prompt)?, seen: seen.clone() };
        assert_eq!(score.is_right(), is_right, "{score}");
    }
    assert!(Wanted::of("a red thing").is_err());
    Ok(())
}

#[test]
fn each_test_prompt_tells_shape_and_colours() -> Result<()> {
    let words: BTreeSet<&str> = pictures::words().into_iter().collect();
    for prompt in sample::PROMPTS {
        assert!(prompt.split(' ').all(|word| words.contains(word)), "{prompt}");
        let wanted = Wanted::of(prompt)?;
        assert!(wanted.colours.iter().all(Option::is_some), "{prompt}: {wanted:?}");
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
    for word in pictures::words() {
        let ids = prompts.tokens(word)?;
        assert_eq!((ids[0], ids[2], ids.len()), (start, end, 24), "{word}");
        assert_eq!(tokens[ids[1] as usize], format!("{word}</w>"));
        assert!(seen.insert(ids[1]), "{word}");
    }
    assert_eq!(prompts.tokens("")?, [vec![start], vec![end; 23]].concat());
    assert_eq!(prompts.tokens(" A  RED\ncircle ")?, prompts.tokens("a red circle")?);
    // What is no word of captions is spelled.
    let odd = prompts.tokens("reds, naïve €")?;
    assert!(odd.iter().filter(|id| **id != end).count() > 10, "{odd:?}");
    let long = prompts.tokens(&"red ".repeat(40))?;
    assert_eq!((long.len(), long[22], long[23]), (24, long[1], end));
    Ok(())
}

#[test]
fn noise_is_scheduled_and_normal() {
    let levels = schedule::levels();
    // ᾱ of Stable Diffusion: 1 - β₀, the product up to the half, and what is left at the end.
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

/// Operations, and the shapes of their operands.
fn operations() -> Vec<(&'static str, Vec<Vec<usize>>, Operation)> {
    let mask = || {
        let sees = [0., f64::NEG_INFINITY, f64::NEG_INFINITY, 0., 0., f64::NEG_INFINITY, 0., 0., 0.];
        Tensor::from_slice(&sees, (3, 3), &Device::Cpu)
    };
    let plane = vec![2, 4, 2, 4];
    vec![
        (
            "linear",
            vec![vec![2, 3, 4], vec![5, 4], vec![5]],
            Box::new(|x| composite::linear(&x[0], &x[1], Some(&x[2]))),
        ),
        ("product", vec![vec![3, 4], vec![5, 4]], Box::new(|x| composite::linear(&x[0], &x[1], None))),
        ("shift", vec![plane.clone(), vec![4]], Box::new(|x| composite::shift(&x[0], &x[1]))),
        ("shift of each", vec![plane.clone(), vec![2, 4]], Box::new(|x| composite::shift(&x[0], &x[1]))),
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
            "conv with steps",
            vec![vec![2, 3, 4, 6], vec![4, 3, 3, 3]],
            Box::new(|x| composite::conv(&x[0], &x[1], 1, 2)),
        ),
        ("silu", vec![vec![5, 2]], Box::new(|x| composite::silu(&x[0]))),
        ("quick gelu", vec![vec![5, 2]], Box::new(|x| composite::quick_gelu(&x[0]))),
        ("gated", vec![vec![2, 3, 6]], Box::new(|x| composite::gated(&x[0]))),
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
        ("rows", vec![plane.clone()], Box::new(|x| composite::rows(&x[0]))),
        ("planes", vec![vec![2, 8, 3]], Box::new(|x| composite::planes(&x[0], 2))),
        ("upsample", vec![plane], Box::new(|x| composite::upsample(&x[0]))),
    ]
}

/// Each gradient against the difference of two values nearby, along a random direction of each operand.
#[test]
fn gradients_are_differences() -> Result<()> {
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
        let cost = |operands: &[Tensor]| -> Result<f64> {
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
            let beside = |step: f64| -> Result<f64> {
                let mut operands = at.clone();
                operands[operand] = (&at[operand] + (&direction * step)?)?;
                cost(&operands)
            };
            let difference = (beside(STEP)? - beside(-STEP)?) / (2. * STEP);
            let off = (slope - difference).abs();
            assert!(off < 1e-5 * (1. + slope.abs()), "{name}, operand {operand}: {slope}, not {difference}");
        }
    }
    Ok(())
}

fn builder(weights: &Weights) -> VarBuilder<'static> {
    let weights: HashMap<String, Tensor> = weights.clone().into_iter().collect();
    VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu)
}

#[test]
fn the_unet_is_candle_transformers() -> Result<()> {
    let size = small().unet;
    let weights = noisy(&size.shapes()?, 1)?;
    let theirs = UNet2DConditionModel::new(builder(&weights), CHANNELS, CHANNELS, false, size.config())?;
    let ours = UNet { size, weights: Part::of(&weights) };
    let mut random = rng(9);
    let mut numbers = |dims: &[usize]| {
        Tensor::from_vec(schedule::normal(&mut random, dims.iter().product()), dims, &Device::Cpu)
    };
    let (latents, context) = (numbers(&[2, 4, 8, 12])?, numbers(&[2, 5, size.context])?);
    for timestep in [1., 500., 999.] {
        let expected = theirs.forward(&latents, timestep, &context)?;
        let waves = Tensor::new(vec![size.waves(timestep); 2], &Device::Cpu)?;
        let got = ours.forward(&latents, &waves, &context)?;
        // Theirs has the GELU of the hyperbolic tangent.
        let off = largest(&(got - &expected)?)? / largest(&expected)?;
        assert!(off < 2e-3, "timestep {timestep}: {off}");
    }
    Ok(())
}

#[test]
fn the_autoencoder_is_candle_transformers() -> Result<()> {
    let size = small().autoencoder;
    let mut weights = noisy(&size.shapes()?, 2)?;
    // No variance: what they draw is the mean.
    let bias = weights["quant_conv.bias"].narrow(0, 0, CHANNELS)?;
    let none = Tensor::full(-60f32, CHANNELS, &Device::Cpu)?;
    weights.insert("quant_conv.bias".into(), Tensor::cat(&[bias, none], 0)?);
    let theirs = AutoEncoderKL::new(builder(&weights), 3, 3, size.config())?;
    let ours = Autoencoder { size, weights: Part::of(&weights) };
    let pictures =
        Tensor::from_vec(schedule::normal(&mut rng(8), 2 * 3 * 64 * 48), (2, 3, 64, 48), &Device::Cpu)?;
    let (mean, variance) = ours.encode(&pictures)?;
    assert_eq!(mean.dims(), [2, CHANNELS, 8, 6]);
    assert!(largest(&(variance + 30.)?)? < 1e-5);
    let expected = theirs.encode(&pictures)?.sample()?;
    let off = largest(&(&mean - &expected)?)? / largest(&expected)?;
    assert!(off < 1e-5, "latents: {off}");
    let expected = theirs.decode(&mean)?;
    let off = largest(&(ours.decode(&mean)? - &expected)?)? / largest(&expected)?;
    assert!(off < 1e-5, "pictures: {off}");
    Ok(())
}

#[test]
fn a_token_sees_none_behind_it() -> Result<()> {
    let size = small().text;
    let weights = noisy(&size.shapes(), 3)?;
    let encoder = text_encoder::TextEncoder { size, weights: Part::of(&weights) };
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

fn course(steps: u32, batch: u32) -> Course {
    Course { seed: 5, steps_vae: steps, steps_unet: steps, batch, rate: 3e-3 }
}

fn untrained(sizes: &Sizes) -> Result<Latents> {
    let weights = noisy(&sizes.autoencoder.shapes()?, 4)?;
    Ok(Latents { size: sizes.autoencoder, weights, scale: 1., colours: Default::default() })
}

#[test]
fn training_goes_on_as_if_never_interrupted() -> Result<()> {
    let (sizes, prompts, device) = (small(), prompts()?, Device::Cpu);
    let folder = tempfile::tempdir()?;
    for stage in [Stage::Autoencoder, Stage::Diffusion] {
        let latents = || if stage == Stage::Diffusion { untrained(&sizes).map(Some) } else { Ok(None) };
        let begin = |sizes, course| Training::begin(stage, sizes, course, &prompts, latents()?, &device);
        let mut whole = begin(sizes, course(5, 2))?;
        (0..5).try_for_each(|_| whole.step())?;
        whole.read()?;
        let file = stage.file(folder.path());
        let mut first = begin(sizes, course(5, 2))?;
        (0..2).try_for_each(|_| first.step())?;
        first.keep(&file)?;
        let mut resumed = begin(sizes, course(5, 2))?.resume(&file)?;
        (2..5).try_for_each(|_| resumed.step())?;
        resumed.read()?;
        assert_eq!((resumed.losses.len(), &resumed.losses), (5, &whole.losses), "{stage:?}");
        let (got, expected) = (resumed.averages()?, whole.averages()?);
        for (name, weight) in &expected {
            assert_eq!(largest(&(weight - &got[name])?)?, 0., "{stage:?}: {name}");
        }
        let other = Course { seed: 6, ..course(5, 2) };
        let refusal = begin(sizes, other)?.resume(&file).err().context("another course was accepted")?;
        assert!(refusal.to_string().contains("--folder"), "{refusal}");
        let mut larger = sizes;
        larger.autoencoder.widths = [8, 8, 8, 8];
        larger.unet.widths = [32, 32];
        assert!(begin(larger, course(5, 2))?.resume(&file).is_err(), "{stage:?}: another size was accepted");
    }
    Ok(())
}

#[test]
fn training_learns_and_draws_its_curves() -> Result<()> {
    let (sizes, prompts) = (small(), prompts()?);
    let fixed = batches::Batch::draw(3, 0, 16, &prompts)?;
    // What the same pictures cost before and after so many steps.
    let costs = |training: &mut Training, steps: usize| -> Result<(f32, f32)> {
        let before = training.loss(&fixed)?.to_scalar()?;
        (0..steps).try_for_each(|_| training.step())?;
        training.read()?;
        Ok((before, training.loss(&fixed)?.to_scalar()?))
    };
    let course = Course { rate: 1e-2, ..course(40, 4) };
    let mut first = Training::begin(Stage::Autoencoder, sizes, course, &prompts, None, &Device::Cpu)?;
    let (before, after) = costs(&mut first, 40)?;
    assert!(after < 0.92 * before, "the autoencoder's loss went from {before} to {after}");
    let latents = first.latents()?;
    let mut second = Training::begin(Stage::Diffusion, sizes, course, &prompts, Some(latents), &Device::Cpu)?;
    let (before, after) = costs(&mut second, 40)?;
    // Predicting nothing costs the noise's variance.
    assert!((before - 1.).abs() < 0.1, "the noise's error begins at {before}");
    assert!(after < 0.8, "the noise's error went from {before} to {after}");
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
fn latents_have_the_variance_that_noise_has() -> Result<()> {
    let (sizes, prompts) = (small(), prompts()?);
    let weights = noisy(&sizes.autoencoder.shapes()?, 4)?;
    let batches =
        (0..4).map(|step| batches::Batch::draw(3, step, 8, &prompts)).collect::<Result<Vec<_>>>()?;
    let latents = Latents::measure(sizes.autoencoder, weights, &batches, &Device::Cpu)?;
    let (mut drawn, mut colours) = (Vec::new(), Vec::new());
    for batch in &batches {
        let pictures = batch.pictures(&Device::Cpu)?;
        drawn.push(latents.draw(&pictures, &batch.noises(&Device::Cpu)?[0])?);
        colours.push(pictures.avg_pool2d(8)?);
    }
    let all = Tensor::cat(&drawn, 0)?;
    let values: Vec<f32> = all.flatten_all()?.to_vec1()?;
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    let square = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32;
    assert!((square - 1.).abs() < 1e-3, "the variance is {square}");
    // No other factors come nearer to the colours.
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
            assert!(error(&other) > best, "{at}: {change} comes nearer");
        }
    }
    Ok(())
}

#[test]
fn the_optimizer_moves_as_candles_does() -> Result<()> {
    const WEIGHT_DECAY: f64 = 0.05;
    let start = Tensor::new(&[[0.3f32, -0.2, 0.5], [0.1, 0.4, -0.6]], &Device::Cpu)?;
    let theirs = Var::from_tensor(&start)?;
    let mut adam = adam::AdamW::begin(&BTreeMap::from([("w".to_string(), start.clone())]), WEIGHT_DECAY)?;
    let params = ParamsAdamW {
        lr: 0.01,
        beta1: adam::DECAYS.0,
        beta2: adam::DECAYS.1,
        eps: adam::EPSILON,
        weight_decay: WEIGHT_DECAY,
    };
    let mut expected = candle_nn::AdamW::new(vec![theirs.clone()], params)?;
    // Gradients shorter than what is cut.
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
    // A gradient a thousand times as long as allowed counts as the longest allowed one.
    let mut adam = adam::AdamW::begin(&weights, WEIGHT_DECAY)?;
    let steep = (&adam.weights()["w"] * (1000. * adam::LONGEST))?.sum_all()?.backward()?;
    adam.step(&steep, 0.01, 1)?;
    let mean: f32 = adam.state()["mean"].sqr()?.sum_all()?.sqrt()?.to_scalar()?;
    let allowed = ((1. - adam::DECAYS.0) * adam::LONGEST) as f32;
    assert!((mean - allowed).abs() < 1e-4 * allowed, "the mean is {mean} long, not {allowed}");
    Ok(())
}

#[test]
fn a_written_model_is_read_and_paints() -> Result<()> {
    let sizes = small();
    let latents = Latents { scale: 0.7, ..untrained(&sizes)? };
    let named = |name: &str, shapes: Shapes| {
        shapes.into_iter().map(|(part, dims)| (format!("{name}.{part}"), dims)).collect::<Shapes>()
    };
    let mut shapes = named(train::TEXT, sizes.text.shapes());
    shapes.extend(named(train::UNET, sizes.unet.shapes()?));
    let diffusion = noisy(&shapes, 5)?;
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
    let way = sample::Way { steps: 3, guidance: 2., seed: 1 };
    let paint = |way| sample::pictures(&model, &["a red circle", "a star"], &way, SIDE, &Device::Cpu);
    let painted = paint(way)?;
    assert!(painted.iter().all(|picture| picture.len() == SIDE * SIDE * 3));
    assert_eq!(painted, paint(way)?);
    assert_ne!(painted, paint(sample::Way { seed: 2, ..way })?);
    assert_ne!(painted[0], painted[1]);
    Ok(())
}

#[test]
fn the_model_takes_little_room() -> Result<()> {
    let sizes = Sizes::tiny(vocabulary());
    let count = |shapes: Shapes| shapes.values().map(|dims| dims.iter().product::<usize>()).sum::<usize>();
    let counts = [sizes.text.shapes(), sizes.unet.shapes()?, sizes.autoencoder.shapes()?].map(count);
    println!("text encoder, UNet, VAE: {counts:?} parameters");
    let bytes = 2 * counts.iter().sum::<usize>();
    assert!(bytes < 11_800_000, "{bytes} bytes of f16");
    Ok(())
}

/// Twenty prompts: at least eighteen pictures of the shape and the colours that they ask for.
#[test]
fn the_model_paints_what_prompts_say() -> Result<()> {
    let model = export::Model::read(&folder(), &Device::Cpu)?;
    let way = sample::Way { steps: 12, guidance: 4., seed: 1 };
    let pictures = sample::pictures(&model, &sample::PROMPTS, &way, SIDE, &Device::Cpu)?;
    let scores = sample::scores(&sample::PROMPTS, &pictures)?;
    scores.iter().for_each(|score| println!("{score}"));
    let right = scores.iter().filter(|score| score.is_right()).count();
    assert!(right >= 18, "{right} of {} right", scores.len());
    Ok(())
}
