//! Authentication by a bearer token.

use crate::ApiError;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, HeaderName};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// A secret bearer token. Its `Debug` output is redacted, so that it does not appear in logs.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// Returns true if `given` is the token. The comparison takes constant time for a given length.
    pub fn matches(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }

    /// Returns the token in plain text, to be sent to another server.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // An empty environment variable is more likely a missing secret than a deliberate choice.
        if text.trim().is_empty() {
            return Err("is empty; set a value, or omit the option to run without a token");
        }
        Ok(Token(text.trim().into()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Hash of the token of a request, if several tokens are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenHash(pub [u8; 32]);

/// Tokens of which requests must present one, and the paths that are exempt.
#[derive(Clone)]
pub(crate) struct TokenPolicy {
    /// If empty, no token is required.
    pub tokens: Arc<[Token]>,
    /// Paths that do not require a token.
    pub open: Arc<[&'static str]>,
}

/// Header that Anthropic's clients and some proxies use instead of `Authorization`.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Middleware that rejects requests without a valid token.
pub(crate) async fn require_token(
    State(guard): State<TokenPolicy>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if guard.tokens.is_empty() || guard.open.contains(&request.uri().path()) {
        return Ok(next.run(request).await);
    }
    let headers = request.headers();
    let header = |name| headers.get(name).map(|value: &HeaderValue| value.as_bytes());
    let given = header(AUTHORIZATION).and_then(bearer).or_else(|| header(API_KEY));
    let Some(given) = given else {
        return Err(ApiError::unauthorized(
            "missing token; send it as `Authorization: Bearer TOKEN` or `X-Api-Key: TOKEN`",
        ));
    };
    // All tokens are compared, so that the time does not depend on which one matches.
    let matching = |found, token: &Token| if token.matches(given) { Some(token.clone()) } else { found };
    match guard.tokens.iter().fold(None, matching) {
        Some(token) => {
            if guard.tokens.len() > 1 {
                request.extensions_mut().insert(TokenHash(Sha256::digest(token.reveal()).into()));
            }
            Ok(next.run(request).await)
        }
        None => Err(ApiError::unauthorized("invalid token; it must equal the worker's --api-token")),
    }
}

/// Returns the token of an Authorization header. The scheme is case-insensitive.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bearer_scheme_is_case_insensitive() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bEARER  abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Bearer "), Some(&b""[..]));
        for wrong in [&b"Basic abc"[..], b"Bearer", b"Bearerabc", b""] {
            assert_eq!(bearer(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_the_whole_token_matches() {
        let token: Token = "secret".parse().unwrap();
        assert!(token.matches(b"secret"));
        for wrong in [&b""[..], b"secre", b"secret2", b"SECRET", b"\xff"] {
            assert!(!token.matches(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{token:?}"), "Token(hidden)");
    }

    #[test]
    fn an_empty_token_is_refused() {
        assert!("".parse::<Token>().is_err());
        assert!(" \n".parse::<Token>().is_err());
    }
}
