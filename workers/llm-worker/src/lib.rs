//! An OpenAI-compatible server of language models.
