//! Web page of a worker: a self-contained document whose content security policy forbids loading anything else.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// HTML frame shared by all pages: head, title bar and settings dialog.
const FRAME: &str = include_str!("frame.html");
/// Styles shared by all pages: colours, buttons and dialogs.
const COMMON_STYLE: &str = include_str!("common.css");
/// Script shared by all pages: server state, API token and event streams.
const COMMON_SCRIPT: &str = include_str!("common.js");

/// A document with a content security policy that permits only its own style and script. The policy also forbids the
/// script to parse text as HTML.
#[derive(Clone, Debug)]
pub struct Page {
    document: Arc<str>,
    policy: HeaderValue,
    /// Entity tag, with which browsers check whether the document has changed.
    tag: HeaderValue,
}

impl Page {
    /// Creates a page. Each section begins with `<!-- NAME -->` and replaces this marker in the shared frame.
    /// `style` and `script`, an ES module, are appended to the shared ones.
    pub fn new(sections: &str, style: &str, script: &str) -> Page {
        let (style, script) =
            ([COMMON_STYLE, style].concat(), escape_markup(&[COMMON_SCRIPT, script].concat()));
        let mut document = FRAME.to_owned();
        for (name, text) in sections.split("<!-- ").filter_map(|section| section.split_once(" -->\n")) {
            document = document.replace(&format!("<!-- {name} -->"), text.trim_end());
        }
        let document = document
            .replace("<style></style>", &format!("<style>{style}</style>"))
            .replace("<script></script>", &format!("<script type=\"module\">{script}</script>"));
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
            hash(&style),
            hash(&script),
        );
        // The policy is ASCII and thus a valid header. The fallback would block everything.
        let policy = HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
        let tag = format!("\"{}\"", hash(&document).replace('\'', ""));
        let tag = HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\""));
        Page { document: document.into(), policy, tag }
    }

    /// Returns the route `GET /`.
    pub fn router(self) -> Router {
        Router::new().route("/", get(async move |headers: HeaderMap| self.response(&headers)))
    }

    /// Returns the HTML document.
    pub fn document(&self) -> &str {
        &self.document
    }

    fn response(&self, request: &HeaderMap) -> Response {
        let known = request.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).unwrap_or_default();
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
            (ETAG, self.tag.clone()),
        ];
        if self.tag.to_str().is_ok_and(|tag| known.contains(tag)) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, self.document.to_string()).into_response()
    }
}

/// Escapes what would end a script or begin a comment in HTML. The escape is valid in strings, patterns and comments, and
/// libraries have these texts nowhere else.
fn escape_markup(script: &str) -> String {
    let mut escaped = script.to_owned();
    for text in ["!--", "script", "/script"] {
        escaped = escaped.replace(&format!("<{text}"), &format!("\\x3c{text}"));
    }
    escaped
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_permits_only_the_own_style_and_script() {
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
        assert!(policy.contains("require-trusted-types-for 'script'; trusted-types 'none'"), "{policy}");
        // The well-known SHA-256 digest of the empty string.
        assert_eq!(hash(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }

    #[test]
    fn a_browser_that_has_the_document_is_sent_none() {
        let page = Page::new("<!-- title -->\nA\n", "", "");
        let request =
            |tags: &str| HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_str(tags).unwrap())]);
        let tag = page.tag.to_str().unwrap();
        assert_eq!(page.response(&request(&format!("\"other\", W/{tag}"))).status(), 304);
        for other in ["\"other\"", ""] {
            assert_eq!(page.response(&request(other)).status(), 200);
        }
        assert_eq!(page.response(&HeaderMap::new()).headers()[ETAG], page.tag);
    }

    #[test]
    fn markup_in_a_script_does_not_end_it() {
        let page = Page::new("<!-- title -->\nA\n", "", "let a = '</script><!--<script>';");
        assert!(page.document().contains(r"let a = '\x3c/script>\x3c!--\x3cscript>';</script>"));
        assert_eq!(page.document().matches("</script").count(), 1);
    }
}
