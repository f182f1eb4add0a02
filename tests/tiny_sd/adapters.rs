//! The LoRA and the ControlNet of the tiny model: images, detection, networks, training, and the files in the repository.
use super::*;

use judge::{PARTS, PLACED_PARTS, PROMPTS};
use sample::{Control, SampleOptions};

/// Number of images that the trained files are tested with in every run.
const FEW: usize = 4;
const OPTIONS: SampleOptions = SampleOptions { steps: 12, guidance: 4., seed: 1 };

#[test]
fn detection_recognizes_corners() {
    const COUNT: usize = 1000;
    let mut random = rng(11);
    let mut wrong = [0; 5];
    for _ in 0..COUNT {
        let scene = Scene::random(&mut random);
        let found = detection::detect(&scene.draw()).unwrap();
        assert!(!found.corners, "{scene:?}");
        let Some(found) = detection::detect(&scene.draw_with_corners()) else {
            panic!("nothing in {scene:?}")
        };
        let same = [
            found.corners,
            found.shape == scene.shape,
            found.colours == scene.colours,
            found.size == scene.size,
            found.position == scene.position,
        ];
        wrong.iter_mut().zip(same).for_each(|(wrong, same)| *wrong += usize::from(!same));
    }
    assert!(
        wrong.iter().all(|wrong| *wrong * 100 < COUNT),
        "corners, shape, colours, size, position: {wrong:?}"
    );
    // Three corners are not enough, and corners without a shape are no scene.
    let mut image = Scene { radius: 10., centre: [32.; 2], ..Scene::random(&mut random) }.draw_with_corners();
    let background = image[(SIDE / 2) * 3..][..3].to_vec();
    for at in (0..SIDE * SIDE).filter(|at| at % SIDE < SIDE / 2 && at / SIDE < SIDE / 2) {
        image[3 * at..][..3].copy_from_slice(&background);
    }
    assert!(detection::detect(&image).is_some_and(|found| !found.corners));
    let alone = images::corner_coverage(images::CORNER_RADIUS);
    let alone: Vec<u8> = alone.iter().flat_map(|share| [(share * 255.) as u8; 3]).collect();
    assert_eq!(detection::detect(&alone), None);
}

#[test]
fn detection_finds_shapes_anywhere() {
    const COUNT: usize = 1000;
    let mut wrong = [0; PLACED_PARTS.len()];
    let scenes = judge::placed_scenes(3, COUNT);
    for scene in &scenes {
        let Some(found) = detection::detect(&scene.draw()) else { panic!("nothing in {scene:?}") };
        wrong
            .iter_mut()
            .zip(judge::placed(scene, &found))
            .for_each(|(wrong, same)| *wrong += usize::from(!same));
        let [x, y] = scene.centre;
        for (other, at) in [
            (Scene { shape: (scene.shape + 1) % 8, ..scene.clone() }, 0),
            (Scene { colours: [scene.colours[1], scene.colours[0]], ..scene.clone() }, 1),
            (Scene { radius: scene.radius + 4., ..scene.clone() }, 2),
            (Scene { centre: [x + 5., y], ..scene.clone() }, 3),
            (Scene { centre: [x, y - 5.], ..scene.clone() }, 3),
        ] {
            assert!(!judge::placed(&other, &found)[at], "{other:?}");
        }
        // The silhouette has the same outline, except for pixels that are covered in half.
        let Some(hint) = detection::detect(&scene.silhouette()) else { panic!("no silhouette of {scene:?}") };
        let [from, to] = [&hint, &found].map(|found| [found.centre[0], found.centre[1], found.radius]);
        assert!(from.iter().zip(to).all(|(from, to)| (from - to).abs() <= 1.), "{scene:?}: {hint:?}");
    }
    assert!(wrong.iter().all(|wrong| *wrong * 100 < COUNT), "{PLACED_PARTS:?}: {wrong:?}");
    // Places that no prompt can name: the middle of the shape is far from both centre lines.
    let corners = scenes.iter().filter(|scene| scene.centre.iter().all(|at| (at - 32.).abs() > 6.)).count();
    assert!(corners > COUNT / 5, "{corners} of {COUNT} shapes are off the centre lines");
    assert_ne!(scenes[..20], judge::placed_scenes(4, 20));
}

