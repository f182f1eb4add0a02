//! `cargo xtask docs`: the book and the API documentation, their links and their snippets.
mod pages;
mod sample;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{self, cargo, command, root};
use crate::setup;

/// Version of mdBook, which is compiled once into target/tools.
const MDBOOK: &str = "0.5.4";

#[derive(clap::Args)]
pub struct Args {
    /// Only check the links and snippets of all Markdown files; build nothing.
    #[arg(long)]
    check: bool,
    /// Print this many doc comments and as many paragraphs of the book, drawn at random, and do nothing else.
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Seed of the draw.
    #[arg(long, default_value_t = 1, requires = "sample")]
    seed: u64,
}

/// Builds the book into target/doc/book, and rustdoc's pages next to it.
///
/// # Errors
/// Names each broken link and each invalid snippet.
pub fn run(args: &Args) -> Result<()> {
    if let Some(count) = args.sample {
        print!("{}", sample::draw(count, args.seed)?);
        return Ok(());
    }
    check()?;
    if args.check {
        return Ok(());
    }
    setup::ensure(setup::KERNELS)?;
    let api = root().join("target/doc");
    // The pages do not depend on the kernels, so one target is enough.
    let mut rustdoc = cargo(&["doc", "--no-deps", "--workspace", "--features", "candle-rocm/rocm"]);
    process::run(rustdoc.env("CANDLE_ROCM_ARCHS", crate::software_gpu::DEFAULT))?;
    let book = api.join("book");
    process::run(command(mdbook()?, &["build", "docs", "--dest-dir"]).arg(&book))?;
    copy_linked_files(&api)?;
    println!("docs: ok book={} api={}", book.join("index.html").display(), api.display());
    Ok(())
}

/// Checks all Markdown files of the repository.
///
/// # Errors
/// Names each broken link and each snippet that does not hold.
pub fn check() -> Result<()> {
    let pages = pages::read()?;
    let faults = pages::faults(&pages)?;
    if !faults.is_empty() {
        bail!("{} faults in Markdown files:\n  {}", faults.len(), faults.join("\n  "));
    }
    let sum = |count: fn(&pages::Page) -> usize| -> usize { pages.iter().map(count).sum() };
    let (links, snippets) = (sum(|page| page.links.len()), sum(|page| page.snippets.len()));
    println!("docs: ok pages={} links={links} broken=0 snippets={snippets}", pages.len());
    Ok(())
}

/// Copies the files outside of `docs` that pages link to, so that the book's relative links resolve: the book has the
/// same place in `api` as `docs` has in the repository.
fn copy_linked_files(api: &Path) -> Result<()> {
    for page in pages::read()?.iter().filter(|page| page.path.starts_with("docs")) {
        let targets = page.links.iter().filter_map(|link| page.target(link));
        for file in targets.filter(|file| !file.starts_with("docs") && root().join(file).is_file()) {
            let copy = api.join(&file);
            fs::create_dir_all(copy.parent().unwrap_or(api))?;
            fs::copy(root().join(&file), &copy).with_context(|| copy.display().to_string())?;
        }
    }
    Ok(())
}

/// Returns the path of mdBook, compiled at the first call.
fn mdbook() -> Result<PathBuf> {
    let folder = root().join("target/tools");
    let program = folder.join("bin/mdbook");
    if !program.exists() {
        let install = ["install", "mdbook", "--locked", "--no-default-features", "--features", "search"];
        let mut install = cargo(&install);
        install.args(["--version", MDBOOK, "--root"]).arg(&folder);
        process::run(&mut install).context("cannot install mdbook; is there a network or a crate mirror?")?;
    }
    Ok(program)
}
