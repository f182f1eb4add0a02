//! Parses Markdown files, and checks their links and snippets.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::CommandFactory;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use serde_json::Value;

use crate::process::{self, root};

/// File whose doc tests are the Rust snippets of the pages.
const DOC_TESTS: &str = "src/lib.rs";

/// One Markdown file.
#[derive(Debug, Default)]
pub struct Page {
    /// Relative to the repository's root.
    pub path: PathBuf,
    pub links: Vec<String>,
    /// Language and text of each fenced block.
    pub snippets: Vec<(String, String)>,
    pub paragraphs: Vec<String>,
    anchors: BTreeSet<String>,
}

/// Reads all Markdown files that git tracks.
pub fn read() -> Result<Vec<Page>> {
    let output = process::command("git", &["ls-files", "*.md"]).output().context("cannot start git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let files = String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect::<Vec<_>>();
    let page = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path)).with_context(|| path.display().to_string())?;
        Ok(parse(path, &text))
    };
    files.into_iter().filter(|path| root().join(path).exists()).map(page).collect()
}

fn parse(path: PathBuf, text: &str) -> Page {
    let mut page = Page { path, ..Page::default() };
    let (mut heading, mut snippet, mut paragraph) =
        (None::<String>, None::<(String, String)>, None::<String>);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().unwrap_or_default()),
            Event::Start(Tag::Paragraph) => paragraph = Some(String::new()),
            Event::End(TagEnd::Paragraph) => page.paragraphs.extend(paragraph.take()),
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                snippet = Some((language, String::new()));
            }
            Event::End(TagEnd::CodeBlock) => page.snippets.extend(snippet.take()),
            Event::Text(text) | Event::Code(text) => {
                let snippet = snippet.as_mut().map(|(_, text)| text);
                for part in [heading.as_mut(), snippet, paragraph.as_mut()].into_iter().flatten() {
                    part.push_str(&text);
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some(paragraph) = &mut paragraph {
                    paragraph.push(' ');
                }
            }
            _ => {}
        }
    }
    page
}

impl Page {
    /// Returns the file that a link leads to, relative to the repository's root; `None` for other sites.
    pub fn target(&self, link: &str) -> Option<PathBuf> {
        if link.contains("://") || link.starts_with("mailto:") {
            return None;
        }
        let file = link.split_once('#').map_or(link, |(file, _)| file);
        Some(if file.is_empty() {
            self.path.clone()
        } else {
            normalize(&self.path.parent().unwrap_or(Path::new("")).join(file))
        })
    }

    /// Adds a heading's anchor as mdBook and forges form it; a repeated one gets a number.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|name| !self.anchors.contains(name));
        self.anchors.extend(free);
    }
}

/// Returns a line for each broken link and each invalid snippet.
pub fn faults(pages: &[Page]) -> Result<Vec<String>> {
    let commands = Commands::read()?;
    let tests = fs::read_to_string(root().join(DOC_TESTS)).context(DOC_TESTS)?;
    let by_path: BTreeMap<&Path, &Page> = pages.iter().map(|page| (page.path.as_path(), page)).collect();
    let mut faults = Vec::new();
    for page in pages {
        let mut fault = |text: String| faults.push(format!("{}: {text}", page.path.display()));
        for link in &page.links {
            if let Some(reason) = broken(page, link, &by_path) {
                fault(format!("link {link}: {reason}"));
            }
        }
        let is_tested = tests.contains(&format!("\"../{}\"", page.path.display()));
        for (language, text) in &page.snippets {
            match language.split(',').next().unwrap_or_default() {
                "sh" => commands.faults(text).into_iter().for_each(&mut fault),
                "toml" => {
                    if let Err(error) = text.parse::<toml::Table>() {
                        fault(format!("a TOML snippet does not parse: {error}"));
                    }
                }
                "json" => {
                    if let Err(error) = serde_json::from_str::<Value>(text) {
                        fault(format!("a JSON snippet does not parse: {error}"));
                    }
                }
                "rust" if !is_tested && !language.contains("ignore") => {
                    fault(format!("has Rust snippets, but {DOC_TESTS} does not include it"));
                }
                "rust" if language.contains("ignore") => fault("a Rust snippet is not compiled".to_owned()),
                _ => {}
            }
        }
    }
    Ok(faults)
}