#[test]
fn a_lora_changes_weights_by_the_product_of_its_factors() -> Result<()> {
    let shapes = small().unet.shapes()?;
    let (unet, lora) = (random_weights(&shapes, 1)?, random_weights(&lora::shapes(&shapes), 2)?);
    let changed = lora::merged(&unet, &lora, 0.5)?;
    let mut count = 0;
    for (name, weight) in &unet {
        let layer = format!("lora_unet_{}", name.trim_end_matches(".weight").replace('.', "_"));
        let Some(up) = lora.get(&format!("{layer}.lora_up.weight")).filter(|_| name.ends_with(".weight"))
        else {
            assert_eq!(largest(&(&changed[name] - weight)?)?, 0., "{name}");
            continue;
        };
        // A product of up and down is a convolution with `down`, followed by one of a single pixel with `up`.
        let (down, dims) = (&lora[&format!("{layer}.lora_down.weight")], weight.dims());
        let columns = down.flatten_from(1)?;
        let rows = up.flatten_from(1)?.to_vec2::<f32>()?;
        let change = rows.iter().map(|row| {
            let terms = row.iter().enumerate().map(|(rank, factor)| columns.get(rank)? * f64::from(*factor));
            terms.reduce(|a, b| a? + b?).unwrap()
        });
        let change = Tensor::stack(&change.collect::<candle_core::Result<Vec<_>>>()?, 0)?.reshape(dims)?;
        let off = largest(&((weight + (change * 0.5)?)? - &changed[name])?)?;
        assert!(off < 1e-5, "{name}: {off}");
        count += 1;
    }
    assert_eq!(2 * count, lora.len());
    for (name, weight) in lora::merged(&unet, &lora, 0.)? {
        assert_eq!(largest(&(&unet[&name] - weight)?)?, 0., "{name}");
    }
    // Files have f16 values and alphas equal to the rank.
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("inner/a.safetensors");
    lora::write(&file, &lora)?;
    let read = weights::read(&file, &Device::Cpu)?;
    let alphas = read.iter().filter(|(name, _)| name.ends_with(".alpha"));
    let alphas = alphas.map(|(_, alpha)| Ok(alpha.to_scalar::<f32>()?)).collect::<Result<Vec<_>>>()?;
    assert_eq!(alphas, vec![lora::RANK as f32; count]);
    let off = lora.iter().map(|(name, weight)| largest(&(weight - &read[name])?));
    assert!(off.collect::<Result<Vec<_>>>()?.into_iter().all(|off| off < 2e-3));
    lora::merged(&unet, &read, 1.)?;
    for other in [Weights::new(), random_weights(&lora::shapes(&Sizes::tiny(600).unet.shapes()?), 2)?] {
        assert!(lora::merged(&unet, &other, 1.).is_err());
    }
    let mut half = lora;
    half.retain(|name, _| name.ends_with("lora_down.weight"));
    assert!(lora::merged(&unet, &half, 1.).is_err());
    assert!(weights::read(folder.path(), &Device::Cpu).is_err());
    Ok(())
}

/// Returns a model with random weights.
fn model() -> Result<export::Model> {
    let sizes = small();
    Ok(export::Model {
        sizes,
        text: random_weights(&sizes.text.shapes(), 1)?,
        unet: random_weights(&sizes.unet.shapes()?, 2)?,
        vae: random_weights(&sizes.autoencoder.shapes()?, 3)?,
        scale: 1.,
        prompts: prompts()?,
    })
}

#[test]
fn a_controlnet_has_no_effect_before_its_training() -> Result<()> {
    let (model, device) = (model()?, Device::Cpu);
    let training = Training::adapter(Stage::ControlNet, &model, config(1, 2), &device)?;
    let weights = training.averages()?;
    assert_eq!(largest(&(&weights["conv_in.weight"] - &model.unet["conv_in.weight"])?)?, 0.);
    let scenes = judge::placed_scenes(1, 2);
    let hints: Vec<Vec<u8>> = scenes.iter().map(Scene::silhouette).collect();
    let images = |control: Option<&Control>| {
        sample::images(&model, &["a red star on blue", "a ring"], control, &OPTIONS, SIDE, &device)
    };
    let plain = images(None)?;
    assert_eq!(images(Some(&Control { weights: &weights, hints: hints.clone() }))?, plain);
    let random = random_weights(&controlnet::shapes(&model.sizes.unet)?, 4)?;
    let changed = images(Some(&Control { weights: &random, hints: hints.clone() }))?;
    assert_ne!(changed, plain);
    let swapped = hints.iter().rev().cloned().collect();
    assert_ne!(images(Some(&Control { weights: &random, hints: swapped }))?, changed);
    // Too few hints, and hints of another size.
    for hints in [hints[..1].to_vec(), vec![vec![0; 12]; 2]] {
        assert!(images(Some(&Control { weights: &random, hints })).is_err());
    }
    Ok(())
}

