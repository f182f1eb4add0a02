//! Guesses for hardware: the results of the software GPU for every case.
//!
//! `guesses.txt` has a line per question: its kernel, the family or `*` for all others, and the result words.
//! It is written by `--write-guesses` for one family at a time, and checked by CI.
use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::gpu::Gpu;
use crate::{answer::Question, instructions, matrices};

const GUESSES: &str = include_str!("guesses.txt");
/// Maximum number of differing cases that are reported.
const MAX_REPORTED: usize = 12;

type Table = BTreeMap<(String, String), Vec<u32>>;

fn read(text: &str) -> Table {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let key = (words.next()?.to_owned(), words.next()?.to_owned());
        Some((key, words.map(|word| u32::from_str_radix(word, 16).unwrap_or_default()).collect()))
    };
    lines.filter_map(entry).collect()
}

/// Returns the software GPU's architecture of the same family.
pub fn family(arch: &str) -> &str {
    match arch {
        "gfx908" | "gfx90a" => arch,
        _ if arch.starts_with("gfx9") => "gfx942",
        _ if arch.starts_with("gfx10") => "gfx1030",
        _ if arch.starts_with("gfx11") => "gfx1100",
        _ if arch.starts_with("gfx12") => "gfx1201",
        other => other,
    }
}

/// Returns the guessed results of a kernel.
pub fn of(kernel: &str, arch: &str) -> Option<Vec<u32>> {
    lookup(&read(GUESSES), kernel, arch).cloned()
}

fn lookup<'a>(table: &'a Table, kernel: &str, arch: &str) -> Option<&'a Vec<u32>> {
    let of = |family: &str| table.get(&(kernel.to_owned(), family.to_owned()));
    of(family(arch)).or_else(|| of("*"))
}

/// Compares the results, `outputs` words per case, with the guess.
pub fn judge(question: Question, cases: &[Vec<u32>], outputs: usize, guess: &[u32], found: &[u32]) -> Answer {
    let pairs = guess.chunks(outputs).zip(found.chunks(outputs)).zip(cases);
    let differing: Vec<Value> = pairs
        .filter(|((guess, found), _)| guess != found)
        .map(|((guess, found), case)| json!({"case": hex(case), "guess": hex(guess), "answer": hex(found)}))
        .collect();
    let is_complete = guess.len() == found.len();
    let text = match differing.len() {
        0 if is_complete => format!("equal to the guess in all {} cases", cases.len()),
        0 => format!("{} words, but the guess has {}", found.len(), guess.len()),
        count => format!("different from the guess in {count} of {} cases", cases.len()),
    };
    let reported: Vec<&Value> = differing.iter().take(MAX_REPORTED).collect();
    question.answer(is_complete && differing.is_empty(), text).with(json!(reported))
}

fn hex(words: &[u32]) -> String {
    words.iter().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(" ")
}

/// Writes the answers of this GPU as the guesses of its family.
///
/// # Errors
/// If the GPU is hardware, since guesses are results of the software GPU, or the file cannot be written.
pub fn write(file: &Path, gpu: &Gpu) -> Result<()> {
    ensure!(
        gpu.is_software(),
        "guesses are results of the software GPU: implement the hardware's answers there first"
    );
    let mut table = read(&std::fs::read_to_string(file).unwrap_or_default());
    for (kernel, found) in instructions::answers(gpu)?.into_iter().chain(matrices::answers(gpu)?) {
        let family = family(gpu.arch()).to_owned();
        table.remove(&(kernel.to_owned(), family.clone()));
        match table.get(&(kernel.to_owned(), "*".to_owned())) {
            Some(common) if *common == found => {}
            Some(_) => drop(table.insert((kernel.to_owned(), family), found)),
            None => drop(table.insert((kernel.to_owned(), "*".to_owned()), found)),
        }
    }
    let mut text = String::from(
        "# Results of the software GPU: kernel, family (* for all others), words. See guesses.rs.\n",
    );
    for ((kernel, family), words) in table {
        let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
        text.push_str(&format!("{kernel} {family} {}\n", words.join(" ")));
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Verdict;

    const QUESTION: Question = Question { name: "a question", guess: "so", why: "because", place: "here.rs" };

    #[test]
    fn a_wrong_guess_is_reported() {
        let cases = vec![vec![1], vec![2], vec![3]];
        let right = judge(QUESTION, &cases, 2, &[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(right.verdict, Verdict::Right);
        let wrong = judge(QUESTION, &cases, 2, &[1, 2, 3, 4, 5, 6], &[1, 2, 3, 9, 5, 6]);
        assert_eq!((wrong.verdict, wrong.details[0]["case"].as_str()), (Verdict::Wrong, Some("00000002")));
        assert!(wrong.to_string().contains("here.rs"), "{wrong}");
        assert_eq!(judge(QUESTION, &cases, 2, &[1, 2], &[1, 2, 3, 4]).verdict, Verdict::Wrong);
    }

    #[test]
    fn the_line_of_a_family_takes_precedence() {
        let table = read("# a comment\nfrexp * 0000000a 0b\nfrexp gfx90a 0c\n");
        assert_eq!(lookup(&table, "frexp", "gfx90a"), Some(&vec![12]));
        assert_eq!(lookup(&table, "frexp", "gfx1102"), Some(&vec![10, 11]));
        assert_eq!(lookup(&table, "rcp", "gfx1102"), None);
    }

    #[test]
    fn source_files_of_questions_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let places = instructions::questions().chain(matrices::questions()).map(|question| question.place);
        for place in places.flat_map(|place| place.split(", ")) {
            assert!(root.join(place).exists(), "{place}");
        }
    }

    #[test]
    fn every_instruction_has_a_guess() {
        for kernel in instructions::kernels() {
            assert!(of(kernel, "gfx1100").is_some(), "{kernel}");
        }
    }
}
