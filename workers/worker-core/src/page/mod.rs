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

/// The document of all pages: head, title bar, dialog of settings.
const FRAME: &str = include_str!("frame.html");
/// Their colours, buttons and dialogs.
const BASE: &str = include_str!("base.css");
/// Their state line, token and streams.
const BASICS: &str = include_str!("basics.js");

/// A document, and the policy that lets exactly its own style and script run.
#[derive(Clone, Debug)]
pub struct Page {
    document: Arc<str>,
    policy: HeaderValue,
}

impl Page {
    /// Puts `sections` into the frame of all pages: each begins with `<!-- NAME -->`, and takes the place of that mark.
    /// `style` and `script`, a module, come behind those of all pages.
    pub fn new(sections: &str, style: &str, script: &str) -> Page {
        let (style, script) = ([BASE, style].concat(), [BASICS, script].concat());
        let mut document = FRAME.to_owned();
        for (name, text) in sections.split("<!-- ").filter_map(|section| section.split_once(" -->\n")) {
            document = document.replace(&format!("<!-- {name} -->"), text.trim_end());
        }
        let document = document
            .replace("<style></style>", &format!("<style>{style}</style>"))
            .replace("<script></script>", &format!("<script type=\"module\">{script}</script>"));
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(&style),
            hash(&script),
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
        let page =
            Page::new("<!-- title -->\nA & B\n<!-- main -->\n<p>x</p>\n", "p { margin: 0 }", "let a = 1;");
        let document = page.document();
        assert!(document.contains("<title>A & B</title>") && document.contains("</header>\n\n<p>x</p>\n"));
        assert!(document.contains("p { margin: 0 }</style>") && document.contains("let a = 1;</script>"));
        let style = document.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        let policy = page.policy.to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let script = document.split("module\">").nth(1).unwrap().split("</script>").next().unwrap();
        for text in [style, script] {
            assert!(policy.contains(&hash(text)), "{policy}");
        }
        // The digest of nothing, as everybody knows it.
        assert_eq!(hash(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }
}
