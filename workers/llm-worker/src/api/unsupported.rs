//! Known but unsupported fields, with the values that have no effect. Other values are rejected, since
//! ignoring them would be misleading.
use worker_core::body::Table;

const ANY: &[&str] = &["*"];
const FALSE: &[&str] = &["false"];
const TRUE: &[&str] = &["true"];
const ONE: &[&str] = &["1", "1.0"];
const EMPTY: &[&str] = &["", "[]", "{}"];

/// Fields that do not affect the response.
const METADATA: Table = &[
    ("metadata", ANY),
    // Only speeds up OpenAI's responses.
    ("prediction", ANY),
    ("priority", ANY),
    ("prompt_cache_key", ANY),
    ("prompt_cache_retention", ANY),
    ("request_id", ANY),
    ("safety_identifier", ANY),
    ("service_tier", ANY),
    // Speculation changes no text.
    ("speculative.n_min", ANY),
    ("speculative.p_min", ANY),
    ("store", ANY),
    ("user", ANY),
];

/// Options of streams.
pub const STREAM_OPTIONS: &[Table] = &[&[("continuous_usage_stats", FALSE), ("include_obfuscation", ANY)]];

/// Fields of other servers' chat and completion APIs.
const TEXTS: Table = &[
    ("add_special_tokens", TRUE),
    ("allowed_token_ids", EMPTY),
    ("bad_words", EMPTY),
    ("best_of", ONE),
    ("echo", FALSE),
    ("length_penalty", ONE),
    ("logits_processors", EMPTY),
    // Grammars are always compiled by the same library.
    ("guided_decoding_backend", ANY),
    ("guided_whitespace_pattern", EMPTY),
    ("use_beam_search", FALSE),
    // SGLang's gateway adds these fields to every request.
    ("no_stop_trim", FALSE),
    ("return_hidden_states", FALSE),
    ("separate_reasoning", TRUE),
    ("stream_reasoning", TRUE),
];

/// Tables of `/v1/chat/completions`.
pub const CHAT: &[Table] = &[METADATA, TEXTS, &[("functions", EMPTY), ("modalities", &["[\"text\"]"])]];

/// Tables of `/v1/completions`.
pub const COMPLETIONS: &[Table] = &[METADATA, TEXTS, &[("suffix", EMPTY)]];

/// Tables of `/v1/embeddings`.
pub const EMBEDDINGS: &[Table] = &[METADATA, &[("add_special_tokens", TRUE)]];
