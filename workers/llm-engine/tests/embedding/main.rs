//! Embeddings and scores of tiny random models, compared with results of sentence-transformers, numpy and SentencePiece,
//! which `reference.py` and `rerankers.py` write.
#[cfg(feature = "rocm-emulator")]
#[path = "../common/gpu.rs"]
mod gpu;
mod models;
mod texts;
