//! Tokenizers, detokenization, chat templates, stop strings and grammars.
//!
//! | file | subject |
//! |---|---|
//! | `tokenizer` | a model's tokenizer with its end-of-text tokens, chat template and grammars |
//! | `folder` | loading from the JSON files of a model's folder |
//! | `gguf_metadata` | access to the tokenizer metadata of a GGUF file |
//! | `gguf` | loading from a GGUF file |
//! | `gguf_tokenizers`, `pre_tokenizers` | construction of tokenizers from GGUF metadata; their pre-tokenizers |
//! | `wordpiece` | tokenizers of BERT from GGUF metadata |
//! | `chosen_template` | chat templates that replace the model's own |
//! | `segments` | tokenization of texts and pairs for embeddings and scores |
//! | `token_bytes` | the bytes of each token |
//! | `stream` | incremental detokenization and stop strings |
//! | `template/` | chat templates |
//! | `pieces` | cuts of long texts |
//! | `grammar` | output constrained to JSON |
//! | `recent` | cache of compiled grammars |
mod chosen_template;
mod folder;
mod gguf;
mod gguf_metadata;
mod gguf_tokenizers;
mod grammar;
mod pieces;
mod pre_tokenizers;
mod recent;
mod segments;
mod stream;
mod template;
mod token_bytes;
mod tokenizer;
mod wordpiece;

pub use grammar::Grammar;
pub use stream::{TextChunk, TextStream};
pub use template::{ChatTemplate, Conversation, builtin as builtin_templates};
pub use tokenizer::TextCodec;
