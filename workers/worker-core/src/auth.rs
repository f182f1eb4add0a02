//! The bearer token.

use crate::ApiError;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// A token that clients must know. It never shows in logs: its `Debug` hides it.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// Whether `given` is the token. How long this takes tells the token's length at most.
    pub fn matches(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }

    /// The token itself, for those who have to send it on.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Token {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // An empty variable is more likely a secret that got lost than a wish for none.
        if text.trim().is_empty() {
            return Err("is empty: give it a value, or leave it out for a worker without a token");
        }
        Ok(Token(text.trim().into()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// What a request is held against.
#[derive(Clone)]
pub(crate) struct Guard {
    pub token: Option<Token>,
    /// Paths that need no token.
    pub open: Arc<[&'static str]>,
}

pub(crate) async fn require(
    State(guard): State<Guard>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Some(token) = &guard.token else { return Ok(next.run(request).await) };
    if guard.open.contains(&request.uri().path()) {
        return Ok(next.run(request).await);
    }
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes()).and_then(bearer);
    match given {
        Some(given) if token.matches(given) => Ok(next.run(request).await),
        Some(_) => Err(ApiError::unauthorized("the token is not this worker's")),
        None => Err(ApiError::unauthorized("send the worker's token as `Authorization: Bearer TOKEN`")),
    }
}

/// The token of an Authorization header; the scheme may be written in any case.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_bearer_scheme_in_any_case_and_no_other() {
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
