//! Weights of words, prompts longer than the text encoder, and skipped layers, compared with their formulas.
mod tiny_model;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use sd_worker::model::{Chunk, ClipConfig, ClipText, ClipTokenizer, Model};
use sd_worker::pipeline::Request;
use sd_worker::schedulers::{Method, Purpose, normal_batch};
use tiny_model::{Kind, Outcome, TOKENS, clip_config, difference, pipeline, vocabulary};

/// Number of tokens of a chunk without start and end.
const CHUNK: usize = TOKENS - 2;
const RED: u32 = 57;
const COMMA: u32 = 27 + 28;
const START: u32 = 58;
const END: u32 = 59;

/// Returns the id of a letter at the end of a word.
fn letter(letter: u8) -> u32 {
    u32::from(letter - b'a') + 28
}

fn tokenizer(folder: &Path) -> Outcome<ClipTokenizer> {
    Ok(ClipTokenizer::from_folder(&folder.join("tokenizer"), TOKENS)?)
}

/// Returns a text encoder with the weights of the model, and this number of layers.
fn encoder(folder: &Path, layers: usize) -> Outcome<ClipText> {
    let weights =
        candle_core::safetensors::load(folder.join("text_encoder/model.safetensors"), &Device::Cpu)?;
    let mut config: ClipConfig = serde_json::from_value(clip_config(vocabulary().len()))?;
    config.num_hidden_layers = layers;
    Ok(ClipText::new(VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu), &config, false)?)
}

/// Tokens and their weights.
type Words = Vec<(u32, f32)>;

/// Returns the tokens of a chunk without frame and padding, and their weights.
fn words(chunk: &Chunk) -> Words {
    assert_eq!((chunk.tokens.len(), chunk.weights.len()), (TOKENS, TOKENS));
    assert_eq!((chunk.tokens[0], chunk.tokens[chunk.end]), (START, END));
    assert!(chunk.tokens[chunk.end..].iter().all(|token| *token == END));
    let frame = chunk.weights[..1].iter().chain(&chunk.weights[chunk.end..]);
    assert!(frame.into_iter().all(|weight| *weight == 1.0));
    (1..chunk.end).map(|i| (chunk.tokens[i], chunk.weights[i])).collect()
}

#[test]
fn prompts_are_split_as_by_automatic1111() -> Outcome {
    let (folder, _pipeline) = pipeline(Kind::Plain)?;
    let tokenizer = tokenizer(folder.path())?;
    let red = |count: usize| vec![(RED, 1.0); count];
    let join = |parts: &[&[(u32, f32)]]| parts.concat();
    let comma = [(COMMA, 1.0)];
    let reds = |count: usize| "red ".repeat(count);
    let table: Vec<(String, Vec<Words>)> = vec![
        (String::new(), vec![vec![]]),
        ("a (red:1.5) [b]".into(), vec![vec![(letter(b'a'), 1.0), (RED, 1.5), (letter(b'b'), 1.0 / 1.1)]]),
        (reds(CHUNK), vec![red(CHUNK)]),
        (reds(CHUNK + 6), vec![red(CHUNK), red(6)]),
        (format!("(({})", reds(CHUNK + 1)), vec![vec![(RED, 1.1 * 1.1); CHUNK], vec![(RED, 1.1 * 1.1)]]),
        // The text after the last comma moves to the next chunk.
        (format!("{},{}", reds(10), reds(5)), vec![join(&[&red(10), &comma]), red(5)]),
        (format!("{},{}", reds(13), reds(2)), vec![join(&[&red(13), &comma]), red(2)]),
        // A comma does not begin a search in the chunk that it begins.
        (format!("{},{}", reds(14), reds(14)), vec![red(14), join(&[&comma, &red(13)]), red(1)]),
        ("red BREAK a".into(), vec![red(1), vec![(letter(b'a'), 1.0)]]),
        ("red BREAK".into(), vec![red(1)]),
        ("BREAK".into(), vec![vec![]]),
        ("BREAK red".into(), vec![vec![], red(1)]),
    ];
    for (prompt, expected) in table {
        let (chunks, truncated) = tokenizer.chunks(&prompt)?;
        let found: Vec<Words> = chunks.iter().map(words).collect();
        assert_eq!(found.len(), expected.len(), "{prompt}");
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{prompt}: {found:?}");
        }
        let lengths = |chunks: &[Words]| chunks.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&found), lengths(&expected), "{prompt}");
        assert!(!truncated);
    }
    // A prompt without weights has the tokens that it has without this notation.
    let (chunks, _) = tokenizer.chunks("a red, cab")?;
    assert_eq!(chunks[0].tokens, tokenizer.encode("a red, cab")?.tokens);
    let (chunks, truncated) = tokenizer.chunks(&reds(33 * CHUNK))?;
    assert!(truncated && chunks.len() == 32);
    Ok(())
}

