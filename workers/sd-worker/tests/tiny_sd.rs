//! The small model that this repository trained, on the CPU: what is asked for is to be seen.
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::Device;
use sd_worker::model::{LoadOptions, Model, Version};
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::Method;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Shares of the pixels, of all and of those along the edges, whose `channel` is well above the other two.
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

#[test]
fn a_circle_has_its_colour_and_its_ground_has_another() -> Outcome {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_sd/model");
    let model = Model::load(&folder, &Device::Cpu, LoadOptions::default(), |_| ())?;
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
            // Circles that it learned from have radii of 9.5 to 22 pixels.
            let [all, edge] = shares(picture.rgb(), 64, circle);
            assert!((0.05..0.4).contains(&all), "{prompt} by {method:?}: circle {all}");
            assert!(edge < 0.05, "{prompt} by {method:?}: circle at the edges {edge}");
        }
    }
    Ok(())
}
