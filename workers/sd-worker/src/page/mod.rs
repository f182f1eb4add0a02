//! The page that paints.
use axum::Router;
use worker_core::page::Page;

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("basics.js"), include_str!("given.js"), include_str!("paint.js"));

/// `GET /`.
pub fn router() -> Router {
    page().router()
}

fn page() -> Page {
    Page::new(FRAME, STYLE, SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_whole_and_asks_for_nothing_elsewhere() {
        let page = page();
        let document = page.document();
        assert!(document.contains("--accent:") && document.contains("async function* events"));
        for tag in ["<link rel=\"stylesheet", "src=\"http", "@import", "url(", "innerHTML", "eval("] {
            assert!(!document.contains(tag), "{tag}");
        }
        // The script must not end its own element.
        assert_eq!(document.matches("</script").count(), 1);
    }
}
