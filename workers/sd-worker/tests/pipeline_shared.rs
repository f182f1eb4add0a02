//! Requests that share steps get the images that they get alone.
mod tiny_model;

use std::ops::ControlFlow;

use sd_worker::Error;
use sd_worker::picture::{Mask, Picture};
use sd_worker::pipeline::{Hires, Pipeline, Request, Start, Upscaler};
use sd_worker::schedulers::Method;
use tiny_model::together::Together;
use tiny_model::{Kind, Outcome, pipeline};

const SIDE: usize = 32;

fn alone(pipeline: &Pipeline, request: &Request) -> Outcome<Vec<Picture>> {
    Ok(pipeline.run(request, &mut |_| ControlFlow::Continue(()))?)
}

fn request(pipeline: &Pipeline, prompt: &str, seed: u64) -> Request {
    Request { steps: 4, guidance: 3.0, seeds: vec![seed], ..Request::of(&pipeline.model, prompt) }
}

fn start(strength: f64, mask: bool) -> Outcome<Option<Start>> {
    let rgb = (0..SIDE * SIDE * 3).map(|i| (i * 7 % 251) as u8).collect();
    let half = || Mask::new(SIDE, SIDE, (0..SIDE * SIDE).map(|i| i % SIDE >= SIDE / 2).collect());
    let mask = mask.then(half).transpose()?;
    Ok(Some(Start { picture: Picture::new(SIDE, SIDE, rgb)?, strength, mask }))
}

/// Requests with different prompts, guidance scales, samplers, numbers of steps and input images, which arrive at different
/// times.
#[test]
fn images_are_equal_alone_and_together() -> Outcome {
    for kind in [Kind::Plain, Kind::Xl] {
        let (_folder, pipeline) = pipeline(kind)?;
        let plain = |prompt, seed| request(&pipeline, prompt, seed);
        let requests = [
            (0, Request { negative: "blue".into(), ..plain("a red circle", 1) }),
            (0, Request { guidance: 7.5, ..plain("red", 2) }),
            (1, Request { steps: 6, method: Some(Method::EulerAncestral), ..plain("a square", 3) }),
            (2, Request { start: start(0.5, false)?, method: Some(Method::DpmSolver2M), ..plain("a", 4) }),
            (3, Request { start: start(1.0, true)?, method: Some(Method::Pndm), ..plain("b", 5) }),
        ];
        let together = Together::run(&pipeline, &requests, None)?;
        assert_eq!(together.most(), [4, 4, 4, 4, 2], "{kind:?}");
        for (i, (_, request)) in requests.iter().enumerate() {
            let most = together.levels(i, &alone(&pipeline, request)?)?;
            // Products with one row are rounded differently from those with more.
            assert!(most <= 1, "{kind:?}, request {i}: {most} levels away");
        }
    }
    let (_folder, pipeline) = pipeline(Kind::Inpaint)?;
    let masked = |seed| -> Outcome<Request> {
        Ok(Request { start: start(0.75, true)?, ..request(&pipeline, "red", seed) })
    };
    let requests = [(0, masked(1)?), (0, Request { guidance: 2.0, ..masked(2)? })];
    let together = Together::run(&pipeline, &requests, None)?;
    assert_eq!(together.most(), [2, 2]);
    for (i, (_, request)) in requests.iter().enumerate() {
        // At equal timesteps, the CPU computes each image of a batch alike.
        assert!(together.pictures(i)? == alone(&pipeline, request)?, "inpainting, request {i}");
    }
    Ok(())
}

#[test]
fn a_cancelled_request_leaves_the_batch() -> Outcome {
    let (_folder, pipeline) = pipeline(Kind::Plain)?;
    let requests = [1, 2, 3].map(|seed| (0, request(&pipeline, "red", seed)));
    let together = Together::run(&pipeline, &requests, Some((1, 2)))?;
    let Some(Some(Err(Error::Cancelled { step: 2, total: 4 }))) = together.results.get(1) else {
        return Err(format!("{:?}", together.results).into());
    };
    let expected = [(0, 1, 3), (1, 1, 3), (2, 1, 3), (0, 2, 3), (1, 2, 3), (2, 2, 3)];
    assert_eq!(together.steps[..6], expected);
    assert_eq!(together.steps[6..], [(0, 3, 2), (2, 3, 2), (0, 4, 2), (2, 4, 2)]);
    for i in [0, 2] {
        assert!(together.pictures(i)? == alone(&pipeline, &requests[i].1)?);
    }
    Ok(())
}

/// A request that cannot share the steps of those that run waits for them, and nothing overtakes it.
#[test]
fn requests_that_differ_wait() -> Outcome {
    let (_folder, mut pipeline) = pipeline(Kind::Plain)?;
    let plain = |seed| request(&pipeline, "red", seed);
    let long = "a red circle, ".repeat(9);
    let others = [
        Request { width: 2 * SIDE, ..plain(2) },
        Request { guidance: 1.0, ..plain(2) },
        Request { prompt: long, ..plain(2) },
    ];
    for other in others {
        let requests = [(0, plain(1)), (0, other), (0, plain(3))];
        let together = Together::run(&pipeline, &requests, None)?;
        assert_eq!(together.most(), [1, 1, 1], "{:?}", requests[1]);
        assert!(together.pictures(1)? == alone(&pipeline, &requests[1].1)?);
    }
    // These are not accepted at all.
    let hires =
        Hires { scaled: (48, 48), size: (48, 48), steps: 2, strength: 0.5, upscaler: Upscaler::Lanczos };
    let cells = 4 * 64 * 64;
    let too_many = vec![0; cells / (SIDE / 4 * SIDE / 4) + 1];
    for other in [
        Request { hires: Some(hires), ..plain(2) },
        Request { steps: 0, ..plain(2) },
        Request { seeds: too_many, ..plain(2) },
    ] {
        let together = Together::run(&pipeline, &[(0, plain(1)), (0, other)], None)?;
        assert_eq!(together.most(), [1]);
    }
    // The number of images is limited by the size of the batch, and that of requests by its own limit.
    let requests = [1, 2, 3].map(|seed| (0, Request { seeds: vec![seed, 9], ..plain(seed) }));
    pipeline.batch_cells = 4 * 8 * 8;
    let together = Together::run(&pipeline, &requests, None)?;
    assert_eq!(together.most(), [2, 2, 1]);
    for (i, (_, request)) in requests.iter().enumerate() {
        assert!(together.pictures(i)? == alone(&pipeline, request)?);
    }
    pipeline.batch_requests = 1;
    assert!(Together::run(&pipeline, &requests, None)?.results.is_empty());
    Ok(())
}
