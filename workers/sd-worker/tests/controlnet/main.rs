//! ControlNets: images agree with those of diffusers, files of all layouts give the same image, and others are refused.
//!
//! `controlnets.py` writes the tables of names and the images in `data`.
mod fixture;
mod refused;
#[path = "../tiny_model/mod.rs"]
mod tiny_model;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use candle_core::{DType, Device, Tensor};
use fixture::{
    CONTROLNETS, MODELS, SEED, SIDE, config, control, generate, levels, mask, model, model_configs,
    original_names, picture, request, weights, write, write_folder,
};
use sd_worker::Error;
use sd_worker::model::{LoadOptions, LoraChoice};
use sd_worker::picture::{Fit, Limits, Picture};
use sd_worker::pipeline::{Control, Pipeline, Request, Start};
use sd_worker::schedulers::{Method, Purpose, normal};
use tiny_model::published::{INPAINT, V1, V2, XL};
use tiny_model::together::Together;
use tiny_model::{Outcome, write_configs};

/// Writes what `controlnets.py` needs to the folder in SD_FOLDER.
#[test]
#[ignore = "prepares the input of controlnets.py"]
fn write_models() -> Outcome {
    let folder = PathBuf::from(std::env::var("SD_FOLDER")?);
    for (name, kind) in MODELS {
        write_configs(&folder.join(name), &model_configs(kind))?;
    }
    for (name, ..) in CONTROLNETS {
        write(&folder.join("controlnets"), name)?;
    }
    for name in ["hint", "other", "larger", "given", "mask"] {
        fs::write(folder.join(name).with_extension("png"), picture(name)?.png()?)?;
    }
    let cells = SIDE / 8;
    let noise = |purpose: Purpose| {
        Tensor::from_vec(normal(SEED, purpose, 4 * cells * cells), (1, 4, cells, cells), &Device::Cpu)
    };
    let noise = HashMap::from([
        ("start".to_owned(), noise(Purpose::Start)?),
        ("encode".to_owned(), noise(Purpose::Encode)?),
    ]);
    Ok(candle_core::safetensors::save(&noise, folder.join("noise.safetensors"))?)
}

/// Compares an image with that of diffusers.
fn compare(pipeline: &Pipeline, name: &str, request: &Request) -> Outcome {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controlnet/data").join(name);
    let expected = Picture::decode(&fs::read(path.with_extension("png"))?, Limits::default())?;
    let most = levels(&generate(pipeline, request)?, &expected);
    println!("{name}: {most} levels");
    assert!(most <= 1, "{name}: {most} levels away");
    let without = Request { controls: Vec::new(), ..request.clone() };
    assert!(levels(&generate(pipeline, &without)?, &expected) > 10, "{name}: the ControlNet has no effect");
    Ok(())
}

#[test]
fn images_of_versions_1_and_2_agree_with_diffusers() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [v1, other, bgr, v2] = ["v1", "v1_other", "v1_bgr", "v2"].map(|name| write(folder.path(), name));
    let (v1, other, bgr, v2) = (v1?, other?, bgr?, v2?);
    let hint = || picture("hint");
    let (_folder, pipeline) = model(V1)?;
    let plain = request(&pipeline, vec![control(&v1, hint()?)]);
    compare(&pipeline, "v1", &plain)?;
    let weak = Control { weight: 0.4, ..control(&v1, hint()?) };
    compare(&pipeline, "v1_weak", &Request { guidance: 1.0, ..request(&pipeline, vec![weak]) })?;
    let resized = picture("larger")?.resized((SIDE, SIDE), Fit::Stretch);
    compare(&pipeline, "v1_larger", &request(&pipeline, vec![control(&v1, resized)]))?;
    compare(&pipeline, "v1_bgr", &request(&pipeline, vec![control(&bgr, hint()?)]))?;
    let shuffle = write(folder.path(), "v1_shuffle")?;
    let stronger = Control { weight: 1.5, ..control(&shuffle, hint()?) };
    compare(&pipeline, "v1_shuffle", &request(&pipeline, vec![stronger]))?;
    let two = vec![
        Control { weight: 0.7, end: 0.6, ..control(&v1, hint()?) },
        Control { weight: -0.5, start: 0.25, ..control(&other, picture("other")?) },
    ];
    compare(&pipeline, "v1_two", &request(&pipeline, two))?;
    let within = Control { start: 0.2, end: 0.8, ..control(&v1, hint()?) };
    let heun = Request { method: Some(Method::Heun), ..request(&pipeline, vec![within]) };
    compare(&pipeline, "v1_heun", &heun)?;
    let weaker = Control { weight: 0.9, ..control(&v1, hint()?) };
    let start = Start { picture: picture("given")?, strength: 0.5, mask: None };
    compare(&pipeline, "v1_edit", &Request { start: Some(start), ..request(&pipeline, vec![weaker]) })?;
    let (_folder, pipeline) = model(INPAINT)?;
    let start = Start { picture: picture("given")?, strength: 1.0, mask: Some(mask()?) };
    let inpaint = request(&pipeline, vec![control(&v1, hint()?)]);
    compare(&pipeline, "v1_inpaint", &Request { start: Some(start), ..inpaint })?;
    let (_folder, pipeline) = model(V2)?;
    compare(&pipeline, "v2", &request(&pipeline, vec![control(&v2, hint()?)]))
}

