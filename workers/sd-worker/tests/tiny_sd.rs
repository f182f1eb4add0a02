//! Tests of the tiny trained model: images match their prompts and are the same on all devices.
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::Device;
use sd_worker::model::{LoadOptions, Model, Version};
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::Method;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Returns the fractions of all pixels and of edge pixels whose `channel` clearly exceeds the other two.
fn shares(rgb: &[u8], side: usize, channel: usize) -> [f64; 2] {
    let (mut counts, mut of) = ([0.0; 2], [0.0; 2]);
    for (i, pixel) in rgb.chunks(3).enumerate() {
        let others = (0..3).filter(|other| *other != channel);
        let clear = others.into_iter().all(|other| i16::from(pixel[channel]) > i16::from(pixel[other]) + 60);
        let edge = [i % side, i / side].iter().any(|at| [0, side - 1].contains(at));
        for (class, inside) in [true, edge].into_iter().enumerate() {
            of[class] += f64::from(u8::from(inside));
            counts[class] += f64::from(u8::from(inside && clear));
        }
    }
    [counts[0] / of[0], counts[1] / of[1]]
}

fn model(device: &Device, options: LoadOptions) -> Outcome<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_sd/model");
    Ok(Model::load(&folder, device, options, |_| ())?)
}

#[test]
fn circle_and_background_have_the_requested_colours() -> Outcome {
    let model = model(&Device::Cpu, LoadOptions::default())?;
    assert_eq!((model.side(), model.version, model.turbo), (64, Version::Other, false));
    let pipeline = Pipeline::new(model);
    let (red, blue) = (0, 2);
    for method in [Method::Ddim, Method::DpmSolver2M] {
        for (prompt, circle, ground) in
            [("a red circle on blue", red, blue), ("a blue circle on red", blue, red)]
        {
            let request = Request {
                steps: 12,
                seeds: vec![1],
                method: Some(method),
                ..Request::of(&pipeline.model, prompt)
            };
            let picture = &pipeline.run(&request, &mut |_| ControlFlow::Continue(()))?[0];
            assert_eq!((picture.width(), picture.height()), (64, 64));
            let [all, edge] = shares(picture.rgb(), 64, ground);
            assert!(all > 0.5 && edge > 0.95, "{prompt} by {method:?}: ground {all}, at the edges {edge}");
            // Circles in the training data have radii of 9.5 to 22 pixels.
            let [all, edge] = shares(picture.rgb(), 64, circle);
            assert!((0.05..0.4).contains(&all), "{prompt} by {method:?}: circle {all}");
            assert!(edge < 0.05, "{prompt} by {method:?}: circle at the edges {edge}");
        }
    }
    Ok(())
}

/// In f32, all channels differ from the CPU image by at most one of 255 levels; in f16, by at most `HALF`
/// levels on average.
#[cfg(feature = "rocm-emulator")]
#[test]
fn all_archs_generate_the_same_image() -> Outcome {
    use candle_core::DType;
    use candle_core::rocm::{hip_kernels, rocm_loader};

    const HALF: f64 = 0.5;
    let generate = |device: &Device, dtype: DType| -> Outcome<Vec<u8>> {
        let pipeline =
            Pipeline::new(model(device, LoadOptions { dtype: Some(dtype), ..Default::default() })?);
        let request =
            Request { steps: 3, seeds: vec![7], ..Request::of(&pipeline.model, "a white star on green") };
        let pictures = pipeline.run(&request, &mut |_| ControlFlow::Continue(()))?;
        Ok(pictures[0].rgb().to_vec())
    };
    let archs: Vec<String> = hip_kernels::archs()
        .iter()
        .filter(|arch| arch.starts_with("gfx") && !arch.contains("generic"))
        .map(|arch| (*arch).to_owned())
        .collect();
    assert!(!archs.is_empty(), "no kernels are built in; set CANDLE_ROCM_ARCHS");
    rocm_loader::select(&format!("emulator:{}", archs.join(",")))?;
    let expected = generate(&Device::Cpu, DType::F32)?;
    for (ordinal, arch) in archs.iter().enumerate() {
        let device = Device::new_rocm(ordinal)?;
        for dtype in [DType::F32, DType::F16] {
            let generated = generate(&device, dtype)?;
            let levels = generated.iter().zip(&expected).map(|(a, b)| f64::from(a.abs_diff(*b)));
            let most = levels.clone().fold(0.0, f64::max);
            let mean = levels.sum::<f64>() / expected.len() as f64;
            println!("{arch} {dtype:?}: {most} levels at most, {mean:.4} on average");
            assert!(dtype == DType::F16 || most <= 1.0, "{arch}, f32: {most} levels away");
            assert!(mean < HALF, "{arch}, {dtype:?}: {mean} levels away on average");
        }
    }
    Ok(())
}
