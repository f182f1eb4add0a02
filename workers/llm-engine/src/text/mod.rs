//! Tokens to text and back: tokenizers, chat templates, stop strings, grammars.
//!
//! | file | subject |
//! |---|---|
//! | `tokenizer` | a model's tokenizer with the tokens that end a text, its template and its grammars |
//! | `folder` | all that from the JSON files beside a model's weights |
//! | `gguf_metadata` | what a GGUF file says of its tokenizer |
//! | `gguf` | all that from the metadata of a GGUF file |
//! | `gguf_models` | tokenizers as such metadata describe them |
//! | `pieces` | the bytes that each token stands for |
//! | `stream` | text as its tokens come |
//! | `template` | chats as the model was trained on them |
//! | `grammar` | text held to JSON |
mod folder;
mod gguf;
mod gguf_metadata;
mod gguf_models;
mod grammar;
mod pieces;
mod stream;
mod template;
mod tokenizer;

pub use grammar::Grammar;
pub use stream::{Piece, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::Text;
