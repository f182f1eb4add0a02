//! Models that devices cannot divide.
use std::path::Path;

use candle_core::DType;
use serial_test::serial;

use super::models::{self, checkpoint};
use super::{SELECTED, load, options};

#[track_caller]
fn assert_refused(path: &Path, ranks: usize, words: &[&str]) {
    if ranks > *SELECTED {
        return;
    }
    let error = load(path, ranks, options(Some(DType::F32))).err().unwrap();
    let text = format!("{error:#}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

#[test]
#[serial]
fn sizes_that_do_not_divide_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |key: &str, value: usize| {
        let mut config = models::llama_config();
        config[key] = value.into();
        models::write(folder.path(), &config, &models::weights(false, models::KEY_HEADS));
    };
    let remedy = "use a number of GPUs that divides";
    write("num_attention_heads", 4);
    assert_refused(folder.path(), 3, &["4 heads cannot be divided among 3 GPUs", remedy]);
    write("intermediate_size", 130);
    assert_refused(folder.path(), 4, &["130 elements inside the feed-forward layers", remedy]);
    // The published tiny Llama has one block of 256 elements in the rows of the output projection.
    let file = models::tiny_llama().join("tiny-llama.q4_k.gguf");
    let block = "'blk.0.attn_output.weight' in Q4K has rows of 256 elements in 1 blocks of 256, which 2 GPUs";
    assert_refused(&file, 2, &[block, remedy]);
    let block = "'model.layers.0.mlp.experts.down_proj' in MXFP4 has rows of 32 elements in 1 blocks of 32";
    assert_refused(&checkpoint("gpt-oss-mxfp4"), 2, &[block, remedy]);
    assert_refused(&checkpoint("olmo2"), 2, &["norms of all heads of a row", "use one GPU"]);
    assert_refused(&checkpoint("mixtral"), 4, &["rank 0 of 4", "2 heads cannot be divided among 4 GPUs"]);
}

#[test]
#[serial]
fn a_vocabulary_that_does_not_divide_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut weights = models::weights(false, models::KEY_HEADS);
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        let part = weights[name].narrow(0, 0, 511).unwrap().force_contiguous().unwrap();
        weights.insert(name.to_owned(), part);
    }
    models::write(folder.path(), &models::llama_config(), &weights);
    assert_refused(folder.path(), 2, &["511 tokens of the vocabulary cannot be divided among 2 GPUs"]);
}
