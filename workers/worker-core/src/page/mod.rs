//! A worker's page: one document that needs nothing from elsewhere, and may load nothing.

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Colours, the head of the page, buttons, dialogs: what the pages of all workers look like.
const BASE: &str = include_str!("base.css");

/// A document, and the policy that lets exactly its own style and script run.
#[derive(Clone, Debug)]
pub struct Page {
    document: Arc<str>,
    policy: HeaderValue,
}

impl Page {
    /// Puts a style, behind the one of all workers, and a script (a module) into the empty elements `<style></style>` and
    /// `<script></script>` of `frame`.
    pub fn new(frame: &str, style: &str, script: &str) -> Page {
        let style = [BASE, style].concat();
        let document = frame
            .replace("<style></style>", &format!("<style>{style}</style>"))
            .replace("<script></script>", &format!("<script type=\"module\">{script}</script>"));
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(&style),
            hash(script),
        );
        // It is of ASCII alone, and therefore a header; if it were none, nothing would run.
        let policy = HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
        Page { document: document.into(), policy }
    }

    /// `GET /`.
    pub fn router(self) -> Router {
        Router::new().route("/", get(async move || self.answer()))
    }

    /// The document.
    pub fn document(&self) -> &str {
        &self.document
    }

    fn answer(&self) -> Response {
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
        ];
        (headers, self.document.to_string()).into_response()
    }
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_the_page_may_run() {
        let page = Page::new("<style></style><p><script></script>", "p { margin: 0 }", "let a = 1;");
        let document = page.document();
        assert!(document.contains("p { margin: 0 }</style><p><script type=\"module\">let a = 1;</script>"));
        let style = document.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        let policy = page.policy.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        for text in [style, "let a = 1;"] {
            assert!(policy.contains(&hash(text)), "{policy}");
        }
        // The digest of nothing, as everybody knows it.
        assert_eq!(hash(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }
}
