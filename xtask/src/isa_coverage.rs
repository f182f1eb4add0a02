//! `cargo xtask isa-coverage`: counts the shipped mnemonics that the software GPU decodes, executes and is tested on.
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::process::{self, cargo};
use crate::setup;

/// Tests that run the cases and print a line per target. They fail on a wrong result or too little coverage.
const TESTS: &str = "exec::semantics::tests";
/// Prefix of each of these lines.
const MARK: &str = "isa-coverage ";
/// Targets whose lists `--write` updates.
const TARGETS: &str = "gfx906,gfx908,gfx90a,gfx942,gfx950,gfx1030,gfx1100,gfx1151,gfx1201";

#[derive(clap::Args)]
pub struct Args {
    /// First compile the kernels for every target and update the lists of shipped instructions.
    #[arg(long)]
    write: bool,
}

/// Coverage of one target.
struct Row {
    target: String,
    shipped: usize,
    columns: Vec<Column>,
}

/// Number of shipped mnemonics that are decoded, executed or tested, and the names of those that are not.
struct Column {
    name: String,
    count: usize,
    missing: String,
}

impl Row {
    /// Parses `TARGET shipped=N decoded=N without=NAMES executed=N without=NAMES tested=N without=NAMES`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let target = words.next()?.to_owned();
        let mut fields = words.filter_map(|word| word.split_once('='));
        let (_, shipped) = fields.next()?;
        let mut columns = Vec::new();
        while let Some((name, count)) = fields.next() {
            let (_, missing) = fields.next()?;
            columns.push(Column {
                name: name.to_owned(),
                count: count.parse().ok()?,
                missing: missing.replace(',', ", "),
            });
        }
        Some(Self { target, shipped: shipped.parse().ok()?, columns })
    }
}

pub fn run(args: &Args) -> Result<()> {
    if args.write {
        setup::ensure(setup::KERNELS)?;
        let mut command =
            cargo(&["test", "--quiet", "--package", "hip-kernels", "--test", "shipped_instructions"]);
        command.env("CANDLE_ROCM_ARCHS", TARGETS).env("CANDLE_SHIPPED_WRITE", "1");
        process::run(&mut command)?;
    }
    let mut command = cargo(&["test", "--quiet", "--package", "rocm-emulator", "--lib", "--", TESTS]);
    command.args(["--nocapture", "--test-threads", "1"]).stderr(Stdio::inherit());
    let line = process::command_line(&command);
    eprintln!("+ {line}");
    let output = command.output().with_context(|| format!("cannot start: {line}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let marked = text.lines().filter_map(|line| line.split_once(MARK));
    let rows: Vec<Row> = marked.filter_map(|(_, line)| Row::parse(line)).collect();
    print!("{}", table(&rows));
    if !output.status.success() {
        print!("{text}");
        bail!("the instruction tests failed (wrong result or insufficient coverage), see above: {line}");
    }
    if rows.is_empty() {
        bail!("the tests reported no target: {line}");
    }
    println!("isa-coverage: ok targets={}", rows.len());
    Ok(())
}

/// Returns a table in Markdown, followed by the mnemonics that are not covered.
fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let mut text = String::from("| Target | Shipped |");
    first.columns.iter().for_each(|column| text += &format!(" {} |", column.name));
    text += "\n|---|---|";
    first.columns.iter().for_each(|_| text += "---|");
    text += "\n";
    for row in rows {
        text += &format!("| {} | {} |", row.target, row.shipped);
        for column in &row.columns {
            let percent = 100.0 * column.count as f64 / row.shipped.max(1) as f64;
            text += &format!(" {} ({percent:.1}%) |", column.count);
        }
        text += "\n";
    }
    for row in rows {
        for column in row.columns.iter().filter(|column| !column.missing.is_empty()) {
            text += &format!("{}: not {}: {}\n", row.target, column.name, column.missing);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_as_a_row_and_its_missing_mnemonics() {
        let row =
            Row::parse("gfx1100 shipped=4 decoded=4 without= executed=4 without= tested=2 without=v_a,v_b");
        let text = table(&[row.expect("a row")]);
        let expected = "| Target | Shipped | decoded | executed | tested |\n\
                        |---|---|---|---|---|\n\
                        | gfx1100 | 4 | 4 (100.0%) | 4 (100.0%) | 2 (50.0%) |\n\
                        gfx1100: not tested: v_a, v_b\n";
        assert_eq!(text, expected);
        assert!(Row::parse("gfx1100 shipped=many").is_none());
    }
}
