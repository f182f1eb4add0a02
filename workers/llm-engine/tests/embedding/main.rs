//! Embeddings and scores of tiny random models, compared with results of sentence-transformers, numpy and SentencePiece,
//! which `reference.py` and `rerankers.py` write.
mod models;
mod texts;
