//! Tokenizers, detokenization, chat templates, stop strings and grammars.
//!
//! | file | subject |
//! |---|---|
//! | `tokenizer` | a model's tokenizer with its end-of-text tokens, chat template and grammars |
//! | `folder` | loading from the JSON files of a model's folder |
//! | `gguf_metadata` | access to the tokenizer metadata of a GGUF file |
//! | `gguf` | loading from a GGUF file |
//! | `gguf_tokenizers`, `pre_tokenizers` | construction of tokenizers from GGUF metadata; their pre-tokenizers |
//! | `wordpiece`, `unigram` | tokenizers of BERT and XLM-R from GGUF metadata |
//! | `template_override` | chat templates that replace the model's |
//! | `segments` | tokenization of texts and pairs for embeddings and scores |
//! | `token_bytes` | bytes of each token |
//! | `stream` | incremental detokenization and stop strings |
//! | `template/` | chat templates |
//! | `text_splitter` | splitting of long texts into pieces |
//! | `grammar` | state of a grammar that constrains the output |
//! | `lru_cache` | cache of compiled grammars |
//! | `grammar_source` | conversion of constraints to the grammar compiler's input |
//! | `schema` | limits and white space of JSON schemas |
//! | `gbnf`, `structural_tag`, `lark` | conversion of GBNF and of structural tags to Lark |
mod folder;
mod gbnf;
mod gguf;
mod gguf_metadata;
mod gguf_tokenizers;
mod grammar;
mod grammar_source;
mod lark;
mod lru_cache;
mod pre_tokenizers;
mod schema;
mod segments;
mod stream;
mod structural_tag;
mod template;
mod template_override;
mod text_splitter;
mod token_bytes;
mod tokenizer;
mod unigram;
mod wordpiece;

pub use grammar::Grammar;
pub use stream::{TextChunk, TextStream};
pub use template::{ChatTemplate, Conversation, builtin as builtin_templates};
pub use tokenizer::TextCodec;
