//! Pipeline tests with random weights: comparison with candle-transformers, and properties of all models.
mod tiny_model;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::stable_diffusion::schedulers::SchedulerConfig as _;
use candle_transformers::models::stable_diffusion::{ddim, unet_2d, vae};
use sd_worker::Error;
use sd_worker::model::LoadOptions;
use sd_worker::picture::{Mask, Picture};
use sd_worker::pipeline::{OnStep, Pipeline, Progress, Request, Start, Tiling};
use sd_worker::schedulers::{Method, Purpose, normal_batch};
use tiny_model::{Kind, Outcome, difference, pipeline};

const SIDE: usize = 32;

fn no_cancel(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn request(pipeline: &Pipeline) -> Request {
    Request { steps: 4, guidance: 3.0, seeds: vec![1], ..Request::of(&pipeline.model, "a red circle") }
}

fn input_image() -> Outcome<Picture> {
    let rgb = (0..SIDE * SIDE * 3).map(|i| (i * 7 % 251) as u8).collect();
    Ok(Picture::new(SIDE, SIDE, rgb)?)
}

/// Returns a mask of the right half.
fn half() -> Outcome<Mask> {
    Ok(Mask::new(SIDE, SIDE, (0..SIDE * SIDE).map(|i| i % SIDE >= SIDE / 2).collect())?)
}

#[test]
fn the_seed_determines_the_image() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    for method in Method::ALL {
        let request = Request { method: Some(method), ..request(&pipeline) };
        let first = pipeline.run(&request, &mut no_cancel)?;
        assert_eq!((first.len(), first[0].width(), first[0].height()), (1, SIDE, SIDE));
        assert_eq!(first, pipeline.run(&request, &mut no_cancel)?, "{method:?}");
        for other in [
            Request { seeds: vec![2], ..request.clone() },
            Request { prompt: "a blue square".into(), ..request.clone() },
            Request { negative: "blue".into(), ..request.clone() },
            Request { guidance: 6.0, ..request.clone() },
            Request { steps: 5, ..request.clone() },
        ] {
            assert_ne!(first, pipeline.run(&other, &mut no_cancel)?, "{method:?} {other:?}");
        }
    }
    Ok(())
}

#[test]
fn latents_match_candle_transformers() -> Outcome {
    let (folder, pipeline) = pipeline(Kind::Plain)?;
    drop(pipeline);
    let options = LoadOptions { upstream_gelu: true, ..Default::default() };
    let pipeline = tiny_model::load(folder.path(), options)?;
    let device = Device::Cpu;
    let weights = |component: &str| -> Outcome<VarBuilder> {
        let path = folder.path().join(component).join("diffusion_pytorch_model.safetensors");
        Ok(VarBuilder::from_tensors(candle_core::safetensors::load(path, &device)?, DType::F32, &device))
    };
    let block = |out_channels, use_cross_attn| unet_2d::BlockConfig {
        out_channels,
        use_cross_attn,
        attention_head_dim: 2,
    };
    let config = unet_2d::UNet2DConditionModelConfig {
        blocks: vec![block(32, Some(1)), block(64, None)],
        layers_per_block: 1,
        cross_attention_dim: 32,
        ..Default::default()
    };
    let unet = unet_2d::UNet2DConditionModel::new(weights("unet")?, 4, 4, false, config)?;
    // Neither square nor powers of two.
    let request = Request { width: 40, height: 24, steps: 5, ..request(&pipeline) };
    let text = pipeline.model.encode(&["", &request.prompt], 1)?.context;
    let mut scheduler = ddim::DDIMSchedulerConfig::default().build(request.steps)?;
    let mut x = normal_batch(&request.seeds, Purpose::Start, (4, 6, 10), &device)?;
    for timestep in scheduler.timesteps().to_vec() {
        let both = unet.forward(&Tensor::cat(&[&x, &x], 0)?, timestep as f64, &text)?.chunk(2, 0)?;
        let guided = (&both[0] + ((&both[1] - &both[0])? * request.guidance)?)?;
        x = scheduler.step(&guided, timestep, &x)?;
    }
    let ours = pipeline.latents(&request, &mut no_cancel)?;
    let far = difference(&ours, &x)?;
    assert!(far < 1e-4, "latents differ by {far}");

    let config = vae::AutoEncoderKLConfig {
        block_out_channels: vec![16, 16, 32],
        layers_per_block: 1,
        norm_num_groups: 8,
        ..Default::default()
    };
    // The upstream VAE returns samples only. With zero variance they equal the mean.
    let path = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    let mut narrow = candle_core::safetensors::load(path, &device)?;
    let mean_rows = narrow["quant_conv.weight"].narrow(0, 0, 4)?;
    let mean_bias = narrow["quant_conv.bias"].narrow(0, 0, 4)?;
    let weight = Tensor::cat(&[&mean_rows, &mean_rows.zeros_like()?], 0)?;
    let bias = Tensor::cat(&[&mean_bias, &Tensor::full(-80f32, 4, &device)?], 0)?;
    narrow.insert("quant_conv.weight".into(), weight);
    narrow.insert("quant_conv.bias".into(), bias);
    let vae = vae::AutoEncoderKL::new(VarBuilder::from_tensors(narrow, DType::F32, &device), 3, 3, config)?;
    let theirs = vae.decode(&(&x / 0.5)?)?;
    assert!(difference(&pipeline.model.vae()?.decode(&(ours / 0.5)?, &|| Ok(()))?, &theirs)? < 1e-3);
    let picture = input_image()?.to_tensor(&device)?;
    let moments = pipeline.model.vae()?.encode(&picture, &|| Ok(()))?;
    let (mean, variance) = (moments.narrow(1, 0, 4)?, moments.narrow(1, 4, 4)?.exp()?);
    assert!(difference(&mean, &vae.encode(&picture)?.sample()?)? < 1e-4);
    let noise = normal_batch(&[1], Purpose::Encode, (4, 8, 8), &device)?;
    let sample = ((mean + (variance.sqrt()? * noise)?)? * 0.5)?;
    assert!(difference(&pipeline.encode(&input_image()?, &[1])?, &sample)? < 1e-4);
    Ok(())
}

