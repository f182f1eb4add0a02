//! Decoded copies of quantized matrices, on a GPU whose products of many rows read them.
use std::path::{Path, PathBuf};

use candle_core::DType;
use candle_core::quantized::rocm::decodes_for_products;
use candle_core::rocm::hip_kernels::{self, Module};
use candle_core::rocm::rocm_loader::{self, DRIVER_VARIABLE};
use llm_engine::model::{LoadOptions, load};

use super::graphs::passes_with;
use super::steps::{Runner, device, load_with};

const GPU: &str = "gfx942";
/// More rows than the kernels for few rows multiply.
const ROWS: usize = 100;

#[test]
fn decoded_copies_change_no_logits() {
    if rocm_loader::driver().is_ok_and(|driver| !driver.is_software()) {
        return copies_of_layers();
    }
    if hip_kernels::code_object(Module::Quantized, GPU).is_err() {
        eprintln!("not run: the kernels were built without {GPU} (CANDLE_ROCM_ARCHS)");
        return;
    }
    passes_with("decoded::copies_of_layers", &[(DRIVER_VARIABLE, &format!("emulator:{GPU}"))]);
}

#[test]
#[ignore = "run by decoded_copies_change_no_logits"]
fn copies_of_layers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_llama/model");
    let path: PathBuf = folder.join("tiny-llama.q8_0.gguf");
    // Queries, keys and values; output; gate and up; down.
    let layer = 2 * 256 * (3 * 256 + 256 + 2 * 512 + 512);
    for dtype in [DType::F16, DType::F32] {
        let options = |decoded_bytes| {
            let cache_bytes = Some(1 << 20);
            LoadOptions { dtype: Some(dtype), cache_bytes, decoded_bytes, ..LoadOptions::default() }
        };
        let load_bytes = |decoded| load(&path, &device().0, options(decoded), &mut |_| ()).unwrap().bytes;
        let logits =
            |decoded| Runner::new(load_with(&path, options(decoded)), &[ROWS]).step(&[(0, ROWS, ROWS)]);
        let (bytes, expected) = (load_bytes(Some(0)), logits(Some(0)));
        let has_copies = decodes_for_products(device().0.as_rocm_device().unwrap()).unwrap();
        // A model that is loaded again with a cache of the same size has the same copies.
        let load_cache = |cache_bytes| {
            let options = LoadOptions { cache_bytes, max_contexts: Some(1), ..options(None) };
            load(&path, &device().0, options, &mut |_| ()).unwrap()
        };
        let first = load_cache(None);
        assert_eq!(load_cache(Some(first.cache_bytes)).bytes, first.bytes, "{dtype:?}");
        for (decoded, copies) in [(None, 2 * layer), (Some(layer), layer), (Some(usize::MAX), 2 * layer)] {
            let copies = if has_copies { copies } else { 0 };
            assert_eq!(load_bytes(decoded) - bytes, copies, "{dtype:?}, {decoded:?}");
            assert_eq!(logits(decoded), expected, "{dtype:?}, {decoded:?}");
        }
    }
}