#[test]
fn adapters_learn_and_resume() -> Result<()> {
    let (model, device) = (model()?, Device::Cpu);
    let folder = tempfile::tempdir()?;
    for (stage, subject) in [(Stage::Lora, Subject::Corners), (Stage::ControlNet, Subject::Silhouettes)] {
        let config = TrainConfig { rate: 1e-2, ..config(30, 4) };
        let start = || Training::adapter(stage, &model, config, &device);
        let fixed = Batch::generate(subject, 3, 0, 16, &model.prompts)?;
        let mut whole = start()?;
        let before: f32 = whole.loss(&fixed)?.to_scalar()?;
        (0..30).try_for_each(|_| whole.step())?;
        whole.read_losses()?;
        let after: f32 = whole.loss(&fixed)?.to_scalar()?;
        assert!(after < 0.9 * before, "{stage:?}: the loss went from {before} to {after}");
        let file = stage.file(folder.path());
        let mut first = start()?;
        (0..10).try_for_each(|_| first.step())?;
        first.save(&file)?;
        let mut resumed = start()?.resume(&file)?;
        (10..30).try_for_each(|_| resumed.step())?;
        resumed.read_losses()?;
        assert_eq!(resumed.losses, whole.losses, "{stage:?}");
    }
    Ok(())
}

fn load(name: &str) -> Result<Weights> {
    weights::read(&folder().join(name), &Device::Cpu)
}

/// Scores the first `count` images of the prompts with the LoRA in the repository, and asserts that nine in ten are right.
fn test_lora(count: usize) -> Result<()> {
    let mut model = export::Model::read(&folder(), &Device::Cpu)?;
    model.unet = lora::merged(&model.unet, &load("loras/corners.safetensors")?, 1.)?;
    let prompts = &PROMPTS[..count];
    let images = sample::images(&model, prompts, None, &OPTIONS, SIDE, &Device::Cpu)?;
    let scores = judge::scores(prompts, &images)?;
    scores.iter().for_each(|score| println!("{score}"));
    let corners =
        scores.iter().filter(|score| score.detected.as_ref().is_some_and(|found| found.corners)).count();
    assert!(10 * corners >= 9 * count, "corners: {corners} of {count}");
    for (part, right) in PARTS.iter().zip(judge::right(&scores)) {
        assert!(10 * right >= 9 * count, "{part}: {right} of {count} are correct");
    }
    Ok(())
}

/// Scores `count` images with the ControlNet in the repository, and asserts that nine in ten are right.
fn test_controlnet(count: usize) -> Result<()> {
    let model = export::Model::read(&folder(), &Device::Cpu)?;
    let weights = load("controlnets/silhouette/diffusion_pytorch_model.safetensors")?;
    let scenes = judge::placed_scenes(OPTIONS.seed, count);
    let captions: Vec<String> = scenes.iter().map(Scene::short_caption).collect();
    let prompts: Vec<&str> = captions.iter().map(String::as_str).collect();
    let control = Control { weights: &weights, hints: scenes.iter().map(Scene::silhouette).collect() };
    let images = sample::images(&model, &prompts, Some(&control), &OPTIONS, SIDE, &Device::Cpu)?;
    let mut right = [0; PLACED_PARTS.len()];
    for (scene, image) in scenes.iter().zip(&images) {
        let found = detection::detect(image);
        println!("{scene:?}: {found:?}");
        let parts = found.map_or([false; PLACED_PARTS.len()], |found| judge::placed(scene, &found));
        right.iter_mut().zip(parts).for_each(|(right, part)| *right += usize::from(part));
    }
    assert!(
        right.iter().all(|right| 10 * right >= 9 * count),
        "{PLACED_PARTS:?}: {right:?} of {count} are correct"
    );
    Ok(())
}

#[test]
fn the_lora_adds_corners() -> Result<()> {
    test_lora(FEW)
}

#[test]
fn the_controlnet_places_shapes() -> Result<()> {
    test_controlnet(FEW)
}

#[test]
#[ignore = "takes long; run with --ignored"]
fn adapters_do_what_they_say_in_eighteen_of_twenty_images() -> Result<()> {
    test_lora(20)?;
    test_controlnet(20)
}

#[test]
fn the_adapters_are_small() -> Result<()> {
    for (name, bytes) in [
        ("loras/corners.safetensors", 500_000),
        ("controlnets/silhouette/diffusion_pytorch_model.safetensors", 2_000_000),
    ] {
        let length = folder().join(name).metadata()?.len();
        assert!(length < bytes, "{name} has {length} bytes");
    }
    Ok(())
}
