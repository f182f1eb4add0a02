//! Conversion of GBNF, the notation of llama.cpp's grammars, to Lark.
//!
//! GBNF describes a text character by character, but llguidance divides it into tokens first. Rules that are not
//! recursive therefore become regular expressions as a whole, and so do adjacent items of other rules. Only the
//! boundaries to recursive rules are subject to the longest match.
use std::collections::HashMap;
use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use anyhow::{Context, Result, bail, ensure};

use super::lark::{character, literal};

/// Maximum nesting depth of groups.
const MAX_DEPTH: usize = 24;
/// Maximum number in a repetition.
const MAX_REPETITIONS: u32 = 10_000;

/// Converts a grammar whose first symbol is `root`.
///
/// # Errors
/// Returns an error that names the line of an invalid or unsupported part, or the name of an undefined rule.
pub(super) fn to_lark(text: &str) -> Result<String> {
    let mut parser =
        Parser { rest: text.chars().peekable(), line: 1, rules: Vec::new(), names: HashMap::new() };
    let parsed = parser.rules();
    parsed.with_context(|| format!("line {}", parser.line))?;
    let Parser { rules, names, .. } = parser;
    let root = *names.get("root").context("there is no rule `root`")?;
    let name_of = |rule: usize| names.iter().find(|(_, at)| **at == rule).map_or("", |(name, _)| name);
    let undefined = rules.iter().position(Option::is_none);
    ensure!(undefined.is_none(), "the rule `{}` is not defined", undefined.map_or("", name_of));
    let rules: Vec<Alternatives> = rules.into_iter().flatten().collect();
    let is_regular = regular(&rules);
    let mut writer = Writer { is_regular: &is_regular, text: String::new(), terminals: 0 };
    let start = writer.reference(root);
    let _ = writeln!(writer.text, "start: {start}");
    for (index, rule) in rules.iter().enumerate() {
        let expression = match writer.is_regular[index] {
            true => writer.terminal(rule),
            false => writer.rule(rule),
        };
        let name = writer.reference(index);
        let _ = writeln!(writer.text, "{name}: {expression}");
    }
    Ok(writer.text)
}

/// Alternatives of a rule or group, each a sequence.
type Alternatives = Vec<Vec<Item>>;

/// An element of a sequence, and how often it occurs.
struct Item {
    element: Element,
    repeat: Option<(u32, Option<u32>)>,
}