#[test]
fn images_of_xl_agree_with_diffusers() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (xl, small) = (write(folder.path(), "xl")?, write(folder.path(), "xl_small")?);
    let (_folder, pipeline) = model(XL)?;
    compare(&pipeline, "xl", &request(&pipeline, vec![control(&xl, picture("hint")?)]))?;
    let two =
        vec![control(&xl, picture("other")?), Control { weight: 0.5, ..control(&small, picture("hint")?) }];
    compare(&pipeline, "xl_two", &request(&pipeline, two))
}

#[test]
fn single_files_equal_folders() -> Outcome {
    let folder = tempfile::tempdir()?;
    for (name, kind) in [("v1", V1), ("v1_shuffle", V1), ("v2", V2), ("xl", XL), ("xl_small", XL)] {
        let own = weights(name)?;
        let in_folder = folder.path().join(name);
        write_folder(&in_folder, &config(name)?, &own)?;
        let (_folder, pipeline) = model(kind)?;
        let image = |path: &Path| -> Outcome<Picture> {
            let request = request(&pipeline, vec![control(path, picture("hint")?)]);
            Ok(generate(&pipeline, &Request { steps: 1, ..request })?)
        };
        let expected = image(&in_folder)?;
        let mut files = vec![own.clone()];
        let names = original_names(name)?;
        if !names.is_empty() {
            assert_eq!(names.len(), own.len());
            let bare: HashMap<String, Tensor> =
                own.iter().map(|(own, weight)| (names[own.as_str()].to_owned(), weight.clone())).collect();
            // Files of the authors contain the UNet, too.
            let mut whole: HashMap<String, Tensor> =
                bare.iter().map(|(name, weight)| (format!("control_model.{name}"), weight.clone())).collect();
            let unused = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
            whole.insert("model.diffusion_model.out.0.weight".to_owned(), unused);
            files.extend([bare, whole]);
        }
        for (i, file) in files.iter().enumerate() {
            let path = folder.path().join(format!("{name}_{i}.safetensors"));
            candle_core::safetensors::save(file, &path)?;
            assert!(image(&path)? == expected, "{name}, file {i}");
        }
    }
    Ok(())
}

#[test]
fn controlnets_combine_with_other_features() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = write(folder.path(), "v1")?;
    let (_folder, pipeline) = model(V1)?;
    let controls = vec![control(&path, picture("hint")?)];
    let lora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lora/data/kohya.safetensors");
    let loras = vec![LoraChoice { path: lora, weight: 0.7 }];
    let long = "blue ".repeat(20);
    let start = Start { picture: picture("given")?, strength: 0.7, mask: Some(mask()?) };
    let plain = request(&pipeline, Vec::new());
    let mut images = Vec::new();
    for base in [
        plain.clone(),
        Request { loras, ..plain.clone() },
        // The prompts have different numbers of chunks, and are computed one after the other.
        Request { negative: long, ..plain.clone() },
        Request { start: Some(start), ..plain.clone() },
        Request { method: Some(Method::EulerAncestral), karras: Some(true), ..plain.clone() },
    ] {
        let without = generate(&pipeline, &base)?;
        let with = generate(&pipeline, &Request { controls: controls.clone(), ..base.clone() })?;
        // A ControlNet without weight or steps changes nothing.
        for control in [
            Control { weight: 0.0, ..controls[0].clone() },
            Control { start: 0.1, end: 0.2, ..controls[0].clone() },
        ] {
            let request = Request { controls: vec![control], ..base.clone() };
            assert!(generate(&pipeline, &request)? == without);
        }
        assert!(levels(&with, &without) > 10);
        images.extend([with, without]);
    }
    let different = (0..images.len()).all(|i| !images[..i].contains(&images[i]));
    assert!(different, "two requests have the same image");
    // Several images share the features of the control image.
    let several = Request { seeds: vec![SEED + 1, SEED], controls: controls.clone(), ..plain.clone() };
    let mut several = pipeline.run(&several, &mut |_| std::ops::ControlFlow::Continue(()))?;
    assert!(several.pop().is_some_and(|picture| levels(&picture, &images[0]) <= 1));
    Ok(())
}

