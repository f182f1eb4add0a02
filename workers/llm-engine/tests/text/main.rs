//! Tokenizers, detokenization, chat templates and grammars, with small tokenizers built here.
mod chats;
mod gguf;
mod grammar_kinds;
mod grammars;
mod long_texts;
mod streams;
mod templates;
mod tokenizers_built;