#[test]
fn batched_images_equal_single_images() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    for method in Method::ALL {
        let request = Request { method: Some(method), seeds: vec![3, 9], ..request(&pipeline) };
        let both = pipeline.latents(&request, &mut no_cancel)?;
        for (i, seed) in [3, 9].into_iter().enumerate() {
            let one = pipeline.latents(&Request { seeds: vec![seed], ..request.clone() }, &mut no_cancel)?;
            let far = difference(&both.narrow(0, i, 1)?, &one)?;
            assert!(far < 1e-4, "{method:?} seed {seed}: {far}");
        }
    }
    Ok(())
}

#[test]
fn progress_counts_steps_over_all_batches() -> Outcome {
    let (_folder, mut pipeline) = pipeline(Kind::Plain)?;
    pipeline.batch_cells = 130;
    let request = Request { steps: 1, seeds: vec![1, 2, 3], ..request(&pipeline) };
    let mut seen = Vec::new();
    let latents = pipeline.latents(&request, &mut |p| {
        seen.push((p.step, p.total, p.first, p.x0.dims()[0]));
        ControlFlow::Continue(())
    })?;
    assert_eq!(seen, [(1, 2, 0, 2), (2, 2, 2, 1)]);
    assert_eq!(latents.dims(), [3, 4, 8, 8]);
    pipeline.batch_cells = 0;
    assert!(difference(&pipeline.latents(&request, &mut no_cancel)?, &latents)? < 1e-4);
    Ok(())
}

#[test]
fn guidance_up_to_1_ignores_the_negative_prompt() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    let base = Request { negative: "blue".into(), ..request(&pipeline) };
    let of = |guidance| pipeline.latents(&Request { guidance, ..base.clone() }, &mut no_cancel);
    let (none, one, little) = (of(0.0)?, of(1.0)?, of(1.0 + 1e-9)?);
    assert_eq!(difference(&none, &one)?, 0.0);
    assert!(difference(&one, &little)? < 1e-4);
    Ok(())
}

