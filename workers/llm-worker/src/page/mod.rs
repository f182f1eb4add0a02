//! The chat page.
use worker_core::page::Page;

/// The chat page.
pub fn page() -> Page {
    let script = concat!(include_str!("markdown.js"), include_str!("chat.js"));
    Page::new(include_str!("page.html"), include_str!("style.css"), script)
}