#[test]
fn controlnets_stay_while_requests_need_them() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (v1, other) = (write(folder.path(), "v1")?, write(folder.path(), "v1_other")?);
    let (_folder, pipeline) = model(V1)?;
    let select = |paths: &[&Path]| pipeline.model.select_controlnets(paths, &|| Ok(()));
    let twice = select(&[&v1, &v1])?;
    assert!(twice.len() == 2 && Arc::ptr_eq(&twice[0], &twice[1]));
    let both = select(&[&other, &v1])?;
    assert!(Arc::ptr_eq(&both[1], &twice[0]));
    let [first, second] = [&both[1], &both[0]].map(Arc::downgrade);
    drop((twice, both));
    // Invalid files change nothing.
    let missing = select(&[&folder.path().join("none.safetensors")]);
    assert!(matches!(missing, Err(Error::Request(_))), "{missing:?}");
    assert!(first.upgrade().is_some() && second.upgrade().is_some());
    select(&[&v1])?;
    assert!(first.upgrade().is_some() && second.upgrade().is_none());
    // Requests without ControlNets free them.
    generate(&pipeline, &Request { steps: 1, ..request(&pipeline, Vec::new()) })?;
    assert!(first.upgrade().is_none());
    // So do requests that share steps.
    let first = Arc::downgrade(&select(&[&v1])?[0]);
    Together::run(&pipeline, &[(0, Request { steps: 1, ..request(&pipeline, Vec::new()) })], None)?;
    assert!(first.upgrade().is_none());
    // A request that was cancelled while it waited loads nothing.
    let controls = vec![control(&v1, picture("hint")?)];
    let cancelled = Some(Arc::new(AtomicBool::new(true)));
    let result = generate(&pipeline, &Request { cancelled, ..request(&pipeline, controls) });
    assert!(matches!(result, Err(Error::Cancelled { step: 0, .. })), "{result:?}");
    Ok(())
}

#[cfg(feature = "rocm-emulator")]
#[test]
fn the_software_gpu_agrees_and_plans_its_memory() -> Outcome {
    use sd_worker::model::Model;

    let device = tiny_model::software_gpu()?;
    let folder = tempfile::tempdir()?;
    let path = write(folder.path(), "v1")?;
    let (model_folder, on_cpu) = model(V1)?;
    let options = LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() };
    let on_gpu = Pipeline::new(Model::load(model_folder.path(), &device, options, |_| ())?);
    let controlled = request(&on_gpu, vec![control(&path, picture("hint")?)]);
    let controlled = Request { steps: 2, ..controlled };
    let most = levels(&generate(&on_gpu, &controlled)?, &generate(&on_cpu, &controlled)?);
    assert!(most <= 1, "{most} levels away from the CPU");
    let half = Pipeline::new(Model::load(model_folder.path(), &device, LoadOptions::default(), |_| ())?);
    // Guidance would amplify the rounding.
    let plain = Request { guidance: 1.0, ..controlled.clone() };
    let (half, exact) = (generate(&half, &plain)?, generate(&on_cpu, &plain)?);
    let total: u64 = half.rgb().iter().zip(exact.rgb()).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let mean = total as f64 / half.rgb().len() as f64;
    println!("f16: {mean} levels");
    assert!(mean <= 0.25, "{mean} levels away in f16 on average");
    // Weights that do not fit into the free memory are not loaded.
    generate(&on_gpu, &Request { steps: 1, ..request(&on_gpu, Vec::new()) })?;
    let rocm = device.as_rocm_device()?;
    let reserve = rocm.memory_reserve();
    rocm.set_memory_reserve(rocm.free_memory()?);
    let error = generate(&on_gpu, &controlled).unwrap_err();
    rocm.set_memory_reserve(reserve);
    assert!(matches!(error, Error::Device(_)), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("ControlNets need 2 MiB") && error.contains("0 MiB free"), "{error}");
    generate(&on_gpu, &controlled)?;
    Ok(())
}