#[test]
fn full_strength_starts_at_the_first_noise_level() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    let plain = request(&pipeline);
    let from = |strength| -> Outcome<Request> {
        let start = Some(Start { picture: input_image()?, strength, mask: None });
        Ok(Request { start, ..plain.clone() })
    };
    let fresh = pipeline.latents(&plain, &mut no_cancel)?;
    assert!(difference(&pipeline.latents(&from(1.0)?, &mut no_cancel)?, &fresh)? > 1e-3);
    // With a mask, the part in it starts from pure noise.
    let mask = Some(Mask::new(SIDE, SIDE, vec![true; SIDE * SIDE])?);
    let masked = Request { start: from(1.0)?.start.map(|start| Start { mask, ..start }), ..plain.clone() };
    assert!(difference(&pipeline.latents(&masked, &mut no_cancel)?, &fresh)? < 1e-4);
    let encoded = pipeline.encode(&input_image()?, &[1])?;
    let mut last = f32::INFINITY;
    for (strength, steps) in [(0.8, 3), (0.5, 2), (0.3, 1), (0.01, 1)] {
        let mut count = 0;
        let latents = pipeline.latents(&from(strength)?, &mut |p| {
            count += 1;
            assert_eq!((p.step, p.total), (count, steps));
            ControlFlow::Continue(())
        })?;
        assert_eq!(count, steps, "strength {strength}");
        let far = difference(&latents, &encoded)?;
        assert!(far > 0.0 && far <= last, "strength {strength}: {far} after {last}");
        last = far;
    }
    Ok(())
}

#[test]
fn cancellation_ends_the_vae() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    let flag = Arc::new(AtomicBool::new(false));
    let request = Request { cancelled: Some(flag.clone()), ..request(&pipeline) };
    let mut last = 0;
    let made = pipeline.run(&request, &mut |progress| {
        last = progress.total;
        flag.store(progress.step == progress.total, Relaxed);
        ControlFlow::Continue(())
    });
    assert!(matches!(made, Err(Error::Cancelled { step, total }) if step == last && total == last));
    // While the input image is encoded, before the first step.
    let start = Some(Start { picture: input_image()?, strength: 0.5, mask: None });
    let made = pipeline.run(&Request { start, ..request }, &mut |_| panic!("a step"));
    assert!(matches!(made, Err(Error::Cancelled { step: 0, .. })));
    // The VAE calls its check before each part.
    let latents = Tensor::zeros((1, 4, 8, 8), DType::F32, &Device::Cpu)?;
    let calls = Cell::new(0);
    let check = || {
        calls.set(calls.get() + 1);
        if calls.get() < 2 { Ok(()) } else { Err(Error::Cancelled { step: 1, total: 1 }) }
    };
    assert!(pipeline.model.vae()?.decode(&latents, &check).is_err());
    assert_eq!(calls.get(), 2);
    Ok(())
}

#[test]
fn pixels_outside_the_mask_are_preserved() -> Outcome {
    for kind in [Kind::Plain, Kind::Inpaint] {
        let (_folder, pipeline) = pipeline(kind)?;
        for strength in [1.0, 0.6] {
            let generate = |mask| -> Outcome<Picture> {
                let start = Some(Start { picture: input_image()?, strength, mask: Some(mask) });
                let request = Request { start, ..request(&pipeline) };
                Ok(pipeline.run(&request, &mut no_cancel)?.remove(0))
            };
            let generated = generate(half()?)?;
            let mut changed = 0;
            for (i, (new, old)) in generated.rgb().iter().zip(input_image()?.rgb()).enumerate() {
                let right = i / 3 % SIDE >= SIDE / 2;
                assert!(right || new == old, "{kind:?}: an unmasked pixel changed");
                changed += usize::from(new != old);
            }
            assert!(changed > SIDE * SIDE, "{kind:?}: {changed} values changed");
            let none = Mask::new(SIDE, SIDE, vec![false; SIDE * SIDE])?;
            assert_eq!(generate(none)?, input_image()?);
        }
    }
    Ok(())
}

#[test]
fn latents_outside_the_mask_are_preserved() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    for method in Method::ALL {
        let start = Some(Start { picture: input_image()?, strength: 0.8, mask: Some(half()?) });
        let request = Request { start, method: Some(method), ..request(&pipeline) };
        let latents = pipeline.latents(&request, &mut no_cancel)?;
        let encoded = pipeline.encode(&input_image()?, &[1])?;
        let cells = SIDE / tiny_model::FACTOR;
        let half = |x: &Tensor, from| x.narrow(3, from, cells / 2);
        assert!(difference(&half(&latents, 0)?, &half(&encoded, 0)?)? < 1e-6, "{method:?}");
        assert!(difference(&half(&latents, cells / 2)?, &half(&encoded, cells / 2)?)? > 1e-3, "{method:?}");
    }
    Ok(())
}