enum Element {
    /// Expression that matches a text or a character.
    Terminal(String),
    /// Number of a rule.
    Rule(usize),
    Group(Alternatives),
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
    rules: Vec<Option<Alternatives>>,
    names: HashMap<String, usize>,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// Skips white space and comments; line breaks only if `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(&next) = self.rest.peek() {
            match next {
                '#' => while self.rest.next_if(|next| *next != '\n').is_some() {},
                '\n' | '\r' if !lines => return,
                next if next.is_whitespace() => _ = self.next(),
                _ => return,
            }
        }
    }

    fn rules(&mut self) -> Result<()> {
        self.skip(true);
        while self.rest.peek().is_some() {
            let name = self.name()?;
            self.skip(false);
            for sign in "::=".chars() {
                ensure!(self.next() == Some(sign), "expected ::= after the name `{name}`");
            }
            self.skip(true);
            let rule = self.alternatives(0)?;
            ensure!(
                self.rest.peek().is_none_or(|next| *next == '\n' || *next == '\r'),
                "expected a new line"
            );
            let index = self.index_of(name);
            self.rules[index] = Some(rule);
            self.skip(true);
        }
        Ok(())
    }

    fn index_of(&mut self, name: String) -> usize {
        let index = *self.names.entry(name).or_insert(self.rules.len());
        if index == self.rules.len() {
            self.rules.push(None);
        }
        index
    }

    fn name(&mut self) -> Result<String> {
        let mut name = String::new();
        while let Some(sign) = self.rest.next_if(|next| next.is_ascii_alphanumeric() || "-_".contains(*next))
        {
            name.push(sign);
        }
        ensure!(!name.is_empty(), "expected the name of a rule, not {:?}", self.rest.peek());
        Ok(name)
    }

    fn alternatives(&mut self, depth: usize) -> Result<Alternatives> {
        ensure!(depth <= MAX_DEPTH, "groups are nested deeper than {MAX_DEPTH} levels");
        let mut all = vec![Vec::new()];
        loop {
            match self.rest.peek() {
                Some('|') => {
                    self.next();
                    self.skip(true);
                    all.push(Vec::new());
                }
                None | Some(')' | '\n' | '\r') => return Ok(all),
                Some(_) => {
                    let element = self.element(depth)?;
                    let mut repeat = None;
                    while let Some(next) = self.repetition()? {
                        ensure!(
                            repeat.is_none(),
                            "an element has two repetitions; put the first into parentheses"
                        );
                        repeat = Some(next);
                    }
                    if let Some(last) = all.last_mut() {
                        last.push(Item { element, repeat });
                    }
                    self.skip(depth > 0);
                }
            }
        }
    }

    fn element(&mut self, depth: usize) -> Result<Element> {
        Ok(match self.rest.peek() {
            Some('"') => {
                self.next();
                let mut text = String::new();
                while let Some(sign) = self.character('"')? {
                    text.push(sign);
                }
                Element::Terminal(literal(&text))
            }
            Some('[') => {
                self.next();
                Element::Terminal(self.class()?)
            }
            Some('.') => {
                self.next();
                Element::Terminal("/(?s:.)/".into())
            }
            Some('(') => {
                self.next();
                self.skip(true);
                let group = self.alternatives(depth + 1)?;
                ensure!(self.next() == Some(')'), "expected )");
                Element::Group(group)
            }
            Some('<' | '!') => bail!("tokens such as <name> or <[5]> are not supported; write their text"),
            _ => {
                let name = self.name()?;
                Element::Rule(self.index_of(name))
            }
        })
    }

    /// Reads the rest of a character class.
    fn class(&mut self) -> Result<String> {
        let negation = if self.rest.next_if_eq(&'^').is_some() { "^" } else { "" };
        let mut class = String::new();
        while let Some(first) = self.character(']')? {
            class += &character(first);
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|next| next != ']') {
                self.next();
                let last = self.character(']')?.context("expected the end of a range")?;
                ensure!(first <= last, "the range {first}-{last} is empty");
                let _ = write!(class, "-{}", character(last));
            }
        }
        ensure!(!class.is_empty(), "a character class is empty");
        Ok(format!("/[{negation}{class}]/"))
    }

    /// Reads a character of a literal or class; `None` at its end.
    fn character(&mut self, end: char) -> Result<Option<char>> {
        let sign = self.next().with_context(|| format!("expected {end}"))?;
        if sign == end {
            return Ok(None);
        }
        if sign != '\\' {
            return Ok(Some(sign));
        }
        let escape = self.next().context("expected a character after \\")?;
        let digits = match escape {
            't' => return Ok(Some('\t')),
            'r' => return Ok(Some('\r')),
            'n' => return Ok(Some('\n')),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => return Ok(Some(escape)),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => bail!("the escape \\{escape} is not known"),
        };
        let digits: String = (0..digits).map_while(|_| self.next()).collect();
        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
        code.map(Some).with_context(|| format!("\\{escape}{digits} is not a character"))
    }

    fn repetition(&mut self) -> Result<Option<(u32, Option<u32>)>> {
        let range = match self.rest.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                let mut text = String::new();
                while let Some(sign) = self.next() {
                    if sign == '}' {
                        break;
                    }
                    text.push(sign);
                }
                let text = text.trim_start_matches('{');
                let number = |text: &str| {
                    let number = text.trim().parse::<u32>().ok().filter(|number| *number <= MAX_REPETITIONS);
                    number.with_context(|| {
                        format!("{{{text}}} is not a range of numbers up to {MAX_REPETITIONS}")
                    })
                };
                let (min, max) = match text.split_once(',') {
                    Some((min, max)) if max.trim().is_empty() => (number(min)?, None),
                    Some((min, max)) if min.trim().is_empty() => (0, Some(number(max)?)),
                    Some((min, max)) => (number(min)?, Some(number(max)?)),
                    None => (number(text)?, Some(number(text)?)),
                };
                ensure!(max.is_none_or(|max| min <= max), "the range {{{text}}} is empty");
                return Ok(Some((min, max)));
            }
            _ => return Ok(None),
        };
        self.next();
        Ok(Some(range))
    }
}

