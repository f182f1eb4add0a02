//! The page that generates images.
use worker_core::page::Page;

/// The page that generates images.
pub fn page() -> Page {
    let script = concat!(include_str!("given.js"), include_str!("paint.js"));
    Page::new(include_str!("page.html"), include_str!("style.css"), script)
}