#[test]
fn tiled_decoding_approximates_untiled_decoding() -> Outcome {
    let (_folder, mut pipeline) = pipeline(Kind::Plain)?;
    // Homogeneous latents, so that norms have similar statistics in a tile and in the whole image.
    let latents = normal_batch(&[4], Purpose::Start, (4, 40, 40), &Device::Cpu)?;
    let whole = pipeline.decode(&latents)?;
    let encoded = pipeline.encode(&whole, &[1])?;
    let mean = |a: &[u8], b: &[u8]| {
        a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
    };
    let other = pipeline.decode(&normal_batch(&[5], Purpose::Start, (4, 40, 40), &Device::Cpu)?)?;
    let apart = mean(other.rgb(), whole.rgb());
    for (side, overlap) in [(24, 8), (40, 0)] {
        pipeline.tiling = Tiling { untiled_cells: Some(0), side, overlap };
        let tiled = pipeline.decode(&latents)?;
        assert_eq!((tiled.width(), tiled.height()), (160, 160));
        let far = mean(tiled.rgb(), whole.rgb());
        let again = pipeline.encode(&whole, &[1])?;
        let latents_far = (&again - &encoded)?.abs()?.mean_all()?.to_scalar::<f32>()?;
        if side == 40 {
            assert_eq!(tiled, whole);
            assert_eq!(latents_far, 0.0);
        }
        assert!(far < 0.1 * apart, "tiles of {side}: {far}, two pictures: {apart}");
        assert!(latents_far < 0.1, "tiles of {side}: {latents_far}");
    }
    Ok(())
}

#[test]
fn the_callback_receives_previews_and_can_cancel() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    let request = Request { seeds: vec![1, 2], ..request(&pipeline) };
    let mut seen = Vec::new();
    let on_step: &mut OnStep = &mut |progress| {
        let previews = progress.previews().expect("previews");
        seen.push((progress.step, previews.iter().map(|p| (p.width(), p.height())).collect::<Vec<_>>()));
        if progress.step == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = pipeline.run(&request, on_step);
    assert!(matches!(stopped, Err(Error::Cancelled { step: 2, total: 4 })), "{stopped:?}");
    assert_eq!(seen, [(1, vec![(8, 8); 2]), (2, vec![(8, 8); 2])]);
    // The next request is not affected.
    assert_eq!(pipeline.run(&request, &mut no_cancel)?.len(), 2);
    Ok(())
}

#[test]
fn xl_uses_the_pooled_prompt_and_sizes() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Xl)?;
    let request = request(&pipeline);
    let pictures = pipeline.run(&request, &mut no_cancel)?;
    assert_eq!(pictures, pipeline.run(&request, &mut no_cancel)?);
    let unet = pipeline.model.unet()?;
    let texts = pipeline.model.encode(&["a red circle", "blue"], 1)?;
    let pooled = texts.pooled.as_ref().ok_or("XL without a pooled prompt")?;
    assert_eq!((texts.context.dims(), pooled.dims()), (&[2, tiny_model::TOKENS, 64][..], &[2, 24][..]));
    let x = normal_batch(&[1, 1], Purpose::Start, (4, 8, 8), &Device::Cpu)?;
    let of = |pooled: &Tensor, sizes| -> Outcome<Tensor> {
        Ok(unet.forward(&x, &[500.0], &texts.context, Some(&unet.added(pooled, sizes)?))?)
    };
    let base = of(pooled, [32, 32, 0, 0, 32, 32])?;
    assert!(difference(&base, &of(&pooled.zeros_like()?, [32, 32, 0, 0, 32, 32])?)? > 1e-3);
    assert!(difference(&base, &of(pooled, [64, 32, 0, 0, 32, 32])?)? > 1e-4);
    assert!(unet.forward(&x, &[500.0], &texts.context, None).is_err());
    // XL replaces an empty negative prompt by zeros instead of its embedding.
    let zeros = pipeline.latents(&request, &mut no_cancel)?;
    let (_folder, mut other) = tiny_model::pipeline(Kind::Xl)?;
    other.model.zeros_for_empty = false;
    assert!(difference(&zeros, &other.latents(&request, &mut no_cancel)?)? > 1e-4);
    Ok(())
}

