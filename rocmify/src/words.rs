//! Tokens of a test file: finds uses of the CPU device and called functions.
//!
//! Macro arguments are not parsed by `syn`, so `assert_eq!(f(&Device::Cpu), …)` is found only at the token level.

use std::collections::BTreeSet;
use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Item;
use syn::spanned::Spanned;

/// A token that is not a group: an identifier, a literal, one character of punctuation, or a delimiter.
#[derive(Debug, Clone)]
pub struct Word {
    pub text: String,
    pub place: Range<usize>,
}

pub fn words(text: &str) -> Vec<Word> {
    fn flatten(tokens: TokenStream, out: &mut Vec<Word>) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::None => ("", ""),
                    };
                    out.push(Word { text: open.into(), place: group.span_open().byte_range() });
                    flatten(group.stream(), out);
                    out.push(Word { text: close.into(), place: group.span_close().byte_range() });
                }
                other => out.push(Word { text: other.to_string(), place: other.span().byte_range() }),
            }
        }
    }
    let mut out = Vec::new();
    // The text has been parsed before, so this cannot fail.
    flatten(text.parse().unwrap_or_default(), &mut out);
    out
}

pub fn path_follows(words: &[Word]) -> bool {
    words.len() > 2 && words[0].text == ":" && words[1].text == ":"
}

/// Returns true if a `use` among these words imports the name `Cpu`.
fn names_cpu_in_use(words: &[Word]) -> bool {
    let mut in_use = false;
    words.windows(4).any(|word| {
        in_use = word[0].text == "use" || (in_use && word[0].text != ";");
        in_use && word[0].text == "Device" && path_follows(&word[1..]) && word[3].text == "Cpu"
    })
}

pub fn imports_cpu(items: &[Item], text: &str) -> bool {
    items
        .iter()
        .any(|item| matches!(item, Item::Use(_)) && names_cpu_in_use(&words(&text[item.span().byte_range()])))
}

/// Returns the ranges of expressions that name the CPU device, without patterns and imports.
pub fn cpu_places(words: &[Word], mut bare: bool) -> Vec<Range<usize>> {
    bare |= names_cpu_in_use(words);
    let mut places = Vec::new();
    let mut in_use = false;
    for (at, word) in words.iter().enumerate() {
        in_use = word.text == "use" || (in_use && word.text != ";");
        let after = |on: usize| words.get(at + on).map_or("", |word| word.text.as_str());
        let in_pattern = after(1) == "|" || (after(1) == "=" && after(2) == ">");
        if word.text != "Cpu" || in_use || in_pattern {
            continue;
        }
        let before = |back: usize| at.checked_sub(back).map_or("", |at| words[at].text.as_str());
        if before(1) != ":" {
            if bare {
                places.push(word.place.clone());
            }
        } else if before(3) == "Device" {
            let mut first = at - 3;
            while first >= 3 && words[first - 1].text == ":" && words[first - 2].text == ":" {
                first -= 3;
            }
            places.push(words[first].place.start..word.place.end);
        }
    }
    places
}

/// Returns those of `functions` that the words call by their unqualified name.
pub fn called(words: &[Word], functions: &BTreeSet<String>) -> Vec<String> {
    let mut names = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let before = at.checked_sub(1).map_or("", |before| words[before].text.as_str());
        let plain = before != "." && before != ":" && before != "fn";
        if plain && functions.contains(&word.text) {
            names.push(word.text.clone());
        }
    }
    names
}
