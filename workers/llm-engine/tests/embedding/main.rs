//! Embeddings and scores of tiny random models, compared with sentence-transformers' results, which `reference.py`
//! writes.
mod models;
mod texts;
