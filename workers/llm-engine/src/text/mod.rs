//! Tokens to text and back: tokenizers, chat templates, stop strings, grammars.