/// Returns true for each rule that is a regular expression: it contains neither itself nor an irregular rule.
fn regular(rules: &[Alternatives]) -> Vec<bool> {
    let mut known = vec![false; rules.len()];
    loop {
        let next: Vec<bool> = rules.iter().map(|rule| is_regular(rule, &known)).collect();
        if next == known {
            return known;
        }
        known = next;
    }
}

fn is_regular(alternatives: &Alternatives, known: &[bool]) -> bool {
    alternatives.iter().flatten().all(|item| item.is_regular(known))
}

impl Item {
    fn is_regular(&self, known: &[bool]) -> bool {
        match &self.element {
            Element::Terminal(_) => true,
            Element::Rule(rule) => known[*rule],
            Element::Group(group) => is_regular(group, known),
        }
    }

    /// Returns the expression with its repetition.
    fn repeated(&self, expression: String) -> String {
        match self.repeat {
            None => expression,
            Some((0, None)) => format!("({expression})*"),
            Some((1, None)) => format!("({expression})+"),
            Some((0, Some(1))) => format!("({expression})?"),
            Some((_, Some(0))) => "\"\"".into(),
            Some((min, None)) => format!("({expression}){{{min},}}"),
            Some((min, Some(max))) => format!("({expression}){{{min},{max}}}"),
        }
    }
}

/// Writes the rules in Lark: terminals have names in capitals.
struct Writer<'a> {
    is_regular: &'a [bool],
    text: String,
    terminals: usize,
}

impl Writer<'_> {
    fn reference(&self, rule: usize) -> String {
        if self.is_regular[rule] { format!("R{rule}") } else { format!("r{rule}") }
    }

    /// Returns the expression of a regular rule or group.
    fn terminal(&self, alternatives: &Alternatives) -> String {
        let sequences = alternatives.iter().map(|sequence| self.terminals(sequence));
        sequences.collect::<Vec<_>>().join(" | ")
    }

    fn terminals(&self, sequence: &[Item]) -> String {
        let item = |item: &Item| {
            item.repeated(match &item.element {
                Element::Terminal(terminal) => terminal.clone(),
                Element::Rule(rule) => self.reference(*rule),
                Element::Group(group) => format!("({})", self.terminal(group)),
            })
        };
        let items = sequence.iter().map(item).collect::<Vec<_>>().join(" ");
        if items.is_empty() { "\"\"".into() } else { items }
    }

    /// Returns the expression of another rule or group. Regular items that follow one another become one terminal.
    fn rule(&mut self, alternatives: &Alternatives) -> String {
        let known = self.is_regular;
        let mut sequences = Vec::new();
        for sequence in alternatives {
            let mut items = Vec::new();
            for run in sequence.chunk_by(|one, next| one.is_regular(known) && next.is_regular(known)) {
                items.push(match run {
                    [item] if !item.is_regular(known) => {
                        let expression = match &item.element {
                            Element::Group(group) => format!("({})", self.rule(group)),
                            Element::Rule(rule) => self.reference(*rule),
                            Element::Terminal(terminal) => terminal.clone(),
                        };
                        item.repeated(expression)
                    }
                    run => {
                        self.terminals += 1;
                        let name = format!("T{}", self.terminals);
                        let expression = self.terminals(run);
                        let _ = writeln!(self.text, "{name}: {expression}");
                        name
                    }
                });
            }
            sequences.push(if items.is_empty() { "\"\"".into() } else { items.join(" ") });
        }
        sequences.join(" | ")
    }
}
