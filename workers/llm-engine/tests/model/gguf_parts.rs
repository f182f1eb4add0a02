//! Models that are divided into several GGUF files.
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadatum;

use super::broken::assert_rejected;
use super::configs::named;
use super::gguf;
use super::reference;
use super::steps::{LENGTHS, Runner, load_on_cpu, run_on_cpu};

/// Number of files.
const COUNT: usize = 3;

fn path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("tiny-{number:05}-of-{COUNT:05}.gguf"))
}

/// Writes the model "llama" to `COUNT` files: the first contains only metadata, the others the tensors in turn.
fn write(folder: &Path) -> reference::Model {
    let case = named("llama");
    let (model, weights) = reference::model(&case);
    let tensors = gguf::convert("llama", &case.config, &weights);
    let mut names: Vec<_> = tensors.keys().collect();
    names.sort();
    for part in 0..COUNT {
        let is_in_part = |index: usize| part > 0 && index % (COUNT - 1) == part - 1;
        let names = names.iter().enumerate().filter(|(index, _)| is_in_part(*index));
        let tensors: HashMap<_, _> =
            names.map(|(_, name)| ((*name).clone(), tensors[*name].clone())).collect();
        let mut metadata = if part == 0 { gguf::metadata("llama", &case.config) } else { Vec::new() };
        metadata.extend([
            ("split.no".into(), Metadatum::U16(part as u16)),
            ("split.count".into(), Metadatum::U16(COUNT as u16)),
        ]);
        let written = gguf::write(folder, &metadata, &tensors, GgmlDType::F32, &[]);
        fs::rename(written, path(folder, part + 1)).unwrap();
    }
    model
}

#[test]
fn a_divided_model_equals_the_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = write(folder.path());
    run_on_cpu(Runner::new(load_on_cpu(&path(folder.path(), 1)), &LENGTHS), &mut model);
}

#[test]
fn missing_and_exchanged_parts_are_named() {
    let folder = tempfile::tempdir().unwrap();
    drop(write(folder.path()));
    let [first, second, third] = [1, 2, 3].map(|number| path(folder.path(), number));
    assert_rejected(&second, &["tiny-00002-of-00003.gguf", "it is part 2 of 3; give the first file"]);
    let other = folder.path().join("other.gguf");
    fs::rename(&third, &other).unwrap();
    assert_rejected(&first, &["tiny-00003-of-00003.gguf", "in the same folder", "cannot be opened"]);
    fs::copy(&second, &third).unwrap();
    assert_rejected(&first, &["tiny-00003-of-00003.gguf", "is in two files"]);
    fs::rename(&second, folder.path().join("second.gguf")).unwrap();
    fs::copy(&other, &second).unwrap();
    assert_rejected(&first, &["tiny-00002-of-00003.gguf", "it is not part 2 of 3"]);
    let bytes = fs::read(&other).unwrap();
    fs::copy(folder.path().join("second.gguf"), &second).unwrap();
    fs::write(&third, &bytes[..bytes.len() - 100]).unwrap();
    assert_rejected(&first, &["tiny-00003-of-00003.gguf", "download it again"]);
    fs::rename(&first, &other).unwrap();
    assert_rejected(&other, &["other.gguf", "its name must end with -00001-of-00003.gguf"]);
}