#[test]
fn invalid_requests_are_rejected_before_any_step() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    let (_other, inpaint) = tiny_model::pipeline(Kind::Inpaint)?;
    let base = request(&pipeline);
    let start = |strength, mask: Option<Mask>, side: usize| -> Outcome<Option<Start>> {
        let picture = Picture::new(side, side, vec![0; side * side * 3])?;
        Ok(Some(Start { picture, strength, mask }))
    };
    let small = Mask::new(16, 16, vec![true; 256])?;
    let cases = [
        ("30 x 32", Request { width: 30, ..base.clone() }),
        ("0 x 32", Request { width: 0, ..base.clone() }),
        ("32 x 36", Request { height: 36, ..base.clone() }),
        ("at most", Request { width: 4096, ..base.clone() }),
        ("at most", Request { width: usize::MAX - 7, height: usize::MAX - 7, ..base.clone() }),
        ("0 steps", Request { steps: 0, ..base.clone() }),
        ("100000 steps", Request { steps: 100_000, ..base.clone() }),
        ("guidance NaN", Request { guidance: f64::NAN, ..base.clone() }),
        ("guidance inf", Request { guidance: f64::INFINITY, ..base.clone() }),
        ("guidance -1", Request { guidance: -1.0, ..base.clone() }),
        ("0 images", Request { seeds: vec![], ..base.clone() }),
        ("17 images", Request { seeds: vec![0; 17], ..base.clone() }),
        ("prompt of 20000", Request { prompt: "x".repeat(20_000), ..base.clone() }),
        ("strength 0", Request { start: start(0.0, None, SIDE)?, ..base.clone() }),
        ("strength 1.5", Request { start: start(1.5, None, SIDE)?, ..base.clone() }),
        ("strength NaN", Request { start: start(f64::NAN, None, SIDE)?, ..base.clone() }),
        ("image of 24 x 24", Request { start: start(0.5, None, 24)?, ..base.clone() }),
        ("mask of 16 x 16", Request { start: start(0.5, Some(small), SIDE)?, ..base.clone() }),
    ];
    let never: &mut OnStep = &mut |_| panic!("a step was computed");
    for (named, request) in cases {
        match pipeline.run(&request, never) {
            Err(Error::Request(message)) => assert!(message.contains(named), "{named}: {message}"),
            other => panic!("{named}: {other:?}"),
        }
    }
    let unmasked = inpaint.run(&request(&inpaint), never);
    assert!(matches!(&unmasked, Err(Error::Request(message)) if message.contains("mask")), "{unmasked:?}");
    Ok(())
}

/// Weights above 65504 are infinite in f16, and the image would be black. It is the image of f32 instead, and the VAE is
/// not decoded in f16 again.
#[test]
fn a_vae_that_overflows_in_f16_is_used_in_a_wider_dtype() -> Outcome {
    let (folder, _) = pipeline(Kind::Plain)?;
    let path = folder.path().join("vae/diffusion_pytorch_model.safetensors");
    let mut weights = candle_core::safetensors::load(&path, &Device::Cpu)?;
    for name in ["decoder.conv_in.weight", "encoder.conv_in.weight"] {
        let large = (&weights[name] * 1e6)?;
        weights.insert(name.into(), large);
    }
    candle_core::safetensors::save(&weights, &path)?;
    let load = |vae_dtype| {
        tiny_model::load(folder.path(), LoadOptions { vae_dtype: Some(vae_dtype), ..Default::default() })
    };
    let (wide, narrow) = (load(DType::F32)?, load(DType::F16)?);
    let mut request = request(&wide);
    for start in [None, Some(Start { picture: input_image()?, strength: 0.5, mask: None })] {
        request.start = start;
        let narrow = load(DType::F16)?;
        assert_eq!(narrow.model.active_vae()?.1, DType::F16);
        for _ in 0..2 {
            assert_eq!(narrow.run(&request, &mut no_cancel)?, wide.run(&request, &mut no_cancel)?);
            assert_eq!(narrow.model.active_vae()?.1, DType::F32);
        }
    }
    // Latents that are not finite are no fault of the VAE.
    let nan = Tensor::full(f32::NAN, (1, 4, 8, 8), &Device::Cpu)?;
    assert!(narrow.decode(&nan).is_err());
    assert_eq!(narrow.model.active_vae()?.1, DType::F16);
    Ok(())
}
