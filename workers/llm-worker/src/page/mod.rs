//! Chat page.
use worker_core::page::Page;

/// Scripts of the page in their order: third-party libraries after their licenses, then ours. Each file uses only
/// functions of later files, and no values.
const SCRIPT: &str = concat!(
    "/*\n",
    include_str!("vendor/LICENSES.txt"),
    "*/\n",
    include_str!("vendor/marked.umd.js"),
    include_str!("vendor/temml.min.js"),
    include_str!("vendor/highlight.min.js"),
    "\n",
    include_str!("vendor/highlight-languages.min.js"),
    include_str!("storage.js"),
    include_str!("conversation.js"),
    include_str!("mathematics.js"),
    include_str!("markdown.js"),
    include_str!("controls.js"),
    include_str!("turns.js"),
    include_str!("generation.js"),
    include_str!("composer.js"),
    include_str!("history.js"),
    include_str!("chat.js"),
);

/// Builds the chat page from its HTML, CSS and scripts.
pub fn page() -> Page {
    Page::new(include_str!("page.html"), include_str!("style.css"), SCRIPT)
}
