//! The chat page: one document that needs nothing from elsewhere, and may load nothing.
use std::sync::LazyLock;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("markdown.js"), include_str!("chat.js"));

/// The document, and the policy that lets exactly its own style and script run.
static PAGE: LazyLock<(String, Option<HeaderValue>)> = LazyLock::new(|| {
    let document = FRAME
        .replace("<style></style>", &format!("<style>{STYLE}</style>"))
        .replace("<script></script>", &format!("<script type=\"module\">{SCRIPT}</script>"));
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT),
    );
    (document, HeaderValue::try_from(policy).ok())
});

fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

/// `GET /`.
pub fn router() -> Router {
    Router::new().route("/", get(page))
}

async fn page() -> Response {
    let (document, policy) = &*PAGE;
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let mut response = (headers, document.as_str()).into_response();
    if let Some(policy) = policy {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_whole_and_asks_for_nothing_elsewhere() {
        let (document, policy) = &*PAGE;
        assert!(document.contains("--accent:") && document.contains("async function* chunks"));
        for tag in ["<link rel=\"stylesheet", "src=\"http", "@import", "url(", "innerHTML", "eval("] {
            assert!(!document.contains(tag), "{tag}");
        }
        // The script must not end its own element.
        assert_eq!(document.matches("</script").count(), 1);
        let policy = policy.as_ref().unwrap().to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}
