//! Chat page.
use worker_core::page::Page;

/// Builds the chat page from its HTML, CSS and scripts.
pub fn page() -> Page {
    let script = concat!(include_str!("markdown.js"), include_str!("chat.js"));
    Page::new(include_str!("page.html"), include_str!("style.css"), script)
}