/// Returns the reason why a link is broken; `None` if its target exists.
fn broken(page: &Page, link: &str, pages: &BTreeMap<&Path, &Page>) -> Option<String> {
    let target = page.target(link)?;
    if !root().join(&target).exists() {
        return Some("no such file".to_owned());
    }
    let (_, anchor) = link.split_once('#')?;
    let page = pages.get(target.as_path())?;
    (!page.anchors.contains(anchor)).then(|| "no such heading".to_owned())
}

/// Removes `..` from a relative path.
fn normalize(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => _ = path.pop(),
            Component::CurDir => {}
            part => path.push(part),
        }
        path
    })
}

/// Names that commands in snippets may use.
struct Commands {
    /// Packages, programs, examples, tests and benches of the workspace.
    targets: BTreeSet<String>,
}

impl Commands {
    fn read() -> Result<Self> {
        let metadata = process::metadata()?;
        let packages = metadata["packages"].as_array().context("cargo metadata listed no packages")?;
        let names = packages.iter().flat_map(|package| {
            let targets = package["targets"].as_array().into_iter().flatten();
            targets.chain([package]).filter_map(|named| named["name"].as_str())
        });
        Ok(Self { targets: names.map(str::to_owned).collect() })
    }

    /// Returns a line for each command of a shell snippet that cannot be run.
    fn faults(&self, snippet: &str) -> Vec<String> {
        let joined = snippet.replace("\\\n", " ");
        joined.lines().filter_map(|line| Some(format!("`{line}`: {}", self.fault(line)?))).collect()
    }

    fn fault(&self, line: &str) -> Option<String> {
        let Some(words) = shlex::split(line) else { return Some("a quote is not closed".to_owned()) };
        let words: Vec<&str> =
            words.iter().map(String::as_str).skip_while(|word| word.contains('=')).collect();
        match words.as_slice() {
            ["cargo", "xtask", arguments @ ..] => {
                // `…` and `[--flag]` represent arguments that the reader chooses.
                let given = arguments.iter().filter(|word| !word.starts_with('[') && !word.contains('…'));
                let parsed = crate::Args::command().try_get_matches_from(["xtask"].iter().chain(given));
                let error = parsed.err().filter(clap::Error::use_stderr)?;
                Some(error.to_string().lines().next().unwrap_or_default().to_owned())
            }
            ["cargo", arguments @ ..] => {
                let selected = arguments.windows(2).filter(|pair| {
                    ["--package", "-p", "--example", "--bin", "--test", "--bench"].contains(&pair[0])
                });
                let unknown = selected.map(|pair| pair[1]).find(|name| !self.targets.contains(*name))?;
                Some(format!("the workspace has no {unknown}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        parse(path.into(), text)
    }

    #[test]
    fn links_to_missing_files_and_headings_are_broken() {
        let readme = page("README.md", "# A `b`: c\n\n## Same\n\n## Same\n[x](docs/nowhere.md) [y](#a-b-c)");
        let pages = BTreeMap::from([(Path::new("README.md"), &readme)]);
        let reason = |link: &str| broken(&readme, link, &pages);
        assert_eq!(readme.links, ["docs/nowhere.md", "#a-b-c"]);
        assert_eq!(reason("docs/nowhere.md").as_deref(), Some("no such file"));
        assert_eq!(reason("#nothing").as_deref(), Some("no such heading"));
        for good in ["#a-b-c", "#same-1", "README.md#same", "./xtask/../README.md", "https://example.org/x"] {
            assert_eq!(reason(good), None, "{good}");
        }
    }

    #[test]
    fn commands_of_snippets_must_exist() {
        let commands = Commands { targets: BTreeSet::from(["doctor".to_owned()]) };
        assert_eq!(
            commands.faults("cargo run --example doctor\nls /\nA=1 cargo xtask lines   # all\n"),
            [""; 0]
        );
        assert!(commands.faults("cargo run --example \\\n nurse")[0].ends_with("the workspace has no nurse"));
        assert!(commands.faults("cargo xtask nothing")[0].contains("unrecognized subcommand"));
        assert!(commands.faults("cargo xtask lines --no-such-flag")[0].contains("unexpected argument"));
    }
}
