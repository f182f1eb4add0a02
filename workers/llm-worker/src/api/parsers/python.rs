//! Arguments as in Python: `a=1, b="x"`; and those of Gemma 4: `a:1,b:<|"|>x<|"|>`.
use serde_json::Value;

use super::delta::Tool;
use super::nesting::RAW_QUOTE;

/// Maximum nesting depth of values.
const MAX_DEPTH: usize = 64;

/// Converts the text between the parentheses of a call to JSON. Returns `None` if it is not valid.
pub(super) fn arguments(text: &str, tool: &Tool) -> Option<String> {
    let mut reader = Reader { rest: text.trim(), is_raw: false };
    let mut json = String::from("{");
    while !reader.rest.is_empty() {
        if json.len() > 1 {
            json.push_str(", ");
        }
        let name = match reader.keyword() {
            Some(name) => name,
            // A tool with one parameter may be called without its name.
            None if json.len() == 1 => tool.only_parameter()?,
            None => return None,
        };
        json.push_str(&quoted(name));
        json.push_str(": ");
        reader.value(&mut json, 0)?;
        if !reader.rest.is_empty() && !reader.eat(",") {
            return None;
        }
    }
    json.push('}');
    Some(json)
}

/// Converts the text between the braces of a call by Gemma 4 to JSON. Returns `None` if it is not valid.
pub(super) fn raw_arguments(text: &str, _: &Tool) -> Option<String> {
    let object = format!("{{{text}}}");
    let mut json = String::new();
    Reader { rest: &object, is_raw: true }.dictionary(&mut json, 0)?;
    Some(json)
}

/// Returns a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Parser of literals. `rest` has no white space at its beginning.
struct Reader<'a> {
    rest: &'a str,
    /// True for literals of Gemma 4: strings are between [`RAW_QUOTE`]s, and keys and short strings have no quotes.
    is_raw: bool,
}

impl<'a> Reader<'a> {
    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }

    fn eat(&mut self, mark: &str) -> bool {
        let found = self.rest.starts_with(mark);
        if found {
            self.skip(mark.len());
        }
        found
    }

    fn word(&self) -> &'a str {
        let end = self.rest.find(|sign: char| !sign.is_alphanumeric() && sign != '_');
        &self.rest[..end.unwrap_or(self.rest.len())]
    }

    /// Reads `name=`.
    fn keyword(&mut self) -> Option<&'a str> {
        let name = self.word();
        let after = self.rest[name.len()..].trim_start();
        if name.is_empty() || !after.starts_with('=') || after.starts_with("==") {
            return None;
        }
        self.rest = after[1..].trim_start();
        Some(name)
    }

    /// Appends the value at the beginning to `json`.
    fn value(&mut self, json: &mut String, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '[' => self.list(json, depth, "]"),
            '(' => self.list(json, depth, ")"),
            '{' => self.dictionary(json, depth),
            _ if self.is_string() => {
                let text = self.string()?;
                json.push_str(&quoted(&text));
                Some(())
            }
            _ => self.scalar(json),
        }
    }

    fn list(&mut self, json: &mut String, depth: usize, close: &str) -> Option<()> {
        self.skip(1);
        json.push('[');
        let mut is_first = true;
        while !self.eat(close) {
            if !is_first {
                json.push_str(", ");
            }
            is_first = false;
            self.value(json, depth + 1)?;
            if !self.eat(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
        json.push(']');
        Some(())
    }

    fn dictionary(&mut self, json: &mut String, depth: usize) -> Option<()> {
        self.skip(1);
        json.push('{');
        let mut is_first = true;
        while !self.eat("}") {
            if !is_first {
                json.push_str(", ");
            }
            is_first = false;
            let key = self.key()?;
            json.push_str(&quoted(&key));
            json.push_str(": ");
            if !self.eat(":") {
                return None;
            }
            self.value(json, depth + 1)?;
            if !self.eat(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
        json.push('}');
        Some(())
    }

    /// Reads the key of a dictionary.
    fn key(&mut self) -> Option<String> {
        if self.is_string() {
            return self.string();
        }
        let end = self.rest.find(':').filter(|_| self.is_raw)?;
        let key = self.rest[..end].trim_end().to_owned();
        self.skip(end);
        Some(key)
    }

    fn scalar(&mut self, json: &mut String) -> Option<()> {
        let ends: &[char] =
            if self.is_raw { &[',', '}', ']'] } else { &[',', ')', ']', '}', ':', ' ', '\n', '\r', '\t'] };
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let text = self.rest[..end].trim_end();
        match text {
            "True" | "true" => json.push_str("true"),
            "False" | "false" => json.push_str("false"),
            "None" | "null" => json.push_str("null"),
            other => match number_of(other) {
                Some(number) => json.push_str(&number),
                None if self.is_raw => json.push_str(&quoted(other)),
                None => return None,
            },
        }
        self.skip(end);
        Some(())
    }

    fn is_string(&self) -> bool {
        self.rest.starts_with(['"', '\'']) || self.rest.starts_with(RAW_QUOTE)
    }

    fn string(&mut self) -> Option<String> {
        if let Some(text) = self.rest.strip_prefix(RAW_QUOTE) {
            let (text, rest) = text.split_once(RAW_QUOTE)?;
            self.rest = rest.trim_start();
            return Some(text.to_owned());
        }
        let quote = self.rest.chars().next()?;
        let mut text = String::new();
        let mut signs = self.rest.char_indices().skip(1);
        while let Some((at, sign)) = signs.next() {
            match sign {
                sign if sign == quote => {
                    self.skip(at + 1);
                    return Some(text);
                }
                '\\' => match signs.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{C}'),
                    '0' => text.push('\0'),
                    '\n' => {}
                    code @ ('x' | 'u' | 'U') => {
                        let digits = match code {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let digits: String = signs.by_ref().take(digits).map(|(_, sign)| sign).collect();
                        text.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                    }
                    sign @ ('\\' | '\'' | '"' | '/') => text.push(sign),
                    other => text.extend(['\\', other]),
                },
                sign => text.push(sign),
            }
        }
        None
    }
}

/// Converts a Python number to JSON. Numbers that are valid JSON keep their digits.
fn number_of(text: &str) -> Option<String> {
    let plain = text.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    if serde_json::from_str::<serde_json::Number>(plain).is_ok() {
        return Some(plain.to_owned());
    }
    let number = plain.parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some(Value::from(number).to_string())
}
