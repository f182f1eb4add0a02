//! Embeddings of textual inversion. A vector that equals that of a token must have the token's effect.
mod tiny_model;

use std::collections::HashMap;
use std::path::Path;

use candle_core::{D, Device, IndexOp, Tensor, safetensors};
use sd_worker::model::{FileOptions, LoadOptions, Model};
use tiny_model::{Kind, Outcome};

/// Returns the vectors (tokens, width) of tokens in a text encoder of the model in `folder`.
fn vectors(folder: &Path, encoder: &str, tokens: &[&str]) -> Outcome<Tensor> {
    let weights = safetensors::load(folder.join(encoder).join("model.safetensors"), &Device::Cpu)?;
    let table =
        weights.iter().find(|(name, _)| name.ends_with("token_embedding.weight")).ok_or("no table")?.1;
    let vocabulary = tiny_model::vocabulary();
    let row = |token: &&str| Ok(table.i(vocabulary.iter().position(|own| own == token).ok_or("no token")?)?);
    let rows = tokens.iter().map(row).collect::<Outcome<Vec<Tensor>>>()?;
    Ok(Tensor::stack(&rows, 0)?)
}

fn save(path: &Path, tensors: &[(&str, &Tensor)]) -> Outcome {
    let tensors: HashMap<&str, Tensor> =
        tensors.iter().map(|(name, tensor)| (*name, (*tensor).clone())).collect();
    Ok(safetensors::save(&tensors, path)?)
}

fn load(folder: &Path, embeddings: &Path) -> sd_worker::Result<Model> {
    let files = FileOptions { embeddings: Some(embeddings.to_owned()), ..FileOptions::default() };
    Model::load(folder, &Device::Cpu, LoadOptions { files, ..LoadOptions::default() }, |_| ())
}

#[track_caller]
fn assert_same(model: &Model, prompt: &str, expected: &str) -> Outcome {
    let [found, expected] = [prompt, expected].map(|prompt| model.encode(&[prompt], 1));
    let (found, expected) = (found?, expected?);
    assert_eq!(found.context.dims(), expected.context.dims(), "{prompt}");
    let pairs = [(Some(found.context), Some(expected.context)), (found.pooled, expected.pooled)];
    for (found, expected) in pairs.into_iter().filter_map(|(found, expected)| found.zip(expected)) {
        let difference = (found - expected)?.abs()?.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()?;
        assert!(difference < 1e-6, "{prompt}: {difference}");
    }
    Ok(())
}

#[test]
fn names_stand_for_their_vectors() -> Outcome {
    let (folder, embeddings) = (tempfile::tempdir()?, tempfile::tempdir()?);
    tiny_model::write(folder.path(), Kind::Plain)?;
    let two = vectors(folder.path(), "text_encoder", &["a</w>", "red</w>"])?;
    let file = |name: &str| embeddings.path().join(format!("{name}.safetensors"));
    save(&file("My-Style"), &[("emb_params", &two)])?;
    save(&file("cat"), &[("<cat-toy>", &two.i(1)?)])?;
    let model = load(folder.path(), embeddings.path())?;
    assert_eq!(model.embeddings, ["My-Style", "cat"]);
    for (prompt, expected) in [
        ("my-style", "a red"),
        ("x MY-STYLE, y", "x a red, y"),
        ("x (my-style:1.3) y", "x (a red:1.3) y"),
        ("cat <cat-toy>x<cat-toy>", "red red x red"),
        ("my-style my-style", "a red a red"),
        // The limit of a chunk is 14 tokens, and both vectors go to the next one.
        ("c c c c c c c c c c c c c my-style d", "c c c c c c c c c c c c c BREAK a red d"),
        ("c c c c c c c c c c c c my-style d", "c c c c c c c c c c c c a red BREAK d"),
    ] {
        assert_same(&model, prompt, expected)?;
    }
    // Parts of longer words are no names.
    let plain = Model::load(folder.path(), &Device::Cpu, LoadOptions::default(), |_| ())?;
    for prompt in ["cats", "acat", "my-styles", "my-styl", "ca", "cat_x"] {
        let [found, expected] = [&model, &plain].map(|model| model.encode(&[prompt], 1));
        assert_eq!(found?.context.to_vec3::<f32>()?, expected?.context.to_vec3::<f32>()?, "{prompt}");
    }
    Ok(())
}

#[test]
fn xl_has_vectors_for_both_encoders() -> Outcome {
    let (folder, embeddings) = (tempfile::tempdir()?, tempfile::tempdir()?);
    tiny_model::write(folder.path(), Kind::Xl)?;
    let [l, g] =
        ["text_encoder", "text_encoder_2"].map(|name| vectors(folder.path(), name, &["red</w>", "b</w>"]));
    save(&embeddings.path().join("style.safetensors"), &[("clip_l", &l?), ("clip_g", &g?)])?;
    let model = load(folder.path(), embeddings.path())?;
    assert_eq!(model.embeddings, ["style"]);
    assert_same(&model, "x style", "x red b")
}

#[test]
fn files_that_do_not_fit_are_left_out() -> Outcome {
    let (folder, embeddings) = (tempfile::tempdir()?, tempfile::tempdir()?);
    tiny_model::write(folder.path(), Kind::Plain)?;
    let good = vectors(folder.path(), "text_encoder", &["red</w>"])?;
    let width = good.dim(1)?;
    let zeros = |shape: &[usize]| Tensor::zeros(shape, good.dtype(), &Device::Cpu);
    let file = |name: &str| embeddings.path().join(format!("{name}.safetensors"));
    save(&file("good"), &[("emb_params", &good)])?;
    save(&file("wide"), &[("emb_params", &zeros(&[1, width + 1])?)])?;
    save(&file("empty"), &[("emb_params", &zeros(&[0, width])?)])?;
    save(&file("cube"), &[("emb_params", &zeros(&[1, 1, width])?)])?;
    save(&file("xl"), &[("clip_l", &good), ("clip_g", &good)])?;
    std::fs::write(file("cut"), &std::fs::read(file("good"))?[..20])?;
    std::fs::write(embeddings.path().join("pickled.pt"), "")?;
    let model = load(folder.path(), embeddings.path())?;
    assert_eq!(model.embeddings, ["good"]);
    assert_same(&model, "good wide", "red wide")
}
