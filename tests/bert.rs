//! Tests a BERT model of candle-transformers and the example `sentence_embeddings` on the device and on the
//! CPU.
mod common;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertModel;
use serial_test::serial;

fn hidden_states(device: &Device, weights: &[u8]) -> Result<Tensor> {
    let vb = VarBuilder::from_slice_safetensors(weights, DType::F32, device)?;
    let model = BertModel::load(vb, &common::config())?;
    let ids = Tensor::new(&[[2u32, 4, 6, 8, 3, 10, 12, 1], [3, 5, 7, 9, 2, 13, 1, 1]], device)?;
    let mask = Tensor::new(&[[1u32, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0, 0]], device)?;
    model.forward(&ids, &ids.zeros_like()?, Some(&mask))?.to_device(&Device::Cpu)
}

#[test]
#[serial]
fn bert_hidden_states_match_the_cpu() -> Result<()> {
    let folder = tempfile::tempdir()?;
    common::write_model(folder.path())?;
    let weights = std::fs::read(folder.path().join("model.safetensors"))?;
    let on_device = hidden_states(&common::device(), &weights)?;
    let on_cpu = hidden_states(&Device::Cpu, &weights)?;
    let difference = (on_device - &on_cpu)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(difference < 1e-5, "largest difference {difference}");
    let spread = on_cpu.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(spread > 0.1, "the largest hidden state is only {spread}");
    Ok(())
}

#[test]
fn example_compares_both_devices_and_reports() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    common::write_model(folder.path())?;
    let model = folder.path().to_string_lossy().into_owned();
    let report = folder.path().join("report.json").to_string_lossy().into_owned();
    let output = common::run_embeddings_example(
        &[
            "--model",
            &model,
            "--compare",
            "cpu",
            "--report",
            &report,
            "the cat sleeps",
            "a dog runs",
            "red tree",
        ],
        &[],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    assert!(text.contains("similarity") && text.contains("best match"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    let device = common::device();
    let rocm = device.as_rocm_device()?;
    assert_eq!(
        (report["arch"].as_str(), report["driver"].as_str()),
        (Some(rocm.arch()), Some(rocm.driver_name()))
    );
    assert!(report["max_abs_diff"].as_f64().is_some_and(|d| d < 1e-5), "{report}");
    assert!(report["kernels_launched"].as_u64().is_some_and(|k| k > 20), "{report}");
    Ok(())
}

/// Runs the example on a model that `damage` has modified; returns the error output.
fn error_output(damage: impl FnOnce(&std::path::Path) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    common::write_model(folder.path())?;
    damage(folder.path())?;
    let model = folder.path().to_string_lossy().into_owned();
    let output = common::run_embeddings_example(&["--model", &model, "the cat", "a dog"], &[]);
    assert!(!output.status.success(), "a damaged model was accepted");
    let text = String::from_utf8(output.stderr)?;
    assert!(!text.contains("panicked"), "{text}");
    assert!(text.contains("model.safetensors"), "{text}");
    Ok(text)
}

#[test]
fn missing_weights_are_reported() -> anyhow::Result<()> {
    let text = error_output(|folder| Ok(std::fs::remove_file(folder.join("model.safetensors"))?))?;
    assert!(text.contains("cannot read the weights"), "{text}");
    Ok(())
}

#[test]
fn truncated_weights_are_rejected() -> anyhow::Result<()> {
    let text = error_output(|folder| {
        let path = folder.join("model.safetensors");
        let bytes = std::fs::read(&path)?;
        Ok(std::fs::write(&path, &bytes[..bytes.len() / 2])?)
    })?;
    assert!(text.contains("cannot be used"), "{text}");
    Ok(())
}

#[test]
fn integer_weights_are_rejected_by_name() -> anyhow::Result<()> {
    let text = error_output(|folder| {
        let path = folder.join("model.safetensors");
        let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu)?;
        let name = "encoder.layer.0.attention.self.query.weight";
        let wrong = tensors[name].to_dtype(DType::I64)?;
        tensors.insert(name.into(), wrong);
        Ok(candle_core::safetensors::save(&tensors, &path)?)
    })?;
    assert!(text.contains("self.query.weight") && text.contains("I64"), "{text}");
    Ok(())
}
