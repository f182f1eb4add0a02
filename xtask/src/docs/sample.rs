//! Random sample of doc comments and paragraphs, for reviews of their language.
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::pages;
use crate::process::{self, root};

/// Paragraphs shorter than this are captions and single links.
const LEAST_CHARACTERS: usize = 60;

/// Returns `count` doc comments and `count` paragraphs; a seed always draws the same from the same sources.
pub fn draw(count: usize, seed: u64) -> Result<String> {
    let mut text = String::new();
    for comment in drawn(comments()?, count, seed) {
        writeln!(text, "{comment}\n")?;
    }
    let paragraphs = pages::read()?.into_iter().flat_map(|page| {
        let path = page.path.display().to_string();
        let long = page.paragraphs.into_iter().filter(|text| text.chars().count() >= LEAST_CHARACTERS);
        long.map(move |text| format!("{path}\n{text}")).collect::<Vec<_>>()
    });
    for paragraph in drawn(paragraphs.collect(), count, seed) {
        writeln!(text, "{paragraph}\n")?;
    }
    Ok(text)
}

/// Draws by a hash of the seed and the text, so that an edit elsewhere does not change the draw.
fn drawn(mut texts: Vec<String>, count: usize, seed: u64) -> Vec<String> {
    texts.sort_by_cached_key(|text| Sha256::digest(format!("{seed} {text}")));
    texts.truncate(count);
    texts
}

/// Returns all doc comments of the repository, each with its place and the line that it documents.
fn comments() -> Result<Vec<String>> {
    let output = process::command("git", &["ls-files", "*.rs", "*.cu", "*.cuh"]).output()?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut comments = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(source) = fs::read_to_string(root().join(path)) else { continue };
        comments.extend(comments_of(path, &source));
    }
    Some(comments).filter(|comments| !comments.is_empty()).context("no doc comment in any file")
}

fn comments_of(path: &str, source: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().collect();
    let is_doc = |line: &str| line.trim_start().starts_with("///");
    let mut comments = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let length = lines[at..].iter().take_while(|line| is_doc(line)).count();
        if length > 0 {
            let item = lines.get(at + length).copied().unwrap_or_default();
            comments.push(format!("{path}:{}\n{}\n{item}", at + 1, lines[at..at + length].join("\n")));
        }
        at += length + 1;
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_comes_with_its_item() {
        let found = comments_of(
            "a.rs",
            "//! Module.\n\n/// One\n/// two.\nfn f() {}\n\n    /// Three.\n    x: u8,\n",
        );
        assert_eq!(found, ["a.rs:3\n/// One\n/// two.\nfn f() {}", "a.rs:7\n    /// Three.\n    x: u8,"]);
    }

    #[test]
    fn a_seed_repeats_the_draw() {
        let texts = || (0..100).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(drawn(texts(), 5, 7), drawn(texts(), 5, 7));
        assert_ne!(drawn(texts(), 5, 7), drawn(texts(), 5, 8));
        assert_eq!(drawn(texts(), 200, 7).len(), 100);
    }
}
