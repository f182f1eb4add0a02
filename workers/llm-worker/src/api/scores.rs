//! Relevance of documents to queries: scores of a cross-encoder or a decoder, or cosines of embeddings.
use std::sync::Arc;

use worker_core::ApiError;

use super::request::Prompts;
use super::{failure, inputs, prompts, tokenizing};
use crate::served::ServedModel;

/// Maximum number of pairs per request.
const MAX_PAIRS: usize = 2048;

/// Texts to compare: one query for all documents, or one for each.
pub struct Pairs {
    /// Queries.
    pub queries: Vec<String>,
    /// Documents.
    pub documents: Vec<String>,
    /// Task in the prompt of a reranker that is a decoder.
    pub instruction: Option<String>,
    /// Names of the fields of queries and documents.
    pub fields: [&'static str; 2],
}

/// Scores, and the number of tokens that were computed.
pub struct Scores {
    /// One score for each document.
    pub scores: Vec<f32>,
    /// Number of tokens.
    pub tokens: usize,
}

/// Computes the score of each document, keeping at most `truncate` tokens of each pair or text.
///
/// # Errors
/// Returns a 400 error for numbers of texts that do not match, and for texts that exceed the model's limit.
pub async fn compute(
    served: &Arc<ServedModel>,
    pairs: Pairs,
    truncate: Option<i64>,
) -> Result<Scores, ApiError> {
    let [query, document] = pairs.fields;
    let (queries, documents) = (pairs.queries.len(), pairs.documents.len());
    if documents == 0 || documents > MAX_PAIRS {
        return Err(ApiError::field(document, format!("must contain 1 to {MAX_PAIRS} texts")));
    }
    if queries != 1 && queries != documents {
        let why = format!("has {queries} texts, but must have 1, or {documents} as `{document}`");
        return Err(ApiError::field(query, why));
    }
    let is_instructed = served.engine.tasks().classify && served.engine.text().has_pair_template();
    if pairs.instruction.is_some() && !is_instructed {
        let why =
            "is not supported by this model; it requires a reranker with a chat template for instructions";
        return Err(ApiError::field("instruction", why));
    }
    let truncate = inputs::truncation(served, truncate)?;
    match served.engine.tasks().classify {
        true => classified(served, pairs, truncate).await,
        false => cosines(served, pairs, truncate).await,
    }
}

async fn classified(
    served: &Arc<ServedModel>,
    pairs: Pairs,
    truncate: Option<usize>,
) -> Result<Scores, ApiError> {
    let document = pairs.fields[1];
    let several = pairs.documents.len() > 1;
    let bytes = pairs.queries.iter().chain(&pairs.documents).map(String::len).sum();
    let (tokens, seconds) = tokenizing::run(served, bytes, move |served| {
        let queries = pairs.queries.iter().cycle();
        let encode = |(query, text): (&String, &String)| {
            let instruction = pairs.instruction.as_deref();
            served.engine.text().encode_instructed_pair(instruction, query, text, truncate)
        };
        let encoded = queries.zip(&pairs.documents).map(encode).collect::<Result<Vec<_>, _>>();
        let encoded = encoded.map_err(|error| prompts::rejected(document, &error))?;
        Ok::<(Vec<Vec<u32>>, Vec<usize>), ApiError>(encoded.into_iter().unzip())
    })
    .await?;
    for (index, prompt) in tokens.iter().enumerate() {
        let name = if several { format!("{document}[{index}]") } else { document.to_owned() };
        inputs::check_length(served, prompt.len(), &name)?;
    }
    let count = tokens.iter().map(Vec::len).sum();
    let computed = served.engine.classify(tokens, seconds);
    let rows = received(computed, document).await?;
    let scores = rows.into_iter().map(|row| row.first().copied().unwrap_or(f32::NAN)).collect();
    Ok(Scores { scores, tokens: count })
}

async fn cosines(
    served: &Arc<ServedModel>,
    pairs: Pairs,
    truncate: Option<usize>,
) -> Result<Scores, ApiError> {
    let Pairs { queries, documents, fields: [query, document], .. } = pairs;
    let count = queries.len();
    let mut tokens = inputs::tokens(served, Prompts::Texts(queries), truncate, query).await?;
    tokens.extend(inputs::tokens(served, Prompts::Texts(documents), truncate, document).await?);
    let total = tokens.iter().map(Vec::len).sum();
    let vectors = received(served.engine.embed(tokens), document).await?;
    let (queries, documents) = vectors.split_at(count);
    let scores = queries.iter().cycle().zip(documents).map(|(query, text)| cosine(query, text)).collect();
    Ok(Scores { scores, tokens: total })
}

type Receiver = tokio::sync::oneshot::Receiver<llm_engine::engine::EmbeddingResult>;

/// Waits for the results of a job whose texts are in the field `param`.
///
/// # Errors
/// Returns the error of a rejected or failed job.
pub async fn received(
    job: Result<Receiver, llm_engine::request::RequestError>,
    param: &str,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let job = job.map_err(|error| failure::request_error(error, param, param))?;
    let vectors = job.await.map_err(|_| failure::worker_stopped())?;
    vectors.map_err(|why| failure::engine_error("engine_failed", why))
}

/// Returns the cosine of the angle between two vectors; 0 if one of them is zero.
fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let lengths = (dot(one, one) * dot(other, other)).sqrt();
    if lengths > 0.0 { (dot(one, other) / lengths) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::cosine;

    #[test]
    fn cosines_of_vectors() {
        assert_eq!(cosine(&[2.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[2.0, 0.0], &[0.0, 1.0]), 0.0);
        assert_eq!(cosine(&[1.0, 0.0], &[-3.0, 0.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 1.0]), 0.0);
    }
}