/// Multiplies the embedding of each token by its weight, and all by the ratio of the means before and after.
fn emphasized(rows: &[Vec<f32>], weights: &[f32]) -> Vec<Vec<f32>> {
    let mean = |rows: &[Vec<f32>]| {
        let all: Vec<f64> = rows.iter().flatten().map(|x| f64::from(*x)).collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    let scaled = |rows: &[Vec<f32>], factor: &dyn Fn(usize) -> f64| -> Vec<Vec<f32>> {
        let row =
            |(i, row): (usize, &Vec<f32>)| row.iter().map(|x| (f64::from(*x) * factor(i)) as f32).collect();
        rows.iter().enumerate().map(row).collect()
    };
    let weighted = scaled(rows, &|i| f64::from(weights[i]));
    let ratio = mean(rows) / mean(&weighted);
    scaled(&weighted, &|_| ratio)
}

#[test]
fn embeddings_follow_the_formula() -> Outcome {
    let (folder, pipeline) = pipeline(Kind::Plain)?;
    let (model, clip) = (&pipeline.model, encoder(folder.path(), 2)?);
    let chunks = [
        vec![(letter(b'a'), 1.0), (RED, 1.5), (letter(b'b'), 1.0 / 1.1)],
        vec![(RED, -0.5), (letter(b'c'), 2.0)],
    ];
    let mut expected: Vec<Vec<f32>> = Vec::new();
    for chunk in &chunks {
        let (mut tokens, mut weights) = (vec![START], vec![1.0]);
        tokens.extend(chunk.iter().map(|word| word.0));
        weights.extend(chunk.iter().map(|word| word.1));
        tokens.resize(TOKENS, END);
        weights.resize(TOKENS, 1.0);
        let tokens = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        let rows = clip.forward(&tokens, &[chunk.len() + 1])?.last.squeeze(0)?.to_vec2::<f32>()?;
        expected.extend(emphasized(&rows, &weights));
    }
    let found = model.encode(&["a (red:1.5) [b] BREAK (red:-0.5) (c:2)"], 1)?.context;
    assert_eq!(found.dims(), [1, 2 * TOKENS, 32]);
    let expected = Tensor::new(expected, &Device::Cpu)?.unsqueeze(0)?;
    let far = difference(&found, &expected)?;
    assert!(far < 1e-4, "{far}");
    // All prompts of a batch get the number of chunks of the longest one.
    let both = model.encode(&["a (red:1.5) [b] BREAK (red:-0.5) (c:2)", "red"], 1)?.context;
    assert!(difference(&both.narrow(0, 0, 1)?, &expected)? < 1e-4);
    let parts = [model.encode(&["red"], 1)?.context, model.encode(&[""], 1)?.context];
    assert!(difference(&both.narrow(0, 1, 1)?, &Tensor::cat(&parts, 1)?)? < 1e-5);
    Ok(())
}

#[test]
fn layers_are_skipped() -> Outcome {
    let (folder, pipeline) = pipeline(Kind::Plain)?;
    let tokens = Tensor::new(tokenizer(folder.path())?.encode("a red circle")?.tokens, &Device::Cpu)?;
    for (clip_skip, layers) in [(1, 2), (2, 1)] {
        let expected = encoder(folder.path(), layers)?.forward(&tokens.unsqueeze(0)?, &[3])?.last;
        let found = pipeline.model.encode(&["a red circle"], clip_skip)?.context;
        assert_eq!(difference(&found, &expected)?, 0.0, "{clip_skip}");
    }
    assert_eq!(pipeline.model.max_clip_skip(), 2);
    for (kind, clip_skip) in [(Kind::Plain, 0), (Kind::Plain, 3), (Kind::Xl, 2)] {
        let (_folder, pipeline) = tiny_model::pipeline(kind)?;
        let request = Request { clip_skip, ..Request::of(&pipeline.model, "x") };
        let error = pipeline.run(&request, &mut |_| std::ops::ControlFlow::Continue(())).err();
        assert!(error.is_some_and(|error| error.to_string().contains("clip skip")), "{kind:?} {clip_skip}");
    }
    Ok(())
}

/// Computes one step of DDIM with separate evaluations of both prompts.
fn one_step(model: &Model, request: &Request) -> Outcome<Tensor> {
    let x = normal_batch(&request.seeds, Purpose::Start, (4, 8, 8), &Device::Cpu)?;
    let mut scheduler = request.scheduler(&model.scheduler)?;
    let timestep = scheduler.timestep(0).ok_or("no step")?;
    let mut outputs = Vec::new();
    for prompt in [&request.negative, &request.prompt] {
        let texts = model.encode(&[prompt], 1)?;
        let unet = model.unet()?;
        let added = texts.pooled.map(|pooled| unet.added(&pooled, [32, 32, 0, 0, 32, 32])).transpose()?;
        outputs.push(unet.forward(&x, &[timestep], &texts.context, added.as_ref())?);
    }
    let guided = (&outputs[0] + ((&outputs[1] - &outputs[0])? * request.guidance)?)?;
    Ok(scheduler.step(&guided, &x, &mut || candle_core::bail!("DDIM has no noise"))?.sample)
}

#[test]
fn prompts_of_different_lengths_are_not_padded() -> Outcome {
    let long = "red ".repeat(2 * CHUNK + 1);
    for kind in [Kind::Plain, Kind::Xl] {
        let (_folder, pipeline) = pipeline(kind)?;
        for (negative, prompt) in [("blue", long.as_str()), (&long, "red"), ("blue", "red")] {
            let request = Request {
                negative: negative.to_owned(),
                steps: 1,
                method: Some(Method::Ddim),
                ..Request::of(&pipeline.model, prompt)
            };
            let found = pipeline.latents(&request, &mut |_| std::ops::ControlFlow::Continue(()))?;
            let far = difference(&found, &one_step(&pipeline.model, &request)?)?;
            assert!(far < 1e-3, "{kind:?}: {far}");
        }
    }
    Ok(())
}
