//! Web page for image generation.
use worker_core::page::Page;

/// Returns the web page.
pub fn page() -> Page {
    let script = concat!(
        include_str!("input_image.js"),
        include_str!("control_image.js"),
        include_str!("history.js"),
        include_str!("generate.js")
    );
    Page::new(include_str!("page.html"), include_str!("style.css"), script)
}
