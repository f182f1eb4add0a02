//! Tokens to text and back: tokenizers, chat templates, stop strings, grammars.
//!
//! | file | subject |
//! |---|---|
//! | `tokenizer` | a model's tokenizer, the tokens that end a text, its template and the grammar's view of its tokens |
//! | `stream` | text as its tokens come |
//! | `template` | chats as the model was trained on them |
//! | `grammar` | text held to JSON |
mod grammar;
mod stream;
mod template;
mod tokenizer;

pub use grammar::Grammar;
pub use stream::{Piece, TextStream};
pub use template::ChatTemplate;
pub use tokenizer::Text;
