//! `POST /v1/rerank` in the format of Jina and Cohere, and `POST /v1/score` in that of vLLM.
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use worker_core::body::{Others, required};
use worker_core::{ApiError, Body, fields, unix_seconds};

use super::scores::{self, Pairs};
use super::unsupported;
use crate::models::Api;

/// A text, or an object that contains it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Document {
    /// The text.
    Text(String),
    /// An object with the text.
    Object {
        /// The text.
        text: String,
    },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Texts {
    /// One text.
    One(Document),
    /// Several texts.
    Several(Vec<Document>),
}

impl Texts {
    fn into_texts(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text.into_text()],
            Self::Several(texts) => texts.into_iter().map(Document::into_text).collect(),
        }
    }
}

fields! {
    /// Body of `POST /v1/rerank`.
    pub struct RerankBody, others: Others::Unsupported(unsupported::EMBEDDINGS) => {
        /// The model's name.
        model: String,
        /// Text that the documents are compared with.
        query: Document,
        /// Texts to sort.
        documents: Vec<Document>,
        /// Number of results.
        top_n: usize,
        /// If true, results contain the documents.
        return_documents: bool,
        /// Task in the prompt of a reranker that is a decoder.
        instruction: String,
        /// Maximum number of tokens to keep of a query with a document.
        truncate_prompt_tokens: i64,
    }
}

fields! {
    /// Body of `POST /v1/score`.
    pub struct ScoreBody, others: Others::Unsupported(unsupported::EMBEDDINGS) => {
        /// The model's name.
        model: String,
        /// One text, or as many as `text_2`.
        text_1: Texts,
        /// Texts that `text_1` is compared with.
        text_2: Texts,
        /// Task in the prompt of a reranker that is a decoder.
        instruction: String,
        /// Maximum number of tokens to keep of a pair.
        truncate_prompt_tokens: i64,
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    fn of(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

#[derive(Serialize)]
pub struct Ranking {
    id: String,
    model: String,
    results: Vec<Ranked>,
    usage: Usage,
}

#[derive(Serialize)]
struct Ranked {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

#[derive(Serialize)]
struct DocumentText {
    text: String,
}

#[derive(Serialize)]
pub struct ScoreList {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Score>,
    usage: Usage,
}

#[derive(Serialize)]
struct Score {
    index: usize,
    object: &'static str,
    score: f32,
}

/// Handles `POST /v1/rerank`.
pub async fn rerank(State(api): State<Api>, Body(body): Body<RerankBody>) -> Result<Json<Ranking>, ApiError> {
    let served = api.served()?.model(body.model.as_deref()).await?;
    served.check_no_adapter(body.model.as_deref())?;
    let query = required(body.query, "query")?.into_text();
    let documents: Vec<String> =
        required(body.documents, "documents")?.into_iter().map(Document::into_text).collect();
    if body.top_n == Some(0) {
        return Err(ApiError::field("top_n", "is 0, but must be at least 1"));
    }
    let (fields, instruction) = (["query", "documents"], body.instruction);
    let pairs = Pairs { queries: vec![query], documents: documents.clone(), instruction, fields };
    let computed = scores::compute(&served, pairs, body.truncate_prompt_tokens).await?;
    let mut ranked: Vec<(usize, f32)> = computed.scores.into_iter().enumerate().collect();
    // Documents of equal scores stay in their order.
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ranked.truncate(body.top_n.unwrap_or(usize::MAX));
    let with_text = body.return_documents.unwrap_or(true);
    let result = |(index, relevance_score): (usize, f32)| {
        let text = documents.get(index).filter(|_| with_text).cloned();
        Ranked { index, relevance_score, document: text.map(|text| DocumentText { text }) }
    };
    Ok(Json(Ranking {
        id: format!("rerank-{}", Uuid::new_v4().simple()),
        model: served.name.as_str().to_owned(),
        results: ranked.into_iter().map(result).collect(),
        usage: Usage::of(computed.tokens),
    }))
}

/// Handles `POST /v1/score`.
pub async fn score(State(api): State<Api>, Body(body): Body<ScoreBody>) -> Result<Json<ScoreList>, ApiError> {
    let served = api.served()?.model(body.model.as_deref()).await?;
    served.check_no_adapter(body.model.as_deref())?;
    let pairs = Pairs {
        queries: required(body.text_1, "text_1")?.into_texts(),
        documents: required(body.text_2, "text_2")?.into_texts(),
        instruction: body.instruction,
        fields: ["text_1", "text_2"],
    };
    let computed = scores::compute(&served, pairs, body.truncate_prompt_tokens).await?;
    let data = computed.scores.into_iter().enumerate();
    Ok(Json(ScoreList {
        id: format!("score-{}", Uuid::new_v4().simple()),
        object: "list",
        created: unix_seconds(),
        model: served.name.as_str().to_owned(),
        data: data.map(|(index, score)| Score { index, object: "score", score }).collect(),
        usage: Usage::of(computed.tokens),
    }))
}
