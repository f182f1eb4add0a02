//! Generates short stories from a context-free grammar, and parses texts to check that they follow it.
use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, bail, ensure};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::productions::{PERSONS, PRODUCTIONS, STORY, TEXT};

/// Element of an alternative.
#[derive(Clone, Copy)]
enum Item {
    Word(&'static str),
    Symbol(usize),
}

/// Productions, expanded for each person.
pub struct Grammar {
    /// Alternatives of each symbol.
    symbols: Vec<Vec<Vec<Item>>>,
    story: usize,
    text: usize,
}

impl Grammar {
    /// Expands the table of productions.
    ///
    /// # Errors
    /// If a symbol has no production or two, or a word has an invalid number of forms.
    pub fn new() -> Result<Self> {
        let mut numbers = HashMap::new();
        let mut sources = Vec::new();
        for (name, alternatives) in PRODUCTIONS {
            // A symbol without a person has the alternatives of all persons.
            let versions: Vec<(String, &[&str])> = match name.strip_suffix('#') {
                Some(stem) => {
                    PERSONS.iter().map(|p| (format!("{stem}@{p}"), std::slice::from_ref(p))).collect()
                }
                None => vec![(name.to_string(), &PERSONS[..])],
            };
            for (name, persons) in versions {
                ensure!(numbers.insert(name, sources.len()).is_none(), "a symbol has two productions");
                sources.push((persons, alternatives));
            }
        }
        let symbols = sources
            .into_iter()
            .map(|(persons, alternatives)| {
                let expanded = alternatives.iter().flat_map(|alternative| {
                    persons.iter().map(|person| items(alternative, person, &numbers))
                });
                expanded.collect()
            })
            .collect::<Result<_>>()?;
        let number =
            |name: &str| numbers.get(name).copied().with_context(|| format!("'{name}' has no production"));
        Ok(Self { symbols, story: number(STORY)?, text: number(TEXT)? })
    }

    /// Returns a random story.
    pub fn story(&self, rng: &mut impl Rng) -> String {
        let mut words = Vec::new();
        let mut pending = vec![Item::Symbol(self.story)];
        while let Some(item) = pending.pop() {
            match item {
                Item::Word(word) => words.push(capitalize(word, begins_sentence(&words))),
                Item::Symbol(symbol) => {
                    let alternative = self.symbols[symbol].choose(rng).into_iter().flatten();
                    pending.extend(alternative.rev());
                }
            }
        }
        join(&words)
    }

    /// Returns whether the text follows the grammar, including spaces and capitalization.
    pub fn accepts(&self, text: &str) -> bool {
        let words = words(text);
        join(&words) == text
            && Parse { grammar: self, words: &words, known: HashMap::new() }
                .ends(self.text, 0)
                .contains(&words.len())
    }
}

/// Returns the elements of an alternative for a person.
fn items(alternative: &'static str, person: &str, numbers: &HashMap<String, usize>) -> Result<Vec<Item>> {
    let place = PERSONS.iter().position(|p| *p == person).context("unknown person")?;
    let mut items = Vec::new();
    for word in alternative.split(' ') {
        let forms: Vec<&str> = word.split('/').collect();
        let form = match forms.len() {
            1 => forms[0],
            2 => forms[usize::from(place == PERSONS.len() - 1)],
            4 => forms[place],
            count => bail!("'{word}' in '{alternative}' has {count} forms, expected 1, 2 or 4"),
        };
        let symbol = match form.strip_suffix('#') {
            Some(stem) => numbers.get(&format!("{stem}@{person}")),
            None => numbers.get(form),
        };
        items.push(match symbol {
            Some(symbol) => Item::Symbol(*symbol),
            None if form.contains(['#', '@']) => bail!("'{form}' in '{alternative}' has no production"),
            None => Item::Word(form),
        });
    }
    Ok(items)
}

struct Parse<'a> {
    grammar: &'a Grammar,
    words: &'a [String],
    /// Possible ends of a symbol that begins at a word. No production is left-recursive, so that parsing terminates.
    known: HashMap<(usize, usize), BTreeSet<usize>>,
}

impl Parse<'_> {
    fn ends(&mut self, symbol: usize, begin: usize) -> BTreeSet<usize> {
        if let Some(ends) = self.known.get(&(symbol, begin)) {
            return ends.clone();
        }
        let grammar = self.grammar;
        let mut all = BTreeSet::new();
        for alternative in &grammar.symbols[symbol] {
            let mut ends = BTreeSet::from([begin]);
            for item in alternative {
                ends = match item {
                    Item::Word(word) => {
                        ends.into_iter().filter(|at| self.is_at(word, *at)).map(|at| at + 1).collect()
                    }
                    Item::Symbol(symbol) => ends.into_iter().flat_map(|at| self.ends(*symbol, at)).collect(),
                };
            }
            all.extend(ends);
        }
        self.known.insert((symbol, begin), all.clone());
        all
    }

    fn is_at(&self, word: &str, at: usize) -> bool {
        let before = &self.words[..at];
        self.words.get(at).is_some_and(|found| *found == capitalize(word, begins_sentence(before)))
    }
}

fn begins_sentence(before: &[String]) -> bool {
    before.last().is_none_or(|word| word == ".")
}

fn capitalize(word: &str, begins_sentence: bool) -> String {
    let mut letters = word.chars();
    match letters.next() {
        Some(first) if begins_sentence => first.to_uppercase().chain(letters).collect(),
        _ => word.to_string(),
    }
}

fn is_mark(word: &str) -> bool {
    matches!(word, "." | ",")
}

/// Splits a text into words and punctuation marks.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for word in text.split(' ') {
        let (word, mark) = word.split_at(word.trim_end_matches(['.', ',']).len());
        words.push(word.to_string());
        words.extend(mark.chars().map(String::from));
    }
    words
}

fn join(words: &[String]) -> String {
    let mut text = String::new();
    for word in words {
        if !text.is_empty() && !is_mark(word) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}
